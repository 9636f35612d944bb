do $$
declare
  v_pipeline text;
begin
  select p.name into v_pipeline from trunq.pipeline p
  where p.definition->'evolve' ?| '{tables,rename}' or 'quarantine' in (p.definition #>> '{evolve,columns}', p.definition #>> '{evolve,types}')
    or jsonb_path_exists(p.definition, 'strict $.evolve.column.* ? (@ == "quarantine")', '{}', true)
    or (p.definition #>> '{sink,format}' <> 'table' and (p.definition #>> '{evolve,types}' = 'widen'
      or jsonb_path_exists(p.definition, 'strict $.evolve.column.* ? (@ == "widen")', '{}', true)))
  order by p.name limit 1;
  if found then
    raise exception 'pipeline "%" has an evolve with tables, rename, quarantine, or widen for a lake, which the older release does not know', v_pipeline
      using hint = 'create it without them';
  end if;
  select p.name into v_pipeline from trunq.pipeline p
  where 'jdbc' in (p.definition #>> '{source,format}', p.definition #>> '{sink,format}') order by p.parent_id is not null, p.name limit 1;
  if found then
    raise exception 'pipeline "%" reads or writes another database by JDBC, which the older release does not know', v_pipeline
      using hint = format('drop it first: trunq pipeline drop %s', v_pipeline);
  end if;
end $$;
delete from trunq.pipeline_column where type is null;
alter table trunq.pipeline_column alter column type set not null;
