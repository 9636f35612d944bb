-- A shared subscription may hand out what fell due before what waits (functions/work/due.sql).
alter table trunq.subscription add column due_first boolean not null default false;
comment on column trunq.subscription.due_first is 'Whether messages that waited for their time come before those that wait for a worker.';

create table trunq.due (
  queue_id integer not null,
  subscription_id integer not null,
  number bigint generated always as identity,
  id bigint not null,
  txid xid8 not null,
  primary key (subscription_id, number)
);
create index due_queue on trunq.due (queue_id, subscription_id, number);
comment on table trunq.due is
  'Rows of the log that fell due, for subscriptions that hand out these first; in the order of number, which is that of their commits too.';

-- How far a lease has come in that list: the newest of these is the position in it.
alter table trunq.ahead add column due bigint;
create index ahead_due on trunq.ahead (subscription_id, due) where due is not null;
comment on column trunq.ahead.due is
  'Up to this number of trunq.due its lease has handed out what fell due; null: its message was leased by its id.';
alter type trunq.leasing add attribute due bigint;

-- Functions that take more now, or return more: made anew.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p where p.pronamespace = 'trunq'::regnamespace and p.proname in ('subscribe', 'list_subscriptions')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
