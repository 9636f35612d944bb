-- A lease notes what it does not hand out in no setting any more: its functions for that go, those of queues too.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('_note_expired', '_note_cancelled', '_note_replaced', '_noted')
      or p.pronamespace = 'trunq_queue'::regnamespace and (
        p.proname in ('_specimen_bury', '_uniquespecimen_pass_over', '_lanespecimen_bury_noted')
        or p.proname in (select q.name || '_bury_noted' from trunq.queue q))
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
