-- What a lease of a queue with lanes does before it hands out: it finds what is new, and what became free. The essay is in
-- functions/lanes/lane.sql. c is the position of the subscription, a lease that is not written yet.

create or replace function trunq_queue._lanespecimen_discover(
  inout c trunq_data._lanespecimen_lease, p_sub trunq.subscription, p_policy trunq.lane_policy, p_is_watched boolean,
  out more boolean, out classes integer[], out is_changed boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  c_look constant integer := 5000;     -- rows of the log that one step reads
  v_late xid8[]; v_from_txid xid8; v_from_id bigint; v_is_first boolean; v_count integer; v_jumped record;
  v_all boolean := p_sub.filter is null; v_filter record;
  v_begin_txid xid8 := '0'; v_begin_id bigint := 0;
begin
  more := true; is_changed := false;
  if c.epoch = 0 then
    -- Of a queue that got lanes later: plain leases have handed out the first part of this window.
    select s.txid, s.id into v_begin_txid, v_begin_id from trunq._seam(p_sub.subscription_id) s;
  end if;
  v_filter := trunq._read_filter(p_sub.filter);
  if c.jump_lane is null then
    v_is_first := c.last_txid = '0';
    if c.last_txid < pg_snapshot_xmax(c.lo) then
      v_late := array(select x from pg_snapshot_xip(c.lo) x where x >= c.last_txid and pg_visible_in_snapshot(x, c.hi));
      v_from_txid := pg_snapshot_xmax(c.lo); v_from_id := 0;
    else
      v_late := '{}'; v_from_txid := c.last_txid; v_from_id := c.last_id;
    end if;
  end if;
  if c.jump_lane is null and v_late = '{}' and not exists (
      select from trunq_log._specimen g
      where (g.txid, g.id) > (v_from_txid, v_from_id) and g.txid < pg_snapshot_xmax(c.hi) limit 1) then
    -- Most often there is nothing new: this asks a tenth of what the look below does.
    more := false;
    c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
  elsif c.jump_lane is null then
    with walked as materialized (
      (select m.* from unnest(v_late) late(txid) cross join lateral (
         select g.txid, g.id, g.priority::smallint priority, coalesce(g.key, '') /*lane*/ collate "C" lane, g.subscription_id, v_all or trunq._passes(v_filter.kinds, v_filter.not_kinds, v_filter.keys, v_filter.not_keys, v_filter.headers, v_filter.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))) passes,
           p_sub.in_order and g.subscription_id is not null and g.expiries is not null came_back from trunq_log._specimen g
         where g.txid = late.txid and g.id > case when late.txid = c.last_txid then c.last_id else 0 end
         order by g.id limit c_look) m
       limit c_look)
      union all
      (select g.txid, g.id, g.priority::smallint, coalesce(g.key, '') /*lane*/ collate "C", g.subscription_id, v_all or trunq._passes(v_filter.kinds, v_filter.not_kinds, v_filter.keys, v_filter.not_keys, v_filter.headers, v_filter.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))),
         p_sub.in_order and g.subscription_id is not null and g.expiries is not null from trunq_log._specimen g
       where (g.txid, g.id) > (v_from_txid, v_from_id) and g.txid < pg_snapshot_xmax(c.hi)
       order by g.txid, g.id limit c_look)
      limit c_look),
    place as (select array_agg(w.txid) txids, array_agg(w.id) ids, count(*)::integer n from walked w),
    found as (
      select w.priority, w.lane, min(w.at) at, count(*) filter (where not w.came_back)::integer n,
        array_agg(w.txid) filter (where w.came_back) again_txids, array_agg(w.id) filter (where w.came_back) again_ids
      from (select w.*, row_number() over () at from walked w) w
      where pg_visible_in_snapshot(w.txid, c.hi) and (w.subscription_id = p_sub.subscription_id or w.subscription_id is null and w.passes)
      group by w.priority, w.lane),
    made as (
      insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
        lease_id, open_leases, open_ids, tokens, tokens_at, again_txids, again_ids)
      select nextval('trunq_data._lanespecimen_turn_id'), p_sub.subscription_id, f.priority, f.lane, f.class, 'r', f.lo, f.hi, f.epoch, f.last_txid,
        f.last_id, f.left_over, f.lease_id, f.open_leases, f.open_ids, f.tokens, f.tokens_at, f.again_txids, f.again_ids
      from (
        select f.priority, f.lane, coalesce(z.rank, case when p_policy.policy = 'priority' then f.priority else 0 end) class, newest.lease_id,
          case when i.is_idle then c.lo else newest.lo end lo, case when i.is_idle then c.hi else newest.hi end hi,
          case when i.is_idle then c.epoch else newest.epoch end epoch, case when i.is_idle then v_begin_txid else newest.last_txid end last_txid,
          case when i.is_idle then v_begin_id else newest.last_id end last_id,
          case when not i.is_idle then newest.left_over when v_is_first and p.n < c_look and v_all then f.n end left_over,
          -- A message that came back is open no more; the lane is still held, by it.
          case when newest.open_ids && f.again_ids then '{}' else newest.open_leases end open_leases,
          case when newest.open_ids && f.again_ids then '{}' else newest.open_ids end open_ids,
          newest.tokens, newest.tokens_at, f.again_txids || newest.again_txids again_txids, f.again_ids || newest.again_ids again_ids
        from found f cross join place p
        left join lateral (
          select t.* from trunq_data._lanespecimen_turn t
          where t.subscription_id = p_sub.subscription_id and t.priority = f.priority and t.lane = f.lane
          order by t.seq desc limit 1) newest on true
        cross join lateral (select newest.seq is null or newest.state = 'i' and newest.epoch < c.epoch is_idle) i
        left join lateral (
          select z.rank from trunq.lane z
          where p_is_watched and z.subscription_id = p_sub.subscription_id and z.priority = f.priority and z.lane = f.lane offset 0) z on true
        where i.is_idle or f.again_ids is not null
        order by f.at) f
      returning class)
    -- On from the last row, and from before it unless one of ours was there: another may have the same place, and come next.
    select p.n, p.txids[p.n], p.ids[p.n] - case when p.n < c_look or exists (
        select from walked w where w.txid = p.txids[p.n] and w.id = p.ids[p.n] and (w.subscription_id is null or w.subscription_id = p_sub.subscription_id))
      then 0 else 1 end, array(select distinct m.class from made m) into v_count, v_from_txid, v_from_id, classes from place p;
    more := v_count >= c_look;
    is_changed := v_count > 0;
    if more then
      c.last_txid := v_from_txid; c.last_id := v_from_id; c.looked := c.looked + v_count;
      if c.looked >= 2 * c_look and v_all and not p_sub.in_order then
        c.jump_priority := -32769; c.jump_lane := '';
      end if;
    else
      c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
    end if;
  else
    v_jumped := trunq_queue._lanespecimen_discover_jumps(c, p_sub, p_policy, p_is_watched);
    c := v_jumped.c; more := v_jumped.more; classes := v_jumped.classes; is_changed := true;
  end if;
end $$;
comment on function trunq_queue._lanespecimen_discover is
  'One step of discovery: reads what is new once, and lines up the lanes that were idle. more: it has not come to the end of its window; classes: of the turns it made; is_changed: it went on. With the settings of the lease, which calls it.';

create or replace function trunq_queue._lanespecimen_discover_jumps(
  inout c trunq_data._lanespecimen_lease, p_sub trunq.subscription, p_policy trunq.lane_policy, p_is_watched boolean,
  out more boolean, out classes integer[]
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_begin_txid xid8 := '0'; v_begin_id bigint := 0;
begin
  if c.epoch = 0 then
    select s.txid, s.id into v_begin_txid, v_begin_id from trunq._seam(p_sub.subscription_id) s;
  end if;
  with recursive jump as (
    (select g.priority::smallint priority, coalesce(g.key, '') /*lane*/ collate "C" lane, 1 at from trunq_log._specimen g
     where (g.priority, coalesce(g.key, '') /*lane*/ collate "C") > (c.jump_priority, c.jump_lane)
     order by g.priority, coalesce(g.key, '') /*lane*/ collate "C" limit 1)
    union all
    select m.priority, m.lane, j.at + 1 from jump j cross join lateral (
      select g.priority::smallint priority, coalesce(g.key, '') /*lane*/ collate "C" lane from trunq_log._specimen g
      where (g.priority, coalesce(g.key, '') /*lane*/ collate "C") > (j.priority, j.lane)
      order by g.priority, coalesce(g.key, '') /*lane*/ collate "C" limit 1) m
    where j.at < 500),
  made as (
    insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id,
      open_leases, open_ids, tokens, tokens_at)
    select nextval('trunq_data._lanespecimen_turn_id'), p_sub.subscription_id, f.priority, f.lane, f.class, 'r', c.lo, c.hi, c.epoch, v_begin_txid, v_begin_id,
      f.open_leases, f.open_ids, f.tokens, f.tokens_at
    from (
      select j.priority, j.lane, coalesce(z.rank, case when p_policy.policy = 'priority' then j.priority else 0 end) class,
        newest.open_leases, newest.open_ids, newest.tokens, newest.tokens_at
      from jump j
      left join lateral (
        select t.* from trunq_data._lanespecimen_turn t
        where t.subscription_id = p_sub.subscription_id and t.priority = j.priority and t.lane = j.lane
        order by t.seq desc limit 1) newest on true
      left join lateral (
        select z.rank from trunq.lane z
        where p_is_watched and z.subscription_id = p_sub.subscription_id and z.priority = j.priority and z.lane = j.lane offset 0) z on true
      where (newest.seq is null or newest.state = 'i' and newest.epoch < c.epoch)
        and (select g.txid from trunq_log._specimen g
             where g.priority = j.priority and coalesce(g.key, '') /*lane*/ collate "C" = j.lane
             order by g.txid desc, g.id desc limit 1) >= pg_snapshot_xmin(c.lo)
      order by j.at) f
    returning class)
  select max(j.priority) filter (where j.at = 500), max(j.lane) filter (where j.at = 500), array(select distinct m.class from made m)
  into c.jump_priority, c.jump_lane, classes from jump j;
  more := c.jump_lane is not null;
  if not more then
    c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
  end if;
end $$;
comment on function trunq_queue._lanespecimen_discover_jumps is
  'One step of discovery in a very large window: it does not read its rows, but jumps from lane to lane. With the settings of the lease, which calls it.';

create or replace function trunq_queue._lanespecimen_look_again(
  inout c trunq_data._lanespecimen_lease, p_sub trunq.subscription, p_policy trunq.lane_policy, p_current pg_snapshot, p_now timestamptz,
  out classes integer[], out is_changed boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_late xid8[];
begin
  -- Wakes: lanes of which a message was answered, or whose setting changed.
  v_late := array(select x from pg_snapshot_xip(c.wake_lo) x where pg_visible_in_snapshot(x, p_current));
  with woken as materialized (
    select w.priority, w.lane, w.id from trunq_data._lanespecimen_wake w
    where w.subscription_id = p_sub.subscription_id and w.txid = any (v_late)
    union
    select w.priority, w.lane, w.id from trunq_data._lanespecimen_wake w
    where w.subscription_id = p_sub.subscription_id and w.txid >= pg_snapshot_xmax(c.wake_lo) and w.txid < pg_snapshot_xmax(p_current)
      and pg_visible_in_snapshot(w.txid, p_current)),
  everywhere as materialized (
    select array_agg(w.id) ids from woken w where w.lane is null having count(*) > 0),
  asked as (
    select u.priority, u.lane, array_agg(u.id) filter (where u.id is not null) over_ids
    from (
      select w.* from woken w where w.lane is not null
      union all
      select t.priority, t.lane, null from everywhere e cross join lateral (
        select t.priority, t.lane from unnest(c.classes, c.heads) u(class, head) cross join lateral (
          select t.priority, t.lane from trunq_data._lanespecimen_turn t
          where t.subscription_id = p_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head) t
        union
        select t.priority, t.lane from trunq_data._lanespecimen_turn t
        where t.subscription_id = p_sub.subscription_id and (t.state in ('b', 'p') or t.open_ids && e.ids)) t) u
    group by u.priority, u.lane),
  made as (
    insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
      lease_id, open_leases, open_ids, tokens, tokens_at, again_txids, again_ids)
    select nextval('trunq_data._lanespecimen_turn_id'), p_sub.subscription_id, t.priority, t.lane, t.new_class, case t.state when 'i' then 'i' else 'r' end::"char",
      t.lo, t.hi, t.epoch, t.last_txid, t.last_id, t.left_over, t.lease_id,
      -- In order, one is open at most.
      case when t.is_over then '{}' else t.open_leases end, case when t.is_over then '{}' else t.open_ids end,
      t.tokens, t.tokens_at, t.again_txids, t.again_ids
    from (
      select t.*, coalesce(t.open_ids && a.over_ids, false) or coalesce(t.open_ids && (select e.ids from everywhere e), false) is_over, coalesce(z.rank, case when p_policy.policy = 'priority' then t.priority else 0 end) new_class
      from asked a cross join lateral (
        select t.* from trunq_data._lanespecimen_turn t
        where t.subscription_id = p_sub.subscription_id and t.priority = a.priority and t.lane = a.lane
        order by t.seq desc limit 1) t
      left join lateral (
        select z.rank from trunq.lane z
        where z.subscription_id = p_sub.subscription_id and z.priority = a.priority and z.lane = a.lane offset 0) z on true) t
    where t.state in ('b', 'p') or t.state = 'r' and t.class <> t.new_class or t.is_over
    order by t.seq
    returning class, state)
  select exists (select from woken), array_agg(distinct m.class) filter (where m.state = 'r') into is_changed, classes from made m;
  c.wake_lo := p_current;
  -- Timers that ran out since the last look. Their time never goes back.
  p_now := greatest(p_now, c.timer_at);
  with made as (
    insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
      lease_id, open_leases, open_ids, tokens, tokens_at, again_txids, again_ids)
    select nextval('trunq_data._lanespecimen_turn_id'), p_sub.subscription_id, t.priority, t.lane, t.class, 'r', t.lo, t.hi, t.epoch, t.last_txid,
      t.last_id, t.left_over, t.lease_id, t.open_leases, t.open_ids, t.tokens, t.tokens_at, t.again_txids, t.again_ids
    from (
      select t.* from trunq_data._lanespecimen_turn t
      where t.subscription_id = p_sub.subscription_id and t.state = 'p' and t.due_at > c.timer_at and t.due_at <= p_now
        and t.seq = (select n.seq from trunq_data._lanespecimen_turn n
          where n.subscription_id = p_sub.subscription_id and n.priority = t.priority and n.lane = t.lane order by n.seq desc limit 1)
      order by t.due_at) t
    returning 1)
  select is_changed or count(*) > 0 into is_changed from made m;
  c.timer_at := p_now;
end $$;
comment on function trunq_queue._lanespecimen_look_again is
  'Lines up the blocked and parked lanes that were woken, or whose time has come. c.timer_at: that time; classes: of the turns it made; is_changed: there was something. With the settings of the lease, which calls it.';
