do $$
declare
  v_function text;
begin
  -- An older runner would find no pipeline of that name, and give these messages up: what is left stays where it is.
  foreach v_function in array
    '{"trunq.list_quarantine(text, text, integer, bigint)","trunq._ask_each(text, text[], jsonb)",
      "trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb, bigint, bigint, bigint, bigint, bigint, timestamptz, jsonb, text)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
-- It has limits alone that put a run off, and would call a pause one.
update trunq.pipeline p set put_off_until = null, put_off_for = null where p.put_off_for = 'pause';
drop table trunq.pipeline_left;
alter table trunq.pipeline_attempt drop column newest_by;
alter table trunq.pipeline drop column failures, drop column failing_since, drop column error, drop column unfit;
