-- Queues: a name of PgQ's, which may be any text, stands for a queue of trunq's, whose name it is where that is possible.
--
-- A queue's ids come from pgq.event_N_id_seq, which *is* the log's sequence: without a cache, so that numbers come 1, 2, 3 over all sessions.

create or replace function pgq.create_queue(i_queue_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_name text;
begin
  if i_queue_name is null then
    raise exception 'Invalid NULL value';
  end if;
  if exists (select from pgq._queue f where f.queue_name = i_queue_name) then
    return 0;
  end if;
  v_name := case when i_queue_name ~ '^[a-z][a-z0-9_]{0,47}$' then i_queue_name else 'pgq_' || substr(md5(i_queue_name), 1, 16) end;
  if not trunq.create_queue(v_name, p_retention => '2 hours', p_tick_idle_period => '1 minute', p_default_subscription => false) then
    -- Somebody else may have made it just now; a queue that trunq's own users made is not PgQ's to read and drop.
    if exists (select from pgq._queue f where f.queue_name = i_queue_name) then
      return 0;
    end if;
    perform trunq._fail('TQ004', format('queue "%s" is there already, made by trunq: PgQ''s calls do not know it', v_name),
      format('the owner of trunq gives it PgQ''s names: select pgq.adopt_queue(''%s'')', v_name));
  end if;
  perform pgq._add_queue(v_name, i_queue_name, '2 hours');
  return 1;
end $$;

create or replace function pgq.adopt_queue(p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  if exists (select from pgq._queue f where f.queue_id = v_queue.queue_id) then
    return false;
  end if;
  perform trunq._become_owner();
  perform pgq._add_queue(p_queue, p_queue, v_queue.retention);
  return true;
end $$;
comment on function pgq.adopt_queue is
  'Gives a queue that trunq.create_queue made PgQ''s names, so that PgQ''s producers and consumers meet its own. For the owner of trunq. PgQ has no such function.
Returns: false when it had them.
Raises: TQ001.
Locks: the sequence of its ids, which publishers use.';

create or replace function pgq._add_queue(p_queue text, p_name text, p_period interval) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sequence text;
begin
  perform pgq._lock_names();
  v_sequence := format('pgq.event_%s_id_seq', v_queue.queue_id);
  if v_queue.id_sequence <> v_sequence and to_regclass(v_sequence) is not null then
    perform trunq._fail('TQ009', format('%s gives the ids of another queue: this is a copy of a schema without its rows, whose queues got other numbers', v_sequence),
      'it holds no messages: take it out (trunq db uninstall --force), and install again');
  elsif v_queue.id_sequence <> v_sequence then
    execute format('alter sequence %s cache 1', v_queue.id_sequence::regclass);
    execute format('alter sequence %s set schema pgq', v_queue.id_sequence::regclass);
    execute format('alter sequence pgq.%I rename to %I', (parse_ident(v_queue.id_sequence))[2], format('event_%s_id_seq', v_queue.queue_id));
    update trunq.queue q set id_sequence = v_sequence where q.queue_id = v_queue.queue_id;
    execute format('create sequence pgq.event_%s_tick_seq', v_queue.queue_id);
  end if;  -- else they came with a copy of the schema alone
  insert into pgq._queue (queue_id, queue_name, queue_rotation_period) values (v_queue.queue_id, p_name, p_period);
  perform setval(format('pgq.event_%s_tick_seq', v_queue.queue_id)::regclass, max(t.tick_id)) from trunq.tick t where t.queue_id = v_queue.queue_id;
  -- Its functions name the sequence.
  perform trunq._define_queue(trunq._find_queue(v_queue.queue_id));
  perform pgq._define_queue(v_queue.queue_id);
  perform pgq._define_insert();
  perform pgq.grant_perms(p_name);
end $$;
comment on function pgq._add_queue is 'Gives a queue PgQ''s names: its sequences, the views of its log, and its place in insert_event_raw.';

create or replace function pgq._define_queue(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set check_function_bodies = off as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue_id);
  v_log constant text := v_queue.log_table;
  v_view text;
  v_function record;
begin
  execute format($q$
    create or replace view pgq.event_%1$s as
      select g.id ev_id, g.created_at ev_time, g.txid::text::bigint ev_txid, g.subscription_id ev_owner,
        nullif(g.attempt - 1, 0) ev_retry, g.kind::text ev_type, g.payload #>> '{}' ev_data,
        g.key::text ev_extra1, g.headers ->> 'extra2' ev_extra2, g.headers ->> 'extra3' ev_extra3, g.headers ->> 'extra4' ev_extra4
      from trunq_log.%2$I g
  $q$, p_queue_id, v_log);
  -- What pgq._restore_queues finds in a copy of the schema alone.
  execute format('comment on view pgq.event_%s is %L', p_queue_id, 'Events of queue ' || (select f.queue_name from pgq._queue f where f.queue_id = p_queue_id));
  execute format($q$
    create or replace function pgq._instead_%1$s() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $f$
    begin
      insert into trunq_log.%2$I (id, created_at, subscription_id, attempt, kind, payload, key, headers)
      values (new.ev_id, coalesce(new.ev_time, now()), new.ev_owner, coalesce(new.ev_retry, 0) + 1, new.ev_type, to_jsonb(new.ev_data), new.ev_extra1,
        %3$s);
      if tg_when = 'INSTEAD OF' then
        return new;
      end if;
      -- Into the table of a replica's session (pgq._define_replica), which passes over the log's own trigger.
      perform trunq._ring_bell(%1$s);
      return null;
    end $f$;
    revoke execute on function pgq._instead_%1$s() from public
  $q$, p_queue_id, v_log, pgq._headers('new.'));
  -- Made by an older release, whose specimen had other arguments or columns.
  for v_function in
    select p.oid::regprocedure signature from pg_proc p
    where p.pronamespace = 'pgq'::regnamespace and exists (
        select from pg_proc s where s.pronamespace = p.pronamespace and starts_with(s.proname, '_on__specimen')
          and p.proname = '_on_' || v_queue.name || substr(s.proname, length('_on__specimen') + 1))
      and not exists (
        select from pg_proc s where s.pronamespace = p.pronamespace and starts_with(s.proname, '_on__specimen')
          and p.proname = '_on_' || v_queue.name || substr(s.proname, length('_on__specimen') + 1)
          and pg_get_function_arguments(p.oid) = trunq._for_queue(v_queue, pg_get_function_arguments(s.oid))
          and pg_get_function_result(p.oid) = trunq._for_queue(v_queue, pg_get_function_result(s.oid)))
  loop
    execute format('drop function %s', v_function.signature);
  end loop;
  for v_function in
    select pg_get_functiondef(p.oid) definition, obj_description(p.oid, 'pg_proc') comment, pg_get_function_identity_arguments(p.oid) arguments, p.proname as name
    from pg_proc p where p.pronamespace = 'pgq'::regnamespace and starts_with(p.proname, '_on__specimen')
  loop
    execute trunq._for_queue(v_queue, v_function.definition);
    execute format('revoke execute on function %1$s from public; comment on function %1$s is %2$L',
      trunq._for_queue(v_queue, format('pgq.%I(%s)', v_function.name, v_function.arguments)), v_function.comment);
  end loop;
  for v_n in 0 .. 2 loop
    v_view := format('pgq.event_%s_%s', p_queue_id, v_n);
    execute format('create or replace view %s as select e.* from pgq.event_%s e where (select f.queue_cur_table from pgq._queue f where f.queue_id = %2$s) = %s',
      v_view, p_queue_id, v_n);
    execute format($q$
      alter view %s alter column ev_id set default nextval('pgq.event_%s_id_seq'),
        alter column ev_txid set default case when current_setting('session_replication_role') = 'replica' then pgq._refuse_replica(%1$L)
          else pg_current_xact_id()::text::bigint end
    $q$, v_view, p_queue_id);
    execute format('create or replace trigger instead instead of insert on %s for each row execute function pgq._instead_%s()', v_view, p_queue_id);
  end loop;
  perform pgq._define_replica(p_queue_id);
end $$;
comment on function pgq._define_queue is 'Makes a queue''s functions, like the specimen''s, and the views of its log: event_N and its three parts, into which programs also insert and copy.';

create or replace function pgq._define_replica(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_table constant text := format('pgq.event_%s_replica', p_queue_id);
begin
  if to_regclass(v_table) is not null then
    return;
  end if;
  execute format('create table %s (like pgq.event_template including defaults)', v_table);
  execute format('alter table %s alter ev_id set default nextval(''pgq.event_%s_id_seq''), alter ev_time drop not null', v_table, p_queue_id);
  execute format('create trigger instead before insert on %s for each row execute function pgq._instead_%s()', v_table, p_queue_id);
  execute format('alter table %s enable always trigger instead', v_table);
  execute format('comment on table %s is %L', v_table,
    'Empty: what a session with session_replication_role = replica inserts or copies here goes into the log. Postgres passes over triggers of views there.');
  perform pgq._grant_perms_from('pgq', 'event_template', 'pgq', format('event_%s_replica', p_queue_id));
end $$;
comment on function pgq._define_replica is
  'The table into which the workers of cascaded queues copy (pgq.current_event_table tells them): their sessions are replicas, in which no view takes a row.';

create or replace function pgq._refuse_replica(p_view text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise feature_not_supported using
    message = format('%s takes no events while session_replication_role is replica: Postgres passes over the trigger of a view then, and they would be lost', p_view),
    hint = 'insert or copy into the table that pgq.current_event_table names, or call pgq.insert_event';
end $$;
comment on function pgq._refuse_replica is 'The default of a column of a view of events, in a session whose rows the view would lose.';

create or replace function pgq._restore_queues() returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into pgq._queue (queue_id, queue_name, queue_rotation_period)
  select q.queue_id, n.name, q.retention
  from trunq.queue q
  cross join lateral (select substring(obj_description(to_regclass('pgq.event_' || q.queue_id), 'pg_class') from '^Events of queue (.*)$') as name) n
  where q.id_sequence = format('pgq.event_%s_id_seq', q.queue_id) and n.name is not null
  on conflict do nothing
$$;
comment on function pgq._restore_queues is 'Into a copy of the schema alone: the queues with PgQ''s names, which their views tell.';

create or replace function pgq._headers(p_prefix text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select replace($q$case when num_nonnulls(#ev_extra2, #ev_extra3, #ev_extra4) > 0
    then jsonb_strip_nulls(jsonb_build_object('extra2', #ev_extra2, 'extra3', #ev_extra3, 'extra4', #ev_extra4)) end$q$, '#', p_prefix)
$$;
comment on function pgq._headers is 'The expression for the headers of an event.';

create or replace function pgq.drop_queue(x_queue_name text, x_force boolean) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- What is dropped if it exists says so when it does not.
set client_min_messages = warning as $$
declare
  v_queue_id integer;
begin
  select f.queue_id into v_queue_id from pgq._queue f where f.queue_name = x_queue_name for update;
  if not found then
    raise exception 'No such event queue';
  end if;
  if x_force then
    perform pgq.unregister_consumer(x_queue_name, c.co_name)
    from pgq._subscription s join pgq.consumer c on c.co_id = s.sub_consumer where s.sub_queue = v_queue_id order by s.is_member, c.co_id;
  elsif exists (select from pgq._subscription s where s.sub_queue = v_queue_id) then
    raise exception 'cannot drop queue, consumers still attached';
  elsif exists (select from trunq.subscription s where s.queue_id = v_queue_id) then
    -- PgQ's caller does not know of workers; the queue with all they have to do would go.
    perform trunq._check_unused(trunq._find_queue(v_queue_id));
  end if;
  perform trunq.drop_queue((trunq._find_queue(v_queue_id)).name, true);
  return 1;
end $$;

create or replace function pgq.drop_queue(x_queue_name text) returns integer
language plpgsql strict set search_path = pg_catalog, pg_temp as $$
begin
  return pgq.drop_queue(x_queue_name, false);
end $$;

create or replace function pgq._forget_queue(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_function record;
begin
  if not exists (select from pgq._queue f where f.queue_id = p_queue_id) then
    return;
  end if;
  perform pgq._lock_names();
  for v_n in 0 .. 2 loop
    execute format('drop view pgq.event_%s_%s', p_queue_id, v_n);
  end loop;
  execute format('drop view pgq.event_%1$s; drop table pgq.event_%1$s_replica; drop function pgq._instead_%1$s(); drop sequence pgq.event_%1$s_tick_seq', p_queue_id);
  for v_function in
    select distinct p.oid::regprocedure signature from pg_proc s join pg_proc p on p.pronamespace = s.pronamespace
      and p.proname = '_on_' || (trunq._find_queue(p_queue_id)).name || substr(s.proname, length('_on__specimen') + 1)
    where s.pronamespace = 'pgq'::regnamespace and starts_with(s.proname, '_on__specimen')
  loop
    execute format('drop function %s', v_function.signature);
  end loop;
  delete from pgq._batch b where b.queue_id = p_queue_id;
  delete from pgq._subscription s where s.sub_queue = p_queue_id;
  delete from pgq.consumer c where not exists (select from pgq._subscription s where s.sub_consumer = c.co_id);
  delete from pgq._queue f where f.queue_id = p_queue_id;
  perform pgq._define_insert();
end $$;
comment on function pgq._forget_queue is 'Drops what is PgQ''s of a queue, when trunq drops it.';

create or replace function pgq._lock_names() returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$ select pg_advisory_xact_lock(trunq._lock_class('facade'), 0) $$;
comment on function pgq._lock_names is 'One at a time changes which queues PgQ''s calls know: two would make insert_event_raw anew at once.';

create or replace function pgq.set_queue_config(x_queue_name text, x_param_name text, x_param_value text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if x_queue_name is null or x_param_name is null then
    raise exception 'Invalid NULL value';
  elsif not exists (select from pgq._queue f where f.queue_name = x_queue_name) then
    raise exception 'No such event queue';
  elsif x_param_name not in ('ticker_max_count', 'ticker_max_lag', 'ticker_idle_period', 'ticker_paused', 'rotation_period', 'external_ticker') then
    raise exception 'cannot change parameter "%s"', x_param_name;
  end if;
  -- A value of null makes it null: the error is that of EXECUTE, as in PgQ.
  execute format('update pgq.queue set queue_%s = ', x_param_name) || quote_literal(x_param_value) || format(' where queue_name = %L', x_queue_name);
  return 1;
end $$;

create or replace function pgq._update_queue() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_column text;
begin
  select n.key into v_column from json_each(row_to_json(new)) n join json_each(row_to_json(old)) o on o.key = n.key
  where n.value::text = 'null' and o.value::text <> 'null' and n.key not in ('queue_switch_step2', 'queue_per_tx_limit', 'queue_extra_maint') limit 1;
  if found then
    raise not_null_violation using message = format('null value in column "%s" of relation "queue" violates not-null constraint', v_column),
      schema = 'pgq', table = 'queue', column = v_column;
  end if;
  if (old.queue_id, old.queue_ntables, old.queue_data_pfx, old.queue_event_seq, old.queue_tick_seq)
      is distinct from (new.queue_id, new.queue_ntables, new.queue_data_pfx, new.queue_event_seq, new.queue_tick_seq) then
    raise feature_not_supported using message = 'queue_id, queue_ntables, queue_data_pfx and the names of sequences are fixed: trunq''s log is behind them';
  end if;
  -- In the order of drop_queue.
  perform from pgq._queue f where f.queue_id = old.queue_id for update;
  if not found then
    return null;
  end if;
  update trunq.queue q set tick_max_count = new.queue_ticker_max_count, tick_max_lag = new.queue_ticker_max_lag,
    tick_idle_period = new.queue_ticker_idle_period, tick_external = new.queue_external_ticker, tick_paused = new.queue_ticker_paused,
    -- The ring stays as it was made: of a longer period, it keeps what it can.
    retention = case when new.queue_rotation_period = old.queue_rotation_period then q.retention
      else least(greatest(new.queue_rotation_period, '1 second'), (q.segments - 2) * q.span) end
  where q.queue_id = old.queue_id;
  update pgq._queue f set queue_name = new.queue_name, queue_cur_table = new.queue_cur_table,
    queue_rotation_period = new.queue_rotation_period, queue_switch_step1 = new.queue_switch_step1,
    queue_switch_step2 = new.queue_switch_step2, queue_switch_time = new.queue_switch_time,
    queue_disable_insert = new.queue_disable_insert, queue_per_tx_limit = new.queue_per_tx_limit, queue_extra_maint = new.queue_extra_maint
  where f.queue_id = old.queue_id;
  if (old.queue_name, old.queue_disable_insert, old.queue_per_tx_limit) is distinct from (new.queue_name, new.queue_disable_insert, new.queue_per_tx_limit) then
    perform pgq._lock_names();
    perform pgq._define_insert();
  end if;
  if not new.queue_disable_insert then
    perform pgq._refuse_stale(old.queue_id);
  end if;
  return new;
end $$;
comment on function pgq._update_queue is 'An update of the view pgq.queue: each setting where it is kept.';

create or replace function pgq.grant_perms(x_queue_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer;
begin
  select f.queue_id into v_queue_id from pgq._queue f where f.queue_name = x_queue_name;
  if not found then
    raise exception 'Queue not found';
  end if;
  execute format('grant select on sequence pgq.event_%s_id_seq, pgq.event_%1$s_tick_seq to public; grant usage on sequence pgq.event_%1$s_id_seq to pgq_admin', v_queue_id);
  perform pgq._grant_perms_from('pgq', 'event_template', 'pgq', 'event_' || v_queue_id || n.suffix) from unnest('{"",_0,_1,_2}'::text[]) n(suffix);
  return 1;
end $$;

create or replace function pgq._grant_perms_from(src_schema text, src_table text, dst_schema text, dst_table text) returns integer
language plpgsql strict set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  for v in
    select a.privilege_type, coalesce(quote_ident(r.rolname), 'public') grantee, a.is_grantable
    from pg_class c cross join lateral aclexplode(c.relacl) a left join pg_roles r on r.oid = a.grantee
    where c.oid = to_regclass(format('%I.%I', src_schema, src_table)) and a.grantee <> c.relowner
      and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER')
  loop
    execute format('grant %s on %I.%I to %s %s', v.privilege_type, dst_schema, dst_table, v.grantee, case when v.is_grantable then 'with grant option' end);
  end loop;
  return 1;
end $$;

create or replace function pgq.tune_storage(i_queue_name text) returns integer
language sql strict set search_path = pg_catalog, pg_temp as $$ select count(*)::integer from pgq._queue f where f.queue_name = i_queue_name $$;
comment on function pgq.tune_storage is 'Nothing to tune: segments are made so. Returns: 1, or 0 when there is no such queue.';

create or replace function pgq.upgrade_schema() returns integer
language sql set search_path = pg_catalog, pg_temp as $$ select 0 $$;

create or replace function pgq.version() returns text
language sql set search_path = pg_catalog, pg_temp as $$ select '3.5'::text $$;
