do $$
begin
  if to_regprocedure('trunq.backfill_pipeline(text, jsonb, text, integer)') is not null then
    drop function trunq.backfill_pipeline(text, jsonb, text, integer);
  end if;
end $$;
drop table trunq.pipeline_share;
drop table trunq.pipeline_backfill;
