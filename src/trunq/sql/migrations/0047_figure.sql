-- What one sees of a pipeline: bytes and times of its runs, how fresh its sink is, and which columns came (functions/pipeline/figure.sql).
alter table trunq.pipeline_attempt
  add column bytes_in bigint,
  add column bytes_out bigint,
  add column source_ms bigint,
  add column work_ms bigint,
  add column sink_ms bigint,
  add column newest_at timestamptz,
  add column columns jsonb;
comment on column trunq.pipeline_attempt.columns is
  'Of the columns that its sink has for its rows those that were not known when it had staged them, with their types.';

alter table trunq.pipeline_run
  add column bytes_in bigint,
  add column bytes_out bigint,
  add column source_ms bigint,
  add column work_ms bigint,
  add column sink_ms bigint,
  add column newest_at timestamptz;
comment on column trunq.pipeline_run.bytes_in is 'Rows as they were read, in Arrow''s memory.';
comment on column trunq.pipeline_run.bytes_out is 'Rows as they were given to the sink, in Arrow''s memory.';
comment on column trunq.pipeline_run.source_ms is 'Milliseconds that reading took; of Spark''s tasks, all of them together. work_ms and sink_ms likewise.';
comment on column trunq.pipeline_run.newest_at is 'The newest value of the column that says how fresh the sink is.';

alter table trunq.pipeline
  add column newest_at timestamptz,
  add column looked_at timestamptz;
comment on column trunq.pipeline.newest_at is 'The newest value, in the sink, of the column that says how fresh it is.';
comment on column trunq.pipeline.looked_at is 'When its source was last asked, and had nothing new.';

create table trunq.pipeline_column (
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  name text not null,
  version integer not null default 1,
  primary key (pipeline_id, name, version),
  type text not null,
  backfill bigint not null,
  number bigint not null,
  is_first boolean not null,
  noted_at timestamptz not null
);
comment on table trunq.pipeline_column is 'One row a type that a column of a sink has had since a run; is_first: the sink had it when its columns were noted first.';

-- Postgres does not replace a function that returns another row, nor one with more parameters.
do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{trunq.list_pipelines(),"trunq.list_runs(text, uuid, integer)",trunq.count_quarantine(text),
      "trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb)","trunq._finish_run(bigint, bigint, bigint, bigint)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
