-- Ranks: which lanes come first, by a function of the user's. It runs in Python, in any process that was given it by its name; the
-- database says which process that is (the ranker), and keeps what it said. A ranker renews its right while it ranks, a row and not a
-- session lock, as the leader does; one that dies, or whose function stalls, is succeeded after five seconds, by whoever has the function.
-- Two rankers at once do no harm: only what the ranker of the moment says is taken, and what is the same as before writes nothing.
--
-- Which ranks and limits lanes have is in trunq.lane, as when a person sets them; so leases know nothing of all this.

create or replace function trunq._check_ranks(p_ranks integer[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from unnest(p_ranks) r(rank) where r.rank not between -100 and 100) then
    perform trunq._fail('TQ005', format('the rank of a lane is -100 to 100, not %s',
      (select r.rank from unnest(p_ranks) r(rank) where r.rank not between -100 and 100 limit 1)));
  end if;
end $$;
comment on function trunq._check_ranks is 'Refuses (TQ005) ranks that a lane cannot have; null is none.';

create or replace function trunq.set_ranks(
  p_queue text, p_subscription text, p_lanes text[], p_ranks integer[], p_priorities smallint[] default null,
  p_max_running integer[] default null, p_are_all boolean default false
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._find_laned(p_queue, p_subscription);
  v_id integer := (v.sub).subscription_id;
  v_changed record;
begin
  -- Locks: lane_policy, then the lanes, as all do who set something.
  p_priorities := coalesce(p_priorities, array_fill(0::smallint, array[coalesce(cardinality(p_lanes), 0)]));
  if cardinality(p_lanes) is distinct from cardinality(p_ranks) or cardinality(p_lanes) is distinct from cardinality(p_priorities)
      or cardinality(p_max_running) <> cardinality(p_lanes) then
    perform trunq._fail('TQ005', format('the arrays given to set_ranks for queue "%s" differ in length', p_queue),
      'give one rank for each lane, and one priority and one limit, if any');
  end if;
  perform trunq._check_lane(v.queue, p_lanes, p_priorities);
  perform trunq._check_ranks(p_ranks);
  perform trunq._check_lane_limits(m.most, null, null) from unnest(p_max_running) m(most);
  with given as (
    select distinct on (u.priority, u.lane) u.priority, u.lane collate "C" lane, u.rank, u.max_running
    from unnest(p_lanes, p_ranks, p_priorities, p_max_running) u(lane, rank, priority, max_running) order by u.priority, u.lane),
  old as materialized (select z.priority, z.lane, z.rank, z.max_running from trunq.lane z where z.subscription_id = v_id),
  wanted as (
    select coalesce(g.priority, o.priority) priority, coalesce(g.lane, o.lane) lane, g.rank,
      case when p_max_running is null then o.max_running else g.max_running end max_running, o.rank old_rank, o.max_running old_max_running
    from given g full join old o on o.priority = g.priority and o.lane = g.lane
    where g.lane is not null or p_are_all),
  -- What is as it was is not even locked.
  changed as (
    select w.* from wanted w where w.rank is distinct from w.old_rank or w.max_running is distinct from w.old_max_running)
  select array_agg(c.priority order by c.priority, c.lane) priorities, array_agg(c.lane order by c.priority, c.lane) lanes,
    array_agg(c.rank order by c.priority, c.lane) ranks, array_agg(c.max_running order by c.priority, c.lane) max_running, count(*)::integer n
  into v_changed from changed c;
  if v_changed.n > 0 then
    perform trunq._touch_lanes(v.queue, v_id, v_changed.priorities, v_changed.lanes);
    insert into trunq.lane as z (subscription_id, priority, lane, rank, max_running)
    select v_id, u.priority, u.lane, u.rank, u.max_running
    from unnest(v_changed.priorities, v_changed.lanes, v_changed.ranks, v_changed.max_running) u(priority, lane, rank, max_running)
    on conflict (subscription_id, priority, lane) do update
    set rank = excluded.rank, max_running = case when p_max_running is null then z.max_running else excluded.max_running end;
    -- Whatever settings there are: a lane without any is as the others.
    delete from trunq.lane z using unnest(v_changed.priorities, v_changed.lanes) u(priority, lane)
    where z.subscription_id = v_id and z.priority = u.priority and z.lane = u.lane collate "C"
      and jsonb_strip_nulls(to_jsonb(z)) - array['subscription_id', 'priority', 'lane'] = '{}';
  end if;
  return v_changed.n;
end $$;
comment on function trunq.set_ranks is
  'Sets the ranks of many lanes (-100 to 100, the smallest is served first; null: their place by the policy), and how many messages of each may run at once (null: as the subscription says; not given: as before), for a process of yours that decides which come first. With p_are_all, lanes that are not among them lose theirs. The next lease goes by them.
Returns: how many changed.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq._set_ranking(p_subscription_id integer, p_policy text, p_function text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_policy <> 'ranked' and p_function is not null then
    perform trunq._fail('TQ005', format('the policy %s needs no function', p_policy), 'a function of yours ranks lanes by the policy ranked');
  end if;
  if p_policy = 'ranked' and coalesce(p_function, '') = '' then
    perform trunq._fail('TQ005', 'the policy ranked needs the name of a function', 'give p_function, the name by which your module registers it');
  end if;
  if length(p_function) > 200 then
    perform trunq._fail('TQ005', format('the name of a function that ranks has up to 200 characters, not %s', length(p_function)));
  end if;
  if p_policy = 'ranked' then
    insert into trunq.ranking as r (subscription_id, function) values (p_subscription_id, p_function)
    on conflict (subscription_id) do update set function = excluded.function, ranker = null, error = null, failed_at = null where r.function <> excluded.function;
    return false;
  end if;
  delete from trunq.ranking r where r.subscription_id = p_subscription_id;
  return found;
end $$;
comment on function trunq._set_ranking is 'Has lanes ranked by a function from now on, or by none.
Returns: whether one did until now.
Raises: TQ005.';

create or replace function trunq._is_ranked(p_ranking trunq.ranking, p_now timestamptz) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- One that was seen in the future was seen by a clock that has gone back since.
  select p_ranking.ranker is not null
    and coalesce(p_ranking.seen_at > p_now - interval '5 seconds' and p_ranking.seen_at < p_now + interval '5 seconds', false)
$$;
comment on function trunq._is_ranked is 'Whether a process ranks at that time.';

create or replace function trunq._start_ranking(p_ranker text, p_functions text[], p_without integer[])
returns table (subscription_id integer, queue text, subscription text, function text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
begin
  -- Most often this only reads.
  with free as (
    select r.subscription_id from trunq.ranking r
    where r.function = any (p_functions) and r.subscription_id <> all (p_without)
      and (not trunq._is_ranked(r, v_now) or r.ranker = p_ranker and r.seen_at < v_now - interval '1.5 seconds')
    order by r.subscription_id for update skip locked)
  update trunq.ranking r set ranker = p_ranker, seen_at = v_now from free where r.subscription_id = free.subscription_id;
  return query
    select r.subscription_id, q.name, s.name, r.function
    from trunq.ranking r join trunq.subscription s on s.subscription_id = r.subscription_id join trunq.queue q on q.queue_id = s.queue_id
    where r.ranker = p_ranker and r.function = any (p_functions) and r.subscription_id <> all (p_without) order by 1;
end $$;
comment on function trunq._start_ranking is
  'Makes a process the ranker of all subscriptions that nobody ranks and for which it has the function, but those in which it is stuck.
Returns: the subscriptions that it ranks.
Locks: their rows; it passes over those that another has locked.';

create or replace function trunq._end_ranking(p_ranker text) returns void
language sql set search_path = pg_catalog, pg_temp as $$ update trunq.ranking r set ranker = null, seen_at = null where r.ranker = p_ranker $$;
comment on function trunq._end_ranking is 'Leaves all rankings of a process to others, at once.';

create or replace function trunq._apply_ranks(
  p_ranker text, p_subscription_id integer, p_function text, p_lanes text[], p_ranks integer[], p_priorities smallint[], p_max_running integer[]
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ranking trunq.ranking;
  v_now timestamptz := trunq.clock();
  v_changed integer;
begin
  select * into v_ranking from trunq.ranking r
  where r.subscription_id = p_subscription_id and r.ranker = p_ranker and r.function = p_function for no key update;
  if not found then
    return null;
  end if;
  select trunq.set_ranks(q.name, s.name, p_lanes, p_ranks, p_priorities, p_max_running, true) into v_changed
  from trunq.subscription s join trunq.queue q using (queue_id) where s.subscription_id = p_subscription_id;
  if v_ranking.error is not null or coalesce(v_ranking.ranked_at, '-infinity') not between v_now - interval '1 second' and v_now then
    update trunq.ranking r set ranked_at = v_now, error = null, failed_at = null where r.subscription_id = p_subscription_id;
  end if;
  return v_changed;
end $$;
comment on function trunq._apply_ranks is
  'Sets ranks and limits as a function said; lanes that it left out have none.
Returns: how many changed; null: another ranks by now, or another function does, and nothing changed.
Raises: TQ005.';

create or replace function trunq._fail_ranking(p_ranker text, p_subscription_id integer, p_error text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.ranking r set error = left(p_error, trunq._limit('error_characters')), failed_at = trunq.clock()
  where r.subscription_id = p_subscription_id and r.ranker = p_ranker
    and (r.error is distinct from left(p_error, trunq._limit('error_characters')) or r.failed_at < trunq.clock() - interval '10 seconds')
$$;
comment on function trunq._fail_ranking is 'Keeps why a function did not rank; ranks stay as they are.';

create or replace function trunq.list_rankings(p_queue text default null)
returns table (queue text, subscription text, function text, ranker text, ranked_at timestamptz, error text, failed_at timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, s.name, r.function, case when trunq._is_ranked(r, trunq.clock()) then r.ranker end, r.ranked_at, r.error, r.failed_at
    from trunq.ranking r join trunq.subscription s on s.subscription_id = r.subscription_id join trunq.queue q on q.queue_id = s.queue_id
    where p_queue is null or q.name = p_queue order by q.name, s.name;
end $$;
comment on function trunq.list_rankings is
  'Subscriptions whose lanes a function of yours ranks. ranker: the process that calls it, null when none does; ranked_at: when it did last; error and failed_at: why it could not, the last time it was called.
Raises: TQ001.';

create or replace function trunq._warn_unranked(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select r.queue, r.subscription, format('no process ranks the lanes of subscription "%s" of queue "%s" by the function %s', r.subscription, r.queue, r.function),
    format('the last ranks stay; start one that has it: trunq leader module:ranks, or trunq worker --ranks module:ranks')
  from trunq.list_rankings(p_queue) r where r.ranker is null
  union all
  select r.queue, r.subscription, format('the function %s failed to rank the lanes of subscription "%s" of queue "%s": %s', r.function, r.subscription, r.queue,
    split_part(r.error, E'\n', 1)), 'the last ranks stay; it is called again all the time'
  from trunq.list_rankings(p_queue) r where r.error is not null
$$;
comment on function trunq._warn_unranked is 'Subscriptions that wait for a process that ranks their lanes, and functions that failed to.';

-- Workers tell how many messages they handle at a time; what they hold is in their leases.

create or replace function trunq._attend(p_worker text, p_queues text[], p_subscription text, p_slots integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_queue text;
begin
  if not trunq._owns() then
    foreach v_queue in array p_queues loop
      if trunq._door(v_queue, trunq._doors_to('_attend_queue')) is not null then
        perform trunq._attend_queue(v_queue, p_worker, p_subscription, p_slots);
        p_queues := array_remove(p_queues, v_queue);
      end if;
    end loop;
    if p_queues = '{}' then
      return;
    end if;
  end if;
  if p_slots not between 0 and trunq._limit('lease_messages') then
    perform trunq._fail('TQ005', format('a worker has 0 to %s slots, not %s', trunq._limit('lease_messages'), p_slots),
      'start more workers: trunq worker --processes');
  end if;
  insert into trunq.worker as w (subscription_id, name, slots, seen_at)
  select s.subscription_id, p_worker, p_slots, v_now from trunq.subscription s join trunq.queue q using (queue_id)
  where q.name = any (p_queues) and s.name = p_subscription order by 1
  on conflict (subscription_id, name) do update set slots = excluded.slots, seen_at = excluded.seen_at;
  with gone as (
    select w.subscription_id, w.name from trunq.worker w where w.seen_at not between v_now - interval '1 hour' and v_now + interval '1 hour'
      -- Of these queues alone: a role of one may move its clock (trunq.clock_offset).
      and w.subscription_id in (select s.subscription_id from trunq.subscription s join trunq.queue q using (queue_id) where q.name = any (p_queues))
    for update skip locked)
  delete from trunq.worker w using gone g where w.subscription_id = g.subscription_id and w.name = g.name;
end $$;
comment on function trunq._attend is 'Tells that a worker serves these queues, with so many slots; forgets those of these queues that have not told for an hour.';

create or replace function trunq._attend_queue(p_queue text, p_worker text, p_subscription text, p_slots integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._attend(p_worker, array[p_queue], p_subscription, p_slots);
end $$;
comment on function trunq._attend_queue is '_attend, for one queue.';

create or replace function trunq._leave_worker(p_worker text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._leave_queue(o.queue, p_worker) from trunq._open_to(trunq._doors_to('_leave_queue')) o(queue);
  if trunq._owns() or has_table_privilege('trunq.worker', 'delete') then
    delete from trunq.worker w where w.name = p_worker;
  end if;
end $$;
comment on function trunq._leave_worker is 'Tells that a worker leases no more.';

create or replace function trunq._leave_queue(p_queue text, p_worker text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  delete from trunq.worker w using trunq.subscription s, trunq.queue q
  where w.name = p_worker and s.subscription_id = w.subscription_id and q.queue_id = s.queue_id and q.name = p_queue;
end $$;
comment on function trunq._leave_queue is '_leave, for one queue.';

create or replace function trunq.fleet(p_queue text, p_subscription text default 'default')
returns table (queue text, subscription text, workers integer, slots integer, free_slots integer)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_id integer := (trunq._subscription(p_queue, p_subscription, 'shared')).subscription_id;
  v_since timestamptz := trunq.clock() - interval '30 seconds';
begin
  queue := p_queue;
  subscription := p_subscription;
  -- One that serves several queues has its slots once: what it holds of another takes them too.
  with present as materialized (
    select w.name, w.slots from trunq.worker w where w.subscription_id = v_id and w.seen_at > v_since),
  held as (
    select l.worker, sum(l.unanswered) n
    from trunq.subscription s join trunq.queue q using (queue_id) cross join lateral trunq._leases(q, s.subscription_id, null, 10000) l
    where s.subscription_id in (select w.subscription_id from trunq.worker w join present p using (name) where w.seen_at > v_since)
    group by l.worker)
  select count(*), coalesce(sum(p.slots), 0), coalesce(sum(greatest(0, p.slots - coalesce(h.n, 0))), 0) into workers, slots, free_slots
  from present p left join held h on h.worker = p.name;
  return next;
end $$;
comment on function trunq.fleet is
  'The workers that serve a shared subscription: how many run, how many messages they handle at a time (slots), and how many of these slots are free: what a worker has leased and not answered takes one each. A worker that was killed counts for up to 30 seconds.
Raises: TQ001, TQ002, TQ011.';
