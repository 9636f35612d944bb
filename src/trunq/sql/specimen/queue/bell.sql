-- The trigger that wakes sleeping workers; the protocol is in bell.sql. Every publisher runs it, with whatever rights
-- it has: so it calls nothing of ours.

create or replace function trunq_queue._specimen_wake() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.notify', true) = 'off' then
    -- Not even the lock: a prepared transaction would keep every worker from sleeping.
    return null;
  end if;
  if not pg_try_advisory_xact_lock_shared(1953656417 /*lock bell*/, 0 /*queue_id*/) then
    perform pg_notify(concat('trunq_', 0 /*queue_id*/), 'm');
  end if;
  return null;
end $$;
comment on function trunq_queue._specimen_wake is 'After an insert: notifies sleeping workers, if there are any.';
