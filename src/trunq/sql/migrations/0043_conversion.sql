-- A queue may be told later what it was not told when it was made (functions/operate/conversion.sql).

alter table trunq.queue add column reshaped_at timestamptz;
comment on column trunq.queue.reshaped_at is
  'When its ring got a longer span; null: never. What was written before lies in segments of another count.';

create table trunq.seam (
  subscription_id integer primary key references trunq.subscription on delete cascade on update cascade,
  last_txid xid8 not null,
  last_id bigint not null
);
comment on table trunq.seam is
  'Where in its window a shared subscription stood when its queue got lanes: up to here of the window numbered 0 plain leases have handed out.';
