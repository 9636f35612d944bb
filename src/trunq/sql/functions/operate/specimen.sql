-- The functions of a queue, and its triggers, are made like those of the specimen (sql/specimen/queue, sql/specimen/lanes, sql/specimen/unique): their definitions are read from the
-- catalog, and the names replaced. When a queue is made, and again by each upgrade.

create or replace function trunq._define_queue(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._define_functions(p_queue);
  perform trunq._define_triggers(p_queue);
end $$;
comment on function trunq._define_queue is 'Makes the functions of a queue, like the specimen''s, its view and its triggers.';

create or replace function trunq._define_functions(p_queue trunq.queue) returns void
-- Functions in SQL may name others that come after them.
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set check_function_bodies = off as $$
declare
  v_function record;
begin
  perform trunq._drop_functions(p_queue, p_old_only => true);
  -- What is right is left alone: each function that is replaced has every session of the server look its own ones up again, and each
  -- comment takes a lock that is held to the end.
  for v_function in
    select n.*, p.oid is null or pg_get_functiondef(p.oid) <> n.definition is_changed,
      p.oid is null or obj_description(p.oid, 'pg_proc') is distinct from n.comment is_told,
      n.is_closed and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0)) is_open
    from (
      select trunq._for_queue(p_queue, pg_get_functiondef(s.oid)) definition, obj_description(s.oid, 'pg_proc') as comment,
        s.prorettype = 'trigger'::regtype or s.prosecdef is_closed,
        trunq._for_queue(p_queue, format('%I.%I(%s)', 'trunq_queue', s.proname, pg_get_function_identity_arguments(s.oid))) signature,
        trunq._for_queue(p_queue, s.proname) name, trunq._for_queue(p_queue, pg_get_function_identity_arguments(s.oid)) arguments
      from pg_proc s
      -- By the index: other queues have thousands of functions.
      where s.proname like '\_%' and s.pronamespace = 'trunq_queue'::regnamespace and trunq._is_original(p_queue, s.proname) offset 0) n
    left join pg_proc p on p.pronamespace = 'trunq_queue'::regnamespace and p.proname = n.name and pg_get_function_identity_arguments(p.oid) = n.arguments
  loop
    if v_function.is_changed then
      execute v_function.definition;
    end if;
    if v_function.is_open then
      -- Or anybody would put a trigger on a table of his own (log/gate.sql), or publish with the owner's rights.
      execute format('revoke execute on function %s from public', v_function.signature);
    end if;
    if v_function.is_told then
      execute format('comment on function %s is %L', v_function.signature, v_function.comment);
    end if;
  end loop;
end $$;
comment on function trunq._define_functions is 'Makes the functions of a queue, like the specimen''s. They may name tables and columns that it is yet to get.';

create or replace function trunq._define_triggers(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
begin
  perform trunq._define_messages(p_queue);
  -- To make a trigger locks the log against publishers: only where it is missing.
  if not trunq._has_trigger(p_queue, 'wake') then
    execute format('create or replace trigger wake after insert on trunq_log.%I for each statement execute function trunq_queue.%I()',
      p_queue.log_table, p_queue.name || '_wake');
  end if;
  if not trunq._has_trigger(p_queue, 'put_off') then
    -- And for what no client could read, or a handler takes for its own: said here, as a CHECK costs every statement more (trunq.payload).
    execute format('create or replace trigger put_off after insert on trunq_log.%I for each row when (new.due_at is not null'
      ' or new.created_at not between ''0001-01-02 00:00:00+00'' and ''9999-12-31 00:00:00+00'' or new.options ? ''checkpoint'' and new.subscription_id is null)'
      ' execute function trunq_queue.%I()', p_queue.log_table, p_queue.name || '_put_off');
  end if;
  -- Of whole statements that change or delete: who inserts pays nothing.
  if not trunq._has_trigger(p_queue, 'keep') then
    execute format('create or replace trigger keep before update or delete on trunq_log.%I for each statement'
      ' when (current_setting(''trunq.rewrite'', true) is distinct from ''on'') execute function trunq._refuse_rewrite()', p_queue.log_table);
  end if;
  if p_queue.unique_policy is not null and not exists (
      select from pg_trigger t where t.tgrelid = format('trunq_log.%I', p_queue.log_table)::regclass and t.tgname = 'take_key') then
    execute format('create trigger take_key before insert on trunq_log.%I for each row when (%s and new.unique_turn is null) execute function trunq_queue.%I()',
      p_queue.log_table, case when p_queue.unique_on = 'content' then 'new.subscription_id is null' else 'new.unique_key is not null' end,
      p_queue.name || '_take_row_key');
  end if;
  if p_queue.lanes is not null then
    execute format('create or replace trigger wake_lanes after insert on trunq_data.%I for each row when (new.outcome <> ''b'') execute function trunq_queue.%I()',
      p_queue.receipt_table, p_queue.name || '_wake_lanes');
  end if;
  -- What is new here, for those who had a role before.
  perform trunq._keep_roles(p_queue);
end $$;
comment on function trunq._define_triggers is 'Makes the view of a queue and its triggers, and gives those who have a role what is new of it.';

create or replace function trunq._is_original(p_queue trunq.queue, p_function text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- A queue with lanes, or with unique keys, has its own in the place of some.
  select case when p_function like '\_lanespecimen\_%' then p_queue.lanes is not null
    when p_function like '\_uniquespecimen\_%' then p_queue.unique_policy is not null
    when p_function like '\_specimen\_%' then not exists (
      select from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace and p.proname in (
        case when p_queue.lanes is not null then '_lane' || substr(p_function, 2) end,
        case when p_queue.unique_policy is not null then '_unique' || substr(p_function, 2) end)) end is true
$$;
comment on function trunq._is_original is 'Whether a queue has this function of a specimen.';

create or replace function trunq._has_trigger(p_queue trunq.queue, p_trigger text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (
    select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
    where t.tgrelid = format('trunq_log.%I', p_queue.log_table)::regclass and t.tgname = p_trigger
      and case p_trigger
        when 'keep' then t.tgtype = 2 + 8 + 16  -- before delete or update, of a statement
          and p.pronamespace = 'trunq'::regnamespace and p.proname = '_refuse_rewrite'
        else t.tgtype & 62 = 4  -- after insert
          and (p_trigger <> 'put_off' or pg_get_triggerdef(t.oid) like '%checkpoint%')
          and p.pronamespace = 'trunq_queue'::regnamespace and p.proname = p_queue.name || '_' || p_trigger end)
$$;
comment on function trunq._has_trigger is 'Whether the log of a queue has a trigger of ours, which calls the function that it should.';

create or replace function trunq._for_queue(p_queue trunq.queue, p_text text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- A queue's name is letters, digits and underscores (name_is_short_and_plain), so it is an identifier as it stands, keywords too
  -- behind the name of a schema, and a literal between quotes.
  -- Each is looked up only where the text has it: a queue has dozens of functions.
  select replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
    regexp_replace(case when strpos(p_text, '/*own_columns*/') > 0 then trunq._with_own_columns(p_queue, p_text) else p_text end,
      'trunq_data\._(unique)?specimen_message_id', p_queue.id_sequence, 'g'),
    '_uniquespecimen', p_queue.name),
    '''refuse'' /*unique_policy*/', coalesce(quote_literal(p_queue.unique_policy), 'null')),
    '''none'' /*unique_on*/', quote_literal(coalesce(p_queue.unique_on, 'none'))),
    'false /*has_tenants*/', case when strpos(p_text, '/*has_tenants*/') > 0 then trunq._has_tenants(p_queue)::text else '' end),
    'true /*priorities*/', coalesce(p_queue.lanes like 'priority%', false)::text),
    '3 /*last_segment*/', (p_queue.segments - 1)::text),
    '0 /*queue_id*/', p_queue.queue_id::text),
    '0 /*segment*/', case when strpos(p_text, '/*segment*/') > 0 then trunq._segment(p_queue) else '' end),
    'coalesce(g.key, '''') /*lane*/', case when strpos(p_text, '/*lane*/') > 0 then trunq._lane_expression(p_queue.lanes) else '' end),
    '_lanespecimen', p_queue.name),
    '_specimen', p_queue.name)
$$;
comment on function trunq._for_queue is 'SQL about the specimen, said of a queue.';

create or replace function trunq._drop_functions(p_queue trunq.queue, p_old_only boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_function record;
begin
  if not p_old_only then
    execute format('drop trigger if exists wake on trunq_log.%1$I; drop trigger if exists put_off on trunq_log.%1$I; drop trigger if exists keep on trunq_log.%1$I', p_queue.log_table);
    execute format('drop trigger if exists take_key on trunq_log.%I', p_queue.log_table);
    execute format('drop view if exists trunq_queue.%I', p_queue.name || '_messages');
    execute format('drop trigger if exists wake_lanes on trunq_data.%I', p_queue.receipt_table);
  end if;
  for v_function in
    select p.oid::regprocedure signature
    from pg_proc s join pg_proc p on p.pronamespace = s.pronamespace and p.proname = p_queue.name || regexp_replace(s.proname, '^_(lane|unique)?specimen', '')
      -- A queue q with lanes has a function q_is_read, and a queue q_is a door of that name.
      and (p.prosecdef = s.prosecdef or p.proname !~ '_is_read$')
    where s.proname like '\_%' and s.pronamespace = 'trunq_queue'::regnamespace and trunq._is_original(p_queue, s.proname)
      and (not p_old_only
        or row(pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
          is distinct from row(trunq._for_queue(p_queue, pg_get_function_arguments(s.oid)), trunq._for_queue(p_queue, pg_get_function_result(s.oid))))
  loop
    execute format('drop function %s', v_function.signature);
  end loop;
end $$;
comment on function trunq._drop_functions is 'Drops the functions and the view of a queue; p_old_only: the functions that take or return something else than those of the specimen do now, as CREATE OR REPLACE cannot change that.';
