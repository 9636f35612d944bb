-- Rows that tasks of an attempt keep out (pipeline/quarantine.sql) say which task it was: one may be repeated.
alter table trunq.quarantine add column part text;
comment on column trunq.quarantine.part is 'What wrote it, where several tasks did: counts only if it is among the parts of the attempt.';
do $$
begin
  if to_regprocedure('trunq._quarantine(bigint, jsonb, jsonb)') is not null then
    drop function trunq._quarantine(bigint, jsonb, jsonb);
  end if;
end $$;
