-- Whoever is reader, worker or admin of a queue reads its samples (functions/operate/overview.sql); the owner reads all, as before. The policy names no
-- function of trunq, so that a downgrade may drop them. It looks at names in the caches of the catalog, and is asked once a statement.
alter table trunq.sample enable row level security;
create policy role_of_queue on trunq.sample for select using (
  queue_id = 0 or queue_id in (
    select q.queue_id from trunq.queue q
    where exists (
      select from unnest('{work,read,administer}'::text[]) d
      where pg_catalog.has_function_privilege(
        pg_catalog.to_regprocedure(pg_catalog.format('trunq_queue.%I(text,text[])', pg_catalog.concat(q.name, '_', d))), 'execute'))));

-- Postgres does not replace a function that returns another row, nor one with more parameters.
do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.overview(integer)","trunq._look_again(trunq.sample[], timestamptz)","trunq._sample_before(integer, text, timestamptz)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
