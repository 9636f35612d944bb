-- Leasing from a queue with lanes; the essay is in functions/lanes/lane.sql. Made for such a queue in the place of
-- queue/lease.sql. All of it goes on under the lock of the subscription, so nobody else inserts turns, and each
-- statement sees those before it.

create or replace function trunq_queue._lanespecimen_lease(
  p_subscription text,
  p_worker text,
  p_max_messages integer default 1,
  p_lease_time interval default null,
  p_max_bytes bigint default 16777216
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
  payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz,
    options jsonb
)
language plpgsql security definer volatile rows 100
set search_path = pg_catalog, pg_temp
-- By index alone; what joins are left match rows of the statement itself, by hash.
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  c_lanes constant integer := 25;      -- lanes among which a lease is divided
  c_favour constant integer := 8;      -- each so manieth lease goes to the oldest turn
  c_bury constant integer := 100;      -- messages that a step buries at least, if there are so many
  v_sub trunq.subscription; v_policy trunq.lane_policy; c trunq_data._lanespecimen_lease; v_found record;
  v_now timestamptz := trunq.clock(); v_expires_at timestamptz; v_started timestamptz := clock_timestamp();
  v_current pg_snapshot; v_xmax_before xid8;
  v_is_watched boolean; v_more boolean; v_is_changed boolean := false;
  v_late xid8[]; v_new integer[]; v_round integer; v_take integer; v_count integer; v_size integer;
    v_buried integer := 0;
  v_most integer; v_live integer; v_at integer; v_sum integer; v_is_deep boolean := false;
  v_classes integer[]; v_heads bigint[]; v_turns trunq_data._lanespecimen_turn[]; v_shares integer[];
    v_limits integer[];
  v_weight bigint; v_floor xid8; v_segments smallint[];
  v_all boolean; v_own integer; v_kinds text[]; v_not_kinds text[]; v_keys text[]; v_not_keys text[]; v_headers jsonb;
    v_not_headers jsonb[];
  v_tokens double precision; v_tokens_at timestamptz; v_open bigint[];
  v_lease_id bigint; v_token bigint;
begin
  if current_setting('transaction_isolation') <> 'read committed'
      or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
      or p_max_messages is null or p_max_messages not between 1 and 10000 /*limit lease_messages*/
        or p_lease_time not between '1 microsecond' and '1000 years' then
    perform trunq._check_lease(p_max_messages, p_lease_time);
  end if;
  select s.* into v_sub from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_sub.mode is distinct from 'shared' then
    perform trunq._subscription('_lanespecimen', p_subscription, 'shared');
    return query select * from trunq_queue._lanespecimen_lease(p_subscription, p_worker, p_max_messages, p_lease_time,
      p_max_bytes);
    return;
  end if;
  if not pg_try_advisory_xact_lock(1953656418 /*lock subscription*/, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, '_lanespecimen', p_subscription);
  end if;
  v_now := trunq.clock();
  v_expires_at := v_now + coalesce(p_lease_time, v_sub.lease_time);
  v_all := v_sub.filter is null;
  if not v_all then
    select f.* into v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers
      from trunq._read_filter(v_sub.filter) f;
  end if;
  if v_sub.is_limited then
    select a.allowed, a.tokens, a.tokens_at, a.open_leases into p_max_messages, v_tokens, v_tokens_at, v_open
    from trunq_queue._specimen_allowance(v_sub.subscription_id, p_max_messages, v_now) a;
    if p_max_messages < 1 then
      return;
    end if;
  end if;
  -- Under the lock: who reads "not watched" must not meet a turn that somebody replaced since.
  select s.in_order, p.policy, p.max_running, p.rate, p.burst, p.is_watched
  into v_sub.in_order, v_policy.policy, v_policy.max_running, v_policy.rate, v_policy.burst, v_policy.is_watched
  from trunq.subscription s left join trunq.lane_policy p on p.subscription_id = s.subscription_id
    where s.subscription_id = v_sub.subscription_id;
  v_is_watched := v_policy.is_watched is true or v_sub.in_order is true;
  v_own := case when not v_sub.in_order then v_sub.subscription_id end;
  select l.lo, l.hi, l.last_txid, l.last_id, l.epoch, l.turn_no, l.looked, l.jump_priority, l.jump_lane, l.carried_to,
    coalesce(l.wake_lo, l.hi), coalesce(l.timer_at, '-infinity'), l.classes, l.heads, l.worker
  into c.lo, c.hi, c.last_txid, c.last_id, c.epoch, c.turn_no, c.looked, c.jump_priority, c.jump_lane, c.carried_to,
    c.wake_lo, c.timer_at, c.classes, c.heads, c.worker
  from trunq_data._lanespecimen_lease l where l.subscription_id = v_sub.subscription_id
  order by l.lease_id desc limit 1;
  if c.worker = 'lost' then
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  if not found then
    c.lo := v_sub.start; c.hi := v_sub.start; c.last_txid := pg_snapshot_xmax(v_sub.start); c.last_id := 0;
      c.epoch := 0; c.turn_no := 0;
    c.looked := 0; c.wake_lo := v_sub.start; c.timer_at := '-infinity'; c.classes := '{}'; c.heads := '{}';
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
          where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
            and t.seq <= c.carried_to limit 1) t) then
      v_is_watched := true;
    else
      c.carried_to := null;
    end if;
  end if;
  -- 0. Nobody waits, and everything new fits into this lease: it goes out as it came, and no lane is touched.
  if not v_more and not v_is_watched and not exists (
      select from unnest(c.classes, c.heads) u(class, head) cross join lateral (
        select from trunq_data._lanespecimen_turn t
        where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
          limit 1) t) then
    v_late := array(select x from pg_snapshot_xip(c.hi) x where pg_visible_in_snapshot(x, v_current));
    v_lease_id := nextval('trunq_data._specimen_lease_id');
    v_token := trunq._token();
    return query
      with batch as materialized (
        (select m.* from unnest(v_late) late(txid) cross join lateral (
           select g.*, trunq_queue._specimen_key_hold(g) hold from trunq_log._specimen g
           where g.txid = late.txid order by g.id limit p_max_messages + 1) m
         limit p_max_messages + 1)
        union all
        (select g.*, trunq_queue._specimen_key_hold(g) from trunq_log._specimen g
         where (g.txid, g.id) > (pg_snapshot_xmax(c.hi), 0) and g.txid < pg_snapshot_xmax(v_current)
           and pg_visible_in_snapshot(g.txid, v_current)
         order by g.txid, g.id limit p_max_messages + 1)
        limit p_max_messages + 1),
      total as (
        select count(*) n, sum(trunq._message_bytes(b.kind, b.key, b.payload, b.body, b.headers)) bytes,
          coalesce(max(b.expiries), 0) expiries from batch b),
      own as materialized (
        select b.* from batch b cross join total t
        where t.n <= p_max_messages and t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/)
          and t.expiries <= 1
          and (b.subscription_id = v_sub.subscription_id or b.subscription_id is null and (v_all
            or trunq._passes(
              v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers, b.kind, b.key, b.headers)))
        order by case when v_policy.policy = 'priority' then b.priority else 0 end, b.txid, b.id),
      made as (
        insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid,
          last_id, epoch, turn_no, wake_lo, timer_at, classes, heads, min_txid, max_txid, size, ids, txids, leased_at,
          expires_at, tokens, tokens_at, open_leases, awaited, keyed)
        select v_lease_id, v_sub.subscription_id, v_token, p_worker, c.hi, v_current, pg_snapshot_xmax(v_current), 0,
          c.epoch + 1, c.turn_no, c.wake_lo, c.timer_at, c.classes, c.heads, a.min_txid, a.max_txid, a.n, a.ids,
          a.txids, v_now, v_expires_at,
          v_tokens - a.n, v_tokens_at, case when v_open is not null then v_open || v_lease_id end,
          a.awaited, a.keyed
        from (select count(*)::integer n, array_agg(o.id) ids, array_agg(o.txid) txids,
            min(o.txid)::text::bigint min_txid, max(o.txid)::text::bigint max_txid,
            array_agg(o.id) filter (where o.options->>'awaited' is not null) awaited,
            case when count(o.hold) > 0 then trunq_queue._specimen_note_keys(
              array_agg(o.id) filter (where (o.hold).is_keyed),
              array_agg(o.id) filter (where (o.hold).is_freed)) end keyed
          from own o) a
        where a.n > 0)
      select v_lease_id, v_token, o.id, o.attempt, coalesce((o.options->>'max_attempts')::integer, v_sub.max_attempts),
        o.kind::text, o.key::text, o.payload::jsonb, o.body::bytea, o.headers::jsonb, o.priority::smallint,
        o.created_at, v_expires_at, o.options::jsonb
      from own o
      -- Where one is over, none is handed out here, and it is sorted out below.
      where not exists (
        select from own x
        where trunq._fate(x.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, x.id) is not null
          or trunq_queue._specimen_replaces() and exists (
            select from trunq_queue._specimen_replaced_by(x.hold, x.attempt)));
    get diagnostics v_count = row_count;
    if v_count > 0 then
      return;
    elsif pg_current_xact_id_if_assigned() is not null and exists (
        select from trunq_data._lanespecimen_lease l
        where l.subscription_id = v_sub.subscription_id and l.lease_id = v_lease_id) then
      return query select * from trunq_queue._specimen_sort_out(v_sub.subscription_id, v_lease_id, v_now);
      perform trunq_queue._lanespecimen_make_room(v_sub.subscription_id, v_lease_id);
      return;
    end if;
  end if;
  for v_step in 1..20 loop
    -- 1. Discovery: reads what is new once, and lines up the lanes that were idle.
    if not v_more and v_step = 1 then
      c.lo := c.hi; c.hi := v_current; c.last_txid := '0'; c.last_id := 0; c.epoch := c.epoch + 1; c.looked := 0;
      c.jump_priority := null; c.jump_lane := null;
      -- Most often there is nothing new, or nothing that is late: this asks a tenth of what discovery does.
      v_more := exists (select from pg_snapshot_xip(c.lo) x where pg_visible_in_snapshot(x, c.hi)) or exists (
        select from trunq_log._specimen g where (g.txid, g.id) > (pg_snapshot_xmax(c.lo), 0)
          and g.txid < pg_snapshot_xmax(c.hi) limit 1);
      if not v_more then
        c.last_txid := pg_snapshot_xmax(c.hi);
      end if;
    end if;
    v_new := '{}';
    if v_more then
      v_found := trunq_queue._lanespecimen_discover(c, v_sub, v_policy, v_is_watched);
      c := v_found.c; v_more := v_found.more; v_new := v_found.classes;
      v_is_changed := v_is_changed or v_found.is_changed;
    end if;
    if v_is_watched and v_step = 1 then
      -- 2. What became free: by a wake, or by its time, which never goes back.
      v_found := trunq_queue._lanespecimen_look_again(c, v_sub, v_policy, v_current, v_now);
      c := v_found.c; v_now := c.timer_at; v_new := v_new || v_found.classes;
      v_is_changed := v_is_changed or v_found.is_changed;
    end if;
    if not v_new <@ c.classes then
      select array_agg(u.class order by u.class),
        array_agg(coalesce(c.heads[array_position(c.classes, u.class)], 0) order by u.class)
      into v_classes, v_heads from (select unnest(c.classes || v_new) class group by 1) u;
      c.classes := v_classes; c.heads := v_heads;
    end if;
    -- 3. Turns in their order, each a share.
    v_round := 0;
    while v_round < 20 loop
      -- Among those that are buried, it hands out no more than it was asked for (v_live), and looks at more.
      v_most := case when v_buried = 0 then p_max_messages else greatest(p_max_messages, c_bury) end;
      v_live := p_max_messages;
      -- In order each lane gives one message.
      v_take := case when v_sub.in_order then v_most else least(2 * v_most, 4 * c_lanes) end + 20;
      -- The best class first; each eighth lease the one that has waited longest.
      v_classes := c.classes; v_heads := c.heads;
      if cardinality(c.classes) > 1 then
        select array_agg(u.class order by u.place), array_agg(u.head order by u.place) into v_classes, v_heads
        from (
          select u.class, u.head, case when c.turn_no % c_favour = c_favour - 1 then t.seq else u.class end place
          from unnest(c.classes, c.heads) u(class, head) cross join lateral (
            select t.seq from trunq_data._lanespecimen_turn t
            where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
              order by t.seq limit 1) t) u;
      end if;
      select array_agg(t.turn order by t.at), sum(1) filter (where t.at <= c_lanes and (t.turn).class = v_classes[1]),
        min(least(case when (t.turn).last_txid = '0' then pg_snapshot_xmin((t.turn).lo) else (t.turn).last_txid end,
          pg_snapshot_xmin((t.turn).hi), (t.turn).again_txids[1]))
      into v_turns, v_weight, v_floor
      from (
        select t turn, row_number() over () at from unnest(v_classes, v_heads) u(class, head) cross join lateral (
          select t.* from trunq_data._lanespecimen_turn t
          where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
          order by t.seq limit v_take) t
        limit v_take) t;
      exit when v_turns is null;
      if v_is_watched then
        select w.turns, w.shares, w.limits into v_turns, v_shares, v_limits
        from trunq_queue._lanespecimen_weigh(v_turns, v_sub, v_policy, v_now, v_most, c_lanes) w;
        if v_buried > 0 then
          -- What is buried takes no place in its lane. By turns, all are looked at, and one is gone through beyond its
          -- share.
          select min(u.at), count(*), sum(u.share) into v_at, v_count, v_sum
            from unnest(v_shares) with ordinality u(share, at) where u.share > 0;
          v_is_deep := not v_is_deep or v_count = 1;
          if v_is_deep and v_sum < v_most
              and coalesce(cardinality((v_turns[v_at]).again_ids), 0) = 0 then
            v_live := least(v_live, v_shares[v_at]);
            v_turns := v_turns[1:v_at]; v_limits := v_limits[1:v_at]; v_shares := v_shares[1:v_at - 1] || v_most;
          end if;
        end if;
      else
        -- Rounded up: a lesser class gets something only when this one has no more.
        v_shares := array_fill(ceil(v_most::numeric / v_weight)::integer, array[cardinality(v_turns)]);
        v_limits := null;
      end if;
      v_segments := array(
        select n::smallint from generate_series(0, 3 /*last_segment*/) n
        where (select g.txid from trunq_log._specimen g where g.segment = n order by g.txid desc, g.id desc
          limit 1) >= v_floor);
      v_lease_id := nextval('trunq_data._specimen_lease_id');
      v_token := trunq._token();
      return query
        with share as materialized (
          select s.* from rows from (unnest(v_turns), unnest(v_shares), unnest(v_limits)) with ordinality s(
            seq, subscription_id, segment, priority, class, left_over, state, lane, epoch, last_txid, last_id, lease_id,
            due_at, tokens, tokens_at, lo, hi, open_leases, open_ids, again_txids, again_ids, n, max_running, at)),
        found as (
          select s.at turn, s.lane, m.* from share s cross join lateral (
            select * from (
              -- The message for which the lane was held.
              (select g.*, trunq_queue._specimen_key_hold(g) hold, false is_next, true is_again
               from trunq_log._specimen g
               where s.again_ids <> '{}' and g.segment = any (v_segments) and trunq._is_row(
                 g.txid, g.id, g.subscription_id, s.again_txids[1], s.again_ids[1], v_sub.subscription_id) limit 1)
              union all
              -- Of its window: what committed late, then the range.
              (select m.*, false, false from unnest(array(
                 select x from pg_snapshot_xip(s.lo) x
                 where x >= s.last_txid and s.last_txid < pg_snapshot_xmax(s.lo)
                   and pg_visible_in_snapshot(x, s.hi))) late(txid)
               cross join lateral (
                 select g.*, trunq_queue._specimen_key_hold(g) from trunq_log._specimen g
                 where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane
                   and g.segment = any (v_segments)
                   and g.txid = late.txid and g.id > case when late.txid = s.last_txid then s.last_id else 0 end
                   and (g.subscription_id is null and v_all or g.subscription_id = v_own or trunq._lane_gets(
                     v_sub.subscription_id, g.subscription_id, g.expiries, v_kinds, v_not_kinds, v_keys, v_not_keys,
                     v_headers, v_not_headers, g.kind, g.key, g.headers))
                 order by g.id limit s.n) m
               limit s.n)
              union all
              (select g.*, trunq_queue._specimen_key_hold(g), false, false from trunq_log._specimen g
               where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane
                 and g.segment = any (v_segments)
                 and (g.txid, g.id) > (greatest(s.last_txid, pg_snapshot_xmax(s.lo)),
                   case when s.last_txid < pg_snapshot_xmax(s.lo) then 0 else s.last_id end)
                 and g.txid < pg_snapshot_xmax(s.hi) and pg_visible_in_snapshot(g.txid, s.hi)
                 and (g.subscription_id is null and v_all or g.subscription_id = v_own or trunq._lane_gets(
                   v_sub.subscription_id, g.subscription_id, g.expiries, v_kinds, v_not_kinds, v_keys, v_not_keys,
                   v_headers, v_not_headers, g.kind, g.key, g.headers))
               order by g.txid, g.id limit s.n)
              union all
              -- And of the window from there to what discovery looks at.
              (select m.*, true, false from unnest(array(
                 select x from pg_snapshot_xip(s.hi) x where s.epoch < c.epoch
                   and pg_visible_in_snapshot(x, c.hi))) late(txid)
               cross join lateral (
                 select g.*, trunq_queue._specimen_key_hold(g) from trunq_log._specimen g
                 where g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane
                   and g.segment = any (v_segments) and g.txid = late.txid
                   and (g.subscription_id is null and v_all or g.subscription_id = v_own or trunq._lane_gets(
                     v_sub.subscription_id, g.subscription_id, g.expiries, v_kinds, v_not_kinds, v_keys, v_not_keys,
                     v_headers, v_not_headers, g.kind, g.key, g.headers))
                 order by g.id limit s.n) m
               limit s.n)
              union all
              (select g.*, trunq_queue._specimen_key_hold(g), true, false from trunq_log._specimen g
               where s.epoch < c.epoch and g.priority = s.priority and coalesce(g.key, '') /*lane*/ collate "C" = s.lane
                 and g.segment = any (v_segments)
                 and (g.txid, g.id) > (pg_snapshot_xmax(s.hi), 0) and g.txid < pg_snapshot_xmax(c.hi)
                   and pg_visible_in_snapshot(g.txid, c.hi)
                 and (g.subscription_id is null and v_all or g.subscription_id = v_own or trunq._lane_gets(
                   v_sub.subscription_id, g.subscription_id, g.expiries, v_kinds, v_not_kinds, v_keys, v_not_keys,
                   v_headers, v_not_headers, g.kind, g.key, g.headers))
               order by g.txid, g.id limit s.n)) m
            limit s.n) m
          where s.n > 0
          limit v_most),
        numbered as materialized (
          select f.*, row_number() over rest number,
            sum(trunq._message_bytes(f.kind, f.key, f.payload, f.body, f.headers)) over rest bytes
          from found f window rest as (rows unbounded preceding)),
        -- Cut by bytes, and before a suspect, which is leased alone, before anything is recorded.
        cut as materialized (
          select t.n, t.suspect_at = 1 is_suspect,
            least(case when t.suspect_at = 1 then 1 else t.suspect_at - 1 end, greatest(t.fits, 1), t.n,
              case when v_buried > 0 then (
                select x.number from numbered x
                where trunq._fate(x.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, x.id) is null
                  and not (trunq_queue._specimen_replaces() and exists (
                    select from trunq_queue._specimen_replaced_by(x.hold, x.attempt)))
                order by x.number offset v_live - 1 limit 1) end) size
          from (
            select count(*) n,
              count(*) filter (where n.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/)) fits,
              min(n.number) filter (where n.expiries > 1) suspect_at from numbered n) t),
        batch as not materialized (select n.* from numbered n where n.number <= (select u.size from cut u)),
        last_turn as materialized (
          -- Of a lease that is full: turns behind it keep their place.
          select case when u.size < u.n or u.n >= v_most
            then (select b.turn from batch b where b.number = u.size) end at from cut u),
        given as materialized (
          select b.turn, count(*)::integer n, array_agg(b.id) ids, array_agg(b.txid) txids, bool_or(b.is_next) is_next,
            bool_or(b.is_again) is_again
          from batch b group by b.turn),
        taken as materialized (
          select s.*, coalesce(v.n, 0) given, v.ids, coalesce(v.is_next, false) is_next,
            case when v.is_again is not true then v.txids[v.n] end to_txid,
            case when v.is_again is not true then v.ids[v.n] end to_id,
            coalesce(v.n, 0) - coalesce(v.is_again, false)::integer walked,
            s.n > 0 and (coalesce(v.n, 0) < s.n and s.at is distinct from t.at
              or s.epoch >= c.epoch and s.left_over <= coalesce(v.n, 0) - coalesce(v.is_again, false)::integer) is_done
          from last_turn t cross join share s left join given v on v.turn = s.at
          where s.at <= coalesce(t.at, s.at)),
        next as (
          insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch,
            last_txid, last_id, left_over, lease_id, due_at, open_leases, open_ids, tokens, tokens_at,
            again_txids, again_ids)
          select nextval('trunq_data._lanespecimen_turn_id'), v_sub.subscription_id, t.priority, t.lane, t.class,
            case when t.n = 0 and t.due_at is not null then 'p' when t.n = 0 then 'b' when t.is_done then 'i'
              when t.max_running <= coalesce(cardinality(t.open_leases), 0) + t.given then 'b' else 'r' end::"char",
            case when t.is_next then t.hi else t.lo end, case when t.is_next then c.hi else t.hi end,
            case when t.is_next or t.is_done then greatest(c.epoch, t.epoch) else t.epoch end,
            coalesce(t.to_txid, t.last_txid), coalesce(t.to_id, t.last_id),
            case when not t.is_next then t.left_over - t.walked end, v_lease_id, case when t.n = 0 then t.due_at end,
            case when t.max_running is not null then t.open_leases || array_fill(v_lease_id, array[t.given]) end,
            case when t.max_running is not null then t.open_ids || t.ids end,
            t.tokens - t.given, case when t.tokens is not null then v_now end,
            case when t.n > 0 then t.again_txids[2:] else t.again_txids end,
            case when t.n > 0 then t.again_ids[2:] else t.again_ids end
          from (select t.* from taken t where t.n >= 0 order by t.at) t),
        made as (
          insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid,
            last_id, epoch, turn_no, looked, jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads,
            min_txid, max_txid, size, ids, txids, priorities, lanes, leased_at, expires_at, is_suspect, tokens,
            tokens_at, open_leases, awaited, keyed)
          select v_lease_id, v_sub.subscription_id, v_token, p_worker, c.lo, c.hi, c.last_txid, c.last_id, c.epoch,
            c.turn_no + 1, c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo, c.timer_at, c.classes,
            array(
              select greatest(u.head, (select max(t.seq) from taken t where t.class = u.class))
              from unnest(c.classes, c.heads) with ordinality u(class, head, at) order by u.at),
            -- Of what the turns record; and the ids of what is handed out: a constraint compares them.
            a.min_txid, a.max_txid, nullif((select sum(t.given) from taken t where t.n >= 0), 0), a.ids, a.txids,
            a.priorities, a.lanes,
            v_now, case when a.ids is not null then v_expires_at end, nullif((select u.is_suspect from cut u), false),
            v_tokens - coalesce(cardinality(a.ids), 0), v_tokens_at,
            case when v_open is not null and a.ids is not null then v_open || v_lease_id else v_open end,
            a.awaited, a.keyed
          from (
            select array_agg(b.id) ids, array_agg(b.txid) txids, min(b.txid)::text::bigint min_txid,
              max(b.txid)::text::bigint max_txid,
              array_agg(b.priority::smallint) filter (where v_is_watched) priorities,
              array_agg(b.lane) filter (where v_is_watched) lanes,
              array_agg(b.id) filter (where b.options->>'awaited' is not null) awaited,
              case when count(b.hold) > 0 then trunq_queue._specimen_note_keys(array_agg(b.id)
                filter (where (b.hold).is_keyed), array_agg(b.id) filter (where (b.hold).is_freed)) end keyed
            from batch b) a)
        select v_lease_id, v_token, b.id, b.attempt,
          coalesce((b.options->>'max_attempts')::integer, v_sub.max_attempts), b.kind::text, b.key::text,
          b.payload::jsonb, b.body::bytea, b.headers::jsonb, b.priority::smallint, b.created_at, v_expires_at,
          b.options::jsonb
        from batch b
        where not exists (
          select from batch x
          where trunq._fate(x.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, x.id) is not null
            or trunq_queue._specimen_replaces() and exists (
              select from trunq_queue._specimen_replaced_by(x.hold, x.attempt)));
      get diagnostics v_count = row_count;
      if v_count > 0 then
        return;
      end if;
      -- Turns that had nothing are over.
      v_is_changed := false;
      select l.heads, l.turn_no, l.size into c.heads, c.turn_no, v_size from trunq_data._lanespecimen_lease l
      where l.subscription_id = v_sub.subscription_id and l.lease_id = v_lease_id;
      v_round := v_round + 1;
      if v_size > 0 then
        return query select * from trunq_queue._specimen_sort_out(v_sub.subscription_id, v_lease_id, v_now);
        get diagnostics v_count = row_count;
        perform trunq_queue._lanespecimen_make_room(v_sub.subscription_id, v_lease_id);
        -- Whatever comes behind them is not hidden by them: these rounds do not count.
        v_buried := v_buried + v_size - v_count;
        v_round := 0;
        if v_count > 0 or trunq._has_buried_long(0 /*queue_id*/, v_buried, v_started) then
          return;
        end if;
      end if;
    end loop;
    exit when not v_more;
  end loop;
  -- What was found out is noted, and that it took long, or the next look would do it again.
  if v_is_changed or pg_snapshot_xmax(c.hi)::text::bigint - v_xmax_before::text::bigint > 1000
      or clock_timestamp() - v_started > '3 milliseconds' then
    insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
      epoch, turn_no, looked, jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, leased_at,
      tokens, tokens_at, open_leases)
    values (nextval('trunq_data._specimen_lease_id'), v_sub.subscription_id, trunq._token(), p_worker, c.lo, c.hi,
      c.last_txid, c.last_id, c.epoch, c.turn_no, c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo,
      c.timer_at, c.classes, c.heads, v_now, v_tokens, v_tokens_at, v_open);
  end if;
end $$;
revoke execute on function trunq_queue._lanespecimen_lease from public;
comment on function trunq_queue._lanespecimen_lease is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker, from the lanes whose turn it is.
Returns: one row a message, all of one lease; none when there is nothing, or after 2 seconds in which it found only such messages: lease again (workers are told).
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when messages were lost.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';
