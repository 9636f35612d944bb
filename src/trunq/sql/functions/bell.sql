-- Waking sleeping workers. NOTIFY takes a global lock at commit, so it is sent only when somebody sleeps: one sleeping
-- worker holds the bell (a session lock, exclusive); a publisher tries the same lock, shared, to the end of its
-- transaction, and notifies only if that fails. So either the publisher finds the bell held and notifies, or the worker
-- finds a publisher in the way and does not sleep. Rolled back to a savepoint, the lock goes too: hence no "done already" flag.
-- The setting trunq.notify = off is for two-phase commit, where Postgres forbids NOTIFY; workers then poll.

create or replace function trunq.take_bell(p_queue text) returns text
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
begin
  if pg_try_advisory_lock(1953656417, v_queue_id) then
    return 'held';
  end if;
  -- Publishers share the lock, a sleeper does not.
  if pg_try_advisory_lock_shared(1953656417, v_queue_id) then
    perform pg_advisory_unlock_shared(1953656417, v_queue_id);
    return 'publisher';
  end if;
  return 'sleeper';
end $$;
comment on function trunq.take_bell(text) is
  'Takes the bell for this session before it sleeps. Returns: held (look once more, then sleep), publisher (one is in the way: poll quickly for a while), sleeper (another session holds it: sleep). Raises: TQ001. Locks: the queue''s bell, for the session; taken twice it is to be given twice.';

create or replace function trunq.give_bell(p_queue text) returns boolean
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
begin
  if pg_advisory_unlock(1953656417, v_queue_id) then
    perform pg_notify('trunq_' || v_queue_id, 'bell');
    return true;
  end if;
  return false;
end $$;
comment on function trunq.give_bell(text) is
  'Gives the bell back and tells the other sleepers, the next of whom takes it. Returns: false when this session did not hold it. Raises: TQ001.';

create or replace function trunq.queue_channel(p_queue text) returns text
language sql stable as $$ select 'trunq_' || trunq._queue_id(p_queue) $$;
comment on function trunq.queue_channel(text) is
  'The NOTIFY channel of a queue: payload m, there are messages; bell, the bell is free. Raises: TQ001.';

create or replace function trunq._define_wake(p_queue_id integer, p_queue text) returns void
language plpgsql as $$
begin
  execute format($q$
    create or replace function trunq_data.wake_%1$s() returns trigger language plpgsql as $f$
    begin
      if current_setting('trunq.notify', true) = 'off' then
        -- Not even the lock: a prepared transaction would keep every worker from sleeping.
        return null;
      end if;
      if not pg_try_advisory_xact_lock_shared(1953656417, %1$s) then
        perform pg_notify('trunq_%1$s', 'm');
      end if;
      return null;
    end $f$
  $q$, p_queue_id);
  execute format('create or replace trigger wake after insert on trunq_log.%I for each statement execute function trunq_data.%I()',
    p_queue, 'wake_' || p_queue_id);
end $$;
