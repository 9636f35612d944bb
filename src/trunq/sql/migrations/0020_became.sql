-- What was purged (dead.sql): without it, a message that was requeued, and whose later row is gone, looks the same.
create table trunq.purged (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  txid xid8 not null,
  ids bigint[] not null
);
create index purged_subscription on trunq.purged (subscription_id);
create index purged_queue on trunq.purged (queue_id, txid);
alter table trunq.purged replica identity full;  -- a publication for all tables may publish it
comment on table trunq.purged is
  'Dead messages that were purged, one row a call and subscription, as long as the log has rows from before (trunq.forget).';

-- What no worker has a handler for is named while it waits for its next try (trunq.delayed), and while it is ready again.
create table trunq.unhandled (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  kind text,
  txid xid8 not null,
  ids bigint[] not null
);
create index unhandled_subscription on trunq.unhandled (subscription_id);
create index unhandled_queue on trunq.unhandled (queue_id);
alter table trunq.unhandled replica identity full;
comment on table trunq.unhandled is
  'Messages that were put off for want of a handler and are in the log again, one row a promotion, subscription and kind, until they are read (trunq.forget).';

-- The table of outcomes (functions/ground/outcome.sql) names them all, once.
do $$
begin
  if to_regprocedure('trunq._ending("char")') is not null then
    drop function trunq._ending("char");
  end if;
end $$;
comment on column trunq_data._specimen_archive.outcome is
  'success, failed (retried, or given up after its last attempt), timed_out, rejected, released, lease_expired, expired, cancelled or replaced.';
