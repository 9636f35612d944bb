-- What a batch is read by returns the columns that the user added to the log, and a lane's messages have them in their options. Postgres does
-- not replace a function that returns another row.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname = 'read_batch'
      or p.pronamespace = 'trunq_queue'::regnamespace and p.proname in ('_specimen_read_page', '_lanespecimen_coming_of_lane')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
