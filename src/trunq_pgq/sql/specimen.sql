-- What batches need of one queue, with its tables and functions named, so that a session keeps the plans: put together while running, an empty
-- batch took four times as long. Written over trunq's specimen (sql/specimen/queue), copied for each of PgQ's queues as pgq._on_<queue>_<verb>.

create or replace function pgq._on__specimen_next(
  p_sub pgq._subscription, p_min_lag interval, p_min_count integer, p_min_interval interval, out batch_id bigint, out from_tick_id bigint, out to_tick_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_newest record;
begin
  select n.lease_id, n.from_tick_id, n.to_tick_id, n.finished, n.open_leases into v_newest from trunq_queue._specimen_newest_batch(p_sub.subscription_id) n;
  if v_newest.open_leases is not null then
    select o.batch_id, o.from_tick_id, o.to_tick_id into batch_id, from_tick_id, to_tick_id
    from pgq._open(p_sub.sub_queue, p_sub.subscription_id) o where o.sub_consumer = p_sub.sub_consumer order by o.batch_id limit 1;
  elsif not v_newest.finished then
    select b.batch_id, v_newest.from_tick_id, v_newest.to_tick_id into batch_id, from_tick_id, to_tick_id
    from pgq._batch b
    where b.subscription_id = p_sub.subscription_id and b.lease_id = v_newest.lease_id and b.sub_consumer = p_sub.sub_consumer;
  end if;
  if batch_id is null then
    select h.* into batch_id, from_tick_id, to_tick_id from pgq._on__specimen_hand_out(p_sub, p_min_lag, p_min_count, p_min_interval,
      v_newest.finished and v_newest.open_leases is null, v_newest.to_tick_id) h;
  end if;
end $$;
comment on function pgq._on__specimen_next is
  'The batch that a consumer has open, or the next; batch_id null: there is none. The caller holds the subscription''s lock.';

create or replace function pgq._on__specimen_hand_out(
  p_sub pgq._subscription, p_min_lag interval, p_min_count integer, p_min_interval interval, p_is_known boolean default false,
  p_to_tick_id bigint default null, out batch_id bigint, out from_tick_id bigint, out to_tick_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_newest record;
  v_from trunq.tick;
  v_to trunq.tick;
  v_open bigint[];
  v_lease_id bigint;
  v_now timestamptz := trunq.clock();
begin
  select s.* into v_sub from trunq.subscription s where s.subscription_id = p_sub.subscription_id;
  if not found then
    -- It was unregistered while this one waited for the lock.
    raise exception 'Not subscriber to queue: %/%', (select f.queue_name from pgq._queue f where f.queue_id = p_sub.sub_queue),
      (select c.co_name from pgq.consumer c where c.co_id = p_sub.sub_consumer);
  end if;
  if v_sub.lost_at is not null then
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  if v_sub.is_limited and trunq._is_paused(v_sub, v_now) then
    return;
  end if;
  perform trunq._check_cluster();
  if p_is_known then
    -- The caller has just looked: nothing is open, and this is where it ended.
    select p_to_tick_id to_tick_id, false is_open into v_newest;
  else
    select n.to_tick_id, n.lease_id is not null and (not n.finished or n.open_leases is not null) is_open into v_newest
    from trunq_queue._specimen_newest_batch(p_sub.subscription_id) n;
  end if;
  if v_newest.is_open then
    select array_agg(o.lease_id order by o.lease_id) into v_open from trunq_queue._specimen_open_batches(p_sub.subscription_id) o;
  end if;
  if v_open is not null and not exists (select from pgq._subscription t where t.subscription_id = p_sub.subscription_id and t.is_member) then
    -- A native reader's: trunq's own rules say whether it can be had.
    select b.batch_id, b.from_tick_id, b.to_tick_id into v_lease_id, from_tick_id, to_tick_id
    from trunq_queue._specimen_next_batch(v_sub.name, 'pgq', p_cut => false) b;
  else
    select t.* into v_from from trunq.tick t where t.queue_id = p_sub.sub_queue and t.tick_id = coalesce(v_newest.to_tick_id, v_sub.start_tick_id);
    if not found then
      raise exception 'PgQ corruption: Consumer % on queue % does not see tick %', (select c.co_name from pgq.consumer c where c.co_id = p_sub.sub_consumer),
        (select f.queue_name from pgq._queue f where f.queue_id = p_sub.sub_queue), coalesce(v_newest.to_tick_id, v_sub.start_tick_id);
    end if;
    if num_nonnulls(p_min_count, p_min_interval) = 0 then
      select t.* into v_to from trunq.tick t where t.queue_id = p_sub.sub_queue and t.tick_id > v_from.tick_id order by t.tick_id limit 1;
    else
      select t.* into v_to from pgq.find_tick_helper(p_sub.sub_queue, v_from.tick_id, v_from.created_at, greatest(v_from.last_message_id, 1),
        p_min_count, p_min_interval) h join trunq.tick t on t.queue_id = p_sub.sub_queue and t.tick_id = h.next_tick_id;
    end if;
    if v_to.tick_id is null or (v_now - v_to.created_at < p_min_lag) is true then
      return;
    end if;
    perform trunq._check_position(v_to.snapshot, trunq.snapshot());
    perform trunq._check_reachable(p_sub.sub_queue, v_from.tick_id);
    from_tick_id := v_from.tick_id; to_tick_id := v_to.tick_id;
    select o.lease_id into v_lease_id from trunq_queue._specimen_open_batch(v_sub.subscription_id, 'pgq', v_from.snapshot, v_to.snapshot,
      v_from.tick_id, v_to.tick_id, v_now, v_now + v_sub.lease_time, v_open) o;
  end if;
  if v_lease_id is not null then
    insert into pgq._batch as b (queue_id, subscription_id, sub_consumer, lease_id)
    values (p_sub.sub_queue, p_sub.subscription_id, p_sub.sub_consumer, v_lease_id)
    returning b.batch_id into batch_id;
  end if;
end $$;
comment on function pgq._on__specimen_hand_out is 'pgq._hand_out of one queue.';

create or replace function pgq._on__specimen_find(
  p_subscription_id integer, p_lease_id bigint, out lease_id bigint, out token bigint, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_newest record;
begin
  select n.* into v_newest from trunq_queue._specimen_newest_batch(p_subscription_id) n;
  if v_newest.lease_id = p_lease_id and not v_newest.finished and v_newest.worker is not null then
    lease_id := p_lease_id; token := v_newest.token; from_tick_id := v_newest.from_tick_id; to_tick_id := v_newest.to_tick_id;
    lo := v_newest.lo; hi := v_newest.hi;
  elsif v_newest.open_leases is not null then
    select o.lease_id, o.token, o.from_tick_id, o.to_tick_id, o.lo, o.hi into lease_id, token, from_tick_id, to_tick_id, lo, hi
    from trunq_queue._specimen_open_batches(p_subscription_id) o where o.lease_id = p_lease_id and o.worker is not null;
  end if;
end $$;
comment on function pgq._on__specimen_find is 'An open batch by its lease; lease_id null: it is not open.';

create or replace function pgq._on__specimen_read(p_subscription_id integer, p_lease_id bigint)
returns table (
  ev_id bigint, ev_time timestamptz, ev_txid bigint, ev_retry integer, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text,
  ev_extra4 text
)
language plpgsql rows 500 set search_path = pg_catalog, pg_temp
set trunq.plan = kept as $$
#variable_conflict use_column
declare
  v record;
  v_filter jsonb;
begin
  begin
    if (select f.lease_id from pgq._on__specimen_find(p_subscription_id, p_lease_id) f) is null then
      raise exception 'batch not found';
    end if;
    select l.lo, l.hi, l.from_tick_id, coalesce(l.after_txid, '0') after_txid, coalesce(l.after_id, 0) after_id, l.last_txid, l.last_id into v
    from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
    select s.filter into v_filter from trunq.subscription s where s.subscription_id = p_subscription_id;
    if v_filter is null and v.after_txid = '0' and v.last_txid >= pg_snapshot_xmax(v.hi) then
      return query
        select g.id, g.created_at, g.txid::text::bigint, nullif(g.attempt - 1, 0), g.kind || '', g.payload #>> '{}', g.key || '',
          g.headers ->> 'extra2', g.headers ->> 'extra3', g.headers ->> 'extra4'
        from trunq_queue._specimen_window(v.lo, v.hi) g where g.subscription_id is null or g.subscription_id = p_subscription_id order by g.id;
    else
      return query execute format($q$
        select g.id, g.created_at, g.txid::text::bigint, nullif(g.attempt - 1, 0), g.kind || '', g.payload #>> '{}', g.key || '',
          g.headers ->> 'extra2', g.headers ->> 'extra3', g.headers ->> 'extra4'
        from (%s) g order by g.id
      $q$, trunq._part_query(trunq._find_queue(0 /*queue_id*/), v_filter))
      using v.lo, v.hi, v.after_txid, v.after_id, v.last_txid, v.last_id, p_subscription_id;
    end if;
    -- By a later statement: what was emptied before those rows were read is known by now.
    perform trunq._check_reachable(0 /*queue_id*/, v.from_tick_id);
    if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
      -- As trunq.read_batch: rotation would wait for the end of the caller's work. What was returned stays, and no value of it lies outside of its row.
      raise exception using errcode = 'TQ900';
    end if;
  exception when sqlstate 'TQ900' then
  end;
end $$;
comment on function pgq._on__specimen_read is 'The events of an open batch, in the order of ev_id.';

create or replace function pgq._on__specimen_finish(p_subscription text, p_subscription_id integer, p_lease_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_token bigint := (select f.token from pgq._on__specimen_find(p_subscription_id, p_lease_id) f);
begin
  if v_token is null then
    return false;
  end if;
  perform trunq_queue._specimen_finish_batch(p_subscription, p_lease_id, v_token);
  return true;
end $$;
comment on function pgq._on__specimen_finish is 'Finishes an open batch. Returns: false when it is not open. The caller holds the subscription''s lock.';
