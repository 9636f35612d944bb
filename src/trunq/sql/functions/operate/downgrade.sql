-- What a downgrade (downgrade.py) does in the database before it takes migrations back. Functions of this release fit no older tables, and
-- the older release has its own: its `trunq db upgrade` puts them there. Until then nobody may work, and nothing may get lost:
--   functions of trunq and of the specimens go. _become_owner, _fail and _find_changes stay, as every upgrade begins with them
--   version, which each client asks first, refuses (TQ040), and so do the functions of queues: they keep their grants, which say who has
--     which role
--   triggers refuse as well. A log without them would take messages that nobody is woken for, before their time and twice; a captured
--     table, changes that nobody hears of
-- What something of the user's depends on stays as it is.
--
-- A function that is replaced takes no lock, and one that is dropped takes one: so what queues have is replaced, however many there are, but for
-- those that take or return a type which goes. What the older release does not know is dropped when its upgrade is over (trunq._drop_refusing).

create or replace function trunq._retire_functions(p_to integer, p_types text[] default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set check_function_bodies = off as $$
declare
  v_refusal constant text := format('begin raise exception using errcode = ''TQ040'', message = %L, hint = %L; end',
    format('trunq in this database was taken back to schema %s, and has no functions yet', p_to),
    format('`trunq db upgrade`, of the release that works with schema %s, puts them there', p_to));
  v_changes constant jsonb := trunq._find_changes();
  v_function record;
begin
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  perform pg_advisory_xact_lock(trunq._lock_class('captures'), 0);
  perform pg_advisory_xact_lock(trunq._lock_class('queues'), 0);
  delete from trunq.outdated;
  perform trunq._drop_messages();
  for v_function in
    select p.oid::regprocedure signature, n.nspname, p.proname, pg_get_function_arguments(p.oid) arguments, pg_get_function_result(p.oid) result,
      p.prosecdef, p.prorettype = 'trigger'::regtype is_trigger, d.is_used,
      -- A type that only functions use goes with them.
      n.nspname = 'trunq' or p.proname ~ '^_(lane|unique)?specimen_' or exists (
        select from unnest(p.proargtypes::oid[] || p.prorettype || coalesce(p.proallargtypes, '{}')) t(oid)
        join pg_type y on y.oid = t.oid join pg_class c on c.oid = y.typrelid and c.relkind = 'c'
        where y.typnamespace = 'trunq'::regnamespace and (p_types is null or y.typname = any (p_types))) is_going
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    cross join lateral (select exists (
      select from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid and d.deptype in ('n', 'a')) is_used) d
    where n.nspname in ('trunq', 'trunq_queue', 'trunq_data') and n.nspowner = p.proowner
      -- Each of ours says what it does.
      and obj_description(p.oid, 'pg_proc') is not null
      and (n.nspname <> 'trunq' or p.proname <> all ('{_become_owner,_fail,_find_changes}'))
  loop
    if v_function.is_used and not v_function.is_trigger then
      continue;
    elsif v_function.is_going and not v_function.is_used and v_function.signature::text <> 'trunq.version()' then
      execute format('drop routine %s', v_function.signature);
    else
      execute format('create or replace function %I.%I(%s) returns %s language plpgsql %s set search_path = pg_catalog, pg_temp as %L',
        v_function.nspname, v_function.proname, v_function.arguments, v_function.result,
        case when v_function.prosecdef then 'security definer' end, v_refusal);
    end if;
  end loop;
  -- What was changed by hand is changed again by the next upgrade.
  execute format('create or replace function trunq._find_changes() returns jsonb language sql as %L', format('select %L::jsonb', v_changes));
end $$;
comment on function trunq._retire_functions is
  'Drops what the functions of this release can be dropped of, and has the others refuse: before migrations are taken back to a schema. Itself too. p_types: those that go with the migrations; null: any may.
Locks: granting; captures; creating and dropping queues; the views of messages.';

create or replace function trunq._drop_messages() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_view text;
begin
  for v_view in
    select c.relname from trunq.queue q join pg_class c on c.relname = q.name || '_messages'
    where c.relnamespace = 'trunq_queue'::regnamespace and c.relkind = 'v' order by 1
  loop
    begin
      execute format('drop view trunq_queue.%I', v_view);
    exception when dependent_objects_still_exist then
      null;  -- a view of the user's
    end;
  end loop;
end $$;
comment on function trunq._drop_messages is 'Drops the view of messages of each queue, where nothing of the user''s depends on it; the functions of a queue make it again.';

create or replace function trunq._drop_refusing() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace and starts_with(p.prosrc, 'begin raise exception using errcode = ''TQ040''')
    -- Each takes a lock: the rest goes with the next upgrade.
    order by p.oid limit 1000
  loop
    begin
      execute format('drop function %s', v_function);
    exception when dependent_objects_still_exist then
      null;  -- a trigger of the user's
    end;
  end loop;
end $$;
comment on function trunq._drop_refusing is 'Drops functions of queues that a newer release had, and that refuse since it was taken back.';
