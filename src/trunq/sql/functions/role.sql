-- Who may do what with a queue: publish, work, read, administer. Each is a grant of Postgres on something of that queue, and there is no
-- table of rights: what a role may do ends with the queue, and Postgres itself asks who calls.
--   publisher   INSERT on columns of the log. Its functions run with the caller's rights
--   worker      EXECUTE on the functions of the hot path (lease, answer, extend, set_progress, next_batch, finish_batch), which run with
--               the owner's rights (SECURITY DEFINER) and name their queue's tables; and on the door <queue>_work
--   reader      EXECUTE on the door <queue>_read, or <queue>_read_payload; and SELECT on the view of messages
--   admin       EXECUTE on the door <queue>_administer
-- The owner, and members of that role, may do everything: lead, create, drop, subscribe, grant.
--
-- Functions by the name of a queue (trunq.status, trunq.cancel) run with the rights of their caller, and read tables of all queues. One
-- who has not the owner's rights but may use a door of that queue goes through it: trunq._goes_through says so, in the caller's name,
-- trunq._through writes the call of the door, and behind it the same function runs again as the owner (trunq._call_inside). A function
-- with the owner's rights that asked by itself who its caller is could be deceived: Postgres tells it who began the session, and
-- somebody else's function or index may have called it meanwhile.

create or replace function trunq.grant_role(p_queue text, p_role text, p_grantee text, p_payload boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
begin
  perform trunq._check_role(p_queue, p_role, p_grantee);
  if p_payload and p_role <> 'reader' then
    perform trunq._fail('TQ005', format('p_payload is for a reader, not for the role %s', p_role),
      'a publisher and a worker know their messages; let an admin read payloads as a reader too');
  end if;
  v_role := trunq._become_owner();
  -- Two at once would change the rights of one schema: "tuple concurrently updated".
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  if p_role = 'reader' and p_payload is not true then
    perform trunq._change_role(trunq._find_queue(p_queue), p_role, p_grantee, false, true);
  end if;
  perform trunq._change_role(trunq._find_queue(p_queue), p_role, p_grantee, true, coalesce(p_payload, false));
  perform trunq._go_back(v_role);
end $$;
comment on function trunq.grant_role(text, text, text, boolean) is
  'Lets a database role do with one queue what a publisher, worker, reader or admin does, and no more. publisher: publish, in every way. worker: lease, extend, answer, read batches. reader: see status, lists and history; payloads, headers and results with p_payload alone. admin: see as a reader does, pause, resume, limit, cancel, requeue, purge, set lanes, close and open. For the owner of trunq or a member of that role, who leads, creates, drops and grants.
Raises: TQ001; TQ005 for an unknown role, of a queue or in the database, and for the owner.
Locks: others who grant, to the end of the transaction.';

create or replace function trunq.revoke_role(p_queue text, p_role text, p_grantee text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_role text;
  v_had boolean;
begin
  perform trunq._check_role(p_queue, p_role, p_grantee);
  v_role := trunq._become_owner();
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  v_queue := trunq._find_queue(p_queue);
  v_had := exists (select from trunq._roles(v_queue) r where r.role = p_role and r.grantee = p_grantee);
  perform trunq._change_role(v_queue, p_role, p_grantee, false, true);
  perform trunq._shut_out(p_grantee);
  perform trunq._go_back(v_role);
  return v_had;
end $$;
comment on function trunq.revoke_role(text, text, text) is
  'Takes a role of a queue away from a database role. With its last one it may not use the schemas of trunq any more.
Returns: false when it did not have it, by a grant of its own: what it has as a member of another role stays.
Raises: TQ001, TQ005.
Locks: others who grant, to the end of the transaction.';

create or replace function trunq.list_roles(p_queue text default null)
returns table (queue text, role text, grantee text, payload boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, r.role, r.grantee, r.payload from trunq.queue q cross join trunq._roles(q) r
    where p_queue is null or q.name = p_queue order by q.name, r.role, r.grantee;
end $$;
comment on function trunq.list_roles(text) is
  'Who has which role of which queue, as granted. payload: whether a reader sees payloads (null for the others). Members of a grantee have the role too.
Raises: TQ001.';

create or replace function trunq._check_role(p_queue text, p_role text, p_grantee text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._find_queue(p_queue);
  if p_role is null or p_role <> all (trunq._words('role')) then
    perform trunq._fail('TQ005', format('a queue has no role "%s"', coalesce(p_role, '')), trunq._either(trunq._words('role')));
  elsif not exists (select from pg_roles r where r.rolname = p_grantee) then
    perform trunq._fail('TQ005', format('there is no database role "%s"', coalesce(p_grantee, '')),
      'create it first (create role); a group takes the place of PUBLIC');
  elsif p_grantee = (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'trunq') then
    perform trunq._fail('TQ005', format('"%s" owns trunq, and may do everything with queue "%s"', p_grantee, p_queue),
      'name another role, which is not the owner');
  end if;
end $$;
comment on function trunq._check_role(text, text, text) is 'Refuses (TQ001, TQ005) what cannot be granted.';

create or replace function trunq._go_back(p_role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Behind a door nobody may set a role, and nobody did.
  if current_setting('role') is distinct from p_role then
    perform set_config('role', p_role, true);
  end if;
end $$;
comment on function trunq._go_back(text) is 'Ends what trunq._become_owner began.';

create or replace function trunq._change_role(p_queue trunq.queue, p_role text, p_grantee text, p_grant boolean, p_payload boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_verb constant text := case when p_grant then 'grant' else 'revoke' end;
  v_to constant text := format('%s %I', case when p_grant then 'to' else 'from' end, p_grantee);
  v_view constant text := p_queue.name || '_messages';
  v_function regprocedure;
begin
  if p_grant then
    execute format('grant usage on schema trunq, trunq_queue %s', v_to);
    execute format('grant select on trunq.queue, trunq.subscription %s', v_to);
  end if;
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace and p.proname = any (trunq._role_functions(p_queue.name, p_role, p_payload))
      and p.prosecdef  -- not q_is_read of a queue q, when this is q_is
  loop
    execute format('%s execute on function %s %s', v_verb, v_function, v_to);
  end loop;
  if p_role = 'publisher' then
    if p_grant then
      execute format('grant usage on schema trunq_log, trunq_data %s', v_to);
      -- The server of webhooks is a publisher.
      execute format('grant select on trunq.webhook %s', v_to);
    end if;
    -- Payload columns only: a forged txid would never be delivered.
    execute format('%s insert (priority, key, kind, payload, body, headers, options, due_at%s), select (id) on trunq_log.%I %s',
      v_verb, case when p_queue.unique_policy is not null then ', unique_key' end, p_queue.log_table, v_to);
    execute format('%s usage on sequence %s %s', v_verb, p_queue.id_sequence::regclass, v_to);
  elsif p_role = 'reader' and p_payload then
    execute format('%s select on trunq_queue.%I %s', v_verb, v_view, v_to);
    -- The log, which batches are copied from (trunq._batch_query). Its table was granted whole: nobody keeps a column that it took back.
    if p_grant then
      execute format('grant usage on schema trunq_log %s', v_to);
    end if;
    execute format('%s select on trunq_log.%I %s', v_verb, p_queue.log_table, v_to);
    if not p_grant and exists (select from trunq._roles(p_queue) r where r.role = 'publisher' and r.grantee = p_grantee) then
      execute format('grant select (id) on trunq_log.%I %s', p_queue.log_table, format('to %I', p_grantee));
    end if;
  elsif p_role = 'reader' then
    execute format('%s select (%s) on trunq_queue.%I %s', v_verb, (
      select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute a
      where a.attrelid = format('trunq_queue.%I', v_view)::regclass and a.attnum > 0 and a.attname <> all (trunq._secret_columns())), v_view, v_to);
  end if;
end $$;
comment on function trunq._change_role(trunq.queue, text, text, boolean, boolean) is
  'Grants or revokes what a role of a queue consists of; for a reader: with payloads, or, when it revokes, all of them. The caller holds the lock of rights.';

create or replace function trunq._role_functions(p_queue text, p_role text, p_payload boolean) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array(
    select p_queue || '_' || v from unnest(case p_role
      when 'publisher' then '{publish_unique,unique_many}'::text[]
      when 'worker' then '{lease,answer,extend,set_progress,next_batch,finish_batch,work}'
      when 'reader' then case when p_payload then '{read,read_payload}'::text[] else '{read}' end
      when 'admin' then '{administer}' end) v)
$$;
comment on function trunq._role_functions(text, text, boolean) is 'The functions of a queue that a role of it may execute, besides those that run with the caller''s rights.';

create or replace function trunq._secret_columns() returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$ select '{payload,body,headers,result}'::text[] $$;
comment on function trunq._secret_columns() is 'What of a message a reader sees only where its role says so.';

create or replace function trunq._roles(p_queue trunq.queue) returns table (role text, grantee text, payload boolean)
language sql stable set search_path = pg_catalog, pg_temp as $$
  with granted as (
    select substr(p.proname, length(p_queue.name) + 2) object, a.grantee
    from pg_proc p cross join lateral aclexplode(p.proacl) a
    where p.pronamespace = 'trunq_queue'::regnamespace and a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner
      and p.prosecdef and p.proname in (p_queue.name || '_work', p_queue.name || '_read', p_queue.name || '_read_payload', p_queue.name || '_administer')
    union
    select 'publish', a.grantee
    from pg_class c join pg_attribute t on t.attrelid = c.oid and t.attname = 'payload' cross join lateral aclexplode(t.attacl) a
    where c.relnamespace = 'trunq_log'::regnamespace and c.relname = p_queue.log_table and a.privilege_type = 'INSERT' and a.grantee <> c.relowner)
  select case g.object when 'publish' then 'publisher' when 'work' then 'worker' when 'administer' then 'admin' else 'reader' end,
    r.rolname, case when g.object = 'read' then exists (
      select from granted p where p.object = 'read_payload' and p.grantee = g.grantee) end
  from granted g join pg_roles r on r.oid = g.grantee where g.object <> 'read_payload'
$$;
comment on function trunq._roles(trunq.queue) is 'Who has which role of a queue, as the catalog says.';

create or replace function trunq._keep_roles(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role record;
begin
  for v_role in select r.* from trunq._roles(p_queue) r loop
    perform trunq._change_role(p_queue, v_role.role, v_role.grantee, true, coalesce(v_role.payload, false));
  end loop;
end $$;
comment on function trunq._keep_roles(trunq.queue) is 'Grants the roles of a queue again, so that they reach what an upgrade made.';

create or replace function trunq._end_roles(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role record;
begin
  if not exists (select from trunq._roles(p_queue)) then
    return;
  end if;
  -- Not in the order of functions/lock.sql, as it comes behind the lock of the queue: whoever drops gives all back after 200 ms.
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  for v_role in select r.* from trunq._roles(p_queue) r loop
    perform trunq._change_role(p_queue, v_role.role, v_role.grantee, false, true);
    perform trunq._shut_out(v_role.grantee);
  end loop;
end $$;
comment on function trunq._end_roles(trunq.queue) is 'Revokes all roles of a queue that is being dropped.';

create or replace function trunq._shut_out(p_grantee text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_roles constant text[] := array(select distinct r.role from trunq.queue q cross join trunq._roles(q) r where r.grantee = p_grantee);
begin
  if 'publisher' <> all (v_roles) then
    execute format('revoke select on trunq.webhook from %I', p_grantee);
  end if;
  if v_roles = '{}' then
    execute format('revoke select on trunq.queue, trunq.subscription from %I', p_grantee);
    execute format('revoke usage on schema trunq, trunq_queue, trunq_log, trunq_data from %I', p_grantee);
  end if;
end $$;
comment on function trunq._shut_out(text) is 'Takes from a database role what it has by any role of a queue, or by any publisher''s, when it has none any more.';

-- The doors.

create or replace function trunq._doors(p_function text) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case
    when p_function in ('status', 'list_subscriptions', 'position', 'list_streams', 'show_batch', 'list_groups', 'list_members', 'list_losses', 'list_movers') then '{read_payload,read,administer,work}'::text[]
    when p_function in ('list_messages', 'show_message', 'list_dead', 'count_dead', 'list_lanes', 'fleet', 'statistics', 'list_ticks',
      'list_progress', 'find_reference', 'show_public')
      then '{read_payload,read,administer}'
    when p_function = 'list_replies' then '{read_payload}'
    when p_function in ('pause_queue', 'resume_queue', 'pause_subscription', 'resume_subscription', 'subscribe', 'set_publishing', 'close_queue',
      'open_queue', 'cancel', 'delete', 'list_deletions', 'requeue', 'purge', 'set_lanes', 'set_lane', 'pause_lane', 'resume_lane', 'accept_loss', 'pause_ticks', 'resume_ticks') then '{administer}'
    when p_function in ('seek', 'copy_position', 'stop_mover', 'leave_group') then '{work,administer}'
    when p_function in ('read_batch', 'advance', 'fail_batch', 'retry_batch', 'join_group', 'list_fates', 'retry_after', 'reclaim', '_batch_query', '_has_delayed', '_count_unhandled', '_attend_queue', '_leave_queue',
      'show_checkpoint', 'start_mover', 'begin_move', 'finish_move', 'fail_move', 'end_mover', '_mover_stops') then '{work}'
    when p_function in ('_set_memo', '_get_memo', '_delete_memo', '_list_memos') then '{work,administer}'
    else '{}' end
$$;
comment on function trunq._doors(text) is 'The doors of a queue that lead to a function of trunq, that which shows most first.';

create or replace function trunq._owns() returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (select pg_has_role(current_user, n.nspowner, 'usage') from pg_namespace n where n.nspname = 'trunq');
end $$;
comment on function trunq._owns() is 'Whether the caller has the rights of the owner of trunq.';

create or replace function trunq._door(p_queue text, p_function text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_door text;
begin
  -- Of the caller: this runs with its rights.
  if trunq._owns() then
    return null;
  end if;
  foreach v_door in array trunq._doors(p_function) loop
    if exists (
        select from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace and p.proname = concat(p_queue, '_', v_door)
          and p.prosecdef and has_function_privilege(current_user, p.oid, 'execute')) then
      return v_door;
    end if;
  end loop;
  return null;
end $$;
comment on function trunq._door(text, text) is 'The door through which the caller reaches a function for a queue; null: with its own rights.';

create or replace function trunq._goes_through(p_queue text, p_function text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return trunq._door(p_queue, p_function) is not null;
end $$;
comment on function trunq._goes_through(text, text) is 'Whether the caller reaches a function for a queue through a door.';

create or replace function trunq._open_to(p_function text) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q.name from trunq.queue q where trunq._door(q.name, p_function) is not null order by q.name
$$;
comment on function trunq._open_to(text) is 'The queues for which the caller reaches a function through a door.';

create or replace function trunq._through(p_queue text, p_function text, variadic p_arguments text[] default '{}') returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return format('select * from trunq_queue.%I(%L, %L) as t(%s)', concat(p_queue, '_', trunq._door(p_queue, p_function)), p_function, p_arguments::text,
    (select coalesce(nullif(string_agg(format('%I %s', c.name, c.type), ', ' order by c.place), ''), 'value text') from trunq._returned(p_function) c));
end $$;
comment on function trunq._through(text, text, text[]) is 'The call of a function for a queue, through the door that the caller may use; the arguments: name, value, name, value.';

create or replace function trunq._pass(p_queue text, p_function text, variadic p_arguments text[] default '{}') returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_value text;
begin
  execute trunq._through(p_queue, p_function, variadic p_arguments) into v_value;
  return v_value;
end $$;
comment on function trunq._pass(text, text, text[]) is 'As _through, of a function that returns one value: what it returns.';

create or replace function trunq._returned(p_function text) returns table (place bigint, name text, type text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select a.place, a.name, format_type(a.type, null)
  from pg_proc p cross join lateral unnest(p.proargmodes, p.proargnames, p.proallargtypes) with ordinality a(mode, name, type, place)
  where p.pronamespace = 'trunq'::regnamespace and p.proname = p_function and a.mode = 't'
$$;
comment on function trunq._returned(text) is 'The columns of a function of trunq that returns a table.';

create or replace function trunq._call_inside(p_queue text, p_door text, p_function text, p_arguments text[]) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_columns text;
  v_call text;
begin
  if (p_door = any (trunq._doors(p_function))) is not true then
    perform trunq._fail('42501', format('the role does not reach "%s" for queue "%s"', coalesce(p_function, ''), p_queue),
      'trunq.grant_role grants roles; select * from trunq.list_roles() shows who has which');
  end if;
  select string_agg(case when r.name = any (trunq._secret_columns()) and p_door in ('read', 'administer') then format('null::%s', r.type) else quote_ident(r.name) end,
    ', ' order by r.place) into v_columns from trunq._returned(p_function) r;
  v_call := format('trunq.%I(p_queue => %L%s)', p_function, p_queue, (
    select string_agg(format(', %I => %L', p_arguments[n], p_arguments[n + 1]), '' order by n) from generate_series(1, cardinality(p_arguments), 2) n));
  if v_columns is null then
    return format('select %s from %s value', case when exists (
      select from pg_proc p where p.pronamespace = 'trunq'::regnamespace and p.proname = p_function and p.prorettype = 'void'::regtype)
      then 'null::text' else 'value::text' end, v_call);
  end if;
  return format('select %s from %s', v_columns, v_call);
end $$;
comment on function trunq._call_inside(text, text, text, text[]) is 'The call of a function behind a door of a queue, which runs it with the owner''s rights; 42501 when the door does not lead there.';
