-- A stream is what an exclusive subscription reads. What goes wrong with it, where it stands, and how to move it; batches themselves are in
-- batch.sql.
--
-- Seek moves a position anywhere in reach, also back. Rotation takes for granted that positions only move forward: so seek holds the
-- queue's lock, shared, which rotation wants for itself alone, and looks what is in reach by a later statement. It writes a finished batch
-- that ends at the tick: that is the cursor, and what was open before is open no more.

create or replace function trunq.seek(
  p_queue text, p_subscription text, p_tick_id bigint default null, p_at timestamptz default null, p_start text default null
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_name text;
  v_tick trunq.tick;
begin
  perform trunq._audit('seek', p_queue, jsonb_build_object('subscription', p_subscription, 'tick_id', p_tick_id, 'at', p_at, 'start', p_start));
  perform trunq._require_read_committed('seek');
  perform trunq._subscription_of(p_queue, p_subscription, null);
  if num_nonnulls(p_tick_id, p_at, p_start) <> 1 then
    perform trunq._fail('TQ005', 'seek goes to one place', 'give p_tick_id, p_at or p_start');
  end if;
  perform trunq._check_start(coalesce(p_start, 'latest'), p_tick_id, p_at);
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);
  perform trunq._check_cluster();
  v_sub := trunq._subscription_of(p_queue, p_subscription, null);  -- it may have been dropped meanwhile
  -- Before the subscription's lock (functions/ground/lock.sql).
  v_tick := trunq._start_tick(v_queue, p_start, p_tick_id, p_at);
  perform trunq._move_back(v_queue.queue_id, v_sub.subscription_id);
  for v_name in
    select p_subscription where not trunq._is_split(p_queue, p_subscription) union all select trunq._slots(p_queue, p_subscription)
  loop
    loop
      v_sub := trunq._subscription(p_queue, v_name, 'exclusive');
      perform trunq._lock_subscription(v_sub.subscription_id, p_queue, v_name);
      -- Who held the lock may have reset it, which gives it another id.
      exit when (trunq._subscription(p_queue, v_name, 'exclusive')).subscription_id = v_sub.subscription_id;
    end loop;
    perform trunq._put_batch(v_queue, v_sub.subscription_id, 'seek', v_tick.snapshot, v_tick.snapshot, v_tick.tick_id, v_tick.tick_id,
      trunq._segment_at(v_queue, now()));
  end loop;
  return v_tick.tick_id;
end $$;
comment on function trunq.seek is
  'Moves an exclusive subscription, or all slots of a group, to a tick, forward or back: p_tick_id; the last at or before p_at, so that nothing since then is missed; or, with p_start, the earliest in reach or latest, which is now. An open batch ends, and its reader cannot finish it. Retries that wait stay, and come twice where it moves back.
Returns: the tick it stands at, the messages after which it reads next.
Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ010, TQ011; TQ012 when messages after that tick or time are gone.
Locks: the queue, shared; the subscription.';

create or replace function trunq.copy_position(p_queue text, p_subscription text, p_like text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_from trunq.subscription;
  v_to trunq.subscription;
  v_sub trunq.subscription;
  v_ids integer[];
  v_stand record;
begin
  perform trunq._require_read_committed('copy_position');
  v_to := trunq._subscription(p_queue, p_subscription, 'exclusive');
  v_from := trunq._subscription(p_queue, p_like, 'exclusive');
  perform trunq._audit('copy_position', p_queue, jsonb_build_object('subscription', p_subscription, 'like', p_like));
  -- As seek.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);
  perform trunq._check_cluster();
  v_ids := array[v_from.subscription_id, v_to.subscription_id];
  perform trunq._move_back(v_queue.queue_id, v_to.subscription_id);
  -- Both, in one order whoever copies which way.
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id and s.subscription_id = any (v_ids) order by s.subscription_id
  loop
    perform trunq._lock_subscription(v_sub.subscription_id, p_queue, v_sub.name);
  end loop;
  v_to := trunq._subscription(p_queue, p_subscription, 'exclusive');
  v_from := trunq._subscription(p_queue, p_like, 'exclusive');
  if array[v_from.subscription_id, v_to.subscription_id] <> v_ids then
    -- Under another id, whose lock is not taken.
    perform trunq._fail('TQ008', format('subscription "%s" or "%s" of queue "%s" was reset just now', p_subscription, p_like, p_queue), 'try again');
  end if;
  foreach v_sub in array array[v_from, v_to] loop
    if exists (select from trunq._open_batches(v_queue, v_sub.subscription_id)) then
      perform trunq._fail('TQ008', format('subscription "%s" of queue "%s" has an open batch: it stands nowhere just now', v_sub.name, p_queue),
        'copy its position when the batch is finished; seek ends an open batch');
    end if;
  end loop;
  v_stand := trunq._stream_position(v_queue, v_from);
  perform trunq._check_reachable(v_queue.queue_id, v_stand.tick_id);
  if v_from.subscription_id <> v_to.subscription_id then
    perform trunq._put_batch(v_queue, v_to.subscription_id, 'seek', v_stand.lo, v_stand.hi, v_stand.tick_id, v_stand.tick_id,
      trunq._segment_at(v_queue, now()));
  end if;
  return v_stand.tick_id;
end $$;
comment on function trunq.copy_position is
  'Moves an exclusive subscription to where another one, p_like, stands, forward or back: exactly there, so that both read the same messages from then on. Retries that wait stay where they are.
Returns: the tick that both stand at.
Raises: TQ001, TQ002, TQ007, TQ010, TQ011; TQ008 when one of them has an open batch, or is busy; TQ012 when messages after that place are gone.
Locks: the queue, shared; both subscriptions.';

create or replace function trunq.fail_batch(
  p_queue text, p_subscription text, p_batch_id bigint, p_token bigint, p_error text default null, p_after interval default null
) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_failures integer;
  v_until timestamptz;
begin
  perform trunq._require_read_committed('fail_batch');
  perform trunq._check_interval('the time until a batch is handed out again', p_after, '0');
  v_sub := trunq._subscription_of(p_queue, p_subscription, p_batch_id);
  v_failures := coalesce((trunq._held_batch(v_queue, v_sub, p_batch_id, p_token)).failures, 0) + 1;
  -- All that comes behind it waits too: no longer than for a reader that died. Once it is halved, each hand-out is of less, and nothing is
  -- gained by waiting longer and longer.
  v_until := trunq.clock() + coalesce(p_after, least(v_sub.lease_time, trunq._backoff(v_sub.backoff, v_sub.backoff_base, v_sub.backoff_cap,
    v_sub.jitter, case when v_failures >= v_sub.max_attempts then 1 else v_failures end)));
  perform trunq._reopen_batch(v_queue, v_sub, p_batch_id, v_failures,
    left(coalesce(p_error, format('batch %s failed', p_batch_id)), trunq._limit('error_characters')), v_until);
  return v_until;
end $$;
comment on function trunq.fail_batch is
  'Gives a batch back that could not be done: it is handed out again after p_after, by default after the back-off of the subscription, at most its lease time. After max_attempts failures by halves, until a message is alone: it has up to three attempts, then it is dead.
Returns: from when on it is handed out.
Raises: TQ001, TQ002, TQ003 when another reader has it, TQ005, TQ007, TQ008, TQ011.
Locks: the subscription.';

create or replace function trunq.retry_batch(
  p_queue text, p_subscription text, p_batch_id bigint, p_token bigint, p_ids bigint[] default null, p_after interval default null,
  p_error text default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v record;
  v_ids bigint[];
  v_txids xid8[];
  v_waiting bigint[];
  v_given bigint[];
begin
  perform trunq._require_read_committed('retry_batch');
  perform trunq._check_interval('the time until a message is handed out again', p_after, '0');
  v_sub := trunq._subscription_of(p_queue, p_subscription, p_batch_id);
  v := trunq._held_batch(v_queue, v_sub, p_batch_id, p_token);
  execute format($q$
    select array_agg(b.id order by b.txid, b.id), array_agg(b.txid order by b.txid, b.id) from (
      select distinct on (g.id) g.id, g.txid from (%s) g where $8 is null or g.id = any ($8) order by g.id, g.txid desc) b
  $q$, trunq._part_query(v_queue, v_sub.filter)) into v_ids, v_txids
  using v.lo, v.hi, coalesce(v.after_txid, '0'), coalesce(v.after_id, 0), v.last_txid, v.last_id, v_sub.subscription_id, p_ids;
  if exists (select from unnest(p_ids) u(id) where u.id = any (v_ids) is not true) then
    perform trunq._fail('TQ013', format('message %s is not in batch %s', (
      select u.id from unnest(p_ids) u(id) where u.id = any (v_ids) is not true limit 1), p_batch_id), 'read_batch shows which are');
  end if;
  -- Asked twice, it waits once, or is dead once: the lease has a receipt for what it gave back.
  execute format($q$
    select array(
      select d.id from trunq.delayed d where d.queue_id = $1 and d.subscription_id = $2 and d.id = any ($4)
      union
      select u.id from trunq_data.%I r cross join lateral unnest(r.ids) u(id)
      where r.lease_id = $3 and r.subscription_id = $2 and r.outcome = 'r' and u.id = any ($4))
  $q$, v_queue.receipt_table) into v_waiting using v_queue.queue_id, v_sub.subscription_id, p_batch_id, v_ids;
  v_given := array(select u.id from unnest(v_ids) u(id) where u.id <> all (v_waiting));
  execute format($q$
    insert into trunq_data.%1$I (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
    select l.lease_id, 1 + (select coalesce(max(r.number), 0) from trunq_data.%1$I r where r.lease_id = l.lease_id and r.segment = l.segment),
      l.segment, l.subscription_id, 'r', 0, $3, $4
    from trunq_data.%2$I l where l.subscription_id = $1 and l.lease_id = $2 and $3 <> '{}'
  $q$, v_queue.receipt_table, v_queue.lease_table) using v_sub.subscription_id, p_batch_id, v_given, trunq.clock();
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, ''r'', $6, $7, $8)', v_queue.name || '_give_back')
    using v_sub.subscription_id, v.worker, v_given, v_ids, v_txids,
      array_fill(left(coalesce(p_error, 'retried'), trunq._limit('error_characters')), array[coalesce(cardinality(v_ids), 0)]),
      array_fill(p_after, array[coalesce(cardinality(v_ids), 0)]), trunq.clock();
  return cardinality(v_given);
end $$;
comment on function trunq.retry_batch is
  'Hands messages of an open batch, p_ids or all of them, out again in a later batch, to this subscription only: after p_after, by default after its back-off; dead when their attempts are used up. The batch itself is still to be finished: in the same transaction, or its messages come again with it.
Returns: how many; those that wait already, or that this batch gave back before, do not count.
Raises: TQ001, TQ002, TQ003 when another reader has the batch, TQ005, TQ007, TQ008, TQ011, TQ013 for a message of another batch.
Locks: the subscription.';

create or replace function trunq.show_batch(p_queue text, p_subscription text, p_batch_id bigint)
returns table (
  batch_id bigint, state text, worker text, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  is_part boolean, messages bigint, attempt integer, error text, opened_at timestamptz, expires_at timestamptz, finished_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v record;
begin
  v_sub := trunq._subscription_of(p_queue, p_subscription, p_batch_id);
  perform trunq._check_cluster();
  execute format($q$
    select l.*, coalesce(l.after_txid, '0') begin_txid, coalesce(l.after_id, 0) begin_id, (
        select r.finished_at from trunq_data.%2$I r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = $1 and r.outcome = 'b' limit 1) finished_at,
      exists (select from trunq._open_batches($3, $1) o where o.lease_id = l.lease_id) is_open
    from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = $2 limit 1
  $q$, v_queue.lease_table, v_queue.receipt_table) into v using v_sub.subscription_id, p_batch_id, v_queue;
  if v.lease_id is null then
    perform trunq._fail('TQ012', format('subscription "%s" of queue "%s" has no batch %s', p_subscription, p_queue, p_batch_id),
      'select * from trunq.list_streams(''queue'') shows which is open');
  end if;
  batch_id := v.lease_id; worker := v.worker; from_tick_id := v.from_tick_id; to_tick_id := v.to_tick_id; from_snapshot := v.lo; to_snapshot := v.hi;
  state := case when v.finished_at is not null then 'finished' when not v.is_open then 'ended'
    when v.worker is null then 'waiting' when v.expires_at <= trunq.clock() then 'overdue' else 'open' end;
  is_part := v.after_txid is not null or v.last_txid < pg_snapshot_xmax(v.hi);
  attempt := coalesce(v.failures, 0) + 1; error := v.error; opened_at := v.leased_at; expires_at := v.expires_at; finished_at := v.finished_at;
  execute format('select count(*) from (%s) g', trunq._part_query(v_queue, v_sub.filter)) into messages
    using v.lo, v.hi, v.begin_txid, v.begin_id, v.last_txid, v.last_id, v_sub.subscription_id;
  if v.from_tick_id < (select q.reachable_tick_id from trunq.queue q where q.queue_id = v_queue.queue_id) then
    messages := null;
  end if;
  return next;
end $$;
comment on function trunq.show_batch is
  'What a batch is about. state: open, overdue (its time ran out, and nobody has taken it over yet), waiting (nobody has it: it failed, or is the rest of another), finished, ended (it failed, or was taken over). messages: those that pass the filter as it is now; null when some are gone. attempt: 1 at first; error: of the attempt before.
Raises: TQ001, TQ002, TQ010, TQ011; TQ012 for a batch this subscription never had, or that is kept no longer.';

create or replace function trunq._streamed_message(p_sub trunq.subscription, p_queue trunq.queue, p_id bigint)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_rows record := trunq._rows_of(p_queue, p_id, p_id);
  v_end pg_snapshot := coalesce(trunq._frontier(p_queue, p_sub.subscription_id), (trunq._newest_batch(p_queue, p_sub.subscription_id)).hi, p_sub.start);
begin
  return query execute format($q$
    with place as (
      select e.id, e.place, e.attempt, e.created_at, e.due_at, e.kind, e.key, e.payload, e.headers, e.errors, null::xid8 txid
      from trunq._delayed_or_dead($2, $1, array[$3]) e
      union all
      (select g.id, null, g.attempt, g.created_at, null, g.kind, g.key, g.payload, g.headers, g.errors, g.txid from %1$s g
       where g.subscription_id = $1 or g.subscription_id is null and %2$s order by g.txid desc limit 1)
      order by txid desc limit 1),
    told as (
      select p.*, b.worker, b.leased_at, b.expires_at, coalesce(p.place, case
          when b.worker is not null then 'leased'
          when b.lease_id is not null or not pg_visible_in_snapshot(p.txid, $5) then 'ready'
          when exists (select from trunq.purged u where u.subscription_id = $1 and u.ids @> array[$3]) then 'purged'
          else 'done' end) state
      from place p left join lateral (
        select o.* from trunq._open_batches($6, $1) o
        where p.place is null and trunq._in_window(p.txid, o.lo, o.hi) and (p.txid, p.id) > (coalesce(o.after_txid, '0'), coalesce(o.after_id, 0))
          and (p.txid, p.id) <= (o.last_txid, o.last_id) limit 1) b on true)
    select $4, t.state, t.id, t.kind::text, t.key::text, t.payload::jsonb, t.headers::jsonb, t.attempt::integer, '[]'::jsonb, t.created_at, t.due_at,
      t.worker, t.leased_at, t.expires_at, case when t.place is not null then (t.errors -> -1 ->> 'at')::timestamptz end,
      case when t.state <> 'done' then t.errors -> -1 ->> 'error' end, null::jsonb
    from told t
  $q$, v_rows.query, trunq._is_after_start('g', format('%L::pg_snapshot', p_sub.start)) || ' and ' || trunq._filter_condition(p_sub.filter))
  using p_sub.subscription_id, p_queue.queue_id, p_id, split_part(p_sub.name, '#', 1), v_end, p_queue;
end $$;
comment on function trunq._streamed_message is
  'A message as an exclusive subscription sees it; of a group by key, the slot that reads it. No row: none that is kept.';

create or replace function trunq.list_streams(p_queue text default null)
returns table (
  queue text, subscription text, position_tick_id bigint, newest_tick_id bigint, first_tick_id bigint, pending bigint, is_estimate boolean,
  lag interval, batch_id bigint, worker text, to_tick_id bigint, expires_at timestamptz, attempt integer, batches integer, error text,
  seen_at timestamptz, paused boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  perform trunq._check_cluster();
  -- The slots of a group are one row: about the one that is furthest behind.
  return query
    select distinct on (s.queue, s.name) s.queue, s.name, min(s.position_tick_id) over one, s.newest_tick_id, s.first_tick_id,
      (sum(s.pending) over one)::bigint, bool_or(s.is_estimate) over one, max(s.lag) over one, s.batch_id, s.worker, s.to_tick_id, s.expires_at, s.attempt,
      (sum(s.batches) over one)::integer, s.error, max(s.seen_at) over one, s.paused
    from (select t.*, split_part(t.subscription, '#', 1) as name from trunq._streams(p_queue) t) s
    window one as (partition by s.queue, s.name)
    order by s.queue, s.name, s.batch_id is null, s.position_tick_id, s.subscription;
end $$;
comment on function trunq.list_streams is
  'Where exclusive subscriptions stand; a group by key is one row, about its slot that is furthest behind, pending and batches of all. position_tick_id: what lies before it is finished; first_tick_id: the first in reach of seek; pending: messages not finished, exact up to about 2,000 (is_estimate); lag: since when the first of them waits; batch_id to error: the batch in hand, or the one that is handed out next; batches: how many are open, with the parts that wait; seen_at: when a reader last took or finished one.
Raises: TQ001, TQ010.';

create or replace function trunq._streams(p_queue text)
returns table (
  queue text, subscription text, position_tick_id bigint, newest_tick_id bigint, first_tick_id bigint, pending bigint, is_estimate boolean,
  lag interval, batch_id bigint, worker text, to_tick_id bigint, expires_at timestamptz, attempt integer, batches integer, error text,
  seen_at timestamptz, paused boolean, group_id integer, slot integer
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
  v_oldest timestamptz;
begin
  for v in
    select q as row, s as sub, q.name as queue, s.name as subscription, q.reachable_tick_id, (
      select max(t.tick_id) from trunq.tick t where t.queue_id = q.queue_id) newest
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where s.mode = 'exclusive' and (p_queue is null or q.name = p_queue) order by q.name, s.name
  loop
    queue := v.queue; subscription := v.subscription; group_id := (v.sub).group_id; slot := (v.sub).slot; newest_tick_id := v.newest; first_tick_id := v.reachable_tick_id;
    begin
      position_tick_id := trunq._tick_position(v.sub);
      paused := trunq._is_paused(v.sub, trunq.clock());
      select w.ready, w.oldest, w.is_estimate into pending, v_oldest, is_estimate from trunq._count_waiting(v.row, (v.sub).subscription_id) w;
      lag := coalesce(trunq.clock() - v_oldest, '0');
      select o.lease_id, o.worker, o.to_tick_id, o.expires_at, coalesce(o.failures, 0) + 1, o.error, count(*) over ()
      into batch_id, worker, to_tick_id, expires_at, attempt, error, batches
      from trunq._open_batches(v.row, (v.sub).subscription_id) o
      order by o.worker is null, o.from_tick_id, o.after_txid nulls first, o.after_id limit 1;
      batches := coalesce(batches, 0);
      execute format($q$
        select max(n.at) from (
          select greatest(l.leased_at, (
            select max(r.finished_at) from trunq_data.%2$I r where r.lease_id = l.lease_id and r.segment = l.segment)) at
          from trunq_data.%1$I l where l.subscription_id = $1 and l.worker is not null and l.worker not in ('rotate', 'seek', 'skip', 'lost')
          order by l.lease_id desc limit 1) n
      $q$, (v.row).lease_table, (v.row).receipt_table) into seen_at using (v.sub).subscription_id;
      raise exception using errcode = 'TQ900';  -- gives the locks back: of many queues, those of one are held
    exception when sqlstate 'TQ900' then
      null;
    end;
    return next;
  end loop;
end $$;
comment on function trunq._streams is 'The exclusive subscriptions of a queue, or of all, slots among them, as trunq.list_streams shows them.';

create or replace function trunq._held_batch(
  p_queue trunq.queue, p_sub trunq.subscription, p_batch_id bigint, p_token bigint,
  out worker text, out lo pg_snapshot, out hi pg_snapshot, out after_txid xid8, out after_id bigint, out last_txid xid8, out last_id bigint,
  out failures integer
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._lock_subscription(p_sub.subscription_id, p_queue.name, p_sub.name);
  -- By a later statement than the lock.
  select o.worker, o.lo, o.hi, o.after_txid, o.after_id, o.last_txid, o.last_id, o.failures
  into worker, lo, hi, after_txid, after_id, last_txid, last_id, failures
  from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id = p_batch_id and o.token = p_token and o.worker is not null;
  if not found then
    perform trunq._fail_lease_lost(p_queue.name, p_sub.name, p_batch_id);
  end if;
end $$;
comment on function trunq._held_batch is
  'A batch that the caller has in hand, or TQ003. Takes the subscription''s lock.';

create or replace function trunq._open_part(
  p_queue trunq.queue, p_subscription_id integer, p_of record, p_after_txid xid8, p_after_id bigint, p_last_txid xid8, p_last_id bigint,
  p_until timestamptz, p_open bigint[], p_failures integer, p_error text
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_lease_id bigint;
begin
  execute format('select lease_id from trunq_queue.%I($1, null, $2, $3, $4, $5, $6, $7, nullif($8, ''{}''), $9, $10, $11, $12, $13, $14)', p_queue.name || '_open_batch')
    into v_lease_id using p_subscription_id, p_of.lo, p_of.hi, p_of.from_tick_id, p_of.to_tick_id, trunq.clock(), p_until, p_open,
      p_after_txid, p_after_id, p_last_txid, p_last_id, p_failures, p_error;
  return v_lease_id;
end $$;
comment on function trunq._open_part is
  'Opens a part of the window of a batch that nobody has yet, beside p_open.';

create or replace function trunq._reopen_batch(
  p_queue trunq.queue, p_sub trunq.subscription, p_lease_id bigint, p_failures integer, p_error text, p_until timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record;
  v_open bigint[];
  v_newest record;
  v_count bigint;
  v_alone integer;
  v_middle record;
begin
  select o.*, coalesce(o.after_txid, '0') begin_txid, coalesce(o.after_id, 0) begin_id into v
  from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id = p_lease_id;
  v_open := array(select o.lease_id from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id <> p_lease_id);
  if (p_failures >= p_sub.max_attempts) is not true then
    perform trunq._open_part(p_queue, p_sub.subscription_id, v, v.after_txid, v.after_id, v.last_txid, v.last_id, p_until, v_open, p_failures, p_error);
    return;
  end if;
  execute format('select count(*) from (%s) g', trunq._part_query(p_queue, p_sub.filter)) into v_count
    using v.lo, v.hi, v.begin_txid, v.begin_id, v.last_txid, v.last_id, p_sub.subscription_id;
  execute format('select g.txid, g.id from (%s) g offset $8 limit 1', trunq._part_query(p_queue, p_sub.filter)) into v_middle
    using v.lo, v.hi, v.begin_txid, v.begin_id, v.last_txid, v.last_id, p_sub.subscription_id, greatest((v_count + 1) / 2 - 1, 0);
  if v_count > 1 then
    -- A message that is alone has up to three attempts: what failed with others may be innocent, and a restart of its reader is not its end.
    v_alone := greatest(p_sub.max_attempts - 3, 0);
    v_open := v_open || trunq._open_part(p_queue, p_sub.subscription_id, v, v_middle.txid, v_middle.id, v.last_txid, v.last_id, null, v_open,
      case when v_count > 3 then p_failures else v_alone end, p_error);
    perform trunq._open_part(p_queue, p_sub.subscription_id, v, v.after_txid, v.after_id, v_middle.txid, v_middle.id, p_until, v_open,
      case when v_count > 2 then p_failures else v_alone end, p_error);
    return;
  end if;
  if v_count = 1 then
    execute format('select trunq_queue.%I($1, $2, $3, $3, $4, ''r'', $5, null, $6, p_policy => $7)', p_queue.name || '_give_back')
      using p_sub.subscription_id, v.worker, array[v_middle.id], array[v_middle.txid], array[p_error], trunq.clock(), row(1, null, null, null, null)::trunq.policy;
  end if;
  v_newest := trunq._newest_batch(p_queue, p_sub.subscription_id);
  perform trunq._put_batch(p_queue, p_sub.subscription_id, v.worker, v.lo, v.hi, v.from_tick_id, v.to_tick_id,
    trunq._segment_at(p_queue, now()), v_open, v_newest.to_tick_id, v_newest.hi);
end $$;
comment on function trunq._reopen_batch is
  'What becomes of a batch that failed p_failures times: it is handed out again from p_until on; after max_attempts its first half, and the second when that is finished; a single message has up to three attempts, then dies, or waits if it may fail more often, and the position moves past it. The caller holds the subscription''s lock.';

create or replace function trunq._open_rest(
  p_queue trunq.queue, p_sub trunq.subscription, p_batch_id bigint, p_upto_txid bigint, p_upto_id bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record;
  v_upto_txid xid8 := p_upto_txid::text::xid8;
  v_has_more boolean;
begin
  perform trunq._check_place('the last message that is done', p_upto_txid, p_upto_id);
  select o.*, coalesce(o.after_txid, '0') begin_txid, coalesce(o.after_id, 0) begin_id into v
  from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id = p_batch_id;
  if (v_upto_txid, p_upto_id) <= (v.begin_txid, v.begin_id) or (v_upto_txid, p_upto_id) > (v.last_txid, v.last_id) then
    perform trunq._fail('TQ005', format('message %s of transaction %s does not lie in batch %s', p_upto_id, p_upto_txid, p_batch_id),
      'read_batch tells the txid and the id of each message');
  end if;
  execute format('select exists (%s)', trunq._part_query(p_queue, p_sub.filter)) into v_has_more
    using v.lo, v.hi, v_upto_txid, p_upto_id, v.last_txid, v.last_id, p_sub.subscription_id;
  if v_has_more then
    perform trunq._open_part(p_queue, p_sub.subscription_id, v, v_upto_txid, p_upto_id, v.last_txid, v.last_id, null,
      array(select o.lease_id from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id <> p_batch_id), null, null);
  end if;
end $$;
comment on function trunq._open_rest is
  'Opens what is left of a batch behind a message, if anything is, before the batch is finished; TQ005 when the message lies elsewhere. The caller holds the subscription''s lock.';
