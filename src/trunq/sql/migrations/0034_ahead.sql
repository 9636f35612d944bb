-- Which messages a lease took by their ids, ahead of the position of its subscription (functions/work/ahead.sql).
create table trunq.ahead (
  queue_id integer not null,
  subscription_id integer not null,
  id bigint not null,
  txid xid8 not null,
  lease_id bigint not null,
  primary key (subscription_id, id, txid)
);
create index ahead_lease on trunq.ahead (queue_id, subscription_id, lease_id);
comment on table trunq.ahead is
  'Rows of the log that were leased by id before the position came to them: a plain lease passes over them, and history finds their lease here.';

alter table trunq_data._specimen_lease add column ahead xid8;
comment on column trunq_data._specimen_lease.ahead is
  'Up to this transaction rows may have been taken ahead of the position (trunq.ahead); null: none. Each lease hands it on to the next, until the position is behind all of them.';
alter type trunq.leasing add attribute ahead xid8;
