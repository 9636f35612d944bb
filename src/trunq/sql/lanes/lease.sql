-- Leasing from a queue with lanes; the essay is in functions/lane.sql. Made for such a queue in the place of sql/queue/lease.sql.
-- All of it goes on under the lock of the subscription, so nobody else inserts turns, and each statement sees those before it.

create or replace function trunq_queue._lanespecimen_lease(
  p_subscription text,
  p_worker text,
  p_max_messages integer default 1,
  p_lease_time interval default null,
  p_max_bytes bigint default 16777216
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
  payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp
-- By index alone; what joins are left match rows of the statement itself, by hash.
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  c_look constant integer := 5000;     -- rows of the log that one step of discovery reads
  c_lanes constant integer := 25;      -- lanes among which a lease is divided
  c_favour constant integer := 8;      -- each so manieth lease goes to the oldest turn
  v_sub record; v_policy record; c record;
  v_now timestamptz := trunq.clock(); v_expires_at timestamptz; v_started timestamptz := clock_timestamp();
  v_current pg_snapshot; v_xmax_before xid8;
  v_is_watched boolean; v_more boolean; v_is_changed boolean := false;
  v_late xid8[]; v_from_txid xid8; v_from_id bigint; v_is_first boolean; v_count integer; v_new integer[];
  v_classes integer[]; v_heads bigint[]; v_turns trunq_data._lanespecimen_turn[]; v_shares integer[]; v_limits integer[];
  v_weight bigint; v_floor xid8; v_segments smallint[];
  v_lease_id bigint; v_token bigint;
begin
  if current_setting('transaction_isolation') <> 'read committed'
      or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
      or p_max_messages is null or p_max_messages not between 1 and 10000 /*limit lease_messages*/ or p_lease_time not between '1 microsecond' and '1000 years' then
    perform trunq._check_lease(p_max_messages, p_lease_time);
  end if;
  select s.subscription_id, s.mode, s.start, s.max_attempts, coalesce(p_lease_time, s.lease_time) lease_time, s.is_limited into v_sub
  from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_sub.mode is distinct from 'shared' then
    perform trunq._subscription('_lanespecimen', p_subscription, 'shared');
    return query select * from trunq_queue._lanespecimen_lease(p_subscription, p_worker, p_max_messages, p_lease_time, p_max_bytes);
    return;
  end if;
  if not pg_try_advisory_xact_lock(1953656418 /*lock subscription*/, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, '_lanespecimen', p_subscription);
  end if;
  v_now := trunq.clock();
  v_expires_at := v_now + v_sub.lease_time;
  -- Of a queue with lanes, a subscription has no limit but its pause.
  if v_sub.is_limited and exists (select from trunq.subscription s where s.subscription_id = v_sub.subscription_id and trunq._is_paused(s, v_now)) then
    return;
  end if;
  -- Under the lock: who reads "not watched" must not meet a turn that somebody replaced since.
  select * into v_policy from trunq.lane_policy p where p.subscription_id = v_sub.subscription_id;
  v_is_watched := v_policy.is_watched is true;
  select l.lo, l.hi, l.last_txid, l.last_id, l.epoch, l.turn_no, l.looked, l.jump_priority, l.jump_lane, l.carried_to,
    coalesce(l.wake_lo, l.hi) wake_lo, coalesce(l.timer_at, '-infinity') timer_at, l.classes, l.heads into c
  from trunq_data._lanespecimen_lease l where l.subscription_id = v_sub.subscription_id
  order by l.lease_id desc limit 1;
  if not found then
    select v_sub.start lo, v_sub.start hi, pg_snapshot_xmax(v_sub.start) last_txid, 0::bigint last_id, 0::bigint epoch, 0::bigint turn_no,
      0 looked, null::integer jump_priority, null::text jump_lane, null::bigint carried_to, v_sub.start wake_lo, '-infinity'::timestamptz timer_at,
      '{}'::integer[] classes, '{}'::bigint[] heads into c;
  end if;
  v_current := trunq.snapshot();
  if pg_snapshot_xmax(c.hi) > pg_snapshot_xmax(v_current) then
    perform trunq._check_position(c.hi, v_current);
  end if;
  v_xmax_before := pg_snapshot_xmax(c.hi);
  v_more := c.last_txid < pg_snapshot_xmax(c.hi);
  if c.carried_to is not null then
    if exists (
        select from unnest(c.classes, c.heads) u(class, head) cross join lateral (
          select from trunq_data._lanespecimen_turn t
          where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head and t.seq <= c.carried_to limit 1) t) then
      v_is_watched := true;
    else
      c.carried_to := null;
    end if;
  end if;
  -- 0. Nobody waits, and everything new fits into this lease: it goes out as it came, and no lane is touched.
  if not v_more and not v_is_watched and not exists (
      select from unnest(c.classes, c.heads) u(class, head) cross join lateral (
        select from trunq_data._lanespecimen_turn t
        where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head limit 1) t) then
    v_late := array(select x from pg_snapshot_xip(c.hi) x where pg_visible_in_snapshot(x, v_current));
    v_lease_id := nextval('trunq_data._specimen_lease_id');
    v_token := trunq._token();
    return query
      with batch as materialized (
        (select m.* from unnest(v_late) late(txid) cross join lateral (
           select g.* from trunq_log._specimen g where g.txid = late.txid order by g.id limit p_max_messages + 1) m
         limit p_max_messages + 1)
        union all
        (select g.* from trunq_log._specimen g
         where (g.txid, g.id) > (pg_snapshot_xmax(c.hi), 0) and g.txid < pg_snapshot_xmax(v_current) and pg_visible_in_snapshot(g.txid, v_current)
         order by g.txid, g.id limit p_max_messages + 1)
        limit p_max_messages + 1),
      total as (
        select count(*) n, sum(trunq._bytes(b.kind, b.key, b.payload, b.body, b.headers)) bytes, coalesce(max(b.expiries), 0) expiries from batch b),
      own as materialized (
        select b.* from batch b cross join total t
        where t.n <= p_max_messages and t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/) and t.expiries <= 1
          and (b.subscription_id is null or b.subscription_id = v_sub.subscription_id)),
      made as (
        insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, epoch, turn_no, wake_lo, timer_at,
          classes, heads, min_txid, max_txid, size, ids, txids, leased_at, expires_at)
        select v_lease_id, v_sub.subscription_id, v_token, p_worker, c.hi, v_current, pg_snapshot_xmax(v_current), 0, c.epoch + 1, c.turn_no,
          c.wake_lo, c.timer_at, c.classes, c.heads, a.min_txid, a.max_txid, a.n, a.ids, a.txids, v_now, v_expires_at
        from (select count(*)::integer n, array_agg(o.id) ids, array_agg(o.txid) txids,
            min(o.txid)::text::bigint min_txid, max(o.txid)::text::bigint max_txid from own o) a
        where a.n > 0)
      select v_lease_id, v_token, o.id, o.attempt, v_sub.max_attempts, o.kind::text, o.key::text, o.payload::jsonb, o.body::bytea, o.headers::jsonb,
        o.priority::smallint, o.created_at, v_expires_at, null::jsonb
      from own o order by case when v_policy.policy = 'priority' then o.priority else 0 end, o.txid, o.id;
    get diagnostics v_count = row_count;
    if v_count > 0 then
      return;
    end if;
  end if;
  for v_step in 1..20 loop
    -- 1. Discovery: reads what is new once, and lines up the lanes that were idle.
    if not v_more and v_step = 1 then
      c.lo := c.hi; c.hi := v_current; c.last_txid := '0'; c.last_id := 0; c.epoch := c.epoch + 1; c.looked := 0;
      c.jump_priority := null; c.jump_lane := null;
      v_more := true;
    end if;
    v_new := null;
    if v_more and c.jump_lane is null then
      v_is_first := c.last_txid = '0';
      if c.last_txid < pg_snapshot_xmax(c.lo) then
        v_late := array(select x from pg_snapshot_xip(c.lo) x where x >= c.last_txid and pg_visible_in_snapshot(x, c.hi));
        v_from_txid := pg_snapshot_xmax(c.lo); v_from_id := 0;
      else
        v_late := '{}'; v_from_txid := c.last_txid; v_from_id := c.last_id;
      end if;
    end if;
    if v_more and c.jump_lane is null and v_late = '{}' and not exists (
        select from trunq_log._specimen g
        where (g.txid, g.id) > (v_from_txid, v_from_id) and g.txid < pg_snapshot_xmax(c.hi) limit 1) then
      -- Most often there is nothing new: this asks a tenth of what the look below does.
      v_more := false;
      c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
    elsif v_more and c.jump_lane is null then
      with walked as materialized (
        (select m.* from unnest(v_late) late(txid) cross join lateral (
           select g.txid, g.id, g.priority::smallint priority, coalesce(g.key, '') /*lane*/ collate "C" lane, g.subscription_id from trunq_log._specimen g
           where g.txid = late.txid and g.id > case when late.txid = c.last_txid then c.last_id else 0 end
           order by g.id limit c_look) m
         limit c_look)
        union all
        (select g.txid, g.id, g.priority::smallint, coalesce(g.key, '') /*lane*/ collate "C", g.subscription_id from trunq_log._specimen g
         where (g.txid, g.id) > (v_from_txid, v_from_id) and g.txid < pg_snapshot_xmax(c.hi)
         order by g.txid, g.id limit c_look)
        limit c_look),
      place as (select array_agg(w.txid) txids, array_agg(w.id) ids, count(*)::integer n from walked w),
      found as (
        select w.priority, w.lane, min(w.at) at, count(*)::integer n
        from (select w.*, row_number() over () at from walked w) w
        where pg_visible_in_snapshot(w.txid, c.hi) and (w.subscription_id is null or w.subscription_id = v_sub.subscription_id)
        group by w.priority, w.lane),
      made as (
        insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
          open_leases, open_ids, tokens, tokens_at)
        select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, f.priority, f.lane, f.class, 'r', c.lo, c.hi, c.epoch, '0', 0, f.left_over,
          f.open_leases, f.open_ids, f.tokens, f.tokens_at
        from (
          select f.priority, f.lane, f.at, case when v_is_first and p.n < c_look then f.n end left_over,
            coalesce(z.rank, case when v_policy.policy = 'priority' then f.priority else 0 end) class,
            newest.open_leases, newest.open_ids, newest.tokens, newest.tokens_at
          from found f cross join place p
          left join lateral (
            select t.* from trunq_data._lanespecimen_turn t
            where t.subscription_id = v_sub.subscription_id and t.priority = f.priority and t.lane = f.lane
            order by t.seq desc limit 1) newest on true
          left join lateral (
            select z.rank from trunq.lane z
            where v_is_watched and z.subscription_id = v_sub.subscription_id and z.priority = f.priority and z.lane = f.lane offset 0) z on true
          where newest.seq is null or newest.state = 'i' and newest.epoch < c.epoch
          order by f.at) f
        returning class)
      select p.n, p.txids[p.n], p.ids[p.n], array(select distinct m.class from made m) into v_count, v_from_txid, v_from_id, v_new from place p;
      v_more := v_count >= c_look;
      v_is_changed := v_is_changed or v_count > 0;
      if v_more then
        c.last_txid := v_from_txid; c.last_id := v_from_id; c.looked := c.looked + v_count;
        if c.looked >= 2 * c_look then
          c.jump_priority := -32769; c.jump_lane := '';
        end if;
      else
        c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
      end if;
    elsif v_more then
      -- A very large window: it does not read its rows, but jumps from lane to lane.
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
        select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, f.priority, f.lane, f.class, 'r', c.lo, c.hi, c.epoch, '0', 0,
          f.open_leases, f.open_ids, f.tokens, f.tokens_at
        from (
          select j.priority, j.lane, coalesce(z.rank, case when v_policy.policy = 'priority' then j.priority else 0 end) class,
            newest.open_leases, newest.open_ids, newest.tokens, newest.tokens_at
          from jump j
          left join lateral (
            select t.* from trunq_data._lanespecimen_turn t
            where t.subscription_id = v_sub.subscription_id and t.priority = j.priority and t.lane = j.lane
            order by t.seq desc limit 1) newest on true
          left join lateral (
            select z.rank from trunq.lane z
            where v_is_watched and z.subscription_id = v_sub.subscription_id and z.priority = j.priority and z.lane = j.lane offset 0) z on true
          where (newest.seq is null or newest.state = 'i' and newest.epoch < c.epoch)
            and (select g.txid from trunq_log._specimen g
                 where g.priority = j.priority and coalesce(g.key, '') /*lane*/ collate "C" = j.lane
                 order by g.txid desc, g.id desc limit 1) >= pg_snapshot_xmin(c.lo)
          order by j.at) f
        returning class)
      select count(*), max(j.priority) filter (where j.at = 500), max(j.lane) filter (where j.at = 500), array(select distinct m.class from made m)
      into v_count, c.jump_priority, c.jump_lane, v_new from jump j;
      v_is_changed := true;
      if c.jump_lane is null then
        v_more := false;
        c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
      end if;
    end if;
    if v_is_watched and v_step = 1 then
      -- 2. Wakes: lanes of which a message was answered, or whose setting changed.
      v_late := array(select x from pg_snapshot_xip(c.wake_lo) x where pg_visible_in_snapshot(x, v_current));
      with woken as materialized (
        select w.priority, w.lane from trunq_data._lanespecimen_wake w
        where w.subscription_id = v_sub.subscription_id and w.txid = any (v_late)
        union
        select w.priority, w.lane from trunq_data._lanespecimen_wake w
        where w.subscription_id = v_sub.subscription_id and w.txid >= pg_snapshot_xmax(c.wake_lo) and w.txid < pg_snapshot_xmax(v_current)
          and pg_visible_in_snapshot(w.txid, v_current)),
      asked as (
        select w.priority, w.lane from woken w where w.lane is not null
        union
        select t.priority, t.lane from unnest(c.classes, c.heads) u(class, head) cross join lateral (
          select t.priority, t.lane from trunq_data._lanespecimen_turn t
          where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head) t
        where exists (select from woken w where w.lane is null)
        union
        select t.priority, t.lane from trunq_data._lanespecimen_turn t
        where t.subscription_id = v_sub.subscription_id and t.state in ('b', 'p') and exists (select from woken w where w.lane is null)),
      made as (
        insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
          lease_id, open_leases, open_ids, tokens, tokens_at)
        select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, t.priority, t.lane, t.new_class, 'r', t.lo, t.hi, t.epoch, t.last_txid,
          t.last_id, t.left_over, t.lease_id, t.open_leases, t.open_ids, t.tokens, t.tokens_at
        from (
          select t.*, coalesce(z.rank, case when v_policy.policy = 'priority' then t.priority else 0 end) new_class
          from asked a cross join lateral (
            select t.* from trunq_data._lanespecimen_turn t
            where t.subscription_id = v_sub.subscription_id and t.priority = a.priority and t.lane = a.lane
            order by t.seq desc limit 1) t
          left join lateral (
            select z.rank from trunq.lane z
            where z.subscription_id = v_sub.subscription_id and z.priority = a.priority and z.lane = a.lane offset 0) z on true) t
        where t.state in ('b', 'p') or t.state = 'r' and t.class <> t.new_class
        order by t.seq
        returning class)
      select v_is_changed or exists (select from woken), coalesce(v_new, '{}') || coalesce(array_agg(distinct m.class), '{}') into v_is_changed, v_new from made m;
      c.wake_lo := v_current;
      -- 3. Timers that ran out since the last look. Their time never goes back.
      v_now := greatest(v_now, c.timer_at);
      with made as (
        insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
          lease_id, open_leases, open_ids, tokens, tokens_at)
        select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, t.priority, t.lane, t.class, 'r', t.lo, t.hi, t.epoch, t.last_txid,
          t.last_id, t.left_over, t.lease_id, t.open_leases, t.open_ids, t.tokens, t.tokens_at
        from (
          select t.* from trunq_data._lanespecimen_turn t
          where t.subscription_id = v_sub.subscription_id and t.state = 'p' and t.due_at > c.timer_at and t.due_at <= v_now
            and t.seq = (select n.seq from trunq_data._lanespecimen_turn n
              where n.subscription_id = v_sub.subscription_id and n.priority = t.priority and n.lane = t.lane order by n.seq desc limit 1)
          order by t.due_at) t
        returning 1)
      select v_is_changed or count(*) > 0 into v_is_changed from made m;
      c.timer_at := v_now;
    end if;
    if not v_new <@ c.classes then
      select array_agg(u.class order by u.class), array_agg(coalesce(c.heads[array_position(c.classes, u.class)], 0) order by u.class)
      into v_classes, v_heads from (select unnest(c.classes || v_new) class group by 1) u;
      c.classes := v_classes; c.heads := v_heads;
    end if;
    -- 4. Turns in their order, each a share.
    for v_round in 1..20 loop
      -- The best class first; each eighth lease the one that has waited longest.
      v_classes := c.classes; v_heads := c.heads;
      if cardinality(c.classes) > 1 then
        select array_agg(u.class order by u.place), array_agg(u.head order by u.place) into v_classes, v_heads
        from (
          select u.class, u.head, case when c.turn_no % c_favour = c_favour - 1 then t.seq else u.class end place
          from unnest(c.classes, c.heads) u(class, head) cross join lateral (
            select t.seq from trunq_data._lanespecimen_turn t
            where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head order by t.seq limit 1) t) u;
      end if;
      select array_agg(t.turn order by t.at), sum(1) filter (where t.at <= c_lanes and (t.turn).class = v_classes[1]),
        min(least(case when (t.turn).last_txid = '0' then pg_snapshot_xmin((t.turn).lo) else (t.turn).last_txid end, pg_snapshot_xmin((t.turn).hi)))
      into v_turns, v_weight, v_floor
      from (
        select t turn, row_number() over () at from unnest(v_classes, v_heads) u(class, head) cross join lateral (
          select t.* from trunq_data._lanespecimen_turn t
          where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
          order by t.seq limit least(2 * p_max_messages, 4 * c_lanes) + 20) t
        limit least(2 * p_max_messages, 4 * c_lanes) + 20) t;
      exit when v_turns is null;
      if v_is_watched then
        -- What each may have by the settings of its lane: its turn as the next one begins, with tokens, what runs, and until when it waits.
        with turn as materialized (
          select t.at, t.turn, coalesce(z.weight, 1) weight, z.paused_until, coalesce(z.max_running, v_policy.max_running) max_running,
            coalesce(z.rate, v_policy.rate) rate, coalesce(z.burst, v_policy.burst, 1) burst,
            (t.turn).seq = (
              select n.seq from trunq_data._lanespecimen_turn n
              where n.subscription_id = v_sub.subscription_id and n.priority = (t.turn).priority and n.lane = (t.turn).lane order by n.seq desc limit 1) is_newest
          from (select t turn, row_number() over () at from unnest(v_turns) t) t
          left join lateral (
            select z.* from trunq.lane z
            where z.subscription_id = v_sub.subscription_id and z.priority = (t.turn).priority and z.lane = (t.turn).lane offset 0) z on true),
        -- Running is what has no receipt, as long as its lease is known: rotation takes the lease first. Each lease is looked at once.
        running as materialized (
          select t.at, u.lease_id, u.id from turn t cross join lateral unnest((t.turn).open_leases, (t.turn).open_ids) u(lease_id, id)),
        -- Leases that are answered as a whole are over: most are.
        answered as materialized (
          select l.lease_id, array(
            select unnest(r.ids) from trunq_data._specimen_receipt r
            where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = v_sub.subscription_id) ids
          from (select distinct r.lease_id from running r) o cross join lateral (
            select l.lease_id, l.segment, l.size from trunq_data._lanespecimen_lease l
            where l.subscription_id = v_sub.subscription_id and l.lease_id = o.lease_id offset 0) l
          where l.size > (
            select coalesce(sum(r.size), 0) from trunq_data._specimen_receipt r
            where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = v_sub.subscription_id)),
        still as materialized (
          select r.at, array_agg(r.lease_id) leases, array_agg(r.id) ids from running r join answered a on a.lease_id = r.lease_id
          where r.id <> all (a.ids) group by r.at),
        kept as materialized (
          select t.*, o.leases, o.ids, case when t.rate is not null then
              least(t.burst, coalesce((t.turn).tokens, t.burst) + t.rate * greatest(0, extract(epoch from v_now - coalesce((t.turn).tokens_at, v_now)))) end tokens
          from turn t left join still o on o.at = t.at),
        weighed as (
          select ceil(p_max_messages::numeric / greatest(1, sum(k.weight))) quantum from kept k
          where k.is_newest and k.at <= c_lanes
            and (k.turn).class = (select (f.turn).class from kept f where f.is_newest order by f.at limit 1))
        select array_agg(((k.turn).seq, (k.turn).subscription_id, (k.turn).segment, (k.turn).priority, (k.turn).class, (k.turn).left_over, (k.turn).state,
            (k.turn).lane, (k.turn).epoch, (k.turn).last_txid, (k.turn).last_id, (k.turn).lease_id,
            case when k.paused_until > v_now then k.paused_until
              when k.tokens < 1 then v_now + make_interval(secs => greatest((1 - k.tokens) / k.rate, 0.05 /*or each token has a turn*/)) end,
            k.tokens, (k.turn).tokens_at, (k.turn).lo, (k.turn).hi, k.leases, k.ids)::trunq_data._lanespecimen_turn order by k.at),
          array_agg(case when not k.is_newest then -1 when k.paused_until > v_now then 0 else
            greatest(0, least(w.quantum * k.weight, coalesce(k.max_running - coalesce(cardinality(k.leases), 0), p_max_messages),
              coalesce(floor(k.tokens)::integer, p_max_messages), p_max_messages)) end::integer order by k.at),
          array_agg(k.max_running order by k.at)
        into v_turns, v_shares, v_limits from kept k cross join weighed w;
      else
        -- Rounded up: a lesser class gets something only when this one has no more.
        v_shares := array_fill(ceil(p_max_messages::numeric / v_weight)::integer, array[cardinality(v_turns)]);
        v_limits := null;
      end if;
      v_segments := array(
        select n::smallint from generate_series(0, 3) n
        where (select g.txid from trunq_log._specimen g where g.segment = n order by g.txid desc, g.id desc limit 1) >= v_floor);
      v_lease_id := nextval('trunq_data._specimen_lease_id');
      v_token := trunq._token();
      return query
        with share as materialized (
          select s.* from rows from (unnest(v_turns), unnest(v_shares), unnest(v_limits)) with ordinality s(seq, subscription_id, segment, priority, class,
            left_over, state, lane, epoch, last_txid, last_id, lease_id, due_at, tokens, tokens_at, lo, hi, open_leases, open_ids, n, max_running, at)),
        found as (
          select s.at turn, s.lane, m.* from share s cross join lateral (
            select * from (
              -- Of its window: what committed late, then the range.
              (select m.*, false is_next from unnest(array(
                 select x from pg_snapshot_xip(s.lo) x
                 where x >= s.last_txid and s.last_txid < pg_snapshot_xmax(s.lo) and pg_visible_in_snapshot(x, s.hi))) late(txid)
               cross join lateral (
                 select g.* from trunq_log._specimen g
                 where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane and g.segment = any (v_segments)
                   and g.txid = late.txid and g.id > case when late.txid = s.last_txid then s.last_id else 0 end
                   and (g.subscription_id is null or g.subscription_id = v_sub.subscription_id)
                 order by g.id limit s.n) m
               limit s.n)
              union all
              (select g.*, false from trunq_log._specimen g
               where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane and g.segment = any (v_segments)
                 and (g.txid, g.id) > (greatest(s.last_txid, pg_snapshot_xmax(s.lo)), case when s.last_txid < pg_snapshot_xmax(s.lo) then 0 else s.last_id end)
                 and g.txid < pg_snapshot_xmax(s.hi) and pg_visible_in_snapshot(g.txid, s.hi)
                 and (g.subscription_id is null or g.subscription_id = v_sub.subscription_id)
               order by g.txid, g.id limit s.n)
              union all
              -- And of the window from there to what discovery looks at.
              (select m.*, true from unnest(array(
                 select x from pg_snapshot_xip(s.hi) x where s.epoch < c.epoch and pg_visible_in_snapshot(x, c.hi))) late(txid)
               cross join lateral (
                 select g.* from trunq_log._specimen g
                 where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane and g.segment = any (v_segments) and g.txid = late.txid
                   and (g.subscription_id is null or g.subscription_id = v_sub.subscription_id)
                 order by g.id limit s.n) m
               limit s.n)
              union all
              (select g.*, true from trunq_log._specimen g
               where s.epoch < c.epoch and g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane and g.segment = any (v_segments)
                 and (g.txid, g.id) > (pg_snapshot_xmax(s.hi), 0) and g.txid < pg_snapshot_xmax(c.hi) and pg_visible_in_snapshot(g.txid, c.hi)
                 and (g.subscription_id is null or g.subscription_id = v_sub.subscription_id)
               order by g.txid, g.id limit s.n)) m
            limit s.n) m
          where s.n > 0
          limit p_max_messages),
        numbered as materialized (
          select f.*, row_number() over rest number, sum(trunq._bytes(f.kind, f.key, f.payload, f.body, f.headers)) over rest bytes
          from found f window rest as (rows unbounded preceding)),
        -- Cut by bytes, and before a suspect, which is leased alone, before anything is recorded.
        cut as materialized (
          select t.n, least(case when t.suspect_at = 1 then 1 else t.suspect_at - 1 end, greatest(t.fits, 1), t.n) size, t.suspect_at = 1 is_suspect
          from (
            select count(*) n, count(*) filter (where n.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/)) fits,
              min(n.number) filter (where n.expiries > 1) suspect_at from numbered n) t),
        batch as not materialized (select n.* from numbered n where n.number <= (select u.size from cut u)),
        last_turn as materialized (
          -- Of a lease that is full: turns behind it keep their place.
          select case when u.size < u.n or u.n >= p_max_messages then (select b.turn from batch b where b.number = u.size) end at from cut u),
        given as materialized (
          select b.turn, count(*)::integer n, array_agg(b.id) ids, array_agg(b.txid) txids, bool_or(b.is_next) is_next from batch b group by b.turn),
        taken as materialized (
          select s.*, coalesce(v.n, 0) given, v.txids[v.n] to_txid, v.ids[v.n] to_id, v.ids, coalesce(v.is_next, false) is_next,
            s.n > 0 and (coalesce(v.n, 0) < s.n and s.at is distinct from t.at or s.epoch >= c.epoch and s.left_over <= coalesce(v.n, 0)) is_done
          from last_turn t cross join share s left join given v on v.turn = s.at
          where s.at <= coalesce(t.at, s.at)),
        next as (
          insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch, last_txid, last_id, left_over,
            lease_id, due_at, open_leases, open_ids, tokens, tokens_at)
          select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, t.priority, t.lane, t.class,
            case when t.n = 0 and t.due_at is not null then 'p' when t.n = 0 then 'b' when t.is_done then 'i'
              when t.max_running <= coalesce(cardinality(t.open_leases), 0) + t.given then 'b' else 'r' end::"char",
            case when t.is_next then t.hi else t.lo end, case when t.is_next then c.hi else t.hi end,
            case when t.is_next or t.is_done then greatest(c.epoch, t.epoch) else t.epoch end,
            coalesce(t.to_txid, t.last_txid), coalesce(t.to_id, t.last_id), case when not t.is_next then t.left_over - t.given end,
            v_lease_id, case when t.n = 0 then t.due_at end,
            case when t.max_running is not null then t.open_leases || array_fill(v_lease_id, array[t.given]) end,
            case when t.max_running is not null then t.open_ids || t.ids end,
            t.tokens - t.given, case when t.tokens is not null then v_now end
          from (select t.* from taken t where t.n >= 0 order by t.at) t),
        made as (
          insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, epoch, turn_no, looked,
            jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, min_txid, max_txid, size, ids, txids, priorities, lanes, leased_at, expires_at, is_suspect)
          select v_lease_id, v_sub.subscription_id, v_token, p_worker, c.lo, c.hi, c.last_txid, c.last_id, c.epoch, c.turn_no + 1, c.looked,
            c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo, c.timer_at, c.classes,
            array(
              select greatest(u.head, (select max(t.seq) from taken t where t.class = u.class))
              from unnest(c.classes, c.heads) with ordinality u(class, head, at) order by u.at),
            -- Of what the turns record; and the ids of what is handed out: a constraint compares them.
            a.min_txid, a.max_txid, nullif((select sum(t.given) from taken t where t.n >= 0), 0), a.ids, a.txids,
            a.priorities, a.lanes,
            v_now, case when a.ids is not null then v_expires_at end, nullif((select u.is_suspect from cut u), false)
          from (
            select array_agg(b.id) ids, array_agg(b.txid) txids, min(b.txid)::text::bigint min_txid, max(b.txid)::text::bigint max_txid,
              array_agg(b.priority::smallint) filter (where v_is_watched) priorities, array_agg(b.lane) filter (where v_is_watched) lanes
            from batch b) a)
        select v_lease_id, v_token, b.id, b.attempt, v_sub.max_attempts, b.kind::text, b.key::text, b.payload::jsonb, b.body::bytea, b.headers::jsonb,
          b.priority::smallint, b.created_at, v_expires_at, null::jsonb
        from batch b;
      get diagnostics v_count = row_count;
      if v_count > 0 then
        return;
      end if;
      -- Turns that had nothing are over.
      v_is_changed := false;
      select l.heads, l.turn_no into c.heads, c.turn_no from trunq_data._lanespecimen_lease l
      where l.subscription_id = v_sub.subscription_id and l.lease_id = v_lease_id;
    end loop;
    exit when not v_more;
  end loop;
  -- What was found out is noted, and that it took long, or the next look would do it again.
  if v_is_changed or pg_snapshot_xmax(c.hi)::text::bigint - v_xmax_before::text::bigint > 1000
      or clock_timestamp() - v_started > '3 milliseconds' then
    insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, epoch, turn_no, looked,
      jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, leased_at)
    values (nextval('trunq_data._specimen_lease_id'), v_sub.subscription_id, trunq._token(), p_worker, c.lo, c.hi, c.last_txid, c.last_id, c.epoch, c.turn_no,
      c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo, c.timer_at, c.classes, c.heads, v_now);
  end if;
end $$;
comment on function trunq_queue._lanespecimen_lease(text, text, integer, interval, bigint) is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker, from the lanes whose turn it is.
Returns: one row a message, all of one lease; none when there is nothing.
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';
