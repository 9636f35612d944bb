-- What a queue has besides that has unique keys, or lanes.

-- Unique keys (log/unique.sql): what a queue with unique keys has besides. Its log and its leases have more columns.

create table trunq_data._uniquespecimen_unique (
  turn bigint not null,
  id bigint not null,
  from_turn bigint not null,
  free_at timestamptz,
  until "char" not null
    constraint until_is_known check (until in ('l', 'd', 't', 'q')),
  unique_key trunq.unique_key not null,
  primary key (unique_key, turn)
);
comment on table trunq_data._uniquespecimen_unique is 'Unique keys: the newest turn of a key is the message that holds it.';
comment on column trunq_data._uniquespecimen_unique.from_turn is 'It stands for every waiting message of the key with this turn or a later one.';
comment on column trunq_data._uniquespecimen_unique.until is 'How long it holds the key: l until it is leased, d until it is done, t until free_at, whatever becomes of it; q as d, by a dead message that was requeued.';

-- Not unique: a lease that is lost in a crash frees twice. Who frees a key never waits.
create table trunq_data._uniquespecimen_freed (
  id bigint not null
);
create index on trunq_data._uniquespecimen_freed (id);
-- It has no key.
alter table trunq_data._uniquespecimen_freed replica identity full;
comment on table trunq_data._uniquespecimen_freed is 'Messages that hold their unique key no longer.';

-- Lanes (lane.sql): what a queue with lanes has besides. Its log has one more index; its leases have more columns.

create table trunq.lane_policy (
  subscription_id integer primary key references trunq.subscription on delete cascade,
  policy text not null default 'fair'
    constraint policy_is_known check (policy in ('fair', 'priority', 'ranked')),
  max_running integer
    constraint max_running_fits_a_turn check (max_running between 1 and 1000),
  rate double precision
    constraint rate_is_positive check (rate > 0),
  burst integer
    constraint burst_is_positive check (burst > 0),
  is_watched boolean not null default false
);
comment on table trunq.lane_policy is 'In which order a subscription serves its lanes, and the limits of those that have none of their own.';
comment on column trunq.lane_policy.is_watched is 'A lane of it had a setting once: each turn is checked from then on.';

create table trunq.lane (
  subscription_id integer not null references trunq.subscription on delete cascade,
  priority smallint not null,
  lane text collate "C" not null,
  paused_until timestamptz,
  max_running integer
    constraint max_running_fits_a_turn check (max_running between 1 and 1000),
  rate double precision
    constraint rate_is_positive check (rate > 0),
  burst integer
    constraint burst_is_positive check (burst > 0),
  weight integer
    constraint weight_is_small check (weight between 1 and 100),
  rank integer
    constraint rank_is_small check (rank between -100 and 100),
  primary key (subscription_id, priority, lane)
);
comment on table trunq.lane is 'What people and schedulers said about single lanes; null: as the others.';

create table trunq.ranking (
  subscription_id integer primary key references trunq.subscription on delete cascade,
  function text not null
    constraint function_has_a_name check (function <> '' and length(function) <= 200),
  ranker text,
  seen_at timestamptz,
  ranked_at timestamptz,
  error text,
  failed_at timestamptz
);
comment on table trunq.ranking is
  'Subscriptions whose lanes a function of the user''s ranks: its name, the process that calls it, and why it failed the last time.';

create table trunq.worker (
  subscription_id integer not null references trunq.subscription on delete cascade,
  name text not null,
  slots integer not null
    constraint slots_are_some check (slots > 0),
  seen_at timestamptz not null,
  primary key (subscription_id, name)
);
comment on table trunq.worker is 'Workers that run, and how many messages each handles at a time; told again every few seconds.';

create table trunq_data._lanespecimen_lease (
  like trunq_data._specimen_lease including all,
  epoch bigint not null default 0,
  turn_no bigint not null default 0,
  looked integer not null default 0,
  jump_priority integer,
  jump_lane text collate "C",
  carried_to bigint,
  wake_lo pg_snapshot,
  timer_at timestamptz,
  classes integer[] not null default '{}',
  heads bigint[] not null default '{}',
  priorities smallint[],
  lanes text[],
  constraint records_what_it_hands_out check (coalesce(cardinality(ids), 0) = coalesce(size, 0))
) partition by list (segment);
comment on column trunq_data._lanespecimen_lease.carried_to is
  'Rotation copied turns up to here: the old ones among them are not to be taken, until the heads are behind it.';
comment on table trunq_data._lanespecimen_lease is
  'Leases of the queue: which worker holds which messages until when; how far the subscription has looked for lanes, and the head of its run queue.';

create table trunq_data._lanespecimen_turn (
  seq bigint not null,
  subscription_id integer not null,
  segment smallint not null default 0,
  priority smallint not null,
  class integer not null,
  left_over integer,
  state "char" not null
    constraint state_is_known check (state in ('r', 'i', 'b', 'p')),
  lane text collate "C" not null,
  epoch bigint not null,
  last_txid xid8 not null,
  last_id bigint not null,
  lease_id bigint,
  due_at timestamptz,
  tokens double precision,
  tokens_at timestamptz,
  lo pg_snapshot not null,
  hi pg_snapshot not null,
  open_leases bigint[],
  open_ids bigint[],
  again_txids xid8[],
  again_ids bigint[]
) partition by list (segment);
create index on trunq_data._lanespecimen_turn (subscription_id, priority, lane, seq);
create index on trunq_data._lanespecimen_turn (subscription_id, class, seq) where state = 'r';
create index on trunq_data._lanespecimen_turn (subscription_id, due_at) where state = 'p';
create index on trunq_data._lanespecimen_turn (subscription_id, seq) where state in ('b', 'p');
comment on table trunq_data._lanespecimen_turn is
  'Turns of lanes: the newest of a lane is its state and position. r: ready, in the run queue; i: nothing left of what was found; b: as many run as may; p: parked until due_at.';
comment on column trunq_data._lanespecimen_turn.again_ids is
  'Of a subscription in order: the message that came back, with again_txids its row in the log; it is handed out before all others.';

create table trunq_data._lanespecimen_wake (
  subscription_id integer not null,
  txid xid8 not null default pg_current_xact_id(),
  priority smallint,
  segment smallint not null default 0,
  lane text collate "C",
  id bigint
) partition by list (segment);
create index on trunq_data._lanespecimen_wake (subscription_id, txid);
comment on table trunq_data._lanespecimen_wake is 'Lanes to be looked at again: a message of theirs was answered, or their setting changed. priority null: all of them; id: of a subscription in order, the message that is over.';

create sequence trunq_data._lanespecimen_turn_id;
