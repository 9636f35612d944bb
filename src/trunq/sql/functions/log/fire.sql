-- The duty `fire` publishes what schedules have due. The message, the run's row and the next due time commit together, under the lock of
-- the schedule's row: two leaders at once, or one whose transaction is rolled back, neither fire a time twice nor leave one out. A
-- schedule that another is firing is left to him.
--
-- Who fires waits for no schedule, and in trunq.perform_duties it comes after the duties that may wait for something.
--
-- A time that cannot be published (its queue is closed, or full) stays due and is tried again; when the next time comes, or a minute
-- later, it is one that was missed.

-- A queue that is locked for long must not keep the other schedules waiting.
create or replace function trunq.fire(p_max integer default 1000) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  v_now timestamptz := trunq.clock();
  v_max integer := greatest(1, coalesce(p_max, 1000));
  v_due integer[];
  v_schedule_id integer;
  v_done bigint := 0;
begin
  v_due := array(
    select s.schedule_id from trunq.schedule s where s.next_due <= v_now order by s.next_due, s.schedule_id limit v_max);
  foreach v_schedule_id in array v_due loop
    v_done := v_done + trunq._fire(v_schedule_id, v_now, greatest(1, v_max / cardinality(v_due)));
  end loop;
  return v_done;
end $$;
comment on function trunq.fire is
  'Publishes the messages of schedules that are due, at most p_max (1,000), each schedule its share. The leader does this.
Returns: how many times were fired, or skipped together.
Locks: the schedules that are due, passing over those that somebody holds.';

create or replace function trunq.run_schedule(p_schedule text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule := trunq._find_schedule(p_schedule);
  v_now timestamptz;
  v_id bigint;
begin
  -- Whoever fires it meanwhile comes after us: the newest message is the newest.
  select s.* into v_schedule from trunq.schedule s where s.schedule_id = v_schedule.schedule_id for no key update;
  if not found then
    return trunq.run_schedule(p_schedule);  -- it was deleted while we waited, and may be there anew
  end if;
  v_now := trunq.clock();
  v_id := trunq._publish_scheduled(v_schedule, v_now);
  -- A time of its own may be this very one.
  insert into trunq.schedule_run (schedule_id, due_at, last_due_at, fired_at, id)
  values (v_schedule.schedule_id, v_now, v_now, v_now, v_id) on conflict do nothing;
  update trunq.schedule s set last_id = v_id where s.schedule_id = v_schedule.schedule_id;
  perform trunq._audit('run_schedule', (trunq._find_queue(v_schedule.queue_id)).name, jsonb_build_object('schedule', p_schedule, 'id', v_id));
  return v_id;
end $$;
comment on function trunq.run_schedule is
  'Publishes the message of a schedule now, besides its times, which stay as they are; also of one that is paused. It is a run in trunq.list_schedule_runs, due now.
Returns: the id of the message.
Raises: TQ016; what trunq.publish raises.
Locks: the schedule.';

create or replace function trunq._publish_scheduled(p_schedule trunq.schedule, p_due_at timestamptz) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return trunq.publish(
    p_queue => (trunq._find_queue(p_schedule.queue_id)).name, p_payload => p_schedule.payload, p_kind => p_schedule.kind, p_key => p_schedule.key,
    p_priority => p_schedule.priority, p_options => p_schedule.options, p_max_age => p_schedule.max_age,
    p_headers => coalesce(p_schedule.headers, '{}') || jsonb_build_object('schedule', p_schedule.name,
      'due_at', to_char(p_due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
end $$;
comment on function trunq._publish_scheduled is 'Publishes the message of a schedule for one time. Returns: its id.';

create or replace function trunq._fire(p_schedule_id integer, p_now timestamptz, p_max integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule;
  v_done integer := 0;
  v_skip text;
  v_to timestamptz;
  v_count integer;
begin
  select s.* into v_schedule from trunq.schedule s where s.schedule_id = p_schedule_id and s.next_due <= p_now
  for no key update skip locked;
  if not found then
    return 0;
  end if;
  if v_schedule.zone is not null and v_schedule.every is not null then
    -- The zone may have other rules since the time was computed: fired at the old one, its day would have two.
    v_schedule.next_due := trunq._next_step(v_schedule, greatest(v_schedule.next_due - interval '12 hours', v_schedule.last_due));
    update trunq.schedule s set next_due = v_schedule.next_due
    where s.schedule_id = p_schedule_id and s.next_due <> v_schedule.next_due;
  end if;
  if v_schedule.paused_until is not null then
    v_done := trunq._skip_paused_times(v_schedule, p_now);
    update trunq.schedule s set paused_until = null where s.schedule_id = p_schedule_id and s.paused_until <= p_now;
  end if;
  loop
    select s.* into v_schedule from trunq.schedule s where s.schedule_id = p_schedule_id;
    exit when (v_schedule.next_due <= p_now) is not true or v_done >= p_max;
    select j.skip, j.until into v_skip, v_to from trunq._skip_reason(v_schedule, p_now) j;
    if v_skip is not null then
      v_done := v_done + trunq._skip_due_times(v_schedule, v_to, v_skip, p_now);
      continue;
    end if;
    v_count := trunq._publish_due(v_schedule, p_now, case when v_schedule.overlap = 'allow' then p_max - v_done else 1 end);
    if v_count = 0 then
      -- Not all of them, or none: a queue may take so many in a transaction and no more.
      v_count := trunq._publish_due(v_schedule, p_now, 1);
    end if;
    exit when v_count = 0;
    v_done := v_done + v_count;
  end loop;
  delete from trunq.schedule_run r
  where r.schedule_id = p_schedule_id and r.due_at <= (
    select o.due_at from trunq.schedule_run o where o.schedule_id = p_schedule_id
    order by o.due_at desc offset trunq._limit('schedule_runs') limit 1);
  return v_done;
end $$;
comment on function trunq._fire is 'Fires or skips what one schedule has due, up to so many times. Returns: how many.';

create or replace function trunq._skip_reason(p_schedule trunq.schedule, p_now timestamptz, out skip text, out until timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_last timestamptz;
begin
  until := p_schedule.next_due;
  if p_schedule.missed <> 'all' then
    v_last := (trunq._due_until(p_schedule, p_now)).last;
    if p_schedule.next_due < v_last then
      skip := 'missed';
      until := v_last - interval '1 microsecond';
      return;
    elsif p_schedule.missed = 'skip' and v_last < p_now - interval '1 minute' then
      skip := 'missed';
      return;
    end if;
  end if;
  if p_schedule.overlap = 'skip' and not trunq._is_finished(p_schedule.queue_id, p_schedule.last_id) then
    skip := 'overlap';
    until := p_now;
  end if;
end $$;
comment on function trunq._skip_reason is
  'Why the times of a schedule up to a time are to be skipped; null: its next one is to be published.';

create or replace function trunq._is_finished(p_queue_id integer, p_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return p_id is null or not exists (
    select from trunq.show_message((trunq._find_queue(p_queue_id)).name, p_id) m where trunq._is_open(m.state));
exception when others then
  if sqlstate <> 'TQ013' then
    raise;
  end if;
  return true;  -- longer ago than the retention
end $$;
comment on function trunq._is_finished is 'Whether every shared subscription has given its final answer to a message.';

create or replace function trunq._publish_due(p_schedule trunq.schedule, p_now timestamptz, p_max integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_due timestamptz[] := trunq._list_due(p_schedule, p_now, p_max);
  v_due_at timestamptz;
  v_id bigint;
begin
  -- One subtransaction for all of them: some dozens in a transaction would slow everybody's snapshots down.
  foreach v_due_at in array v_due loop
    v_id := trunq._publish_scheduled(p_schedule, v_due_at);
    insert into trunq.schedule_run (schedule_id, due_at, last_due_at, fired_at, id)
    values (p_schedule.schedule_id, v_due_at, v_due_at, p_now, v_id);
  end loop;
  perform trunq._pass_due_times(p_schedule, v_due_at);
  update trunq.schedule s set last_id = v_id, error = null where s.schedule_id = p_schedule.schedule_id;
  return cardinality(v_due);
exception when others then
  update trunq.schedule s set error = left(sqlerrm, trunq._limit('error_characters'))
  where s.schedule_id = p_schedule.schedule_id and s.error is distinct from left(sqlerrm, trunq._limit('error_characters'));
  return 0;
end $$;
comment on function trunq._publish_due is
  'Publishes a message for each of the next due times of a schedule, up to so many, and moves on. Returns: how many; 0 when that cannot be done now: the schedule says why.';

create or replace function trunq._list_due(p_schedule trunq.schedule, p_until timestamptz, p_max integer) returns timestamptz[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_schedule.cron is not null then
    return array(
      select d.due_at from trunq.schedule_due d where d.schedule_id = p_schedule.schedule_id and d.due_at <= p_until
      order by d.due_at limit p_max);
  end if;
  return trunq._list_steps(p_schedule, least(p_max, (trunq._due_until(p_schedule, p_until)).number));
end $$;
comment on function trunq._list_due is 'The next times of a schedule that are due until a time, up to so many.';

create or replace function trunq._skip_due_times(p_schedule trunq.schedule, p_until timestamptz, p_why text, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_due record := trunq._due_until(p_schedule, p_until);
begin
  if v_due.number = 0 then
    return 0;
  end if;
  update trunq.schedule_run r set last_due_at = v_due.last, runs = r.runs + v_due.number, fired_at = p_now
  where r.schedule_id = p_schedule.schedule_id and r.skipped = p_why and r.error is not distinct from p_schedule.error
    and r.due_at = (select max(o.due_at) from trunq.schedule_run o where o.schedule_id = p_schedule.schedule_id);
  if not found then
    insert into trunq.schedule_run (schedule_id, due_at, last_due_at, runs, fired_at, skipped, error)
    values (p_schedule.schedule_id, p_schedule.next_due, v_due.last, v_due.number, p_now, p_why, p_schedule.error);
  end if;
  perform trunq._pass_due_times(p_schedule, v_due.last);
  return 1;
end $$;
comment on function trunq._skip_due_times is
  'Skips all times of a schedule up to a time. Returns: 1, or 0 when there are none.';

create or replace function trunq._skip_paused_times(p_schedule trunq.schedule, p_now timestamptz) returns integer
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when p_schedule.paused_until is null then 0
    else trunq._skip_due_times(p_schedule, least(p_now, p_schedule.paused_until - interval '1 microsecond'), 'paused', p_now) end
$$;
comment on function trunq._skip_paused_times is 'Skips the times of a schedule that fell into its pause. Returns: 1, or 0 when there are none.';

create or replace function trunq._due_until(p_schedule trunq.schedule, p_until timestamptz, out number bigint, out last timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_schedule.cron is not null then
    select count(*), max(d.due_at) into number, last from trunq.schedule_due d
    where d.schedule_id = p_schedule.schedule_id and d.due_at <= p_until;
  elsif p_schedule.next_due <= p_until then
    number := trunq._count_steps(p_schedule, p_until);
    last := trunq._step_at(p_schedule, number - 1);
    number := number - trunq._count_steps(p_schedule, p_schedule.next_due) + 1;
  else
    number := 0;
  end if;
end $$;
comment on function trunq._due_until is 'How many times of a schedule are due until a time, and the last of them.';

create or replace function trunq._pass_due_times(p_schedule trunq.schedule, p_due timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  delete from trunq.schedule_due d where d.schedule_id = p_schedule.schedule_id and d.due_at <= p_due;
  update trunq.schedule s set last_due = p_due, next_due = case
    when s.cron is null then trunq._next_step(s, p_due)
    else (select min(d.due_at) from trunq.schedule_due d where d.schedule_id = s.schedule_id) end
  where s.schedule_id = p_schedule.schedule_id;
end $$;
comment on function trunq._pass_due_times is 'Says that the times of a schedule up to this one are done with.';

create or replace function trunq._until_due() returns interval
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- Half of the minute after which a duty is late (trunq._warn_late).
  -- One that could not be fired, or that somebody holds, is not to be tried again without a pause.
  select coalesce(min(greatest(s.next_due - trunq.clock(), case when s.error is null then interval '50 milliseconds' else interval '1 second' end)), '30 seconds')
  from trunq.schedule s where s.next_due < trunq.clock() + interval '30 seconds'
$$;
comment on function trunq._until_due is 'How long until the next schedule is to be fired, at most half a minute.';

create or replace function trunq._warn_schedules(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select q.name, null::text, format('schedule "%s" cannot publish what was due at %s: %s', s.name, date_trunc('second', s.next_due), s.error),
    'it tries again every second, as long as its missed runs allow it'
  from trunq.schedule s join trunq.queue q on q.queue_id = s.queue_id
  where s.error is not null and (p_queue is null or q.name = p_queue)
  union all
  select q.name, null, format('schedule "%s" has %s due times left', s.name, d.number),
    'a leader computes more, and so does: trunq schedule fill'
  from trunq.schedule s join trunq.queue q on q.queue_id = s.queue_id
  cross join lateral (select count(*) as number from trunq.schedule_due d where d.schedule_id = s.schedule_id) d
  where s.cron is not null and d.number < 100 and (p_queue is null or q.name = p_queue)
  order by 1, 3
$$;
comment on function trunq._warn_schedules is 'Schedules that cannot publish, and those whose times come to an end.';
