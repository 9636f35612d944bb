-- Lanes: in which order a shared subscription hands out the messages of a queue made with lanes. A lane is a priority with a key or a
-- kind, as the queue says. A plain queue has none of this, neither tables nor functions nor columns of leases.
--
-- A turn is one inserted row: a lane, its state, its position. The newest turn of a lane is the lane. The ready turns of a
-- subscription, in the order of seq, are its run queue, and its newest lease carries the head of it, by class. A lease takes turns behind
-- the head, hands out a share for each, and inserts the next turn of each lane at the tail: who was served longest ago comes first.
-- What a lease costs depends on the lanes that it serves, and not on how many there are.
--
-- Discovery: the subscription's position (lo, hi, last_txid, last_id, as in a plain queue) says how far it has looked for lanes. It
-- reads what is new once, by transaction, id and lane, and gives a turn to each lane that was idle. Publishers do nothing for it.
-- A lane has a window of its own: it starts as the one in which it was found; when that is used up, the lane goes on to where discovery's
-- ends. Every window of discovery has a number (epoch), and an idle lane says up to which it was walked.
--   quick path   nobody waits and all that is new fits into the lease: it goes out as it came, without a turn
--   jump         a window of more than 10,000 rows is not read: from lane to lane, by the index (priority, lane, txid, id)
--
-- Limits: the turn of a limited lane carries the messages of it that run (lease and id), at most max_running; what has a receipt does
-- not run. The set and the receipts decide, so the limit is exact. An answer under a watched subscription inserts a wake in its own
-- transaction, which only says that a blocked lane is worth a look. A lane out of tokens, or paused, is parked until a time.
-- Against starvation: each eighth lease goes to the class whose oldest turn is the oldest. A turn with r older ones before it is
-- reached within 8(r + 1) leases.
--
-- Filters: discovery gives no turn to a lane for what does not pass, and a turn passes over it. What a lane holds and nobody has handed
-- out yet is judged by the filter of the moment in which its turn comes. A filtered subscription does not jump.
--
-- In order (trunq.subscription.in_order, lanes by key): a lane hands out one message at a time, and the next one when that is over. It is
-- over when an answer, or its death, inserts a wake with its id; receipts are not asked. A message that is given back comes into the log
-- again as ever, at once or when it is due, marked by its expiries (not null). Discovery finds it there, puts it before all others of
-- its lane (again_ids), and closes the place where it ran. Windows pass over these rows. So a lane that is held goes on by what
-- discovery finds, or by a wake, and each of these is read exactly once; a message that is dead lets its lane go on.
--
-- A message that expired or was cancelled is leased like any other, and answered in the same transaction
-- (trunq_queue.<queue>_sort_out): it takes no token of its lane and no place among those that run, and the lease goes on behind it.
-- From then on the lease looks at a hundred at a time, whatever it was asked for, and hands out no more than that.
--
-- What lanes hold (_waiting_lanes) is asked by looks and by rotation. Each message that is handled in order leaves a blocked turn, so the newest turns are
-- found from lane to lane, or, where lanes are more than blocked turns, by these: either way the cost follows the smaller number.
--
-- A subscription is watched if it is in order, or once any of its lanes had a setting: from then on each turn is checked for settings, and whether it is
-- still the newest of its lane. Those of others are not: a fair or prioritized subscription pays for no limits.

create or replace function trunq._lane_expression(p_lanes text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- Always an expression over the row, or the index could not serve it.
  select case
    when p_lanes like '%key' then 'coalesce(g.key, '''')'
    when p_lanes like '%kind' then 'coalesce(g.kind, '''')'
    else 'left(coalesce(g.key, ''''), 0)' end
$$;
comment on function trunq._lane_expression is 'What the lane of a message g is within its priority.';

create or replace function trunq._check_lanes(p_queue text, p_lanes text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_lanes text;
begin
  if p_lanes <> all (trunq._words('lanes')) then
    perform trunq._fail('TQ005', format('queue "%s" cannot have lanes by "%s"', p_queue, p_lanes),
      'lanes are made of priority, key, kind, "priority,key" or "priority,kind"');
  end if;
  select q.lanes into v_lanes from trunq.queue q where q.name = p_queue;
  if found and p_lanes is not null and v_lanes is distinct from p_lanes then
    perform trunq._fail('TQ005',
      format('queue "%s" is there and %s', p_queue, case when v_lanes is null then 'has no lanes' else format('has lanes by "%s", not by "%s"', v_lanes, p_lanes) end),
      case when v_lanes is null then format('give it lanes: select trunq.convert_queue(''%s'', p_lanes => ''%s'')', p_queue, p_lanes)
        else 'its lanes stay: make another queue, and have its messages published there' end);
  end if;
end $$;
comment on function trunq._check_lanes is 'Refuses (TQ005) lanes that there are not, and others than a queue has that is there.';

create or replace function trunq._create_lanes(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._create_table(p_queue, 'turn', 'trunq_data', p_queue.name || '_turn', '_lanespecimen_turn');
  perform trunq._create_table(p_queue, 'wake', 'trunq_data', p_queue.name || '_wake', '_lanespecimen_wake');
  execute format('create sequence trunq_data.%I', p_queue.name || '_turn_id');
  -- Told again by _restore_rows.
  execute format('comment on table trunq_data.%I is %L', p_queue.name || '_turn',
    obj_description('trunq_data._lanespecimen_turn'::regclass, 'pg_class') || ' Lanes by ' || p_queue.lanes || '.');
end $$;
comment on function trunq._create_lanes is 'Makes the tables that a queue with lanes has besides.';

create or replace function trunq._index_lanes(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('create index on trunq_log.%I %s', p_queue.log_table, trunq._lane_index(p_queue.lanes));
end $$;
comment on function trunq._index_lanes is 'Makes the index by lanes of the log. A segment that has one (trunq.list_preparations) keeps it.';

create or replace function trunq._lane_index(p_lanes text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(priority, (%s collate "C"), txid, id)', replace(trunq._lane_expression(p_lanes), 'g.', ''))
$$;
comment on function trunq._lane_index is 'What the index by lanes of a log is made of.';

create or replace function trunq._lane_tables(p_queue trunq.queue) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_queue.lanes is not null then format(', trunq_data.%I, trunq_data.%I', p_queue.name || '_turn', p_queue.name || '_wake') else '' end
$$;
comment on function trunq._lane_tables is 'The tables of its lanes, to be put behind a list of tables: ", a, b", or nothing.';

create or replace function trunq._find_laned(p_queue text, p_subscription text, out queue trunq.queue, out sub trunq.subscription)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  queue := trunq._find_queue(p_queue);
  sub := trunq._subscription(p_queue, p_subscription, 'shared');
  if queue.lanes is null then
    perform trunq._fail('TQ005', format('queue "%s" is a plain queue: it has no lanes', p_queue),
      format('lanes are chosen when a queue is made, or later: select trunq.convert_queue(''%s'', p_lanes => ''key'')', p_queue));
  end if;
end $$;
comment on function trunq._find_laned is 'A queue with lanes and a shared subscription of it, by name; TQ005 for a plain queue.';

create or replace function trunq._set_order(p_queue trunq.queue, p_sub trunq.subscription, p_in_order boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_has_begun boolean;
begin
  if p_sub.mode <> 'shared' then
    perform trunq._fail('TQ005', format('subscription "%s" is exclusive: its batches are in order', p_sub.name), 'leave in_order out');
  elsif p_queue.lanes is distinct from 'key' then
    perform trunq._fail('TQ005',
      format('queue "%s" %s: a subscription is in order by the key of a message', p_queue.name,
        case when p_queue.lanes is null then 'is a plain queue' else format('has lanes by %s', p_queue.lanes) end),
      'make a queue with lanes by key: trunq.create_queue(..., p_lanes => ''key''); or give lanes to a plain one: trunq.convert_queue');
  end if;
  -- No lease is under way, and the next one reads what is set here.
  perform trunq._lock_subscription(p_sub.subscription_id, p_queue.name, p_sub.name);
  execute format('select exists (select from trunq_data.%I where subscription_id = $1 and size > 0) or exists (select from trunq_data.%I where subscription_id = $1)',
    p_queue.lease_table, p_queue.name || '_turn') into v_has_begun using p_sub.subscription_id;
  if v_has_begun then
    perform trunq._fail('TQ005', format('subscription "%s" of queue "%s" has handed out messages %s', p_sub.name, p_queue.name,
        case when p_in_order then 'in no order' else 'in order' end),
      'say it before the first lease: make another subscription, or let workers finish and start it afresh with trunq.reset');
  end if;
  update trunq.subscription s set in_order = p_in_order where s.subscription_id = p_sub.subscription_id;
end $$;
comment on function trunq._set_order is 'Has a subscription that has handed out nothing be in order, or not; else TQ005.';

create or replace function trunq._hold_lanes(p_queue trunq.queue, p_subscription_id integer, p_snapshot pg_snapshot) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    insert into trunq_data.%I (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, open_leases, open_ids)
    select nextval('trunq_data.%I'), $1, d.priority, coalesce(d.key, ''), 0, 'i', $2, $2, 0, '0', 0, array[0], array[d.id]
    from trunq.delayed d where d.queue_id = $3 and d.subscription_id = $1
  $q$, p_queue.name || '_turn', p_queue.name || '_turn_id') using p_subscription_id, p_snapshot, p_queue.queue_id;
end $$;
comment on function trunq._hold_lanes is
  'Of a subscription in order whose turns are gone: its messages that are to be retried hold their lanes.';

create or replace function trunq._check_lane_limits(p_max_running integer, p_rate double precision, p_burst integer) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_max_running not between 1 and 1000 then
    perform trunq._fail('TQ005', format('a lane runs 1 to 1,000 messages at once, not %s', p_max_running),
      'give none for no limit; trunq.pause_lane stops a lane');
  end if;
  -- The time until the next message must be one that Postgres can add to now.
  if p_rate not between 0.000001 and 1000000 then
    perform trunq._fail('TQ005', format('the rate of a lane is 0.000001 (one message in twelve days) to 1,000,000 messages a second, not %s', p_rate),
      'give none for no limit; trunq.pause_lane stops a lane');
  end if;
  if p_burst < 1 or p_burst > 1000000 then
    perform trunq._fail('TQ005', format('the burst of a lane is 1 to 1,000,000 messages, not %s', p_burst));
  end if;
  if p_burst is not null and p_rate is null then
    perform trunq._fail('TQ005', 'a burst belongs to a rate, and none is given', 'give p_rate too');
  end if;
end $$;
comment on function trunq._check_lane_limits is 'Refuses (TQ005) limits that a lane cannot have; null is none.';

create or replace function trunq._check_lane(p_queue trunq.queue, p_lanes text[], p_priorities smallint[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if array_position(p_lanes, null) is not null or array_position(p_priorities, null) is not null then
    perform trunq._fail('TQ005', 'a lane is named by a text and a priority, not null', 'the lane of messages without a key or kind is the empty text');
  end if;
  if p_queue.lanes = 'priority' and exists (select from unnest(p_lanes) l(lane) where l.lane <> '') then
    perform trunq._fail('TQ005', format('the lanes of queue "%s" are its priorities: none of them is called "%s"', p_queue.name,
      (select l.lane from unnest(p_lanes) l(lane) where l.lane <> '' limit 1)), 'leave the name empty and give the priority');
  end if;
  if p_queue.lanes not like 'priority%' and exists (select from unnest(p_priorities) p(priority) where p.priority <> 0) then
    perform trunq._fail('TQ005', format('the lanes of queue "%s" are by %s alone: it has no priorities', p_queue.name, p_queue.lanes), 'leave the priority out');
  end if;
end $$;
comment on function trunq._check_lane is 'Refuses (TQ005) lanes that a queue cannot have.';

create or replace function trunq._touch_lanes(p_queue trunq.queue, p_subscription_id integer, p_priorities smallint[], p_lanes text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  insert into trunq.lane_policy (subscription_id, is_watched) values (p_subscription_id, true)
  on conflict (subscription_id) do update set is_watched = true where not lane_policy.is_watched;
  execute format('insert into trunq_data.%I (subscription_id, priority, lane) select $1, u.priority, u.lane from unnest($2, $3) u(priority, lane)',
    p_queue.name || '_wake') using p_subscription_id, p_priorities, p_lanes;
  perform trunq._ring_bell(p_queue.queue_id);
end $$;
comment on function trunq._touch_lanes is
  'Has lanes looked at by the next lease, as their settings changed, and wakes who would take it. A lane that is null: all of them.';

create or replace function trunq.set_lanes(
  p_queue text,
  p_subscription text default 'default',
  p_policy text default 'fair',
  p_max_running integer default null,
  p_rate double precision default null,
  p_burst integer default null,
  p_function text default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._find_laned(p_queue, p_subscription);
  v_has_turns boolean;
  v_was_ranked boolean;
begin
  perform trunq._audit('set_lanes', p_queue, jsonb_build_object('subscription', p_subscription, 'policy', p_policy, 'max_running', p_max_running,
    'rate', p_rate, 'burst', p_burst, 'function', p_function));
  if coalesce(p_policy, '') <> all (trunq._words('lane_policy')) then
    perform trunq._fail('TQ005', format('there is no policy "%s" for lanes', p_policy),
      'fair: each lane in turn; priority: the smallest first; ranked: by a function of yours. Weights and ranks are settings of single lanes (trunq.set_lane, trunq.set_ranks)');
  end if;
  perform trunq._check_lane_limits(p_max_running, p_rate, p_burst);
  v_was_ranked := trunq._set_ranking((v.sub).subscription_id, p_policy, p_function);
  -- Nothing to be checked later, where no turn was made by another policy.
  execute format('select exists (select from trunq_data.%I where subscription_id = $1)', (v.queue).name || '_turn')
    into v_has_turns using (v.sub).subscription_id;
  if v_has_turns or num_nonnulls(p_max_running, p_rate) > 0 then
    perform trunq._touch_lanes(v.queue, (v.sub).subscription_id, array[null::smallint], array[null::text]);
  else
    insert into trunq.lane_policy (subscription_id) values ((v.sub).subscription_id) on conflict (subscription_id) do nothing;
  end if;
  update trunq.lane_policy p set policy = p_policy, max_running = p_max_running, rate = p_rate, burst = p_burst
  where p.subscription_id = (v.sub).subscription_id;
  if v_was_ranked then
    -- What a function said ends with it.
    update trunq.lane z set rank = null, max_running = null
    where z.subscription_id = (v.sub).subscription_id and num_nonnulls(z.rank, z.max_running) > 0;
  end if;
end $$;
comment on function trunq.set_lanes is
  'Says in which order a subscription (left out: "default") serves its lanes, and the limits of each lane that has none of its own: messages that run at once (1 to 1,000), messages handed out a second (rate), and how many at once after a pause (burst). A limit that is left out is removed. The policy fair, the default, serves each lane in turn, priority the smallest first, ranked as p_function says (in Python: trunq.Ranks), a function of yours that a leader or a worker was given by that name; every eighth lease goes to the oldest turn.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq.set_lane(
  p_queue text,
  p_subscription text default 'default',
  p_lane text default '',
  p_priority smallint default 0,
  p_max_running integer default null,
  p_rate double precision default null,
  p_burst integer default null,
  p_weight integer default null,
  p_rank integer default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._find_laned(p_queue, p_subscription);
begin
  perform trunq._audit('set_lane', p_queue, jsonb_build_object('subscription', p_subscription, 'lane', p_lane, 'priority', p_priority,
    'max_running', p_max_running, 'rate', p_rate, 'burst', p_burst, 'weight', p_weight, 'rank', p_rank));
  perform trunq._check_lane(v.queue, array[p_lane], array[p_priority]);
  perform trunq._check_lane_limits(p_max_running, p_rate, p_burst);
  if p_weight not between 1 and 100 then
    perform trunq._fail('TQ005', format('the weight of a lane is 1 to 100, not %s', p_weight));
  end if;
  perform trunq._check_ranks(array[p_rank]);
  perform trunq._touch_lanes(v.queue, (v.sub).subscription_id, array[p_priority], array[p_lane]);
  insert into trunq.lane (subscription_id, priority, lane, max_running, rate, burst, weight, rank)
  values ((v.sub).subscription_id, p_priority, p_lane, p_max_running, p_rate, p_burst, p_weight, p_rank)
  on conflict (subscription_id, priority, lane) do update
  set max_running = excluded.max_running, rate = excluded.rate, burst = excluded.burst, weight = excluded.weight, rank = excluded.rank;
end $$;
comment on function trunq.set_lane is
  'Sets the limits of one lane, its weight (how many times the share of another lane it gets) and its rank (-100 to 100, the smallest is served first; without one, its place by the policy: so a subscription gives kinds their priority). What is left out is as for the other lanes. A limit counts only messages that are handed out after this call.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq.pause_lane(
  p_queue text, p_subscription text default 'default', p_lane text default '', p_priority smallint default 0, p_until timestamptz default 'infinity'
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._find_laned(p_queue, p_subscription);
begin
  perform trunq._audit('pause_lane', p_queue, jsonb_build_object('subscription', p_subscription, 'lane', p_lane, 'priority', p_priority, 'until', p_until));
  perform trunq._check_lane(v.queue, array[p_lane], array[p_priority]);
  perform trunq._check_pause(format('lane "%s" of queue "%s"', p_lane, p_queue), coalesce(p_until, 'infinity'));
  perform trunq._touch_lanes(v.queue, (v.sub).subscription_id, array[p_priority], array[p_lane]);
  insert into trunq.lane (subscription_id, priority, lane, paused_until)
  values ((v.sub).subscription_id, p_priority, p_lane, coalesce(p_until, 'infinity'))
  on conflict (subscription_id, priority, lane) do update set paused_until = excluded.paused_until;
end $$;
comment on function trunq.pause_lane is
  'Stops handing out messages of a lane until p_until (left out: until it is resumed). Messages that are being handled go on.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq.resume_lane(
  p_queue text, p_subscription text default 'default', p_lane text default '', p_priority smallint default 0
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record := trunq._find_laned(p_queue, p_subscription);
begin
  perform trunq._audit('resume_lane', p_queue, jsonb_build_object('subscription', p_subscription, 'lane', p_lane, 'priority', p_priority));
  perform trunq._check_lane(v.queue, array[p_lane], array[p_priority]);
  if not exists (
      select from trunq.lane z where z.subscription_id = (v.sub).subscription_id and z.priority = p_priority and z.lane = p_lane
        and z.paused_until > trunq.clock()) then
    return false;
  end if;
  -- Locks: lane_policy before the lane, as all do who set something.
  perform trunq._touch_lanes(v.queue, (v.sub).subscription_id, array[p_priority], array[p_lane]);
  update trunq.lane z set paused_until = null
  where z.subscription_id = (v.sub).subscription_id and z.priority = p_priority and z.lane = p_lane;
  return true;
end $$;
comment on function trunq.resume_lane is
  'Ends the pause of a lane, at once.
Returns: false when it was not paused.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq.list_lanes(p_queue text, p_subscription text default 'default', p_limit integer default 100)
returns table (
  lane text, priority smallint, depth integer, is_more boolean, running bigint, oldest_ready interval, is_paused boolean,
  paused_until timestamptz,
  max_running integer, rate double precision, burst integer, weight integer, rank integer
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record := trunq._find_laned(p_queue, p_subscription);
  v_now timestamptz := trunq.clock();
begin
  perform trunq._check_limit(p_limit);
  return query execute format($q$
    select l.lane, l.priority, least(l.depth, 1000)::integer, l.depth > 1000, l.running, $4 - l.oldest,
      coalesce(z.paused_until > $4, false), case when z.paused_until > $4 and isfinite(z.paused_until) then z.paused_until end, coalesce(z.max_running, p.max_running),
      coalesce(z.rate, p.rate), case when coalesce(z.rate, p.rate) is not null then coalesce(z.burst, p.burst, 1) end, coalesce(z.weight, 1), z.rank
    from trunq_queue.%I($1, $2) l
    left join trunq.lane_policy p on p.subscription_id = $1
    left join trunq.lane z on z.subscription_id = $1 and z.priority = l.priority and z.lane = l.lane collate "C"
    order by l.depth desc, l.priority, l.lane limit $3
  $q$, p_queue || '_list_lanes') using (v.sub).subscription_id, p_limit, p_limit, v_now;
end $$;
comment on function trunq.list_lanes is
  'The lanes of a subscription in which something waits or runs, or that have settings, the deepest first. depth: how many messages wait, exact up to 1,000 (is_more: there are more; of those that nobody has looked for yet, the next 5,000 count); running: how many are held; oldest_ready: since when the first waits; paused_until: null when it is paused until somebody resumes it; then its limits, its own or the subscription''s.
Raises: TQ001, TQ002, TQ005, TQ011.';

-- Turns and wakes lie in the same ring as leases, and go after them. The turns in which lanes stand are copied first, under the lock of
-- their subscription; the old ones are still in the run queue, so leases check each turn until the head is behind them.

create or replace function trunq._empty_turns(p_queue trunq.queue, p_segment integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_into smallint := trunq._segment_at(p_queue, trunq.clock());
  v_id integer;
  v_count integer;
begin
  for v_id in
    select s.subscription_id from trunq.subscription s where s.queue_id = p_queue.queue_id and s.mode = 'shared' order by s.subscription_id
  loop
    if v_into = p_segment or not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_id) then
      return null;
    end if;
    execute format('select trunq_queue.%I($1, $2, $3, 1000)', p_queue.name || '_carry_turns') into v_count using v_id, p_segment, v_into;
    if v_count > 0 then
      return 1;
    end if;
  end loop;
  -- Under the locks of all its readers nobody inserts a turn.
  return trunq._truncate(p_queue, 'turn', p_segment);
end $$;
comment on function trunq._empty_turns is 'Empties a segment of the turns, or carries some of them out of it first.
Returns: 1, 0 or null, as rotate does.';

create or replace function trunq._needs_wakes(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_is_needed boolean;
begin
  execute format($q$
    select exists (
      select from trunq.subscription s cross join lateral (
        select coalesce(l.wake_lo, l.hi) wake_lo from trunq_data.%I l where l.subscription_id = s.subscription_id order by l.lease_id desc limit 1) l
      cross join lateral (
        select from trunq_data.%I w
        where w.subscription_id = s.subscription_id and w.txid >= pg_snapshot_xmin(l.wake_lo) and not pg_visible_in_snapshot(w.txid, l.wake_lo) limit 1) w
      where s.queue_id = $1)
  $q$, p_queue.lease_table, trunq._segment_name(p_queue, 'wake', p_segment)) into v_is_needed using p_queue.queue_id;
  return v_is_needed;
end $$;
comment on function trunq._needs_wakes is 'Whether a segment of the wakes holds one that no lease has seen.';

create or replace function trunq._empty_lanes(p_queue trunq.queue, p_segment integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue.lanes is null then
    return 0;
  elsif trunq._has_rows(p_queue, 'turn', p_segment) then
    return trunq._empty_turns(p_queue, p_segment);
  elsif trunq._has_rows(p_queue, 'wake', p_segment) then
    -- _truncate asks again under its lock.
    return case when trunq._needs_wakes(p_queue, p_segment) then 0 else trunq._truncate(p_queue, 'wake', p_segment) end;
  end if;
  return 0;
end $$;
comment on function trunq._empty_lanes is 'Empties a segment of the tables of lanes, if the queue has any.
Returns: 1, 0 or null, as rotate does.';

create or replace function trunq._is_read(p_queue trunq.queue, p_row text, p_plain text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case
    when p_queue.lanes is null and trunq._has_ahead(p_queue.queue_id) then format('(%s or trunq._is_ahead($1, %s.txid, %s.id))', p_plain, p_row, p_row)
    when p_queue.lanes is null then p_plain else format('trunq_queue.%I($1, %s.txid, %s.id)', p_queue.name || '_is_read', p_row, p_row) end
$$;
comment on function trunq._is_read is
  'The condition that a row of the log was handed out to subscription $1: in a plain queue p_plain, by its position, or ahead of it.';

create or replace function trunq._check_priorities(p_queue trunq.queue, p_priorities smallint[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue.lanes like 'priority%' is not true then
    perform trunq._fail('TQ005',
      format('queue "%s" %s: it has no priorities', p_queue.name, case when p_queue.lanes is null then 'is a plain queue' else 'has lanes by ' || p_queue.lanes || ' alone' end),
      'publish with priority 0, or make a queue with lanes by priority');
  end if;
  if array_position(p_priorities, null) is not null then
    perform trunq._fail('TQ005', 'a priority is a number, not null', 'publish with priority 0');
  end if;
end $$;
comment on function trunq._check_priorities is 'Refuses (TQ005) priorities that a queue does not have.';

create or replace function trunq._publish_many_prioritized(
  p_queue text, p_payloads jsonb[], p_kinds text[], p_keys text[], p_headers jsonb[], p_bodies bytea[], p_delay interval,
  p_due_at timestamptz, p_options jsonb, p_max_age interval, p_priorities smallint[]
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_count integer := greatest(coalesce(cardinality(p_payloads), 0), coalesce(cardinality(p_bodies), 0));
  v_ids bigint[];
begin
  perform trunq._check_priorities(v_queue, p_priorities);
  p_options := trunq._options_for(p_queue, p_options, p_max_age, case when p_delay is not null or p_due_at is not null then trunq._due_at(p_delay, p_due_at) end);
  if v_count = 0 then
    return '{}';
  end if;
  if cardinality(p_priorities) not in (1, v_count) or array_lower(p_priorities, 1) <> 1 then
    perform trunq._fail('TQ005', format('%s priorities were given for %s messages of queue "%s"', cardinality(p_priorities), v_count, p_queue),
      'give one for all, or one for each');
  end if;
  perform trunq._check_arrays(p_queue, v_count, p_payloads, p_kinds, p_keys, p_headers, p_bodies);
  if p_delay is not null or p_due_at is not null then
    return trunq._publish_many_delayed(p_queue, p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_delay, p_due_at, p_options, p_priorities);
  end if;
  execute format($q$
    with published as (
      insert into trunq_log.%I (priority, kind, key, payload, headers, body, options)
      select case when cardinality($6) = 1 then $6[1] else u.priority end,
        case when cardinality($2) = 1 then $2[1] else u.kind end,
        case when cardinality($3) = 1 then $3[1] else u.key end,
        case when cardinality($1) = 1 then $1[1] else u.payload end,
        case when cardinality($4) = 1 then $4[1] else u.headers end,
        case when cardinality($5) = 1 then $5[1] else u.body end, $7
      from unnest($1, $2, $3, $4, $5, $6) u(payload, kind, key, headers, body, priority)
      returning id)
    select array_agg(id) from published
  $q$, v_queue.log_table) into v_ids using p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_priorities, p_options;
  return v_ids;
end $$;
comment on function trunq._publish_many_prioritized is
  'publish_many with priorities.';
