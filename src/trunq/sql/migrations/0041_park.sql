-- Messages that wait for the outside, without a worker (functions/work/park.sql).

alter table trunq.delayed add column parked_at timestamptz;
comment on column trunq.delayed.parked_at is 'Since when it waits for somebody to resume it, at the latest until due_at; null: it waits for its time alone.';
create index delayed_parked on trunq.delayed (queue_id, subscription_id, id) where parked_at is not null;
-- Those whose time is over, among however many others that are due.
create index delayed_parked_due on trunq.delayed (queue_id, due_at, id) where parked_at is not null;
create index delayed_parked_since on trunq.delayed (subscription_id, parked_at) where parked_at is not null;

-- No foreign keys, as in trunq.delayed: a trigger there deletes what waits, trunq.forget the rest.
create table trunq.parked (
  queue_id integer not null,
  token bytea not null
    constraint token_is_hashed check (length(token) = 32),
  subscription_id integer,
  id bigint,
  value jsonb,
  resumed_at timestamptz,
  expires_at timestamptz,
  primary key (queue_id, token),
  constraint waits_or_was_resumed check ((resumed_at is null) = (expires_at is null)),
  constraint names_a_message_or_was_resumed check (resumed_at is not null or id is not null and subscription_id is not null)
);
create index parked_message on trunq.parked (subscription_id, id) where resumed_at is null;
create index parked_expiry on trunq.parked (queue_id, expires_at) where expires_at is not null;
comment on table trunq.parked is
  'Tokens by which parked messages are resumed, as hashes: of those that wait, those that were resumed before their message was parked (id null), and, for a week, those that are used up.';
comment on column trunq.parked.value is 'Of a token that came before its message was parked: what the next attempt is to get.';

alter table trunq.progress
  add column resumed jsonb,
  add column resumed_at timestamptz;
comment on column trunq.progress.resumed is 'What the message was resumed with after it was parked, resumed_at null: it was not.';

comment on column trunq_data._specimen_archive.outcome is
  'success, failed (retried, or given up after its last attempt), timed_out, rejected, released, parked, lease_expired, expired, cancelled, replaced or outdated.';

-- Postgres does not replace a function that returns another row.
do $$
declare
  v_function text;
begin
  foreach v_function in array '{trunq.status(text),"trunq._statuses(text, boolean)"}'::text[] loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
