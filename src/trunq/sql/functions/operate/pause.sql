-- A pause keeps a subscription, or all of a queue, from handing out messages until a time, or until somebody resumes it. It moves nothing: what
-- is leased goes on and is answered, publishers publish, positions stay, and so rotation keeps what waits. The pause of a queue is
-- copied into its subscriptions, so that a lease reads one row. A resume tells every sleeping worker (payload look).

create or replace function trunq.pause_subscription(p_queue text, p_subscription text, p_until timestamptz default 'infinity') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('pause_subscription', p_queue, jsonb_build_object('subscription', p_subscription, 'until', p_until));
  if trunq._is_split(p_queue, p_subscription) then
    perform trunq._pause_one(p_queue, s.name, p_until) from trunq._slots(p_queue, p_subscription) s(name);
  else
    perform trunq._pause_one(p_queue, p_subscription, p_until);
  end if;
end $$;
comment on function trunq.pause_subscription is
  'Stops handing out messages of a subscription until p_until (left out: until it is resumed). Leases and batches that are held go on, and publishers publish.
Raises: TQ001, TQ002; TQ005 for a time that is over.';

create or replace function trunq._pause_one(p_queue text, p_subscription text, p_until timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
begin
  perform trunq._check_pause(format('subscription "%s" of queue "%s"', p_subscription, p_queue), p_until);
  update trunq.subscription s set paused_until = p_until where s.subscription_id = v_sub.subscription_id;
  -- Those who sleep until the end of a longer pause.
  perform trunq._call_workers(v_sub.queue_id);
end $$;
comment on function trunq._pause_one is 'pause_subscription, of one subscription or slot.';

create or replace function trunq.resume_subscription(p_queue text, p_subscription text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('resume_subscription', p_queue, jsonb_build_object('subscription', p_subscription));
  if trunq._is_split(p_queue, p_subscription) then
    return (select bool_or(trunq._resume_one(p_queue, s.name)) from trunq._slots(p_queue, p_subscription) s(name));
  end if;
  return trunq._resume_one(p_queue, p_subscription);
end $$;
comment on function trunq.resume_subscription is
  'Ends the pause of a subscription and wakes its workers. Where its queue is paused, it stays so.
Returns: false when it was not paused.
Raises: TQ001, TQ002.';

create or replace function trunq._resume_one(p_queue text, p_subscription text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
  v_until timestamptz;
begin
  select s.paused_until into v_until from trunq.subscription s where s.subscription_id = v_sub.subscription_id for no key update;
  update trunq.subscription s set paused_until = null where s.subscription_id = v_sub.subscription_id and s.paused_until is not null;
  perform trunq._call_workers(v_sub.queue_id);
  return coalesce(v_until > trunq.clock(), false);
end $$;
comment on function trunq._resume_one is 'resume_subscription, of one subscription or slot.';

create or replace function trunq.pause_queue(p_queue text, p_until timestamptz default 'infinity') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
begin
  perform trunq._audit('pause_queue', p_queue, jsonb_build_object('until', p_until));
  perform trunq._check_pause(format('queue "%s"', p_queue), p_until);
  perform trunq._set_pause(p_queue, v_queue_id, p_until);
end $$;
comment on function trunq.pause_queue is
  'Stops handing out messages of a queue, to any subscription, until p_until (left out: until it is resumed). Publishing goes on, and so do leases and batches that are held.
Raises: TQ001; TQ005 for a time that is over.
Locks: the queue, against subscribe and rotation.';

create or replace function trunq.resume_queue(p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  perform trunq._audit('resume_queue', p_queue);
  return coalesce(trunq._set_pause(p_queue, v_queue.queue_id, null) > trunq.clock(), false);
end $$;
comment on function trunq.resume_queue is
  'Ends the pause of a queue and wakes its workers. A subscription that is paused itself stays so.
Returns: false when it was not paused.
Raises: TQ001.
Locks: the queue, against subscribe and rotation.';

create or replace function trunq._set_pause(p_queue text, p_queue_id integer, p_until timestamptz) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_before timestamptz;
begin
  -- A subscription that is being made has the pause of before, or waits and has this one.
  perform pg_advisory_xact_lock(trunq._lock_class('queue'), p_queue_id);
  v_before := (trunq._find_queue(p_queue)).paused_until;  -- it may have been dropped meanwhile
  update trunq.queue q set paused_until = p_until where q.queue_id = p_queue_id;
  update trunq.subscription s set queue_paused_until = p_until where s.queue_id = p_queue_id;
  perform trunq._call_workers(p_queue_id);
  return v_before;
end $$;
comment on function trunq._set_pause is 'Pauses a queue until a time, or (null) resumes it. Returns: until when it was paused.';

create or replace function trunq._check_pause(p_what text, p_until timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if (p_until > trunq.clock()) is not true then
    perform trunq._fail('TQ005', format('%s cannot be paused until %s: that time is over', p_what, coalesce(p_until::text, 'null')),
      'give a time to come, or none: then it is paused until it is resumed');
  elsif isfinite(p_until) and p_until >= '10000-01-01 00:00:00+00' then
    -- No driver could read it.
    perform trunq._fail('TQ005', format('%s cannot be paused until %s, beyond the year 9999', p_what, p_until), 'give none: then it is paused until it is resumed');
  end if;
end $$;
comment on function trunq._check_pause is 'Refuses (TQ005) a pause that would be over at once, or end beyond the year 9999.';

create or replace function trunq._paused_until(p_sub trunq.subscription) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$ select greatest(p_sub.paused_until, p_sub.queue_paused_until) $$;
comment on function trunq._paused_until is 'Until when a subscription is paused, by itself or with its queue.';

create or replace function trunq._is_paused(p_sub trunq.subscription, p_now timestamptz) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable as $$ select coalesce(greatest(p_sub.paused_until, p_sub.queue_paused_until) operator(pg_catalog.>) p_now, false) $$;
comment on function trunq._is_paused is 'Whether a subscription is paused at a time, by itself or with its queue.';

create or replace function trunq._pause(p_sub trunq.subscription, p_now timestamptz, out paused boolean, out paused_until timestamptz)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- Not every client can read infinity.
  select trunq._is_paused(p_sub, p_now), case when trunq._is_paused(p_sub, p_now) then nullif(trunq._paused_until(p_sub), 'infinity') end
$$;
comment on function trunq._pause is 'What lists say of a pause; paused_until null: until it is resumed.';

create or replace function trunq._call_workers(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify('trunq_' || p_queue_id, 'look');
  end if;
end $$;
comment on function trunq._call_workers is 'Has every sleeping worker of a queue look, when the transaction commits: what it may have has changed.';

create or replace function trunq._lanes_at_rest(
  p_queue trunq.queue, p_subscription_id integer, out lanes text[], out priorities smallint[], out waiting bigint, out since timestamptz, out others_wait boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  others_wait := true;
  if exists (select from trunq.lane z where z.subscription_id = p_subscription_id and z.paused_until = 'infinity') then
    execute format($q$
      select array_agg(l.lane order by l.depth desc, l.priority, l.lane) filter (where l.is_paused), array_agg(l.priority order by l.depth desc, l.priority, l.lane)
          filter (where l.is_paused), sum(l.depth) filter (where l.is_paused), min(l.oldest) filter (where l.is_paused), coalesce(bool_or(not l.is_paused), false)
      from (
        select l.lane, l.priority, l.depth, l.oldest, exists (
          select from trunq.lane z where z.subscription_id = $1 and z.priority = l.priority and z.lane = l.lane collate "C" and z.paused_until = 'infinity') as is_paused
        from trunq_queue.%I($1, 1000) l where l.depth > 0) l
    $q$, p_queue.name || '_list_lanes') into lanes, priorities, waiting, since, others_wait using p_subscription_id;
  end if;
end $$;
comment on function trunq._lanes_at_rest is
  'The lanes of a subscription that are paused until somebody resumes them and in which messages wait, the deepest first (null: none), how many wait there, and since when; others_wait: whether messages wait in other lanes, or no lane is paused so.';

create or replace function trunq._resumption_of(p_queue text, p_subscription text, p_lane text, p_priority smallint) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('select trunq.resume_lane(%L, %L, %L%s)', p_queue, p_subscription, p_lane, case when p_priority <> 0 then format(', %s::smallint', p_priority) end)
$$;
comment on function trunq._resumption_of is 'The statement that resumes a lane.';

create or replace function trunq._warn_lanes() returns table (queue text, subscription text, warning text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
  v_rest record;
begin
  for v in
    select q as row, q.name, s.name as reader, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where q.lanes is not null and exists (select from trunq.lane z where z.subscription_id = s.subscription_id and z.paused_until = 'infinity')
    order by q.name, s.name
  loop
    begin
      v_rest := trunq._lanes_at_rest(v.row, v.subscription_id);
      raise exception using errcode = 'TQ900';  -- gives the locks back
    exception
      when sqlstate 'TQ900' then
        null;
      when undefined_table or undefined_function then
        continue;  -- dropped meanwhile
    end;
    continue when v_rest.lanes is null;
    queue := v.name; subscription := v.reader; since := v_rest.since;
    warning := case when cardinality(v_rest.lanes) = 1
      then format('lane "%s" of subscription "%s" of queue "%s" is paused without an end, and messages have waited since %s', v_rest.lanes[1], v.reader, v.name,
        date_trunc('second', v_rest.since))
      else format('%s lanes of subscription "%s" of queue "%s" are paused without an end, and messages have waited since %s; most wait in lane "%s"',
        cardinality(v_rest.lanes), v.reader, v.name, date_trunc('second', v_rest.since), v_rest.lanes[1]) end;
    hint := trunq._resumption_of(v.name, v.reader, v_rest.lanes[1], v_rest.priorities[1]);
    return next;
  end loop;
end $$;
comment on function trunq._warn_lanes is 'Lanes that are paused until somebody resumes them, and in which messages wait.';
