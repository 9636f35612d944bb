-- The doors of a queue, through which roles reach what stands on tables of all queues: each runs a few functions, for this queue, with
-- the owner's rights. operate/door.sql has the essay. To go through one is a grant on it, which Postgres checks.

create or replace function trunq_queue._specimen_work(p_function text, p_arguments text[] default '{}') returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query execute trunq._call_behind_door('_specimen', 'work', p_function, p_arguments);
end $$;
revoke execute on function trunq_queue._specimen_work from public;
comment on function trunq_queue._specimen_work is
  'The door for workers. Runs a function of trunq for this queue; p_arguments: name, value, name, value. Call trunq.reclaim(''queue'', ...) and its like instead: they come here by themselves.
Raises: 42501 for another function.';

create or replace function trunq_queue._specimen_read(p_function text, p_arguments text[] default '{}') returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query execute trunq._call_behind_door('_specimen', 'read', p_function, p_arguments);
end $$;
revoke execute on function trunq_queue._specimen_read from public;
comment on function trunq_queue._specimen_read is
  'The door for readers: as trunq_queue.<queue>_work. Payloads, bodies, headers and results are null.
Raises: 42501 for another function.';

create or replace function trunq_queue._specimen_read_payload(p_function text, p_arguments text[] default '{}') returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query execute trunq._call_behind_door('_specimen', 'read_payload', p_function, p_arguments);
end $$;
revoke execute on function trunq_queue._specimen_read_payload from public;
comment on function trunq_queue._specimen_read_payload is
  'The door for readers who may see payloads: as trunq_queue.<queue>_read.
Raises: 42501 for another function.';

create or replace function trunq_queue._specimen_administer(p_function text, p_arguments text[] default '{}') returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query execute trunq._call_behind_door('_specimen', 'administer', p_function, p_arguments);
end $$;
revoke execute on function trunq_queue._specimen_administer from public;
comment on function trunq_queue._specimen_administer is
  'The door for those who administer the queue: as trunq_queue.<queue>_read, and what they may change.
Raises: 42501 for another function.';
