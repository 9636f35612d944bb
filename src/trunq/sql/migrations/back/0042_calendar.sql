do $$
begin
  if exists (select from trunq.schedule s where s.every is not null and s.zone is not null) then
    raise exception 'schedules go by the calendar of a time zone' using hint = 'give them a cron text or delete them first (trunq schedule list)';
  end if;
end $$;
drop function if exists trunq.list_schedules(text);
alter table trunq.schedule drop constraint cron_or_every;
alter table trunq.schedule drop column at;
alter table trunq.schedule add constraint cron_or_every check (
  num_nonnulls(cron, every) = 1 and (cron is null) = (zone is null) and (every is null) = (start_at is null));
