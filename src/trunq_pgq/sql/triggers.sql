-- The row triggers pgq.jsontriga, logutriga and sqltriga: an event for each row that a table's users insert, update or delete.
--
-- One body for the three: it splits the text of a row into those of its columns, and a format puts them together. So no statement has to be
-- made for a table; only expressions, and values of types that can be equal though written differently, need one. trunq.capture does the
-- same at a fraction of the cost, a statement at a time. What a format looks like, which options there are and what they refuse, is PgQ's,
-- with its words: programs read them.
--
-- Nothing here has another's rights: expressions of the options are the SQL of whoever made the trigger, and run as in PgQ for whoever
-- changes the table, in his search_path. The text of a value follows the session too (DateStyle, bytea_output; search_path for regclass). So the
-- triggers themselves have no search_path, and name the schema of each function, operator and type; what they call has one, or a body that was
-- bound when it was made (return). Whoever may create functions in a schema on that path would otherwise have his own run by all who change the table: cardinality(text[]) of anybody's beats the
-- polymorphic one.

create or replace function pgq._raise(p_message text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = 'internal_error', message = p_message;
end $$;
comment on function pgq._raise is 'Raises what PgQ''s functions in C raise: they give no class of errors.';

create or replace function pgq._read_options(p_arguments text[], p_op text) returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_options jsonb := '{"skip": false, "backup": false, "deny": false, "expressions": {}}';
  v_argument text;
  v_name text;
  v_value text;
begin
  foreach v_argument in array p_arguments[1:] loop
    v_name := split_part(v_argument, '=', 1);
    v_value := substr(v_argument, length(v_name) + 2);
    if v_argument in ('SKIP', 'backup', 'deny') then
      v_options := v_options || jsonb_build_object(lower(v_argument), true);
    elsif strpos(v_argument, '=') > 0 and v_name in ('ignore', 'pkey') then
      v_options := v_options || jsonb_build_object(v_name, v_value);
    elsif p_op = 'TRUNCATE' and strpos(v_argument, '=') > 0 and v_name ~ '^(when|ev_type|ev_data|ev_extra[1-4])$' then
      perform pgq._raise('Custom expressions do not make sense for truncater trigger');
    elsif strpos(v_argument, '=') > 0 and v_name ~ '^(when|ev_type|ev_data|ev_extra[1-4])$' then
      -- Of two for one field the first is taken.
      v_options := jsonb_set(v_options, '{expressions}', jsonb_build_object(v_name, v_value) || (v_options -> 'expressions'));
    else
      perform pgq._raise('bad param to pgq trigger');
    end if;
  end loop;
  return v_options;
end $$;
comment on function pgq._read_options is 'What the arguments of a trigger say, the queue (number 0) apart.';

-- A name may have a blank in it, and be found all the same: PgQ looks for the text of it between commas and blanks.
create or replace function pgq._is_listed(p_list text, p_name text) returns boolean
language sql immutable
return strpos(p_list, p_name) > 0 and strpos(',' || translate(p_list, E' \t\n\v\f\r', ',,,,,,') || ',', ',' || translate(p_name, E' \t\n\v\f\r', ',,,,,,') || ',') > 0;
comment on function pgq._is_listed is 'Whether a list of columns, separated by commas or blanks, names one.';

create or replace function pgq._key_columns(p_relation oid) returns text[]
language sql stable
return array(
    select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indexrelid
    where i.indrelid = p_relation and i.indisprimary order by a.attnum);
comment on function pgq._key_columns is 'Columns of a table''s primary key, in its order; none when there is no key.';

create or replace function pgq._event_type(p_format text, p_op text, p_schema text, p_table text, p_key text[]) returns text
language sql immutable
return case p_format
    when 'json' then format('{"op":%s,"table":%s,"pkey":%s}', to_json(p_op), to_json(array[p_schema, p_table]),
      case when p_key = '{}' then '[""]' else to_json(coalesce(p_key, '{}'))::text end)
    else case p_op when 'TRUNCATE' then 'R' else left(p_op, 1) end
      || case when p_format = 'logu' and p_op <> 'TRUNCATE' then ':' || coalesce(array_to_string(p_key, ','), '') else '' end end;
comment on function pgq._event_type is 'What a trigger writes to ev_type. p_key: null when there is none.';

create or replace function pgq._urlencode(p_text text) returns text
language sql immutable strict
return case when p_text ~ '^[-_.a-zA-Z0-9]*$' collate "C" then p_text else (
    select string_agg(case
      when c = ' ' then '+'
      when c ~ '^[-_.a-zA-Z0-9]$' collate "C" then c
      else regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '..', '%\&', 'g') end, '' order by n)
    from string_to_table(p_text, null) with ordinality u(c, n)) end;
comment on function pgq._urlencode is 'As in an address: letters, digits and -_. as they are, a blank as +, all else as % and two digits.';

-- A field is empty for null, or in quotes, in which quotes and backslashes stand twice, or as it is.
create or replace function pgq._split_row(p_row text) returns text[]
language sql immutable
return array(
    select case when m[1] is not null then replace(replace(m[1], '""', '"'), '\\', '\') else nullif(m[2], '') end
    from regexp_matches(substr(p_row, 2, length(p_row) - 2) || ',', '(?:"((?:[^"]|"")*)"|([^,"]*)),', 'g') with ordinality r(m, n) order by n);
comment on function pgq._split_row is
  'The columns of a row, of which Postgres gives the text: each as its type''s output function writes it, which a cast to text does not for booleans, char(n) and inet.';

create or replace function pgq._json_values(p_values text[], p_types oid[], p_names text[], p_is_field boolean[], p_row json) returns text[]
language sql immutable
return array(
    select case
      when u.value is null or u.is_field then u.value
      when u.type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) then u.value
      when u.type = 'bool'::regtype then case u.value when 't' then 'true' else 'false' end
      when u.type in ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype) then (p_row -> u.name)::text
      else to_json(u.value)::text end
    from unnest(p_values, p_types, p_names, p_is_field) with ordinality u(value, type, name, is_field, n) order by u.n);
comment on function pgq._json_values is
  'The columns of a row in JSON, from their texts: times as JSON has them (p_row, which tells nothing else), all but numbers and booleans as strings.';

create or replace function pgq._times(p_names text[], p_types oid[], p_row anyelement) returns json
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_columns text;
  v_times json;
begin
  if not 16384 <= any (p_types) then
    return row_to_json(p_row);
  end if;
  -- Of a type that users made, Postgres makes JSON by its cast, the code of whoever owns the type: PgQ runs none.
  select string_agg(format('$1.%I', u.name), ', ' order by u.n) into v_columns from unnest(p_names, p_types) with ordinality u(name, type, n)
  where u.type in ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype);
  execute format('select row_to_json(t) from (select %s) t', v_columns) into v_times using p_row;
  return v_times;
end $$;
comment on function pgq._times is 'The times of a row as JSON has them; other members tell nothing.';

create or replace function pgq._compares_by_operator(p_type oid) returns boolean
language sql stable
return exists (
  select from pg_type t join pg_opclass c on c.opcintype in (t.oid, t.typbasetype, case t.typtype when 'r' then 'anyrange'::regtype end) and c.opcdefault
  join pg_am m on m.oid = c.opcmethod
  where t.oid = p_type and t.typtype in ('b', 'd', 'r') and t.typcategory <> 'A' and m.amname in ('btree', 'hash'));
comment on function pgq._compares_by_operator is
  'Can two values of the type be equal that are written differently (1.5 and 1.50, a day and 24 hours)? Arrays and rows PgQ compares as text.';

create or replace function pgq._refuse_change(p_options jsonb, p_op text, p_when text, p_schema text, p_table text, p_queue text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if (p_options ->> 'skip')::boolean and p_when = 'AFTER' then
    perform pgq._raise('SKIP does not work in AFTER trigger.');
  elsif (p_options ->> 'deny')::boolean then
    perform pgq._raise(format('Table ''%s.%s'' to queue ''%s'': change not allowed (%s)', p_schema, p_table, p_queue, p_op));
  end if;
end $$;
comment on function pgq._refuse_change is 'Raises under the option deny, and for SKIP where there is nothing left to be skipped.';

create or replace function pgq._truncate_event(p_format text, p_op text, p_when text, p_relation oid, p_schema text, p_table text, p_arguments text[]) returns text[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_options jsonb := pgq._read_options(p_arguments, p_op);
begin
  if p_op <> 'TRUNCATE' then
    perform pgq._raise('pgq Ins/Upd/Del trigger must be fired FOR EACH ROW');
  elsif v_options ? 'ignore' then
    perform pgq._raise('Column ignore does not make sense for truncate trigger');
  elsif v_options ? 'pkey' then
    perform pgq._raise('Custom pkey_list does not make sense for truncate trigger');
  elsif (v_options ->> 'backup')::boolean then
    perform pgq._raise('Backup does not make sense for truncate trigger');
  end if;
  perform pgq._refuse_change(v_options, p_op, p_when, p_schema, p_table, p_arguments[0]);
  return array[pgq._event_type(p_format, p_op, p_schema, p_table, nullif(pgq._key_columns(p_relation), '{}')),
    case p_format when 'json' then '{}' else '' end, p_schema || '.' || p_table, null, null, null];
end $$;
comment on function pgq._truncate_event is 'The fields of the event of a TRUNCATE, from ev_type on.';

create or replace function pgq._evaluate(p_expressions jsonb, p_names text[], p_is_kept boolean[], p_path text, p_before anyelement, p_row anyelement) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_columns constant text := coalesce((
    select string_agg(format('$%s.%I', case when u.is_kept then 1 else 2 end, u.name), ', ' order by u.n)
    from unnest(p_names, p_is_kept) with ordinality u(name, is_kept, n) having bool_or(u.is_kept)), '$2.*');
  v_query text;
  v_values jsonb := '{}';
  v_field text;
  v_value text;
  v_type oid;
begin
  for v_field, v_value in select e.key, e.value from jsonb_each_text(p_expressions) e order by e.key <> 'when', e.key loop
    v_query := format('select case when pg_catalog.num_nulls(e.x) operator(pg_catalog.=) 0 then pg_catalog.format(''%%s'', e.x) end, pg_catalog.pg_typeof(e.x)'
      ' from (select %s) r cross join lateral (select (%s) as x) e', v_columns, v_value);
    -- Until we return at the latest, whatever is raised.
    perform pg_catalog.set_config('search_path', p_path, true);
    execute v_query into v_value, v_type using p_before, p_row;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    if v_field = 'when' and v_type <> 'bool'::regtype then
      perform pgq._raise(format('when= query result must be boolean, got=%s', v_type));
    elsif v_field = 'when' and v_value is null then
      perform pgq._raise('when= should not be NULL');
    end if;
    v_values := v_values || jsonb_build_object(v_field, v_value);
  end loop;
  return v_values;
end $$;
comment on function pgq._evaluate is
  'What SQL expressions give for a row, as text, in a search_path. p_is_kept: columns that have the value of the row before.';

create or replace function pgq._format_row(p_format text, p_op text, p_names text[], p_values text[], p_is_key boolean[], p_is_data boolean[], p_changed boolean[])
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_parts text[] := '{}';
  v_names text[] := '{}';
  v_wheres text[] := '{}';
begin
  for i in 1 .. coalesce(cardinality(p_names), 0) loop
    if p_format = 'sql' and p_is_key[i] and p_op <> 'INSERT' then
      if p_values[i] is null then
        perform pgq._raise('logtriga: Unexpected NULL key value');
      end if;
      v_wheres := v_wheres || format('%I=%s', p_names[i], quote_literal(p_values[i]));
    end if;
    if p_is_data[i] then
      v_names := v_names || quote_ident(p_names[i]);
      v_parts := v_parts || case
        when p_format = 'json' then to_json(p_names[i]) || ':' || coalesce(p_values[i], 'null')
        when p_format = 'logu' then pgq._urlencode(p_names[i]) || coalesce('=' || pgq._urlencode(p_values[i]), '')
        when p_op = 'INSERT' then coalesce(quote_literal(p_values[i]), 'null')
        when p_changed[i] then format('%I=%s', p_names[i], quote_nullable(p_values[i])) end;
    end if;
  end loop;
  if p_format = 'json' then
    return '{' || array_to_string(v_parts, ',') || '}';
  elsif p_format = 'logu' then
    return array_to_string(v_parts, '&');
  elsif p_op = 'INSERT' then
    return format('(%s) values (%s)', array_to_string(v_names, ','), array_to_string(v_parts, ','));
  elsif p_op = 'DELETE' then
    return array_to_string(v_wheres, ' and ');
  elsif not true = any (p_changed) and v_wheres = '{}' then
    perform pgq._raise('logtriga: Unexpected NULL key value');
  end if;
  -- An UPDATE that changes nothing sets the first column of the key.
  return format('%s where %s', case when true = any (p_changed) then array_to_string(v_parts, ',') else v_wheres[1] end,
    array_to_string(v_wheres, ' and '));
end $$;
comment on function pgq._format_row is
  'What a trigger writes to ev_data. p_is_data: columns that are neither ignored nor fields of the event; p_changed: of them, those that an UPDATE changes.';

create or replace function pgq._differ(p_columns text[], p_before anyelement, p_after anyelement) returns text[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_differ text[];
begin
  -- By the operator of the type's own class, as PgQ: one that is found by its name may be anybody's.
  execute format('select array_remove(array[%s], null) from (select $1.*) o cross join (select $2.*) n',
    (select string_agg(format('case when not record_eq(row(o.%1$I), row(n.%1$I)) then %1$L end', u.name), ', ') from unnest(p_columns) u(name)))
  into v_differ using p_before, p_after;
  return v_differ;
end $$;
comment on function pgq._differ is 'Of some columns those that are not equal in two rows.';

create or replace function pgq._row_event(
  p_format text, p_op text, p_when text, p_relation oid, p_schema text, p_table text, p_arguments text[], p_path text, p_old_text text, p_new_text text,
  p_before anyelement, p_row anyelement, out skip boolean, out fields text[]
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_fields constant text[] := '{ev_type,ev_data,ev_extra1,ev_extra2,ev_extra3,ev_extra4}';
  v_options jsonb := '{"skip": false, "backup": false, "deny": false, "expressions": {}}';
  v_key text[]; v_names text[]; v_types oid[];
  v_is_key boolean[]; v_is_field boolean[]; v_is_ignored boolean[]; v_is_data boolean[]; v_is_kept boolean[]; v_is_exact boolean[];
  v_has_times boolean; v_has_fields boolean;
  v_ignore text; v_pkey text;
  v_old text[]; v_new text[] := pgq._split_row(p_new_text); v_old_shown text[]; v_shown text[];
  v_changed boolean[]; v_doubtful text[] := '{}'; v_ignored boolean := false;
  v_values jsonb;
begin
  if cardinality(p_arguments) > 1 then
    v_options := pgq._read_options(p_arguments, p_op);
    v_ignore := v_options ->> 'ignore';
    v_pkey := v_options ->> 'pkey';
  end if;
  skip := (v_options ->> 'skip')::boolean;
  if v_pkey is not null then
    v_key := string_to_array(v_pkey, ',');
  else
    v_key := nullif(pgq._key_columns(p_relation), '{}');
  end if;
  if p_op <> 'INSERT' and coalesce(v_key, '{}') = '{}' then
    perform pgq._raise('Update/Delete on table without pkey');
  end if;
  if cardinality(p_arguments) > 1 then
    perform pgq._refuse_change(v_options, p_op, p_when, p_schema, p_table, p_arguments[0]);
  end if;

  select array_agg(c.name), array_agg(c.type), array_agg(c.is_key), array_agg(c.is_field), array_agg(c.is_ignored), array_agg(not (c.is_field or c.is_ignored)),
    array_agg(c.is_kept), array_agg(c.is_exact), bool_or(c.type in ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)), bool_or(c.is_field)
  into v_names, v_types, v_is_key, v_is_field, v_is_ignored, v_is_data, v_is_kept, v_is_exact, v_has_times, v_has_fields
  from (
    select a.attname::text as name, a.atttypid as type, a.attname ~ '^_pgq_ev_' as is_field,
      case when v_pkey is not null then pgq._is_listed(v_pkey, a.attname) else a.attname = any (coalesce(v_key, '{}')) end as is_key,
      v_ignore is not null and pgq._is_listed(v_ignore, a.attname) as is_ignored,
      -- Not computed yet: PL/pgSQL has null there, PgQ's triggers see the value before.
      p_op = 'UPDATE' and p_when = 'BEFORE' and a.attgenerated = 's' as is_kept,
      a.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'bool'::regtype, 'text'::regtype, 'varchar'::regtype, 'bytea'::regtype,
        'uuid'::regtype, 'date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype) as is_exact
    from pg_attribute a where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped order by a.attnum) c;
  if p_op = 'UPDATE' then
    v_old := pgq._split_row(p_old_text);
    v_old_shown := v_old;
    if p_format = 'json' and ((v_options ->> 'backup')::boolean or true = any (v_is_kept)) then
      v_old_shown := pgq._json_values(v_old, v_types, v_names, v_is_field, case when v_has_times then pgq._times(v_names, v_types, p_before) end);
    end if;
  end if;
  v_shown := v_new;
  if p_format = 'json' then
    v_shown := pgq._json_values(v_new, v_types, v_names, v_is_field, case when v_has_times then pgq._times(v_names, v_types, p_row) end);
  end if;

  if p_op = 'UPDATE' then
    if true = any (v_is_kept) then
      for i in 1 .. cardinality(v_names) loop
        if v_is_kept[i] then
          v_new[i] := v_old[i];
          v_shown[i] := v_old_shown[i];
        end if;
      end loop;
    end if;
    for i in 1 .. coalesce(cardinality(v_names), 0) loop
      v_changed[i] := v_old[i] is distinct from v_new[i];
      if v_changed[i] and not v_is_exact[i] and pgq._compares_by_operator(v_types[i]) then
        v_doubtful := v_doubtful || v_names[i];
      end if;
    end loop;
    if v_doubtful <> '{}' then
      v_doubtful := array(select unnest(v_doubtful) except select unnest(pgq._differ(v_doubtful, p_before, p_row)));
    end if;
    for i in 1 .. coalesce(cardinality(v_names), 0) loop
      continue when not v_changed[i];
      v_changed[i] := v_names[i] <> all (v_doubtful);
      if v_changed[i] and v_is_key[i] then
        perform pgq._raise('primary key update not allowed');
      end if;
      -- A column that is a field of the event is no change, to the format sql alone.
      v_ignored := v_ignored or v_changed[i] and (v_is_ignored[i] or v_is_field[i] and p_format = 'sql');
      v_changed[i] := v_changed[i] and v_is_data[i];
    end loop;
    if v_ignored and not true = any (v_changed) then
      return;
    end if;
  end if;

  fields := array[pgq._event_type(p_format, p_op, p_schema, p_table, v_key), pgq._format_row(p_format, p_op, v_names, v_shown, v_is_key, v_is_data, v_changed),
    p_schema || '.' || p_table, null, null, null];
  if p_op = 'UPDATE' and (v_options ->> 'backup')::boolean then
    fields[4] := pgq._format_row(case p_format when 'json' then 'json' else 'logu' end, p_op, v_names, v_old_shown, v_is_key, v_is_data, v_changed);
  end if;
  if v_has_fields then
    for i in 1 .. cardinality(v_names) loop
      if v_is_field[i] and v_names[i] !~ '^_pgq_ev_(type|data|extra[1-4])$' then
        perform pgq._raise('Unknown magic column: ' || v_names[i]);
      elsif v_is_field[i] then
        fields[array_position(c_fields, substr(v_names[i], 6))] := v_new[i];
      end if;
    end loop;
  end if;
  if v_options -> 'expressions' <> '{}' then
    v_values := pgq._evaluate(v_options -> 'expressions', v_names, v_is_kept, p_path, p_before, p_row);
    if v_values ->> 'when' = 'f' then
      fields := null;
    else
      fields := array(
        select case when v_values ? u.name then v_values ->> u.name else fields[u.n] end from unnest(c_fields) with ordinality u(name, n) order by u.n);
    end if;
  end if;
end $$;
comment on function pgq._row_event is
  'The fields of the event of a row that is inserted (p_row), updated (p_before, p_row) or deleted (p_row), from ev_type on; null: there is none. skip: the change itself is not to be made. p_path: the search_path of whoever changes the table.';

do $install$
declare
  v_format text;
begin
  foreach v_format in array array['json', 'logu', 'sql'] loop
    execute format($create$
      create or replace function pgq.%1$striga() returns trigger
      language plpgsql as $f$
      declare
        v pg_catalog.record;
        v_fields pg_catalog.text[];
        v_skip pg_catalog.bool := false;
      begin
        if pg_catalog.current_setting('session_replication_role') operator(pg_catalog.=) 'local' then
          null;
        elsif tg_nargs operator(pg_catalog.=) 0 then
          perform pgq._raise('pgq trigger must have destination queue as argument');
        elsif tg_level operator(pg_catalog.=) 'STATEMENT' then
          v_fields := pgq._truncate_event(%1$L, tg_op, tg_when, tg_relid, tg_table_schema, tg_table_name, tg_argv);
        else
          if tg_op operator(pg_catalog.=) 'INSERT' then
            v := pgq._row_event(%1$L, tg_op, tg_when, tg_relid, tg_table_schema, tg_table_name, tg_argv, pg_catalog.current_setting('search_path'),
              null, new::pg_catalog.text, new, new);
          elsif tg_op operator(pg_catalog.=) 'UPDATE' then
            v := pgq._row_event(%1$L, tg_op, tg_when, tg_relid, tg_table_schema, tg_table_name, tg_argv, pg_catalog.current_setting('search_path'),
              old::pg_catalog.text, new::pg_catalog.text, old, new);
          else
            v := pgq._row_event(%1$L, tg_op, tg_when, tg_relid, tg_table_schema, tg_table_name, tg_argv, pg_catalog.current_setting('search_path'),
              null, old::pg_catalog.text, old, old);
          end if;
          v_fields := v.fields;
          v_skip := v.skip;
        end if;
        if v_fields is not null then
          perform pgq.insert_event(tg_argv[0], v_fields[1], v_fields[2], v_fields[3], v_fields[4], v_fields[5], v_fields[6]);
        end if;
        if v_skip or tg_level operator(pg_catalog.=) 'STATEMENT' then
          return null;
        elsif tg_op operator(pg_catalog.=) 'DELETE' then
          return old;
        end if;
        return new;
      end $f$
    $create$, v_format);
  end loop;
end $install$;
comment on function pgq.jsontriga() is 'A trigger that makes an event of each row, in JSON.';
comment on function pgq.logutriga() is 'A trigger that makes an event of each row, encoded as in an address.';
comment on function pgq.sqltriga() is 'A trigger that makes an event of each row, as a part of an SQL statement.';

do $$
begin
  -- They run with the rights of whoever changes the table, who may publish.
  grant execute on function pgq._raise(text), pgq._read_options(text[], text), pgq._is_listed(text, text), pgq._key_columns(oid), pgq._event_type(text, text, text, text, text[]),
    pgq._urlencode(text), pgq._split_row(text), pgq._json_values(text[], oid[], text[], boolean[], json), pgq._times(text[], oid[], anyelement),
    pgq._compares_by_operator(oid), pgq._refuse_change(jsonb, text, text, text, text, text), pgq._truncate_event(text, text, text, oid, text, text, text[]),
    pgq._evaluate(jsonb, text[], boolean[], text, anyelement, anyelement),
    pgq._format_row(text, text, text[], text[], boolean[], boolean[], boolean[]), pgq._differ(text[], anyelement, anyelement),
    pgq._row_event(text, text, text, oid, text, text, text[], text, text, text, anyelement, anyelement) to pgq_writer;
end $$;
