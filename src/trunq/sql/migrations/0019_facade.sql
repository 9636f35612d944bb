-- What PgQ's users may say of a queue that has nothing new: 0, a tick at each look.
alter table trunq.queue
  drop constraint tick_idle_period_is_positive,
  add constraint tick_idle_period_is_not_negative check (tick_idle_period >= '0');
