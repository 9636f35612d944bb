-- What stands in the way: locks that rotation did not get, and leases that ran out. Both are written where something is wrong, and nowhere else.

create table trunq.refusal (
  queue_id integer not null references trunq.queue on delete cascade,
  name text not null,
  refused integer not null,
  since timestamptz not null,
  refused_at timestamptz not null,
  waited integer not null,
  waited_at timestamptz not null,
  primary key (queue_id, name)
) with (fillfactor = 50);
comment on table trunq.refusal is
  'Locks that rotation did not get, until it gets them: of which segment (a table in trunq_data), or of the queue. It waits longer the more often it was refused.';
comment on column trunq.refusal.waited is 'How many milliseconds it waited when it last waited longer than before, or as long as it may; waited_at: when.';

create table trunq.expiry (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  worker text not null,
  leases bigint not null,
  messages bigint not null,
  expired_at timestamptz not null,
  primary key (subscription_id, worker)
) with (fillfactor = 50);
create index on trunq.expiry (queue_id);
comment on table trunq.expiry is
  'Workers whose leases ran out with messages unanswered, within the last hour: how many leases, of how many messages, and when the last did. The reaper writes it.';
