-- Roles of a queue are grants of Postgres (functions/operate/role.sql): trunq.grant_role, which knows publishers too.

do $$
declare
  v_function regprocedure;
begin
  foreach v_function in array array_remove(array[
    to_regprocedure('trunq.grant_publisher(text, text)'), to_regprocedure('trunq._check_answer(bigint[])')], null)
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
