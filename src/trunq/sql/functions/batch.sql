-- An exclusive subscription reads whole batches, in order: the window between two ticks. An open batch is a lease over it
-- (no ids, lo and hi are the ticks' snapshots), a finished one has its receipt. The same open batch is returned until it
-- is finished; empty ones exist and are finished like others. A batch whose lease ran out goes to whoever asks next, under a
-- new token; the late reader's finish is refused.

create or replace function trunq.next_batch(
  p_queue text,
  p_subscription text,
  p_worker text,
  p_max_ticks integer default 1,
  p_lease_time interval default null
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  expires_at timestamptz
)
language plpgsql as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription;
  v_open record;
  v_from trunq.tick;
  v_to trunq.tick;
  v_now timestamptz;
begin
  perform trunq._require_read_committed('next_batch');
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  if p_max_ticks is null or p_max_ticks < 1 then
    perform trunq._fail('TQ005', format('a batch spans at least one tick, not %s', p_max_ticks));
  end if;
  perform trunq._check_cluster();
  if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
  end if;
  v_now := trunq.clock();
  v_open := trunq._newest_batch(v_sub.queue_id, v_sub.subscription_id);
  if v_open.lease_id is not null and not v_open.finished then
    if v_open.expires_at > v_now then
      if v_open.worker = p_worker then
        return query select v_open.lease_id, v_open.token, v_open.from_tick_id, v_open.to_tick_id, v_open.lo, v_open.hi, v_open.expires_at;
      end if;
      return;
    end if;
    select v_open.from_tick_id, v_open.lo into v_from.tick_id, v_from.snapshot;
    select v_open.to_tick_id, v_open.hi into v_to.tick_id, v_to.snapshot;
  else
    select coalesce(v_open.to_tick_id, v_sub.start_tick_id), coalesce(v_open.hi, v_sub.start) into v_from.tick_id, v_from.snapshot;
    select n.tick_id, n.snapshot into v_to.tick_id, v_to.snapshot from (
      select t.tick_id, t.snapshot from trunq.tick t
      where t.queue_id = v_sub.queue_id and t.tick_id > v_from.tick_id order by t.tick_id limit p_max_ticks) n
    order by n.tick_id desc limit 1;
    if not found then
      return;
    end if;
    perform trunq._check_position(v_to.snapshot, trunq.snapshot());
  end if;
  return query execute format($q$
    insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at, expires_at)
    values (nextval('trunq_data.lease_id_%s'), $1, trunq._token(), $2, $3, $4, pg_snapshot_xmax($4), 0, $5, $6, $7, $7 + $8)
    returning lease_id, token, from_tick_id, to_tick_id, lo, hi, expires_at
  $q$, 'lease_' || v_sub.queue_id, v_sub.queue_id)
  using v_sub.subscription_id, p_worker, v_from.snapshot, v_to.snapshot, v_from.tick_id, v_to.tick_id, v_now,
    coalesce(p_lease_time, v_sub.lease_time);
end $$;
comment on function trunq.next_batch(text, text, text, integer, interval) is
  'Opens the next batch of an exclusive subscription, up to p_max_ticks ticks long, or returns the one this worker has open. Returns: no row when there is no newer tick or another worker holds the batch. Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ010, TQ011. Locks: the subscription, to the end of the transaction.';

create or replace function trunq.read_batch(p_queue text, p_subscription text, p_batch_id bigint)
returns table (
  id bigint, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, attempt smallint, created_at timestamptz
)
-- One process, by the index: in order without a sort.
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set max_parallel_workers_per_gather = 0 set jit = off as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'exclusive');
  v_lo pg_snapshot;
  v_hi pg_snapshot;
begin
  perform trunq._check_cluster();
  execute format('select lo, hi from trunq_data.%I where subscription_id = $1 and lease_id = $2', 'lease_' || v_sub.queue_id)
    into v_lo, v_hi using v_sub.subscription_id, p_batch_id;
  if v_lo is null then
    perform trunq._fail('TQ012', format('subscription "%s" of queue "%s" has no batch %s', p_subscription, p_queue, p_batch_id),
      'next_batch opens one');
  end if;
  return query execute format($q$
    (select g.id, g.kind, g.key, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.attempt, g.created_at
     from pg_snapshot_xip($1) late(txid) cross join lateral (
       select g.* from trunq_log.%1$I g where g.txid = late.txid order by g.id) g
     where pg_visible_in_snapshot(late.txid, $2) and (g.subscription_id is null or g.subscription_id = $3))
    union all
    (select g.id, g.kind, g.key, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.attempt, g.created_at
     from trunq_log.%1$I g
     where g.txid >= pg_snapshot_xmax($1) and g.txid < pg_snapshot_xmax($2) and pg_visible_in_snapshot(g.txid, $2)
       and (g.subscription_id is null or g.subscription_id = $3)
     order by g.txid, g.id)
  $q$, p_queue) using v_lo, v_hi, v_sub.subscription_id;
end $$;
comment on function trunq.read_batch(text, text, bigint) is
  'The messages of a batch, in (txid, id) order, the same every time. Raises: TQ001, TQ002, TQ010, TQ011, TQ012 for a batch this subscription never had.';

create or replace function trunq.finish_batch(p_queue text, p_subscription text, p_batch_id bigint, p_token bigint) returns boolean
language plpgsql as $$
declare
  v_sub trunq.subscription;
  v_newest record;
  v_finished boolean;
begin
  perform trunq._require_read_committed('finish_batch');
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
  end if;
  v_newest := trunq._newest_batch(v_sub.queue_id, v_sub.subscription_id);
  execute format('select exists (select from trunq_data.%I where lease_id = $1 and subscription_id = $2 and outcome = ''b'')',
    'receipt_' || v_sub.queue_id) into v_finished using p_batch_id, v_sub.subscription_id;
  if v_finished then
    return false;
  end if;
  if v_newest.lease_id is distinct from p_batch_id or v_newest.token is distinct from p_token then
    perform trunq._fail_lease_lost(p_queue, p_subscription, p_batch_id);
  end if;
  perform trunq._finish_batch(v_sub.queue_id, v_sub.subscription_id, p_batch_id);
  return true;
end $$;
comment on function trunq.finish_batch(text, text, bigint, bigint) is
  'Finishes the open batch: the position moves to its last tick. Returns: false when it was finished before. Raises: TQ001, TQ002, TQ007, TQ011; TQ003 when another worker has it. Locks: the subscription.';

create or replace function trunq.position(p_queue text, p_subscription text) returns bigint
language plpgsql as $$
begin
  perform trunq._check_cluster();
  return trunq._tick_position(trunq._subscription(p_queue, p_subscription, 'exclusive'));
end $$;
comment on function trunq.position(text, text) is
  'The tick up to which an exclusive subscription has read and finished. Raises: TQ001, TQ002, TQ010, TQ011.';

create or replace function trunq.advance(p_queue text, p_subscription text, p_tick_id bigint) returns bigint
language plpgsql as $$
declare
  v_sub trunq.subscription;
  v_tick trunq.tick;
  v_newest record;
  v_batch_id bigint;
begin
  perform trunq._require_read_committed('advance');
  perform trunq._check_cluster();
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
  end if;
  if p_tick_id <= trunq._tick_position(v_sub) then
    return trunq._tick_position(v_sub);
  end if;
  select * into v_tick from trunq.tick t where t.queue_id = v_sub.queue_id and t.tick_id = p_tick_id;
  if not found then
    perform trunq._fail('TQ012', format('queue "%s" has no tick %s', p_queue, p_tick_id),
      'select * from trunq.list_ticks(''queue'') shows those kept');
  end if;
  v_newest := trunq._newest_batch(v_sub.queue_id, v_sub.subscription_id);
  execute format($q$
    insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at)
    values (nextval('trunq_data.lease_id_%s'), $1, trunq._token(), 'advance', $2, $3, pg_snapshot_xmax($3), 0, $4, $5, trunq.clock())
    returning lease_id
  $q$, 'lease_' || v_sub.queue_id, v_sub.queue_id)
  into v_batch_id using v_sub.subscription_id, coalesce(case when v_newest.finished then v_newest.hi else v_newest.lo end, v_sub.start),
    v_tick.snapshot, trunq._tick_position(v_sub), v_tick.tick_id;
  perform trunq._finish_batch(v_sub.queue_id, v_sub.subscription_id, v_batch_id);
  return v_tick.tick_id;
end $$;
comment on function trunq.advance(text, text, bigint) is
  'Moves the position of an exclusive subscription forward to a tick, for readers that keep their own (Spark): never back. Returns: the position. Raises: TQ001, TQ002, TQ007, TQ010, TQ011; TQ012 when the tick is not kept. Locks: the subscription.';

create or replace function trunq._newest_batch(
  p_queue_id integer, p_subscription_id integer,
  out lease_id bigint, out token bigint, out worker text, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out expires_at timestamptz, out finished boolean
)
language plpgsql as $$
begin
  execute format($q$
    select l.lease_id, l.token, l.worker, l.from_tick_id, l.to_tick_id, l.lo, l.hi, l.expires_at,
      exists (select from trunq_data.%2$I r where r.lease_id = l.lease_id and r.outcome = 'b')
    from trunq_data.%1$I l where l.subscription_id = $1 order by l.lease_id desc limit 1
  $q$, 'lease_' || p_queue_id, 'receipt_' || p_queue_id)
  into lease_id, token, worker, from_tick_id, to_tick_id, lo, hi, expires_at, finished using p_subscription_id;
end $$;

create or replace function trunq._finish_batch(p_queue_id integer, p_subscription_id integer, p_batch_id bigint) returns void
language plpgsql as $$
begin
  execute format('insert into trunq_data.%I (lease_id, subscription_id, outcome, size, ids, finished_at) values ($1, $2, ''b'', 0, ''{}'', trunq.clock())',
    'receipt_' || p_queue_id) using p_batch_id, p_subscription_id;
end $$;

create or replace function trunq._tick_position(p_sub trunq.subscription) returns bigint
language plpgsql as $$
declare
  v record := trunq._newest_batch(p_sub.queue_id, p_sub.subscription_id);
begin
  return coalesce(case when v.finished then v.to_tick_id else v.from_tick_id end, p_sub.start_tick_id);
end $$;
