do $$
declare
  v_function text;
  v_left text;
begin
  -- An older runner finds no pipeline of that name, and gives these messages up.
  select l.name into v_left from trunq.pipeline_left l order by l.dropped_at limit 1;
  if found then
    raise exception 'pipeline "%" was dropped, and its sink may have what was staged for it, of which the older release knows nothing', v_left
      using hint = 'a runner removes that: trunq worker trunq.pipeline.runner:worker; to leave it there: delete from trunq.pipeline_left';
  end if;
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
