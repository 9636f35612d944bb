-- An exclusive subscription reads whole batches, in order: the window between two ticks. An open batch is a lease over it
-- (no ids, lo and hi are the ticks' snapshots), a finished one has its receipt. The same open batch is returned until it
-- is finished; empty ones exist and are finished like others. A batch whose lease ran out goes to whoever asks next, under a
-- new token; the late reader's finish is refused.
--
-- *Open batches are a set, which the newest lease of the subscription carries*: open are that lease and its open_leases, less those that
-- have a receipt. All of it happens under the subscription's lock, and nothing but the newest lease says which are open: a lease that is
-- in no set any more has ended. What must be kept starts at the first window of the set. A reader has one batch in hand at a time; the
-- others are parts of the same window that nobody has yet (worker null), each from behind (after_txid, after_id) to (last_txid, last_id);
-- or, in a group, windows that other members have.
--
-- *The frontier* is the end of the last window that was handed out: the next one begins there. Mostly it is the end of the newest lease. Where an
-- older window is opened again (a member died, a part is left), that lease carries the frontier on (frontier_tick_id, frontier).
--
-- *Parts come of two things.* A reader finishes a batch up to a message: the rest is the next batch. And a batch that fails (its reader says
-- so, dies, or asks again without having finished it) max_attempts times is handed out by halves from then on: each failure halves what
-- failed, and a message that fails alone, up to three times, dies, or waits as its own max_attempts says. So a message that kills its reader stops
-- a stream only so long: one of 500, with three attempts, costs at most 23 hand-outs, and the messages beside it are done once and in order.
--
-- *A batch is read without keeping locks.* A reader works for as long as it likes in the transaction that it reads in, and those of members overlap: locks on all segments,
-- which reading takes, would keep rotation from each for ever. So it reads in a subtransaction that is rolled back: what a function has returned
-- by then stays, and the locks go. Values that lie outside of their rows are fetched when the rows are sent: where the log has any, the segments of the batch are locked
-- beforehand. It is rolled back by TQ900: a handler of TQ000 catches the whole class, so also what is wrong. At REPEATABLE READ all locks stay: a later page could find a segment emptied, and not see that it was.
--
-- *A reader cuts the tick it needs.* Where no newer tick is and something was committed, next_batch cuts one and opens the batch in the
-- same transaction: no leader stands between publisher and reader, and a queue where nothing happens writes nothing.

create or replace function trunq.next_batch(
  p_queue text,
  p_subscription text,
  p_worker text,
  p_max_ticks integer default 1,
  p_lease_time interval default null,
  p_min_lag interval default null,
  p_min_count bigint default null,
  p_min_interval interval default null,
  p_cut boolean default true
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  expires_at timestamptz, attempt integer, is_part boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query execute pg_catalog.format('select * from trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8)', trunq._function(p_queue, 'next_batch'))
    using p_subscription, p_worker, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval, p_cut;
end $$;
comment on function trunq.next_batch is
  'Opens the next batch of an exclusive subscription, up to p_max_ticks ticks long, or returns the batch that this worker has open; to ask again without having finished it counts as a failure. If there is no newer tick but something was committed, the call cuts one, unless p_cut is false. p_min_lag: only up to ticks that are at least that old. p_min_count, p_min_interval: only up to the first tick that gives the batch about so many messages, or so long a time; until then there is no batch. attempt: 1 at first; is_part: the batch has only some messages of its window, as read_batch returns them. In a group, p_worker is a member, and each member has a batch of its own.
Returns: no row when there is nothing to read, another worker holds the batch, or the subscription is paused.
Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ010, TQ011; TQ012 when messages after the position are gone; TQ026 when it lost messages and nobody accepted that.
Locks: the subscription; the queue''s ticks when it cuts one, to the end of the transaction.';

create or replace function trunq.read_batch(
  p_queue text, p_subscription text, p_batch_id bigint,
  p_after_txid bigint default null, p_after_id bigint default null, p_limit integer default null, p_filter jsonb default null
) returns table (
  id bigint, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, attempt smallint, created_at timestamptz, txid bigint,
  columns jsonb
)
-- One process, by the index: in order without a sort.
language plpgsql set search_path = pg_catalog, pg_temp
set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription;
  v_queue trunq.queue;
  -- A page of this size is read by a plan that is kept, and so is the beginning of all else.
  c_page constant integer := 2000;
  v_first constant integer := case when p_limit <= c_page then p_limit else 500 end;
  v_count integer;
  v record;
  v_after_txid xid8;
  v_after_id bigint;
  -- As in _read_page.
  v_gives_back constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
begin
  v_sub := trunq._subscription_of(p_queue, p_subscription, p_batch_id);
  perform trunq._check_cluster();
  if v_sub.lost_at is not null then
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  if num_nonnulls(p_after_txid, p_after_id, p_limit, p_filter) > 0 then
    perform trunq._check_place('the place to read on from', p_after_txid, p_after_id);
    perform trunq._check_limit(coalesce(p_limit, 1));
    perform trunq._check_filter(p_filter);
    perform trunq._check_filter_columns(p_queue, p_filter);
  end if;
  return query execute format('select * from trunq_queue.%I($1, $2, $3, $4, $5, $6)', p_queue || '_read_page')
    using v_sub, p_batch_id, p_after_txid::text::xid8, p_after_id, v_first, p_filter;
  get diagnostics v_count = row_count;
  if v_count < v_first or v_first = p_limit then
    return;
  end if;
  v_queue := trunq._find_queue(v_sub.queue_id);
  begin
    v := trunq._batch_of(v_queue, v_sub, p_batch_id);
    v_after_txid := v.after_txid; v_after_id := v.after_id;
    if (p_after_txid::text::xid8, p_after_id) > (v_after_txid, v_after_id) then
      v_after_txid := p_after_txid::text::xid8; v_after_id := p_after_id;
    end if;
    -- The rows of a batch are the same, and in the same order, whenever they are read.
    return query execute format($q$
      select g.id, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.attempt, g.created_at,
        g.txid::text::bigint, %s
      from (%s) g offset %s limit %s
    $q$, trunq._own_values(v_queue, 'g'), trunq._part_query(v_queue, v_sub.filter, p_filter), v_count, coalesce((p_limit - v_count)::text, 'all'))
    using v.lo, v.hi, v_after_txid, v_after_id, v.last_txid, v.last_id, v_sub.subscription_id;
    -- Afterwards, by a later statement: what was emptied before those rows were read is known by now.
    perform trunq._check_reachable(v_queue.queue_id, v.from_tick_id);
    if v_gives_back then
      raise exception using errcode = 'TQ900';  -- what was returned stays
    end if;
  exception when sqlstate 'TQ900' then
  end;
end $$;
comment on function trunq.read_batch is
  'The messages of a batch that pass the subscription''s filter, ordered by (txid, id): the same every time, as long as the filter does not change. columns: those that you added to the log (trunq.add_column), as an object; null: it has none. To read in pages: p_after_txid and p_after_id: only messages behind this one; p_limit: at most so many (up to 100,000). p_filter: only messages that pass this filter too, written as in subscribe.
Raises: TQ001, TQ002, TQ005, TQ010, TQ011; TQ012 for a batch this subscription never had, or whose messages are gone; TQ026 when it lost messages and nobody accepted that.
Locks: nothing beyond the call itself, as the transaction of a reader may be long; but, against rotation, the segments of the batch where messages have more than 2 kB, and all segments at REPEATABLE READ.';

create or replace function trunq._batch_query(p_queue text, p_subscription text, p_batch_id bigint, p_filter jsonb default null)
returns table (query text, queue_id integer, from_tick_id bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  -- Of the caller, who runs the query. A name it may not look up is an error, so the catalog is asked.
  if exists (
      select from pg_class c
      where c.relnamespace = (select n.oid from pg_namespace n where n.nspname = 'trunq_log') and c.relname = v_queue.log_table
        and has_schema_privilege(c.relnamespace, 'usage') and has_table_privilege(c.oid, 'select') and not row_security_active(c.oid)) then
    return query select w.* from trunq._write_batch_query(p_queue, p_subscription, p_batch_id, p_filter) w;
  end if;
end $$;
comment on function trunq._batch_query is
  'The query that reads of the log what trunq.read_batch returns, in that order, for those who may select from all of it: COPY takes its rows as they come, where read_batch keeps all of them first. Its values are literals. No row for others. Run it with seqscan, bitmapscan, jit and parallel workers off, and trunq._check_reachable afterwards.';

create or replace function trunq._write_batch_query(p_queue text, p_subscription text, p_batch_id bigint, p_filter jsonb)
returns table (query text, queue_id integer, from_tick_id bigint)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v record;
begin
  v_sub := trunq._subscription_of(p_queue, p_subscription, p_batch_id);
  perform trunq._check_cluster();
  if v_sub.lost_at is not null then
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  if p_filter is not null then
    perform trunq._check_filter(p_filter);
    perform trunq._check_filter_columns(p_queue, p_filter);
  end if;
  begin
    v := trunq._batch_of(v_queue, v_sub, p_batch_id);
    raise exception using errcode = 'TQ900';  -- gives the locks on all leases back
  exception when sqlstate 'TQ900' then
  end;
  queue_id := v_queue.queue_id; from_tick_id := v.from_tick_id;
  query := format(
    'select g.id, g.kind::text, g.key::text, g.payload::text, g.body::bytea, g.headers::text, g.priority::smallint, g.attempt::smallint, g.created_at, '
    'g.txid::text::bigint as txid from (%s) g', trunq._part_query_of(v_queue, v_sub.filter, p_filter, array[
      format('%L::pg_snapshot', v.lo), format('%L::pg_snapshot', v.hi), format('%L::xid8', v.after_txid), v.after_id::text,
      format('%L::xid8', v.last_txid), v.last_id::text, v_sub.subscription_id::text]));
  return next;
end $$;
comment on function trunq._write_batch_query is 'Of trunq._batch_query what reads tables of all queues.';

create or replace function trunq._fail_no_batch(p_queue text, p_subscription text, p_batch_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ012', format('subscription "%s" of queue "%s" has no batch %s', p_subscription, p_queue, p_batch_id), 'next_batch opens one');
end $$;
comment on function trunq._fail_no_batch is 'Raises TQ012 for a batch that a subscription never had.';

create or replace function trunq._batch_of(
  p_queue trunq.queue, p_sub trunq.subscription, p_batch_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out from_tick_id bigint, out after_txid xid8, out after_id bigint, out last_txid xid8, out last_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    select l.lo, l.hi, l.from_tick_id, coalesce(l.after_txid, '0'), coalesce(l.after_id, 0), l.last_txid, l.last_id
    from trunq_data.%I l where l.subscription_id = $1 and l.lease_id = $2
  $q$, p_queue.lease_table) into lo, hi, from_tick_id, after_txid, after_id, last_txid, last_id using p_sub.subscription_id, p_batch_id;
  if lo is null then
    perform trunq._fail_no_batch(p_queue.name, p_sub.name, p_batch_id);
  end if;
end $$;
comment on function trunq._batch_of is
  'The window of a batch, from behind (after_txid, after_id) to (last_txid, last_id); TQ012 for one this subscription never had.';

create or replace function trunq.finish_batch(
  p_queue text, p_subscription text, p_batch_id bigint, p_token bigint, p_upto_txid bigint default null, p_upto_id bigint default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_finished boolean;
begin
  execute pg_catalog.format('select trunq_queue.%I($1, $2, $3, $4, $5)', trunq._function(p_queue, 'finish_batch'))
    into v_is_finished using p_subscription, p_batch_id, p_token, p_upto_txid, p_upto_id;
  return v_is_finished;
end $$;
comment on function trunq.finish_batch is
  'Finishes the open batch: the position moves to its last tick, or, with p_upto_txid and p_upto_id (read_batch returns them), behind that message, and the next batch is the rest. Called in the transaction that writes what the batch led to, both are committed, or neither.
Returns: false when it was finished before.
Raises: TQ001, TQ002, TQ005 for a place outside of the batch, TQ007, TQ008, TQ011; TQ003 when another worker has it.
Locks: the subscription.';

create or replace function trunq.position(p_queue text, p_subscription text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._check_cluster();
  if trunq._is_split(p_queue, p_subscription) then
    return (select min(trunq._tick_position(trunq._subscription(p_queue, s.name))) from trunq._slots(p_queue, p_subscription) s(name));
  end if;
  return trunq._tick_position(trunq._subscription(p_queue, p_subscription, 'exclusive'));
end $$;
comment on function trunq.position is
  'The tick up to which an exclusive subscription has read and finished; of a group by key, that of the slot furthest behind.
Raises: TQ001, TQ002, TQ010, TQ011.';

create or replace function trunq.advance(p_queue text, p_subscription text, p_tick_id bigint) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v_tick trunq.tick;
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_newest record;
  v_open bigint[] := '{}';
  v record;
begin
  perform trunq._require_read_committed('advance');
  perform trunq._check_cluster();
  if trunq._is_split(p_queue, p_subscription) then
    return (select min(trunq.advance(p_queue, s.name, p_tick_id)) from trunq._slots(p_queue, p_subscription) s(name));
  end if;
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  perform trunq._lock_subscription(v_sub.subscription_id, p_queue, p_subscription);
  perform trunq._check_loss(v_sub.subscription_id);
  if p_tick_id <= trunq._tick_position(v_sub) then
    return trunq._tick_position(v_sub);
  end if;
  select * into v_tick from trunq.tick t where t.queue_id = v_sub.queue_id and t.tick_id = p_tick_id;
  if not found then
    perform trunq._fail('TQ012', format('queue "%s" has no tick %s', p_queue, coalesce(p_tick_id::text, 'null')),
      format('select * from trunq.list_ticks(%L) shows those kept', p_queue));
  end if;
  perform trunq._check_reachable(v_queue.queue_id, p_tick_id);
  v_newest := trunq._newest_batch(v_queue, v_sub.subscription_id);
  -- Before any of it is changed: a position would see that.
  v := trunq._stream_position(v_queue, v_sub);
  v_open := trunq._open_behind(v_queue, v_sub, v_tick);
  perform trunq._put_batch(v_queue, v_sub.subscription_id, 'advance', v.lo, v_tick.snapshot,
    v.tick_id, v_tick.tick_id, trunq._segment_at(v_queue, now()), v_open,
    case when v_sub.group_id is not null then v_newest.to_tick_id end, v_newest.hi);
  return trunq._tick_position(v_sub);
end $$;
comment on function trunq.advance is
  'Moves the position of an exclusive subscription forward to a tick, for readers that keep their own (Spark): never back.
Returns: the position.
Raises: TQ001, TQ002, TQ007, TQ010, TQ011; TQ012 when the tick is not kept, or messages after it are gone; TQ026 when it lost messages and nobody accepted that.
Locks: the subscription.';

create or replace function trunq._open_behind(p_queue trunq.queue, p_sub trunq.subscription, p_tick trunq.tick) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_open bigint[];
  v record;
begin
  if p_sub.group_id is null then
    return '{}';
  end if;
  v_open := array(
    select o.lease_id from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.from_tick_id >= p_tick.tick_id);
  -- Others were handed out behind it: what it has behind the tick is left for somebody.
  for v in
    select o.* from trunq._open_batches(p_queue, p_sub.subscription_id) o
    where o.from_tick_id < p_tick.tick_id and o.to_tick_id > p_tick.tick_id
  loop
    v.from_tick_id := p_tick.tick_id;
    v.lo := p_tick.snapshot;
    v_open := v_open || trunq._open_part(p_queue, p_sub.subscription_id, v, v.after_txid, v.after_id, v.last_txid, v.last_id, null, v_open, null, null);
  end loop;
  return v_open;
end $$;
comment on function trunq._open_behind is
  'The batches of a group that stay open when it advances to a tick: those behind it, and the rest of one that spans it, anew. The caller holds the subscription''s lock.';

create or replace function trunq._put_batch(
  p_queue trunq.queue, p_subscription_id integer, p_worker text,
  p_lo pg_snapshot, p_hi pg_snapshot, p_from_tick_id bigint, p_to_tick_id bigint, p_segment smallint, p_open bigint[] default null,
  p_frontier_tick_id bigint default null, p_frontier pg_snapshot default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    with made as (
      insert into trunq_data.%1$I (lease_id, segment, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at, open_leases,
        frontier_tick_id, frontier)
      values (nextval('trunq_data.%2$I'), $8, $1, trunq._token(), $7, $2, $3, pg_snapshot_xmax($3), 0, $4, $5, $6, nullif($9, '{}'),
        case when $10 > $5 then $10 end, case when $10 > $5 then $11 end)
      returning lease_id, segment)
    insert into trunq_data.%3$I (lease_id, segment, subscription_id, outcome, size, ids, finished_at)
    select m.lease_id, m.segment, $1, 'b', 0, '{}', $6 from made m
  $q$, p_queue.lease_table, p_queue.lease_sequence, p_queue.receipt_table)
  using p_subscription_id, p_lo, p_hi, p_from_tick_id, p_to_tick_id, trunq.clock(), p_worker, p_segment, p_open, p_frontier_tick_id, p_frontier;
end $$;
comment on function trunq._put_batch is
  'Writes a finished batch: the position of an exclusive subscription, beside the batches p_open, with the frontier if that lies further. The caller holds its lock.';

create or replace function trunq._newest_batch(
  p_queue trunq.queue, p_subscription_id integer,
  out lease_id bigint, out token bigint, out worker text, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out expires_at timestamptz, out segment smallint, out open_leases bigint[], out finished boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  execute format('select * from trunq_queue.%I($1)', p_queue.name || '_newest_batch')
    into lease_id, token, worker, from_tick_id, to_tick_id, lo, hi, expires_at, segment, open_leases, finished using p_subscription_id;
end $$;
comment on function trunq._newest_batch is
  'The newest batch of an exclusive subscription, open or finished; lease_id null: it has had none. to_tick_id and hi: the frontier.';

create or replace function trunq._open_batches(p_queue trunq.queue, p_subscription_id integer)
returns table (
  lease_id bigint, token bigint, worker text, from_tick_id bigint, to_tick_id bigint, lo pg_snapshot, hi pg_snapshot,
  after_txid xid8, after_id bigint, last_txid xid8, last_id bigint, leased_at timestamptz, expires_at timestamptz,
  failures smallint, error text, segment smallint
)
language plpgsql stable rows 1 set search_path = pg_catalog, pg_temp as $$
begin
  return query execute format('select * from trunq_queue.%I($1)', p_queue.name || '_open_batches') using p_subscription_id;
end $$;
comment on function trunq._open_batches is 'The open batches of an exclusive subscription, in order.';

create or replace function trunq._part_query(p_queue trunq.queue, p_filter jsonb, p_also jsonb default null) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select trunq._part_query_of(p_queue, p_filter, p_also, '{$1,$2,$3,$4,$5,$6,$7}')
$$;
comment on function trunq._part_query is
  'SQL for the messages of a part of a window, in order: lo $1, hi $2, from behind ($3, $4) to ($5, $6), for the subscription $7.';

create or replace function trunq._part_query_of(p_queue trunq.queue, p_filter jsonb, p_also jsonb, p_values text[]) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- As trunq._unread: the late transactions of the window, then the range, each with one start key.
  select format($q$
    select g.* from pg_snapshot_xip(%3$s) late(txid) cross join lateral (
      select g.* from trunq_log.%1$I g
      where g.txid = late.txid and (g.txid, g.id) > (%5$s, %6$s) and (g.txid, g.id) <= (%7$s, %8$s) and %2$s order by g.id offset 0) g
    where late.txid >= %5$s and late.txid <= %7$s and pg_visible_in_snapshot(late.txid, %4$s)
    union all
    (select g.* from trunq_log.%1$I g
     where (g.txid, g.id) > (greatest(%5$s, pg_snapshot_xmax(%3$s)), case when %5$s < pg_snapshot_xmax(%3$s) then 0 else %6$s end)
       and (g.txid, g.id) <= (%7$s, %8$s) and pg_visible_in_snapshot(g.txid, %4$s) and %2$s
     order by g.txid, g.id)
  $q$, p_queue.log_table, format('(g.subscription_id = %s or g.subscription_id is null and %s)%s', p_values[7], trunq._filter_condition(p_filter),
    ' and ' || trunq._filter_condition(p_also)), p_values[1], p_values[2], p_values[3], p_values[4], p_values[5], p_values[6])
$$;
comment on function trunq._part_query_of is 'trunq._part_query with literals, or other parameters, for $1 to $7.';

create or replace function trunq._check_place(p_what text, p_txid bigint, p_id bigint) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(p_txid, p_id) = 1 or p_txid < 0 or p_id < 0 then
    perform trunq._fail('TQ005', format('%s is the txid and the id of a message, not (%s, %s)', p_what, coalesce(p_txid::text, 'null'), coalesce(p_id::text, 'null')),
      'read_batch tells both of each message');
  end if;
end $$;
comment on function trunq._check_place is 'Refuses (TQ005) half of a place.';

create or replace function trunq._check_next_batch(
  p_worker text, p_max_ticks integer, p_lease_time interval, p_min_lag interval, p_min_count bigint, p_min_interval interval
) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(p_worker, '') = '' then
    perform trunq._fail('TQ005', 'a reader asks for a batch under its name, and gave none');
  elsif p_max_ticks is null or p_max_ticks < 1 then
    perform trunq._fail('TQ005', format('a batch spans at least one tick, not %s', coalesce(p_max_ticks::text, 'null')));
  elsif p_min_count < 0 then
    perform trunq._fail('TQ005', format('a batch cannot have at least %s messages', p_min_count));
  elsif num_nonnulls(p_lease_time, p_min_lag, p_min_interval) > 0 then
    perform trunq._check_interval('the time of a lease', p_lease_time);
    perform trunq._check_interval('the lag of a batch', p_min_lag, '0');
    perform trunq._check_interval('the length of a batch', p_min_interval, '0');
  end if;
end $$;
comment on function trunq._check_next_batch is 'Refuses (TQ005) what no batch can be.';

create or replace function trunq._tick_position(p_sub trunq.subscription) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._stream_position(trunq._find_queue(p_sub.queue_id), p_sub);
begin
  return v.tick_id;
end $$;
comment on function trunq._tick_position is 'The tick up to which an exclusive subscription has read and finished.';

create or replace function trunq._stream_position(
  p_queue trunq.queue, p_sub trunq.subscription, out tick_id bigint, out lo pg_snapshot, out hi pg_snapshot, out after_txid xid8, out after_id bigint
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  -- Stable: both see one state, so that a batch that is finished in part and its rest are not taken for a whole one.
  v := trunq._newest_batch(p_queue, p_sub.subscription_id);
  if not v.finished or v.open_leases is not null then
    select o.from_tick_id, o.lo, o.hi, coalesce(o.after_txid, '0'), coalesce(o.after_id, 0) into tick_id, lo, hi, after_txid, after_id
    from trunq._open_batches(p_queue, p_sub.subscription_id) o limit 1;
  end if;
  if tick_id is null then
    tick_id := coalesce(v.to_tick_id, p_sub.start_tick_id);
    lo := coalesce(v.hi, p_sub.start); hi := lo; after_txid := pg_snapshot_xmax(lo); after_id := 0;
  end if;
end $$;
comment on function trunq._stream_position is
  'Where an exclusive subscription stands: the tick, the window of its first open batch and the message behind which that begins; without one, the frontier.';
