-- A schedule's interval may count by the calendar of a time zone (step.sql): then it has a zone, and perhaps a time of the day.
alter table trunq.schedule add column at time;
alter table trunq.schedule drop constraint cron_or_every;
alter table trunq.schedule add constraint cron_or_every check (
  num_nonnulls(cron, every) = 1 and (cron is null or zone is not null) and (every is null) = (start_at is null)
  and (at is null or every is not null and zone is not null));
comment on column trunq.schedule.zone is 'With every: its days, months and years are those of the calendar there. Null: it goes by the time that passes.';
comment on column trunq.schedule.at is 'The time of the day in that zone; null: that of the start.';

-- Postgres does not replace a function that returns another row.
do $$ begin if to_regprocedure('trunq.list_schedules(text)') is not null then drop function trunq.list_schedules(text); end if; end $$;
