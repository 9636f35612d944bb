do $$
begin
  if to_regprocedure('trunq.diagnose(integer, text[])') is not null then
    drop function trunq.diagnose(integer, text[]);
  end if;
end $$;
