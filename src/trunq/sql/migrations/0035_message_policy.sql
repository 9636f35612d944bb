-- The rule of before, and the policy of a message: its back-off, and where it goes when it dies. Not valid: what is there obeys a stricter rule.
alter domain trunq.options drop constraint options_are_known_and_readable;
alter domain trunq.options add constraint options_are_known_and_readable check (value is null or case
  when jsonb_typeof(value) <> 'object'
    or value - '{max_attempts,expires_at,time_out,checkpoint,awaited,backoff,backoff_base,backoff_cap,jitter,dead_into}'::text[] <> '{}' then false
  when coalesce(value->>'max_attempts', '1') !~ '^[1-9][0-9]{0,3}$' then false
  when coalesce(value->>'time_out', '1') !~ '^(?=.*[1-9])\d{1,7}(\.\d{1,6})?$' then false
  when coalesce(value->'checkpoint', 'true') <> 'true' then false
  when coalesce(value->>'awaited', 'true') !~ '^(true|(?=.*[1-9])\d{1,7}(\.\d{1,6})?)$' then false
  when coalesce(value->>'backoff', 'constant') !~ '^(constant|linear|exponential)$' then false
  when coalesce(value->>'backoff_base', '1') !~ '^\d{1,9}(\.\d{1,6})?$' then false
  when coalesce(value->>'backoff_cap', '1') !~ '^\d{1,9}(\.\d{1,6})?$' then false
  when coalesce(value->>'jitter', '1') !~ '^(0(\.\d{1,9})?|1(\.0{1,9})?)$' then false
  when jsonb_typeof(value->'dead_into') not in ('string', 'null') then false
  when coalesce(value->>'dead_into', '') !~ '^([a-z][a-z0-9_]{0,47})?$' then false
  when value->>'expires_at' is null then true
  when value->>'expires_at' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$' then false
  else (value->>'expires_at')::timestamptz is not null end) not valid;

-- A queue may take nothing at all: at most 0 messages in a transaction.
alter table trunq.queue
  drop constraint max_per_transaction_is_positive,
  add constraint max_per_transaction_is_not_negative check (max_per_transaction >= 0);
