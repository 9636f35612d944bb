do $$
begin
  if to_regprocedure('trunq.list_sweeps(text, integer, bigint, text)') is not null then
    drop function trunq.list_sweeps(text, integer, bigint, text);
  end if;
end $$;
