-- Batches: a number of PgQ's for an open batch of trunq's (batch.sql), with its rules: the same batch is returned until it is
-- finished, none is taken over for its age, and none is opened without a tick that somebody cut. Finishing is trunq's own finish_batch.
--
-- Several sessions that ask for one consumer's batch at once get the same number: all of it happens under the subscription's lock.
-- Where native readers use a consumer's subscription too, what they left (a part, an open batch) comes first, as they themselves would get it.

create or replace function pgq._open(p_queue_id integer, p_subscription_id integer)
returns table (
  batch_id bigint, sub_consumer integer, lease_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, lo pg_snapshot, hi pg_snapshot,
  after_txid xid8, after_id bigint, last_txid xid8, last_id bigint, leased_at timestamptz
)
-- With the owner's rights: everybody may look at pgq.subscription. Of PgQ's queues alone.
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_queue trunq.queue;
begin
  select q.* into v_queue from trunq.queue q join pgq._queue f on f.queue_id = q.queue_id where q.queue_id = p_queue_id;
  if not found then
    return;
  end if;
  return query
    select b.batch_id, b.sub_consumer, o.lease_id, o.token, o.from_tick_id, o.to_tick_id, o.lo, o.hi, o.after_txid, o.after_id, o.last_txid, o.last_id,
      o.leased_at
    from trunq._open_batches(v_queue, p_subscription_id) o
    left join pgq._batch b on b.subscription_id = p_subscription_id and b.lease_id = o.lease_id and o.worker is not null;
end $$;
comment on function pgq._open is 'The open batches of a subscription with their numbers; batch_id null: one that no consumer of PgQ has.';

create or replace function pgq._find_batch(
  p_batch_id bigint, out queue_id integer, out queue text, out subscription_id integer, out subscription text, out sub_consumer integer,
  out lease_id bigint, out token bigint, out from_tick_id bigint, out to_tick_id bigint, out lo pg_snapshot, out hi pg_snapshot
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_lease_id bigint;
begin
  select b.queue_id, q.name, b.subscription_id, s.name, b.sub_consumer, b.lease_id into queue_id, queue, subscription_id, subscription, sub_consumer, v_lease_id
  from pgq._batch b join trunq.queue q on q.queue_id = b.queue_id join trunq.subscription s on s.subscription_id = b.subscription_id
  where b.batch_id = p_batch_id;
  if found then
    execute format('select f.* from pgq.%I($1, $2) f', '_on_' || queue || '_find') into lease_id, token, from_tick_id, to_tick_id, lo, hi
      using subscription_id, v_lease_id;
  end if;
end $$;
comment on function pgq._find_batch is 'An open batch by its number; lease_id null: it is not open, queue null: there is none.';

create or replace function pgq._lock_batch(p_batch_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  select b.subscription_id, q.name queue, s.name subscription into v
  from pgq._batch b join trunq.queue q on q.queue_id = b.queue_id join trunq.subscription s on s.subscription_id = b.subscription_id
  where b.batch_id = p_batch_id;
  if found then
    perform trunq._lock_subscription(v.subscription_id, v.queue, v.subscription);
  end if;
end $$;
comment on function pgq._lock_batch is 'Takes the lock of the subscription that a batch belongs to. What the caller then reads must be read by a later statement.';

create or replace function pgq._hand_out(
  p_sub pgq._subscription, p_min_lag interval, p_min_count integer, p_min_interval interval, out batch_id bigint, out from_tick_id bigint, out to_tick_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('select h.* from pgq.%I($1, $2, $3, $4) h', '_on_' || (trunq._find_queue(p_sub.sub_queue)).name || '_hand_out')
    into batch_id, from_tick_id, to_tick_id using p_sub, p_min_lag, p_min_count, p_min_interval;
end $$;
comment on function pgq._hand_out is
  'Opens the next batch of a subscription for one of its consumers, who has none; batch_id null: there is nothing to be had. The caller holds the subscription''s lock.';

create or replace function pgq.next_batch_custom(
  i_queue_name text, i_consumer_name text, i_min_lag interval, i_min_count integer, i_min_interval interval,
  out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint, out cur_tick_time timestamptz, out prev_tick_time timestamptz,
  out cur_tick_event_seq bigint, out prev_tick_event_seq bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_sub pgq._subscription;
  v_queue text;
begin
  select t.* into v_sub from pgq._subscription t join pgq._queue f on f.queue_id = t.sub_queue join pgq.consumer c on c.co_id = t.sub_consumer
  where f.queue_name = i_queue_name and c.co_name = i_consumer_name;
  if not found then
    raise exception 'Not subscriber to queue: %/%', coalesce(i_queue_name, 'NULL'), coalesce(i_consumer_name, 'NULL');
  end if;
  perform trunq._require_read_committed('next_batch');
  select q.name into v_queue from trunq.queue q where q.queue_id = v_sub.sub_queue;
  perform trunq._lock_subscription(v_sub.subscription_id, v_queue, i_consumer_name);
  execute format('select n.* from pgq.%I($1, $2, $3, $4) n', '_on_' || v_queue || '_next') into batch_id, prev_tick_id, cur_tick_id
    using v_sub, i_min_lag, i_min_count, i_min_interval;
  if batch_id is null then
    prev_tick_id := null; cur_tick_id := null;
    return;
  end if;
  select t.created_at, greatest(t.last_message_id, 1) into cur_tick_time, cur_tick_event_seq
  from trunq.tick t where t.queue_id = v_sub.sub_queue and t.tick_id = cur_tick_id;
  select t.created_at, greatest(t.last_message_id, 1) into prev_tick_time, prev_tick_event_seq
  from trunq.tick t where t.queue_id = v_sub.sub_queue and t.tick_id = prev_tick_id;
end $$;

create or replace function pgq.next_batch_info(
  i_queue_name text, i_consumer_name text,
  out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint, out cur_tick_time timestamptz, out prev_tick_time timestamptz,
  out cur_tick_event_seq bigint, out prev_tick_event_seq bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  select b.* into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
  from pgq.next_batch_custom(i_queue_name, i_consumer_name, null, null, null) b;
end $$;

create or replace function pgq.next_batch(i_queue_name text, i_consumer_name text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return (select b.batch_id from pgq.next_batch_custom(i_queue_name, i_consumer_name, null, null, null) b);
end $$;

create or replace function pgq.get_batch_events(
  x_batch_id bigint, out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry integer, out ev_type text, out ev_data text,
  out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text
) returns setof record
language plpgsql security definer rows 500 set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  select b.subscription_id, b.lease_id, q.name queue into v
  from pgq._batch b join trunq.queue q on q.queue_id = b.queue_id where b.batch_id = x_batch_id;
  if not found then
    raise exception 'batch not found';
  end if;
  return query execute format('select e.* from pgq.%I($1, $2) e', '_on_' || v.queue || '_read') using v.subscription_id, v.lease_id;
end $$;

create or replace function pgq._require_batch(p_batch_id bigint) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  if (pgq._find_batch(p_batch_id)).lease_id is null then
    raise exception 'batch not found';
  end if;
end $$;
comment on function pgq._require_batch is 'Refuses a batch that is not open.';

create or replace function pgq.batch_event_sql(x_batch_id bigint) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform pgq._require_batch(x_batch_id);
  return format('select ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgq.get_batch_events(%s) order by 1',
    x_batch_id);
end $$;

create or replace function pgq.get_batch_cursor(
  i_batch_id bigint, i_cursor_name text, i_quick_limit integer, i_extra_where text, out ev_id bigint, out ev_time timestamptz, out ev_txid bigint,
  out ev_retry integer, out ev_type text, out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text
) returns setof record
-- With the caller's rights and search_path: the condition is the caller's own SQL.
language plpgsql as $$
declare
  v_query text;
begin
  if i_batch_id is null or i_cursor_name is null or i_quick_limit is null then
    return;
  end if;
  v_query := pgq.batch_event_sql(i_batch_id);
  if i_extra_where is not null then
    v_query := pg_catalog.format('select * from (%s) _evs where %s order by 1', v_query, i_extra_where);
  end if;
  execute pg_catalog.format('declare %I no scroll cursor for %s', i_cursor_name, v_query);
  if i_quick_limit operator(pg_catalog.>) 0 then
    return query execute pg_catalog.format('fetch %s from %I', i_quick_limit, i_cursor_name);
  end if;
end $$;

create or replace function pgq.get_batch_cursor(
  i_batch_id bigint, i_cursor_name text, i_quick_limit integer, out ev_id bigint, out ev_time timestamptz, out ev_txid bigint,
  out ev_retry integer, out ev_type text, out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text
) returns setof record
language plpgsql strict as $$
begin
  return query select c.* from pgq.get_batch_cursor(i_batch_id, i_cursor_name, i_quick_limit, null) c;
end $$;

create or replace function pgq.get_batch_info(
  x_batch_id bigint, out queue_name text, out consumer_name text, out batch_start timestamptz, out batch_end timestamptz,
  out prev_tick_id bigint, out tick_id bigint, out lag interval, out seq_start bigint, out seq_end bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  select f.queue_name, c.co_name, b.created_at, e.created_at, b.tick_id, e.tick_id, current_timestamp - e.created_at,
    greatest(b.last_message_id, 1), greatest(e.last_message_id, 1)
  into queue_name, consumer_name, batch_start, batch_end, prev_tick_id, tick_id, lag, seq_start, seq_end
  from pgq._find_batch(x_batch_id) o join pgq._queue f on f.queue_id = o.queue_id join pgq.consumer c on c.co_id = o.sub_consumer
  join trunq.tick b on b.queue_id = o.queue_id and b.tick_id = o.from_tick_id join trunq.tick e on e.queue_id = o.queue_id and e.tick_id = o.to_tick_id;
end $$;

create or replace function pgq._finish(p_batch_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
  v_is_finished boolean;
begin
  perform trunq._require_read_committed('finish_batch');
  select b.subscription_id, b.lease_id, q.name queue, s.name subscription into v
  from pgq._batch b join trunq.queue q on q.queue_id = b.queue_id join trunq.subscription s on s.subscription_id = b.subscription_id
  where b.batch_id = p_batch_id;
  if not found then
    return false;
  end if;
  perform trunq._lock_subscription(v.subscription_id, v.queue, v.subscription);
  -- Again, by a later statement: two may finish it at once.
  delete from pgq._batch b where b.batch_id = p_batch_id;
  if not found then
    return false;
  end if;
  execute format('select pgq.%I($1, $2, $3)', '_on_' || v.queue || '_finish') into v_is_finished using v.subscription, v.subscription_id, v.lease_id;
  return v_is_finished;
end $$;
comment on function pgq._finish is 'Finishes a batch by its number, whoever has it: PgQ''s callers have no token. Returns: false when it is not open.';

create or replace function pgq.finish_batch(x_batch_id bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not pgq._finish(x_batch_id) then
    raise warning 'finish_batch: batch % not found', x_batch_id;
    return 0;
  end if;
  return 1;
end $$;

create or replace function pgq.batch_event_tables(x_batch_id bigint) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v record := pgq._find_batch(x_batch_id);
  v_queue record;
  v_first bigint;
  v_last bigint;
begin
  if v.lease_id is null then
    raise exception 'Cannot find data for batch %', x_batch_id;
  end if;
  select q.* into v_queue from pgq.queue q where q.queue_id = v.queue_id;
  v_first := pg_snapshot_xmin(v.lo)::text::bigint; v_last := pg_snapshot_xmax(v.hi)::text::bigint;
  if v_last < v_queue.queue_switch_step1 or (v_first > v_queue.queue_switch_step2) is not true then
    return next format('%s_%s', v_queue.queue_data_pfx, (v_queue.queue_cur_table + v_queue.queue_ntables - 1) % v_queue.queue_ntables);
  end if;
  if v_last >= v_queue.queue_switch_step1 then
    return next format('%s_%s', v_queue.queue_data_pfx, v_queue.queue_cur_table);
  end if;
end $$;
