-- An act on all messages that a filter finds, however many: a row says what is to be done, and each part of it is one transaction that looks
-- at 10,000 messages, or 64 MB of dead ones, at most, acts on those that match, and notes in the row how far it came. Whoever has a connection carries it on: the
-- duty `sweep` of the leader, a shell that waits for it, a page. One part is done by one of them at a time, under the lock of the row, and what a
-- part did commits with how far it came: a process that is killed takes its part back, and another does it.
--
-- It takes what the preview saw, and nothing that came later: only numbers below `before`, what died or was published by `until`, and never
-- more than was counted. Messages that come back while it runs have greater numbers.
--
-- The row keeps the role that asked. Before each part that role is asked for its right to the queue again: whoever carries it on has all
-- rights. To stop it is a row of its own, seen before the next part.

create or replace function trunq.start_sweep(
  p_queue text, p_act text, p_subscription text default null, p_kind text default null, p_key text default null, p_error text default null,
  p_older_than interval default null, p_newer_than interval default null, p_reason text default null, p_fingerprint text default null,
  p_state text default null, p_payload jsonb default null, p_headers jsonb default null,
  p_before bigint default null, p_until timestamptz default null, p_counted bigint default null
) returns bigint
-- The ages of its filter are read back in other sessions.
language plpgsql set search_path = pg_catalog, pg_temp set IntervalStyle = postgres as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
  v_now timestamptz := trunq.clock();
  v_filter jsonb := jsonb_strip_nulls(jsonb_build_object('kind', p_kind, 'key', p_key, 'error', p_error, 'older_than', p_older_than, 'newer_than', p_newer_than,
    'reason', p_reason, 'fingerprint', p_fingerprint, 'state', p_state)) || case when p_payload is null then '{}' else jsonb_build_object('payload', p_payload) end
    || case when p_headers is null then '{}' else jsonb_build_object('headers', p_headers) end;
  v_before bigint := p_before;
  v_id bigint;
begin
  perform trunq._check_sweep(v_queue, p_act, p_subscription, v_filter);
  if p_counted < 0 then
    perform trunq._fail('TQ005', format('%s is not a number of messages', p_counted));
  end if;
  if v_before is null and p_act = 'cancel' then
    v_before := trunq._last_message_id(v_queue) + 1;
  elsif v_before is null then
    v_before := coalesce((select d.dead_id from trunq._dead_ids(p_queue, p_subscription, null, null, null, null, null, null, null, 1, null, null, true) d(dead_id)), 0) + 1;
  end if;
  insert into trunq.sweep (queue_id, queue, act, subscription, filter, before, until, counted, started_at, who, role, at_subscription_id, at, carried_at)
  select v_queue.queue_id, p_queue, p_act, p_subscription, v_filter, v_before, least(p_until, v_now), p_counted, v_now, a.who,
    coalesce(nullif(current_setting('role'), 'none'), session_user), coalesce(v_subscription_id, 0), case when p_act = 'cancel' then v_before else 0 end, v_now
  from trunq._actor() a
  returning sweep_id into v_id;
  perform trunq._audit('start_sweep', p_queue, trunq._told_filter(v_filter) || jsonb_build_object('sweep', v_id, 'act', p_act, 'subscription', p_subscription, 'counted', p_counted));
  return v_id;
end $$;
comment on function trunq.start_sweep is
  'Has all messages that a filter finds requeued or purged (dead ones), or cancelled, in parts of 10,000 that the leader carries on, or whoever calls trunq.carry_sweep. Filters are those of list_dead, and for cancel those of list_messages, with p_subscription and p_state. Only what is there now: p_before and p_until say what a preview saw (only smaller dead_ids, or ids, that died, or were published, by then), and p_counted how many it counted, which it does not exceed. The rights of the role that calls are asked for before each part.
Returns: its id.
Raises: TQ001, TQ002; TQ005 for an unknown act, state or reason, or a filter that does not go with the act; what cancel raises for a subscription.';

create or replace function trunq._check_sweep(p_queue trunq.queue, p_act text, p_subscription text, p_filter jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_odd text;
begin
  if p_act is null or p_act <> all (trunq._words('sweep_act')) then
    perform trunq._fail('TQ005', format('a sweep cannot %s messages', coalesce(p_act, '(null)')), trunq._list_choices(trunq._words('sweep_act')));
  end if;
  select k.name into v_odd from jsonb_object_keys(p_filter) k(name)
  where k.name = any (case when p_act = 'cancel' then '{reason,fingerprint}' else '{state,payload,headers}' end::text[]) order by k.name limit 1;
  if v_odd is not null then
    perform trunq._fail('TQ005', format('%s is no filter of what to %s', v_odd, p_act), 'leave it out');
  end if;
  -- What is beyond all times would fail in each part, for ever.
  perform trunq._check_ages((p_filter->>'older_than')::interval, (p_filter->>'newer_than')::interval);
  perform trunq._check_word(p_filter->>'reason', array(select distinct o.reason from trunq._outcomes() o where o.reason is not null order by 1), 'no message is dead by "%s"');
  if p_act = 'cancel' then
    perform trunq._subscription(p_queue.name, coalesce(p_subscription, 'default'), 'shared');
    if p_subscription is null or p_filter->>'state' is null then
      perform trunq._fail('TQ005', 'a sweep that cancels says of which subscription, and in which state messages are', 'give p_subscription and p_state');
    end if;
    perform trunq._check_word(p_filter->>'state', array(select s.state from trunq._states() s where s.is_open), 'no message that is %s can be cancelled');
  end if;
end $$;
comment on function trunq._check_sweep is 'Refuses (TQ002, TQ005, TQ011) what no sweep can do.';

create or replace function trunq.stop_sweep(p_queue text, p_sweep_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if (trunq._find_sweep(p_queue, p_sweep_id)).ended_at is not null then
    return false;
  end if;
  insert into trunq.sweep_stop (sweep_id, at, who) select p_sweep_id, a.at, a.who from trunq._actor() a on conflict do nothing;
  perform trunq._audit('stop_sweep', p_queue, jsonb_build_object('sweep', p_sweep_id));
  return true;
end $$;
comment on function trunq.stop_sweep is
  'Stops a sweep before its next part. What is done stays done.
Returns: false when it had ended.
Raises: TQ001; TQ005 for one that the queue has not.';

create or replace function trunq.carry_sweep(p_queue text, p_sweep_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._find_sweep(p_queue, p_sweep_id);
  return trunq._carry_sweep(p_sweep_id);
end $$;
comment on function trunq.carry_sweep is
  'Does the next part of a sweep, 10,000 messages at most, as the leader does. Commit it, and call it again.
Returns: true while there may be more, false when it has ended; null: somebody else does a part at this moment.
Raises: TQ001; TQ005 for one that the queue has not; what requeue, purge and cancel raise.
Locks: the sweep; the rows that it acts on; the queue, against a drop.';

create or replace function trunq.list_sweeps(
  p_queue text default null, p_limit integer default 100, p_before bigint default null, p_state text default null
)
returns table (
  sweep_id bigint, queue text, act text, subscription text, filter jsonb, counted bigint, state text, looked bigint, done bigint, kept bigint,
  who text, started_at timestamptz, carried_at timestamptz, ended_at timestamptz, stopped_by text, error text
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
begin
  perform trunq._check_limit(p_limit);
  perform trunq._check_word(p_state, trunq._words('sweep_state'), 'no sweep is "%s"');
  return query
    -- By the index of these alone: many newer ones may have ended.
    with running as materialized (
      select r.* from trunq.sweep r
      where r.ended_at is null and (p_queue is null or r.queue = p_queue) and (p_before is null or r.sweep_id < p_before)),
    found as (
      select r.* from running r where p_state = 'running'
      union all
      (select s.* from trunq.sweep s
      where p_state is distinct from 'running' and (p_state is null or s.state = p_state)
        and (p_queue is null or s.queue = p_queue) and (p_before is null or s.sweep_id < p_before)
      order by s.sweep_id desc limit p_limit))
    select s.sweep_id, s.queue, s.act, s.subscription, trunq._told_filter(s.filter), s.counted, s.state, s.looked, s.done, s.kept, s.who, s.started_at, s.carried_at,
      s.ended_at, o.who, s.error
    from found s left join trunq.sweep_stop o on o.sweep_id = s.sweep_id
    order by s.sweep_id desc limit p_limit;
end $$;
comment on function trunq.list_sweeps is
  'Sweeps, newest first, p_limit at most (100), of a queue, also one that was dropped, or of all; p_before: the last sweep_id of the page before; p_state: those in one state. state: running, finished, stopped, dropped (its queue, or subscription, is gone) or refused (who asked has no right to the queue any more); looked: at how many; done: how many it acted on; kept: how many matched and were left: deleted, their unique key held by another, over, or taken by somebody else; counted: by the preview; error: why its last part failed, which is tried again.
Raises: TQ005.';

create or replace function trunq.sweep() returns bigint
-- Rotation is on its line: it does not wait for who has acted on a dead message and does not commit.
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' set trunq.plan = index as $$
declare
  v_id bigint;
begin
  select s.sweep_id into v_id from trunq.sweep s where s.ended_at is null order by s.carried_at limit 1 for no key update skip locked;
  if not found then
    return 0;
  end if;
  begin
    perform trunq._carry_sweep(v_id);
  exception when query_canceled or others then
    if sqlstate = '57014' and not trunq._has_timed_out() then
      raise;
    end if;
    -- The others have their turn.
    update trunq.sweep s set error = left(sqlerrm, trunq._limit('error_characters')), carried_at = trunq.clock() where s.sweep_id = v_id;
    return 0;
  end;
  return 1;
end $$;
comment on function trunq.sweep is
  'Does a part of the sweep for which that is longest ago. The leader does this.
Returns: 1 when a part was done.
Locks: as carry_sweep, waiting 200 ms at a time.';

create or replace function trunq._find_sweep(p_queue text, p_sweep_id bigint) returns trunq.sweep
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sweep trunq.sweep;
begin
  select s.* into v_sweep from trunq.sweep s where s.sweep_id = p_sweep_id and s.queue = p_queue;
  if not found then
    perform trunq._find_queue(p_queue);
    perform trunq._fail('TQ005', format('queue "%s" has no sweep %s', coalesce(p_queue, ''), coalesce(p_sweep_id::text, '(null)')),
      'select * from trunq.list_sweeps() shows those there are');
  end if;
  return v_sweep;
end $$;
comment on function trunq._find_sweep is 'A sweep of a queue, which may be gone; else TQ001 or TQ005.';

create or replace function trunq._told_filter(p_filter jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- Not every reader may see payloads.
  select trunq._short(coalesce(jsonb_object_agg(f.key, case when f.key in ('payload', 'headers') then '"(given)"' else f.value end), '{}')) from jsonb_each(p_filter) f
$$;
comment on function trunq._told_filter is 'The filter of a sweep as it is told.';

create or replace function trunq._may(p_role text, p_queue text, p_door text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce((
    select pg_has_role(r.oid, n.nspowner, 'usage') or exists (
      select from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace and p.proname = concat(p_queue, '_', p_door) and p.prosecdef
        and has_function_privilege(r.oid, p.oid, 'execute'))
    from pg_roles r cross join pg_namespace n where r.rolname = p_role and n.nspname = 'trunq'), false)
$$;
comment on function trunq._may is 'Whether a role, which may be gone, goes through this door of a queue or has the rights of the owner of trunq.';

create or replace function trunq._carry_sweep(p_sweep_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v trunq.sweep;
  v_queue trunq.queue;
  -- As the duty whose part it is, whoever carries it on.
  c_did constant text := 'sweep';
  v_who constant text := current_setting('trunq.who', true);
begin
  select s.* into v from trunq.sweep s where s.sweep_id = p_sweep_id and s.ended_at is null for no key update skip locked;
  if not found then
    return case when not exists (select from trunq.sweep s where s.sweep_id = p_sweep_id and s.ended_at is null) then false end;
  end if;
  -- One that is being dropped is waited for.
  select q.* into v_queue from trunq.queue q where q.queue_id = v.queue_id for key share;
  v.error := null;
  v.carried_at := trunq.clock();
  perform set_config('trunq.who', v.who, true);
  if v_queue.queue_id is null or v.subscription is not null and not exists (
      select from trunq.subscription s where s.subscription_id = v.at_subscription_id and s.queue_id = v.queue_id) then
    v.state := 'dropped';
  elsif not trunq._may(v.role, v.queue, 'administer')
      or v.filter ?| '{payload,headers}' and not trunq._may(v.role, v.queue, 'read_payload') then
    v.state := 'refused';
  elsif exists (select from trunq.sweep_stop o where o.sweep_id = p_sweep_id) then
    v.state := 'stopped';
  elsif v.act = 'cancel' then
    v := trunq._sweep_messages(v, v_queue);
  else
    v := trunq._sweep_dead(v, v_queue);
  end if;
  if v.state <> 'running' then
    v.ended_at := v.carried_at;
    perform trunq._audit(c_did, v.queue, jsonb_build_object('sweep', v.sweep_id, 'act', v.act, 'state', v.state, 'counted', v.counted, 'kept', v.kept), v.done);
  end if;
  update trunq.sweep s set (at_subscription_id, at, looked, done, kept, carried_at, state, ended_at, error)
    = (v.at_subscription_id, v.at, v.looked, v.done, v.kept, v.carried_at, v.state, v.ended_at, v.error)
  where s.sweep_id = p_sweep_id;
  perform set_config('trunq.who', coalesce(v_who, ''), true);
  return v.state = 'running';
end $$;
comment on function trunq._carry_sweep is 'Does the next part of a sweep, as carry_sweep does.';

create or replace function trunq._sweep_dead(p_sweep trunq.sweep, p_queue trunq.queue) returns trunq.sweep
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v trunq.sweep := p_sweep;
  c_part constant integer := trunq._limit('swept_messages');
  v_found record;
  v_ids bigint[];
  v_count integer;
begin
  -- By subscription and dead_id, the order of the index: a part reads what it looks at, wherever it is.
  execute format($q$
    with next as materialized (
      select d.subscription_id, d.dead_id, d.died_at <= $5 and %s as is_meant,
        coalesce(pg_column_size(d.payload), 0) + coalesce(pg_column_size(d.body), 0) + coalesce(pg_column_size(d.errors), 0) as size
      from (
        select d.* from trunq.dead d
        where d.queue_id = $1 and (d.subscription_id, d.dead_id) > ($2, $3) and (not $14 or d.subscription_id = $2) and d.dead_id < $10
        order by d.subscription_id, d.dead_id limit $11) d),
    -- Large ones take time: a part that never ends in time would be tried for ever.
    part as (
      select n.* from (
        select n.*, sum(n.size) filter (where n.is_meant) over (order by n.subscription_id, n.dead_id rows between unbounded preceding and 1 preceding) as before
        from next n) n
      where n.before >= $15 is not true)
    select count(*) looked, coalesce(array_agg(p.dead_id order by p.subscription_id, p.dead_id) filter (where p.is_meant), '{}') ids,
      (array_agg(p.subscription_id order by p.subscription_id desc, p.dead_id desc))[1] subscription_id,
      (array_agg(p.dead_id order by p.subscription_id desc, p.dead_id desc))[1] dead_id,
      (select count(*) from next) = $11 or count(*) < (select count(*) from next) is_more
    from part p
  $q$, trunq._dead_condition()) into v_found
  using v.queue_id, v.at_subscription_id, v.at, (v.filter->>'older_than')::interval, v.until, (v.filter->>'newer_than')::interval, v.filter->>'kind',
    v.filter->>'key', v.filter->>'error', v.before, c_part, v.filter->>'reason', v.filter->>'fingerprint', v.subscription is not null, trunq._limit('swept_bytes');
  v_ids := v_found.ids;
  if v.counted is not null then
    v_ids := v_ids[:greatest(v.counted - v.done - v.kept, 0)];
  end if;
  v_count := case when v.act = 'requeue' then trunq._requeue(p_queue, v_ids) else trunq._purge(p_queue.queue_id, v_ids) end;
  perform trunq._audit(v.act, v.queue, trunq._told_filter(v.filter) || jsonb_build_object('sweep', v.sweep_id, 'subscription', v.subscription), v_count);
  v.done := v.done + v_count;
  v.kept := v.kept + cardinality(v_ids) - v_count;
  v.looked := v.looked + v_found.looked;
  if not v_found.is_more or v.done + v.kept >= v.counted then
    v.state := 'finished';
  else
    v.at_subscription_id := v_found.subscription_id;
    v.at := v_found.dead_id;
  end if;
  return v;
end $$;
comment on function trunq._sweep_dead is 'Requeues or purges the next part of what a sweep is about. Returns: the sweep, how far it came.';

create or replace function trunq._sweep_messages(p_sweep trunq.sweep, p_queue trunq.queue) returns trunq.sweep
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v trunq.sweep := p_sweep;
  -- Whether one is read is asked of its lane, some tenths of a millisecond each: fewer, or a part takes up the time that its line has.
  c_part constant integer := trunq._limit('swept_messages') / case when p_queue.lanes is null then 1 else 5 end;
  v_sub trunq.subscription;
  v_places record;
  v_ids bigint[];
  v_count bigint;
begin
  select s.* into v_sub from trunq.subscription s where s.subscription_id = v.at_subscription_id;
  if not found then
    v.state := 'dropped';
    return v;
  end if;
  v_places := trunq._candidate_ids(v_sub, p_queue, v.filter->>'state', c_part, v.at);
  v_ids := array(
    select m.id from trunq._message(v_sub, p_queue, v_places.ids, not v.filter ?| '{payload,headers}', false) m
    where m.state = v.filter->>'state' and m.published_at <= v.until
      and trunq._is_like(m.kind, m.key, m.error, m.payload, m.headers, m.published_at, v.filter->>'kind', v.filter->>'key', v.filter->>'error', v.filter->'payload',
        v.filter->'headers', v.until - (v.filter->>'older_than')::interval, v.until - (v.filter->>'newer_than')::interval)
    order by m.id desc);
  if v.counted is not null then
    v_ids := v_ids[:greatest(v.counted - v.done - v.kept, 0)];
  end if;
  -- Some may have begun, or ended, since they were looked at.
  select count(distinct c.id) filter (where trunq._is_open(c.state)) into v_count from trunq._cancel_found(p_queue, v.subscription, v_ids) c;
  perform trunq._audit(v.act, v.queue, trunq._told_filter(v.filter) || jsonb_build_object('sweep', v.sweep_id, 'subscription', v.subscription), v_count);
  v.done := v.done + v_count;
  v.kept := v.kept + cardinality(v_ids) - v_count;
  v.looked := v.looked + cardinality(v_places.ids);
  if cardinality(v_places.ids) < c_part or v.done + v.kept >= v.counted then
    v.state := 'finished';
  else
    v.at := v_places.ids[cardinality(v_places.ids)];
  end if;
  return v;
end $$;
comment on function trunq._sweep_messages is 'Cancels the next part of what a sweep is about. Returns: the sweep, how far it came.';
