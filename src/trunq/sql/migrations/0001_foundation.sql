-- trunq: a queue and event-stream system inside Postgres.
--
-- trunq        the rules: queues, subscriptions, delayed and dead messages, ticks, the leader; and the functions that take a queue's name
-- trunq_log    one append-only table a queue, trunq_log.<queue>: publishers insert or copy into it
-- trunq_queue  the functions of each queue, trunq_queue.<queue>_<verb>: what clients call
-- trunq_data   behind each queue: its segments, leases, receipts and sequences
--
-- trunq.create_queue() makes the tables of a queue like those of the specimen below, and its functions like the specimen's (sql/specimen/queue).

create schema trunq;
create schema trunq_log;
create schema trunq_queue;
create schema trunq_data;

comment on schema trunq is 'trunq: rules and functions of the queue system';
comment on schema trunq_log is 'trunq: one append-only table a queue; publish by INSERT or COPY';
comment on schema trunq_queue is 'trunq: the functions of each queue, <queue>_<verb>';
comment on schema trunq_data is 'trunq: segments, leases and receipts; internal';

-- What the log's columns hold, 16 MB at most (trunq._limit). These are domains because Postgres keeps a domain's check ready for
-- the session, but compiles the CHECK of a table for every statement: four of them cost an INSERT 20 instead of 13 microseconds.
create domain trunq.payload as jsonb
  constraint payload_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.body as bytea
  constraint body_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.headers as jsonb
  constraint headers_at_most_16_mb check (pg_column_size(value) <= 16777216);
create domain trunq.kind as text
  constraint kind_at_most_1000_bytes check (octet_length(value) <= 1000);
create domain trunq.key as text
  constraint key_at_most_1000_bytes check (octet_length(value) <= 1000);
create domain trunq.unique_key as text collate "C"
  constraint unique_key_at_most_1000_bytes check (octet_length(value) <= 1000)
  constraint unique_key_is_not_empty check (value <> '');
-- What a lease reads must be readable: an option that is not would fail a lease, or the answers of one, for good.
create domain trunq.options as jsonb
  constraint options_are_known_and_readable check (value is null or case
    when jsonb_typeof(value) <> 'object' or value - '{max_attempts,expires_at,time_out}'::text[] <> '{}' then false
    when coalesce(value->>'max_attempts', '1') !~ '^[1-9][0-9]{0,3}$' then false
    when coalesce(value->>'time_out', '1') !~ '^(?=.*[1-9])\d{1,7}(\.\d{1,6})?$' then false
    when value->>'expires_at' is null then true
    when value->>'expires_at' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$' then false
    else (value->>'expires_at')::timestamptz is not null end);
-- What may go before a subscription's policy; null: as the subscription says. max_attempts 0: for ever.
create type trunq.policy as (max_attempts integer, backoff text, backoff_base interval, backoff_cap interval, jitter real);
create domain trunq.no_priority as smallint
  constraint plain_queue_has_no_priority check (value = 0);

create table trunq.migration (
  number integer primary key,
  name text not null,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table trunq.migration is 'How the tables came to be: one row a migration applied.';

create table trunq.function (
  signature text primary key,
  settings text[] not null
);
comment on table trunq.function is
  'The settings that the files of this release gave each function; an upgrade keeps what was changed about them since.';

-- Positions are made of transaction ids, which mean nothing in another cluster (functions/operate/cluster.sql).
create table trunq.cluster (
  singleton boolean primary key default true constraint one_row check (singleton),
  system_identifier bigint not null
);
comment on table trunq.cluster is 'The Postgres cluster whose transaction ids the positions are made of.';

create table trunq.queue (
  queue_id integer generated always as identity primary key,
  name text not null unique
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  -- What stands behind the queue. A name of 48 characters leaves 15 for the longest suffix, _receipt_<number>.
  log_table text not null generated always as (name) stored,
  lease_table text not null generated always as (name || '_lease') stored,
  receipt_table text not null generated always as (name || '_receipt') stored,
  message_sequence text not null generated always as (name || '_message_id') stored,
  lease_sequence text not null generated always as (name || '_lease_id') stored,
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
  reachable_tick_id bigint not null default 1,
  -- What it refuses to take (functions/log/gate.sql); null: no rule.
  is_closed boolean not null default false,
  kinds text[],
  max_waiting bigint
    constraint max_waiting_is_positive check (max_waiting > 0),
  max_per_transaction integer
    constraint max_per_transaction_is_positive check (max_per_transaction > 0),
  announces boolean not null default false,
  lanes text
    constraint lanes_are_known check (lanes in ('priority', 'key', 'kind', 'priority,key', 'priority,kind')),
  unique_policy text
    constraint unique_policy_is_known check (unique_policy in ('refuse', 'replace')),
  paused_until timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  -- A ring shorter than the retention would never be emptied.
  constraint ring_holds_the_retention check (retention <= (segments - 2) * span)
);
comment on table trunq.queue is 'One row a queue; its messages are in trunq_log.<name>.';
comment on column trunq.queue.log_table is 'In the schema trunq_log; its segments are trunq_data.<queue>_log_<number>.';
comment on column trunq.queue.lease_table is 'In the schema trunq_data, like receipt_table and the sequences; its segments have its name and a number.';

comment on column trunq.queue.lanes is
  'What its lanes are made of; null: a plain queue. Chosen when it is made (functions/lanes/lane.sql).';
comment on column trunq.queue.unique_policy is
  'What becomes of a message whose unique key another holds; null: a queue without unique keys. Chosen when it is made (functions/log/unique.sql).';
comment on column trunq.queue.reachable_tick_id is
  'The first tick after which every message is still in the log: rotation emptied messages after those before it.';

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
  -- 19 delays: the last attempt is a day or more after the first, whatever the jitter (docs/work/retry.md).
  max_attempts integer default 20
    constraint max_attempts_is_positive check (max_attempts > 0),
  lease_time interval not null default '60 seconds'
    constraint lease_time_is_positive check (lease_time > '0'),
  backoff text not null default 'exponential'
    constraint backoff_is_known check (backoff in ('constant', 'linear', 'exponential')),
  backoff_base interval not null default '1 second'
    constraint backoff_base_is_not_negative check (backoff_base >= '0'),
  backoff_cap interval not null default '6 hours'
    constraint backoff_cap_is_not_negative check (backoff_cap >= '0'),
  jitter real not null default 0.1
    constraint jitter_is_a_share check (jitter between 0 and 1),
  -- Null: a handler may take as long as it takes.
  time_out interval
    constraint time_out_is_positive check (time_out > '0'),
  keep_results boolean not null default true,
  dead_retention interval
    constraint dead_retention_is_positive check (dead_retention > '0'),
  -- Null: it reads every message.
  filter jsonb,
  -- Null: no limit; burst null: what the rate gives in a second, at least one.
  rate double precision
    constraint rate_is_positive check (rate > 0),
  rate_interval interval not null default '1 second'
    constraint rate_interval_is_positive check (rate_interval > '0'),
  burst integer
    constraint burst_is_positive check (burst > 0),
  max_running integer
    constraint max_running_is_positive check (max_running > 0),
  in_order boolean not null default false,
  paused_until timestamptz,
  queue_paused_until timestamptz,
  -- The one column of these that every lease reads, with has_cancelled.
  is_limited boolean not null generated always as (num_nonnulls(paused_until, queue_paused_until, rate, max_running) > 0) stored,
  has_cancelled boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  unique (queue_id, name)
);
comment on table trunq.subscription is 'A named reader of one queue, with its policy. max_attempts null: for ever; dead_retention null: dead messages are kept until purged.';
comment on column trunq.subscription.in_order is 'Of each lane one message runs at a time, and a message that is retried holds its lane (functions/lanes/lane.sql).';
comment on column trunq.subscription.paused_until is 'No message is handed out before; infinity: until somebody resumes it. queue_paused_until repeats that of the queue.';
comment on column trunq.subscription.is_limited is 'Whether a lease must ask what it may hand out (trunq_queue.<queue>_allowance).';
comment on column trunq.subscription.has_cancelled is 'Whether a lease must look for its messages in trunq.cancelled.';

-- Where a duty goes on: the last due time promoted, the last expiry reaped. One row a duty and subscription; only duties, and
-- an extension that shortens a lease, update it.
create table trunq.mark (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null default 0,
  duty text not null,
  at timestamptz not null,
  -- reap: the newest lease when it looked; what is newer it has not seen, whatever its expiry, because a clock may go back.
  -- promote: the last message promoted among those due at that time.
  last_id bigint not null default 0,
  primary key (queue_id, subscription_id, duty)
) with (fillfactor = 50);
comment on table trunq.mark is 'How far a duty has looked; it may always be set back, never lost work for it.';

-- No foreign keys here and in trunq.dead: each insert would lock the row of its queue, and with many publishers at once every
-- such lock is a MultiXact. drop_queue and unsubscribe delete the rows.
create table trunq.delayed (
  queue_id integer not null,
  id bigint not null,
  subscription_id integer,
  due_at timestamptz not null,
  created_at timestamptz not null,
  attempt smallint not null,
  priority smallint not null default 0,
  kind text,
  key text,
  payload jsonb,
  body bytea,
  headers jsonb,
  errors jsonb,
  extra jsonb,
  expiries smallint,
  options jsonb
);
create index delayed_due on trunq.delayed (queue_id, due_at, id);
create index delayed_message on trunq.delayed (queue_id, subscription_id, id);
create index delayed_subscription on trunq.delayed (subscription_id);
-- Messages that no worker has a handler for; mostly there are none.
create index delayed_unhandled on trunq.delayed (subscription_id, kind) where errors -> -1 ? 'times';
-- The line of suspects, who come back one after the other.
create index delayed_suspect on trunq.delayed (subscription_id, due_at) where expiries > 1 and (errors -> -1 ? 'times') is not true;
-- It has no key: one message is here once for each subscription, or for all of them.
alter table trunq.delayed replica identity full;
comment on table trunq.delayed is
  'Messages that run later. subscription_id null: published with a delay, for everyone; set: a retry, for that reader.';
comment on column trunq.delayed.extra is 'The columns that the user added to the log, by name.';
comment on column trunq.delayed.expiries is 'As in the log: how many leases of it in a row ran out.';

create table trunq.dead (
  dead_id bigint generated always as identity primary key,
  queue_id integer not null,
  subscription_id integer not null,
  id bigint not null,
  reason text not null
    constraint reason_is_known check (reason in ('rejected', 'max_attempts', 'lease_expired', 'expired', 'cancelled')),
  created_at timestamptz not null,
  died_at timestamptz not null,
  attempt smallint not null,
  priority smallint not null default 0,
  kind text,
  key text,
  payload jsonb,
  body bytea,
  headers jsonb,
  errors jsonb,
  extra jsonb,
  options jsonb
);
create index dead_message on trunq.dead (queue_id, subscription_id, id);
create index dead_newest on trunq.dead (queue_id, subscription_id, dead_id);
create index dead_subscription on trunq.dead (subscription_id);
comment on table trunq.dead is 'Messages that finished badly, with every error, until requeued or purged.';

create table trunq.cancelled (
  queue_id integer not null,
  subscription_id integer not null,
  id bigint not null,
  cancelled_at timestamptz not null,
  look_at timestamptz not null,
  primary key (subscription_id, id)
);
create index cancelled_look on trunq.cancelled (subscription_id, look_at);
comment on table trunq.cancelled is
  'Messages that somebody cancelled while they waited or ran: a lease that meets one does not hand it out, and one that fails is not retried.';
comment on column trunq.cancelled.look_at is 'When trunq.forget looks whether its message is over.';

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
  expires_at timestamptz,
  lease_time interval
) with (fillfactor = 50);
insert into trunq.leader default values;
comment on table trunq.leader is 'The process that performs the duties, and until when; a new leader is a new term.';

create table trunq.duty_failure (
  duty text not null,
  queue text not null default '',
  failed_at timestamptz not null,
  error text not null,
  primary key (duty, queue)
);
comment on table trunq.duty_failure is 'What a duty last failed with, until it succeeds; queue: empty for a duty of no queue.';

-- The specimen: the tables that every queue has, here without segments and never written to. No queue can have its name.

create sequence trunq_data._specimen_message_id cache 32;
create sequence trunq_data._specimen_lease_id;

create table trunq_log._specimen (
  id bigint not null default nextval('trunq_data._specimen_message_id'),
  txid xid8 not null default pg_current_xact_id(),
  created_at timestamptz not null default statement_timestamp(),
  subscription_id integer,
  segment smallint not null default 0,  -- a queue's own: trunq._segment
  attempt smallint not null default 1,
  priority trunq.no_priority not null default 0,
  kind trunq.kind,
  key trunq.key,
  payload trunq.payload,
  body trunq.body,
  headers trunq.headers,
  errors jsonb,
  expiries smallint,
  due_at timestamptz,
  options trunq.options
) partition by list (segment);
create index on trunq_log._specimen (txid, id);
-- A retry has its old id among new ones: plain minmax would widen every range it lands in.
create index on trunq_log._specimen using brin (id int8_minmax_multi_ops) with (pages_per_range = 32, autosummarize = on);
comment on column trunq_log._specimen.expiries is
  'How many leases of it in a row ran out; null: none. From the second on it is a suspect and leased alone. 0: none, and it came back to a subscription that is in order.';
comment on table trunq_log._specimen is
  'Messages of the queue. Insert or copy into (priority, key, kind, payload, body, headers, options, due_at); the other columns are trunq''s.';
comment on column trunq_log._specimen.due_at is
  'Given to a message that is to run later; a row that stays in the log has none (sql/specimen/queue/delayed.sql).';

create table trunq_data._specimen_lease (
  lease_id bigint not null,
  last_id bigint not null,
  last_txid xid8 not null,
  token bigint not null,
  leased_at timestamptz not null,
  expires_at timestamptz,
  reaped_at timestamptz,
  from_tick_id bigint,
  to_tick_id bigint,
  min_txid bigint,
  max_txid bigint,
  subscription_id integer not null,
  size integer,
  segment smallint not null default 0,
  worker text,
  lo pg_snapshot not null,
  hi pg_snapshot not null,
  ids bigint[],
  txids xid8[],
  is_suspect boolean,
  tokens double precision,
  tokens_at timestamptz,
  open_leases bigint[]
) partition by list (segment);
create index on trunq_data._specimen_lease (subscription_id, lease_id);
create index on trunq_data._specimen_lease (subscription_id, expires_at) where expires_at is not null;
comment on column trunq_data._specimen_lease.is_suspect is
  'True: its one message may be what killed the workers of its former leases. Null otherwise.';
comment on column trunq_data._specimen_lease.tokens is
  'What this lease left of the rate of its subscription, at tokens_at. Null, like open_leases: it has no such limit, or all is to be found out anew.';
comment on table trunq_data._specimen_lease is
  'Leases of the queue: which worker holds which messages until when, and the position of the subscription after them.';

create table trunq_data._specimen_receipt (
  lease_id bigint not null,
  finished_at timestamptz not null,
  subscription_id integer not null,
  size integer not null,
  segment smallint not null default 0,
  number smallint not null default 0,
  outcome "char" not null
    constraint outcome_is_known check (outcome in ('a', 'r', 't', 'j', 'l', 'x', 'b', 'e', 'c', 'p')),
  ids bigint[] not null,
  took real[],
  errors text[],
  results jsonb[]
) partition by list (segment);
-- The answers of a lease are numbered and lie in its segment: an answer whose snapshot does not see the others fails here.
create unique index on trunq_data._specimen_receipt (lease_id, number, segment);
create index on trunq_data._specimen_receipt using brin (finished_at) with (pages_per_range = 16, autosummarize = on);
comment on table trunq_data._specimen_receipt is 'Receipts of the queue: what became of leased messages. Outcomes: trunq._outcome.';

-- Arrays of ids hardly shrink, and trying costs a fifth of a lease and two fifths of an ack of 1,000.
alter table trunq_data._specimen_lease alter ids set storage external;
alter table trunq_data._specimen_receipt alter ids set storage external;
alter table trunq_data._specimen_receipt alter took set storage external;
