-- Findings have a column with the grant that the role lacks, and Postgres does not replace a function that returns another row.
do $$
begin
  if to_regprocedure('trunq.diagnose(integer, text[])') is not null then
    drop function trunq.diagnose(integer, text[]);
  end if;
  if to_regprocedure('trunq._diagnose_statistics(text[])') is not null then
    drop function trunq._diagnose_statistics(text[]);
  end if;
end $$;
