-- What a queue lacks of what create_queue made: an index that somebody dropped, a trigger that is disabled, a default that is gone, a function that
-- somebody changed.
-- They are compared with the specimens in the catalog, as these are made by migrations; what differs by queue (segments, the sequence of ids,
-- lanes, the gate) follows from its row. What is there besides, of the user's, is none of our
-- business; but a column of the log's that its functions do not know, or one they know that is gone (log/column.sql).
--
-- Each looks up the catalog by its indexes: other queues have thousands of columns and functions there.
--
-- An index is told by what it is of, not by its name: whoever made it again under another name has repaired it. One that is not valid (of a
-- partitioned table: not on each segment) is none.

create or replace function trunq.list_defects(p_queue text default null)
returns table (queue text, object text, kind text, defect text, repair text)
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, d.object, d.kind, d.defect, d.repair
    from trunq.queue q cross join lateral (
      select * from trunq._column_defects(q)
      union all select * from trunq._index_defects(q)
      union all select * from trunq._segment_defects(q)
      union all select * from trunq._trigger_defects(q)
      union all select * from trunq._function_defects(q)) d
    where p_queue is null or q.name = p_queue
    order by q.name, d.object, d.kind, d.defect;
end $$;
comment on function trunq.list_defects is
  'What a queue, or each, lacks of what trunq.create_queue and upgrades gave it: columns, defaults, NOT NULL, indexes, segments and triggers of its tables, and functions, which somebody dropped or changed; with lanes, unique keys and an archive those of these too. A worker asks when it starts, and warns. kind: column, default, null, index, segment, trigger or function. repair: the statement that puts it back; `trunq db upgrade --repair` does so without stopping publishers, where the statement for an index would.
Returns: one row for each; none: all is there.
Raises: TQ001.';

create or replace function trunq._column_defects(p_queue trunq.queue) returns table (object text, kind text, defect text, repair text)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = nested set quote_all_identifiers = off as $$
  with col as (
    select t.name::text, quote_ident(s.attname) attname, s.attnotnull, a.attnum is null is_missing, a.attnotnull has_not_null, pg_get_expr(d.adbin, d.adrelid) found,
      case s.attname when 'segment' then trunq._segment(p_queue)
        -- A queue that got lanes later refuses leases of before by it (operate/conversion.sql).
        when 'epoch' then coalesce((
          select '''-1''::integer' from pg_constraint k where k.conrelid = t.name and k.conname = 'is_of_lanes'), pg_get_expr(sd.adbin, sd.adrelid))
        when 'id' then coalesce(case when t.place = 1 then format('nextval(%L::regclass)', coalesce(to_regclass(p_queue.id_sequence)::text, p_queue.id_sequence)) end, pg_get_expr(sd.adbin, sd.adrelid))
        else pg_get_expr(sd.adbin, sd.adrelid) end wanted
    from trunq._tables_like(p_queue) t
    join pg_attribute s on s.attrelid = t.specimen and s.attnum > 0 and not s.attisdropped
    left join pg_attrdef sd on sd.adrelid = s.attrelid and sd.adnum = s.attnum
    left join pg_attribute a on a.attrelid = t.name and a.attname = s.attname and not a.attisdropped
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum)
  select c.name, 'column', format('%s has no column %s', c.name, c.attname),
    format('select trunq._complete_tables(q) from trunq.queue q where q.name = %L', p_queue.name)
  from col c where c.is_missing
  union all
  select c.name, 'default', format('column %s of %s has %s', c.attname, c.name, coalesce('another default: ' || c.found, 'no default')),
    format('alter table %s alter %s set default %s', c.name, c.attname, c.wanted)
  from col c where not c.is_missing and c.wanted is not null and case c.attname
    -- As Postgres writes it: trunq._restore_rows reads the same.
    when 'segment' then regexp_match(c.found, '/ \D*(\d+)\D* % \D*(\d+)')
      is distinct from array[extract(epoch from p_queue.span)::bigint::text, p_queue.segments::text]
    else c.found is distinct from c.wanted end
  union all
  select c.name, 'null', format('column %s of %s may be null', c.attname, c.name), format('alter table %s alter %s set not null', c.name, c.attname)
  from col c where c.attnotnull and not c.has_not_null
  union all
  select format('trunq_log.%I', p_queue.log_table), 'column', format('the functions of queue "%s" do not know which columns you added to its log', p_queue.name),
    format('select trunq._define_own_columns(q) from trunq.queue q where q.name = %L', p_queue.name)
  where not trunq._knows_own_columns(p_queue)
$$;
comment on function trunq._column_defects is 'Columns that the tables of a queue lack, and their defaults and NOT NULL.';

create or replace function trunq._index_text(p_index oid) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  -- Names may hold anything: what stands before the rest is written again, to know its length.
  select case when i.indisunique then 'UNIQUE ' else '' end || substr(pg_get_indexdef(p_index), 1 + length(concat(
    'CREATE ', case when i.indisunique then 'UNIQUE ' end, 'INDEX ', quote_ident(c.relname), ' ON ', case when c.relkind = 'I' then 'ONLY ' end,
    i.indrelid::regclass, ' ')))
  from pg_index i join pg_class c on c.oid = i.indexrelid where i.indexrelid = p_index
$$;
comment on function trunq._index_text is 'What an index is, without its name and its table''s: UNIQUE, method, columns, options and condition.';

create or replace function trunq._index_defects(p_queue trunq.queue) returns table (object text, kind text, defect text, repair text)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = nested set quote_all_identifiers = off as $$
  with wanted as (
    select t.name, trunq._index_text(i.indexrelid) index
    from trunq._tables_like(p_queue) t join pg_index i on i.indrelid = t.specimen
    union all
    -- Postgres writes the expression of lanes in its own way; nothing else of a log is indexed so.
    select format('trunq_log.%I', p_queue.log_table)::regclass,
      format('USING btree (priority, (%s COLLATE "C"), txid, id)', replace(trunq._lane_expression(p_queue.lanes), 'g.', ''))
    where p_queue.lanes is not null),
  found as (
    select i.indrelid, trunq._index_text(i.indexrelid) index
    from pg_index i where i.indisvalid and i.indrelid in (select w.name from wanted w))
  select w.name::text, 'index', format('%s has no %sindex %s', w.name, w.is_unique, w.rest), format('create %sindex on %s %s', w.is_unique, w.name, w.rest)
  from (select w.*, lower(substring(w.index from '^UNIQUE ')) is_unique, regexp_replace(w.index, '^UNIQUE ', '') rest from wanted w) w
  where not exists (
    select from found f where f.indrelid = w.name
      and (f.index = w.index or w.index like 'USING btree (priority, (% COLLATE "C"), txid, id)' and f.index like 'USING btree (priority, % COLLATE "C", txid, id)'))
$$;
comment on function trunq._index_defects is 'Indexes that the tables of a queue lack.';

create or replace function trunq._segment_defects(p_queue trunq.queue) returns table (object text, kind text, defect text, repair text)
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  with segment as (
    select t.name, n.number, s.segment, to_regclass(s.segment) there,
      exists (select from pg_inherits h where h.inhparent = t.name and h.inhrelid = to_regclass(s.segment)) is_attached
    from trunq._tables_like(p_queue) t cross join generate_series(0, p_queue.segments - 1) n(number)
    cross join lateral (
      select format('trunq_data.%I', trunq._segment_name(p_queue, (array['log', 'lease', 'receipt', 'turn', 'wake'])[t.place], n.number)) segment) s
    where t.place <= 5)
  select s.segment, 'segment', format('%s has no segment %s', s.name, s.number),
    case when s.there is null
      then format('create table %1$s partition of %2$s for values in (%3$s) with (autovacuum_enabled = off, toast.autovacuum_enabled = off); alter table %1$s replica identity full',
        s.segment, s.name, s.number)
      else format('alter table %s attach partition %s for values in (%s)', s.name, s.segment, s.number) end
  from segment s where not s.is_attached
  union all
  select s.segment, 'segment', format('%s has no replica identity', s.segment), format('alter table %s replica identity full', s.segment)
  from segment s cross join lateral (select c.* from pg_class c where c.oid = s.there offset 0) c where s.is_attached and c.relreplident not in ('f', 'i')
  union all
  select s.segment, 'segment', format('%s is unlogged, and empty after a crash', s.segment), format('alter table %s set logged', s.segment)
  from segment s cross join lateral (select c.* from pg_class c where c.oid = s.there offset 0) c where s.is_attached and c.relpersistence = 'u'
$$;
comment on function trunq._segment_defects is 'Segments that the tables of a queue lack, and what is wrong with the others.';

create or replace function trunq._trigger_defects(p_queue trunq.queue) returns table (object text, kind text, defect text, repair text)
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  with wanted as (
    select format('trunq_log.%I', p_queue.log_table)::regclass name, w.trigger, w.function
    from (values
      ('wake', '_define_queue', true), ('put_off', '_define_queue', true), ('keep', '_define_queue', true), ('take_key', '_define_queue', p_queue.unique_policy is not null),
      ('gate', '_define_gate', p_queue.is_closed or p_queue.max_waiting is not null), ('gate_kinds', '_define_gate', p_queue.kinds is not null),
      ('gate_transaction', '_define_gate', p_queue.max_per_transaction is not null)) w(trigger, function, is_wanted)
    where w.is_wanted
    union all
    select format('trunq_data.%I', p_queue.receipt_table)::regclass, 'wake_lanes', '_define_queue' where p_queue.lanes is not null
    union all
    select format('trunq_data.%I', p_queue.receipt_table)::regclass, 'archive', '_define_at_once'
    where exists (select from trunq.taker t where t.queue_id = p_queue.queue_id and t.name = '(archive)' and t.at_once))
  select w.name::text, 'trigger', format('%s has no trigger %s', w.name, w.trigger), format('select trunq.%I(q) from trunq.queue q where q.name = %L', w.function, p_queue.name)
  from wanted w
  where case when w.trigger in ('wake', 'put_off', 'keep') then not trunq._has_trigger(p_queue, w.trigger)
    else not exists (select from pg_trigger g where g.tgrelid = w.name and g.tgname = w.trigger) end
  union all
  select w.name::text, 'trigger', format('trigger %s of %s is disabled', w.trigger, w.name), format('alter table %s enable trigger %I', w.name, w.trigger)
  from wanted w join pg_trigger g on g.tgrelid = w.name and g.tgname = w.trigger and g.tgenabled not in ('O', 'A')
$$;
comment on function trunq._trigger_defects is 'Triggers that the tables of a queue lack, or that somebody disabled.';

create or replace function trunq._function_defects(p_queue trunq.queue) returns table (object text, kind text, defect text, repair text)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = nested set quote_all_identifiers = off as $$
  with wanted as (
    select p_queue.name || regexp_replace(s.proname, '^_(lane|unique)?specimen', '') as name,
      trunq._for_queue(p_queue, pg_get_function_identity_arguments(s.oid)) as arguments, trunq._for_queue(p_queue, s.prosrc) as body
    from pg_proc s left join trunq.function f on f.signature = s.oid::regprocedure::text
    where s.proname like '\_%' and s.pronamespace = 'trunq_queue'::regnamespace and trunq._is_original(p_queue, s.proname)
      -- Where the specimen was changed, that is the defect; and of columns of the user's there is one already.
      and (f.body = md5(s.prosrc)) is not false
      and (strpos(s.prosrc, '/*own_columns*/') = 0 or trunq._knows_own_columns(p_queue) is not false) offset 0)
  select d.object, 'function', format('function %s %s', d.object, case when d.is_gone then 'is gone' else 'was changed by hand' end),
    format('select trunq._restore_functions(q) from trunq.queue q where q.name = %L', p_queue.name)
  from (
    select format('trunq_queue.%s(%s)', w.name, w.arguments) as object, p.oid is null as is_gone
    from wanted w
    left join pg_proc p on p.pronamespace = 'trunq_queue'::regnamespace and p.proname = w.name and pg_get_function_identity_arguments(p.oid) = w.arguments
    where p.prosrc is distinct from w.body) d
  -- What an upgrade has left to do is no defect.
  where not exists (select from trunq.outdated o where o.queue_id = p_queue.queue_id)
$$;
comment on function trunq._function_defects is 'Functions that a queue lacks, or that do something else than those of the specimen.';

create or replace function trunq._restore_functions(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_changes constant jsonb := (
    select coalesce(jsonb_agg(c.change), '[]') from jsonb_array_elements(trunq._find_changes()) c(change)
    where starts_with(c.change->>'signature', format('trunq_queue.%s_', p_queue.name)));
begin
  perform trunq._define_functions(p_queue);
  -- What a DBA changed of their settings stays, as in an upgrade.
  perform trunq._change_again(v_changes);
  perform trunq._keep_roles(p_queue);
end $$;
comment on function trunq._restore_functions is 'Makes those functions of a queue again that are not as they should be.';

create or replace function trunq._changed_functions() returns table (function text, defect text)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = nested set quote_all_identifiers = off as $$
  select f.signature, format('function %s %s', f.signature, case when p.oid is null then 'is gone' else 'was changed by hand' end)
  from trunq.function f left join pg_proc p on p.oid = to_regprocedure(f.signature)
  where f.body is distinct from md5(p.prosrc) and f.body is not null order by 1
$$;
comment on function trunq._changed_functions is 'Functions of all queues, and those of specimens, that are gone or do something else than an install made them to do.';
