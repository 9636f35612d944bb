-- trunq.diagnose looks at areas that one names, and Postgres would keep the one that took none beside it.
do $$
begin
  if to_regprocedure('trunq.diagnose(integer)') is not null then
    drop function trunq.diagnose(integer);
  end if;
end $$;
