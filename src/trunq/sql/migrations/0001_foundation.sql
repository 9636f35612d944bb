-- trunq: a queue and event-stream system inside Postgres.
--
-- trunq        rules: queues, subscriptions, delayed and dead messages, ticks, the leader; and every public function
-- trunq_log    one append-only table a queue, trunq_log.<queue>: what publishers insert or copy into
-- trunq_data   behind each queue: its segments, leases and receipts, and the functions generated for it
--
-- Log, lease and receipt tables are made by trunq.create_queue(); here is what exists once.

create schema trunq;
create schema trunq_log;
create schema trunq_data;

comment on schema trunq is 'trunq: rules and functions of the queue system';
comment on schema trunq_log is 'trunq: one append-only table a queue; publish by INSERT or COPY';
comment on schema trunq_data is 'trunq: segments, leases and receipts; internal';

-- What the log's columns hold. As domains, checked by what a session has ready: a CHECK of the table is made ready again for
-- every statement, and four of them made an INSERT take 20 instead of 13 microseconds.
create domain trunq.payload as jsonb
  constraint payload_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.body as bytea
  constraint body_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.headers as jsonb
  constraint headers_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.no_priority as smallint
  constraint plain_queue_has_no_priority check (value = 0);

create table trunq.migration (
  number integer primary key,
  name text not null,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table trunq.migration is 'How the tables came to be: one row a migration applied.';

-- Transaction ids mean nothing in another cluster: positions made here are refused there (trunq.rebase()).
create table trunq.cluster (
  singleton boolean primary key default true constraint one_row check (singleton),
  system_identifier bigint not null
);
comment on table trunq.cluster is 'The Postgres cluster whose transaction ids the positions are made of.';

create table trunq.queue (
  queue_id integer generated always as identity primary key,
  name text not null unique
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  retention interval not null default '1 day'
    constraint retention_is_positive check (retention > '0'),
  segments smallint not null default 4
    constraint at_least_four_segments check (segments >= 4),
  span interval not null,
  tick_max_count integer not null default 500
    constraint tick_max_count_is_positive check (tick_max_count > 0),
  tick_max_lag interval not null default '3 seconds'
    constraint tick_max_lag_is_positive check (tick_max_lag > '0'),
  tick_idle_period interval not null default '1 minute'
    constraint tick_idle_period_is_positive check (tick_idle_period > '0'),
  created_at timestamptz not null default clock_timestamp(),
  -- A ring shorter than the retention would never be emptied.
  constraint ring_holds_the_retention check (retention <= (segments - 2) * span)
);
comment on table trunq.queue is 'One row a queue; its messages are in trunq_log.<name>.';

create table trunq.subscription (
  subscription_id integer generated always as identity primary key,
  queue_id integer not null references trunq.queue on delete cascade,
  name text not null
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  mode text not null
    constraint mode_is_shared_or_exclusive check (mode in ('shared', 'exclusive')),
  -- Everything not visible here is read: the position before the first lease.
  start pg_snapshot not null,
  start_tick_id bigint
    constraint exclusive_starts_at_a_tick check ((mode = 'exclusive') = (start_tick_id is not null)),
  max_attempts integer default 5
    constraint max_attempts_is_positive check (max_attempts > 0),
  lease_time interval not null default '60 seconds'
    constraint lease_time_is_positive check (lease_time > '0'),
  backoff text not null default 'exponential'
    constraint backoff_is_known check (backoff in ('constant', 'linear', 'exponential')),
  backoff_base interval not null default '1 second'
    constraint backoff_base_is_not_negative check (backoff_base >= '0'),
  backoff_cap interval not null default '1 hour'
    constraint backoff_cap_is_not_negative check (backoff_cap >= '0'),
  jitter real not null default 0.1
    constraint jitter_is_a_share check (jitter between 0 and 1),
  keep_results boolean not null default true,
  created_at timestamptz not null default clock_timestamp(),
  unique (queue_id, name)
);
comment on table trunq.subscription is 'A named reader of one queue, with its policy. max_attempts null: for ever.';

-- Where a duty goes on: the last due time promoted, the last expiry reaped. One row a duty and reader, updated by
-- the leader only.
create table trunq.mark (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null default 0,
  duty text not null,
  at timestamptz not null,
  -- reap: the newest lease when it looked. What is newer it has not seen, whatever its expiry: a clock may go back.
  lease_id bigint not null default 0,
  primary key (queue_id, subscription_id, duty)
) with (fillfactor = 50);
comment on table trunq.mark is 'How far a duty has looked; it may always be set back, never lost work for it.';

create table trunq.delayed (
  queue_id integer not null references trunq.queue on delete cascade,
  id bigint not null,
  subscription_id integer references trunq.subscription on delete cascade,
  due_at timestamptz not null,
  created_at timestamptz not null,
  attempt smallint not null,
  priority smallint not null default 0,
  kind text,
  key text,
  payload jsonb,
  body bytea,
  headers jsonb,
  errors jsonb
);
create index delayed_due on trunq.delayed (queue_id, due_at, id);
create index delayed_message on trunq.delayed (queue_id, id);
create index delayed_subscription on trunq.delayed (subscription_id);
comment on table trunq.delayed is
  'Messages that run later. subscription_id null: published with a delay, for everyone; set: a retry, for that reader.';

create table trunq.dead (
  dead_id bigint generated always as identity primary key,
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null references trunq.subscription on delete cascade,
  id bigint not null,
  reason text not null
    constraint reason_is_known check (reason in ('rejected', 'max_attempts', 'lease_expired')),
  created_at timestamptz not null,
  died_at timestamptz not null,
  attempt smallint not null,
  priority smallint not null default 0,
  kind text,
  key text,
  payload jsonb,
  body bytea,
  headers jsonb,
  errors jsonb
);
create index dead_message on trunq.dead (queue_id, subscription_id, id);
create index dead_newest on trunq.dead (queue_id, dead_id);
create index dead_subscription on trunq.dead (subscription_id);
comment on table trunq.dead is 'Messages that finished badly, with every error, until requeued or purged.';

create table trunq.tick (
  queue_id integer not null references trunq.queue on delete cascade,
  tick_id bigint not null,
  snapshot pg_snapshot not null,
  last_message_id bigint not null,
  created_at timestamptz not null,
  primary key (queue_id, tick_id)
);
comment on table trunq.tick is 'Stored snapshots of a queue; a batch is what lies between two. Never renumbered.';

create table trunq.leader (
  singleton boolean primary key default true constraint one_row check (singleton),
  name text,
  term bigint not null default 0,
  expires_at timestamptz
) with (fillfactor = 50);
insert into trunq.leader default values;
comment on table trunq.leader is 'Who performs the duties, and until when; a new leader is a new term.';
