-- What install and upgrade (install.py) do in the database, besides running the files of migrations, functions and queue.
--
-- All that trunq makes belongs to the owner of the schema trunq, whichever member of that role makes it: so the owner can use, drop and
-- upgrade it. A member that does not inherit the owner's rights (NOINHERIT) may call nothing in the schema: it sets the role first, or
-- is granted usage; an install sets the role for it. CREATE OR REPLACE keeps the owner and the grants of a function, but takes back its SECURITY DEFINER and settings such as
-- search_path: an upgrade notes what was changed about them by hand, and changes it again. What is compared is text that Postgres
-- writes: so whatever reads a definition, a signature or an expression turns quote_all_identifiers off.
--
-- An upgrade has two parts, so that it needs the locks of one queue at a time, however many there are. The first, one transaction, changes what all
-- queues share: tables of trunq, functions, specimens; and says in trunq.outdated that each queue is to follow. Then each queue does, in a
-- transaction of its own. What is killed goes on where it was: whoever upgrades next finds the rows that are left. Between the two, a queue's own
-- functions are of before, and call shared ones of now: ARCHITECTURE.md says what follows from that.
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
comment on function trunq._become_owner is
  'Goes on as the owner of trunq, to the end of the transaction; for those who may use the schema trunq and are members of that role.
Returns: what to set the setting role to, to go back.';

create or replace function trunq._note_former() returns void
language sql volatile set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  delete from trunq.former;
  insert into trunq.former (function)
  select p.oid::regprocedure::text from pg_proc p
  where p.pronamespace = 'trunq'::regnamespace and starts_with(p.proname, '_') and p.prokind = 'f' and age(p.xmin) > 0
$$;
comment on function trunq._note_former is
  'Notes the internal functions that this transaction, an upgrade, has not defined: those of a former version, for trunq._drop_former.';

create or replace function trunq._outdate_queues(p_changes jsonb) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_count integer;
begin
  -- Roles are granted again.
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  -- A queue that is being created is waited for: it must not be left with functions of before.
  perform pg_advisory_xact_lock(trunq._lock_class('queues'), 0);
  insert into trunq.cluster (system_identifier)
  select s.system_identifier from pg_control_system() s
  on conflict do nothing;
  -- Of one that a former upgrade left behind we know already what was changed: compared with the notes of now, it would be more.
  insert into trunq.outdated (queue_id, changes)
  select q.queue_id, (
    select coalesce(jsonb_agg(c.change), '[]') from jsonb_array_elements(p_changes) c(change)
    where starts_with(c.change->>'signature', format('trunq_queue.%s_', q.name)))
  from trunq.queue q order by q.queue_id
  on conflict do nothing;
  get diagnostics v_count = row_count;
  perform trunq._change_again((
    select coalesce(jsonb_agg(c.change), '[]') from jsonb_array_elements(p_changes) c(change)
    where not starts_with(c.change->>'signature', 'trunq_queue.') or c.change->>'signature' ~ '^trunq_queue\._(lane|unique)?specimen_'));
  return v_count;
end $$;
comment on function trunq._outdate_queues is
  'Says that all queues are out of date, for trunq._refresh_next; and changes again what was changed by hand about the functions of all.
Returns: how many more queues are.
Locks: granting; creating and dropping queues.';

create or replace function trunq._refresh_next() returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_patience constant interval := '15 seconds';
  v_until timestamptz;
  v_is_over boolean := false;
  v_has_met_all boolean := false;
  v_next record;
begin
  -- Whoever waits here finds this queue done.
  perform pg_advisory_xact_lock(trunq._lock_class('install'), 0);
  perform trunq._become_owner();
  v_until := clock_timestamp() + c_patience;
  loop
    for v_next in
      -- Those that somebody writes to come last: each may cost the whole wait, and the publishers of its queue too.
      select q.queue_id, q.name from trunq.outdated o join trunq.queue q on q.queue_id = o.queue_id
      left join (
        select distinct l.relation::regclass as log from pg_locks l
        where l.locktype = 'relation' and l.granted and l.mode <> 'AccessShareLock' and l.pid is distinct from pg_backend_pid()
          and l.database = (select d.oid from pg_database d where d.datname = current_database())) used
        on used.log = to_regclass(format('trunq_log.%I', q.log_table))
      order by used.log is not null, q.queue_id
    loop
      begin
        perform trunq._refresh_queue(v_next.queue_id);
        return v_next.name;
      exception when lock_not_available then
        -- Its locks are given back; another queue may be free.
        v_is_over := clock_timestamp() > v_until;
        exit when v_is_over and v_has_met_all;
      end;
    end loop;
    if v_next.name is null then
      perform trunq._drop_former();
      return null;
    end if;
    exit when v_is_over;
    v_has_met_all := true;
    perform pg_sleep(0.05);
  end loop;
  perform trunq._fail('TQ009', format('queue "%s" cannot be brought up to date: an open transaction uses it', v_next.name),
    'pg_stat_activity (xact_start) or pg_prepared_xacts shows it; end it and upgrade again: what is done stays done');
end $$;
comment on function trunq._refresh_next is
  'Brings one queue up to date of those that an upgrade has left to do. It waits for none for longer than a publisher may wait, and takes another one instead.
Returns: its name; null: none is left. TQ009 when none of them is free for some fifteen seconds, or while each was tried once.
Locks: installing; what _refresh_queue locks.';

create or replace function trunq._drop_former() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_function text;
begin
  for v_function in
    select p.oid::regprocedure::text from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace and p.proname in (select q.name || '_bury_noted' from trunq.queue q)
  loop
    execute format('drop function %s', v_function);
  end loop;
  perform trunq._drop_refusing();
  for v_function in select f.function from trunq.former f loop
    if to_regprocedure(v_function) is not null then
      begin
        execute format('drop function %s', to_regprocedure(v_function));
      exception when dependent_objects_still_exist then
        continue;  -- something of the user's; the next upgrade tries again
      end;
    end if;
    delete from trunq.former f where f.function = v_function;
    delete from trunq.function f where f.signature = v_function;
  end loop;
end $$;
comment on function trunq._drop_former is
  'Drops functions that only queues of a former version call. They stay until all queues are up to date: work goes on meanwhile.';

create or replace function trunq._refresh_queue(p_queue_id integer) returns void
-- Who waits behind us for the log waits no longer than this.
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '200ms' as $$
declare
  v_queue trunq.queue;
  v_changes jsonb;
begin
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), p_queue_id);
  select o.changes into v_changes from trunq.outdated o where o.queue_id = p_queue_id for update;
  if not found then
    return;  -- dropped
  end if;
  v_queue := trunq._find_queue(p_queue_id);
  perform trunq._complete_tables(v_queue);
  perform trunq._define_queue(v_queue);
  perform trunq._define_at_once(v_queue);
  perform trunq._define_capture(c) from trunq.capture c where c.queue_id = p_queue_id order by c.capture_id;
  if to_regprocedure('pgq._define_queue(integer)') is not null then
    execute 'select pgq._define_queue(f.queue_id) from pgq._queue f where f.queue_id = $1' using p_queue_id;  -- PgQ's names for it (trunq_pgq)
  end if;
  perform trunq._change_again(v_changes);
  delete from trunq.outdated o where o.queue_id = p_queue_id;
end $$;
comment on function trunq._refresh_queue is
  'Brings one queue up to date: its tables, its functions, its triggers, and the functions of its captures.
Locks: granting; dropping the queue; its tables, where they lack a column; its log against publishers, where it lacks a trigger; failing (55P03) after 200 ms.';

create or replace procedure trunq._refresh_each()
language plpgsql as $$
begin
  loop
    commit;
    set transaction isolation level read committed;
    exit when trunq._refresh_next() is null;
  end loop;
  commit;
end $$;
comment on procedure trunq._refresh_each is 'Brings every queue up to date that an upgrade has left to do, each in a transaction of its own: the end of the script of trunq db sql.';

create or replace function trunq._complete_tables(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v record;
begin
  for v in
    select t.name, s.attname, format_type(s.atttypid, s.atttypmod) as type, pg_get_expr(d.adbin, d.adrelid) as preset, s.attnotnull,
      case when s.attstorage <> y.typstorage then s.attstorage end as storage, col_description(s.attrelid, s.attnum) as comment
    from trunq._tables_like(p_queue) t
    join pg_attribute s on s.attrelid = t.specimen and s.attnum > 0 and not s.attisdropped
    join pg_type y on y.oid = s.atttypid
    left join pg_attrdef d on d.adrelid = s.attrelid and d.adnum = s.attnum
    where not exists (select from pg_attribute a where a.attrelid = t.name and a.attname = s.attname and not a.attisdropped)
    order by t.place, s.attnum
  loop
    execute format('alter table %s add column %I %s', v.name, v.attname, concat_ws(' ', v.type, 'default ' || v.preset, case when v.attnotnull then 'not null' end));
    if v.storage is not null then
      execute format('alter table %s alter %I set storage %s', v.name, v.attname, case v.storage when 'e' then 'external' when 'p' then 'plain' when 'm' then 'main' else 'extended' end);
    end if;
    execute format('comment on column %s.%I is %L', v.name, v.attname, v.comment);
  end loop;
  for v in
    select t.name, c.conname from trunq._tables_like(p_queue) t join pg_constraint c on c.conrelid = t.name and c.contype = 'c'
    -- The log and the archive may have some of a DBA's.
    where t.specimen not in ('trunq_log._specimen'::regclass, 'trunq_data._specimen_archive'::regclass) and not exists (
      select from pg_constraint s where s.conrelid = t.specimen and s.conname = c.conname)
  loop
    execute format('alter table %s drop constraint %I', v.name, v.conname);
  end loop;
end $$;
comment on function trunq._complete_tables is
  'Gives the tables of a queue the columns that the specimen has and they have not, and takes from them checks that it has no more: a migration changes the specimen alone.';

create or replace function trunq._tables_like(p_queue trunq.queue) returns table (place integer, name regclass, specimen regclass)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select t.place, t.name::regclass, t.specimen::regclass
  from (values
    (1, format('trunq_log.%I', p_queue.log_table), 'trunq_log._specimen'),
    (2, format('trunq_data.%I', p_queue.lease_table), case when p_queue.lanes is null then 'trunq_data._specimen_lease' else 'trunq_data._lanespecimen_lease' end),
    (3, format('trunq_data.%I', p_queue.receipt_table), 'trunq_data._specimen_receipt'),
    (4, case when p_queue.lanes is not null then format('trunq_data.%I', p_queue.name || '_turn') end, 'trunq_data._lanespecimen_turn'),
    (5, case when p_queue.lanes is not null then format('trunq_data.%I', p_queue.name || '_wake') end, 'trunq_data._lanespecimen_wake'),
    (6, case when p_queue.unique_policy is not null then format('trunq_data.%I', p_queue.name || '_unique') end, 'trunq_data._uniquespecimen_unique'),
    (7, case when p_queue.unique_policy is not null then format('trunq_data.%I', p_queue.name || '_freed') end, 'trunq_data._uniquespecimen_freed'))
    t(place, name, specimen)
  where t.name is not null
  union all
  -- As the catalog has it: to_regclass asks for rights on the schema.
  select 8, c.oid::regclass, 'trunq_data._specimen_archive'::regclass
  from pg_class c where c.relnamespace = 'trunq_archive'::regnamespace and c.relname = p_queue.name
$$;
comment on function trunq._tables_like is 'The tables of a queue, each with that of a specimen it was made like.';

create or replace function trunq._settings(p_function oid) returns text[]
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select array_remove(array[case when p.prosecdef then 'SECURITY DEFINER' end], null) || array(
    select m[1] from regexp_matches(split_part(pg_get_functiondef(p.oid), E'\nAS $', 1), '^ (SET .*)$', 'gn') m)
  from pg_proc p where p.oid = p_function
$$;
comment on function trunq._settings is 'SECURITY DEFINER and the settings of a function, as clauses of ALTER FUNCTION.';

create or replace function trunq._note_settings() returns void
language sql volatile set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  delete from trunq.function;
  insert into trunq.function (signature, settings, body)
  select p.oid::regprocedure::text, trunq._settings(p.oid), md5(p.prosrc)
  from pg_proc p
  where p.pronamespace = 'trunq'::regnamespace or p.pronamespace = 'trunq_queue'::regnamespace and p.proname ~ '^_(lane|unique)?specimen_';
$$;
comment on function trunq._note_settings is 'Notes the settings and bodies of all functions, as the files have just given them.';

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
comment on function trunq._find_changes is 'What somebody changed about SECURITY DEFINER and the settings of our functions, those of queues too.';

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
comment on function trunq._change_again is 'Changes again, after an upgrade, what _find_changes found before it.';

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
    where c.relnamespace = 'trunq_log'::regnamespace and c.relkind = 'p' and c.relname not in ('_specimen', '_uniquespecimen') order by 4 nulls last, c.relname
  loop
    -- The span and the number of segments: trunq._segment.
    v_ring := regexp_match(v_log.segment, '/ \D*(\d+)\D* % \D*(\d+)');
    insert into trunq.queue (queue_id, name, id_sequence, retention, segments, span, lanes, unique_policy, unique_on) overriding system value
    values (coalesce(v_log.queue_id, nextval(c_ids)), v_log.name, v_log.id_sequence, make_interval(secs => v_ring[1]::bigint * (v_ring[2]::integer - 2)), v_ring[2]::smallint, make_interval(secs => v_ring[1]::bigint),
      substring(obj_description(to_regclass(format('trunq_data.%I', v_log.name || '_turn')), 'pg_class') from 'Lanes by ([a-z,]+)\.$'),
      substring(obj_description(to_regclass(format('trunq_data.%I', v_log.name || '_unique')), 'pg_class') from 'Policy: ([a-z]+)\.$'),
      substring(obj_description(to_regclass(format('trunq_data.%I', v_log.name || '_unique')), 'pg_class') from 'On ([a-z]+)\. Policy: '))
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
comment on function trunq._restore_rows is
  'Into a copy of the schema alone: the rows that every install has, and the queues that the tables tell of, each with its subscription "default", but for those with PgQ''s names; and the captures.';
