-- Where forwarded messages came from, and where they are (functions/work/forward.sql).
create table trunq.forwarded (
  origin_subscription_id integer not null,
  origin_id bigint not null,
  queue_id integer not null,
  id bigint not null,
  subscription_id integer,
  is_here boolean not null,
  look_at timestamptz not null,
  xid xid8,
  primary key (origin_subscription_id, origin_id, queue_id)
) with (fillfactor = 70);
create index forwarded_place on trunq.forwarded (queue_id, id);
create index forwarded_look on trunq.forwarded (queue_id, look_at) where is_here;
comment on table trunq.forwarded is
  'Messages that trunq.forward moved: one row for each queue that a message has been in, and the id that it has there. The subscription that forwarded it first, and its id there, are what it is known by.';
comment on column trunq.forwarded.subscription_id is 'Which subscription forwarded it from here; null: none yet. It comes back as a retry of that one.';
comment on column trunq.forwarded.look_at is 'When trunq.forget looks whether the message is still there.';
comment on column trunq.forwarded.xid is 'The transaction that moves it, until it has arrived.';
