-- The times of a schedule with an interval, by their number from its start. Without a zone an interval is time that passes: the times
-- follow by arithmetic, and neither drift nor mind daylight saving.
--
-- With a zone it counts days, months and years on the calendar there, at the same time of the day. Each time is counted from the start,
-- not from the time before: of the 31st, a short month has its last day, and the next long one the 31st again. Where clocks change, such
-- a time comes once, as the fixed time of a cron text does: in the first of two equal hours, and at the end of one that is left out.
-- Postgres has the zones: so whoever performs the duties goes by the rules of today, with no client there.

create or replace function trunq._step_at(p_schedule trunq.schedule, p_number bigint) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case
    when p_schedule.zone is null then trunq._add_intervals(p_schedule.start_at, p_schedule.every, p_number)
    -- In the second of two equal hours, too.
    when p_number = 0 and p_schedule.at is null then p_schedule.start_at
    else trunq._clock_time(trunq._first_clock(p_schedule) + p_schedule.every * p_number, p_schedule.zone) end
$$;
comment on function trunq._step_at is 'The time of a schedule with an interval that has this number.';

create or replace function trunq._count_steps(p_schedule trunq.schedule, p_until timestamptz) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_number bigint;
begin
  if p_schedule.zone is null then
    return greatest(0, floor(extract(epoch from p_until - p_schedule.start_at) / extract(epoch from p_schedule.every)) + 1);
  end if;
  -- Months and leap years differ by less than one step from their mean, and so do zones; hence two less.
  v_number := greatest(0, floor(extract(epoch from (p_until at time zone p_schedule.zone) - trunq._first_clock(p_schedule))
    / (trunq._months(p_schedule.every) * 2629746 + extract(day from p_schedule.every) * 86400)) - 2);
  while trunq._step_at(p_schedule, v_number) <= p_until loop
    v_number := v_number + 1;
  end loop;
  return v_number;
end $$;
comment on function trunq._count_steps is 'How many times of a schedule with an interval lie between its start and a time, that time included.';

create or replace function trunq._next_step(p_schedule trunq.schedule, p_after timestamptz) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- The time of the day may have been over on the day of the start.
  select case when p_schedule.every is not null then trunq._step_at(p_schedule,
    trunq._count_steps(p_schedule, greatest(p_after, p_schedule.start_at - interval '1 microsecond'))) end
$$;
comment on function trunq._next_step is 'The first time after p_after of a schedule with an interval; null for one with a cron text.';

create or replace function trunq._list_steps(p_schedule trunq.schedule, p_count bigint) returns timestamptz[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Where a zone left out a whole day, two numbers have one time.
  select coalesce(array_agg(distinct t.due_at order by t.due_at), '{}') from (
    select trunq._step_at(p_schedule, n) as due_at
    from trunq._count_steps(p_schedule, p_schedule.next_due) f(first), generate_series(f.first - 1, f.first + p_count - 2) n) t
  where t.due_at < '10000-01-01 00:00:00+00'
$$;
comment on function trunq._list_steps is 'The next times of a schedule with an interval, so many of them.';

create or replace function trunq._first_clock(p_schedule trunq.schedule) returns timestamp
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when p_schedule.at is null then s.clock else date_trunc('day', s.clock) + p_schedule.at end
  from (select p_schedule.start_at at time zone p_schedule.zone as clock) s
$$;
comment on function trunq._first_clock is 'What a clock in the zone of a schedule shows at its number 0.';

create or replace function trunq._clock_time(p_clock timestamp, p_zone text) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  -- Of two equal hours Postgres takes the second; what is left out it counts on from before.
  v_time timestamptz := p_clock at time zone p_zone;
  v_before timestamptz := v_time - interval '24 hours';
  v_first timestamptz;
begin
  if v_time at time zone p_zone = p_clock then
    v_first := (p_clock - ((v_before at time zone p_zone) - (v_before at time zone 'UTC'))) at time zone 'UTC';
    return case when v_first at time zone p_zone = p_clock then least(v_first, v_time) else v_time end;
  end if;
  -- The second at which clocks change: no catalog names it.
  v_before := date_trunc('second', v_before);
  v_time := date_trunc('second', v_time) + interval '1 second';
  while v_time - v_before > interval '1 second' loop
    v_first := v_before + make_interval(secs => floor(extract(epoch from v_time - v_before) / 2)::double precision);
    if v_first at time zone p_zone > p_clock then
      v_time := v_first;
    else
      v_before := v_first;
    end if;
  end loop;
  return v_time;
end $$;
comment on function trunq._clock_time is
  'When clocks in a zone show this: the first time of two; where they leave it out, the moment at which they do.';

create or replace function trunq._months(p_every interval) returns integer
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (extract(year from p_every) * 12 + extract(month from p_every))::integer
$$;
comment on function trunq._months is 'The months of an interval: for Postgres 1 month and 30 days are equal.';

create or replace function trunq._add_intervals(p_from timestamptz, p_every interval, p_times numeric) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- By hours and seconds: a day added to a time would mind daylight saving, and seconds alone are a double.
  select p_from + make_interval(hours => div(s.seconds, 3600)::integer, secs => mod(s.seconds, 3600)::double precision)
  from (select p_times * extract(epoch from p_every) as seconds) s
$$;
comment on function trunq._add_intervals is 'So many intervals after a time, exactly.';

create or replace function trunq._check_every(p_new trunq.schedule) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_what constant text := format('schedule "%s"', p_new.name);
begin
  if p_new.zone is null and trunq._months(p_new.every) <> 0 then
    perform trunq._fail('TQ017', format('%s cannot run every %s: months differ in length', v_what, p_new.every),
      'give p_zone, whose calendar counts them; or days, or a cron text such as ''@monthly''');
  elsif p_new.every not between '1 second' and '1000 years' then
    perform trunq._fail('TQ017', format('%s cannot run every %s', v_what, justify_hours(p_new.every)), 'give an interval of a second to 1000 years');
  elsif p_new.at = '24:00' or p_new.at is not null and p_new.every is null then
    perform trunq._fail('TQ017', format('%s: a time of the day goes with days, months and years, and is before 24:00', v_what));
  elsif p_new.zone is null or p_new.every is null then
    return;
  elsif extract(epoch from p_new.every - date_trunc('day', p_new.every)) <> 0 then
    perform trunq._fail('TQ017', format('%s cannot run every %s by the calendar of a zone', v_what, p_new.every),
      'a calendar counts days, months and years; without p_zone and p_at, hours and seconds count the time that passes');
  elsif least(trunq._months(p_new.every), extract(day from p_new.every)) < 0 or p_new.every > '100 years' then
    perform trunq._fail('TQ017', format('%s cannot run every %s', v_what, p_new.every), 'give up to 100 years, none of its parts negative');
  end if;
end $$;
comment on function trunq._check_every is 'Refuses (TQ017) an interval that cannot be one of a schedule.';

create or replace function trunq._check_zone(p_new trunq.schedule) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq.clock() at time zone p_new.zone;
exception when invalid_parameter_value then
  perform trunq._fail('TQ017', format('schedule "%s": there is no time zone "%s"', p_new.name, left(p_new.zone, 100)),
    'select name from pg_timezone_names shows those there are');
end $$;
comment on function trunq._check_zone is 'Refuses (TQ017) a time zone that does not exist.';
