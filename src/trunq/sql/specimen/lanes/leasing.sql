-- What a lease of a queue with lanes (lease.sql) is made of: where it goes on from, which turns it takes, and what
-- comes next of a lane. c is the lease that is being made. All of it with the settings of the lease, which calls it.

create or replace function trunq_queue._lanespecimen_check_start(
  c trunq_data._lanespecimen_lease, p_start pg_snapshot, p_is_lost boolean
) returns trunq_data._lanespecimen_lease
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if c.hi is null then
    c.lo := p_start; c.hi := p_start; c.last_txid := pg_snapshot_xmax(p_start); c.last_id := 0; c.epoch := 0;
    c.turn_no := 0; c.looked := 0; c.wake_lo := p_start; c.classes := '{}'; c.heads := '{}';
  elsif p_is_lost then
    perform trunq._check_loss(c.subscription_id);
  end if;
  if c.carried_to is not null and not exists (
      select from unnest(c.classes, c.heads) u(class, head) cross join lateral (
        select from trunq_data._lanespecimen_turn t
        where t.subscription_id = c.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
          and t.seq <= c.carried_to limit 1) t) then
    c.carried_to := null;
  end if;
  return c;
end $$;
comment on function trunq_queue._lanespecimen_check_start is
  'Where a lease starts from that is not like most: before all, or after a loss (TQ026); carried_to: there are turns up to it that rotation copied, and whose lanes may have newer ones, else null.';

create or replace function trunq_queue._lanespecimen_next_turns(
  inout c trunq_data._lanespecimen_lease, p_sub trunq.subscription, p_policy trunq.lane_policy, p_is_watched boolean,
  p_current pg_snapshot, p_is_new boolean, p_max_messages integer, p_buried integer, inout more boolean,
  inout step integer, inout round integer, inout is_deep boolean, out is_changed boolean,
  out turns trunq_data._lanespecimen_turn[], out shares integer[], out limits integer[], out segments smallint[],
  out most integer, out live integer
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  c_lanes constant integer := 25;      -- lanes among which a lease is divided
  c_favour constant integer := 8;      -- each so manieth lease goes to the oldest turn
  c_bury constant integer := 100;      -- messages that a step buries at least, if there are so many
  v_found record; v_new integer[] := '{}'; v_classes integer[]; v_heads bigint[]; v_take integer; v_share integer;
  v_weight bigint; v_floor xid8;
begin
  is_changed := false;
  -- Among those that are buried, it hands out no more than it was asked for (live), and looks at more.
  most := case when p_buried = 0 then p_max_messages else greatest(p_max_messages, c_bury) end;
  -- In order each lane gives one message.
  v_take := case when p_sub.in_order then most else least(2 * most, 4 * c_lanes) end + 20;
  -- To weigh a turn costs more than to read it: no more than have twice as much as is asked for.
  v_share := case when p_sub.in_order then 1 else least(ceil(most::numeric / c_lanes), p_policy.max_running) end;
  loop
    if round is null or round >= 20 then
      -- Behind window 0, of a queue that got lanes later, may be more, and this lease has not asked.
      exit when step >= 20 or step > 0 and not more and c.epoch > 0;
      step := step + 1; round := 0;
      -- 1. Discovery: reads what is new once, and lines up the lanes that were idle.
      if not more and (step = 1 or c.epoch = 0) then
        more := p_is_new or step > 1;
        c.lo := c.hi; c.hi := p_current; c.last_txid := case when more then '0' else pg_snapshot_xmax(c.hi) end;
        c.last_id := 0; c.epoch := c.epoch + 1; c.looked := 0; c.jump_priority := null; c.jump_lane := null;
      end if;
      if more then
        v_found := trunq_queue._lanespecimen_discover(c, p_sub, p_policy, p_is_watched);
        c := v_found.c; more := v_found.more; v_new := v_found.classes; is_changed := is_changed or v_found.is_changed;
      end if;
      if p_is_watched and step = 1 then
        -- 2. What became free: by a wake, or by its time, which never goes back.
        v_found := trunq_queue._lanespecimen_look_again(c, p_sub, p_policy, p_current, c.leased_at);
        c := v_found.c; c.leased_at := c.timer_at; v_new := v_new || v_found.classes;
        is_changed := is_changed or v_found.is_changed;
      end if;
      if not v_new <@ c.classes then
        select array_agg(u.class order by u.class),
          array_agg(coalesce(c.heads[array_position(c.classes, u.class)], 0) order by u.class)
        into v_classes, v_heads from (select unnest(c.classes || v_new) class group by 1) u;
        c.classes := v_classes; c.heads := v_heads;
      end if;
    end if;
    -- 3. Turns in their order. The best class first; each eighth lease the one that has waited longest.
    v_classes := c.classes; v_heads := c.heads;
    if cardinality(c.classes) > 1 then
      select array_agg(u.class order by u.place), array_agg(u.head order by u.place) into v_classes, v_heads
      from (
        select u.class, u.head, case when c.turn_no % c_favour = c_favour - 1 then t.seq else u.class end place
        from unnest(c.classes, c.heads) u(class, head) cross join lateral (
          select t.seq from trunq_data._lanespecimen_turn t
          where t.subscription_id = c.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
          order by t.seq limit 1) t) u;
    end if;
    -- In the order of their numbers, as they come.
    select array_agg(t.turn), sum(1) filter (where t.at <= c_lanes and (t.turn).class = v_classes[1]),
      min(least(case when (t.turn).last_txid = '0' then pg_snapshot_xmin((t.turn).lo) else (t.turn).last_txid end,
        pg_snapshot_xmin((t.turn).hi), (t.turn).again_txids[1]))
    into turns, v_weight, v_floor
    from (
      select t turn, row_number() over () at, p_is_watched and sum(least(t.left_over, v_share)) over (
        rows between unbounded preceding and 1 preceding) >= 2 * most is_enough
      from unnest(v_classes, v_heads) u(class, head) cross join lateral (
        select t.* from trunq_data._lanespecimen_turn t
        where t.subscription_id = c.subscription_id and t.state = 'r' and t.class = u.class and t.seq > u.head
        order by t.seq limit v_take) t
      limit v_take) t
    where t.at <= c_lanes or t.is_enough is not true;
    if turns is not null then
      if p_is_watched then
        select w.turns, w.shares, w.limits into turns, shares, limits
        from trunq_queue._lanespecimen_weigh(turns, p_sub, p_policy, c.leased_at, most, c_lanes) w;
      else
        -- Rounded up: a lesser class gets something only when this one has no more.
        shares := array_fill(ceil(most::numeric / v_weight)::integer, array[cardinality(turns)]);
      end if;
      if p_buried > 0 then
        select b.* into turns, shares, limits, live, is_deep from trunq_queue._lanespecimen_look_deep(
          turns, shares, limits, most, p_max_messages, p_is_watched, is_deep) b;
      end if;
      segments := array(
        select s.n::smallint from generate_series(0, 3 /*last_segment*/) s(n)
        where (select g.txid from trunq_log._specimen g where g.segment = s.n order by g.txid desc, g.id desc limit 1)
          >= v_floor);
      return;
    end if;
    round := null; v_new := '{}';
  end loop;
end $$;
comment on function trunq_queue._lanespecimen_next_turns is
  'Finds the turns that a lease takes, in their order: the share of each, what may run of it, and the segments that have rows of them; turns null: no lane waits. First, and again where round is null, it makes a step of discovery, until it came to the end of its window (more). most: how many messages the lease looks at; live: how many of them it hands out, where it buries some.';

create or replace function trunq_queue._lanespecimen_look_deep(
  inout turns trunq_data._lanespecimen_turn[], inout shares integer[], inout limits integer[], p_most integer,
  p_max_messages integer, p_is_watched boolean, out live integer, inout is_deep boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_at integer; v_count integer; v_sum integer;
begin
  live := p_max_messages;
  if p_is_watched then
    -- What is buried takes no place in its lane. By turns, all are looked at, and one is gone through beyond its share.
    select min(u.at), count(*), sum(u.share) into v_at, v_count, v_sum
    from unnest(shares) with ordinality u(share, at) where u.share > 0;
    is_deep := not is_deep or v_count = 1;
    if is_deep and v_sum < p_most and coalesce(cardinality((turns[v_at]).again_ids), 0) = 0 then
      live := least(live, shares[v_at]);
      turns := turns[1:v_at]; limits := limits[1:v_at]; shares := shares[1:v_at - 1] || p_most;
    end if;
  end if;
end $$;
comment on function trunq_queue._lanespecimen_look_deep is
  'Of a lease that buries messages: the turns, whose shares are of all that it looks at (p_most), and how many it hands out.';

create or replace function trunq_queue._lanespecimen_coming_of_lane(
  p_priority smallint, p_lane text, p_epoch bigint, p_last_txid xid8, p_last_id bigint, p_lo pg_snapshot,
  p_hi pg_snapshot, p_again_txids xid8[], p_again_ids bigint[], p_share integer, p_new_epoch bigint,
  p_new_hi pg_snapshot, p_segments smallint[], p_subscription_id integer, p_own integer, p_all boolean,
  p_kinds text[], p_not_kinds text[], p_keys text[], p_not_keys text[], p_headers jsonb, p_not_headers jsonb[]
) returns table (
  txid xid8, id bigint, attempt smallint, kind text, key text, payload jsonb, body bytea,
  headers jsonb, priority smallint, created_at timestamptz, expiries smallint, options jsonb,
  hold trunq.key_hold, is_next boolean, is_again boolean
)
-- No settings here: Postgres then puts the query in the place of its call.
language sql stable as $$
  select m.txid, m.id, m.attempt, m.kind::text, m.key::text, m.payload::jsonb, m.body::bytea,
    m.headers::jsonb, m.priority::smallint, m.created_at,
    m.expiries, m.told, m.hold, m.is_next, m.is_again
  from (
    -- The message for which the lane was held.
    (select g.*, trunq_queue._specimen_told_options(g) told, trunq_queue._specimen_key_hold(g) hold,
       false is_next, true is_again
     from trunq_log._specimen g
     where p_again_ids operator(pg_catalog.<>) '{}' and g.segment operator(pg_catalog.=) any (p_segments)
       and trunq._is_row(g.txid, g.id, g.subscription_id, p_again_txids[1], p_again_ids[1], p_subscription_id)
     limit 1)
    union all
    -- Of its window, and then of the one from there to what discovery looks at: what committed late, then the range.
    (select m.*, w.is_next, false
     from (values (p_lo, p_hi, p_last_txid, p_last_id, false), (p_hi, p_new_hi, '0'::xid8, 0::bigint, true))
       w(lo, hi, last_txid, last_id, is_next)
     cross join lateral (
       (select l.*
        from pg_catalog.unnest(array(
          select x from pg_catalog.pg_snapshot_xip(w.lo) x
          where x operator(pg_catalog.>=) w.last_txid
            and w.last_txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(w.lo)
            and pg_catalog.pg_visible_in_snapshot(x, w.hi))) late(txid)
        cross join lateral (
          select g.*, trunq_queue._specimen_told_options(g), trunq_queue._specimen_key_hold(g)
          from trunq_log._specimen g
          where g.priority operator(pg_catalog.=) p_priority
            and coalesce(g.key, '') /*lane*/ collate "C" operator(pg_catalog.=) p_lane
            and g.segment operator(pg_catalog.=) any (p_segments) and g.txid operator(pg_catalog.=) late.txid
            and g.id operator(pg_catalog.>)
              case when late.txid operator(pg_catalog.=) w.last_txid then w.last_id else 0 end
            and (g.subscription_id is null and p_all or g.subscription_id operator(pg_catalog.=) p_own
              or trunq._lane_gets(p_subscription_id, g.subscription_id, g.expiries, p_kinds, p_not_kinds, p_keys,
                p_not_keys, p_headers, p_not_headers, g.kind, g.key,
                trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))))
          order by g.id limit p_share) l
        limit p_share)
       union all
       (select g.*, trunq_queue._specimen_told_options(g), trunq_queue._specimen_key_hold(g) from trunq_log._specimen g
        where g.priority operator(pg_catalog.=) p_priority
          and coalesce(g.key, '') /*lane*/ collate "C" operator(pg_catalog.=) p_lane
          and g.segment operator(pg_catalog.=) any (p_segments)
          and (g.txid, g.id) operator(pg_catalog.>) (greatest(w.last_txid, pg_catalog.pg_snapshot_xmax(w.lo)),
            case when w.last_txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(w.lo) then 0 else w.last_id end)
          and g.txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(w.hi)
          and pg_catalog.pg_visible_in_snapshot(g.txid, w.hi)
          and (g.subscription_id is null and p_all or g.subscription_id operator(pg_catalog.=) p_own
            or trunq._lane_gets(p_subscription_id, g.subscription_id, g.expiries, p_kinds, p_not_kinds, p_keys,
              p_not_keys, p_headers, p_not_headers, g.kind, g.key,
                trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))))
        order by g.txid, g.id limit p_share)) m
     where not w.is_next or p_epoch operator(pg_catalog.<) p_new_epoch)) m
  limit p_share
$$;
comment on function trunq_queue._lanespecimen_coming_of_lane is
  'What comes next of a lane, behind where its turn stands, as many as its share. is_next: behind the window of the turn; is_again: it is the message for which the lane was held.';

create or replace function trunq_queue._lanespecimen_note_look(c trunq_data._lanespecimen_lease) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  insert into trunq_data._lanespecimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
    epoch, turn_no, looked, jump_priority, jump_lane, carried_to, wake_lo, timer_at, classes, heads, leased_at,
    tokens, tokens_at, open_leases)
  values (nextval('trunq_data._specimen_lease_id'), c.subscription_id, trunq._token(), c.worker, c.lo, c.hi,
    c.last_txid, c.last_id, c.epoch, c.turn_no, c.looked, c.jump_priority, c.jump_lane, c.carried_to, c.wake_lo,
    c.timer_at, c.classes, c.heads, c.leased_at, c.tokens, c.tokens_at, c.open_leases);
end $$;
comment on function trunq_queue._lanespecimen_note_look is 'Writes a lease of no messages, which keeps what was found out.';
