-- What each subscription was like at a time, every few seconds of a day (functions/operate/sample.sql).
create table trunq.sample (
  queue_id integer not null,
  subscription text not null,
  at timestamptz not null,
  segment smallint not null,
  looked_at timestamptz not null,
  inserted bigint,
  snapshot pg_snapshot,
  published bigint,
  last_id bigint,
  mode text,
  ready bigint,
  leased bigint,
  delayed bigint,
  dead bigint,
  parked bigint,
  workers integer,
  done_last_minute bigint,
  oldest_ready_at timestamptz,
  oldest_dead_at timestamptz,
  estimated text[],
  paused boolean,
  paused_until timestamptz,
  lost_at timestamptz,
  pending bigint,
  pending_since timestamptz,
  answered bigint,
  answers jsonb,
  counted jsonb,
  counted_to timestamptz,
  primary key (queue_id, subscription, at, segment)
) partition by list (segment);
create index sample_at on trunq.sample (at);
do $$
begin
  for n in 0 .. 5 loop
    execute format('create table trunq_data._sample_%s partition of trunq.sample for values in (%s)', n, n);
  end loop;
end $$;
comment on table trunq.sample is
  'What each subscription was like at a time; the row of a queue has an empty subscription, and that of the duty itself queue 0. Segments of six hours, which TRUNCATE empties.';
comment on column trunq.sample.looked_at is 'When its figures were looked up: a queue where nothing happens gets a row a minute that repeats them.';
comment on column trunq.sample.inserted is 'Of a queue: how many rows Postgres says were inserted into its segments of that time. Another number: something happened.';
comment on column trunq.sample.snapshot is 'Of a queue: published counts the messages that this sees.';
comment on column trunq.sample.answers is 'How many answers of each outcome there were since the subscription was first counted; answered is their sum. counted: those before counted_to.';

-- What workers say of themselves (functions/work/presence.sql).
create table trunq.worker_report (
  queue_id integer not null,
  subscription text not null,
  worker text not null,
  host text not null,
  pid integer not null,
  at timestamptz not null,
  segment smallint not null,
  began_at timestamptz not null,
  version text not null,
  slots integer not null,
  last_word text
    constraint last_word_is_known check (last_word in ('drained', 'killed')),
  handling jsonb not null
) partition by list (segment);
create index worker_report_at on trunq.worker_report (at);
alter table trunq.worker_report replica identity full;
do $$
begin
  for n in 0 .. 5 loop
    execute format('create table trunq_data._worker_report_%s partition of trunq.worker_report for values in (%s)', n, n);
    execute format('alter table trunq_data._worker_report_%s replica identity full', n);
  end loop;
end $$;
comment on table trunq.worker_report is
  'What each worker said of itself, every ten seconds: the newest row is the worker. Segments of half an hour, which TRUNCATE empties.';
comment on column trunq.worker_report.last_word is 'Of its last row: drained, what it had was finished; killed, it was ended before.';
comment on column trunq.worker_report.handling is 'What its slots handle: queue, id and kind of each message, and for how many seconds.';

-- Who did what to how many (functions/operate/audit.sql).
create table trunq.audit (
  audit_id bigint generated always as identity primary key,
  at timestamptz not null,
  who text not null,
  login text not null,
  application text not null,
  address text,
  did text not null,
  queue text,
  arguments jsonb not null,
  messages bigint
);
create index audit_queue on trunq.audit (queue, audit_id);
comment on table trunq.audit is 'What people did: one row for each call of a function that changes something by hand, in the same transaction.';
comment on column trunq.audit.who is 'The setting trunq.who, by which a program says for whom it acts; else login, the role that opened the session.';
comment on column trunq.audit.did is 'The function; arguments: its parameters that were given. messages: how many it was done to; null: none, or it is not told.';
