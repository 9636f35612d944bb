-- Ticks, cut by PgQ's ticker by its own rules. They are trunq's ticks: its leader cuts them too, and native readers stand at them.

create or replace function pgq.ticker(i_queue_name text, i_tick_id bigint, i_orig_timestamp timestamptz, i_event_seq bigint) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer;
begin
  select q.queue_id into v_queue_id from pgq.queue q
  where q.queue_name = i_queue_name and q.queue_external_ticker and not q.queue_ticker_paused;
  if not found then
    raise exception 'queue not found or ticker disabled: %', i_queue_name;
  end if;
  perform trunq._require_read_committed('cut_tick');
  perform pgq._refuse_stale(v_queue_id);
  perform trunq._check_cluster();
  perform trunq._wait_for_disk();
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), v_queue_id);
  if num_nulls(i_tick_id, i_orig_timestamp, i_event_seq) > 0 then
    raise not_null_violation using message = format('null value in column "%s" of relation "tick" violates not-null constraint',
      case when i_tick_id is null then 'tick_id' when i_orig_timestamp is null then 'tick_time' else 'tick_event_seq' end);
  end if;
  -- As it is given, whatever trunq.cut_tick would refuse: PgQ takes ids and numbers of events in any order.
  insert into trunq.tick (queue_id, tick_id, snapshot, last_message_id, created_at)
  values (v_queue_id, i_tick_id, trunq.snapshot(), i_event_seq, i_orig_timestamp);
  perform pgq.seq_setval(format('pgq.event_%s_id_seq', v_queue_id), i_event_seq);
  -- In the session of a cascaded worker, a replica, no trigger (_follow_tick) does it.
  perform pgq.seq_setval(format('pgq.event_%s_tick_seq', v_queue_id), i_tick_id);
  return i_tick_id;
end $$;

create or replace function pgq.ticker(i_queue_name text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue record;
  v_last record;
  v_before timestamptz;
  v_sequence regclass;
  v_id bigint;
  v_seq bigint;
  v_new bigint;
  v_lag interval;
begin
  select q.* into v_queue from pgq.queue q where q.queue_name = i_queue_name;
  if not found then
    raise exception 'no such queue';
  elsif v_queue.queue_external_ticker then
    raise exception 'This queue has external tick source.';
  elsif v_queue.queue_ticker_paused then
    raise exception 'Ticker has been paused for this queue';
  end if;
  perform trunq._require_read_committed('tick');
  perform trunq._check_cluster();
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), v_queue.queue_id);
  v_sequence := v_queue.queue_event_seq;
  v_id := coalesce(pg_sequence_last_value(v_sequence), 0);
  v_seq := greatest(v_id, 1);
  select t.tick_id, t.created_at, v_seq - greatest(t.last_message_id, 1) new_events, greatest(t.last_message_id, 1) seq into v_last
  from trunq.tick t where t.queue_id = v_queue.queue_id order by t.tick_id desc limit 1;
  if found then
    v_new := v_last.new_events;
    v_lag := trunq.clock() - v_last.created_at;
    if v_new < 0 then
      raise warning 'Negative new_events?  old=% cur=%', v_last.seq, v_seq;
    end if;
    if v_new > 0 then
      if v_new < v_queue.queue_ticker_max_count and v_lag < v_queue.queue_ticker_max_lag then
        return null;
      end if;
    else
      select t.created_at into v_before from trunq.tick t
      where t.queue_id = v_queue.queue_id and t.tick_id < v_last.tick_id order by t.tick_id desc limit 1;
      if found and (v_lag < v_queue.queue_ticker_max_lag / 2
          or v_lag < (v_last.created_at - v_before) * 2 and v_lag < v_queue.queue_ticker_idle_period) then
        return null;
      end if;
    end if;
  end if;
  return (trunq._cut_tick(trunq._find_queue(v_queue.queue_id), greatest(nextval(v_queue.queue_tick_seq::regclass), v_last.tick_id + 1),
    trunq.clock(), v_id)).tick_id;
end $$;

create or replace function pgq._follow_tick() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_sequence regclass;
begin
  if exists (select from pgq._queue f where f.queue_id = new.queue_id) then
    v_sequence := format('pgq.event_%s_tick_seq', new.queue_id);
    if coalesce(pg_sequence_last_value(v_sequence), 0) < new.tick_id then
      perform setval(v_sequence, new.tick_id);
    end if;
  end if;
  return null;
end $$;
comment on function pgq._follow_tick is 'Moves the sequence of a queue''s ticks, which programs look at, to each that is cut.';

create or replace function pgq.ticker() returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_name text;
  v_count bigint := 0;
begin
  for v_name in select q.queue_name from pgq.queue q where not q.queue_external_ticker and not q.queue_ticker_paused order by 1 loop
    if pgq.ticker(v_name) > 0 then
      v_count := v_count + 1;
    end if;
  end loop;
  return v_count;
end $$;

create or replace function pgq.force_tick(i_queue_name text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  -- It cuts none: the next look of the ticker finds enough new events.
  perform setval(q.queue_event_seq::regclass, nextval(q.queue_event_seq::regclass) + q.queue_ticker_max_count * 2 + 1000)
  from pgq.queue q where q.queue_name = i_queue_name and not q.queue_external_ticker and not q.queue_ticker_paused;
  return (select max(t.tick_id) from trunq.tick t join pgq._queue f on f.queue_id = t.queue_id where f.queue_name = i_queue_name);
end $$;

create or replace function pgq.find_tick_helper(
  i_queue_id integer, i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_prev_tick_seq bigint, i_min_count bigint, i_min_interval interval,
  out next_tick_id bigint, out next_tick_time timestamptz, out next_tick_seq bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_newest record;
  v_count bigint;
  v_time interval;
  v_is_enough boolean;
begin
  select t.tick_id, t.created_at, greatest(t.last_message_id, 1) seq into v_newest from trunq.tick t
  where t.queue_id = i_queue_id and t.tick_id > i_prev_tick_id order by t.tick_id desc limit 1;
  if not found then
    return;
  end if;
  v_count := v_newest.seq - i_prev_tick_seq;
  v_time := v_newest.created_at - i_prev_tick_time;
  if (v_count > i_min_count * 2 or v_time > i_min_interval * 2) is true then
    -- Far behind: the first that is enough, not the newest.
    select t.tick_id, t.created_at, greatest(t.last_message_id, 1) into next_tick_id, next_tick_time, next_tick_seq from trunq.tick t
    where t.queue_id = i_queue_id and t.tick_id > i_prev_tick_id
      and (greatest(t.last_message_id, 1) - i_prev_tick_seq >= i_min_count or t.created_at - i_prev_tick_time >= i_min_interval)
    order by t.tick_id limit 1;
    return;
  end if;
  v_is_enough := v_count >= i_min_count or v_time >= i_min_interval;
  if v_is_enough then
    next_tick_id := v_newest.tick_id; next_tick_time := v_newest.created_at; next_tick_seq := v_newest.seq;
  end if;
end $$;
