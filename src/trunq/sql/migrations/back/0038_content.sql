-- Queues with unique_on go on with unique keys by name alone: older functions would take a null for no key, so their trigger goes, and is
-- made again as it was when the queue's functions are.
do $$
declare
  v_name text;
begin
  for v_name in select q.log_table from trunq.queue q where q.unique_on is not null loop
    execute format('drop trigger if exists take_key on trunq_log.%I', v_name);
  end loop;
end $$;
alter table trunq.queue drop constraint unique_on_needs_refusal, drop column unique_on;
