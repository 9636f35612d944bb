-- Columns that a user adds to a log (alter table trunq_log.<queue> add column ...) stay with a message through retry, delay and
-- death. trunq.delayed and trunq.dead serve all queues, so they keep them as one jsonb; the way back into the log names them again.

create or replace function trunq._is_wider(p_log regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.relnatts > (select s.relnatts from pg_class s where s.oid = 'trunq_log._specimen'::regclass) from pg_class c where c.oid = p_log
$$;
comment on function trunq._is_wider is 'Whether the user added columns to a log.';

create or replace function trunq._extra(p_row jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select p_row - '{id,txid,created_at,subscription_id,segment,attempt,priority,kind,key,payload,body,headers,errors,expiries,due_at,options}'::text[]
$$;
comment on function trunq._extra is 'The columns that the user added to the log, of one of its rows.';

create or replace function trunq._extra_columns(p_queue trunq.queue, p_prefix text default '') returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(string_agg(format(', %s%I', p_prefix, a.attname), '' order by a.attnum), '')
  from pg_attribute a
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
    and not exists (select from pg_attribute s where s.attrelid = 'trunq_log._specimen'::regclass and s.attname = a.attname)
$$;
comment on function trunq._extra_columns is
  'The columns that the user added to a log, to be put behind a list of columns: ", a, b", or nothing.';

create or replace function trunq._extra_values(p_queue trunq.queue) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select coalesce(string_agg(
    -- A column added since the message was put off has its default, as in the rows that were there.
    format(', case when g.extra ? %1$L then e.%1$I else %2$s end', a.attname, coalesce(pg_get_expr(f.adbin, f.adrelid), 'null')),
    '' order by a.attnum), '')
  from pg_attribute a
  left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a'
    and not exists (select from pg_attribute s where s.attrelid = 'trunq_log._specimen'::regclass and s.attname = a.attname)
$$;
comment on function trunq._extra_values is
  'The values of the columns that the user added to a log, of a message g with its columns e: ", ..., ...", or nothing.';

create or replace function trunq._log(p_queue trunq.queue, p_rows text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_columns constant text := 'id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors, expiries, options';
  v_values constant text := 'g.' || replace(c_columns, ', ', ', g.');
  v_extra constant text := trunq._extra_columns(p_queue);
  v_later text := '';
begin
  if pg_current_xact_id_if_assigned() is not null and p_queue.lanes is null then
    -- A row that this transaction has leased ahead of the position would come again at the same place, which was taken: later, by another one.
    v_later := format($q$
      came as materialized (
        select g.*, g.subscription_id is not null and trunq._is_ahead(g.subscription_id, pg_current_xact_id(), g.id) is_later from %1$s g),
      later as (
        insert into trunq.delayed (queue_id, %2$s, extra, due_at)
        select %3$s, %4$s, g.extra, trunq.clock() + interval '1 second' from came g where g.is_later order by g.at, g.id),
    $q$, p_rows, c_columns, p_queue.queue_id, v_values);
    p_rows := '(select * from came where not is_later)';
  end if;
  if v_extra = '' then
    return v_later || format('logged as (insert into trunq_log.%I (%s) select %s from %s g order by g.at, g.id)',
      p_queue.log_table, c_columns, v_values, p_rows);
  end if;
  return v_later || format($q$
    logged as (
      insert into trunq_log.%1$I (%2$s)
      select %3$s from %4$s g where g.extra is null order by g.at, g.id),
    logged_with_extra as (
      insert into trunq_log.%1$I (%2$s%5$s)
      select %3$s%6$s from %4$s g cross join jsonb_populate_record(null::trunq_log.%1$I, g.extra) e
      where g.extra is not null order by g.at, g.id)
  $q$, p_queue.log_table, c_columns, v_values, p_rows, v_extra, trunq._extra_values(p_queue));
end $$;
comment on function trunq._log is
  'Entries of a WITH list that insert messages into the log of a queue: p_rows names an earlier entry that has the columns of the log, extra, and at (their order).';

-- A column of the user's is a column of the log, so publishers insert and copy into it as into ours, with its type and its default. Readers
-- get it with the message. What leaves the log takes it along, as above. Which columns a queue has, its functions know: two of the specimen's
-- (told_options, sifted), which say nothing of columns in the other queues and are written anew when a column is added or dropped here
-- (trunq._with_own_columns). So a queue without such columns pays nothing, neither in statements nor in rows.
--
-- In a lease they are a member of options, as whatever else a message has now and then: the row of a lease, which every worker reads, stays as
-- wide as it was.

create or replace function trunq.add_column(p_queue text, p_column text, p_type text, p_default text default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
  v_is_new bigint;
begin
  perform trunq._require_read_committed('add_column');
  perform trunq._find_queue(p_queue);
  perform trunq._check_new_column(p_queue, p_column, p_type, p_default);
  v_role := trunq._become_owner();
  perform trunq._audit('add_column', p_queue, jsonb_build_object('column', p_column, 'type', p_type));
  -- In the order of ground/lock.sql: publishers are granted the column.
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  v_is_new := trunq._try_for_locks(p_queue, format('select trunq._add_column($1, %L, %L, %L)', p_column, p_type, p_default));
  perform trunq._restore_role(v_role);
  return v_is_new = 1;
end $$;
comment on function trunq.add_column is
  'Gives the log of a queue a column of your own, of any type of Postgres (one that is not of Postgres itself with its schema), and what publishers leave out: p_default, a value, or null. It stays with each message to its end: retries, delays, death, archive. Readers find it in the message, in the view of messages, in filters and in Spark. A column that you added by alter table is made known to them. For the owner of trunq, or a member of that role.
Returns: true when it is new, false when the log has it already.
Raises: TQ001; TQ005 for the name of a column of ours, a type that there is not, a default that is none of that type, and a column that has another type; TQ007; TQ009 while an open transaction uses the queue, or an upgrade has yet to bring it up to date.
Locks: granting; the queue; for a moment its log, exclusively, waiting 200 ms at a time.';

create or replace function trunq.drop_column(p_queue text, p_column text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
begin
  perform trunq._require_read_committed('drop_column');
  v_role := trunq._become_owner();
  perform trunq._audit('drop_column', p_queue, jsonb_build_object('column', p_column));
  perform trunq._check_columns_are_there(trunq._find_queue(p_queue), array[p_column]);
  perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
  perform trunq._try_for_locks(p_queue, format('select trunq._drop_column($1, %L)', p_column));
  perform trunq._restore_role(v_role);
end $$;
comment on function trunq.drop_column is
  'Drops a column of your own from the log of a queue, with what messages have there. What is delayed, dead or archived keeps it aside. For the owner of trunq, or a member of that role.
Raises: TQ001; TQ005 for a column that you did not add, or that the filter of a subscription names; TQ007; TQ009 while an open transaction uses the queue, a view of yours shows the column, or an upgrade has yet to bring the queue up to date.
Locks: granting; the queue; for a moment its log, exclusively, waiting 200 ms at a time.';

create or replace function trunq.list_columns(p_queue text) returns table (name text, type text, preset text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return query select o.name, o.type, o.preset from trunq._own_columns(trunq._find_queue(p_queue)) o order by o.place;
end $$;
comment on function trunq.list_columns is
  'The columns of your own of a queue, in the order in which they were added: name, type, and the expression that is their default.
Raises: TQ001.';

create or replace function trunq._own_columns(p_queue trunq.queue)
returns table (place integer, name text, type text, preset text, is_given boolean)
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select a.attnum::integer, a.attname::text, format_type(a.atttypid, a.atttypmod), case when a.attgenerated = '' then pg_get_expr(f.adbin, f.adrelid) end,
    a.attgenerated = '' and a.attidentity <> 'a'
  -- By the catalog: not everybody may look a name up in that schema.
  from pg_class c join pg_attribute a on a.attrelid = c.oid
  left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
  where c.relnamespace = 'trunq_log'::regnamespace and c.relname = p_queue.log_table and a.attnum > 0 and not a.attisdropped
    -- One that is virtual has no value in a row that is passed on.
    and a.attgenerated <> 'v' and a.attname <> all ('{unique_key,unique_turn,unique_until}')
    and not exists (
      select from pg_class l join pg_attribute s on s.attrelid = l.oid
      where l.relnamespace = 'trunq_log'::regnamespace and l.relname = '_specimen' and s.attname = a.attname)
$$;
comment on function trunq._own_columns is 'The columns that the user added to the log of a queue. is_given: publishers may give it a value.';

create or replace function trunq._names_of_ours() returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- Of the log, with unique keys; of the view of messages; of batches; and what statements over the log call its rows, and put beside them.
  select '{id,txid,created_at,subscription_id,segment,attempt,priority,kind,key,payload,body,headers,errors,expiries,due_at,options,
    unique_key,unique_turn,unique_until,
    subscription,state,published_at,worker,leased_at,expires_at,finished_at,error,result,took,columns,g,told,hold,extra,is_next,is_again}'::text[]
$$;
comment on function trunq._names_of_ours is 'Names that no column of the user''s may have.';

create or replace function trunq._own_values(p_queue trunq.queue, p_row text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  -- A call has at most a hundred arguments.
  select coalesce(string_agg(format('pg_catalog.jsonb_build_object(%s)', o.pairs), ' operator(pg_catalog.||) ' order by o.part), 'null::jsonb')
  from (
    select (n.at - 1) / 40 part, string_agg(format('%L, %s.%I', n.name, p_row, n.name), ', ' order by n.at) pairs
    from (select o.name, row_number() over (order by o.place) at from trunq._own_columns(p_queue) o) n group by 1) o
$$;
comment on function trunq._own_values is 'An expression: the columns that the user added to a log, of a row, as a JSON object; null: there are none.';

create or replace function trunq._with_own_columns(p_queue trunq.queue, p_text text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when strpos(p_text, ' /*own_columns*/') = 0 then p_text
    when not exists (select from trunq._own_columns(p_queue)) then replace(p_text, ' /*own_columns*/', '')
    else replace(replace(p_text,
      'p_row.options::jsonb /*own_columns*/',
      format('coalesce(p_row.options::jsonb, ''{}'') operator(pg_catalog.||) pg_catalog.jsonb_build_object(''columns'', %s)', trunq._own_values(p_queue, 'p_row'))),
      'p_headers /*own_columns*/', 'trunq._sifted(p_headers, p_options operator(pg_catalog.->) ''columns'')') end
$$;
comment on function trunq._with_own_columns is
  'The text of a function of the specimen, for a queue: with the columns that the user added to its log, where the text says so.';

create or replace function trunq._knows_own_columns(p_queue trunq.queue) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p.prosrc = trunq._for_queue(p_queue, s.prosrc)
  from pg_proc s join pg_proc p on p.pronamespace = s.pronamespace and p.proname = p_queue.name || '_told_options'
  where s.pronamespace = 'trunq_queue'::regnamespace and s.proname = '_specimen_told_options'
$$;
comment on function trunq._knows_own_columns is 'Whether the functions of a queue know the columns that the user added to its log; null: they have none that should.';

create or replace function trunq._define_own_columns(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set check_function_bodies = off as $$
declare
  v_definition text;
begin
  -- These alone: what was changed by hand about the other functions of the queue stays.
  for v_definition in
    select trunq._for_queue(p_queue, pg_get_functiondef(p.oid)) from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace and p.proname = any ('{_specimen_told_options,_specimen_sifted}')
  loop
    execute v_definition;
  end loop;
  perform trunq._define_messages(p_queue);
  perform trunq._keep_roles(p_queue);
end $$;
comment on function trunq._define_own_columns is
  'Has the functions of a queue, its view and its publishers know the columns that the user added to its log.';

create or replace function trunq._check_new_column(p_queue text, p_column text, p_type text, p_default text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_type regtype;
begin
  if p_column is null or p_column = '' or octet_length(p_column) > 63 then
    perform trunq._fail('TQ005', format('a column has a name of 1 to 63 bytes, not %s', coalesce(format('"%s"', left(p_column, 100)), 'null')));
  -- Parameters and variables of a queue's functions, too.
  elsif p_column = any (trunq._names_of_ours()) or p_column ~ '^(trunq|p|v)_' then
    perform trunq._fail('TQ005', format('a column of your own cannot be called "%s": that name is one of trunq''s', p_column),
      format('take another name, such as my_%s', left(p_column, 60)));
  end if;
  begin
    v_type := to_regtype(p_type);
  exception when others then
    null;  -- before Postgres 16, what is no type is an error
  end;
  -- A number would be read as that of a type.
  if v_type is null or p_type ~ '^[0-9]' or (select t.typtype = 'p' from pg_type t where t.oid = v_type) then
    perform trunq._fail('TQ005', format('there is no type "%s" for column "%s" of queue "%s"', left(p_type, 100), p_column, p_queue),
      'give a type of Postgres such as text, bigint or numeric(12,2), or one of yours with its schema: public.mood');
  end if;
  begin
    -- The name of a type alone can be read as one; what follows it, a comment, ends with the line.
    execute format(E'select %L::%s\n', p_default, p_type);
  exception when data_exception or check_violation or not_null_violation then
    perform trunq._fail('TQ005', format('the default of column "%s" of queue "%s" is no %s: %s', p_column, p_queue, format_type(v_type, null), left(p_default, 100)),
      'give a value of that type, as text');
  end;
end $$;
comment on function trunq._check_new_column is 'Refuses (TQ005) what no column of the user''s can be.';

create or replace function trunq._require_current(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from trunq.outdated o where o.queue_id = p_queue.queue_id) then
    perform trunq._fail('TQ009', format('an upgrade has yet to bring queue "%s" up to date', p_queue.name), 'finish it first: trunq db upgrade');
  end if;
end $$;
comment on function trunq._require_current is 'Refuses (TQ009) a queue that an upgrade has yet to reach.';

create or replace function trunq._add_column(p_queue trunq.queue, p_column text, p_type text, p_default text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_new boolean;
  v_type text;
begin
  perform trunq._require_current(p_queue);
  select format_type(a.atttypid, a.atttypmod) into v_type from pg_attribute a
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attname = p_column and a.attnum > 0 and not a.attisdropped
    and a.atttypid <> to_regtype(p_type);
  if found then
    perform trunq._fail('TQ005', format('column "%s" of queue "%s" is %s already, not %s', p_column, p_queue.name, v_type, p_type), 'give that type, or another name');
  end if;
  v_is_new := not exists (
    select from pg_attribute a
    where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attname = p_column and a.attnum > 0 and not a.attisdropped);
  if v_is_new then
    execute format(E'alter table trunq_log.%I add column %I %s\n%s', p_queue.log_table, p_column, p_type, 'default ' || quote_literal(p_default));
  end if;
  if v_is_new or not trunq._knows_own_columns(p_queue) then
    perform trunq._define_own_columns(p_queue);
  end if;
  return v_is_new::integer;
end $$;
comment on function trunq._add_column is 'One try of add_column, under the lock of the queue. Returns: 1 when it is new.';

create or replace function trunq._drop_column(p_queue trunq.queue, p_column text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_reader text;
  v_readers oid[];
begin
  perform trunq._require_current(p_queue);
  select s.name into v_reader from trunq.subscription s
  where s.queue_id = p_queue.queue_id and (s.filter->'columns' ? p_column or s.filter->'not_columns' ? p_column) limit 1;
  if found then
    perform trunq._fail('TQ005', format('the filter of subscription "%s" names column "%s" of queue "%s"', v_reader, p_column, p_queue.name),
      format('give it another filter first: select trunq.subscribe(%L, %L, p_filter => ''{}'')', p_queue.name, v_reader));
  end if;
  begin
    -- The view shows it. What else does is the user's.
    v_readers := trunq._drop_messages_view(p_queue);
    execute format('alter table trunq_log.%I drop column %I', p_queue.log_table, p_column);
  exception when dependent_objects_still_exist then
    perform trunq._fail('TQ009', format('column "%s" of queue "%s" cannot go while a view or rule of yours shows it, or the view of messages', p_column, p_queue.name),
      'drop that first; all is as it was');
  end;
  perform trunq._define_own_columns(p_queue);
  perform trunq._grant_messages(p_queue, v_readers);
  return 1;
end $$;
comment on function trunq._drop_column is 'One try of drop_column, under the lock of the queue.';

create or replace function trunq._check_columns_are_there(p_queue trunq.queue, p_names text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_own constant text[] := array(select o.name from trunq._own_columns(p_queue) o order by o.place);
  v_unknown text;
begin
  select u.name into v_unknown from unnest(p_names) u(name) where (u.name = any (v_own)) is not true limit 1;
  if found then
    perform trunq._fail('TQ005', format('queue "%s" has no column "%s" of yours', p_queue.name, left(v_unknown, 100)),
      case when v_own = '{}' then '' else format('it has %s; ', left(array_to_string(v_own, ', '), 1000)) end
        || format('select trunq.add_column(%L, %L, ''text'') adds one', p_queue.name, left(v_unknown, 63)));
  end if;
end $$;
comment on function trunq._check_columns_are_there is 'Refuses (TQ005) names that no column of the user''s has.';

create or replace function trunq._check_given_columns(p_queue trunq.queue, p_columns jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if jsonb_typeof(p_columns) <> 'object' then
    perform trunq._fail('TQ005', format('the columns of a message are a JSON object, not %s', jsonb_typeof(p_columns)), 'give them by name: {"customer": "acme"}');
  end if;
  perform trunq._check_columns_are_there(p_queue, array(select jsonb_object_keys(p_columns)));
  begin
    execute format('select jsonb_populate_record(null::trunq_log.%I, $1)', p_queue.log_table) using p_columns;
  exception when data_exception or check_violation or not_null_violation then
    perform trunq._fail('TQ005', format('the columns of a message for queue "%s" cannot be read: %s', p_queue.name, left(sqlerrm, 200)),
      format('trunq.list_columns(%L) tells their types', p_queue.name));
  end;
end $$;
comment on function trunq._check_given_columns is 'Refuses (TQ005) what publishers cannot give as the columns of a message.';

create or replace function trunq._check_filter_columns(p_queue text, p_filter jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_filter ?| '{columns,not_columns}' then
    perform trunq._check_columns_are_there(trunq._find_queue(p_queue), array(
      select jsonb_object_keys(p_filter->'columns') union select jsonb_object_keys(p_filter->'not_columns')));
  end if;
end $$;
comment on function trunq._check_filter_columns is 'Refuses (TQ005) a filter that asks of columns which the queue has not.';
