-- A pipeline with `per` has a row for each value of it (functions/pipeline/instance.sql), and limits (functions/pipeline/quota.sql).
alter table trunq.pipeline
  add column parent_id integer references trunq.pipeline on delete cascade,
  add column message jsonb,
  add column day date,
  add column day_rows bigint not null default 0,
  add column day_bytes bigint not null default 0,
  add column put_off_until timestamptz,
  add column put_off_for text,
  drop constraint name_is_short_and_plain,
  add constraint name_is_short_and_plain check (
    parent_id is null and name ~ '^[a-z][a-z0-9_]{0,47}$'
    or parent_id is not null and name ~ '^[a-z][a-z0-9_]{0,47}/[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$');
create index pipeline_parent on trunq.pipeline (parent_id) where parent_id is not null;
comment on column trunq.pipeline.parent_id is 'Of an instance the pipeline whose definition it has. Its name has a slash, as no pipeline''s can.';
comment on column trunq.pipeline.message is 'Of an instance what the newest message that asked for a run said, as far as the definition declares it.';
comment on column trunq.pipeline.day is 'The day, of UTC, that day_rows and day_bytes are of: what its sink took.';
comment on column trunq.pipeline.put_off_until is 'Until when its limits let no run begin, as the newest message that asked found, and by which of them (put_off_for).';

-- Postgres does not replace a function that has more parameters.
do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{"trunq._open_run(text, bigint, jsonb, boolean, interval)","trunq.run_pipeline(text, jsonb)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
