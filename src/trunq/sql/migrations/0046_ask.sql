-- A worker may ask for a part of its subscription (functions/work/ask.sql).

alter table trunq.subscription add column has_asks boolean not null default false;
comment on column trunq.subscription.has_asks is
  'Whether a lease has asked for a part of it: then others look for what such leases set aside.';

alter table trunq.delayed add column aside bigint, add column aside_at timestamptz;
comment on column trunq.delayed.aside is
  'Set aside by a lease that did not ask for it, under this number, until one does; null: it waits for its time. due_at is far away then.';
comment on column trunq.delayed.aside_at is 'Since when it is set aside.';
create index delayed_aside on trunq.delayed (subscription_id, aside) where aside is not null;

-- Drawn under the lock of the subscription: so the numbers of one are committed in their order.
create sequence trunq.aside_number;

create table trunq.ask (
  subscription_id integer not null references trunq.subscription on delete cascade on update cascade,
  ask_key text not null,
  asks jsonb not null,
  looked bigint not null default 0,
  asked_at timestamptz not null,
  is_waiting boolean not null default false,
  primary key (subscription_id, ask_key)
) with (fillfactor = 50);
comment on table trunq.ask is 'What leases of a subscription ask for, each once; {}: for everything.';
comment on column trunq.ask.looked is 'Up to this number, nothing that is set aside is for it: a mark, which lags behind.';
comment on column trunq.ask.is_waiting is 'Whether its last lease got nothing: who sets aside something for it calls the workers.';

-- What a lease asks for, read.
create type trunq.asking as (
  kinds text[], not_kinds text[], keys text[], not_keys text[], headers jsonb, not_headers jsonb[], key_prefix text
);

-- Functions that take more now: made anew.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('lease', '_has_delayed')
      or p.pronamespace = 'trunq_queue'::regnamespace and p.proname in ('_specimen_lease', '_lanespecimen_lease')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
