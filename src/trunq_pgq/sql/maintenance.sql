-- Maintenance, as PgQ's daemon asks for it. Rotation moves PgQ's numbers by PgQ's rules; space comes back by trunq.rotate, whose rules keep
-- at least as much.

create or replace function pgq.maint_rotate_tables_step1(i_queue_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue pgq._queue;
  v_slowest bigint;
  v_snapshot pg_snapshot;
begin
  select f.* into v_queue from pgq._queue f
  where f.queue_name = i_queue_name and f.queue_switch_step2 is not null and f.queue_switch_time + f.queue_rotation_period < current_timestamp
  for update;
  if not found then
    return 0;
  end if;
  select min(s.sub_last_tick) into v_slowest from pgq.subscription s where s.sub_queue = v_queue.queue_id;
  if v_slowest is not null then
    select t.snapshot into v_snapshot from trunq.tick t where t.queue_id = v_queue.queue_id and t.tick_id = v_slowest;
    if not found then
      raise exception 'queue % maint failure: tick % not found', i_queue_name, v_slowest;
    elsif pg_snapshot_xmin(v_snapshot)::text::bigint <= v_queue.queue_switch_step2 then
      return 0;
    end if;
  end if;
  update pgq._queue f set queue_cur_table = (f.queue_cur_table + 1) % f.queue_ntables, queue_switch_time = current_timestamp,
    queue_switch_step1 = pg_current_xact_id()::text::bigint, queue_switch_step2 = null
  where f.queue_id = v_queue.queue_id;
  -- Numbers of batches that native readers finished, or that ended with their subscription.
  delete from pgq._batch b where b.queue_id = v_queue.queue_id
    and not exists (select from pgq._open(b.queue_id, b.subscription_id) o where o.batch_id = b.batch_id);
  perform trunq.rotate((trunq._find_queue(v_queue.queue_id)).name);
  return 0;
end $$;

create or replace function pgq.maint_rotate_tables_step2() returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update pgq._queue f set queue_switch_step2 = pg_current_xact_id()::text::bigint where f.queue_switch_step2 is null;
  return 0;
end $$;

create or replace function pgq.maint_tables_to_vacuum() returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('autovacuum') <> 'on' then
    return query
      select t.name from unnest('{pgq._subscription,pgq.consumer,pgq._queue,trunq.tick,trunq.delayed,pgq._batch,trunq.mark,pgq_ext.completed_tick,pgq_ext.completed_batch,pgq_ext.completed_event,pgq_ext.partial_batch,pgq_node.local_state}'::text[])
        with ordinality t(name, at) where to_regclass(t.name) is not null order by t.at;
  end if;
end $$;

create or replace function pgq.maint_operations(out func_name text, out func_arg text) returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_is_rotated boolean := false;
begin
  func_name := 'pgq.maint_rotate_tables_step1';
  for func_arg in
    select f.queue_name from pgq._queue f
    where f.queue_switch_step2 is not null and f.queue_switch_time + f.queue_rotation_period < current_timestamp order by 1
  loop
    v_is_rotated := true;
    return next;
  end loop;
  if v_is_rotated or exists (select from pgq._queue f where f.queue_switch_step2 is null) then
    func_name := 'pgq.maint_rotate_tables_step2'; func_arg := null;
    return next;
  end if;
  return query select o.name, f.queue_name from pgq._queue f cross join unnest(f.queue_extra_maint) with ordinality o(name, at) order by f.queue_name, o.at;
  return query select 'vacuum', t from pgq.maint_tables_to_vacuum() t;
  if to_regprocedure('pgq_node.maint_watermark(text)') is not null then
    return query execute 'select ''pgq_node.maint_watermark''::text, n.queue_name from pgq_node.node_info n where n.node_type = ''root''';
  end if;
end $$;

create or replace function pgq.quote_fqname(i_name text) returns text
language plpgsql strict immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_dot constant integer := strpos(i_name, '.');
begin
  return case when v_dot > 0 then format('%I.%I', substr(i_name, 1, v_dot - 1), substr(i_name, v_dot + 1)) else format('public.%I', i_name) end;
end $$;

create or replace function pgq.seq_getval(i_seq_name text) returns bigint
language plpgsql strict set search_path = pg_catalog, pg_temp as $$
declare
  v_value bigint;
begin
  execute 'select last_value from ' || pgq.quote_fqname(i_seq_name) into v_value;
  return v_value;
end $$;

create or replace function pgq.seq_setval(i_seq_name text, i_new_value bigint) returns bigint
language plpgsql strict set search_path = pg_catalog, pg_temp as $$
declare
  v_value bigint := pgq.seq_getval(i_seq_name);
begin
  if v_value < i_new_value then
    return setval(pgq.quote_fqname(i_seq_name)::regclass, i_new_value);
  end if;
  return v_value;
end $$;
