do $$
begin
  if to_regprocedure('trunq.backfill_pipeline(text, jsonb, text, integer)') is not null then
    drop function trunq.backfill_pipeline(text, jsonb, text, integer);
  end if;
end $$;
drop table trunq.pipeline_table;
-- The older release would take them for pipelines of people's own; their tables are theirs alone.
alter table trunq.pipeline drop column tables_of;
drop table trunq.pipeline_share;
drop table trunq.pipeline_backfill;
