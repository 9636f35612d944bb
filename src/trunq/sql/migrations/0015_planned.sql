-- A run begins only from the state that it was planned from (run.sql): its functions are told which one that was.
do $$
declare
  v_function text;
begin
  foreach v_function in array
    '{"trunq._begin_run(text, bigint, jsonb, text, bigint, jsonb, boolean, uuid, text, interval)", "trunq._note_nothing(text, bigint, jsonb)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
