-- Every version of the columns that the sink of a pipeline has for its rows. figure.sql notes them, a row a column and type, in the step that ends
-- the run that brought them; a version is what one run brought, on top of those before it.

create or replace function trunq.list_schemas(p_pipeline text, p_limit integer default 100)
returns table (version bigint, columns jsonb, changed jsonb, number bigint, backfill bigint, noted_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  perform trunq._check_limit(p_limit);
  return query
    with brought as (
      select k.backfill, k.number, min(k.noted_at) as noted_at, jsonb_object_agg(k.name, k.type) as changed
      from trunq.pipeline_column k where k.pipeline_id = v_pipeline.pipeline_id group by 1, 2
    ), numbered as (
      select row_number() over (order by b.noted_at, b.number, b.backfill) as version, b.* from brought b
    )
    select n.version,
      (select jsonb_object_agg(c.name, c.type) from (
        select distinct on (e.name) e.name, e.type from numbered o, jsonb_each_text(o.changed) e(name, type)
        where o.version <= n.version order by e.name, o.version desc) c where c.type is not null),
      n.changed, n.number, n.backfill, n.noted_at
    from numbered n order by 1 desc limit p_limit;
end $$;
comment on function trunq.list_schemas is
  'Every version of the columns that the sink of a pipeline has for its rows, newest first, p_limit of them at most (100): columns with their types, and of these what changed with the run that brought the version (of a column that was renamed away, type null). A sink in another place begins anew. Of sinks with columns: tables, Delta and Parquet.
Raises: TQ005, TQ030.';
