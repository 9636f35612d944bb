-- Where the rows of a run pass, and why.
alter table trunq.pipeline_attempt add column engine text, add column engine_reason text;
alter table trunq.pipeline_run add column engine text, add column engine_reason text;
comment on column trunq.pipeline_run.engine is 'Where its rows pass: spark or process; null: nobody has begun an attempt. engine_reason: why.';

-- Postgres does not replace a function that returns another row, nor one with more parameters.
do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.list_runs(text, uuid, integer)",trunq._try_run(bigint)}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
