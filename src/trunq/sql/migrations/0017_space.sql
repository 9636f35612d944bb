-- Space: how long and how large a log is held for subscriptions that stand still (loss.sql), and ticks that others cut.

alter table trunq.queue
  add column hold_at_most interval,
  add column hold_size bigint
    constraint hold_size_is_positive check (hold_size > 0),
  add column retain_size bigint
    constraint retain_size_is_positive check (retain_size > 0),
  add column tick_paused boolean not null default false,
  add column tick_external boolean not null default false,
  drop constraint tick_max_count_is_positive,
  drop constraint tick_max_lag_is_positive,
  add constraint tick_max_count_is_not_negative check (tick_max_count >= 0),
  add constraint tick_max_lag_is_not_negative check (tick_max_lag >= '0'),
  -- A segment that is written to again would never be old enough.
  add constraint ring_holds_what_is_held check (hold_at_most >= retention and hold_at_most <= (segments - 2) * span);
comment on column trunq.queue.hold_at_most is
  'How long after its last turn a segment is held for subscriptions that have not read it; null: for ever. hold_size: up to how many bytes of log.';
comment on column trunq.queue.retain_size is
  'More bytes of log than these are not kept for the retention alone, when everybody has read them; null: no limit.';
comment on column trunq.queue.tick_external is 'Ticks are cut by trunq.cut_tick, or forced, and by nobody else. tick_paused: until trunq.resume_ticks.';

alter table trunq.subscription add column lost_at timestamptz;
comment on column trunq.subscription.lost_at is
  'When it lost messages, until that is accepted (trunq.accept_loss); null: it lost none. Its newest lease, by a worker "lost", tells each lease to look here.';

create table trunq.loss (
  loss_id bigint generated always as identity primary key,
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  reason text not null
    constraint reason_is_known check (reason in ('time', 'size')),
  messages bigint not null,
  is_more boolean not null,
  from_tick_id bigint,
  to_tick_id bigint,
  from_txid xid8,
  to_txid xid8,
  first_at timestamptz,
  last_at timestamptz,
  lost_at timestamptz not null,
  accepted_at timestamptz
);
create index on trunq.loss (subscription_id, loss_id);
create index on trunq.loss (queue_id);
comment on table trunq.loss is 'What subscriptions lost because their queue holds no more for them: one row a segment that was emptied, and subscription.';

do $$
declare
  v_function regprocedure;
begin
  -- Functions that take more now, or return more: made anew.
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('create_queue', '_create_queue', 'set_queue', 'list_queues', 'status', '_old_segments',
      '_empty_log', '_is_taken', '_cut_tick')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
