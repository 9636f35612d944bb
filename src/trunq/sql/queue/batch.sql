-- Batches of an exclusive subscription; the rules are in functions/batch.sql.

create or replace function trunq_queue._specimen_next_batch(
  p_subscription text,
  p_worker text,
  p_max_ticks integer default 1,
  p_lease_time interval default null
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  expires_at timestamptz
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
-- Leases, receipts and ticks are found by index.
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription;
  v_open record;
  v_from_tick_id bigint; v_from_snapshot pg_snapshot;
  v_to_tick_id bigint; v_to_snapshot pg_snapshot;
  v_now timestamptz;
  v_token bigint;
begin
  perform trunq._require_read_committed('next_batch');
  v_sub := trunq._subscription('_specimen', p_subscription, 'exclusive');
  if p_max_ticks is null or p_max_ticks < 1 then
    perform trunq._fail('TQ005', format('a batch spans at least one tick, not %s', p_max_ticks));
  end if;
  perform trunq._check_interval('the time of a lease', p_lease_time);
  perform trunq._check_cluster();
  perform trunq._lock_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  v_now := trunq.clock();
  select b.* into v_open from trunq_queue._specimen_newest_batch(v_sub.subscription_id) b;
  if v_open.lease_id is not null and not v_open.finished then
    if v_open.expires_at > v_now then
      if v_open.worker = p_worker then
        perform trunq._check_reachable(0 /*queue_id*/, v_open.from_tick_id);
        -- Perhaps another process of this name has it open: a new token fences that one, which can finish nothing any more.
        update trunq_data._specimen_lease l set token = trunq._token()
        where l.lease_id = v_open.lease_id and l.segment = v_open.segment and l.subscription_id = v_sub.subscription_id
        returning l.token into v_token;
        return query select v_open.lease_id, v_token, v_open.from_tick_id, v_open.to_tick_id, v_open.lo, v_open.hi, v_open.expires_at;
      end if;
      return;
    end if;
    if trunq._is_paused(v_sub, v_now) then
      return;
    end if;
    v_from_tick_id := v_open.from_tick_id; v_from_snapshot := v_open.lo;
    v_to_tick_id := v_open.to_tick_id; v_to_snapshot := v_open.hi;
  elsif trunq._is_paused(v_sub, v_now) then
    return;
  else
    v_from_tick_id := coalesce(v_open.to_tick_id, v_sub.start_tick_id); v_from_snapshot := coalesce(v_open.hi, v_sub.start);
    select n.tick_id, n.snapshot into v_to_tick_id, v_to_snapshot from (
      select t.tick_id, t.snapshot from trunq.tick t
      where t.queue_id = 0 /*queue_id*/ and t.tick_id > v_from_tick_id order by t.tick_id limit p_max_ticks) n
    order by n.tick_id desc limit 1;
    if not found then
      return;
    end if;
    perform trunq._check_position(v_to_snapshot, trunq.snapshot());
  end if;
  perform trunq._check_reachable(0 /*queue_id*/, v_from_tick_id);
  return query
    insert into trunq_data._specimen_lease as made (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at, expires_at)
    values (nextval('trunq_data._specimen_lease_id'), v_sub.subscription_id, trunq._token(), p_worker, v_from_snapshot, v_to_snapshot,
      pg_snapshot_xmax(v_to_snapshot), 0, v_from_tick_id, v_to_tick_id, v_now, v_now + coalesce(p_lease_time, v_sub.lease_time))
    returning made.lease_id, made.token, made.from_tick_id, made.to_tick_id, made.lo, made.hi, made.expires_at;
end $$;
comment on function trunq_queue._specimen_next_batch(text, text, integer, interval) is
  'Opens the next batch of an exclusive subscription, up to p_max_ticks ticks long, or returns the one this worker has open,
with a new token: of two readers of one name, only the one that asked last can finish it.
Returns: no row when there is no newer tick, another worker holds the batch, or the subscription is paused.
Raises: TQ002, TQ005, TQ007, TQ008, TQ010, TQ011; TQ012 when messages after the position are gone.
Locks: the subscription.';

create or replace function trunq_queue._specimen_finish_batch(p_subscription text, p_batch_id bigint, p_token bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
  v_sub trunq.subscription;
  v_newest record;
  v_finished boolean;
begin
  perform trunq._require_read_committed('finish_batch');
  v_sub := trunq._subscription('_specimen', p_subscription, 'exclusive');
  perform trunq._lock_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  select b.* into v_newest from trunq_queue._specimen_newest_batch(v_sub.subscription_id) b;
  if v_newest.lease_id is distinct from p_batch_id or v_newest.finished then
    v_finished := exists (
      select from trunq_data._specimen_receipt r
      where r.lease_id = p_batch_id and r.subscription_id = v_sub.subscription_id and r.outcome = 'b');
    -- Who finished it may ask again. Another reader of this batch must not take it for its own success.
    if v_finished and p_token = (
      select l.token from trunq_data._specimen_lease l
      where l.lease_id = p_batch_id and l.subscription_id = v_sub.subscription_id limit 1) then
      return false;
    end if;
  end if;
  if v_finished or v_newest.lease_id is distinct from p_batch_id or v_newest.token is distinct from p_token then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_batch_id);
  end if;
  insert into trunq_data._specimen_receipt (lease_id, segment, subscription_id, outcome, size, ids, finished_at)
  values (p_batch_id, v_newest.segment, v_sub.subscription_id, 'b', 0, '{}', trunq.clock());
  return true;
end $$;
comment on function trunq_queue._specimen_finish_batch(text, bigint, bigint) is
  'Finishes the open batch: the position moves to its last tick.
Returns: false when it was finished before, with this token.
Raises: TQ002, TQ007, TQ008, TQ011; TQ003 when another reader has it or finished it.
Locks: the subscription.';

create or replace function trunq_queue._specimen_newest_batch(
  p_subscription_id integer,
  out lease_id bigint, out token bigint, out worker text, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out expires_at timestamptz, out segment smallint, out finished boolean
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
  v record;
begin
  -- The newest lease first, then its receipt: in one statement, Postgres would hash every receipt of the queue.
  select l.lease_id, l.token, l.worker, l.from_tick_id, l.to_tick_id, l.lo, l.hi, l.expires_at, l.segment into v
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  if found then
    lease_id := v.lease_id; token := v.token; worker := v.worker; from_tick_id := v.from_tick_id; to_tick_id := v.to_tick_id;
    lo := v.lo; hi := v.hi; expires_at := v.expires_at; segment := v.segment;
    finished := exists (
      select from trunq_data._specimen_receipt r where r.lease_id = v.lease_id and r.segment = v.segment and r.outcome = 'b');
  end if;
end $$;
comment on function trunq_queue._specimen_newest_batch(integer) is
  'The newest batch of an exclusive subscription, open or finished; lease_id null: it has had none.';
