-- What there is to look at: for everybody, as in PgQ.

create or replace function pgq.get_queue_info(
  i_queue_name text, out queue_name text, out queue_ntables integer, out queue_cur_table integer, out queue_rotation_period interval,
  out queue_switch_time timestamptz, out queue_external_ticker boolean, out queue_ticker_paused boolean, out queue_ticker_max_count integer,
  out queue_ticker_max_lag interval, out queue_ticker_idle_period interval, out ticker_lag interval, out ev_per_sec double precision,
  out ev_new bigint, out last_tick_id bigint
) returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query
    select q.queue_name, q.queue_ntables, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time, q.queue_external_ticker, q.queue_ticker_paused,
      q.queue_ticker_max_count, q.queue_ticker_max_lag, q.queue_ticker_idle_period, current_timestamp - t.tick_time,
      case when b.tick_time < t.tick_time then ((t.tick_event_seq - b.tick_event_seq) / extract(epoch from t.tick_time - b.tick_time))::double precision end,
      pgq.seq_getval(q.queue_event_seq) - t.tick_event_seq, t.tick_id
    from pgq.queue q
    left join lateral (select t.* from pgq.tick t where t.tick_queue = q.queue_id order by t.tick_id desc limit 1) t on true
    left join lateral (select b.* from pgq.tick b where b.tick_queue = q.queue_id and b.tick_id >= t.tick_id - 20 order by b.tick_id limit 1) b on true
    where i_queue_name is null or q.queue_name = i_queue_name order by q.queue_name;
end $$;

create or replace function pgq.get_queue_info(
  out queue_name text, out queue_ntables integer, out queue_cur_table integer, out queue_rotation_period interval,
  out queue_switch_time timestamptz, out queue_external_ticker boolean, out queue_ticker_paused boolean, out queue_ticker_max_count integer,
  out queue_ticker_max_lag interval, out queue_ticker_idle_period interval, out ticker_lag interval, out ev_per_sec double precision,
  out ev_new bigint, out last_tick_id bigint
) returns setof record
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select i.* from pgq.get_queue_info(null) i;
end $$;

create or replace function pgq.get_consumer_info(
  i_queue_name text, i_consumer_name text, out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
  out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
) returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query
    select f.queue_name, c.co_name, current_timestamp - t.tick_time,
      -- Within the transaction in which it was seen, the clock is ahead of the transaction's time.
      greatest(current_timestamp - s.sub_active, '0'), s.sub_last_tick, s.sub_batch, s.sub_next_tick,
      (select n.tick_event_seq from pgq.tick n where n.tick_queue = s.sub_queue order by n.tick_id desc limit 1) - t.tick_event_seq
    from pgq.subscription s join pgq._queue f on f.queue_id = s.sub_queue join pgq.consumer c on c.co_id = s.sub_consumer
    left join pgq.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
    where (i_queue_name is null or f.queue_name = i_queue_name) and (i_consumer_name is null or c.co_name = i_consumer_name) order by 1, 2;
end $$;

create or replace function pgq.get_consumer_info(
  i_queue_name text, out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
  out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
) returns setof record
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select i.* from pgq.get_consumer_info(i_queue_name, null) i;
end $$;

create or replace function pgq.get_consumer_info(
  out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
  out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
) returns setof record
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select i.* from pgq.get_consumer_info(null, null) i;
end $$;
