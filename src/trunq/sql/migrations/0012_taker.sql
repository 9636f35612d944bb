-- Who takes the history of a queue elsewhere (functions/keep/taker.sql).
create table trunq.taker (
  queue_id integer not null references trunq.queue on delete cascade,
  name text not null
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  created_at timestamptz not null,
  planned_at timestamptz,
  taken_at timestamptz,
  primary key (queue_id, name)
) with (fillfactor = 50);
comment on table trunq.taker is 'One row for each who takes the history of a queue elsewhere: a pipeline, by its name. Rotation waits for it.';
comment on column trunq.taker.planned_at is 'When it last asked what there is.';
comment on column trunq.taker.taken_at is 'When it last said that it has taken all up to its marks.';

create table trunq.taker_mark (
  queue_id integer not null,
  taker text not null,
  subscription_id integer not null,
  subscription text not null,
  reader text not null,
  lease_id bigint not null default 0,
  open bigint[] not null default '{}',
  primary key (queue_id, taker, subscription_id),
  foreign key (queue_id, taker) references trunq.taker on delete cascade
) with (fillfactor = 50);
comment on table trunq.taker_mark is
  'How far the attempts of a subscription are taken: its leases up to lease_id, but for the open ones, which it passed. It outlives its subscription until all is taken.';
comment on column trunq.taker_mark.reader is
  'Names the subscription in the state of the taker, which lies elsewhere: its id, and when it was made.';
