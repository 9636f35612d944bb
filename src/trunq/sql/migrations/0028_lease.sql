-- A lease notes what it does not hand out in no setting any more. Functions of the specimen for that go; those that queues call until they
-- are up to date go then (trunq._drop_former).
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace
      and p.proname in ('_specimen_bury', '_uniquespecimen_pass_over', '_lanespecimen_bury_noted')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
