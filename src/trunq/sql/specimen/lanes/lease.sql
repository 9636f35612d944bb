-- Leasing from a queue with lanes; the essay is in functions/lanes/lane.sql. Made for such a queue in the place of
-- queue/lease.sql. All of it goes on under the lock of the subscription, so nobody else inserts turns, and each
-- statement sees those before it. c is the lease that is being made: the position of the newest one at first.

create or replace function trunq_queue._lanespecimen_lease(
  p_subscription text, p_worker text, p_max_messages integer default 1, p_lease_time interval default null,
  p_max_bytes bigint default 16777216, p_asks jsonb default null
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql security definer volatile rows 100 set search_path = pg_catalog, pg_temp
-- By index alone; what joins are left match rows of the statement itself, by hash. So it is in what it calls, too.
set trunq.plan = matched as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription; v_policy trunq.lane_policy; c trunq_data._lanespecimen_lease; v_turns record;
  v_started timestamptz := clock_timestamp(); v_current pg_snapshot; v_xmax_before xid8; v_is_lost boolean;
  v_is_watched boolean; v_is_waited boolean; v_is_new boolean; v_more boolean; v_is_changed boolean := false;
  v_is_deep boolean := false; v_step integer := 0; v_round integer; v_buried integer := 0; v_size integer;
  v_count integer;
begin
  if current_setting('transaction_isolation') <> 'read committed'
      or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
      or p_max_messages is null or p_max_messages not between 1 and 10000 /*limit lease_messages*/
      or p_lease_time not between '1 microsecond' and '1000 years' or p_asks is not null then
    perform trunq._check_lease(p_max_messages, p_lease_time);
    perform trunq._refuse_asks('_lanespecimen', p_asks);
  end if;
  select s.* into v_sub from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_sub.mode is distinct from 'shared' then
    perform trunq._subscription('_lanespecimen', p_subscription, 'shared');
    return query select * from trunq_queue._lanespecimen_lease($1, $2, $3, $4, $5);
    return;
  end if;
  if not pg_try_advisory_xact_lock(1953656418 /*lock subscription*/, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, '_lanespecimen', p_subscription);
  end if;
  c.subscription_id := v_sub.subscription_id; c.worker := p_worker; c.leased_at := trunq.clock();
  c.expires_at := c.leased_at + coalesce(p_lease_time, v_sub.lease_time);
  if v_sub.is_limited then
    select a.allowed, a.tokens, a.tokens_at, a.open_leases into p_max_messages, c.tokens, c.tokens_at, c.open_leases
    from trunq_queue._specimen_allowance(v_sub.subscription_id, p_max_messages, c.leased_at) a;
    if p_max_messages < 1 then
      return;
    end if;
  end if;
  -- Under the lock: who reads "not watched" must not meet a turn that somebody replaced since.
  select s.in_order, p.policy, p.max_running, p.rate, p.burst, p.is_watched, l.lo, l.hi, l.last_txid, l.last_id,
    l.epoch, l.turn_no, l.looked, l.jump_priority, l.jump_lane, l.carried_to, coalesce(l.wake_lo, l.hi),
    coalesce(l.timer_at, '-infinity'), l.classes, l.heads, l.worker = 'lost'
  into v_sub.in_order, v_policy.policy, v_policy.max_running, v_policy.rate, v_policy.burst, v_policy.is_watched, c.lo,
    c.hi, c.last_txid, c.last_id, c.epoch, c.turn_no, c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo,
    c.timer_at, c.classes, c.heads, v_is_lost
  from trunq.subscription s left join trunq.lane_policy p on p.subscription_id = s.subscription_id left join (
    select l.* from trunq_data._lanespecimen_lease l where l.subscription_id = v_sub.subscription_id
    order by l.lease_id desc limit 1) l on true
  where s.subscription_id = v_sub.subscription_id;
  if c.hi is null or v_is_lost or c.carried_to is not null then
    c := trunq_queue._lanespecimen_check_start(c, v_sub.start, v_is_lost);
  end if;
  v_is_watched := v_policy.is_watched is true or v_sub.in_order is true or c.carried_to is not null;
  v_current := trunq.snapshot(); v_xmax_before := pg_snapshot_xmax(c.hi); v_more := c.last_txid < v_xmax_before;
  if v_xmax_before > pg_snapshot_xmax(v_current) then
    perform trunq._check_position(c.hi, v_current);
  end if;
  select not v_is_watched and exists (
      select from unnest(c.classes, c.heads) u(class, head) cross join lateral (
        select from trunq_data._lanespecimen_turn t
        where t.subscription_id = v_sub.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
        limit 1) t),
    not v_more and (exists (select from pg_snapshot_xip(c.hi) x where pg_visible_in_snapshot(x, v_current)) or exists (
      select from trunq_log._specimen g
      where (g.txid, g.id) > (pg_snapshot_xmax(c.hi), 0) and g.txid < pg_snapshot_xmax(v_current) limit 1))
  into v_is_waited, v_is_new;
  -- Nobody waits, and perhaps everything new fits into this lease: then it goes out as it came, and no lane is touched.
  if v_is_new and not v_is_watched and not v_is_waited then
    c.lease_id := nextval('trunq_data._specimen_lease_id'); c.token := trunq._token();
    return query select * from trunq_queue._lanespecimen_lease_whole(c, v_sub.max_attempts, v_sub.has_cancelled,
      v_sub.filter, v_policy.policy, v_current, p_max_messages, p_max_bytes, c.leased_at - v_sub.max_age);
    if found then
      return;
    elsif pg_current_xact_id_if_assigned() is not null and exists (
        select from trunq_data._lanespecimen_lease l
        where l.subscription_id = v_sub.subscription_id and l.lease_id = c.lease_id) then
      return query select * from trunq_queue._specimen_sort_out(v_sub.subscription_id, c.lease_id, c.leased_at);
      perform trunq_queue._lanespecimen_make_room(v_sub.subscription_id, c.lease_id);
      return;
    end if;
  end if;
  loop
    v_turns := trunq_queue._lanespecimen_next_turns(c, case when v_more or v_is_new or v_is_watched then v_sub end,
      v_policy, v_is_watched, v_current, v_is_new, p_max_messages, v_buried, v_more, v_step, v_round, v_is_deep);
    c := v_turns.c; v_more := v_turns.more; v_is_changed := v_is_changed or v_turns.is_changed;
    exit when v_turns.turns is null;
    v_step := v_turns.step; v_is_deep := v_turns.is_deep;
    c.lease_id := nextval('trunq_data._specimen_lease_id'); c.token := trunq._token();
    return query select * from trunq_queue._lanespecimen_lease_turns(c, v_sub.in_order, v_sub.max_attempts,
      v_sub.has_cancelled, v_sub.filter, v_turns.turns, v_turns.shares, v_turns.limits, v_turns.segments,
      v_turns.most, v_turns.live, v_is_watched, p_max_bytes, c.leased_at - v_sub.max_age);
    if found then return; end if;
    -- Turns that had nothing are over.
    select l.heads, l.turn_no, l.size into c.heads, c.turn_no, v_size from trunq_data._lanespecimen_lease l
    where l.subscription_id = v_sub.subscription_id and l.lease_id = c.lease_id;
    v_is_changed := false; v_round := v_turns.round + 1;
    if v_size > 0 then
      return query select * from trunq_queue._specimen_sort_out(v_sub.subscription_id, c.lease_id, c.leased_at);
      get diagnostics v_count = row_count;
      perform trunq_queue._lanespecimen_make_room(v_sub.subscription_id, c.lease_id);
      -- Whatever comes behind them is not hidden by them: these rounds do not count.
      v_buried := v_buried + v_size - v_count; v_round := 0;
      if v_count > 0 or trunq._has_buried_long(0 /*queue_id*/, v_buried, v_started) then
        return;
      end if;
    end if;
  end loop;
  -- What was found out is noted, and that it took long, or the next look would do it again.
  if v_is_changed or pg_snapshot_xmax(c.hi)::text::bigint - v_xmax_before::text::bigint > 1000
      or clock_timestamp() - v_started > '3 milliseconds' then
    perform trunq_queue._lanespecimen_note_look(c);
  end if;
end $$;
revoke execute on function trunq_queue._lanespecimen_lease from public;
comment on function trunq_queue._lanespecimen_lease is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker, from the lanes whose turn it is.
Returns: one row a message, all of one lease; none when there is nothing, or after 2 seconds in which it found only such messages: lease again (workers are told).
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when messages were lost.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq_queue._lanespecimen_lease_whole(
  c trunq_data._lanespecimen_lease, p_max_attempts integer, p_has_cancelled boolean, p_filter jsonb, p_policy text,
  p_current pg_snapshot, p_max_messages integer, p_max_bytes bigint, p_oldest timestamptz
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_all constant boolean := p_filter is null;
  v_kinds text[]; v_not_kinds text[]; v_keys text[]; v_not_keys text[]; v_headers jsonb; v_not_headers jsonb[];
begin
  if not v_all then
    select f.* into v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers
    from trunq._read_filter(p_filter) f;
  end if;
  return query
    with batch as materialized (
      (select m.* from unnest(array(
         select x from pg_snapshot_xip(c.hi) x where pg_visible_in_snapshot(x, p_current))) late(txid)
       cross join lateral (
         select g.*, trunq_queue._specimen_key_hold(g) hold from trunq_log._specimen g
         where g.txid = late.txid order by g.id limit p_max_messages + 1) m
       limit p_max_messages + 1)
      union all
      (select g.*, trunq_queue._specimen_key_hold(g) from trunq_log._specimen g
       where (g.txid, g.id) > (pg_snapshot_xmax(c.hi), 0) and g.txid < pg_snapshot_xmax(p_current)
         and pg_visible_in_snapshot(g.txid, p_current)
       order by g.txid, g.id limit p_max_messages + 1)
      limit p_max_messages + 1),
    total as (
      select count(*) n, sum(trunq._message_bytes(b.kind, b.key, b.payload, b.body, b.headers)) bytes,
        coalesce(max(b.expiries), 0) expiries from batch b),
    own as materialized (
      select b.* from batch b cross join total t
      where t.n <= p_max_messages and t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/)
        and t.expiries <= 1
        and (b.subscription_id = c.subscription_id or b.subscription_id is null and (v_all
          or trunq._passes(
            v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers, b.kind, b.key, b.headers)))
      order by case when p_policy = 'priority' then b.priority else 0 end, b.txid, b.id),
    made as (
      insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid,
        last_id, epoch, turn_no, wake_lo, timer_at, classes, heads, min_txid, max_txid, size, ids, txids, leased_at,
        expires_at, tokens, tokens_at, open_leases, awaited, keyed)
      select c.lease_id, c.subscription_id, c.token, c.worker, c.hi, p_current, pg_snapshot_xmax(p_current), 0,
        c.epoch + 1, c.turn_no, c.wake_lo, c.timer_at, c.classes, c.heads, a.min_txid, a.max_txid, a.n, a.ids,
        a.txids, c.leased_at, c.expires_at,
        c.tokens - a.n, c.tokens_at, case when c.open_leases is not null then c.open_leases || c.lease_id end,
        a.awaited, a.keyed
      from (select count(*)::integer n, array_agg(o.id) ids, array_agg(o.txid) txids,
          min(o.txid)::text::bigint min_txid, max(o.txid)::text::bigint max_txid,
          array_agg(o.id) filter (where o.options->>'awaited' is not null) awaited,
          case when count(o.hold) > 0 then trunq_queue._specimen_note_keys(
            array_agg(o.id) filter (where (o.hold).is_keyed),
            array_agg(o.id) filter (where (o.hold).is_freed)) end keyed
        from own o) a
      where a.n > 0)
    select c.lease_id, c.token, o.id, o.attempt, coalesce((o.options->>'max_attempts')::integer, p_max_attempts),
      o.kind::text, o.key::text, o.payload::jsonb, o.body::bytea, o.headers::jsonb, o.priority::smallint,
      o.created_at, c.expires_at, o.options::jsonb
    from own o
    -- Where one is over, none is handed out here, and it is sorted out below.
    where not exists (
      select from own x
      where trunq._fate_of(
          x.options, x.created_at, c.leased_at, p_oldest, p_has_cancelled, c.subscription_id, x.id) is not null
        or trunq_queue._specimen_replaces() and exists (
          select from trunq_queue._specimen_replaced_by(x.hold, x.attempt)));
end $$;
comment on function trunq_queue._lanespecimen_lease_whole is
  'Leases all that is new at once, if it fits. It hands out none of them if one is for nobody, and leaves them to be sorted out. With the settings of the lease, which calls it.';

create or replace function trunq_queue._lanespecimen_lease_turns(
  c trunq_data._lanespecimen_lease, p_in_order boolean, p_max_attempts integer, p_has_cancelled boolean, p_filter jsonb,
  p_turns trunq_data._lanespecimen_turn[], p_shares integer[], p_limits integer[], p_segments smallint[],
  p_most integer, p_live integer, p_is_watched boolean, p_max_bytes bigint, p_oldest timestamptz
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_own constant integer := case when not p_in_order then c.subscription_id end;
  v_all constant boolean := p_filter is null;
  v_kinds text[]; v_not_kinds text[]; v_keys text[]; v_not_keys text[]; v_headers jsonb; v_not_headers jsonb[];
begin
  if not v_all then
    select f.* into v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers
    from trunq._read_filter(p_filter) f;
  end if;
  return query
    with share as materialized (
      select s.* from rows from (unnest(p_turns), unnest(p_shares), unnest(p_limits)) with ordinality s(
        seq, subscription_id, segment, priority, class, left_over, state, lane, epoch, last_txid, last_id, lease_id,
        due_at, tokens, tokens_at, lo, hi, open_leases, open_ids, again_txids, again_ids, n, max_running, at)),
    numbered as materialized (
      select f.* from (
        select s.at turn, s.lane, m.* from share s cross join lateral trunq_queue._lanespecimen_coming_of_lane(
          s.priority, s.lane, s.epoch, s.last_txid, s.last_id, s.lo, s.hi, s.again_txids, s.again_ids, s.n, c.epoch,
          c.hi, p_segments, c.subscription_id, v_own, v_all,
          v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers) m
        where s.n > 0 limit p_most) f),
    -- Cut by bytes, and before a suspect, which is leased alone, before anything is recorded.
    cut as materialized (
      select t.n, case when t.expiries > 1 then (select n.expiries > 1 from numbered n limit 1) end is_suspect,
        case when p_live is null and t.expiries <= 1
            and t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/) then t.n
          else (select trunq._cut(t.n, p_max_bytes, p_live, array_agg(n.expiries),
              array_agg(trunq._message_bytes(n.kind, n.key, n.payload, n.body, n.headers)),
              case when p_live is not null then array_agg(
                trunq._fate_of(n.options, n.created_at, c.leased_at, p_oldest, p_has_cancelled, c.subscription_id,
                  n.id) is null
                and not (trunq_queue._specimen_replaces() and exists (
                  select from trunq_queue._specimen_replaced_by(n.hold, n.attempt)))) end)
            from numbered n) end size
      from (
        select count(*)::integer n, coalesce(max(n.expiries), 0) expiries,
          sum(trunq._message_bytes(n.kind, n.key, n.payload, n.body, n.headers)) bytes
        from numbered n) t),
    batch as not materialized (select n.* from numbered n limit (select u.size from cut u)),
    last_turn as materialized (
      -- Of a lease that is full: turns behind it keep their place.
      select case when u.size < u.n or u.n >= p_most then (
        select n.turn from numbered n offset u.size - 1 limit 1) end at from cut u),
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
      from last_turn t cross join share s left join given v on v.turn = s.at where s.at <= coalesce(t.at, s.at)),
    next as (
      insert into trunq_data._lanespecimen_turn (seq, subscription_id, priority, lane, class, state, lo, hi, epoch,
        last_txid, last_id, left_over, lease_id, due_at, open_leases, open_ids, tokens, tokens_at, again_txids,
        again_ids)
      select nextval('trunq_data._lanespecimen_turn_id'), c.subscription_id, t.priority, t.lane, t.class,
        case when t.n = 0 and t.due_at is not null then 'p' when t.n = 0 then 'b' when t.is_done then 'i'
          when t.max_running <= coalesce(cardinality(t.open_leases), 0) + t.given then 'b' else 'r' end::"char",
        case when t.is_next then t.hi else t.lo end, case when t.is_next then c.hi else t.hi end,
        case when t.is_next or t.is_done then greatest(c.epoch, t.epoch) else t.epoch end,
        coalesce(t.to_txid, t.last_txid), coalesce(t.to_id, t.last_id),
        case when not t.is_next then t.left_over - t.walked end, c.lease_id, case when t.n = 0 then t.due_at end,
        case when t.max_running is not null then t.open_leases || array_fill(c.lease_id, array[t.given]) end,
        case when t.max_running is not null then t.open_ids || t.ids end,
        t.tokens - t.given, case when t.tokens is not null then c.leased_at end,
        case when t.n > 0 then t.again_txids[2:] else t.again_txids end,
        case when t.n > 0 then t.again_ids[2:] else t.again_ids end
      from (select t.* from taken t where t.n >= 0 order by t.at) t),
    made as (
      insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
        epoch, turn_no, looked, jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, min_txid,
        max_txid, size, ids, txids, priorities, lanes, leased_at, expires_at, is_suspect, tokens, tokens_at,
        open_leases, awaited, keyed)
      select c.lease_id, c.subscription_id, c.token, c.worker, c.lo, c.hi, c.last_txid, c.last_id, c.epoch,
        c.turn_no + 1, c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo, c.timer_at, c.classes, array(
          select greatest(u.head, (select max(t.seq) from taken t where t.class = u.class))
          from unnest(c.classes, c.heads) with ordinality u(class, head, at) order by u.at),
        -- Of what the turns record; and the ids of what is handed out: a constraint compares them.
        a.min_txid, a.max_txid, nullif((select sum(t.given) from taken t where t.n >= 0), 0), a.ids, a.txids,
        a.priorities, a.lanes, c.leased_at, case when a.ids is not null then c.expires_at end,
        nullif((select u.is_suspect from cut u), false), c.tokens - coalesce(cardinality(a.ids), 0), c.tokens_at,
        case when a.ids is null or c.open_leases is null then c.open_leases else c.open_leases || c.lease_id end,
        a.awaited, a.keyed
      from (
        select array_agg(b.id) ids, array_agg(b.txid) txids, min(b.txid)::text::bigint min_txid,
          max(b.txid)::text::bigint max_txid, array_agg(b.priority) filter (where p_is_watched) priorities,
          array_agg(b.lane) filter (where p_is_watched) lanes,
          array_agg(b.id) filter (where b.options->>'awaited' is not null) awaited,
          case when count(b.hold) > 0 then trunq_queue._specimen_note_keys(array_agg(b.id)
            filter (where (b.hold).is_keyed), array_agg(b.id) filter (where (b.hold).is_freed)) end keyed
        from batch b) a)
    select c.lease_id, c.token, b.id, b.attempt, coalesce((b.options->>'max_attempts')::integer, p_max_attempts),
      b.kind::text, b.key::text, b.payload::jsonb, b.body::bytea, b.headers::jsonb, b.priority, b.created_at,
      c.expires_at, b.options::jsonb
    from batch b where not exists (
      select from batch x
      where trunq._fate_of(
          x.options, x.created_at, c.leased_at, p_oldest, p_has_cancelled, c.subscription_id, x.id) is not null
        or trunq_queue._specimen_replaces() and exists (
          select from trunq_queue._specimen_replaced_by(x.hold, x.attempt)));
end $$;
comment on function trunq_queue._lanespecimen_lease_turns is
  'Leases from turns in their order, of each its share; p_most: messages at most, and of those to be handed out p_live, if it is given. It hands out none if one of them is for nobody, and leaves them to be sorted out. With the settings of the lease, which calls it.';
