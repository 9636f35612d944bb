-- Progress of messages whose handlers run, and checkpoints from which the next attempt goes on (work/progress.sql).

alter table trunq.subscription add column has_progress boolean not null default false;
comment on column trunq.subscription.has_progress is
  'Rows of trunq.progress may be there for it: only then do its answers look there.';

create table trunq.progress (
  queue_id integer not null,
  subscription_id integer not null,
  id bigint not null,
  lease_id bigint not null,
  worker text,
  percent real
    constraint percent_is_a_share check (percent between 0 and 100),
  note text,
  checkpoint jsonb,
  checkpoint_bytes integer,
  reported_at timestamptz not null,
  look_at timestamptz not null,
  primary key (subscription_id, id)
) with (fillfactor = 70);
create index progress_look on trunq.progress (subscription_id, look_at);
comment on table trunq.progress is
  'What handlers reported, one row a message and subscription: how far they are, and a checkpoint. It goes when the message is done.';
comment on column trunq.progress.lease_id is 'Under which it was reported: percent and note are of that attempt.';
comment on column trunq.progress.checkpoint_bytes is 'The length of the checkpoint as text; null: there is none.';
comment on column trunq.progress.look_at is 'When trunq.forget looks whether its message is over.';

-- A message with a checkpoint says so in its options, when it goes back. What is in a log already holds the narrower rule: nothing is read.
alter domain trunq.options drop constraint options_are_known_and_readable;
alter domain trunq.options add constraint options_are_known_and_readable check (value is null or case
    when jsonb_typeof(value) <> 'object' or value - '{max_attempts,expires_at,time_out,checkpoint}'::text[] <> '{}' then false
    when coalesce(value->>'max_attempts', '1') !~ '^[1-9][0-9]{0,3}$' then false
    when coalesce(value->>'time_out', '1') !~ '^(?=.*[1-9])\d{1,7}(\.\d{1,6})?$' then false
    when coalesce(value->'checkpoint', 'true') <> 'true' then false
    when value->>'expires_at' is null then true
    when value->>'expires_at' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$' then false
    else (value->>'expires_at')::timestamptz is not null end) not valid;
