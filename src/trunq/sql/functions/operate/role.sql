-- Who may do what with a queue: publish, work, read, administer. Each is a grant of Postgres on something of that queue, and there is no
-- table of rights: what a role may do ends with the queue, and Postgres itself asks who calls.
--   publisher   INSERT on columns of the log. Its functions run with the caller's rights
--   worker      EXECUTE on the functions of the hot path (lease, answer, extend, set_progress, next_batch, finish_batch), which run with
--               the owner's rights (SECURITY DEFINER) and name their queue's tables; and on the door <queue>_work
--   reader      EXECUTE on the door <queue>_read, or <queue>_read_payload; and SELECT on the view of messages
--   admin       EXECUTE on the door <queue>_administer
-- The owner, and members of that role, may do everything: lead, create, drop, subscribe, grant.
--
-- Functions by the name of a queue (trunq.status, trunq.cancel) go through doors: functions/operate/door.sql.

create or replace function trunq.grant_role(p_queue text, p_role text, p_grantee text, p_payload boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
begin
  perform trunq._audit('grant_role', p_queue, jsonb_build_object('role', p_role, 'grantee', p_grantee, 'payload', p_payload));
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
  perform trunq._restore_role(v_role);
end $$;
comment on function trunq.grant_role is
  'Lets a database role do with one queue what a publisher, worker, reader or admin does, and no more. publisher: publish, in every way, and resume what is parked, by its token. worker: lease, extend, answer, read batches. reader: see status, lists and history; payloads, headers and results with p_payload alone. admin: see as a reader does, pause, resume, limit, cancel, requeue, purge, set lanes, close and open. For the owner of trunq or a member of that role, who leads, creates, drops and grants.
Raises: TQ001; TQ005 for an unknown role, of a queue or in the database, and for the owner.
Locks: others who grant, to the end of the transaction.';

create or replace function trunq.revoke_role(p_queue text, p_role text, p_grantee text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_role text;
  v_had boolean;
begin
  perform trunq._audit('revoke_role', p_queue, jsonb_build_object('role', p_role, 'grantee', p_grantee));
  perform trunq._check_role(p_queue, p_role, p_grantee);
  v_role := trunq._become_owner();
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  v_queue := trunq._find_queue(p_queue);
  v_had := exists (select from trunq._roles(v_queue) r where r.role = p_role and r.grantee = p_grantee);
  perform trunq._change_role(v_queue, p_role, p_grantee, false, true);
  perform trunq._revoke_schemas(p_grantee);
  perform trunq._restore_role(v_role);
  return v_had;
end $$;
comment on function trunq.revoke_role is
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
comment on function trunq.list_roles is
  'Who has which role of which queue, as granted. payload: whether a reader sees payloads (null for the others). Members of a grantee have the role too.
Raises: TQ001.';

create or replace function trunq._check_role(p_queue text, p_role text, p_grantee text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._find_queue(p_queue);
  if p_role is null or p_role <> all (trunq._words('role')) then
    perform trunq._fail('TQ005', format('a queue has no role "%s"', coalesce(p_role, '')), trunq._list_choices(trunq._words('role')));
  elsif not exists (select from pg_roles r where r.rolname = p_grantee) then
    perform trunq._fail('TQ005', format('there is no database role "%s"', coalesce(p_grantee, '')),
      'create it first (create role); a group takes the place of PUBLIC');
  elsif p_grantee = (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'trunq') then
    perform trunq._fail('TQ005', format('"%s" owns trunq, and may do everything with queue "%s"', p_grantee, p_queue),
      'name another role, which is not the owner');
  end if;
end $$;
comment on function trunq._check_role is 'Refuses (TQ001, TQ005) what cannot be granted.';

create or replace function trunq._restore_role(p_role text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Behind a door nobody may set a role, and nobody did.
  if current_setting('role') is distinct from p_role then
    perform set_config('role', p_role, true);
  end if;
end $$;
comment on function trunq._restore_role is 'Ends what trunq._become_owner began.';

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
    -- Of trunq.sample a policy shows each the rows of its queues.
    execute format('grant select on trunq.queue, trunq.subscription, trunq.sample %s', v_to);
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
    execute format('%s insert (priority, kind, key, payload, body, headers, options, due_at%s%s), select (id) on trunq_log.%I %s',
      v_verb, case when p_queue.unique_policy is not null then ', unique_key' end, (
        select string_agg(format(', %I', o.name), '' order by o.place) from trunq._own_columns(p_queue) o where o.is_given), p_queue.log_table, v_to);
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
      where a.attrelid = format('trunq_queue.%I', v_view)::regclass and a.attnum > 0 and a.attname <> all (trunq._secret_columns())
        and a.attname not in (select o.name from trunq._own_columns(p_queue) o)), v_view, v_to);
  end if;
end $$;
comment on function trunq._change_role is
  'Grants or revokes what a role of a queue consists of; for a reader: with payloads, or, when it revokes, all of them. The caller holds the lock of rights.';

create or replace function trunq._role_functions(p_queue text, p_role text, p_payload boolean) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array(
    select p_queue || '_' || v from unnest(case p_role
      when 'publisher' then '{publish_unique,unique_many,public_ids,resume}'::text[]
      when 'worker' then '{lease,lease_ids,answer,extend,set_progress,next_batch,finish_batch,resume,work}'
      when 'reader' then case when p_payload then '{read,read_payload}'::text[] else '{read}' end
      when 'admin' then '{administer,resume}' end) v)
$$;
comment on function trunq._role_functions is 'The functions of a queue that a role of it may execute, besides those that run with the caller''s rights.';

create or replace function trunq._secret_columns() returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$ select '{payload,body,headers,result}'::text[] $$;
comment on function trunq._secret_columns is 'What of a message a reader sees only where its role says so.';

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
comment on function trunq._roles is 'Who has which role of a queue, as the catalog says.';

create or replace function trunq._keep_roles(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role record;
begin
  for v_role in select r.* from trunq._roles(p_queue) r loop
    perform trunq._change_role(p_queue, v_role.role, v_role.grantee, true, coalesce(v_role.payload, false));
  end loop;
end $$;
comment on function trunq._keep_roles is 'Grants the roles of a queue again, so that they reach what an upgrade made.';

create or replace function trunq._end_roles(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role record;
begin
  if not exists (select from trunq._roles(p_queue)) then
    return;
  end if;
  -- Not in the order of lock.sql, as it comes behind the lock of the queue: whoever drops gives all back after 200 ms.
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  for v_role in select r.* from trunq._roles(p_queue) r loop
    perform trunq._change_role(p_queue, v_role.role, v_role.grantee, false, true);
    perform trunq._revoke_schemas(v_role.grantee);
  end loop;
end $$;
comment on function trunq._end_roles is 'Revokes all roles of a queue that is being dropped.';

create or replace function trunq._revoke_schemas(p_grantee text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_roles constant text[] := array(select distinct r.role from trunq.queue q cross join trunq._roles(q) r where r.grantee = p_grantee);
begin
  if 'publisher' <> all (v_roles) then
    execute format('revoke select on trunq.webhook from %I', p_grantee);
  end if;
  if v_roles = '{}' then
    execute format('revoke select on trunq.queue, trunq.subscription, trunq.sample from %I', p_grantee);
    execute format('revoke usage on schema trunq, trunq_queue, trunq_log, trunq_data from %I', p_grantee);
  end if;
end $$;
comment on function trunq._revoke_schemas is 'Takes from a database role what it has by any role of a queue, or by any publisher''s, when it has none any more.';
