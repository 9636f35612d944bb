-- An act on all messages that a filter finds, in parts (functions/work/sweep.sql).
create table trunq.sweep (
  sweep_id bigint generated always as identity primary key,
  queue_id integer not null,
  queue text not null,
  act text not null
    constraint act_is_known check (act in ('requeue', 'purge', 'cancel')),
  subscription text,
  filter jsonb not null,
  before bigint not null,
  until timestamptz not null,
  counted bigint
    constraint counted_is_not_negative check (counted >= 0),
  started_at timestamptz not null,
  who text not null,
  role text not null,
  at_subscription_id integer not null default 0,
  at bigint not null default 0,
  looked bigint not null default 0,
  done bigint not null default 0,
  kept bigint not null default 0,
  carried_at timestamptz not null,
  state text not null default 'running'
    constraint state_is_known check (state in ('running', 'finished', 'stopped', 'dropped', 'refused')),
  ended_at timestamptz,
  error text
);
create index sweep_queue on trunq.sweep (queue, sweep_id);
create index sweep_running on trunq.sweep (carried_at) where ended_at is null;
comment on table trunq.sweep is
  'Acts on all messages that a filter finds. No foreign key: what was done to a queue that was dropped is still told.';
comment on column trunq.sweep.before is 'It takes only dead messages with a smaller dead_id, or messages with a smaller id: those that the preview saw.';
comment on column trunq.sweep.until is 'It takes only what died, or was published, by then; ages of its filter are those of then.';
comment on column trunq.sweep.counted is 'What the preview counted, which it does not exceed; null: it is not known.';
comment on column trunq.sweep.role is 'The role that asked, without whose rights no part is done.';
comment on column trunq.sweep.at is 'How far it came: the dead_id in at_subscription_id, up from 0; for cancel the id, down from before.';
comment on column trunq.sweep.kept is 'Matched and not done: deleted, their unique key is held by another, over, or taken by somebody else at that moment.';

-- Beside it, so that whoever stops it waits for no part.
create table trunq.sweep_stop (
  sweep_id bigint primary key references trunq.sweep on delete cascade,
  at timestamptz not null,
  who text not null
);
comment on table trunq.sweep_stop is 'Sweeps that somebody asked to stop, before their next part.';

-- They take one argument more now.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('list_dead', 'count_dead', 'requeue', 'purge', 'list_messages')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
