-- What stays when messages and their leases go: the archive of a queue that has one, statistics, and how deaths are made known.

create schema trunq_archive;
comment on schema trunq_archive is 'trunq: the archive of each queue that has one, one row an attempt';

create table trunq.archive_policy (
  queue_id integer primary key references trunq.queue on delete cascade,
  archive_for interval
    constraint archive_for_is_positive check (archive_for > '0')
);
comment on table trunq.archive_policy is 'Queues with an archive (functions/keep/archive.sql). archive_for null: for ever.';

create table trunq.archive_mark (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  subscription text not null,
  lease_id bigint not null default 0,
  open bigint[] not null default '{}',
  primary key (queue_id, subscription_id)
) with (fillfactor = 50);
comment on table trunq.archive_mark is
  'How far the attempts of a subscription are archived: its leases up to lease_id, but for the open ones, which it passed. It outlives its subscription until all is archived.';

create table trunq_data._specimen_archive (
  id bigint not null,
  subscription text not null,
  attempt smallint,
  outcome text not null,
  error text,
  result jsonb,
  worker text,
  published_at timestamptz,
  leased_at timestamptz not null,
  finished_at timestamptz not null,
  took real,
  priority smallint,
  kind text,
  key text,
  payload jsonb,
  body bytea,
  headers jsonb,
  options jsonb,
  extra jsonb,
  subscription_id integer not null,
  lease_id bigint not null,
  primary key (id, subscription_id, lease_id, finished_at)
) partition by range (finished_at);
create index on trunq_data._specimen_archive using brin (finished_at) with (autosummarize = on);
comment on table trunq_data._specimen_archive is
  'Attempts of the queue that are over, one row each, with its message. A message that was retried has several. Months lie in trunq_data.<queue>_archive_<month>.';
comment on column trunq_data._specimen_archive.outcome is
  'success, failed (retried, or given up after its last attempt), rejected, released, lease_expired, expired, cancelled or timed_out.';
comment on column trunq_data._specimen_archive.took is 'Seconds that the handler ran, as its worker said.';
comment on column trunq_data._specimen_archive.extra is 'The columns that the user added to the log, by name.';

create table trunq.statistic (
  queue_id integer not null references trunq.queue on delete cascade,
  is_hour boolean not null default false,
  at timestamptz not null,
  subscription text not null,
  kind text not null,
  outcome "char" not null,
  count bigint not null,
  is_sampled boolean not null,
  took_sum double precision,
  waited_sum double precision,
  took integer[],
  waited integer[],
  primary key (queue_id, is_hour, at, subscription, kind, outcome)
);
comment on table trunq.statistic is
  'What a minute or an hour brought, by subscription, kind and outcome (functions/keep/statistics.sql); trunq.statistics reads it.';
comment on column trunq.statistic.kind is 'Empty: without a kind. (others): beyond the fifty most frequent of that minute, or unknown.';
comment on column trunq.statistic.took is
  'How many messages ran for how long, in 160 buckets, each 2^(1/4) wide, the first 1 microsecond. waited: from publishing to the first lease.';

create table trunq.dead_policy (
  subscription_id integer primary key references trunq.subscription on delete cascade on update cascade,
  warns boolean not null default false,
  notifies boolean not null default false,
  into_queue text
);
comment on table trunq.dead_policy is 'Subscriptions that make it known when a message of theirs dies (trunq.set_dead).';
