-- Pipelines (functions/pipeline/pipeline.sql), their runs (run.sql) and the rows that broke a rule (quarantine.sql).
create table trunq.pipeline (
  pipeline_id integer generated always as identity primary key,
  name text not null unique
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  identity uuid not null default gen_random_uuid(),
  definition jsonb not null,
  followers text[] not null default '{}',
  state jsonb not null default '{}',
  done bigint not null default 0,
  paused_until timestamptz,
  created_at timestamptz not null default clock_timestamp()
);
comment on table trunq.pipeline is 'One row a pipeline: what it moves, and how far it is.';
comment on column trunq.pipeline.identity is 'Names it in the marks of sinks: a pipeline that was dropped and made again is another one.';
comment on column trunq.pipeline.state is 'Where the next slice begins, as the source says it.';
comment on column trunq.pipeline.done is 'Number of the newest run that ended, backfills not counted.';

create table trunq.pipeline_run (
  run_id bigint generated always as identity primary key,
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  backfill bigint not null default 0,
  number bigint not null,
  unique (pipeline_id, backfill, number),
  message_id bigint not null,
  payload jsonb,
  chain uuid not null,
  started_by text,
  slice jsonb not null,
  snapshot pg_snapshot not null,
  begun_at timestamptz not null,
  ended_at timestamptz,
  outcome text
    constraint outcome_is_known check (outcome in ('done', 'cancelled')),
  constraint ended_with_an_outcome check ((ended_at is null) = (outcome is null)),
  attempts integer not null default 0,
  attempt bigint,
  rows_in bigint,
  rows_out bigint,
  rows_bad bigint,
  progress jsonb,
  error text,
  is_cancelled boolean not null default false,
  holder bigint,
  held_until timestamptz
);
create unique index pipeline_run_open on trunq.pipeline_run (pipeline_id, backfill) where ended_at is null;
create index pipeline_run_message on trunq.pipeline_run (message_id);
create index pipeline_run_chain on trunq.pipeline_run (chain);
comment on table trunq.pipeline_run is 'One row a run: a slice of a source, fixed before it is read. The newest 1,000 of each pipeline stay.';
comment on column trunq.pipeline_run.backfill is '0: it moves the state. Else the message that asked for a range, which is a series of its own.';
comment on column trunq.pipeline_run.snapshot is 'Taken before the slice was fixed: a message that is visible in it asked for nothing that is not in the slice.';
comment on column trunq.pipeline_run.holder is 'The message whose worker is at it, until held_until unless it says more.';

create table trunq.pipeline_attempt (
  attempt bigint primary key,
  run_id bigint not null references trunq.pipeline_run on delete cascade,
  parts text[],
  state_after jsonb,
  rows_in bigint,
  rows_out bigint,
  rows_bad bigint,
  begun_at timestamptz not null
);
create index pipeline_attempt_run on trunq.pipeline_attempt (run_id);
comment on table trunq.pipeline_attempt is
  'One row a try at a run. parts null: it has not staged all yet. The sink keeps, with its data, the attempt that it took; that one''s state and counts become the run''s.';

create table trunq.pipeline_file (
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  path text not null,
  size bigint not null,
  modified_at bigint not null,
  number bigint not null,
  primary key (pipeline_id, path, size, modified_at)
);
comment on table trunq.pipeline_file is 'The files that runs of a pipeline have read; modified_at in nanoseconds.';

create table trunq.quarantine (
  quarantine_id bigint generated always as identity primary key,
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  attempt bigint not null,
  run_id bigint,
  reasons text[] not null,
  content jsonb not null,
  created_at timestamptz not null
);
create index quarantine_pipeline on trunq.quarantine (pipeline_id, quarantine_id);
create index quarantine_attempt on trunq.quarantine (attempt);
comment on table trunq.quarantine is 'Rows that broke a rule. run_id null: of an attempt that its sink may not take; nobody sees it.';
