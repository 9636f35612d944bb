do $$
begin
  if to_regprocedure('trunq.diagnose(integer, text[])') is not null then
    drop function trunq.diagnose(integer, text[]);
  end if;
  if to_regprocedure('trunq._diagnose_statistics(text[])') is not null then
    drop function trunq._diagnose_statistics(text[]);
  end if;
end $$;
