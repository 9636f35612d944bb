-- What install and upgrade (install.py) do in the database, besides running the files of migrations, functions and queue.
--
-- All that trunq makes belongs to the owner of the schema trunq, whichever member of that role makes it: so the owner can use, drop and
-- upgrade it. A member that does not inherit the owner's rights (NOINHERIT) may call nothing in the schema: it sets the role first, or
-- is granted usage; an install sets the role for it. CREATE OR REPLACE keeps the owner and the grants of a function, but takes back its SECURITY DEFINER and settings such as
-- search_path: an upgrade notes what was changed about them by hand, and changes it again. What is compared is text that Postgres
-- writes: so whatever reads a definition, a signature or an expression turns quote_all_identifiers off.
--
-- Publishers feel nothing of an upgrade: replacing a function locks no table, and a trigger that is right is left alone.

create or replace function trunq._become_owner() returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_owner text := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'trunq');
  v_before text := current_setting('role');
begin
  if current_user = v_owner then
    return v_before;
  end if;
  begin
    -- SET ROLE asks what the user of the session may do, and not the role it has taken.
    if pg_has_role(current_user, v_owner, 'member') then
      perform set_config('role', v_owner, true);
      return v_before;
    end if;
  exception when insufficient_privilege then
    null;  -- in a security definer function, or a member without the right to SET ROLE
  end;
  perform trunq._fail('42501', format('"%s" cannot act as "%s", the owner of trunq', current_user, v_owner),
    format('do this as "%s", or as a member of that role', v_owner));
end $$;
comment on function trunq._become_owner() is
  'Goes on as the owner of trunq, to the end of the transaction; for those who may use the schema trunq and are members of that role.
Returns: what to set the setting role to, to go back.';

create or replace function trunq._refresh_queues() returns integer
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_queue trunq.queue;
  v_logs text;
  v_count integer := 0;
begin
  -- Roles are granted again.
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  -- A queue that is being created is waited for: it must not be left with functions of before.
  perform pg_advisory_xact_lock(trunq._lock_class('queues'), 0);
  insert into trunq.cluster (system_identifier)
  select s.system_identifier from pg_control_system() s
  on conflict do nothing;
  -- All logs to be changed are locked at once or not at all: who never waits deadlocks with no publisher.
  select string_agg(format('trunq_log.%I', q.log_table), ', ') into v_logs from trunq.queue q where not (trunq._has_trigger(q, 'wake') and trunq._has_trigger(q, 'put_off'));
  if v_logs is not null then
    execute format('lock table %s in share row exclusive mode nowait', v_logs);
  end if;
  for v_queue in select q.* from trunq.queue q order by q.queue_id loop
    perform trunq._define_queue(v_queue);
    v_count := v_count + 1;
  end loop;
  perform trunq._define_capture(c) from trunq.capture c order by c.capture_id;
  return v_count;
end $$;
comment on function trunq._refresh_queues() is
  'Makes every queue''s functions again.
Returns: how many queues there are.
Locks: granting; creating and dropping queues; logs without their trigger, failing (55P03) rather than waiting for one.';

create or replace function trunq._settings(p_function oid) returns text[]
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select array_remove(array[case when p.prosecdef then 'SECURITY DEFINER' end], null) || array(
    select m[1] from regexp_matches(split_part(pg_get_functiondef(p.oid), E'\nAS $', 1), '^ (SET .*)$', 'gn') m)
  from pg_proc p where p.oid = p_function
$$;
comment on function trunq._settings(oid) is 'SECURITY DEFINER and the settings of a function, as clauses of ALTER FUNCTION.';

create or replace function trunq._note_settings() returns void
language sql volatile set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  delete from trunq.function;
  insert into trunq.function (signature, settings)
  select p.oid::regprocedure::text, trunq._settings(p.oid)
  from pg_proc p
  where p.pronamespace = 'trunq'::regnamespace or p.pronamespace = 'trunq_queue'::regnamespace and p.proname ~ '^_(lane|unique)?specimen_';
$$;
comment on function trunq._note_settings() is 'Notes the settings of all functions, as the files have just given them.';

create or replace function trunq._find_changes() returns jsonb
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  with present as (
    select f.signature, f.settings given from trunq.function f
    union all
    select replace(replace(replace(f.signature, '_lanespecimen', q.name), '_uniquespecimen', q.name), '_specimen', q.name), f.settings
    from trunq.queue q join trunq.function f on f.signature like 'trunq\_queue.%'
    where trunq._is_original(q, substring(f.signature from '^trunq_queue\.(\w+)'))),
  -- A setting of ours that was taken away comes back: plans and safety hang on it.
  changed as (
    select p.signature, n.clause from present p cross join lateral unnest(trunq._settings(to_regprocedure(p.signature))) n(clause)
    where n.clause <> all (p.given))
  select coalesce(jsonb_agg(to_jsonb(c)), '[]') from changed c
$$;
comment on function trunq._find_changes() is 'What somebody changed about SECURITY DEFINER and the settings of our functions, those of queues too.';

create or replace function trunq._change_again(p_changes jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_change record;
begin
  for v_change in select c.signature, c.clause from jsonb_to_recordset(p_changes) c(signature text, clause text) loop
    if to_regprocedure(v_change.signature) is not null then
      execute format('alter routine %s %s', v_change.signature, v_change.clause);
    end if;
  end loop;
end $$;
comment on function trunq._change_again(jsonb) is 'Changes again, after an upgrade, what _find_changes found before it.';

create or replace function trunq._restore_rows() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_log record;
  v_ring text[];
  v_queue_id integer;
  c_ids constant text := pg_get_serial_sequence('trunq.queue', 'queue_id');
begin
  insert into trunq.leader default values on conflict do nothing;
  -- Those with PgQ's names first: their numbers stand in the names of what is theirs.
  for v_log in
    select c.relname::text as name, pg_get_expr(d.adbin, d.adrelid) as segment, n.id_sequence,
      substring(n.id_sequence from '^pgq\.event_(\d+)_id_seq$')::integer as queue_id
    from pg_class c
    cross join lateral (
      select substring(pg_get_expr(i.adbin, i.adrelid) from 'nextval\(''(.*)''::regclass\)') as id_sequence from pg_attribute b
      join pg_attrdef i on i.adrelid = b.attrelid and i.adnum = b.attnum where b.attrelid = c.oid and b.attname = 'id') n
    join pg_attribute a on a.attrelid = c.oid and a.attname = 'segment'
    join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'trunq_log'::regnamespace and c.relkind = 'p' and c.relname <> '_specimen' order by 4 nulls last, c.relname
  loop
    -- The span and the number of segments: trunq._segment.
    v_ring := regexp_match(v_log.segment, '/ \D*(\d+)\D* % \D*(\d+)');
    insert into trunq.queue (queue_id, name, id_sequence, retention, segments, span, lanes, unique_policy) overriding system value
    values (coalesce(v_log.queue_id, nextval(c_ids)), v_log.name, v_log.id_sequence, make_interval(secs => v_ring[1]::bigint * (v_ring[2]::integer - 2)), v_ring[2]::smallint, make_interval(secs => v_ring[1]::bigint),
      substring(obj_description(to_regclass(format('trunq_data.%I', v_log.name || '_turn')), 'pg_class') from 'Lanes by ([a-z,]+)\.$'),
      substring(obj_description(to_regclass(format('trunq_data.%I', v_log.name || '_unique')), 'pg_class') from 'Policy: ([a-z]+)\.$'))
    on conflict do nothing
    returning queue_id into v_queue_id;
    if found then
      if v_log.queue_id is not null then
        perform setval(c_ids, v_log.queue_id);
      end if;
      perform trunq._start_queue(v_queue_id, v_log.queue_id is null);
      -- The rules that its triggers come of are not known.
      perform trunq._define_gate(trunq._find_queue(v_queue_id));
    end if;
  end loop;
  perform trunq._restore_captures();
end $$;
comment on function trunq._restore_rows() is
  'Into a copy of the schema alone: the rows that every install has, and the queues that the tables tell of, each with its subscription "default", but for those with PgQ''s names; and the captures.';
