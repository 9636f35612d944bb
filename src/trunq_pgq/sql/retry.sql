-- Retries are trunq's: rows of trunq.delayed, copied from the log whole (an event read as text would lose what PgQ does not know of a native
-- message). PgQ names the time, and moves them back ten at a time.

create or replace function pgq._retry(p_batch_id bigint, p_ids bigint[], p_at timestamptz, out found_events integer, out queued integer)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
  v_ids bigint[];
  v_new bigint[];
begin
  perform pgq._lock_batch(p_batch_id);
  v := pgq._find_batch(p_batch_id);
  if v.lease_id is null then
    return;
  end if;
  v_ids := array(select distinct e.ev_id from pgq.get_batch_events(p_batch_id) e where p_ids is null or e.ev_id = any (p_ids));
  v_new := array(
    select n.id from unnest(v_ids) n(id)
    where not exists (select from trunq.delayed d where d.queue_id = v.queue_id and d.subscription_id = v.subscription_id and d.id = n.id));
  found_events := cardinality(v_ids);
  queued := cardinality(v_new);
  if queued > 0 then
    if p_at is null then
      raise not_null_violation using message = 'null value in column "ev_retry_after" of relation "retry_queue" violates not-null constraint';
    end if;
    -- Put off in any case, then to the very time: PgQ hands nothing out again before maint_retry_events.
    perform trunq.retry_batch(v.queue, v.subscription, v.lease_id, v.token, v_new, p_after => '1 day');
    update trunq.delayed d set due_at = p_at where d.queue_id = v.queue_id and d.subscription_id = v.subscription_id and d.id = any (v_new);
    perform pgq._look_back(v.queue_id, p_at);
  end if;
end $$;
comment on function pgq._retry is
  'Hands events of a batch, or all of them, out again to its consumer at a time. found_events null: the batch is not open; queued: those that did not wait already.';

create or replace function pgq._look_back(p_queue_id integer, p_at timestamptz) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- What is due before the mark of promote would wait for its next full look.
  update trunq.mark m set at = p_at, last_id = 0 where m.queue_id = p_queue_id and m.subscription_id = 0 and m.duty = 'promote' and m.at >= p_at
$$;
comment on function pgq._look_back is 'Lets the next promotion of a queue begin at a time.';

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v record := pgq._retry(x_batch_id, array[x_event_id], x_retry_time);
begin
  if coalesce(v.found_events, 0) = 0 then
    raise exception 'event not found';
  end if;
  return v.queued;
end $$;

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_seconds integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return pgq.event_retry(x_batch_id, x_event_id, current_timestamp + make_interval(secs => x_retry_seconds));
end $$;

create or replace function pgq.batch_retry(i_batch_id bigint, i_retry_seconds integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v record := pgq._retry(i_batch_id, null, current_timestamp + make_interval(secs => i_retry_seconds));
begin
  if v.found_events is null then
    raise exception 'batch_retry: batch % not found', i_batch_id;
  end if;
  return v.queued;
end $$;

create or replace function pgq.event_retry_raw(
  x_queue text, x_consumer text, x_retry_after timestamptz, x_ev_id bigint, x_ev_time timestamptz, x_ev_retry integer, x_ev_type text,
  x_ev_data text, x_ev_extra1 text, x_ev_extra2 text, x_ev_extra3 text, x_ev_extra4 text
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v pgq._subscription := pgq._find(x_queue, x_consumer);
begin
  if v.sub_queue is null then
    raise exception 'consumer not registered';
  end if;
  x_ev_id := coalesce(x_ev_id, nextval(format('pgq.event_%s_id_seq', v.sub_queue)::regclass));
  perform trunq._lock_subscription(v.subscription_id, x_queue, x_consumer);
  if exists (select from trunq.delayed d where d.queue_id = v.sub_queue and d.subscription_id = v.subscription_id and d.id = x_ev_id) then
    raise unique_violation using message = 'duplicate key value violates unique constraint "rq_pkey"',
      detail = format('Key (ev_owner, ev_id)=(%s, %s) already exists.', v.subscription_id, x_ev_id);
  end if;
  insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt, kind, payload, key, headers)
  values (v.sub_queue, x_ev_id, v.subscription_id, x_retry_after, x_ev_time, coalesce(x_ev_retry, 0) + 1, x_ev_type, to_jsonb(x_ev_data), x_ev_extra1,
    case when num_nonnulls(x_ev_extra2, x_ev_extra3, x_ev_extra4) > 0
      then jsonb_strip_nulls(jsonb_build_object('extra2', x_ev_extra2, 'extra3', x_ev_extra3, 'extra4', x_ev_extra4)) end);
  perform pgq._look_back(v.sub_queue, x_retry_after);
  return x_ev_id;
end $$;

create or replace function pgq.maint_retry_events() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue record;
  v_count integer := 0;
  v_moved integer;
begin
  for v_queue in
    select q.queue_id, q.name, min(d.due_at) due_at
    from trunq.delayed d join pgq._queue f on f.queue_id = d.queue_id join trunq.queue q on q.queue_id = d.queue_id
    where d.due_at <= trunq.clock() group by q.queue_id order by 3
  loop
    v_moved := trunq.promote(v_queue.name, 10 - v_count);
    -- A number for each, by which the ticker sees that something is new.
    perform nextval(format('pgq.event_%s_id_seq', v_queue.queue_id)::regclass) from generate_series(1, v_moved);
    v_count := v_count + v_moved;
    exit when v_count >= 10;
  end loop;
  return v_count;
end $$;
