-- The trigger that wakes sleeping workers; the protocol is in functions/bell.sql. Every publisher runs it, with whatever search_path
-- and rights it has: so it names pg_catalog in every call and calls nothing else.

create or replace function trunq_queue._specimen_wake() returns trigger
language plpgsql as $$
begin
  if pg_catalog.current_setting('trunq.notify', true) = 'off' then
    -- Not even the lock: a prepared transaction would keep every worker from sleeping.
    return null;
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock_shared(1953656417 /*lock bell*/, 0 /*queue_id*/) then
    perform pg_catalog.pg_notify(pg_catalog.concat('trunq_', 0 /*queue_id*/), 'm');
  end if;
  return null;
end $$;
comment on function trunq_queue._specimen_wake() is 'After an insert: notifies sleeping workers, if there are any.';
