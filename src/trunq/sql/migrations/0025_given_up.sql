-- Runs that are given up while nobody is at them, and sinks that hold another run than this database thinks (run.sql).
alter table trunq.pipeline_run
  drop constraint outcome_is_known,
  add constraint outcome_is_known check (outcome in ('done', 'cancelled', 'skipped')),
  add column is_settled boolean not null default true,
  add column failures integer not null default 0,
  add column failing_since timestamptz,
  add column sink_number bigint;
create index pipeline_run_unsettled on trunq.pipeline_run (pipeline_id) where not is_settled;
comment on column trunq.pipeline_run.is_settled is 'False: it was given up here, and its sink is still to say that it did not take it, and never will.';
comment on column trunq.pipeline_run.failures is 'Attempts that failed, since failing_since.';
comment on column trunq.pipeline_run.sink_number is 'Which run its sink holds, where that is not one that this database expects.';

alter table trunq.pipeline
  add column marked bigint not null default 0;
comment on column trunq.pipeline.marked is 'The newest run that the sink as it is now is known to hold; 0: not known.';

do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{"trunq._finish_run(bigint, bigint)", "trunq._let_go(bigint, bigint, text)", "trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
