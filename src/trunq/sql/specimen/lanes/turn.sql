-- What else a queue with lanes has of its own: what its lanes hold, for rotation, history and status; and how turns outlive their
-- segment. The essay is in functions/lanes/lane.sql.

create or replace function trunq_queue._lanespecimen_waiting_lanes(p_subscription_id integer) returns setof trunq_data._lanespecimen_turn
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
declare
  v_turns trunq_data._lanespecimen_turn[];
begin
  return query
    with cursor as (
      select l.classes, l.heads from trunq_data._lanespecimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1)
    select t.* from cursor c cross join lateral unnest(c.classes, c.heads) u(class, head) cross join lateral (
      -- Or Postgres reads all ready turns, also those behind it, and puts them aside.
      select t.* from trunq_data._lanespecimen_turn t
      where t.subscription_id = p_subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head offset 0) t
    where t.seq = (
      select n.seq from trunq_data._lanespecimen_turn n
      where n.subscription_id = p_subscription_id and n.priority = t.priority and n.lane = t.lane order by n.seq desc limit 1);
  -- In order each message leaves a blocked turn: there are few lanes among very many of them, or few of them among very many lanes.
  v_turns := trunq_queue._lanespecimen_newest_turns(p_subscription_id);
  if v_turns is not null then
    return query select t.* from unnest(v_turns) t where t.state in ('b', 'p');
  else
    return query
      select t.* from trunq_data._lanespecimen_turn t
      where t.subscription_id = p_subscription_id and t.state in ('b', 'p') and t.seq = (
        select n.seq from trunq_data._lanespecimen_turn n
        where n.subscription_id = p_subscription_id and n.priority = t.priority and n.lane = t.lane order by n.seq desc limit 1);
  end if;
end $$;
comment on function trunq_queue._lanespecimen_waiting_lanes is
  'The newest turns of the lanes that may hold something that was found and not handed out: ready, blocked or parked.';

create or replace function trunq_queue._lanespecimen_newest_turns(p_subscription_id integer) returns trunq_data._lanespecimen_turn[]
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
declare
  c_step constant integer := 250;
  v_lanes integer := 0;
  v_step integer;
  v_priority integer := 32768;  -- before all
  v_lane text := '';
  v_found trunq_data._lanespecimen_turn[];
  v_turns trunq_data._lanespecimen_turn[] := '{}';
begin
  loop
    -- As many lanes are passed over as there are blocked turns, no more: then these are read themselves.
    if not exists (
        select from trunq_data._lanespecimen_turn t
        where t.subscription_id = p_subscription_id and t.state in ('b', 'p') offset v_lanes limit 1) then
      return case when v_lanes = 0 then v_turns end;
    end if;
    -- From lane to lane, downwards: the first turn below a lane is the newest of the next one.
    with recursive lane as (
      (select t turn, 1 at from trunq_data._lanespecimen_turn t
       where t.subscription_id = p_subscription_id and (t.priority, t.lane) < (v_priority, v_lane)
       order by t.priority desc, t.lane desc, t.seq desc limit 1)
      union all
      select m.turn, l.at + 1 from lane l cross join lateral (
        select t turn from trunq_data._lanespecimen_turn t
        where t.subscription_id = p_subscription_id and (t.priority, t.lane) < ((l.turn).priority, (l.turn).lane)
        order by t.priority desc, t.lane desc, t.seq desc limit 1) m
      where l.at < c_step)
    select array_agg(l.turn order by l.at) filter (where (l.turn).state in ('b', 'p')), count(*), (array_agg((l.turn).priority order by l.at desc))[1],
      (array_agg((l.turn).lane order by l.at desc))[1]
    into v_found, v_step, v_priority, v_lane from lane l;
    v_turns := v_turns || v_found;
    exit when v_step < c_step;
    v_lanes := v_lanes + v_step;
  end loop;
  return v_turns;
end $$;
comment on function trunq_queue._lanespecimen_newest_turns is
  'The newest turns of the lanes that are blocked or parked; null when there are more lanes than blocked turns.';

create or replace function trunq_queue._lanespecimen_needing(p_segment integer) returns integer[]
language sql stable
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select coalesce(array_agg(s.subscription_id order by s.subscription_id), '{}') from trunq.subscription s
  cross join lateral trunq._read_filter(s.filter) f
  where s.queue_id = 0 /*queue_id*/ and s.mode = 'shared' and exists (
    select from trunq_queue._lanespecimen_waiting_lanes(s.subscription_id) t
    where exists (
        select from trunq_log._specimen g
        where g.segment = p_segment and g.priority = t.priority and coalesce(g.key, '') /*lane*/ collate "C" = t.lane
          and (g.txid, g.id) > (greatest(t.last_txid, pg_snapshot_xmax(t.lo)), case when t.last_txid < pg_snapshot_xmax(t.lo) then 0 else t.last_id end)
          and (g.subscription_id = s.subscription_id or g.subscription_id is null
            and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g)))))
      or exists (
        select from pg_snapshot_xip(t.lo) late(txid), lateral (
          select from trunq_log._specimen g
          where g.segment = p_segment and g.priority = t.priority and coalesce(g.key, '') /*lane*/ collate "C" = t.lane
            and g.txid = late.txid and (g.txid, g.id) > (t.last_txid, t.last_id)
            and (g.subscription_id = s.subscription_id or g.subscription_id is null
            and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g)))) limit 1) g
        where t.last_txid < pg_snapshot_xmax(t.lo))
      or exists (
        select from unnest(t.again_txids, t.again_ids) a(txid, id), lateral (
          select from trunq_log._specimen g where g.segment = p_segment and trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, s.subscription_id) limit 1) g)
      or exists (
        select from pg_snapshot_xip(t.hi) late(txid), lateral (
          select from trunq_log._specimen g
          where g.segment = p_segment and g.priority = t.priority and coalesce(g.key, '') /*lane*/ collate "C" = t.lane and g.txid = late.txid
            and (g.subscription_id = s.subscription_id or g.subscription_id is null
            and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g)))) limit 1) g))
$$;
comment on function trunq_queue._lanespecimen_needing is
  'The subscriptions with a lane that has not handed out every message of this segment of the log.';

create or replace function trunq_queue._lanespecimen_behind(p_turn trunq_data._lanespecimen_turn, p_limit integer)
returns table (txid xid8, id bigint, created_at timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = matched as $$
#variable_conflict use_column
declare
  f record;
  v_sub trunq.subscription := (select s from trunq.subscription s where s.subscription_id = p_turn.subscription_id);
begin
  f := trunq._read_filter(v_sub.filter);
  return query select m.txid, m.id, m.created_at from (
    (select g.txid, g.id, g.created_at from unnest(p_turn.again_txids, p_turn.again_ids) a(txid, id) cross join lateral (
       select g.* from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, p_turn.subscription_id) offset 0) g)
    union all
    (select g.txid, g.id, g.created_at from pg_snapshot_xip(p_turn.lo) late(txid) cross join lateral (
       select g.* from trunq_log._specimen g
       where g.priority = p_turn.priority and coalesce(g.key, '') /*lane*/ collate "C" = p_turn.lane and g.txid = late.txid and (g.txid, g.id) > (p_turn.last_txid, p_turn.last_id)
         and (g.subscription_id = p_turn.subscription_id and (not v_sub.in_order or g.expiries is null) or g.subscription_id is null
           and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g)))) order by g.id limit p_limit) g
     where p_turn.last_txid < pg_snapshot_xmax(p_turn.lo) and pg_visible_in_snapshot(late.txid, p_turn.hi))
    union all
    (select g.txid, g.id, g.created_at from trunq_log._specimen g
     where g.priority = p_turn.priority and coalesce(g.key, '') /*lane*/ collate "C" = p_turn.lane
       and (g.txid, g.id) > (greatest(p_turn.last_txid, pg_snapshot_xmax(p_turn.lo)), case when p_turn.last_txid < pg_snapshot_xmax(p_turn.lo) then 0 else p_turn.last_id end)
       and (g.txid >= pg_snapshot_xmax(p_turn.hi) or pg_visible_in_snapshot(g.txid, p_turn.hi))
       and (g.subscription_id = p_turn.subscription_id and (not v_sub.in_order or g.expiries is null) or g.subscription_id is null
           and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))))
     order by g.txid, g.id limit p_limit)
    union all
    (select g.txid, g.id, g.created_at from pg_snapshot_xip(p_turn.hi) late(txid) cross join lateral (
       select g.* from trunq_log._specimen g
       where g.priority = p_turn.priority and coalesce(g.key, '') /*lane*/ collate "C" = p_turn.lane and g.txid = late.txid
         and (g.subscription_id = p_turn.subscription_id and (not v_sub.in_order or g.expiries is null) or g.subscription_id is null
           and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g)))) order by g.id limit p_limit) g)) m
  limit p_limit;
end $$;
comment on function trunq_queue._lanespecimen_behind is 'What lies behind the position of a lane.';

create or replace function trunq_queue._lanespecimen_new(p_subscription_id integer, p_limit integer)
returns table (txid xid8, id bigint, created_at timestamptz, priority smallint, lane text)
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = matched as $$
#variable_conflict use_column
declare
  c record;
  f record := trunq._read_filter(trunq._filter_of(p_subscription_id));
begin
  select p.lo, p.hi, p.last_txid, p.last_id into c from trunq_queue._specimen_position(p_subscription_id) p;
  return query
    select g.txid, g.id, g.created_at, g.priority::smallint, coalesce(g.key, '') /*lane*/ from (
      (select g.* from pg_snapshot_xip(c.lo) late(txid) cross join lateral (
         select g.* from trunq_log._specimen g where g.txid = late.txid and (g.txid, g.id) > (c.last_txid, c.last_id) order by g.id limit p_limit) g
       where c.last_txid < pg_snapshot_xmax(c.lo) and pg_visible_in_snapshot(late.txid, c.hi))
      union all
      (select g.* from trunq_log._specimen g
       where (g.txid, g.id) > (greatest(c.last_txid, pg_snapshot_xmax(c.lo)), case when c.last_txid < pg_snapshot_xmax(c.lo) then 0 else c.last_id end)
         and (g.txid >= pg_snapshot_xmax(c.hi) or pg_visible_in_snapshot(g.txid, c.hi))
       order by g.txid, g.id)
      union all
      (select g.* from pg_snapshot_xip(c.hi) late(txid) cross join lateral (
         select g.* from trunq_log._specimen g where g.txid = late.txid order by g.id limit p_limit) g)) g
    where (g.subscription_id = p_subscription_id or g.subscription_id is null
      and trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))))
      and not trunq_queue._lanespecimen_is_read(p_subscription_id, g.txid, g.id)
    limit p_limit;
end $$;
comment on function trunq_queue._lanespecimen_new is
  'What discovery has not seen and no lane has handed out; lanes that hold something are among them.';

create or replace function trunq_queue._lanespecimen_unread(p_subscription_id integer, p_limit integer)
returns table (txid xid8, id bigint, created_at timestamptz, is_own boolean)
language sql stable
set search_path = pg_catalog, pg_temp set trunq.plan = matched as $$
  with held as materialized (
    select b.txid, b.id, b.created_at from trunq_queue._lanespecimen_waiting_lanes(p_subscription_id) t
    cross join lateral trunq_queue._lanespecimen_behind(t, p_limit) b limit p_limit)
  select u.txid, u.id, u.created_at, true
  from (
    select h.* from held h
    union all
    select n.txid, n.id, n.created_at from trunq_queue._lanespecimen_new(p_subscription_id, p_limit) n
    where (n.txid, n.id) not in (select h.txid, h.id from held h)) u
  limit p_limit
$$;
comment on function trunq_queue._lanespecimen_unread is
  'What a shared subscription has not handed out: what its lanes hold, and what it has not found yet.';

create or replace function trunq_queue._lanespecimen_list_lanes(p_subscription_id integer, p_limit integer)
returns table (lane text, priority smallint, depth bigint, running bigint, oldest timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp set trunq.plan = matched as $$
  with held as materialized (
    select k.priority, k.lane, count(b.id) depth, min(b.created_at) oldest
    from (select t from trunq_queue._lanespecimen_waiting_lanes(p_subscription_id) t order by t.seq limit p_limit) t(turn)
    cross join lateral (select (t.turn).priority, (t.turn).lane) k(priority, lane)
    left join lateral trunq_queue._lanespecimen_behind(t.turn, 1001) b on true
    group by 1, 2),
  new as materialized (
    select n.priority, n.lane, count(*) depth, min(n.created_at) oldest from trunq_queue._lanespecimen_new(p_subscription_id, 5000) n group by n.priority, n.lane),
  running as materialized (
    select g.priority::smallint priority, coalesce(g.key, '') /*lane*/ collate "C" lane, count(*) n
    from trunq._open_ids(trunq._find_queue(0 /*queue_id*/), p_subscription_id,
      array(select h.lease_id from trunq._held_leases(trunq._find_queue(0 /*queue_id*/), p_subscription_id) h), 0, 9223372036854775807, 10000) o
    join lateral (select g.* from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, o.txid, o.id, p_subscription_id) offset 0) g on true
    group by 1, 2),
  known as (
    select h.priority, h.lane from held h
    union select n.priority, n.lane collate "C" from new n
    union select r.priority, r.lane from running r
    union select z.priority, z.lane from trunq.lane z where z.subscription_id = p_subscription_id)
  select k.lane, k.priority, coalesce(h.depth, n.depth, 0), coalesce(r.n, 0), coalesce(h.oldest, n.oldest)
  from known k
  left join held h on h.priority = k.priority and h.lane = k.lane
  left join new n on n.priority = k.priority and n.lane = k.lane
  left join running r on r.priority = k.priority and r.lane = k.lane
  order by 3 desc, k.priority, k.lane limit p_limit
$$;
comment on function trunq_queue._lanespecimen_list_lanes is 'trunq.list_lanes, but for settings.';

create or replace function trunq_queue._lanespecimen_is_read(p_subscription_id integer, p_txid xid8, p_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c record;
  v_row record;
  v_turn record;
begin
  select l.lo, l.hi, l.last_txid, l.last_id, l.epoch into c
  from trunq_data._lanespecimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  if not found then
    return exists (
      select from trunq.subscription s where s.subscription_id = p_subscription_id and pg_visible_in_snapshot(p_txid, s.start));
  end if;
  select g.priority, coalesce(g.key, '') /*lane*/ collate "C" lane, g.expiries is not null and exists (
      select from trunq.subscription s where s.subscription_id = g.subscription_id and s.subscription_id = p_subscription_id and s.in_order) came_back
  into v_row from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, p_txid, p_id, p_subscription_id);
  select t.* into v_turn from trunq_data._lanespecimen_turn t
  where t.subscription_id = p_subscription_id and t.priority = v_row.priority and t.lane = v_row.lane order by t.seq desc limit 1;
  if v_row.came_back then
    -- It is handed out by itself, whatever the position of its lane.
    return trunq._is_read_at(p_txid, p_id, c.lo, c.hi, c.last_txid, c.last_id) and (v_turn.again_txids[array_position(v_turn.again_ids, p_id)] = p_txid) is not true;
  end if;
  if v_turn.seq is null or v_turn.state = 'i' then
    -- What was found was handed out; a lane may have been ahead of discovery, to the end of its window.
    return trunq._is_read_at(p_txid, p_id, c.lo, c.hi, c.last_txid, c.last_id)
      or coalesce(v_turn.epoch = c.epoch and pg_visible_in_snapshot(p_txid, c.hi), false);
  end if;
  return trunq._is_read_at(p_txid, p_id, v_turn.lo, v_turn.hi, v_turn.last_txid, v_turn.last_id);
end $$;
comment on function trunq_queue._lanespecimen_is_read is 'Whether a row of the log was handed out.';

create or replace function trunq_queue._lanespecimen_holders(p_subscription_id integer, p_txids xid8[], p_ids bigint[])
returns table (txid xid8, id bigint, lease_id bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(0 /*queue_id*/);
  v_row record;
  v_turn record;
  v_low bigint;
  v_high bigint;
  v_lease_id bigint;
  v_found_by bigint;
  v_in_order boolean := (select s.in_order from trunq.subscription s where s.subscription_id = p_subscription_id);
begin
  v_queue.lanes := null;  -- by positions alone
  for v_row in
    select u.txid, u.id, g.priority, g.lane, g.came_back from unnest(p_txids, p_ids) u(txid, id) cross join lateral (
      select g.priority, coalesce(g.key, '') /*lane*/ collate "C" lane, v_in_order and g.subscription_id is not null and g.expiries is not null came_back from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, p_subscription_id) offset 0) g
  loop
    txid := v_row.txid;
    id := v_row.id;
    -- The first turn of its lane whose position lies behind it: positions of a lane grow. One that discovery made has no lease and
    -- stands before what it found.
    v_lease_id := null;
    v_found_by := case when v_row.came_back then (select h.lease_id from trunq._first_leases(v_queue, p_subscription_id, array[v_row.txid], array[v_row.id]) h) end;
    select min(n.seq), max(n.seq) into v_low, v_high from trunq_data._lanespecimen_turn n
    where n.subscription_id = p_subscription_id and n.priority = v_row.priority and n.lane = v_row.lane;
    while v_low <= v_high loop
      select n.seq, n.lease_id, n.lo, n.hi, n.last_txid, n.last_id into v_turn from trunq_data._lanespecimen_turn n
      where n.subscription_id = p_subscription_id and n.priority = v_row.priority and n.lane = v_row.lane and n.seq >= (v_low + v_high) / 2
      order by n.seq limit 1;
      exit when v_turn.seq is null;
      if (case when v_row.came_back then coalesce(v_turn.lease_id >= v_found_by, false)
          else trunq._is_read_at(txid, id, v_turn.lo, v_turn.hi, v_turn.last_txid, v_turn.last_id) end) then
        v_high := (v_low + v_high) / 2 - 1;
        v_lease_id := v_turn.lease_id;
      else
        v_low := v_turn.seq + 1;
      end if;
    end loop;
    if v_row.came_back then
      -- One that came back: not before the lease that found it. Until then, its lane handed out nothing else.
      select t.lease_id into v_lease_id from (
        select n.lease_id from trunq_data._lanespecimen_turn n
        where n.subscription_id = p_subscription_id and n.priority = v_row.priority and n.lane = v_row.lane and n.seq >= v_low
        order by n.seq limit 1000) t
      cross join lateral (
        select l.* from trunq_data._lanespecimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = t.lease_id offset 0) l
      where l.txids[array_position(l.ids, v_row.id)] = v_row.txid limit 1;
    end if;
    -- By the row, not the id alone: another lease may have held the same message before. Else it went out as it was found.
    select l.lease_id into lease_id from trunq_data._lanespecimen_lease l
    where l.subscription_id = p_subscription_id and l.lease_id = v_lease_id and l.txids[array_position(l.ids, v_row.id)] = v_row.txid;
    if not found then
      select l.lease_id into lease_id from trunq._first_leases(v_queue, p_subscription_id, array[v_row.txid], array[v_row.id]) h
      join trunq_data._lanespecimen_lease l on l.subscription_id = p_subscription_id and l.lease_id = h.lease_id
      where l.txids[array_position(l.ids, v_row.id)] = v_row.txid;
    end if;
    if found then
      return next;
    end if;
  end loop;
end $$;
comment on function trunq_queue._lanespecimen_holders is
  'For rows of the log the lease that held each, if any did: by the turns of their lanes, or the lease that found them.';

create or replace function trunq_queue._lanespecimen_carry_cursor(
  p_subscription_id integer, p_segment smallint, p_lo pg_snapshot, p_hi pg_snapshot, p_last_txid xid8, p_last_id bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, epoch, turn_no, looked,
    jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, leased_at, segment, tokens, tokens_at)
  select nextval('trunq_data._specimen_lease_id'), p_subscription_id, trunq._token(), trunq._position_worker(p_subscription_id), p_lo, p_hi, p_last_txid, p_last_id,
    coalesce(c.epoch, 0) + (p_hi::text is distinct from c.hi::text)::integer, coalesce(c.turn_no, 0), coalesce(c.looked, 0),
    c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo, c.timer_at, coalesce(c.classes, '{}'), coalesce(c.heads, '{}'), trunq.clock(), p_segment, c.tokens, c.tokens_at
  from (select 1) one left join (
    select l.* from trunq_data._lanespecimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1) c on true;
end $$;
comment on function trunq_queue._lanespecimen_carry_cursor is
  'Writes a position again, with all that a queue with lanes has beside it.';

create or replace function trunq_queue._lanespecimen_carry_turns(p_subscription_id integer, p_segment integer, p_into smallint, p_limit integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
declare
  v_count integer;
  v_last bigint;
  c record;
begin
  select l.*, l.last_txid < pg_snapshot_xmax(l.hi) is_looking, p.is_watched is true is_watched into c
  from trunq_data._lanespecimen_lease l left join trunq.lane_policy p on p.subscription_id = l.subscription_id
  where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  -- From lane to lane, as in _newest_turns: the newest turn that each has here, where none came after it.
  with recursive lane as (
    (select t turn from trunq_data._lanespecimen_turn t
     where t.segment = p_segment and t.subscription_id = p_subscription_id
     order by t.priority desc, t.lane desc, t.seq desc limit 1)
    union all
    select m.turn from lane l cross join lateral (
      select t turn from trunq_data._lanespecimen_turn t
      where t.segment = p_segment and t.subscription_id = p_subscription_id and (t.priority, t.lane) < ((l.turn).priority, (l.turn).lane)
      order by t.priority desc, t.lane desc, t.seq desc limit 1) m),
  old as materialized (
    select l.turn from lane l
    where (l.turn).seq = (
        select n.seq from trunq_data._lanespecimen_turn n
        where n.subscription_id = p_subscription_id and n.priority = (l.turn).priority and n.lane = (l.turn).lane order by n.seq desc limit 1)
      and case (l.turn).state
        when 'r' then (l.turn).seq > coalesce(c.heads[array_position(c.classes, (l.turn).class)], 0)
        -- Idle ones count while they hold messages or tokens, are ahead of discovery, or stand before an older turn of their lane.
        when 'i' then (l.turn).open_ids <> '{}' or (l.turn).tokens is not null or c.is_looking and (l.turn).epoch >= c.epoch
          -- Segments are not always emptied in order: an older turn that outlived this one would be taken for the lane.
          or exists (
            select from trunq_data._lanespecimen_turn o
            where o.subscription_id = p_subscription_id and o.priority = (l.turn).priority and o.lane = (l.turn).lane and o.seq < (l.turn).seq
              and o.segment <> p_segment)
        else true end
    limit p_limit),
  made as (
    insert into trunq_data._lanespecimen_turn (seq, subscription_id, segment, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
      lease_id, due_at, open_leases, open_ids, tokens, tokens_at, again_txids, again_ids)
    select nextval('trunq_data._lanespecimen_turn_id'), t.subscription_id, p_into, t.priority, t.lane, t.class, t.state, t.lo, t.hi, t.epoch, t.last_txid,
      t.last_id, t.left_over, t.lease_id, t.due_at, t.open_leases, t.open_ids, t.tokens, t.tokens_at, t.again_txids, t.again_ids
    from (select (o.turn).* from old o order by (o.turn).seq) t
    returning seq)
  select count(*), max(m.seq) into v_count, v_last from made m;
  if v_count > 0 then
    insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, epoch, turn_no, looked,
      jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, leased_at, segment, tokens, tokens_at)
    values (nextval('trunq_data._specimen_lease_id'), p_subscription_id, trunq._token(), trunq._position_worker(p_subscription_id), c.lo, c.hi, c.last_txid, c.last_id, c.epoch, c.turn_no,
      c.looked, c.jump_priority, c.jump_lane, v_last, c.wake_lo, c.timer_at, c.classes, c.heads, trunq.clock(), p_into,
      c.tokens, c.tokens_at);
  end if;
  return v_count;
end $$;
comment on function trunq_queue._lanespecimen_carry_turns is
  'Copies the turns in which lanes stand out of a segment, some of them; the caller holds the lock of the subscription.
Returns: how many.';

create or replace function trunq_queue._lanespecimen_weigh(
  p_turns trunq_data._lanespecimen_turn[], p_sub trunq.subscription, p_policy trunq.lane_policy,
  p_now timestamptz, p_most integer, p_lanes integer,
  out turns trunq_data._lanespecimen_turn[], out shares integer[], out limits integer[]
)
-- Planned under the settings of the lease that calls it.
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  with turn as materialized (
    select t.at, t.turn, coalesce(z.weight, 1) weight, z.paused_until,
      case when p_sub.in_order then 1 else coalesce(z.max_running, p_policy.max_running) end max_running,
      coalesce(z.rate, p_policy.rate) rate, coalesce(z.burst, p_policy.burst, 1) burst,
      (t.turn).seq = (
        select n.seq from trunq_data._lanespecimen_turn n
        where n.subscription_id = p_sub.subscription_id and n.priority = (t.turn).priority and n.lane = (t.turn).lane
          order by n.seq desc limit 1) is_newest
    from (select t turn, row_number() over () at from unnest(p_turns) t) t
    left join lateral (
      select z.* from trunq.lane z
      where z.subscription_id = p_sub.subscription_id and z.priority = (t.turn).priority
        and z.lane = (t.turn).lane offset 0) z on true),
  -- Running is what has no receipt, as long as its lease is known: rotation takes the lease first. Each lease is looked
  -- at once.
  running as materialized (
    select t.at, u.lease_id, u.id from turn t
    cross join lateral unnest((t.turn).open_leases, (t.turn).open_ids) u(lease_id, id)
    where not p_sub.in_order),
  -- Leases that are answered as a whole are over: most are.
  answered as materialized (
    select l.lease_id, array(
      select unnest(r.ids) from trunq_data._specimen_receipt r
      where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = p_sub.subscription_id) ids
    from (select distinct r.lease_id from running r) o cross join lateral (
      select l.lease_id, l.segment, l.size from trunq_data._lanespecimen_lease l
      where l.subscription_id = p_sub.subscription_id and l.lease_id = o.lease_id offset 0) l
    where l.size > (
      select coalesce(sum(r.size), 0) from trunq_data._specimen_receipt r
      where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = p_sub.subscription_id)),
  still as materialized (
    select r.at, array_agg(r.lease_id) leases, array_agg(r.id) ids from running r
      join answered a on a.lease_id = r.lease_id
    where r.id <> all (a.ids) group by r.at),
  kept as materialized (
    select t.*, case when p_sub.in_order then (t.turn).open_leases else o.leases end leases,
      case when p_sub.in_order then (t.turn).open_ids else o.ids end ids, case when t.rate is not null then
        least(t.burst, coalesce((t.turn).tokens, t.burst) + t.rate * greatest(0,
          extract(epoch from p_now - coalesce((t.turn).tokens_at, p_now)))) end tokens
    from turn t left join still o on o.at = t.at),
  weighed as (
    select ceil(p_most::numeric / greatest(1, sum(k.weight))) quantum from kept k
    where k.is_newest and k.at <= p_lanes
      and (k.turn).class = (select (f.turn).class from kept f where f.is_newest order by f.at limit 1))
  select array_agg(((k.turn).seq, (k.turn).subscription_id, (k.turn).segment, (k.turn).priority, (k.turn).class,
      (k.turn).left_over, (k.turn).state, (k.turn).lane, (k.turn).epoch, (k.turn).last_txid, (k.turn).last_id, (k.turn).lease_id,
      case when k.paused_until > p_now then k.paused_until
        -- At least so long, or each token has a turn.
        when k.tokens < 1 then p_now + make_interval(secs => greatest((1 - k.tokens) / k.rate, 0.05)) end,
      k.tokens, (k.turn).tokens_at, (k.turn).lo, (k.turn).hi, k.leases, k.ids, (k.turn).again_txids,
        (k.turn).again_ids)::trunq_data._lanespecimen_turn order by k.at),
    array_agg(case when not k.is_newest then -1 when k.paused_until > p_now then 0 else
      greatest(0, least(w.quantum * k.weight, coalesce(k.max_running - coalesce(cardinality(k.leases), 0), p_most),
        coalesce(floor(k.tokens)::integer, p_most), p_most)) end::integer order by k.at),
    array_agg(k.max_running order by k.at)
  into turns, shares, limits from kept k cross join weighed w;
end $$;
comment on function trunq_queue._lanespecimen_weigh is
  'What each of these turns may have of a lease by the settings of its lane; the lease, of p_most messages, is divided among p_lanes of them.
Returns: the turns as the next ones begin, with tokens, what runs, and until when they wait; the share of each, -1 for one that is not the newest of its lane any more, 0 for one that has to wait; and the limits of what may run.';
