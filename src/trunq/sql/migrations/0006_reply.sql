-- What is said outside of a queue: replies to those who await a message, and memos.

-- Replies (functions/work/reply.sql). No foreign keys, as in trunq.dead; drop_queue and unsubscribe delete the rows.
create table trunq.reply (
  queue_id integer not null,
  subscription_id integer not null,
  id bigint not null,
  replied_at timestamptz not null,
  expires_at timestamptz not null,
  outcome text not null
    constraint outcome_is_known check (
      outcome in ('success', 'rejected', 'failed', 'timed_out', 'lease_expired', 'expired', 'cancelled', 'replaced')),
  result jsonb,
  error text,
  primary key (subscription_id, id)
);
create index reply_expiry on trunq.reply (queue_id, expires_at);
comment on table trunq.reply is
  'The final answers to messages that were published as awaited, until expires_at. error: what the one who waits may know; with outcome success: why the result is not here.';

-- The rule of before, and one option more. Not valid: what is there obeys a stricter rule, and nobody reads it all for that.
alter domain trunq.options drop constraint options_are_known_and_readable;
alter domain trunq.options add constraint options_are_known_and_readable check (value is null or case
  when jsonb_typeof(value) <> 'object' or value - '{max_attempts,expires_at,time_out,checkpoint,awaited}'::text[] <> '{}' then false
  when coalesce(value->>'max_attempts', '1') !~ '^[1-9][0-9]{0,3}$' then false
  when coalesce(value->>'time_out', '1') !~ '^(?=.*[1-9])\d{1,7}(\.\d{1,6})?$' then false
  when coalesce(value->'checkpoint', 'true') <> 'true' then false
  when coalesce(value->>'awaited', 'true') !~ '^(true|(?=.*[1-9])\d{1,7}(\.\d{1,6})?)$' then false
  when value->>'expires_at' is null then true
  when value->>'expires_at' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$' then false
  else (value->>'expires_at')::timestamptz is not null end) not valid;

-- A lease says which of its messages are awaited, so that an ack, which reads no message, need not look for it.
alter table trunq_data._specimen_lease add column awaited bigint[];
alter table trunq_data._lanespecimen_lease add column awaited bigint[];
comment on column trunq_data._specimen_lease.awaited is 'Those of its messages whose final answer somebody awaits; null: none.';

-- Memos (functions/work/memo.sql).
create sequence trunq.memo_version;
create table trunq.memo (
  scope text collate "C" not null,
  name text collate "C" not null,
  version bigint not null,
  updated_at timestamptz not null,
  expires_at timestamptz,
  value jsonb not null,
  primary key (scope, name)
) with (fillfactor = 70);
create index memo_expiry on trunq.memo (expires_at) where expires_at is not null;
comment on table trunq.memo is 'Small values by scope (a worker, a queue, a tenant) and name. No version comes twice.';
