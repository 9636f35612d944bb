-- The doors of a queue, through which roles reach functions by the name of a queue (trunq.status, trunq.cancel). Those run with the
-- rights of their caller, and read tables of all queues. One who has not the owner's rights but may execute a door of that queue
-- (role.sql) goes through it: trunq._door says which, in the caller's name, and behind it the same function runs again as the
-- owner (trunq._call_behind_door). A function with the owner's rights that asked by itself who its caller is could be deceived: Postgres tells
-- it who began the session, and somebody else's function or index may have called it meanwhile.
--
-- Which doors lead to which function stands in trunq._doors alone. The files of functions know nothing of it: when all are applied, an
-- install has trunq._add_doors put in front of the body of each what takes its caller through the door. What is there for trunq.reclaim:
--   declare
--     v_door constant text := trunq._door(p_queue, '{work}');
--     v_value text;
--   begin
--     if v_door is not null then
--       execute format('select t.* from trunq_queue.%I($1, $2) as t(value text)', concat(p_queue, '_', v_door))
--         into v_value using 'reclaim', array['p_subscription', p_subscription::text, 'p_worker', p_worker::text]::text[];
--       return v_value::integer;
--     end if;
--   end;

create or replace function trunq._doors() returns table (function text, doors text[])
language sql immutable as $$
  select f.name, d.doors
  from (values
    ('{read_payload,read,administer,work}'::text[],
     '{status,_look_at,latest_samples,list_samples,backlog,list_reports,list_subscriptions,position,list_streams,show_batch,list_groups,list_members,list_losses,list_movers,list_takers,list_warnings,list_defects,public_ids,find_public_id}'::text[]),
    -- A worker sees payloads, also one that is reader or admin besides.
    ('{read_payload,work,read,administer}', '{find_place,read_on}'),
    ('{read_payload,read,administer}',
     '{list_messages,count_messages,show_message,explain_wait,list_audit,list_dead,list_dead_groups,list_sweeps,count_dead,list_lanes,fleet,statistics,list_ticks,list_progress,find_reference,show_public}'),
    ('{read_payload}', '{list_replies}'),
    ('{administer}',
     '{pause_queue,resume_queue,pause_subscription,resume_subscription,subscribe,set_publishing,set_reminders,close_queue,open_queue,cancel,delete,
       list_deletions,requeue,purge,start_sweep,stop_sweep,carry_sweep,set_lanes,set_lane,pause_lane,resume_lane,accept_loss,pause_ticks,resume_ticks}'),
    ('{work,administer}', '{seek,copy_position,stop_mover,leave_group,set_memo,get_memo,delete_memo,list_memos}'),
    ('{work}',
     '{read_batch,advance,fail_batch,retry_batch,join_group,list_fates,retry_after,reclaim,show_checkpoint,show_resumed,park,start_mover,begin_move,
       finish_move,fail_move,end_mover,_mover_stops,_forward_out,_retries_out,_forward_in,_write_batch_query,_has_delayed,_left_asked,_count_unhandled,_attend_queue,_leave_queue,_report_queue}'))
    d(doors, functions)
  cross join lateral pg_catalog.unnest(d.functions) f(name)
$$;
comment on function trunq._doors is 'Which doors of a queue lead to which function of trunq, that which shows most first.';

create or replace function trunq._doors_to(p_function text) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$ select d.doors from trunq._doors() d where d.function = p_function $$;
comment on function trunq._doors_to is 'The doors that lead to a function; null: none does.';

create or replace function trunq._add_doors() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  c_begin constant text := E'\nbegin\n';
  v record;
begin
  for v in
    select d.function, d.doors, p.oid, p.prosrc, strpos(p.prosrc, c_begin) as at, p.prorettype, p.proretset, r.columns, a.*,
      case when a.asks_queue then 'p_queue' else 'trunq._memo_queue(p_scope)' end as queue
    from trunq._doors() d
    left join pg_proc p on p.pronamespace = 'trunq'::regnamespace and p.proname = d.function
    cross join lateral (
      select string_agg(format('%I %s', c.name, c.type), ', ' order by c.place) as columns from trunq._returned_columns(d.function) c) r
    cross join lateral (
      select coalesce(bool_or(u.name = 'p_queue'), false) as asks_queue,
        -- Not those in pages: of several queues, the rows would come in no order.
        coalesce(bool_or(u.name = 'p_queue' and u.place > p.pronargs - p.pronargdefaults), false) and not bool_or(u.name = 'p_limit') as lists_each,
        -- A time in ISO, whatever the DateStyle: as another prints it, the name of its zone may be read as that of a different one.
        string_agg(format(case when u.type = 'timestamptz'::regtype then '%1$L, to_jsonb(%1$I) #>> ''{}''' else '%1$L, %1$I::text' end, u.name),
          ', ' order by u.place) filter (where u.name <> 'p_queue') as pairs,
        string_agg(format('%I => %s', u.name, case u.name when 'p_queue' then 'o.queue' else quote_ident(u.name) end), ', ' order by u.place) as named
      from unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) with ordinality u(name, type, place)) a
  loop
    if coalesce(v.at, 0) = 0 then
      raise exception 'doors lead to trunq.%, which is no function in PL/pgSQL', v.function;
    end if;
    execute replace(pg_get_functiondef(v.oid), v.prosrc, concat(
      left(v.prosrc, v.at + length(c_begin) - 1),
      case when v.lists_each then format($body$  if p_queue is null and not trunq._owns() then
    return query select r.* from trunq._open_to(%L) o(queue) cross join lateral trunq.%I(%s) r;
    return;
  end if;
$body$, v.doors, v.function, v.named) end,
      format($body$  declare
    v_door constant text := trunq._door(%1$s, %2$L);
    v_value text;
  begin
    if v_door is not null then
      %3$s format(%4$L, concat(%1$s, '_', v_door))
        %5$s using %6$L, array[%7$s]::text[];
      return%8$s;
    end if;
  end;
$body$, v.queue, v.doors, case when v.proretset then 'return query execute' else 'execute' end,
        format('select t.* from trunq_queue.%%I($1, $2) as t(%s)', coalesce(v.columns, 'value text')),
        case when not v.proretset then 'into v_value' end, v.function, v.pairs,
        case when not v.proretset and v.prorettype <> 'void'::regtype then format(' v_value::%s', format_type(v.prorettype, null)) end),
      substr(v.prosrc, v.at + length(c_begin))));
  end loop;
end $$;
comment on function trunq._add_doors is
  'Has the functions of trunq._doors, as their files have just made them, take a caller through a door. One whose p_queue may be null lists all queues to which the caller has one.';

create or replace function trunq._owns() returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (select pg_has_role(current_user, n.nspowner, 'usage') from pg_namespace n where n.nspname = 'trunq');
end $$;
comment on function trunq._owns is 'Whether the caller has the rights of the owner of trunq.';

create or replace function trunq._door(p_queue text, p_doors text[]) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_door text;
begin
  -- Of the caller: this runs with its rights.
  if trunq._owns() then
    return null;
  end if;
  foreach v_door in array p_doors loop
    if exists (
        select from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace and p.proname = concat(p_queue, '_', v_door)
          and p.prosecdef and has_function_privilege(current_user, p.oid, 'execute')) then
      return v_door;
    end if;
  end loop;
  return null;
end $$;
comment on function trunq._door is 'Through which of these doors of a queue the caller goes; null: through none, with its own rights.';

create or replace function trunq._open_to(p_doors text[]) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q.name from trunq.queue q where trunq._door(q.name, p_doors) is not null order by q.name
$$;
comment on function trunq._open_to is 'The queues of which the caller goes through one of these doors.';

create or replace function trunq._returned_columns(p_function text) returns table (place bigint, name text, type text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select a.place, a.name, format_type(a.type, null)
  from pg_proc p cross join lateral unnest(p.proargmodes, p.proargnames, p.proallargtypes) with ordinality a(mode, name, type, place)
  where p.pronamespace = 'trunq'::regnamespace and p.proname = p_function and a.mode = 't'
$$;
comment on function trunq._returned_columns is 'The columns of a function of trunq that returns a table.';

create or replace function trunq._call_behind_door(p_queue text, p_door text, p_function text, p_arguments text[]) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_asks_queue boolean;
  v_is_void boolean;
  v_columns text;
  v_arguments text;
begin
  if not exists (select from trunq._doors() d where d.function = p_function and p_door = any (d.doors)) then
    perform trunq._fail('42501', format('the role does not reach "%s" for queue "%s"', coalesce(p_function, ''), p_queue),
      'trunq.grant_role grants roles; select * from trunq.list_roles() shows who has which');
  end if;
  if p_door in ('read', 'administer') and p_function in ('list_messages', 'count_messages', 'start_sweep', 'read_on') and exists (
      select from generate_series(1, cardinality(p_arguments), 2) n
      where p_arguments[n] in ('p_payload', 'p_headers') and p_arguments[n + 1] is not null
        or p_function = 'read_on' and p_arguments[n] = 'p_filter' and p_arguments[n + 1]::jsonb ?| '{headers,not_headers}')
      -- A sweep goes by the door of admins alone, also that of one who reads payloads.
      and not (p_function = 'start_sweep' and trunq._may(coalesce(nullif(current_setting('role'), 'none'), session_user), p_queue, 'read_payload')) then
    -- A filter tells, bit by bit, what it looks at.
    perform trunq._fail('42501', format('the role sees no payloads and headers of queue "%s", so it cannot look for some', p_queue),
      format('select trunq.grant_role(%L, ''reader'', ..., p_payload => true)', p_queue));
  end if;
  select 'p_queue' = any (p.proargnames), p.prorettype = 'void'::regtype into strict v_asks_queue, v_is_void
  from pg_proc p where p.pronamespace = 'trunq'::regnamespace and p.proname = p_function;
  if not v_asks_queue then
    -- Of memos. Whoever names two scopes fails here.
    perform trunq._check_scope(p_queue, (
      select p_arguments[n + 1] from generate_series(1, cardinality(p_arguments), 2) n where p_arguments[n] = 'p_scope'));
  end if;
  v_arguments := concat_ws(', ', case when v_asks_queue then format('p_queue => %L', p_queue) end, (
    select string_agg(format('%I => %L', p_arguments[n], p_arguments[n + 1]), ', ' order by n) from generate_series(1, cardinality(p_arguments), 2) n));
  select string_agg(case when r.name = any (trunq._secret_columns()) and p_door in ('read', 'administer') then format('null::%s', r.type) else quote_ident(r.name) end,
    ', ' order by r.place) into v_columns from trunq._returned_columns(p_function) r;
  return format('select %s from trunq.%I(%s) value', coalesce(v_columns, case when v_is_void then 'null::text' else 'value::text' end), p_function, v_arguments);
end $$;
comment on function trunq._call_behind_door is 'The call of a function behind a door of a queue, which runs it with the owner''s rights; 42501 when the door does not lead there.';
