-- What PgQ's users may say of a queue's ticks: 0, a tick at each look.
alter table trunq.queue
  drop constraint tick_max_count_is_positive,
  drop constraint tick_max_lag_is_positive,
  drop constraint tick_idle_period_is_positive,
  add constraint tick_max_count_is_not_negative check (tick_max_count >= 0),
  add constraint tick_max_lag_is_not_negative check (tick_max_lag >= '0'),
  add constraint tick_idle_period_is_not_negative check (tick_idle_period >= '0');
