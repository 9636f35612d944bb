-- Waking sleeping workers. NOTIFY takes a global lock at commit, so it is sent only when somebody sleeps: one sleeping
-- worker holds the bell (a session lock, exclusive); a publisher tries the same lock, shared, to the end of its
-- transaction, and notifies only if that fails. So either the publisher finds the bell held and notifies, or the worker
-- finds a publisher in the way and does not sleep. Rolled back to a savepoint, the lock goes too: hence no "done already" flag.
-- The setting trunq.notify = off is for two-phase commit, where Postgres forbids NOTIFY; workers then poll.

create or replace function trunq.take_bell(p_queue text) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
begin
  if pg_try_advisory_lock(trunq._lock_class('bell'), v_queue_id) then
    return 'held';
  end if;
  -- Publishers share the lock, a sleeper does not.
  if pg_try_advisory_lock_shared(trunq._lock_class('bell'), v_queue_id) then
    perform pg_advisory_unlock_shared(trunq._lock_class('bell'), v_queue_id);
    return 'publisher';
  end if;
  return 'sleeper';
end $$;
comment on function trunq.take_bell is
  'Takes the bell for this session before it sleeps.
Returns: held (look once more, then sleep), publisher (a publisher is using it: poll quickly for a while), sleeper (another session holds it: sleep).
Raises: TQ001.
Locks: the queue''s bell, for the session; a session that takes it twice must give it back twice.';

create or replace function trunq.give_bell(p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
begin
  if pg_advisory_unlock(trunq._lock_class('bell'), v_queue_id) then
    perform pg_notify('trunq_' || v_queue_id, 'bell');
    return true;
  end if;
  return false;
end $$;
comment on function trunq.give_bell is
  'Gives the bell back and tells the other sleepers, the next of whom takes it.
Returns: false when this session did not hold it.
Raises: TQ001.';

create or replace function trunq.queue_channel(p_queue text) returns text
language sql stable as $$ select pg_catalog.concat('trunq_', (trunq._find_queue(p_queue)).queue_id) $$;
comment on function trunq.queue_channel is
  'The channel to LISTEN on for new messages of a queue: payload m, there are messages; bell, the bell is free; look, every worker is to look (a pause has ended, a limit has changed).
Raises: TQ001.';

create or replace function trunq._ring_bell(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.notify', true) is distinct from 'off' and not pg_try_advisory_xact_lock_shared(trunq._lock_class('bell'), p_queue_id) then
    perform pg_notify('trunq_' || p_queue_id, 'm');
  end if;
end $$;
comment on function trunq._ring_bell is 'Notifies a sleeping worker, if there is one, as the trigger of a log does.';
