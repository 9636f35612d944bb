-- Capture publishes the changes of a table: one message a row that was inserted, updated or deleted, and one a TRUNCATE, in the
-- transaction of the change. The rules are here; the trigger function that is generated for each captured table is in change.sql.
--
-- The triggers are for each statement, with transition tables: a bulk load pays much less than by triggers for each row. They stand on
-- the table and, if it is partitioned, on every partition, since only the triggers of the table that a statement names fire.
--
-- A trigger function runs with the owner's rights: who changes the table needs no right on trunq. It makes JSON of whole rows, and
-- Postgres does that of a type of the user's by its cast to json, a function of anybody's. So a table that belongs to somebody who may
-- not act as the owner of trunq is refused, and so is one with a column of such a one's type, directly or inside another type: he would get the
-- owner's rights, by a cast that he makes at any time later. Conversion with the writer's rights is no way out: Postgres does not let a function with
-- the owner's rights take on another's, and one without could not write to the log. Nor are output functions alone, as in pgq's triggers: their texts
-- cost ten times as much, and numbers in them are no numbers.
--
-- Nothing that the user names can fail a change of the table later. Columns are looked up in the JSON of the row: one that was dropped
-- or renamed is null there, and trunq.list_warnings says so. All that is given is a literal in the function, never SQL.
--
-- Locks: the class captures, then the queue (shared), then the table.

create or replace function trunq.capture(
  p_table text, p_queue text, p_ignore text[] default null, p_where jsonb default null, p_kind text default null, p_key text[] default null,
  p_deny text[] default null, p_columns text[] default null, p_format text default null
) returns boolean
-- No search_path of its own: it reads the name of the table as its caller would.
language plpgsql as $$
begin
  return trunq._set_capture(trunq._find_table(p_table), p_table, p_queue, p_ignore, p_where, p_kind, p_key, p_deny, p_columns, p_format);
end $$;
comment on function trunq.capture is
  'Publishes the changes of a table into a queue, in the transaction that changes it; or changes an existing capture, in which arguments that are left out get their defaults. One message for each row, whose payload has op, table, before, after, changed and at, or by p_format debezium what Debezium writes. p_table is named as in SQL. p_ignore: an update that changes only these columns is not published. p_where: only rows that pass, as {"in": {"status": ["paid", "sent"]}, "not_in": {"country": ["XX", null]}}; an update if the row passes before or after it. p_kind: kind of the messages, in which {table} and {op} stand for the table and insert, update, delete or truncate; {table}.{op} by default. p_key: columns that make the key; the primary key by default, empty: no key. p_deny: changes to refuse (TQ020): insert, update, delete, truncate. p_columns: publish these alone. p_format: plain (the default) or debezium. For the owner of trunq, with the right TRIGGER on the table.
Returns: true when it was made, false when the table was captured already.
Raises: TQ001; TQ005 for what cannot be captured, columns that do not exist, and kinds that the queue does not accept; TQ007; TQ009 while an open transaction uses the table.
Locks: writers of the table, waiting 200 ms at a time, where a trigger is missing.';

create or replace function trunq.uncapture(p_table text) returns boolean
language plpgsql as $$
begin
  return trunq._end_capture(trunq._find_table(p_table), p_table);
end $$;
comment on function trunq.uncapture is
  'Stops publishing the changes of a table when this transaction commits. Messages that were published stay.
Returns: false when the table was not captured.
Raises: TQ005 for a table that does not exist; TQ007; TQ009 while an open transaction uses the table.
Locks: the table and its partitions, exclusively, waiting 200 ms at a time.';

create or replace function trunq.list_captures(p_queue text default null)
returns table (
  table_name text, queue text, kind text, key text[], columns text[], ignore text[], condition jsonb, deny text[], format text,
  published_as text, warning text, created_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select coalesce(trunq._table_name(t.oid), c.name), q.name, c.kind, c.key, c.columns, c.ignore, c.condition,
      c.deny, c.format, c.name, (select string_agg(w.warning, '; ') from trunq._warn_capture(c, t.oid) w), c.created_at
    from trunq.capture c join trunq.queue q on q.queue_id = c.queue_id
    cross join lateral (select trunq._captured_table(c.capture_id)) t(oid)
    where p_queue is null or q.name = p_queue order by 1, c.capture_id;
end $$;
comment on function trunq.list_captures is
  'The captured tables by name, of one queue or all. published_as: what messages call the table, which is its name when it was captured; key null: messages have none; condition: the where of trunq.capture; warning: what is wrong with it, such as a table that was dropped or a partition that was attached since.
Raises: TQ001.';

create or replace function trunq._find_table(p_name text) returns regclass
-- In the caller's search_path, as trunq.capture.
language plpgsql stable as $$
begin
  return pg_catalog.to_regclass(p_name);
exception when invalid_name or syntax_error or feature_not_supported then
  return null;
end $$;
comment on function trunq._find_table is 'A table by its name, as SQL would find it; null when there is none.';

create or replace function trunq._set_capture(
  p_relation regclass, p_table text, p_queue text, p_ignore text[], p_where jsonb, p_kind text, p_key text[], p_deny text[], p_columns text[], p_format text
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
  v_capture trunq.capture;
  v_is_new boolean;
begin
  perform trunq._find_queue(p_queue);
  perform trunq._require_read_committed('capture');
  perform trunq._check_table(p_relation, p_table);
  v_capture.name := trunq._table_name(p_relation);
  v_capture.kind := coalesce(p_kind, '{table}.{op}');
  v_capture.key := case when p_key is null then trunq._primary_key(p_relation) else trunq._check_columns(p_relation, 'key', p_key) end;
  v_capture.columns := trunq._check_columns(p_relation, 'columns', p_columns);
  v_capture.ignore := trunq._check_columns(p_relation, 'ignore', p_ignore);
  v_capture.condition := trunq._check_where(p_relation, p_where);
  v_capture.deny := trunq._check_deny(p_deny);
  v_capture.hidden := trunq._virtual_columns(p_relation);
  v_capture.format := coalesce(p_format, 'plain');
  if v_capture.format <> all (trunq._words('capture_format')) then
    perform trunq._fail('TQ005', format('a capture has no format "%s"', left(p_format, 100)), 'the format is ' || trunq._list_choices(trunq._words('capture_format')));
  end if;
  v_role := trunq._become_owner();
  perform pg_advisory_xact_lock(trunq._lock_class('captures'), 0);
  -- As subscribe does: no queue is dropped that is about to be captured into.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), (trunq._find_queue(p_queue)).queue_id);
  v_capture.queue_id := (trunq._find_queue(p_queue)).queue_id;
  perform trunq._check_kinds(v_capture, trunq._find_queue(p_queue));
  perform trunq._forget_captures(null);
  select c.capture_id into v_capture.capture_id from trunq.capture c where trunq._captured_table(c.capture_id) = p_relation;
  v_is_new := not found;
  if v_is_new then
    insert into trunq.capture (queue_id, name, kind, key, columns, ignore, condition, deny, hidden, format)
    values (v_capture.queue_id, v_capture.name, v_capture.kind, v_capture.key, v_capture.columns, v_capture.ignore, v_capture.condition, v_capture.deny, v_capture.hidden, v_capture.format)
    returning * into v_capture;
  else
    update trunq.capture c set queue_id = v_capture.queue_id, name = v_capture.name, kind = v_capture.kind, key = v_capture.key,
      columns = v_capture.columns, ignore = v_capture.ignore, condition = v_capture.condition, deny = v_capture.deny, hidden = v_capture.hidden, format = v_capture.format
    where c.capture_id = v_capture.capture_id returning * into v_capture;
  end if;
  perform trunq._define_capture(v_capture);
  -- As the caller again: the owner of trunq need not have the right TRIGGER himself.
  perform set_config('role', v_role, true);
  perform trunq._try_for_table_lock(p_relation, format('select trunq._put_triggers(%s, %s)', v_capture.capture_id, p_relation::oid));
  return v_is_new;
end $$;
comment on function trunq._set_capture is 'What trunq.capture does.';

create or replace function trunq._end_capture(p_relation regclass, p_table text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
  v_capture_id integer;
begin
  perform trunq._require_read_committed('uncapture');
  if trunq._table_name(p_relation) is null then
    perform trunq._fail_table(p_table);
  end if;
  v_role := trunq._become_owner();
  perform pg_advisory_xact_lock(trunq._lock_class('captures'), 0);
  select c.capture_id into v_capture_id from trunq.capture c where trunq._captured_table(c.capture_id) = p_relation;
  if found then
    perform trunq._try_for_table_lock(p_relation, format('select trunq._drop_capture(%s)', v_capture_id));
  end if;
  perform set_config('role', v_role, true);
  return v_capture_id is not null;
end $$;
comment on function trunq._end_capture is 'What trunq.uncapture does.';

create or replace function trunq._drop_capture(p_capture_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- With the triggers, wherever they are: to drop one by itself one must own its table.
  execute format('drop function if exists trunq_data.%I() cascade', 'capture_' || p_capture_id);
  delete from trunq.capture c where c.capture_id = p_capture_id;
end $$;
comment on function trunq._drop_capture is 'Drops the triggers, the function and the row of a capture.';

create or replace function trunq._drop_captures(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from trunq.capture c where c.queue_id = p_queue.queue_id) then
    perform pg_advisory_xact_lock(trunq._lock_class('captures'), 0);
    perform trunq._drop_capture(c.capture_id) from trunq.capture c where c.queue_id = p_queue.queue_id;
  end if;
end $$;
comment on function trunq._drop_captures is 'Drops the captures into a queue.';

create or replace function trunq._forget_captures(p_queue_id integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_capture_id integer;
  v_count integer := 0;
begin
  -- While a dump is restored, triggers come last.
  if not exists (select from trunq.capture c where trunq._captured_table(c.capture_id) is null and (p_queue_id is null or c.queue_id = p_queue_id))
      or not pg_has_role((select n.nspowner from pg_namespace n where n.nspname = 'trunq'), 'usage')
      or (select c.system_identifier from trunq.cluster c) is distinct from (select s.system_identifier from pg_control_system() s) then
    return 0;
  end if;
  for v_capture_id in
    select c.capture_id from trunq.capture c
    where trunq._captured_table(c.capture_id) is null and (p_queue_id is null or c.queue_id = p_queue_id)
    for update skip locked
  loop
    perform trunq._drop_capture(v_capture_id);
    v_count := v_count + 1;
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_captures is
  'Drops what is left of captures whose table was dropped, of one queue or all.
Returns: how many.';

create or replace function trunq._try_for_table_lock(p_relation regclass, p_statement text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
begin
  -- As trunq._try_for_locks: whoever writes to the table passes.
  for v_try in 1..10 loop
    begin
      execute p_statement;
      return;
    exception when lock_not_available then
      perform pg_sleep(0.05);
    end;
  end loop;
  perform trunq._fail('TQ009', format('table "%s" is in use by an open transaction', trunq._table_name(p_relation)),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq._try_for_table_lock is
  'Runs what needs a table for itself, and gives every lock back when it would have to wait longer than 200 ms; TQ009 when ten tries were not enough.';

create or replace function trunq._put_triggers(p_capture_id integer, p_relation oid) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  for v in
    select format('%I.%I', n.nspname, c.relname) name, format('trunq_capture_%s_%s', p_capture_id, o.op) trigger, o.*,
      case when c.oid = p_relation then '''root''' else '' end arguments
    from trunq._parts(p_relation) p join pg_class c on c.oid = p join pg_namespace n on n.oid = c.relnamespace
    cross join (values ('insert', 'referencing new table as added'), ('update', 'referencing old table as gone new table as added'),
      ('delete', 'referencing old table as gone'), ('truncate', '')) o(op, tables)
    where not exists (select from pg_trigger t where t.tgrelid = c.oid and t.tgname = format('trunq_capture_%s_%s', p_capture_id, o.op))
    order by c.oid = p_relation desc, c.oid
  loop
    execute format('create trigger %I after %s on %s %s for each statement execute function trunq_data.%I(%s)',
      v.trigger, v.op, v.name, v.tables, 'capture_' || p_capture_id, v.arguments);
  end loop;
  -- Partitions that were detached since.
  for v in
    select format('%I.%I', n.nspname, c.relname) name, t.tgname
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
    where t.tgfoid = trunq._capture_function(p_capture_id) and t.tgrelid not in (select trunq._parts(p_relation))
  loop
    execute format('drop trigger %I on %s', v.tgname, v.name);
  end loop;
end $$;
comment on function trunq._put_triggers is
  'Puts the triggers of a capture on its table and the partitions where they are missing, and takes them off partitions that were detached.';

create or replace function trunq._captured_table(p_capture_id integer) returns oid
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- The table itself has an argument, its partitions have none.
  select t.tgrelid from pg_trigger t where t.tgfoid = trunq._capture_function(p_capture_id) and t.tgnargs = 1 limit 1
$$;
comment on function trunq._captured_table is 'The table of a capture; null when it was dropped.';

create or replace function trunq._capture_function(p_capture_id integer) returns oid
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p.oid from pg_proc p where p.proname = 'capture_' || p_capture_id and p.pronamespace = 'trunq_data'::regnamespace and p.pronargs = 0
$$;
comment on function trunq._capture_function is 'The trigger function of a capture.';

create or replace function trunq._parts(p_relation oid) returns setof oid
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_relation union select t.relid::oid from pg_partition_tree(p_relation) t
$$;
comment on function trunq._parts is 'A table and its partitions.';

create or replace function trunq._foreign_types(p_relation oid) returns table (type text, owner text, way_out text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  with recursive used(type) as (
    select a.atttypid from pg_attribute a where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped
    union
    select i.type from used u join pg_type t on t.oid = u.type cross join lateral (
      -- Arrays, domains, composites, ranges and multiranges.
      select t.typelem union all select t.typbasetype
      union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
      union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid
      union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid) i(type)
    where i.type <> 0)
  select format_type(t.oid, null), pg_get_userbyid(t.typowner), format('alter %s %s owner to %I',
    case when exists (select from pg_class c where c.oid = t.typrelid and c.relkind <> 'c') then 'table' else 'type' end, format_type(t.oid, null),
    pg_get_userbyid(n.nspowner))
  from used u join pg_type t on t.oid = u.type join pg_namespace n on n.nspname = 'trunq'
  -- An array, or a multirange, has the owner of what it is made of.
  where t.typcategory <> 'A' and t.typtype <> 'm' and not pg_has_role(t.typowner, n.nspowner, 'member') order by t.typname, t.oid
$$;
comment on function trunq._foreign_types is 'Types in the rows of a table, however deep, that belong to somebody who may not act as the owner of trunq.';

create or replace function trunq._table_name(p_relation oid) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = p_relation
$$;
comment on function trunq._table_name is 'What messages and errors call a table: schema and name, without quotes.';

create or replace function trunq._primary_key(p_relation oid) returns text[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select array_agg(a.attname::text order by k.at)
  from pg_index i cross join unnest(i.indkey::smallint[]) with ordinality k(attnum, at)
  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
  where i.indrelid = p_relation and i.indisprimary and k.at <= i.indnkeyatts
$$;
comment on function trunq._primary_key is 'The columns of the primary key of a table, in its order; null when it has none.';

create or replace function trunq._virtual_columns(p_relation oid) returns text[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select array_agg(a.attname::text order by a.attnum) from pg_attribute a where a.attrelid = p_relation and a.attgenerated = 'v' and not a.attisdropped
$$;
comment on function trunq._virtual_columns is 'The virtual generated columns of a table, which are null in transition tables; null when it has none.';

create or replace function trunq._warn_capture(p_capture trunq.capture, p_relation oid) returns table (warning text, hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_again text := format('capture it again: select trunq.capture(''%s'', ...)', trunq._table_name(p_relation));
  v_name constant text := trunq._table_name(p_relation);
begin
  if p_relation is null then
    return query select format('table "%s" was dropped', p_capture.name), 'the leader forgets the capture within a minute';
    return;
  end if;
  return query
    select format('captured table "%s" belongs to "%s" by now, who can run code as the owner of trunq by its types', v_name, pg_get_userbyid(c.relowner)),
      'give it to a member of the role that owns trunq, or trunq.uncapture it'
    from pg_class c join pg_namespace n on n.nspname = 'trunq' where c.oid = p_relation and not pg_has_role(c.relowner, n.nspowner, 'member');
  return query
    select format('captured table "%s" has a column of the type %s by now, whose owner "%s" can run code as the owner of trunq by its casts', v_name,
        f.type, f.owner),
      f.way_out || ', or trunq.uncapture the table'
    from trunq._foreign_types(p_relation) f;
  return query
    select format('changes that name partition "%s" of "%s" are not published', trunq._table_name(p), v_name), v_again
    from trunq._parts(p_relation) p
    where not exists (select from pg_trigger t where t.tgrelid = p and t.tgfoid = trunq._capture_function(p_capture.capture_id));
  return query
    select format('a trigger of the capture of "%s" is disabled on table "%s"', v_name, trunq._table_name(t.tgrelid)), 'enable it (alter table ... enable trigger), or trunq.uncapture the table'
    from pg_trigger t where t.tgfoid = trunq._capture_function(p_capture.capture_id) and t.tgenabled not in ('O', 'A') group by t.tgrelid;
  return query
    select format('table "%s" is no partition of "%s" any more, and its changes are still published', trunq._table_name(t.tgrelid), v_name), v_again
    from pg_trigger t where t.tgfoid = trunq._capture_function(p_capture.capture_id) and t.tgrelid not in (select trunq._parts(p_relation)) group by t.tgrelid;
  return query
    select format('captured table "%s" is a partition of "%s" now: changes that name that one are not published here', v_name, trunq._table_name(i.inhparent)),
      'capture the other one, and trunq.uncapture this one'
    from pg_inherits i where i.inhrelid = p_relation limit 1;
  return query
    select format('captured table "%s" has a virtual column "%s" by now, which is published as null', v_name, u.name), v_again
    from unnest(trunq._virtual_columns(p_relation)) u(name) where (u.name = any (p_capture.hidden)) is not true;
  return query
    select format('captured table "%s" has no column "%s" any more', v_name, u.name), v_again
    from (select unnest(p_capture.key || p_capture.columns || p_capture.ignore) union select trunq._where_columns(p_capture.condition)) u(name)
    where not exists (select from pg_attribute a where a.attrelid = p_relation and a.attname = u.name and a.attnum > 0 and not a.attisdropped);
end $$;
comment on function trunq._warn_capture is 'What is wrong with the capture of a table.';

create or replace function trunq._warn_captures(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q.name, null::text, w.warning, w.hint
  from trunq.capture c join trunq.queue q on q.queue_id = c.queue_id cross join lateral trunq._warn_capture(c, trunq._captured_table(c.capture_id)) w
  where p_queue is null or q.name = p_queue order by q.name, w.warning
$$;
comment on function trunq._warn_captures is 'What is wrong with captures, of one queue or all.';
