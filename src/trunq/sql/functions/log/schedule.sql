-- A schedule publishes a message again and again: at the times of a cron text in a time zone, or every so often from a start. Its row
-- holds what it publishes and the next due time; the duty `fire` (fire.sql) publishes.
--
-- Postgres reads no cron texts: a client, who has a library for them, computes the next 1,000 times and hands them in. They stand in
-- trunq.schedule_due, so that whoever performs the duties fires them, with no client there; leaders and clients add to them in time.
-- The times of `every` follow from its start (step.sql).
--
-- Whoever may write trunq.schedule makes the leader publish into any queue: no publisher is granted that.
--
-- Locks: the row of the schedule; several (sync_schedules) in the order of their names. The duty `fire` waits for none of them.

create or replace function trunq.create_schedule(
  p_schedule text, p_queue text, p_payload jsonb default null, p_cron text default null, p_zone text default null,
  p_every interval default null, p_start_at timestamptz default null, p_missed text default null, p_overlap text default null,
  p_kind text default null, p_key text default null, p_headers jsonb default null, p_priority smallint default null,
  p_options jsonb default null, p_max_age interval default null, p_due_times timestamptz[] default null, p_at time default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_new trunq.schedule;
  v_is_made boolean;
begin
  perform trunq._check_name('schedule', p_schedule);
  v_queue := trunq._find_queue(p_queue);
  -- One that is being dropped is waited for.
  perform from trunq.queue q where q.queue_id = v_queue.queue_id for key share;
  if not found then
    v_queue := trunq._find_queue(p_queue);
  end if;
  v_new.name := p_schedule;
  v_new.queue_id := v_queue.queue_id;
  v_new.cron := p_cron;
  v_new.zone := coalesce(p_zone, case when num_nonnulls(p_cron, p_at) > 0 or trunq._months(p_every) <> 0 then 'UTC' end);
  -- A calendar has no hours: a client's 48 hours are two days of it.
  v_new.every := case when v_new.zone is null then p_every else justify_hours(p_every) end;
  v_new.at := p_at;
  v_new.start_at := p_start_at;
  v_new.missed := coalesce(p_missed, 'one');
  v_new.overlap := coalesce(p_overlap, 'allow');
  v_new.kind := p_kind;
  v_new.key := p_key;
  v_new.payload := p_payload;
  v_new.headers := p_headers;
  v_new.priority := coalesce(p_priority, 0);
  v_new.options := p_options;
  v_new.max_age := p_max_age;
  perform trunq._check_schedule(v_new, v_queue);
  perform trunq._check_due_times(v_new, p_due_times);
  v_is_made := trunq._set_schedule(v_new, p_due_times);
  perform trunq._call_leader();
  return v_is_made;
end $$;
comment on function trunq.create_schedule is
  'Makes a schedule, or changes the one of that name to what is given; what is left out gets its default. It has p_cron, whose times in p_zone (default: UTC) the caller computes and passes as p_due_times; or p_every, counted from p_start_at (default: now). With p_zone, and for months and years (default: UTC), p_every counts days, months and years by the calendar there, at p_at (default: the time of the day of the start); where clocks change, in the first of two equal hours and at the end of one that is left out; the 31st is the last day of a short month. p_missed: what becomes of times that passed while nobody fired: skip, one (default: the last of them) or all. p_overlap: allow (default), or skip, which skips a time while a shared subscription has not finished the last message. It publishes as trunq.publish does. A pause stays, and so does the next time where cron text, zone, interval, start and time of the day are as before.
Returns: true when it was made.
Raises: TQ001, TQ004, TQ005, TQ006, TQ017.
Locks: the schedule.';

create or replace function trunq.sync_schedules(p_schedules jsonb, p_source text default 'code') returns table (schedule text, change text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
begin
  perform trunq._check_list(p_schedules, p_source);
  for v in
    select coalesce(n.name, s.name) as name, n.given
    from (select e->>'schedule' as name, e as given from jsonb_array_elements(p_schedules) e) n
    full join (select s.name from trunq.schedule s where s.source = p_source) s on s.name = n.name
    order by 1
  loop
    schedule := v.name;
    if v.given is null then
      delete from trunq.schedule s where s.name = v.name and s.source = p_source;
      change := case when found then 'deleted' end;
    else
      change := trunq._sync_schedule(v.given, p_source);
    end if;
    if change is not null then
      return next;
    end if;
  end loop;
  perform trunq._call_leader();
end $$;
comment on function trunq.sync_schedules is
  'Makes the schedules of a source equal to a list of objects with the arguments of trunq.create_schedule, by their names without p_. Those that a former list of this source had are deleted; others are left alone. All of it or nothing.
Returns: one row for each schedule that was created, changed or deleted.
Raises: as create_schedule; TQ017 also for a name that is there twice, or that a schedule of another source has.
Locks: the schedules.';

create or replace function trunq.pause_schedule(p_schedule text, p_until timestamptz default 'infinity') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('pause_schedule', null, jsonb_build_object('schedule', p_schedule, 'until', p_until));
  perform trunq._find_schedule(p_schedule);
  perform trunq._check_pause(format('schedule "%s"', p_schedule), p_until);
  update trunq.schedule s set paused_until = p_until where s.name = p_schedule;
end $$;
comment on function trunq.pause_schedule is
  'Stops firing a schedule until p_until (left out: until it is resumed). Times that are due meanwhile are skipped, for good.
Raises: TQ016; TQ005 for a time that is over.
Locks: the schedule.';

create or replace function trunq.resume_schedule(p_schedule text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule;
  v_now timestamptz;
begin
  perform trunq._audit('resume_schedule', null, jsonb_build_object('schedule', p_schedule));
  perform trunq._find_schedule(p_schedule);
  select s.* into v_schedule from trunq.schedule s where s.name = p_schedule for no key update;
  v_now := trunq.clock();
  perform trunq._skip_paused_times(v_schedule, v_now);
  update trunq.schedule s set paused_until = null where s.schedule_id = v_schedule.schedule_id;
  perform trunq._call_leader();
  return coalesce(v_schedule.paused_until > v_now, false);
end $$;
comment on function trunq.resume_schedule is
  'Ends the pause of a schedule. What was due during it is skipped.
Returns: false when it was not paused.
Raises: TQ016.
Locks: the schedule.';

create or replace function trunq.delete_schedule(p_schedule text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('delete_schedule', null, jsonb_build_object('schedule', p_schedule));
  if (trunq._find_schedule(p_schedule)).pipeline_id is not null then
    perform trunq._fail('TQ017', format('schedule "%s" is the trigger of a pipeline', p_schedule), 'change the trigger of the pipeline: trunq.create_pipeline; or trunq.pause_pipeline');
  end if;
  delete from trunq.schedule s where s.name = p_schedule;
end $$;
comment on function trunq.delete_schedule is
  'Deletes a schedule and the history of its runs. The messages it published stay.
Raises: TQ016; TQ017 for the trigger of a pipeline.
Locks: the schedule.';

create or replace function trunq.list_schedules(p_queue text default null)
returns table (
  schedule text, queue text, source text, cron text, zone text, every interval, start_at timestamptz, missed text, overlap text,
  kind text, key text, payload jsonb, headers jsonb, priority smallint, options jsonb, max_age interval, paused boolean, paused_until timestamptz,
  next_due timestamptz, last_due timestamptz, last_id bigint, due_times bigint, error text, created_at timestamptz, calendar text, at time
)
language plpgsql stable set search_path = pg_catalog, pg_temp set intervalstyle = 'postgres' as $$
declare
  v_now timestamptz := trunq.clock();
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select s.name, q.name, s.source, s.cron, s.zone, case when s.zone is null then s.every end, s.start_at, s.missed, s.overlap, s.kind, s.key, s.payload, s.headers,
      s.priority, s.options, s.max_age, coalesce(s.paused_until > v_now, false),
      -- Not every client can read infinity.
      case when s.paused_until > v_now then nullif(s.paused_until, 'infinity') end,
      s.next_due, s.last_due, s.last_id, case when s.cron is not null then (select count(*) from trunq.schedule_due d where d.schedule_id = s.schedule_id) end,
      -- Clients whose intervals have no months would take 30 days for one.
      s.error, s.created_at, case when s.zone is not null then s.every::text end, s.at
    from trunq.schedule s join trunq.queue q on q.queue_id = s.queue_id
    where p_queue is null or q.name = p_queue order by s.name;
end $$;
comment on function trunq.list_schedules is
  'Schedules by name, of one queue or all. source: the list it was made from, null: none; every: an interval of time that passes; calendar: one of the calendar of zone, at this time of the day (null: that of start_at); paused_until null: until it is resumed; last_due, last_id: the newest time that was fired or skipped, and the newest message; due_times: how many are computed ahead, null without a cron text; error: why its next time could not be fired, which is tried again.
Raises: TQ001.';

create or replace function trunq.preview_schedule(p_schedule text, p_limit integer default 10) returns timestamptz[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule := trunq._find_schedule(p_schedule);
begin
  if (p_limit between 1 and 1000) is not true then
    perform trunq._fail('TQ005', format('a preview has 1 to 1000 times, not %s', coalesce(p_limit::text, 'null')));
  end if;
  if v_schedule.cron is not null then
    return array(select d.due_at from trunq.schedule_due d where d.schedule_id = v_schedule.schedule_id order by d.due_at limit p_limit);
  end if;
  return trunq._list_steps(v_schedule, p_limit);
end $$;
comment on function trunq.preview_schedule is
  'When a schedule is due next, as far as that is computed ahead: p_limit times (10), at most 1,000. In Python, trunq.schedule.due_times tells the same of a cron text.
Raises: TQ005, TQ016.';

create or replace function trunq.list_schedule_runs(p_schedule text, p_limit integer default 100, p_before timestamptz default null)
returns table (due_at timestamptz, last_due_at timestamptz, runs integer, fired_at timestamptz, id bigint, skipped text, error text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule := trunq._find_schedule(p_schedule);
begin
  perform trunq._check_limit(p_limit);
  return query
    select r.due_at, r.last_due_at, r.runs, r.fired_at, r.id, r.skipped, r.error from trunq.schedule_run r
    where r.schedule_id = v_schedule.schedule_id and (p_before is null or r.due_at < p_before)
    order by r.due_at desc limit p_limit;
end $$;
comment on function trunq.list_schedule_runs is
  'What became of the times of a schedule, newest first, p_limit rows at most (100) of the newest 1,000. id: the message; skipped: why there is none: missed (it was over before somebody fired), overlap or paused. Times skipped one after the other for one reason share a row, from due_at to last_due_at; error: why they could not be fired when they were due. p_before: the smallest due_at of the page before.
Raises: TQ005, TQ016.';

create or replace function trunq._find_schedule(p_schedule text) returns trunq.schedule
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule;
begin
  select s.* into v_schedule from trunq.schedule s where s.name = p_schedule;
  if not found then
    perform trunq._fail('TQ016', format('there is no schedule "%s"', coalesce(p_schedule, '')),
      'select * from trunq.list_schedules() shows those there are');
  end if;
  return v_schedule;
end $$;
comment on function trunq._find_schedule is 'A schedule by its name, or TQ016.';

create or replace function trunq._check_schedule(p_new trunq.schedule, p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_what constant text := format('schedule "%s"', p_new.name);
begin
  if num_nonnulls(p_new.cron, p_new.every) <> 1 then
    perform trunq._fail('TQ017', format('%s has a cron text or an interval: one of them', v_what), 'give p_cron or p_every');
  elsif p_new.cron is not null and p_new.at is not null then
    perform trunq._fail('TQ017', format('%s has a cron text, which says itself at which time of the day: p_at goes with an interval', v_what),
      'leave out p_at, and write the time into the cron text: ''30 9 * * *'' is 9:30 in p_zone');
  elsif p_new.every is null and p_new.start_at is not null then
    perform trunq._fail('TQ017', format('%s: a start goes with an interval', v_what));
  elsif p_new.start_at not between '0001-01-01 00:00:00+00' and '9000-01-01 00:00:00+00' then
    perform trunq._fail('TQ017', format('%s cannot start at %s', v_what, p_new.start_at), 'give a time before the year 9000');
  elsif p_new.missed <> all (trunq._words('missed')) then
    perform trunq._fail('TQ017', format('%s: missed cannot be "%s"', v_what, left(p_new.missed, 100)), trunq._list_choices(trunq._words('missed')));
  elsif p_new.overlap <> all (trunq._words('overlap')) then
    perform trunq._fail('TQ017', format('%s: overlap cannot be "%s"', v_what, left(p_new.overlap, 100)), trunq._list_choices(trunq._words('overlap')));
  elsif jsonb_typeof(p_new.headers) <> 'object' then
    perform trunq._fail('TQ017', format('%s: headers are a JSON object, not %s', v_what, jsonb_typeof(p_new.headers)));
  elsif p_new.options ? 'expires_at' then
    perform trunq._fail('TQ017', format('%s: its messages cannot all expire at one time', v_what), 'give p_max_age');
  end if;
  perform trunq._check_zone(p_new);
  perform trunq._check_every(p_new);
  perform trunq._check_size(p_queue.name, greatest(pg_column_size(p_new.payload), pg_column_size(p_new.headers)));
  perform trunq._check_label(p_queue.name, greatest(octet_length(p_new.kind), octet_length(p_new.key)));
  if p_new.priority <> 0 then
    perform trunq._check_priorities(p_queue, array[p_new.priority]);
  end if;
  -- Raises what cannot be an option.
  perform trunq._options_for(p_queue.name, p_new.options, p_new.max_age);
end $$;
comment on function trunq._check_schedule is 'Refuses what cannot be a schedule (TQ017), or could not be published (TQ005, TQ006).';

create or replace function trunq._check_due_times(p_new trunq.schedule, p_due_times timestamptz[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_what constant text := format('schedule "%s"', p_new.name);
begin
  if p_new.cron is null then
    if p_due_times is not null then
      perform trunq._fail('TQ017', format('%s: due times go with a cron text', v_what));
    end if;
    return;
  end if;
  if btrim(p_new.cron) = '' or length(p_new.cron) > 1000 then
    perform trunq._fail('TQ017', format('%s: the cron text "%s" cannot be read', v_what, left(p_new.cron, 100)), 'give one such as ''0 3 * * *''');
  end if;
  if coalesce(cardinality(p_due_times), 0) = 0 then
    perform trunq._fail('TQ017', format('%s: Postgres does not read cron texts, and p_due_times has none', v_what),
      'make it by a client or the shell, which compute the due times: trunq schedule create');
  elsif cardinality(p_due_times) > 10000 or array_ndims(p_due_times) > 1 or exists (
      select from unnest(p_due_times) t where (t between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59+00') is not true) then
    perform trunq._fail('TQ017', format('%s: p_due_times is a list of at most 10000 times before the year 10000', v_what));
  end if;
end $$;
comment on function trunq._check_due_times is 'Refuses (TQ017) a cron text without times, and times that are none.';

create or replace function trunq._check_list(p_schedules jsonb, p_source text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_wrong text;
begin
  if (p_source ~ '^[a-z][a-z0-9_]{0,47}$') is not true then
    perform trunq._check_name('source', p_source);
  elsif jsonb_typeof(p_schedules) is distinct from 'array' then
    perform trunq._fail('TQ017', 'the schedules to be there are a JSON array of objects, such as [{"schedule": "nightly", ...}]');
  end if;
  select left(e::text, 100) into v_wrong from jsonb_array_elements(p_schedules) e where jsonb_typeof(e) <> 'object' or e->>'schedule' is null limit 1;
  if found then
    perform trunq._fail('TQ017', format('a schedule in the list has no name: %s', v_wrong), 'give each its "schedule"');
  end if;
  select e->>'schedule' into v_wrong from jsonb_array_elements(p_schedules) e group by 1 having count(*) > 1 limit 1;
  if found then
    perform trunq._fail('TQ017', format('schedule "%s" is in the list twice', v_wrong));
  end if;
  select k.key into v_wrong from jsonb_array_elements(p_schedules) e cross join lateral jsonb_object_keys(e) k(key)
  where k.key not in ('schedule', 'queue', 'payload', 'cron', 'zone', 'every', 'start_at', 'missed', 'overlap', 'kind', 'key', 'headers',
    'priority', 'options', 'max_age', 'due_times', 'at') limit 1;
  if found then
    perform trunq._fail('TQ017', format('a schedule has no "%s"', left(v_wrong, 100)), 'the words are the parameters of trunq.create_schedule, without p_');
  end if;
end $$;
comment on function trunq._check_list is 'Refuses (TQ017) a list that trunq.sync_schedules cannot read.';

create or replace function trunq._sync_schedule(p_given jsonb, p_source text) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- What firing, a pause or an error changes.
  c_moving constant text[] := '{next_due,last_due,last_id,paused_until,error}';
  v_before trunq.schedule;
  v_after trunq.schedule;
  r record;
begin
  select s.* into v_before from trunq.schedule s where s.name = p_given->>'schedule' for no key update;
  if v_before.name is not null and v_before.source is distinct from p_source then
    perform trunq._fail('TQ017', format('schedule "%s" was not made by the list "%s", but %s', v_before.name, p_source,
        coalesce(format('by the list "%s"', v_before.source), 'by itself')),
      'give the one in the list another name, or delete the other: trunq.delete_schedule');
  end if;
  select g.* into r from jsonb_to_record(p_given) g(
    schedule text, queue text, payload jsonb, cron text, zone text, every interval, start_at timestamptz, missed text, overlap text,
    kind text, key text, headers jsonb, priority smallint, options jsonb, max_age interval, due_times timestamptz[], at time);
  perform trunq.create_schedule(r.schedule, r.queue, r.payload, r.cron, r.zone, r.every, r.start_at, r.missed, r.overlap, r.kind, r.key,
    r.headers, r.priority, r.options, r.max_age, r.due_times, r.at);
  update trunq.schedule s set source = p_source where s.name = r.schedule and s.source is distinct from p_source;
  v_after := trunq._find_schedule(r.schedule);
  return case when v_before.name is null then 'created' when to_jsonb(v_before) - c_moving <> to_jsonb(v_after) - c_moving then 'changed' end;
end $$;
comment on function trunq._sync_schedule is 'One schedule of a list. Returns: what became of it: created, changed; null: nothing.';

create or replace function trunq._set_schedule(p_new trunq.schedule, p_due_times timestamptz[]) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_old trunq.schedule;
  v_now timestamptz := trunq.clock();
  v_is_same boolean;
begin
  insert into trunq.schedule (name, queue_id, cron, zone, every, at, start_at, pipeline_id)
  values (p_new.name, p_new.queue_id, p_new.cron, p_new.zone, p_new.every, p_new.at, coalesce(p_new.start_at, case when p_new.every is not null then v_now end), p_new.pipeline_id)
  on conflict (name) do nothing;
  p_new.created_at := case when found then v_now end;
  -- One that is deleted at this moment is gone then, as if it had been deleted a little later.
  select s.* into v_old from trunq.schedule s where s.name = p_new.name for no key update;
  if p_new.every is not null then
    -- Told again without a start, the one it has goes on.
    p_new.start_at := coalesce(p_new.start_at, case when (v_old.every, trunq._months(v_old.every)) = (p_new.every, trunq._months(p_new.every)) then v_old.start_at else v_now end);
  end if;
  v_is_same := (p_new.cron, p_new.zone, p_new.every, trunq._months(p_new.every), p_new.start_at, p_new.at)
    is not distinct from (v_old.cron, v_old.zone, v_old.every, trunq._months(v_old.every), v_old.start_at, v_old.at)
    and p_new.created_at is null;
  update trunq.schedule s set
    queue_id = p_new.queue_id, cron = p_new.cron, zone = p_new.zone, every = p_new.every, at = p_new.at, start_at = p_new.start_at, missed = p_new.missed,
    overlap = p_new.overlap, kind = p_new.kind, key = p_new.key, payload = p_new.payload, headers = p_new.headers, priority = p_new.priority,
    options = p_new.options, max_age = p_new.max_age, error = null,
    -- Messages of another queue are none of its own.
    last_id = case when s.queue_id = p_new.queue_id then s.last_id end,
    next_due = case when v_is_same then s.next_due else trunq._next_step(p_new, greatest(v_now, s.last_due)) end
  where s.schedule_id = v_old.schedule_id
  returning s.* into v_old;
  if not v_is_same then
    delete from trunq.schedule_due d where d.schedule_id = v_old.schedule_id;
  end if;
  if p_new.cron is not null then
    perform trunq._set_due_times(v_old, v_now, p_due_times);
  end if;
  return p_new.created_at is not null;
end $$;
comment on function trunq._set_schedule is 'Makes or changes a schedule. Returns: whether it was made.';

create or replace function trunq._set_due_times(p_schedule trunq.schedule, p_after timestamptz, p_due_times timestamptz[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Those that are due and not fired stay. Others may have been computed by older rules of a time zone.
  delete from trunq.schedule_due d where d.schedule_id = p_schedule.schedule_id and d.due_at > p_after and d.due_at <> all (p_due_times);
  -- What was fired or skipped since they were computed does not come again.
  insert into trunq.schedule_due (schedule_id, due_at)
  select p_schedule.schedule_id, t from unnest(p_due_times) t where t > coalesce(p_schedule.last_due, '-infinity')
  on conflict do nothing;
  update trunq.schedule s set next_due = (select min(d.due_at) from trunq.schedule_due d where d.schedule_id = s.schedule_id)
  where s.schedule_id = p_schedule.schedule_id;
end $$;
comment on function trunq._set_due_times is
  'Replaces the times of a schedule after p_after, whose row the caller has locked, by those given.';

create or replace function trunq._list_fillable(p_fewer_than integer)
returns table (schedule text, cron text, zone text, after timestamptz, now timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- What came to an end before now goes on where it ended. Where all is to be made up for, that is the next round; else the newest of
  -- what was missed is enough, and those that can come to an end come at least once a day.
  select s.name, s.cron, s.zone, t.after, case when s.missed = 'all' then t.after else n.now end
  from trunq.schedule s
  cross join lateral (select count(*) as number, coalesce(max(d.due_at), s.last_due) as last from trunq.schedule_due d where d.schedule_id = s.schedule_id) d
  cross join lateral (select trunq.clock() as now) n
  cross join lateral (select least(n.now, case when s.missed = 'all' then d.last else greatest(d.last, n.now - interval '2 days') end) as after) t
  where s.cron is not null and d.number < p_fewer_than
  order by s.name
$$;
comment on function trunq._list_fillable is
  'Schedules with fewer times ahead than that. Wanted are the newest 1,000 times after `after` up to `now`, and the next 1,000.';

create or replace function trunq._fill_schedule(p_schedule text, p_cron text, p_zone text, p_after timestamptz, p_due_times timestamptz[]) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_schedule trunq.schedule;
begin
  select s.* into v_schedule from trunq.schedule s
  where s.name = p_schedule and s.cron = p_cron and s.zone = p_zone for no key update;
  if not found then
    return false;
  end if;
  perform trunq._set_due_times(v_schedule, p_after, p_due_times);
  return true;
end $$;
comment on function trunq._fill_schedule is
  'Replaces the times of a schedule after p_after; does nothing to one that was changed meanwhile.
Returns: whether it did.';

create or replace function trunq._call_leader() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify('trunq_schedules', '');
  end if;
end $$;
comment on function trunq._call_leader is 'Has the leader ask anew when the next schedule is due, when the transaction commits.';
