do $$
declare
  v_pipeline text;
  v_function text;
begin
  select p.name into v_pipeline from trunq.pipeline p where p.definition->'source' ? 'tables' and p.parent_id is null order by p.name limit 1;
  if found then
    raise exception 'pipeline "%" has many tables, which the older release does not know', v_pipeline
      using hint = format('drop it first, with what it knows of its tables: trunq pipeline drop %s', v_pipeline);
  end if;
  select p.name into v_pipeline from trunq.pipeline p
  where p.definition #>> '{source,changes}' = 'capture' or p.definition->'sink' ?| '{missing,max_missing,deletes}' or p.definition #>> '{sink,mode}' = 'apply'
    or p.definition #>> '{sink,format}' = 'delta' and p.definition #>> '{sink,mode}' = 'history'
  order by p.parent_id is not null, p.name limit 1;
  if found then
    raise exception 'pipeline "%" takes changes in a way that the older release does not know', v_pipeline
      using hint = 'create it without changes = capture, mode apply, missing, max_missing, deletes and history of a Delta table, or drop it';
  end if;
  foreach v_function in array '{"trunq.backfill_pipeline(text, jsonb, text, integer)","trunq.list_instances(text, integer)"}'::text[] loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
drop table trunq.pipeline_share;
drop table trunq.pipeline_backfill;
alter table trunq.pipeline drop column refused, drop column hint, drop column refused_at;
