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
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query execute pg_catalog.format('select * from trunq_queue.%I($1, $2, $3, $4)', trunq._function(p_queue, 'next_batch'))
    using p_subscription, p_worker, p_max_ticks, p_lease_time;
end $$;
comment on function trunq.next_batch(text, text, text, integer, interval) is
  'Opens the next batch of an exclusive subscription, up to p_max_ticks ticks long, or returns the one this worker has open.
Returns: no row when there is no newer tick, another worker holds the batch, or the subscription is paused.
Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ010, TQ011; TQ012 when messages after the position are gone.
Locks: the subscription.';

create or replace function trunq.read_batch(p_queue text, p_subscription text, p_batch_id bigint)
returns table (
  id bigint, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, attempt smallint, created_at timestamptz
)
-- One process, by the index: in order without a sort.
language plpgsql set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set max_parallel_workers_per_gather = 0 set jit = off as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'exclusive');
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_lo pg_snapshot;
  v_hi pg_snapshot;
  v_from_tick_id bigint;
begin
  perform trunq._check_cluster();
  execute format('select lo, hi, from_tick_id from trunq_data.%I where subscription_id = $1 and lease_id = $2', v_queue.lease_table)
    into v_lo, v_hi, v_from_tick_id using v_sub.subscription_id, p_batch_id;
  if v_lo is null then
    perform trunq._fail('TQ012', format('subscription "%s" of queue "%s" has no batch %s', p_subscription, p_queue, p_batch_id),
      'next_batch opens one');
  end if;
  return query execute format($q$
    select g.id, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.attempt, g.created_at
    from trunq_queue.%I($1, $2) g where g.subscription_id = $3 or g.subscription_id is null and %s
  $q$, trunq._function(p_queue, 'window'), trunq._filter_condition(v_sub.filter)) using v_lo, v_hi, v_sub.subscription_id;
  -- Afterwards, by a later statement: what was emptied before those rows were read is known by now.
  perform trunq._check_reachable(v_queue.queue_id, v_from_tick_id);
end $$;
comment on function trunq.read_batch(text, text, bigint) is
  'The messages of a batch that pass the subscription''s filter, in (txid, id) order: the same every time, as long as the filter is.
Raises: TQ001, TQ002, TQ010, TQ011; TQ012 for a batch this subscription never had, or whose messages are gone.';

create or replace function trunq.finish_batch(p_queue text, p_subscription text, p_batch_id bigint, p_token bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_finished boolean;
begin
  execute pg_catalog.format('select trunq_queue.%I($1, $2, $3)', trunq._function(p_queue, 'finish_batch'))
    into v_is_finished using p_subscription, p_batch_id, p_token;
  return v_is_finished;
end $$;
comment on function trunq.finish_batch(text, text, bigint, bigint) is
  'Finishes the open batch: the position moves to its last tick.
Returns: false when it was finished before.
Raises: TQ001, TQ002, TQ007, TQ008, TQ011; TQ003 when another worker has it.
Locks: the subscription.';

create or replace function trunq.position(p_queue text, p_subscription text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._check_cluster();
  return trunq._tick_position(trunq._subscription(p_queue, p_subscription, 'exclusive'));
end $$;
comment on function trunq.position(text, text) is
  'The tick up to which an exclusive subscription has read and finished.
Raises: TQ001, TQ002, TQ010, TQ011.';

create or replace function trunq.advance(p_queue text, p_subscription text, p_tick_id bigint) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v_tick trunq.tick;
  v_newest record;
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  perform trunq._require_read_committed('advance');
  perform trunq._check_cluster();
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  perform trunq._lock_subscription(v_sub.subscription_id, p_queue, p_subscription);
  if p_tick_id <= trunq._tick_position(v_sub) then
    return trunq._tick_position(v_sub);
  end if;
  select * into v_tick from trunq.tick t where t.queue_id = v_sub.queue_id and t.tick_id = p_tick_id;
  if not found then
    perform trunq._fail('TQ012', format('queue "%s" has no tick %s', p_queue, p_tick_id),
      'select * from trunq.list_ticks(''queue'') shows those kept');
  end if;
  perform trunq._check_reachable(v_queue.queue_id, p_tick_id);
  v_newest := trunq._newest_batch(v_queue, v_sub.subscription_id);
  perform trunq._put_batch(v_queue, v_sub.subscription_id, 'advance',
    coalesce(case when v_newest.finished then v_newest.hi else v_newest.lo end, v_sub.start), v_tick.snapshot,
    trunq._tick_position(v_sub), v_tick.tick_id, trunq._segment_at(v_queue, now()));
  return v_tick.tick_id;
end $$;
comment on function trunq.advance(text, text, bigint) is
  'Moves the position of an exclusive subscription forward to a tick, for readers that keep their own (Spark): never back.
Returns: the position.
Raises: TQ001, TQ002, TQ007, TQ010, TQ011; TQ012 when the tick is not kept, or messages after it are gone.
Locks: the subscription.';

create or replace function trunq._put_batch(
  p_queue trunq.queue, p_subscription_id integer, p_worker text,
  p_lo pg_snapshot, p_hi pg_snapshot, p_from_tick_id bigint, p_to_tick_id bigint, p_segment smallint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    with made as (
      insert into trunq_data.%1$I (lease_id, segment, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at)
      values (nextval('trunq_data.%2$I'), $8, $1, trunq._token(), $7, $2, $3, pg_snapshot_xmax($3), 0, $4, $5, $6)
      returning lease_id, segment)
    insert into trunq_data.%3$I (lease_id, segment, subscription_id, outcome, size, ids, finished_at)
    select m.lease_id, m.segment, $1, 'b', 0, '{}', $6 from made m
  $q$, p_queue.lease_table, p_queue.lease_sequence, p_queue.receipt_table)
  using p_subscription_id, p_lo, p_hi, p_from_tick_id, p_to_tick_id, trunq.clock(), p_worker, p_segment;
end $$;
comment on function trunq._put_batch(trunq.queue, integer, text, pg_snapshot, pg_snapshot, bigint, bigint, smallint) is
  'Writes a finished batch: the position of an exclusive subscription. The caller holds its lock.';

create or replace function trunq._newest_batch(
  p_queue trunq.queue, p_subscription_id integer,
  out lease_id bigint, out token bigint, out worker text, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out expires_at timestamptz, out segment smallint, out finished boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  execute format('select * from trunq_queue.%I($1)', p_queue.name || '_newest_batch')
    into lease_id, token, worker, from_tick_id, to_tick_id, lo, hi, expires_at, segment, finished using p_subscription_id;
end $$;
comment on function trunq._newest_batch(trunq.queue, integer) is
  'The newest batch of an exclusive subscription, open or finished; lease_id null: it has had none.';

create or replace function trunq._tick_position(p_sub trunq.subscription) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._newest_batch(trunq._find_queue(p_sub.queue_id), p_sub.subscription_id);
begin
  return coalesce(case when v.finished then v.to_tick_id else v.from_tick_id end, p_sub.start_tick_id);
end $$;
comment on function trunq._tick_position(trunq.subscription) is 'The tick up to which an exclusive subscription has read and finished.';
