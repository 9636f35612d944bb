-- Tables whose changes are published (functions/log/capture.sql).
create table trunq.capture (
  capture_id integer generated always as identity primary key,
  queue_id integer not null references trunq.queue,
  -- As its messages name it: renaming the table does not change it.
  name text not null,
  kind text not null,
  key text[],
  columns text[],
  ignore text[],
  condition jsonb,
  deny text[],
  -- Virtual columns, which no trigger sees.
  hidden text[],
  format text not null
    constraint format_is_known check (format in ('plain', 'debezium')),
  created_at timestamptz not null default clock_timestamp()
);
create index capture_queue on trunq.capture (queue_id);
comment on table trunq.capture is
  'One row a captured table. Which table that is, its triggers tell, which call trunq_data.capture_<capture_id>: after a restore from a dump too.';
comment on column trunq.capture.key is 'The columns that the key of a message is made of; null: it has none.';
