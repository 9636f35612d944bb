-- How a message holds its unique key.
create type trunq.key_hold as (
  unique_key text,
  turn bigint,
  is_keyed boolean,  -- until it is done
  is_freed boolean   -- until it is leased
);

-- What a lease knows while it looks for messages: a value that the parts of trunq_queue.<queue>_lease hand to each
-- other.
create type trunq.leasing as (
  subscription_id integer,
  max_attempts integer,
  has_cancelled boolean,
  -- Its filter, as trunq._passes takes it.
  reads_all boolean,
  kinds text[],
  not_kinds text[],
  keys text[],
  not_keys text[],
  headers jsonb,
  not_headers jsonb[],
  -- How many messages it may hand out, and how many it looks at. More, where it buries some.
  max_messages integer,
  most integer,
  tokens double precision,
  tokens_at timestamptz,
  open_leases bigint[],
  leased_at timestamptz,
  expires_at timestamptz,
  -- Its window and its place there; what it reads next: late transactions, then the range behind a place.
  lo pg_snapshot,
  hi pg_snapshot,
  last_txid xid8,
  last_id bigint,
  late xid8[],
  from_txid xid8,
  from_id bigint,
  -- How far this call came.
  is_new boolean,
  is_over boolean,
  buried integer,
  walked integer,
  began_at timestamptz,
  first_xmax xid8,
  -- Of the message that is leased alone.
  hold trunq.key_hold
);

-- The log of a queue with unique keys, as its functions see it. Every lease has the column, null in other queues.
create table trunq_log._uniquespecimen (
  like trunq_log._specimen including all,
  unique_key trunq.unique_key,
  unique_turn bigint,
  unique_until "char"
) partition by list (segment);
alter table trunq_data._specimen_lease add column keyed bigint[];
alter table trunq_data._specimen_lease alter keyed set storage external;
comment on column trunq_data._specimen_lease.keyed is 'Those of its messages that hold a unique key until they are done.';
alter table trunq_data._lanespecimen_lease add column keyed bigint[];
alter table trunq_data._lanespecimen_lease alter keyed set storage external;
comment on column trunq_data._lanespecimen_lease.keyed is 'Those of its messages that hold a unique key until they are done.';

-- Of the specimen's, another takes its place.
do $$
begin
  if to_regprocedure('trunq_queue._uniquespecimen_replaced_by(text, bigint, integer)') is not null then
    drop function trunq_queue._uniquespecimen_replaced_by(text, bigint, integer);
  end if;
end $$;
