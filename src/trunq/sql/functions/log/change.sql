-- How a captured table publishes: the trigger function that trunq._define_capture writes for it, and what it may be given.
--
-- A statement with rows publishes them by one INSERT ... SELECT from its transition tables. Old and new rows of an UPDATE meet by their
-- place, not by their key, which may have changed, or not be there: both tables list them in one order. Unless a trigger of a partition
-- swallows a row that moves there: then the numbers differ, places mean nothing, and the rows are said to be deleted and inserted.
--
-- Names that the function uses meet no column of the user's: rows are taken as a whole, t.*, and everything outside reads JSON. Plans
-- are kept for statements of one row and of a million alike, so the join of an UPDATE is a merge join: a nested loop would never end for a
-- million rows, and the table of a hash join that was planned for many costs a statement of one row a tenth of a millisecond.

create or replace function trunq._define_capture(p_capture trunq.capture) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_function constant text := 'capture_' || p_capture.capture_id;
begin
  -- A literal as a whole: whatever stands in it.
  execute format($q$
    create or replace function trunq_data.%I() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp set trunq.plan = merge
    set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set TimeZone = 'UTC' set bytea_output = hex set extra_float_digits = 1 set lc_monetary = 'C'
    as %L
  $q$, v_function, trunq._capture_body(p_capture));
  -- As the functions of gate.sql: nobody puts it on a table of his own.
  execute format('revoke execute on function trunq_data.%I() from public', v_function);
  -- Told again by _restore_captures.
  execute format('comment on function trunq_data.%I() is %L', v_function,
    'Publishes the changes of a captured table: ' || (to_jsonb(p_capture) || jsonb_build_object('queue', (trunq._find_queue(p_capture.queue_id)).name))::text);
end $$;
comment on function trunq._define_capture is 'Makes the trigger function of a capture.';

create or replace function trunq._capture_body(p_capture trunq.capture) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  -- Virtual columns are null in transition tables: not there is truer.
  v_row constant text := concat('to_jsonb(t.*)', ' - ' || quote_literal(p_capture.hidden) || '::text[]');
  v_both constant text := format('(select b.row as before, a.row as after, a.at from (select %1$s as row, row_number() over () as at from gone t) b'
    ' join (select %1$s as row, row_number() over () as at from added t) a on a.at = b.at offset 0) r', v_row);
  v_log constant text := format('trunq_log.%I', (trunq._find_queue(p_capture.queue_id)).log_table);
  v_where constant text := trunq._where_condition(p_capture, 'r.row');
  v_old text := 'r.before';
  v_new text := 'r.after';
  v_pairs text := v_both;
  v_added text; v_gone text; v_differs text;
begin
  v_added := concat('(select ', v_row, ' as row from added t offset 0) r', ' where ' || v_where);
  v_gone := concat('(select ', v_row, ' as row from gone t offset 0) r', ' where ' || v_where);
  if p_capture.columns is not null then
    v_pairs := format('(select r.*, %s as picked_before, %s as picked_after from %s offset 0) r',
      trunq._picked_columns(p_capture, 'r.before'), trunq._picked_columns(p_capture, 'r.after'), v_both);
    v_old := 'r.picked_before';
    v_new := 'r.picked_after';
  end if;
  v_differs := concat(
    format(case when p_capture.ignore is null then '%1$s <> %2$s' else '%1$s - %3$L::text[] <> %2$s - %3$L::text[]' end, v_old, v_new, p_capture.ignore),
    ' and (' || trunq._where_condition(p_capture, 'r.before') || ' or ' || trunq._where_condition(p_capture, 'r.after') || ')');
  return format($body$
    declare
      v_added bigint; v_gone bigint;
    begin
      if current_setting('session_replication_role') = 'local' then
        return null;
      end if;
      if tg_op = 'INSERT' then
        if not exists (select from %2$s) then
          return null;
        end if;%8$s
        %3$s;
      elsif tg_op = 'DELETE' then
        if not exists (select from %4$s) then
          return null;
        end if;%9$s
        %5$s;
      elsif tg_op = 'UPDATE' then
        v_added := (select count(*) from added); v_gone := (select count(*) from gone);
        if v_gone = 0 then
          return null;
        end if;%10$s
        if v_added <> v_gone then
          %5$s;
          %3$s;
          return null;
        end if;%6$s
        %7$s;
      elsif trunq._is_truncated_alone(%12$s, tg_relid, tg_nargs) then%11$s
        insert into %1$s (kind, payload) select %13$s;
      end if;
      return null;
    end $body$,
    v_log, v_added, trunq._publish_changes(v_log, concat(trunq._change_message(p_capture, 'insert', 'r.row', 'null', trunq._picked_columns(p_capture, 'r.row')), ' from ', v_added)),
    v_gone, trunq._publish_changes(v_log, concat(trunq._change_message(p_capture, 'delete', 'r.row', trunq._picked_columns(p_capture, 'r.row'), 'null'), ' from ', v_gone)),
    -- An INSERT of no rows wakes workers, and a gate refuses it, all the same: a statement that changes nothing should do neither.
    case when num_nonnulls(p_capture.columns, p_capture.ignore, p_capture.condition) > 0 then concat(
      E'\n        if v_added <= 1000 and not exists (select from ', v_pairs, ' where ', v_differs, E') then\n          return null;\n        end if;') end,
    trunq._publish_changes(v_log, concat(trunq._change_message(p_capture, 'update', 'r.after', v_old, v_new), ' from ', v_pairs, ' where ', v_differs, ' order by r.at')),
    trunq._change_refusal(p_capture, 'insert'), trunq._change_refusal(p_capture, 'delete'), trunq._change_refusal(p_capture, 'update'), trunq._change_refusal(p_capture, 'truncate'),
    p_capture.capture_id, trunq._truncate_message(p_capture));
end $$;
comment on function trunq._capture_body is 'The body of the trigger function of a capture.';

create or replace function trunq._publish_changes(p_log text, p_changes text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- The domains of the log would refuse them too, and name no way out. "offset 0": what a message is made of is computed once.
  select format('insert into %s (kind, key, payload) select m.kind, case when octet_length(m.key) > %s then trunq._refuse_key(tg_relid, m.key) else m.key end,'
    ' case when pg_column_size(m.payload) > %s then trunq._refuse_row(tg_relid, m.payload) else m.payload end from (select %s offset 0) m(kind, key, payload)',
    p_log, trunq._limit('label_bytes'), trunq._limit('message_bytes'), p_changes)
$$;
comment on function trunq._publish_changes is 'The statement that publishes changes, a list of expressions and where they come from.';

create or replace function trunq._change_message(p_capture trunq.capture, p_op text, p_key_row text, p_before text, p_after text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('%L, %s, %s', trunq._capture_kind(p_capture, p_op),
    coalesce((select string_agg(format('(%s ->> %L)', p_key_row, k.name), ' || '':'' || ' order by k.at) from unnest(p_capture.key) with ordinality k(name, at)), 'null::text'),
    case p_capture.format
      when 'debezium' then format('jsonb_build_object(''before'', %s, ''after'', %s, ''op'', %L, %s)', p_before, p_after,
        case p_op when 'insert' then 'c' when 'update' then 'u' else 'd' end, trunq._debezium_source(p_capture))
      else format('jsonb_build_object(''op'', %L, ''table'', %L, ''before'', %s, ''after'', %s%s, ''at'', statement_timestamp())',
        p_op, p_capture.name, p_before, p_after, case when p_op = 'update' then format(', ''changed'', (select jsonb_agg(c.name) from (select jsonb_object_keys(%2$s) as name) c where %1$s -> c.name is distinct from %2$s -> c.name)',
          p_before, p_after) else '' end) end)
$$;
comment on function trunq._change_message is
  'Kind, key and payload of a change, as a list of expressions: p_key_row, p_before and p_after are expressions of the rows.';

create or replace function trunq._debezium_source(p_capture trunq.capture) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('''ts_ms'', floor(extract(epoch from statement_timestamp()) * 1000)::bigint, ''source'', jsonb_build_object(''connector'', ''trunq'', ''db'', current_database(), ''schema'', %L, ''table'', %L, ''txId'', pg_current_xact_id()::text::bigint)',
    split_part(p_capture.name, '.', 1), substr(p_capture.name, strpos(p_capture.name, '.') + 1))
$$;
comment on function trunq._debezium_source is 'The members ts_ms and source of a message in the format of Debezium.';

create or replace function trunq._truncate_message(p_capture trunq.capture) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('%L, %s', trunq._capture_kind(p_capture, 'truncate'), case p_capture.format
    when 'debezium' then format('jsonb_build_object(''before'', null, ''after'', null, ''op'', ''t'', %s)', trunq._debezium_source(p_capture))
    else format('jsonb_build_object(''op'', ''truncate'', ''table'', %L, ''before'', null, ''after'', null, ''at'', statement_timestamp())', p_capture.name) end
    || ' || case when tg_nargs = 0 then jsonb_build_object(''partition'', tg_table_schema || ''.'' || tg_table_name) else ''{}'' end')
$$;
comment on function trunq._truncate_message is 'Kind and payload of a TRUNCATE, as a list of expressions; partition: one alone was emptied.';

create or replace function trunq._capture_kind(p_capture trunq.capture, p_op text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- The table last: its name may hold anything.
  select replace(replace(p_capture.kind, '{op}', p_op), '{table}', p_capture.name)
$$;
comment on function trunq._capture_kind is 'The kind of the messages of a capture about inserts, updates, deletes or TRUNCATE.';

create or replace function trunq._picked_columns(p_capture trunq.capture, p_row text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_capture.columns is null then p_row else '(' || (
    -- A function has 100 arguments at most.
    select string_agg(c.part, ' || ') from (
      select format('jsonb_build_object(%s)', string_agg(format('%L, %s -> %1$L', u.name, p_row), ', ' order by u.at)) part
      from unnest(p_capture.columns) with ordinality u(name, at) group by (u.at - 1) / 50 order by 1) c) || ')' end
$$;
comment on function trunq._picked_columns is 'Of a row, an expression, the columns that are published.';

create or replace function trunq._where_condition(p_capture trunq.capture, p_row text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select '(' || string_agg(format('(%s -> %L = any (%L::jsonb[])) is %s true', p_row, o.key, array(select jsonb_array_elements(o.value))::text,
    case c.key when 'not_in' then 'not' else '' end), ' and ' order by c.key, o.key) || ')'
  from jsonb_each(p_capture.condition) c cross join jsonb_each(c.value) o
$$;
comment on function trunq._where_condition is 'The condition that a row, an expression, passes; its values are literals. Null: all rows do.';

create or replace function trunq._where_columns(p_where jsonb) returns setof text
language sql immutable set search_path = pg_catalog, pg_temp as $$ select o.key from jsonb_each(p_where) c cross join jsonb_each(c.value) o $$;
comment on function trunq._where_columns is 'The columns that a condition names.';

create or replace function trunq._change_refusal(p_capture trunq.capture, p_op text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_op = any (p_capture.deny) then E'\n        perform trunq._refuse_change(tg_relid, tg_op);' else '' end
$$;
comment on function trunq._change_refusal is 'What refuses a change that is denied; empty where it is not.';

create or replace function trunq._refuse_change(p_relation oid, p_op text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ020', format('table "%s" may not be changed by %s while it is captured', trunq._table_name(p_relation), p_op),
    'whoever captured it with p_deny lets it again, by trunq.capture without, or trunq.uncapture');
end $$;
comment on function trunq._refuse_change is 'Says that a captured table denies a change (TQ020).';

create or replace function trunq._refuse_row(p_relation oid, p_payload jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ006', format('a change of table "%s" is too large to be published: %s bytes, at most %s', trunq._table_name(p_relation),
    pg_column_size(p_payload), trunq._limit('message_bytes')), 'trunq.capture with p_columns publishes the columns it names alone; or trunq.uncapture the table');
end $$;
comment on function trunq._refuse_row(oid, jsonb) is 'Says that a change of a captured table is too large for a message (TQ006).';

create or replace function trunq._refuse_key(p_relation oid, p_key text) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ006', format('the key of a change of table "%s" is too long to be published: %s bytes, at most %s', trunq._table_name(p_relation),
    octet_length(p_key), trunq._limit('label_bytes')), 'trunq.capture with p_key makes it of other columns, {} of none; or trunq.uncapture the table');
end $$;
comment on function trunq._refuse_key is 'Says that the key of a change of a captured table is too long for a message (TQ006).';

create or replace function trunq._is_truncated_alone(p_capture_id integer, p_relation oid, p_arguments integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- The triggers of a table fire before those of its partitions, but for partitions that the statement names before it. Those have
  -- been published then; in doubt, a message more does no harm.
  v_statement constant text := extract(epoch from statement_timestamp())::text;
  v_expected constant text := concat_ws(' ', v_statement, p_capture_id, 'expected', '');
  v_published constant text := concat_ws(' ', v_statement, p_capture_id, 'published', '');
  v_noted text[] := coalesce(nullif(current_setting('trunq.truncated', true), ''), '{}')::text[];
  v_at integer := array_position(v_noted, v_expected || p_relation);
begin
  if p_arguments = 0 and v_at is not null then
    perform set_config('trunq.truncated', (v_noted[:v_at - 1] || v_noted[v_at + 1:])::text, true);
    return false;
  end if;
  perform set_config('trunq.truncated', array(
    select n from unnest(v_noted) n where starts_with(n, v_statement)
    union select v_published || p_relation
    union select v_expected || p from trunq._parts(p_relation) p where p <> p_relation and v_published || p <> all (v_noted))::text, true);
  return true;
end $$;
comment on function trunq._is_truncated_alone is
  'Whether a TRUNCATE of a table is to be published, and not that of a table above it in the same statement.';

create or replace function trunq._restore_captures() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_given jsonb;
begin
  for v_given in
    select substring(obj_description(p.oid, 'pg_proc') from '^Publishes the changes of a captured table: (.*)$')::jsonb
    from pg_proc p where p.pronamespace = 'trunq_data'::regnamespace and p.proname ~ '^capture_\d+$'
  loop
    continue when v_given is null or exists (select from trunq.capture c where c.capture_id = (v_given->>'capture_id')::integer);
    insert into trunq.capture overriding system value
    select (jsonb_populate_record(null::trunq.capture, v_given || jsonb_build_object('queue_id', q.queue_id))).*
    from trunq.queue q where q.name = v_given->>'queue';
  end loop;
  perform setval(pg_get_serial_sequence('trunq.capture', 'capture_id'), max(c.capture_id)) from trunq.capture c having count(*) > 0;
end $$;
comment on function trunq._restore_captures is 'Into a copy of the schema alone: the captures that their functions tell of.';

create or replace function trunq._fail_table(p_table text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ005', format('there is no table "%s"', left(coalesce(p_table, ''), 200)), 'name it as in SQL, with its schema: public.orders, or "Shop"."Orders"');
end $$;
comment on function trunq._fail_table is 'Says that there is no such table (TQ005).';

create or replace function trunq._check_table(p_relation regclass, p_table text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_table record;
  v_type record;
  v_owner text := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'trunq');
  v_name constant text := trunq._table_name(p_relation);
begin
  select c.relkind, c.relpersistence, c.relowner, n.nspname, (select i.inhparent from pg_inherits i where i.inhrelid = c.oid limit 1) parent,
    exists (select from pg_inherits i where i.inhparent = c.oid) has_children,
    (select min(trunq._table_name(p)) from trunq._parts(c.oid) p join pg_class f on f.oid = p where f.relkind = 'f') foreigner
  into v_table from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = p_relation;
  if not found then
    perform trunq._fail_table(p_table);
  elsif v_table.relkind not in ('r', 'p') then
    perform trunq._fail('TQ005', format('"%s" is %s: only tables are captured', v_name,
        case v_table.relkind when 'v' then 'a view' when 'm' then 'a materialized view' when 'f' then 'a foreign table' else 'no table' end),
      'capture the tables that it reads');
  elsif v_table.relpersistence = 't' then
    perform trunq._fail('TQ005', format('table "%s" is temporary: it ends with its session', p_table), 'capture a table that stays');
  elsif v_table.nspname ~ '^(trunq(_log|_queue|_data|_archive)?|pg_catalog|pg_toast|information_schema)$' then
    perform trunq._fail('TQ005', format('table "%s" belongs to trunq or to Postgres itself', v_name), 'capture a table of your own');
  elsif v_table.parent is not null then
    perform trunq._fail('TQ005', format('table "%s" is a part of "%s": changes that name that one pass its triggers by', v_name, trunq._table_name(v_table.parent)),
      'capture the table above');
  elsif v_table.relkind = 'r' and v_table.has_children then
    perform trunq._fail('TQ005', format('table "%s" has others that inherit from it', v_name), 'partition it, or capture tables that nothing inherits from');
  elsif v_table.foreigner is not null then
    perform trunq._fail('TQ005', format('partition "%s" of "%s" is a foreign table: it has no transition tables', v_table.foreigner, v_name),
      'capture it where its rows are');
  elsif not has_table_privilege(p_relation, 'trigger') then
    perform trunq._fail('42501', format('"%s" may not capture table "%s"', current_user, v_name), format('its owner grants that: grant trigger on %s to %I', p_relation, current_user));
  elsif not pg_has_role(v_table.relowner, v_owner, 'member') then
    -- The essay of capture.sql tells why.
    perform trunq._fail('42501', format('table "%s" belongs to "%s", who may not act as "%s", the owner of trunq', v_name, pg_get_userbyid(v_table.relowner), v_owner),
      format('a table''s types run code when its rows become JSON, and that would run as "%s"; let the table belong to that role or a member of it', v_owner));
  end if;
  select f.* into v_type from trunq._foreign_types(p_relation) f limit 1;
  if found then
    perform trunq._fail('42501', format('table "%s" has a column of the type %s, which belongs to "%s", who may not act as "%s", the owner of trunq',
        v_name, v_type.type, v_type.owner, v_owner),
      format('a type''s casts run when its values become JSON, and that would be as "%s": %s', v_owner, v_type.way_out));
  end if;
end $$;
comment on function trunq._check_table is 'Refuses what cannot be captured (TQ005), or not by this role, or not of its owner (42501).';

create or replace function trunq._check_columns(p_relation regclass, p_what text, p_columns text[]) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_missing text;
  v_columns text[];
begin
  if array_ndims(p_columns) > 1 or exists (select from unnest(p_columns) u(name) where u.name is null) then
    perform trunq._fail('TQ005', format('%s of table "%s" must be a list of columns', p_what, trunq._table_name(p_relation)), 'give names, without quotes: {status,total}');
  end if;
  select array_agg(a.attname::text order by a.attnum) into v_columns from pg_attribute a where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped;
  select u.name into v_missing from unnest(p_columns) u(name) where u.name <> all (coalesce(v_columns, '{}')) limit 1;
  if found then
    perform trunq._fail('TQ005', format('table "%s" has no column "%s", which %s names', trunq._table_name(p_relation), left(v_missing, 100), p_what),
      format('it has: %s', left(array_to_string(v_columns, ', '), 1000)));
  end if;
  select u.name into v_missing from unnest(p_columns) u(name) where u.name = any (trunq._virtual_columns(p_relation)) limit 1;
  if found then
    perform trunq._fail('TQ005', format('column "%s" of table "%s", which %s names, is virtual: no trigger sees its values', v_missing, trunq._table_name(p_relation), p_what),
      'generate it as stored, or compute it where it is read');
  end if;
  return nullif(p_columns, '{}');
end $$;
comment on function trunq._check_columns is 'The columns given, or null for none; TQ005 for what is no column of a table.';

create or replace function trunq._check_deny(p_deny text[]) returns text[]
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_unknown text;
begin
  select coalesce(u.op, '') into v_unknown from unnest(p_deny) u(op) where u.op is null or u.op <> all (trunq._words('change')) limit 1;
  if found then
    perform trunq._fail('TQ005', format('a capture cannot deny "%s"', left(v_unknown, 100)), 'it can deny insert, update, delete and truncate');
  end if;
  return nullif(p_deny, '{}');
end $$;
comment on function trunq._check_deny is 'The changes to be refused, or null for none; TQ005 for others than there are.';

create or replace function trunq._check_where(p_relation regclass, p_where jsonb) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_way_out constant text := 'a condition is like {"in": {"status": ["paid", "sent"]}, "not_in": {"country": ["XX", null]}}';
  v record;
begin
  if p_where is null or p_where = '{}' then
    return null;
  elsif jsonb_typeof(p_where) <> 'object' then
    perform trunq._fail('TQ005', format('a condition is a JSON object, not %s', jsonb_typeof(p_where)), c_way_out);
  elsif pg_column_size(p_where) > trunq._limit('filter_bytes') then
    perform trunq._fail('TQ005', format('a condition has at most %s bytes, not %s', trunq._limit('filter_bytes'), pg_column_size(p_where)), c_way_out);
  end if;
  for v in select c.key member, c.value from jsonb_each(p_where) c loop
    if v.member not in ('in', 'not_in') then
      perform trunq._fail('TQ005', format('a condition has no "%s"; it has in and not_in', left(v.member, 100)), c_way_out);
    elsif jsonb_typeof(v.value) <> 'object' or v.value = '{}' then
      perform trunq._fail('TQ005', format('"%s" of a condition is an object of columns', v.member), c_way_out);
    end if;
  end loop;
  perform trunq._check_columns(p_relation, 'where', array(select trunq._where_columns(p_where)));
  for v in select o.key as name, o.value from jsonb_each(p_where) c cross join jsonb_each(c.value) o loop
    if jsonb_typeof(v.value) <> 'array' or jsonb_path_exists(v.value, 'strict $[*] ? (@.type() == "array" || @.type() == "object")') then
      perform trunq._fail('TQ005', format('column "%s" of a condition has a list of texts, numbers, true, false or null, not %s', left(v.name, 100), left(v.value::text, 100)), c_way_out);
    end if;
  end loop;
  return p_where;
end $$;
comment on function trunq._check_where is 'A condition of rows, or null for all; TQ005 for anything else.';

create or replace function trunq._check_kinds(p_capture trunq.capture, p_queue trunq.queue) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_kind text;
begin
  for v_kind in
    select trunq._capture_kind(p_capture, o.op) from unnest(trunq._words('change')) o(op)
    where (o.op = any (p_capture.deny)) is not true
  loop
    if v_kind = '' then
      perform trunq._fail('TQ005', 'a capture cannot give its messages an empty kind', 'leave p_kind out for {table}.{op}');
    end if;
    perform trunq._check_label(p_queue.name, octet_length(v_kind));
    if (v_kind = any (p_queue.kinds)) is false then
      perform trunq._fail('TQ005', format('queue "%s" takes no message of kind "%s", which a change of table "%s" would be', p_queue.name, v_kind, p_capture.name),
        'let it take that kind (trunq.set_publishing), or give p_kind another one');
    end if;
  end loop;
end $$;
comment on function trunq._check_kinds is 'Refuses (TQ005, TQ006) kinds of messages that the queue does not take.';
