-- A queue that refuses doubles may say so of everything that is published into it: a message without a unique key has its kind and
-- content as its key, whatever publishes it (functions/log/unique.sql).
alter table trunq.queue add column unique_on text
  constraint unique_on_is_known check (unique_on in ('content')),
  add constraint unique_on_needs_refusal check (unique_on is null or unique_policy = 'refuse');
comment on column trunq.queue.unique_on is
  'content: a message without a unique key has its kind and content as its key, also that of a plain INSERT or COPY. Null: it has none.';

-- Functions that take more now, or return more: made anew.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('create_queue', '_create_queue', 'list_queues')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
