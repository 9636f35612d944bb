-- What waits of a pipeline, and what is left of one that was dropped (functions/pipeline/pending.sql, left.sql).
alter table trunq.pipeline
  add column failures integer not null default 0,
  add column failing_since timestamptz,
  add column error text,
  add column unfit jsonb;
comment on column trunq.pipeline.failures is 'How often in a row a run of it could not begin; failing_since: when the first of these failed, error: why the newest did.';
comment on column trunq.pipeline.unfit is 'Of the table of its trigger''s for, the values that cannot be those of a message: how many ("count"), and some ("values").';

alter table trunq.pipeline_attempt add column newest_by text;
comment on column trunq.pipeline_attempt.newest_by is 'The column that newest_at is of.';

create table trunq.pipeline_left (
  identity text primary key,
  name text not null,
  definition jsonb not null,
  message jsonb,
  backfills bigint[] not null,
  dropped_at timestamptz not null
);
comment on table trunq.pipeline_left is
  'One row a pipeline or instance that was dropped, and whose sink may still have what an attempt had staged: a runner removes that, and the row.';

-- Postgres does not replace a function that returns another row, nor one with more parameters.
do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{"trunq.list_quarantine(text, text, integer, bigint)","trunq._ask_each(text, text[])",
      "trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb, bigint, bigint, bigint, bigint, bigint, timestamptz, jsonb)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
