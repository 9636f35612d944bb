-- What starts runs of a pipeline by itself (functions/pipeline/trigger.sql), and runs in processes of their own.
alter table trunq.schedule
  add column pipeline_id integer unique references trunq.pipeline on delete cascade,
  drop constraint name_is_short_and_plain,
  add constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$' or pipeline_id is not null and name ~ '^pipeline/[a-z][a-z0-9_]{0,47}$');
comment on column trunq.schedule.pipeline_id is 'The pipeline whose trigger it is. Its name has a slash, as no schedule of a user''s can.';

alter table trunq.pipeline add column asked bigint[] not null default '{}';
comment on column trunq.pipeline.asked is 'Messages by which its trigger has asked for runs and that may still wait; few, so that the others wait where they came from.';

alter table trunq.pipeline_run add column crashes integer not null default 0;
comment on column trunq.pipeline_run.crashes is 'How many processes of its own it has crashed, of a pipeline that is isolated.';

-- They have more columns, or parameters, now.
do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.create_pipeline(text, jsonb)", trunq.list_pipelines()}'::text[] loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
