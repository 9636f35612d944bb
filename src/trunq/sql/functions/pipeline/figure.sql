-- What one sees of a pipeline: how fresh its sink is, what its runs moved and how long that took, and which columns came.
--
-- An attempt notes its figures when it has staged all (_stage_run), and they become the run's when the sink has taken it (_finish_run).
--
-- How fresh a sink is says the newest value of a column, where the definition names one whose values are times: freshness, newest of the
-- sink, or cursor of the source. Else it is the time at which the slice of the newest run that is in the sink was fixed, or the source was
-- found without anything new.
--
-- The columns are those that the sink has for the rows, with its types. The first run of a sink notes them; what differs from then on is a change of
-- its schema. They are noted in the step that ends a run, so a run that was killed, or failed, after it had added a column leaves that to the next.

create or replace function trunq._freshness_column(p_definition jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(p_definition->>'freshness', p_definition->'sink'->>'newest',
    case when jsonb_typeof(p_definition->'source'->'cursor') = 'string' then p_definition->'source'->>'cursor' end)
$$;
comment on function trunq._freshness_column is 'The column whose newest value says how fresh the sink of a pipeline is; null: none.';

create or replace function trunq._next_newest(p_definition jsonb, p_before timestamptz, p_newest timestamptz) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_definition->'sink'->>'mode' = 'replace' then p_newest else greatest(p_before, p_newest) end
$$;
comment on function trunq._next_newest is 'The newest value in the sink after a run that brought p_newest.';

create or replace function trunq._sink_target(p_definition jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (p_definition->'sink') - '{mode,key,newest,partition_by,deletes,missing,max_missing,user,password,driver,properties}'::text[]
$$;
comment on function trunq._sink_target is 'What of a definition says where rows go: with another, columns and freshness are those of another sink.';

create or replace function trunq._find_new_columns(p_pipeline_id integer, p_columns jsonb) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select jsonb_object_agg(c.name, c.type) from jsonb_each_text(p_columns) c(name, type)
  where c.type is distinct from (
    select k.type from trunq.pipeline_column k where k.pipeline_id = p_pipeline_id and k.name = c.name order by k.version desc limit 1)
$$;
comment on function trunq._find_new_columns is 'Of columns with their types those that are not known of a pipeline as they are; null: all are.';

create or replace function trunq._note_columns(p_run trunq.pipeline_run, p_columns jsonb) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into trunq.pipeline_column (pipeline_id, name, version, type, backfill, number, is_first, noted_at)
  select p_run.pipeline_id, c.name, coalesce(k.version, 0) + 1, c.type, p_run.backfill, p_run.number,
    not exists (select from trunq.pipeline_column k where k.pipeline_id = p_run.pipeline_id), trunq.clock()
  from jsonb_each_text(trunq._find_new_columns(p_run.pipeline_id, p_columns)) c(name, type)
  left join lateral (
    select k.version from trunq.pipeline_column k where k.pipeline_id = p_run.pipeline_id and k.name = c.name order by k.version desc limit 1) k on true
$$;
comment on function trunq._note_columns is 'Notes the columns that came with a run. Its pipeline is locked.';

create or replace function trunq.list_runs(p_pipeline text default null, p_chain uuid default null, p_limit integer default 100)
returns table (
  pipeline text, number bigint, backfill bigint, message_id bigint, chain uuid, started_by text, begun_at timestamptz, ended_at timestamptz, outcome text,
  attempts integer, rows_in bigint, rows_out bigint, rows_bad bigint, error text, is_cancelled boolean, progress jsonb, payload jsonb, slice jsonb,
  bytes_in bigint, bytes_out bigint, source_ms bigint, work_ms bigint, sink_ms bigint, newest_at timestamptz,
  engine text, engine_reason text
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
begin
  if p_pipeline is not null then
    v_pipeline := trunq._find_pipeline(p_pipeline);
  end if;
  perform trunq._check_limit(p_limit);
  return query
    select p.name, r.number, r.backfill, r.message_id, r.chain, r.started_by, r.begun_at, r.ended_at, r.outcome, r.attempts, r.rows_in, r.rows_out, r.rows_bad,
      r.error, r.is_cancelled, r.progress, r.payload, r.slice, r.bytes_in, r.bytes_out, r.source_ms, r.work_ms, r.sink_ms, r.newest_at, r.engine, r.engine_reason
    from trunq.pipeline_run r join trunq.pipeline p on p.pipeline_id = r.pipeline_id
    where (p_pipeline is null or p.name = p_pipeline or v_pipeline.pipeline_id = p.parent_id) and (p_chain is null or r.chain = p_chain)
    order by r.run_id desc limit p_limit;
end $$;
comment on function trunq.list_runs is
  'Runs, newest first, p_limit of them at most (100): of a pipeline and its instances, or of one of these, of a chain (a run and those that ran after it, which have one chain), or all. outcome null: it is open; error: of its newest attempt that failed; started_by: the pipeline that it ran after; backfill: the message that asked for a range, or 0. bytes_in, bytes_out: rows as they were read and as they were given to the sink, in Arrow''s memory; source_ms, work_ms, sink_ms: milliseconds for reading, for what is between, and for writing, of Spark''s tasks all together; newest_at: the newest value of the column that says how fresh the sink is; engine, engine_reason: where its rows passed (spark or process), and why, while it is open those of its newest attempt. Those are of the attempt that the sink has taken, and null where it took none.
Raises: TQ005, TQ030.';

create or replace function trunq.list_schema_changes(p_pipeline text, p_limit integer default 100)
returns table (column_name text, type_before text, type text, number bigint, backfill bigint, noted_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  perform trunq._check_limit(p_limit);
  return query
    select k.name, b.type, k.type, k.number, k.backfill, k.noted_at
    from trunq.pipeline_column k
    left join trunq.pipeline_column b on b.pipeline_id = k.pipeline_id and b.name = k.name and b.version = k.version - 1
    where k.pipeline_id = v_pipeline.pipeline_id and not k.is_first order by k.noted_at desc, k.number desc, k.name limit p_limit;
end $$;
comment on function trunq.list_schema_changes is
  'How the columns that the sink of a pipeline has for its rows have changed since its first run into it, newest first, p_limit of them at most (100): the run with which a column was new (type_before null), had another type than before, or was renamed (type null). Of sinks with columns: tables, Delta and Parquet.
Raises: TQ005, TQ030.';
