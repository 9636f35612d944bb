-- A pipeline of many tables: its source names them by patterns, as "tables": ["shop.*"]. Each is an instance (instance.sql): per is message.table,
-- and instance "shop/shop.orders" has the runs of table shop.orders.
--
-- Which tables there are, a look tells. A message without a payload asks for one; a runner reads the catalog of the source and goes
--
--   _begin_look    the definition, and what the look is known by again
--   _take_tables   in one transaction: instances begin, or hear of their tables what has changed; what cannot be read or is gone is noted
--                  (refused), and a run of each other is asked for
--
-- Of two looks at once that which comes second begins anew: what it has seen may be older. An instance whose table is gone stays with its state,
-- until the table comes back or somebody drops the instance.
--
-- Locks: the pipeline, then its instances.

create or replace function trunq._begin_look(p_pipeline text) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  return jsonb_build_object('definition', v_pipeline.definition, 'look', trunq._hash_look(v_pipeline));
end $$;
comment on function trunq._begin_look is 'What whoever looks for tables has to know.';

create or replace function trunq._hash_look(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(concat_ws(' ', p_pipeline.identity, p_pipeline.definition, p_pipeline.state), 0)
$$;
comment on function trunq._hash_look is 'By which it is known that neither the definition has changed since a look began nor another look has ended.';

create or replace function trunq._take_tables(p_pipeline text, p_look bigint, p_tables jsonb, p_asks boolean default true) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_now timestamptz;
  v_told jsonb;
begin
  perform trunq._require_read_committed('_take_tables');
  v_pipeline := trunq._hold_pipeline(p_pipeline);
  v_now := trunq.clock();
  if trunq._hash_look(v_pipeline) <> p_look then
    return null;
  end if;
  insert into trunq.pipeline as p (name, definition, followers, parent_id, message, refused, hint, refused_at)
  select p_pipeline || '/' || t.value, v_pipeline.definition, v_pipeline.followers, v_pipeline.pipeline_id, t.message, t.refused, t.hint,
    case when t.refused is not null then v_now end
  from jsonb_to_recordset(p_tables) t(value text, message jsonb, refused text, hint text) order by t.value
  on conflict (name) do update set message = excluded.message, refused = excluded.refused, hint = excluded.hint,
    refused_at = case when p.refused is not distinct from excluded.refused then p.refused_at else excluded.refused_at end
  where (p.message, p.refused, p.hint) is distinct from (excluded.message, excluded.refused, excluded.hint);
  perform trunq._note_gone(v_pipeline, p_tables);
  select jsonb_build_object('tables', count(*) filter (where i.refused is null), 'refused', count(*) filter (where i.refused is not null))
  into v_told from trunq.pipeline i where i.parent_id = v_pipeline.pipeline_id;
  update trunq.pipeline p set state = v_told || jsonb_build_object('looked_at', v_now) where p.pipeline_id = v_pipeline.pipeline_id;
  if p_asks then
    v_told := v_told || jsonb_build_object('asked', trunq._ask_each(p_pipeline, array(
      select t.value from jsonb_to_recordset(p_tables) t(value text, refused text) where t.refused is null order by t.value)));
  end if;
  return v_told;
end $$;
comment on function trunq._take_tables is
  'Takes the tables that a look has found: [{"value": "shop.orders", "message": {...}, "refused": null, "hint": null}], and asks for a run of each that is not refused, unless the last one is still to come.
Returns: how many are tables of the pipeline, how many refused or gone, and of how many a run was asked for; null: the look is to begin anew.';

create or replace function trunq._note_gone(p_pipeline trunq.pipeline, p_tables jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  with gone as (
    select p.pipeline_id, p.name, trunq._name_table(p.message) as was, r.now
    from trunq.pipeline p left join lateral (
      -- Under another name, in the same database.
      select trunq._name_table(t.message) as now from jsonb_to_recordset(p_tables) t(message jsonb) where t.message->'oid' = p.message->'oid' limit 1) r on true
    where p.parent_id = p_pipeline.pipeline_id
      and not exists (select from jsonb_to_recordset(p_tables) t(value text) where p.name = p_pipeline.name || '/' || t.value)
    order by p.name for no key update of p
  )
  update trunq.pipeline p set refused = f.refused, hint = format('what it wrote stays; without it: trunq pipeline drop %s', p.name),
    refused_at = case when p.refused = f.refused then p.refused_at else trunq.clock() end
  from gone g cross join lateral (select case when g.now is not null then format('table %s is %s by now, which is read from its beginning, as a table of its own', g.was, g.now)
    else format('table %s is gone, or matches no more', g.was) end as refused) f
  where p.pipeline_id = g.pipeline_id and p.refused is distinct from f.refused;
  -- One that was never read leaves nothing.
  delete from trunq.pipeline p where p.parent_id = p_pipeline.pipeline_id and p.done = 0 and p.state = '{}'
    and not exists (select from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id)
    and not exists (select from jsonb_to_recordset(p_tables) t(value text) where p.name = p_pipeline.name || '/' || t.value);
end $$;
comment on function trunq._note_gone is 'Notes of each instance that a look has not found that its table is gone, or has another name.';

create or replace function trunq._name_table(p_message jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select quote_ident(p_message->>'schema_name') || '.' || quote_ident(p_message->>'table_name')
$$;
comment on function trunq._name_table is 'The table of an instance, as statements have it.';

create or replace function trunq._check_tables(p_pipeline text, p_definition jsonb) returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_source jsonb := p_definition->'source';
begin
  if not v_source ? 'tables' then
    return p_definition;
  elsif v_source->>'format' <> 'table' or v_source ? 'table' or jsonb_typeof(v_source->'tables') <> 'array' or v_source->'tables' = '[]'
    or jsonb_path_exists(v_source, '$.tables[*] ? (@.type() != "string")') then
    perform trunq._fail('TQ031', format('pipeline "%s": tables is a list of patterns of a source of the format table, in the place of table', p_pipeline),
      '"source": {"format": "table", "tables": ["shop.*"]}');
  elsif coalesce(p_definition->>'per', 'message.table') <> 'message.table' then
    perform trunq._fail('TQ031', format('pipeline "%s" has many tables, each with runs of its own, and so no per', p_pipeline), 'leave per out');
  end if;
  return '{"per": "message.table"}' || p_definition;
end $$;
comment on function trunq._check_tables is 'Refuses (TQ031) many tables that cannot be; the definition, with its per.';

create or replace function trunq._require_no_table(p_pipeline trunq.pipeline) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline.parent_id is not null and p_pipeline.definition->'source' ? 'tables' and p_pipeline.refused is null then
    perform trunq._fail('TQ031', format('pipeline "%s" is for table %s, which is there: the next run of pipeline "%s" would begin it again', p_pipeline.name,
      trunq._name_table(p_pipeline.message), split_part(p_pipeline.name, '/', 1)),
      format('leave the table out there, by except = [''%s.%s''], and run that one; then drop this one', p_pipeline.message->>'schema_name', p_pipeline.message->>'table_name'));
  end if;
end $$;
comment on function trunq._require_no_table is 'Refuses (TQ031) to drop the instance of a table that is there.';

create or replace function trunq._warn_tables(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  (select 'pipelines', null::text, format('pipeline "%s" stands still: %s', p.name, split_part(p.refused, E'\n', 1)), p.hint
  from trunq.pipeline p
  where p.refused is not null and coalesce(p_queue, 'pipelines') = 'pipelines'
  order by p.refused_at desc, p.name limit 100)
  union all
  select 'pipelines', null, format('pipeline "%s" has found no table that matches %s', p.name, p.definition->'source'->>'tables'),
    format('is that right, as its role sees it? With other patterns: trunq pipeline create FILE; then: trunq pipeline run %s', p.name)
  from trunq.pipeline p
  where p.definition->'source' ? 'tables' and p.parent_id is null and p.state->>'tables' = '0' and p.state->>'refused' = '0' and coalesce(p_queue, 'pipelines') = 'pipelines'
$$;
comment on function trunq._warn_tables is 'Tables of pipelines that cannot be read, or are gone, the newest hundred, and pipelines that found none.';
