do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{trunq.list_pipelines(text),"trunq.list_runs(text, uuid, integer)",trunq.count_quarantine(text),"trunq.list_schema_changes(text, integer)",
      "trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb, bigint, bigint, bigint, bigint, bigint, timestamptz, jsonb)",
      "trunq._finish_run(bigint, bigint, bigint, bigint, bigint)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
drop table trunq.pipeline_column;
alter table trunq.pipeline drop column newest_at, drop column looked_at;
alter table trunq.pipeline_run
  drop column bytes_in, drop column bytes_out, drop column source_ms, drop column work_ms, drop column sink_ms, drop column newest_at;
alter table trunq.pipeline_attempt
  drop column bytes_in, drop column bytes_out, drop column source_ms, drop column work_ms, drop column sink_ms, drop column newest_at, drop column columns;
