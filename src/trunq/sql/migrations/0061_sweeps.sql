-- trunq.list_sweeps finds those in one state, and Postgres would keep the one that took none beside it.
do $$
begin
  if to_regprocedure('trunq.list_sweeps(text, integer, bigint)') is not null then
    drop function trunq.list_sweeps(text, integer, bigint);
  end if;
end $$;
