-- Movers (stream/mover.sql): what moves a stream elsewhere, and how far this database has received those of others.
create table trunq.mover (
  subscription_id integer primary key references trunq.subscription on delete cascade on update cascade,
  definition jsonb not null,
  worker text,
  started_at timestamptz not null,
  stops integer not null default 0,
  started_stops integer not null default 0,
  place jsonb,
  batches bigint not null default 0,
  messages bigint not null default 0,
  moved_at timestamptz,
  error text,
  failed_at timestamptz
);
comment on table trunq.mover is 'One row an exclusive subscription that is moved: by whom, where to, how far.';
comment on column trunq.mover.worker is 'The process that started last; null: it ended in good order.';
comment on column trunq.mover.stops is 'How often somebody asked it to stop; the process ends when these are more than started_stops, which it found.';
comment on column trunq.mover.place is 'The end of the last batch that was moved and finished; null: none was.';

create table trunq.received (
  source text not null,
  subscription_id integer not null,
  from_place jsonb,
  to_place jsonb,
  received_at timestamptz,
  primary key (source, subscription_id)
);
comment on table trunq.received is 'Marks of movers: of each stream that is moved into this database, the newest batch whose messages are here. Written with them.';
comment on column trunq.received.source is 'System identifier, number of the database and number of the queue that it comes from.';
