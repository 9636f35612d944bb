-- Schedules (schedule.sql). Times of a cron text are computed by a client; those to come stand in trunq.schedule_due.
create table trunq.schedule (
  schedule_id integer generated always as identity primary key,
  name text not null unique
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  queue_id integer not null references trunq.queue on delete cascade,
  source text,
  cron text,
  zone text,
  every interval
    constraint every_is_a_second_or_more check (every >= '1 second'),
  start_at timestamptz,
  constraint cron_or_every check (num_nonnulls(cron, every) = 1 and (cron is null) = (zone is null) and (every is null) = (start_at is null)),
  missed text not null default 'one'
    constraint missed_is_known check (missed in ('skip', 'one', 'all')),
  overlap text not null default 'allow'
    constraint overlap_is_known check (overlap in ('allow', 'skip')),
  kind text,
  key text,
  payload jsonb,
  headers jsonb,
  priority smallint not null default 0,
  options jsonb,
  max_age interval,
  paused_until timestamptz,
  next_due timestamptz,
  last_due timestamptz,
  last_id bigint,
  error text,
  created_at timestamptz not null default clock_timestamp()
);
create index schedule_queue on trunq.schedule (queue_id);
create index schedule_next on trunq.schedule (next_due);
comment on table trunq.schedule is 'One row a schedule: what it publishes, when, and how far it has come.';
comment on column trunq.schedule.source is 'The list that it was made from (trunq.sync_schedules); null: it was made by itself.';
comment on column trunq.schedule.last_due is 'The newest time that was fired or skipped: none up to it is ever fired again.';

create table trunq.schedule_due (
  schedule_id integer not null references trunq.schedule on delete cascade,
  due_at timestamptz not null,
  primary key (schedule_id, due_at)
);
comment on table trunq.schedule_due is 'The times to come of schedules with a cron text, 1,000 each when they were just filled.';

create table trunq.schedule_run (
  schedule_id integer not null references trunq.schedule on delete cascade,
  due_at timestamptz not null,
  last_due_at timestamptz not null,
  runs integer not null default 1
    constraint runs_is_positive check (runs > 0),
  fired_at timestamptz not null,
  id bigint,
  skipped text
    constraint skipped_says_why check (skipped in ('missed', 'overlap', 'paused')),
  constraint fired_or_skipped check ((id is null) = (skipped is not null)),
  error text,
  primary key (schedule_id, due_at)
);
comment on table trunq.schedule_run is
  'What became of the due times of schedules, the newest 1,000 rows each: a message (id), or why not. Times skipped one after the other for one reason share a row.';
