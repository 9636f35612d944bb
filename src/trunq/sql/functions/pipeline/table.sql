-- A pipeline of many tables: its source names tables by a pattern. It moves no row itself: each run of it is a look at which tables there are.
-- For each there is a pipeline of its own (tables_of), with state, runs, figures and quarantine; a look makes those that are missing, gives them the
-- definition that the pipeline has by now, and asks for a run of each by a message. A runner looks, and goes
--
--   _begin_look    the definition, and by which it is known again
--   _take_tables   some tables at a time: pipelines are made and changed, and runs asked for
--   _end_look      what was not seen is gone; done is the number of looks
--
-- Two looks at once do no harm: that which ends second begins anew. A table that cannot be taken is noted with the reason; one that is gone keeps its
-- pipeline, which nobody asks for a run any more, until it comes back or somebody drops the pipeline.
--
-- Locks: those who make or drop a pipeline; then the pipeline of many tables, then those of its tables.

create or replace function trunq._begin_look(p_pipeline text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  return jsonb_build_object('definition', v_pipeline.definition, 'look', v_pipeline.done + 1, 'definition_hash', trunq._hash_definition(v_pipeline));
end $$;
comment on function trunq._begin_look is 'What whoever looks for tables has to know.';

create or replace function trunq._hash_definition(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(concat_ws(' ', p_pipeline.identity, p_pipeline.definition), 0)
$$;
comment on function trunq._hash_definition is 'By which a look knows that the pipeline is still the one that it began with.';

create or replace function trunq._hold_look(p_pipeline text, p_look bigint, p_definition_hash bigint) returns trunq.pipeline
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
begin
  perform pg_advisory_xact_lock(trunq._lock_class('pipelines'), 0);
  v_pipeline := trunq._hold_pipeline(p_pipeline);
  return case when v_pipeline.done = p_look - 1 and trunq._hash_definition(v_pipeline) = p_definition_hash then v_pipeline end;
end $$;
comment on function trunq._hold_look is 'The pipeline of a look, locked; null: another look has ended, or it was changed, and the look begins anew.';

create or replace function trunq._take_tables(p_pipeline text, p_look bigint, p_definition_hash bigint, p_tables jsonb, p_payload jsonb default null, p_chain uuid default null)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_parent trunq.pipeline := trunq._hold_look(p_pipeline, p_look, p_definition_hash);
  v_child trunq.pipeline;
  v_table jsonb;
  v_id bigint;
  v_asked integer := 0;
begin
  if v_parent.pipeline_id is null then
    return null;
  end if;
  for v_table in select * from jsonb_array_elements(p_tables) loop
    v_child := trunq._take_table(v_parent, p_look, v_table);
    -- What cannot be done in time does not pile up.
    continue when v_child.pipeline_id is null or p_payload is null and cardinality(trunq._open_requests(v_child.asked)) > 0;
    v_id := trunq.publish('pipelines', p_payload, v_child.name, p_headers => jsonb_build_object('chain', coalesce(p_chain, gen_random_uuid()), 'by', p_pipeline));
    if p_payload is null then
      update trunq.pipeline p set asked = array[v_id] where p.pipeline_id = v_child.pipeline_id;
    end if;
    v_asked := v_asked + 1;
  end loop;
  return v_asked;
end $$;
comment on function trunq._take_tables is
  'Takes some of the tables that a look has found: [{"schema": "shop", "table": "orders", "definition": {...}}], or with "refused" and "hint" for one that cannot be taken. A run of each is asked for, unless the last one is still to come.
Returns: of how many; null: the look is to begin anew.';

create or replace function trunq._take_table(p_parent trunq.pipeline, p_look bigint, p_table jsonb) returns trunq.pipeline
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_refused text := p_table->>'refused';
  v_hint text := p_table->>'hint';
  v_child trunq.pipeline;
  v_name text;
begin
  select p.* into v_child from trunq.pipeline_table t join trunq.pipeline p on p.pipeline_id = t.child_id
  where t.pipeline_id = p_parent.pipeline_id and t.schema_name = p_table->>'schema' and t.table_name = p_table->>'table';
  if v_refused is null and v_child.definition is distinct from p_table->'definition' then
    v_name := coalesce(v_child.name, trunq._name_child(p_parent.name, p_table->>'schema', p_table->>'table'));
    begin
      perform trunq._put_pipeline(v_name, p_table->'definition');
      update trunq.pipeline p set tables_of = p_parent.pipeline_id, paused_until = coalesce(p.paused_until, p_parent.paused_until)
      where p.name = v_name returning p.* into v_child;
    exception when others then
      if sqlstate not like 'TQ%' then
        raise;
      end if;
      get stacked diagnostics v_refused = message_text, v_hint = pg_exception_hint;
    end;
  end if;
  insert into trunq.pipeline_table as t (pipeline_id, schema_name, table_name, child_id, look, refused, hint, noted_at)
  values (p_parent.pipeline_id, p_table->>'schema', p_table->>'table', v_child.pipeline_id, p_look, v_refused, v_hint, trunq.clock())
  on conflict (pipeline_id, schema_name, table_name) do update set child_id = excluded.child_id, look = excluded.look, is_gone = false,
    refused = excluded.refused, hint = excluded.hint,
    noted_at = case when t.is_gone or t.refused is distinct from excluded.refused then excluded.noted_at else t.noted_at end;
  return case when v_refused is null then v_child end;
end $$;
comment on function trunq._take_table is 'Makes or changes the pipeline of a table; null: the table is stepped over, and why is noted.';

create or replace function trunq._name_child(p_parent text, p_schema text, p_table text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_longest constant integer := 48;
  v_plain constant text := p_parent || '__' || p_table;
begin
  if p_table ~ '^[a-z0-9_]+$' and length(v_plain) <= c_longest and not exists (select from trunq.pipeline p where p.name = v_plain) then
    return v_plain;
  end if;
  -- A long or odd name, or one that is taken, by a table of another schema, say: told apart by a hash.
  return left(p_parent || '__' || regexp_replace(lower(p_table), '[^a-z0-9_]', '_', 'g'), c_longest - 9) || '_'
    || left(encode(sha256(convert_to(quote_ident(p_schema) || '.' || quote_ident(p_table), 'UTF8')), 'hex'), 8);
end $$;
comment on function trunq._name_child is 'The name of the pipeline of a table, which stays once it is made: PARENT__TABLE, shortened and with a hash where that cannot be.';

create or replace function trunq._end_look(p_pipeline text, p_look bigint, p_definition_hash bigint) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_parent trunq.pipeline := trunq._hold_look(p_pipeline, p_look, p_definition_hash);
  v_told jsonb;
begin
  if v_parent.pipeline_id is null then
    return null;
  end if;
  update trunq.pipeline_table t set is_gone = true, refused = null, hint = null, noted_at = trunq.clock()
  where t.pipeline_id = v_parent.pipeline_id and t.look < p_look and not t.is_gone;
  delete from trunq.pipeline_table t where t.pipeline_id = v_parent.pipeline_id and t.is_gone and t.child_id is null;
  select jsonb_build_object('tables', count(*) filter (where not t.is_gone and t.refused is null), 'refused', count(*) filter (where t.refused is not null),
    'gone', count(*) filter (where t.is_gone)) into v_told
  from trunq.pipeline_table t where t.pipeline_id = v_parent.pipeline_id;
  update trunq.pipeline p set done = p_look, state = v_told || jsonb_build_object('looked_at', trunq.clock()) where p.pipeline_id = v_parent.pipeline_id;
  return v_told;
end $$;
comment on function trunq._end_look is 'Ends a look: tables that it has not found are gone. Returns: how many tables are taken, refused and gone; null: the look is to begin anew.';

create or replace function trunq._check_tables(p_pipeline text, p_definition jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_longest constant integer := 30;
  v_source jsonb := p_definition->'source';
  v_has_tables boolean := coalesce(p_definition->'source' ? 'tables', false);
  v_old trunq.pipeline;
begin
  select p.* into v_old from trunq.pipeline p where p.name = p_pipeline;
  if v_old.tables_of is not null then
    perform trunq._fail('TQ031', format('pipeline "%s" is for one table of pipeline "%s", which says what it is', p_pipeline, trunq._name_of_pipeline(v_old.tables_of)),
      'change that one: its next run changes the pipelines of its tables');
  elsif v_old.pipeline_id is not null and v_has_tables <> (v_old.definition->'source' ? 'tables') then
    perform trunq._fail('TQ031', format('pipeline "%s" has %s', p_pipeline, case when v_has_tables then 'a state and runs of one source' else 'many tables, each with a state of its own' end),
      'make a pipeline of another name, or drop this one first');
  elsif not v_has_tables then
    return;
  elsif v_source->>'format' <> 'table' or v_source ? 'table' or jsonb_typeof(v_source->'tables') <> 'array' or v_source->'tables' = '[]' then
    perform trunq._fail('TQ031', format('pipeline "%s": tables are those of a source of the format table, a list, in place of table', p_pipeline),
      '"source": {"format": "table", "tables": ["shop.*"]}');
  elsif length(p_pipeline) > c_longest then
    perform trunq._fail('TQ031', format('pipeline "%s": its name is too long for many tables, %s characters', p_pipeline, length(p_pipeline)),
      format('it has %s at most: the pipelines of its tables begin with it', c_longest));
  elsif p_definition->'trigger' ? 'continuous' then
    perform trunq._fail('TQ031', format('pipeline "%s" cannot run continuously: only a look tells which tables there are', p_pipeline), 'give it a trigger with every');
  end if;
end $$;
comment on function trunq._check_tables is 'Refuses (TQ031) a definition of many tables that cannot be, and one for a pipeline that is made by another.';

create or replace function trunq._name_of_pipeline(p_pipeline_id integer) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p.name from trunq.pipeline p where p.pipeline_id = p_pipeline_id
$$;
comment on function trunq._name_of_pipeline is 'The name of a pipeline.';

create or replace function trunq._write_table(p_schema text, p_table text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select string_agg(case when n ~ '[."*]' then '"' || replace(n, '"', '""') || '"' else n end, '.' order by at) from unnest(array[p_schema, p_table]) with ordinality u(n, at)
$$;
comment on function trunq._write_table is 'A table as a definition names it.';

create or replace function trunq._require_no_tables(p_pipeline trunq.pipeline) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline.definition->'source' ? 'tables' then
    perform trunq._fail('TQ031', format('pipeline "%s" has many tables, each with a state and runs of its own', p_pipeline.name),
      format('name the pipeline of one table; trunq pipeline tables %s lists them', p_pipeline.name));
  end if;
end $$;
comment on function trunq._require_no_tables is 'Refuses (TQ031) a pipeline of many tables, whose own runs move no rows.';

create or replace function trunq._forget_table(p_pipeline trunq.pipeline) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_table trunq.pipeline_table;
begin
  select t.* into v_table from trunq.pipeline_table t where t.child_id = p_pipeline.pipeline_id;
  if not found then
    return;
  elsif not v_table.is_gone and v_table.refused is null then
    perform trunq._fail('TQ031', format('pipeline "%s" is for table %I.%I, which is there: the next run of pipeline "%s" would make it again', p_pipeline.name,
      v_table.schema_name, v_table.table_name, trunq._name_of_pipeline(v_table.pipeline_id)),
      format('leave the table out there, by except = [''%s''], and run that one; then drop this one', trunq._write_table(v_table.schema_name, v_table.table_name)));
  end if;
  delete from trunq.pipeline_table t where t.child_id = p_pipeline.pipeline_id;
end $$;
comment on function trunq._forget_table is 'Forgets the table of a pipeline that is dropped; refuses (TQ031) while the table is taken.';

create or replace function trunq._cancel_tables(p_pipeline trunq.pipeline) returns boolean
language sql set search_path = pg_catalog, pg_temp as $$
  select coalesce(bool_or(trunq.cancel_pipeline(c.name)), false) from (
    select p.name from trunq.pipeline p where p.tables_of = p_pipeline.pipeline_id
      and exists (select from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is null)
    order by p.pipeline_id) c
$$;
comment on function trunq._cancel_tables is 'Cancels the open run of each table. Returns: false when there is none.';

create or replace function trunq._sum_tables(p_pipeline trunq.pipeline, out quarantined bigint, out error text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(sum((select count(*) from trunq.quarantine q where q.pipeline_id = c.pipeline_id and q.run_id is not null)), 0)::bigint,
    (array_agg(f.error order by f.failing_since) filter (where f.error is not null))[1]
  from trunq.pipeline c
  left join lateral (
    select c.name || ': ' || r.error as error, r.failing_since from trunq.pipeline_run r
    where r.pipeline_id = c.pipeline_id and r.backfill = 0 and r.ended_at is null and r.failures > 0 limit 1
  ) f on true
  where c.tables_of = p_pipeline.pipeline_id
$$;
comment on function trunq._sum_tables is 'Of the pipelines of all tables: rows in quarantine, and the error of the run that has failed the longest.';

create or replace function trunq.list_pipeline_tables(p_pipeline text, p_limit integer default 100)
returns table (
  schema_name text, table_name text, pipeline text, state text, refused text, hint text, noted_at timestamptz, runs bigint, open_run bigint,
  failures integer, failing_since timestamptz, error text, last_ended_at timestamptz, quarantined bigint, paused boolean, fresh_at timestamptz, tables bigint
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_now timestamptz := trunq.clock();
begin
  perform trunq._check_limit(p_limit);
  return query
    select t.schema_name, t.table_name, c.name,
      case when t.is_gone then 'gone' when t.refused is not null then 'refused' when o.failures > 0 then 'failing' when o.number is not null then 'open'
        when c.done = 0 then 'new' else 'done' end as state,
      t.refused, t.hint, t.noted_at, c.done, o.number, coalesce(o.failures, 0), o.failing_since, coalesce(o.error, l.error), l.ended_at,
      (select count(*) from trunq.quarantine q where q.pipeline_id = c.pipeline_id and q.run_id is not null), coalesce(c.paused_until > v_now, false),
      coalesce(c.newest_at, greatest(c.looked_at, l.begun_at)), count(*) over ()
    from trunq.pipeline_table t left join trunq.pipeline c on c.pipeline_id = t.child_id
    left join trunq.pipeline_run o on o.pipeline_id = c.pipeline_id and o.backfill = 0 and o.ended_at is null
    left join lateral (
      select r.begun_at, r.ended_at, r.error from trunq.pipeline_run r where r.pipeline_id = c.pipeline_id and r.backfill = 0 and r.ended_at is not null
      order by r.number desc limit 1
    ) l on true
    where t.pipeline_id = v_pipeline.pipeline_id
    order by coalesce(o.failures, 0) desc, t.refused is null, not t.is_gone, o.number is null, coalesce(c.newest_at, greatest(c.looked_at, l.begun_at)) nulls first,
      t.schema_name, t.table_name
    limit p_limit;
end $$;
comment on function trunq.list_pipeline_tables is
  'The tables of a pipeline of many tables, p_limit of them at most (100), the worst first: those whose run fails the most often, then those that are stepped over (refused, with the way out), and gone, then those with an open run, and the least fresh. pipeline: that which was made for it; state: failing, refused, gone, open, new (it has not run yet) or done; noted_at: since when it is taken, refused or gone; tables: how many there are.
Raises: TQ005, TQ030.';

create or replace function trunq._warn_tables(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  (select 'pipelines', null::text,
    case when t.is_gone then format('table %I.%I of pipeline "%s" is gone, or matches no more: pipeline "%s" reads nothing', t.schema_name, t.table_name, p.name, c.name)
      else format('pipeline "%s" steps over table %I.%I: %s', p.name, t.schema_name, t.table_name, split_part(t.refused, E'\n', 1)) end,
    case when t.is_gone then format('what it wrote stays; without it: trunq pipeline drop %s', c.name) else concat_ws('; ', t.hint,
      format('without it: except = [''%s'']', trunq._write_table(t.schema_name, t.table_name))) end
  from trunq.pipeline_table t join trunq.pipeline p on p.pipeline_id = t.pipeline_id left join trunq.pipeline c on c.pipeline_id = t.child_id
  where (t.is_gone or t.refused is not null) and coalesce(p_queue, 'pipelines') = 'pipelines'
  order by t.noted_at desc, p.name, t.schema_name, t.table_name limit 100)
  union all
  select 'pipelines', null, format('pipeline "%s" has found no table that matches %s', p.name, p.definition->'source'->>'tables'),
    'is that right, as its role sees it? With other ones: trunq pipeline create FILE'
  from trunq.pipeline p
  where p.definition->'source' ? 'tables' and p.state->>'tables' = '0' and p.state->>'refused' = '0' and coalesce(p_queue, 'pipelines') = 'pipelines'
$$;
comment on function trunq._warn_tables is 'Tables that pipelines step over, or that are gone, the newest hundred, and pipelines that found none.';
