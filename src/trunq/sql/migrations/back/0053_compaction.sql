do $$
declare
  v_pipeline text;
begin
  select p.name into v_pipeline from trunq.pipeline p
  where p.definition ? 'stamp' or p.definition->'sink' ?| '{compact,vacuum}' or p.definition->'evolve' ? 'partitions'
    or jsonb_path_exists(p.definition, 'strict $.columns.cast.* ? (@.type() == "object" || @.type() == "array")', '{}', true)
  order by p.name limit 1;
  if found then
    raise exception 'pipeline "%" has stamp, compact, vacuum, evolve.partitions, or a cast to a list or a struct, which the older release does not know', v_pipeline
      using hint = 'create it without them';
  end if;
end $$;
drop table trunq.pipeline_compaction;
