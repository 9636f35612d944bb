do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.list_runs(text, uuid, integer)","trunq._try_run(bigint, text, text)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
alter table trunq.pipeline_run drop column engine, drop column engine_reason;
alter table trunq.pipeline_attempt drop column engine, drop column engine_reason;
