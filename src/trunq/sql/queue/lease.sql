-- A lease is a worker's hold on some messages until a time, and the position of its subscription after them: one
-- inserted row. The newest lease of a subscription is its cursor; no cursor row is ever updated. What a reader is to
-- read is its window (functions/window.sql); a window that is used up has last_txid = xmax(hi), and the next one starts
-- where it ended.
--
-- Every lease of a subscription is taken under its lock, and hi is read after the lock was got: positions never cross.
-- Rows are read by a later statement than hi, so everything hi sees is there.

create or replace function trunq_queue._specimen_lease(
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
-- Without statistics, only a walk of the index (txid, id) that stops early costs the same whatever the backlog; one
-- plan serves all calls.
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  c_walk constant integer := trunq._limit('walk_rows');
  c_bury constant integer := 100;     -- messages that a step buries at least, if there are so many
  v_sub record; v_row record;
  v_lo pg_snapshot; v_hi pg_snapshot; v_last_txid xid8; v_last_id bigint;
  v_late xid8[]; v_from_txid xid8; v_from_id bigint;
  v_lease_id bigint; v_token bigint; v_now timestamptz; v_expires_at timestamptz;
  v_started timestamptz := clock_timestamp();
  v_opened boolean := false; v_walked integer := 0; v_moved boolean := false; v_count integer;
  v_place_txid xid8; v_place_id bigint; v_xmax_before xid8;
  v_all boolean; v_kinds text[]; v_not_kinds text[]; v_keys text[]; v_not_keys text[]; v_headers jsonb;
    v_not_headers jsonb[];
  v_buried integer := 0; v_most integer; v_size integer;
  v_tokens double precision; v_tokens_at timestamptz; v_open bigint[]; v_is_lost boolean;
begin
  -- One condition for all that is unusual.
  if current_setting('transaction_isolation') <> 'read committed'
      or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
      or p_max_messages is null or p_max_messages not between 1 and 10000 /*limit lease_messages*/
        or p_lease_time not between '1 microsecond' and '1000 years' then
    perform trunq._check_lease(p_max_messages, p_lease_time);
  end if;
  select s.subscription_id, s.mode, s.start, s.max_attempts, coalesce(p_lease_time, s.lease_time) lease_time,
    s.is_limited, s.filter, s.has_cancelled into v_sub
  from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_sub.mode is distinct from 'shared' then
    perform trunq._subscription('_specimen', p_subscription, 'shared');
    -- It did not say what is missing: the subscription was made just now.
    return query select * from trunq_queue._specimen_lease(p_subscription, p_worker, p_max_messages, p_lease_time,
      p_max_bytes);
    return;
  end if;
  if not pg_try_advisory_xact_lock(1953656418 /*lock subscription*/, v_sub.subscription_id) then
    perform trunq._wait_for_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  end if;
  v_now := trunq.clock();
  v_expires_at := v_now + v_sub.lease_time;
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

  select l.lo, l.hi, l.last_txid, l.last_id, l.worker = 'lost' into v_lo, v_hi, v_last_txid, v_last_id, v_is_lost
  from trunq_data._specimen_lease l where l.subscription_id = v_sub.subscription_id
  order by l.lease_id desc limit 1;
  if v_is_lost then
    -- Said by the newest lease: what was read of the subscription before its lock may be older.
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  if v_hi is null then
    v_hi := v_sub.start; v_last_txid := pg_snapshot_xmax(v_sub.start); v_last_id := 0;
  end if;
  v_xmax_before := pg_snapshot_xmax(v_hi);
  loop
    if v_last_txid >= pg_snapshot_xmax(v_hi) then
      exit when v_opened;
      v_lo := v_hi; v_hi := trunq.snapshot(); v_last_txid := '0'; v_last_id := 0; v_opened := true;
      if pg_snapshot_xmax(v_lo) > pg_snapshot_xmax(v_hi) then
        perform trunq._check_position(v_lo, v_hi);
      end if;
    end if;
    if v_last_txid < pg_snapshot_xmax(v_lo) then
      v_late := array(select x from pg_snapshot_xip(v_lo) x where x >= v_last_txid and pg_visible_in_snapshot(x, v_hi));
      v_from_txid := pg_snapshot_xmax(v_lo); v_from_id := 0;
    else
      v_late := '{}'; v_from_txid := v_last_txid; v_from_id := v_last_id;
    end if;
    v_count := 0; v_size := null;
    -- Among those that are buried, one hands out no more than it was asked for, and looks at more.
    v_most := case when v_buried = 0 then p_max_messages else greatest(p_max_messages, c_bury) end;
    if v_most = 1 and v_late = '{}' then
      -- The same as 2 below, for one message: Postgres then prepares a third of the plan nodes.
      select w.* into v_row from (
        select g.* from trunq_log._specimen g
        where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
        order by g.txid, g.id limit c_walk) w
      where pg_visible_in_snapshot(w.txid, v_hi)
        and (w.subscription_id = v_sub.subscription_id or w.subscription_id is null and (v_all or trunq._passes(
          v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers, w.kind, w.key, w.headers)))
      limit 1;
      if found then
        lease_id := nextval('trunq_data._specimen_lease_id'); token := trunq._token();
        insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
          min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
          awaited/*unique , keyed*/)
        values (lease_id, v_sub.subscription_id, token, p_worker, v_lo, v_hi, v_row.txid, v_row.id,
          v_row.txid::text::bigint, v_row.txid::text::bigint, 1, array[v_row.id], array[v_row.txid], v_now,
          v_expires_at, nullif(v_row.expiries > 1, false), v_tokens - 1, v_tokens_at,
          case when v_open is not null then v_open || lease_id end,
          case when v_row.options->>'awaited' is not null then array[v_row.id] end/*unique ,
          case when v_row.unique_until = 'd' or v_row.unique_until = 't' and 'refuse' /*unique_policy*/ = 'replace'
            then array[v_row.id] end*/);
/*unique         if v_row.unique_until = 'l' and v_row.attempt = 1 then
          insert into trunq_data._uniquespecimen_freed (id) values (v_row.id);
        end if;
*/        if (v_sub.has_cancelled or v_row.options is not null)
              and trunq._fate(
                v_row.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, v_row.id) is not null/*replace
            or v_row.unique_key is not null and trunq_queue._uniquespecimen_replaced_by(
                v_row.unique_key, v_row.unique_turn, v_row.attempt) is not null*/ then
          v_lease_id := lease_id; v_size := 1; v_place_txid := v_row.txid; v_place_id := v_row.id;
        else
          id := v_row.id; attempt := v_row.attempt; kind := v_row.kind; key := v_row.key;
          payload := v_row.payload; body := v_row.body; headers := v_row.headers; priority := v_row.priority;
          created_at := v_row.created_at; expires_at := v_expires_at; options := v_row.options;
          max_attempts := v_sub.max_attempts;
          if options is not null then
            max_attempts := coalesce((options->>'max_attempts')::integer, max_attempts);
          end if;
          return next;
          return;
        end if;
      end if;
    else
      v_lease_id := nextval('trunq_data._specimen_lease_id');
      v_token := trunq._token();
      return query
        with batch as materialized (
          -- 1. Late ones, each transaction by itself. No sort: the snapshot lists them in order, and a sort would
          -- read all.
          (select m.id, m.txid, m.attempt, m.kind, m.key, m.payload, m.body, m.headers, m.priority, m.created_at,
            m.expiries, m.options/*unique , m.unique_key, m.unique_turn, m.unique_until*/
           from unnest(v_late) late(txid) cross join lateral (
             select g.* from trunq_log._specimen g
             where g.txid = late.txid and g.id > case when late.txid = v_last_txid then v_last_id else 0 end
               and (g.subscription_id = v_sub.subscription_id or g.subscription_id is null
                 and (v_all or trunq._passes(
                   v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers, g.kind, g.key, g.headers)))
             order by g.id limit v_most) m
           limit v_most)
          union all
          -- 2. The range. One row comparison is one start key; the walk ends after c_walk index rows, for this reader
          -- or not.
          (select w.id, w.txid, w.attempt, w.kind, w.key, w.payload, w.body, w.headers, w.priority, w.created_at,
            w.expiries, w.options/*unique , w.unique_key, w.unique_turn, w.unique_until*/
           from (
             select g.* from trunq_log._specimen g
             where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
             order by g.txid, g.id limit c_walk) w
           where pg_visible_in_snapshot(w.txid, v_hi)
             and (w.subscription_id = v_sub.subscription_id or w.subscription_id is null
               and (v_all or trunq._passes(
                 v_kinds, v_not_kinds, v_keys, v_not_keys, v_headers, v_not_headers, w.kind, w.key, w.headers)))
           limit v_most)
          union all
          -- 3. Where the walk ended, if it did: attempt 0 marks it. Reached only when 1 and 2 did not fill the lease.
          -- Before that row: one of this reader may have the same place as another's (functions/place.sql), and come
          -- behind it.
          (select g.id - 1, g.txid, 0::smallint, null, null, null::jsonb, null::bytea, null::jsonb, 0::smallint,
            null::timestamptz, null::smallint,
            null::jsonb/*unique , null::trunq.unique_key, null::bigint, null::"char"*/
           from trunq_log._specimen g
           where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
           order by g.txid, g.id offset c_walk - 1 limit 1)
          limit v_most
        ),
        total as (
          select array_agg(b.id) ids, array_agg(b.txid) txids, count(*)::integer n,
            coalesce(min(b.attempt), 1) = 0 ended,
            sum(trunq._bytes(b.kind, b.key, b.payload, b.body, b.headers)) bytes,
            max(b.expiries) expiries, count(b.options) optioned/*unique ,
            array_agg(b.id) filter (
              where b.unique_until = 'd' or b.unique_until = 't' and 'refuse' /*unique_policy*/ = 'replace') keyed,
            coalesce(bool_or(b.unique_until = 'l' and b.attempt = 1), false) frees*/
          from batch b
        ),
        suspected as (
          -- A suspect is leased alone: where the first one is, counted only when there is one.
          select t.*,
            case when t.expiries > 1 then array_position(array(select b.expiries > 1 from batch b), true) end suspect_at
          from total t
        ),
        taken as materialized (
          select t.ids, t.txids, t.ended, t.n, /*unique t.keyed, t.frees, */nullif(t.suspect_at = 1, false) is_suspect,
            case when t.optioned > 0
              then (select array_agg(b.id) from batch b where b.options->>'awaited' is not null) end awaited,
            least(
              t.suspect_at - (t.suspect_at > 1)::integer,
              case when v_most > p_max_messages then (
                -- Behind the last that it may hand out.
                select x.at from (select b.*, row_number() over ()::integer at from batch b) x
                where trunq._fate(x.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, x.id) is null/*replace
                  and (x.unique_key is null
                    or trunq_queue._uniquespecimen_replaced_by(x.unique_key, x.unique_turn, x.attempt) is null)*/
                order by x.at offset p_max_messages - 1 limit 1) end,
              case when t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/) then t.n - t.ended::integer
                else greatest(1, (
                  select count(*)::integer from (
                    select sum(trunq._bytes(b.kind, b.key, b.payload, b.body, b.headers))
                      over (rows unbounded preceding) bytes
                    from batch b where b.attempt > 0) r
                  where r.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/))) end) size,
            -- Then nothing is handed out here, and what is over is sorted out below.
            case when t.optioned > 0 or v_sub.has_cancelled/*replace  or true*/ then exists (
              select from batch b/*replace
                left join lateral (
                  select n.id by from (
                    select x.* from trunq_data._uniquespecimen_unique x
                    where x.unique_key = b.unique_key order by x.turn desc limit 1) n
                  where n.turn > b.unique_turn
                    and (n.from_turn <= b.unique_turn or b.attempt = 1 and n.until not in ('t', 'q'))) n on true*/
              where trunq._fate(b.options, v_now, v_sub.has_cancelled, v_sub.subscription_id, b.id)
                is not null/*replace  or n.by is not null*/) end is_mixed
          from suspected t
        ),
        made as (
          insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
            min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
            awaited/*unique , keyed*/)
          select v_lease_id, v_sub.subscription_id, v_token, p_worker, v_lo, v_hi,
            case when t.size = t.n - t.ended::integer and not t.ended and t.n < v_most then pg_snapshot_xmax(v_hi)
              when t.size = t.n - t.ended::integer then t.txids[t.n] else t.txids[t.size] end,
            case when t.size = t.n - t.ended::integer and not t.ended and t.n < v_most then 0
              when t.size = t.n - t.ended::integer
                then greatest(t.ids[t.n], case when t.txids[t.size] = t.txids[t.n] then t.ids[t.size] end)
              else t.ids[t.size] end,
            t.txids[1]::text::bigint, t.txids[t.size]::text::bigint, t.size,
            t.ids[1:t.size], t.txids[1:t.size], v_now, v_expires_at, t.is_suspect, v_tokens - t.size, v_tokens_at,
            case when v_open is not null then v_open || v_lease_id end, t.awaited/*unique , t.keyed*/
          from taken t where t.n - t.ended::integer > 0
        )/*unique ,
        freed as (
          insert into trunq_data._uniquespecimen_freed (id)
          select b.id from (select b.* from batch b limit (select t.size from taken t)) b
          where (select t.frees from taken t) and b.unique_until = 'l' and b.attempt = 1
        )*/
        select v_lease_id, v_token, b.id, b.attempt,
          coalesce((b.options->>'max_attempts')::integer, v_sub.max_attempts), b.kind::text, b.key::text,
          b.payload::jsonb, b.body::bytea, b.headers::jsonb, b.priority::smallint, b.created_at, v_expires_at,
          b.options::jsonb
        from (
          select b.* from batch b where b.attempt > 0
          limit (select case when t.is_mixed then 0 else t.size end from taken t)) b;
      get diagnostics v_count = row_count;
      if v_count = 0 and pg_current_xact_id_if_assigned() is not null then
        -- An empty poll wrote nothing, and need not look.
        select l.size, l.last_txid, l.last_id into v_size, v_place_txid, v_place_id
        from trunq_data._specimen_lease l where l.subscription_id = v_sub.subscription_id and l.lease_id = v_lease_id;
      end if;
    end if;
    if v_size > 0 then
      return query select * from trunq_queue._specimen_sort_out(v_sub.subscription_id, v_lease_id, v_now);
      get diagnostics v_count = row_count;
      v_buried := v_buried + v_size - v_count;
      if v_count = 0 then
        -- On behind it. Taken for an empty look, what follows in the window would be passed over.
        v_last_txid := v_place_txid; v_last_id := v_place_id;
        if trunq._has_buried_long(0 /*queue_id*/, v_buried, v_started) then
          return;
        end if;
        continue;
      end if;
    end if;
    if v_count > 0 then
      return;
    end if;
    -- Nothing here for this reader. Did the walk end before the window?
    select g.txid, g.id - 1 into v_place_txid, v_place_id from trunq_log._specimen g
    where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
    order by g.txid, g.id offset c_walk - 1 limit 1;
    if found then
      v_last_txid := v_place_txid; v_last_id := v_place_id; v_moved := true; v_walked := v_walked + 1;
      exit when v_walked >= 40;
    else
      v_last_txid := pg_snapshot_xmax(v_hi); v_last_id := 0;
    end if;
  end loop;
  -- A look that had to walk far writes an empty lease, or the next one would walk it again, and no segment ever be let
  -- go.
  if v_moved or pg_snapshot_xmax(v_hi)::text::bigint - v_xmax_before::text::bigint > 1000
      or clock_timestamp() - v_started > '3 milliseconds' then
    insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
      leased_at, tokens, tokens_at, open_leases)
    values (nextval('trunq_data._specimen_lease_id'), v_sub.subscription_id, trunq._token(), p_worker, v_lo, v_hi,
      v_last_txid, v_last_id, v_now,
      v_tokens, v_tokens_at, v_open);
  end if;
end $$;
revoke execute on function trunq_queue._specimen_lease from public;
comment on function trunq_queue._specimen_lease is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker. Messages that expired, or that somebody cancelled, are dead instead.
Returns: one row a message, all of one lease; none when there is nothing, or after 2 seconds in which it found only such messages: lease again (workers are told).
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when messages were lost.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq_queue._specimen_sort_out(p_subscription_id integer, p_lease_id bigint,
  p_now timestamptz)
returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
  payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz,
    options jsonb
)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_sub record; v_lease record; v_found record;
begin
  select s.max_attempts, s.has_cancelled into v_sub from trunq.subscription s
    where s.subscription_id = p_subscription_id;
  select l.token, l.ids, l.txids, l.expires_at into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  -- Decided for each message once: it is handed out, or answered. Somebody may cancel it while this runs.
  select array_agg(m.id) filter (where m.fate is null) ids, array_agg(m.txid) filter (where m.fate is null) txids,
    array_agg(m.id) filter (where m.fate = 'e') expired,
      array_agg(m.id) filter (where m.fate = 'c') cancelled/*replace ,
    array_agg(m.id) filter (where m.fate = 'p') replaced, array_agg(m.by) filter (where m.fate = 'p') newer*/
  into v_found
  from (
    select u.id, u.txid, coalesce(
        trunq._fate(g.options, p_now, v_sub.has_cancelled, p_subscription_id, g.id)/*replace , case
          when r.by is not null then 'p'::"char" end*/) fate/*replace , r.by*/
    from unnest(v_lease.ids, v_lease.txids) with ordinality u(id, txid, at) cross join lateral (
      select g.* from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, p_subscription_id) offset 0) g/*replace
    cross join lateral (
      select case when g.unique_key is not null
        then trunq_queue._uniquespecimen_replaced_by(g.unique_key, g.unique_turn, g.attempt) end by offset 0) r*/
    order by u.at) m;
  if v_found.expired is not null then
    perform trunq_queue._specimen_bury(p_subscription_id, p_lease_id, v_found.expired, p_now, 'e');
  end if;
  if v_found.cancelled is not null then
    perform trunq_queue._specimen_bury(p_subscription_id, p_lease_id, v_found.cancelled, p_now, 'c');
  end if;
/*replace   if v_found.replaced is not null then
    perform trunq_queue._uniquespecimen_pass_over(p_subscription_id, p_lease_id, v_found.replaced, v_found.newer,
      p_now);
  end if;
*/  return query
    select p_lease_id, v_lease.token, g.id, g.attempt,
      coalesce((g.options->>'max_attempts')::integer, v_sub.max_attempts),
      g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.created_at,
      v_lease.expires_at, g.options::jsonb
    from unnest(v_found.ids, v_found.txids) with ordinality u(id, txid, at) cross join lateral (
      select g.* from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, p_subscription_id) offset 0) g
    order by u.at;
end $$;
comment on function trunq_queue._specimen_sort_out is
  'Of a lease that has messages which nobody is to handle any more (trunq._fate): answers these, in the transaction of the lease. So lease and receipts stay the whole history.
Returns: the others, as lease does.';

create or replace function trunq_queue._specimen_bury(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_now timestamptz, p_outcome "char"
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_lease record;
begin
  select l.worker, l.ids, l.txids, l.segment, l.tokens into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  insert into trunq_data._specimen_receipt (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
  select p_lease_id, coalesce(max(r.number) + 1, 0), v_lease.segment, p_subscription_id, p_outcome, cardinality(p_ids),
    p_ids, p_now
  from trunq_data._specimen_receipt r
  where r.lease_id = p_lease_id and r.segment = v_lease.segment and r.subscription_id = p_subscription_id;
  perform trunq_queue._specimen_give_back(
    p_subscription_id, v_lease.worker, p_ids, v_lease.ids, v_lease.txids, p_outcome, null, null, p_now);
  if v_lease.tokens is not null then
    update trunq_data._specimen_lease l set tokens = l.tokens + cardinality(p_ids)
    where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  end if;
end $$;
comment on function trunq_queue._specimen_bury is
  'Answers messages of a lease that were not handed out: dead, reason expired (e) or cancelled (c).';

create or replace function trunq_queue._specimen_extend(
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_lease_time interval default null
) returns table (expires_at timestamptz, cancelled bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription := trunq._subscription_of('_specimen', p_subscription, p_lease_id, null);
  v_lease record;
  v_lease_time interval;
  v_is_ordered boolean;
  v_until timestamptz;
begin
  perform trunq._require_read_committed('extend');
  perform trunq._check_interval('the time of a lease', p_lease_time, '0');
  v_lease_time := coalesce(p_lease_time, v_sub.lease_time);
  -- The subscription's lock comes before the lease's (functions/lock.sql): whether it is needed is asked before either.
  v_is_ordered := v_sub.mode = 'exclusive' or coalesce(trunq.clock() + v_lease_time < (
    select l.expires_at from trunq_data._specimen_lease l where l.subscription_id = v_sub.subscription_id
      and l.lease_id = p_lease_id), false);
  if v_is_ordered then
    perform trunq._lock_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  end if;
  perform pg_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(v_sub.queue_id, p_lease_id));
  if v_sub.mode = 'exclusive' then
    -- A batch that ran out is not reaped but taken over, under the subscription's lock, by a newer lease.
    if not exists (select from trunq_queue._specimen_open_batches(v_sub.subscription_id) b where b.lease_id = p_lease_id
      and b.worker is not null) then
      perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
    end if;
  end if;
  -- By a later statement than the lock: it sees what the reaper did.
  select l.token, l.expires_at, l.reaped_at, case when v_sub.has_cancelled then l.ids end ids into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = v_sub.subscription_id and l.lease_id = p_lease_id;
  if (v_lease.token = p_token) is not true or v_lease.reaped_at is not null then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  cancelled := case when v_sub.has_cancelled
    then array(select c.id from trunq.cancelled c where c.subscription_id = v_sub.subscription_id
      and c.id = any (v_lease.ids) order by c.id) else '{}' end;
  v_until := trunq.clock() + v_lease_time;
  if v_until < v_lease.expires_at and v_sub.mode = 'shared' then
    if not v_is_ordered then
      -- Another call extended it further meanwhile: as if that one had come after this.
      expires_at := v_lease.expires_at;
      return next;
      return;
    end if;
    -- The reaper goes by expiry and never looks behind its mark. An earlier expiry may appear only as a new lease does,
    -- and, since the clock may have gone back, not behind the mark.
    insert into trunq.mark (queue_id, subscription_id, duty, at) values (v_sub.queue_id, v_sub.subscription_id, 'reap',
      'epoch')
    on conflict (queue_id, subscription_id, duty) do update set at = least(mark.at, v_until - interval '1 microsecond');
  end if;
  update trunq_data._specimen_lease set expires_at = v_until where subscription_id = v_sub.subscription_id
    and lease_id = p_lease_id;
  expires_at := v_until;
  return next;
end $$;
revoke execute on function trunq_queue._specimen_extend from public;
comment on function trunq_queue._specimen_extend is
  'Moves the end of a lease to p_lease_time from now (default: the subscription''s), later or sooner.
Returns: the new end, and those of its messages that somebody cancelled: whoever handles one should stop.
Raises: TQ002, TQ003 when the lease ended, TQ005, TQ007, TQ008.
Locks: the lease; before it the subscription, when the lease gets shorter or is a batch.';

create or replace function trunq_queue._specimen_position(
  p_subscription_id integer,
  out lease_id bigint, out lo pg_snapshot, out hi pg_snapshot, out last_txid xid8, out last_id bigint,
    out segment smallint
)
language plpgsql stable set search_path = pg_catalog,
  pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  select l.lease_id, l.lo, l.hi, l.last_txid, l.last_id, l.segment into lease_id, lo, hi, last_txid, last_id, segment
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  if not found then
    select 0, s.start, s.start, pg_snapshot_xmax(s.start), 0 into lease_id, lo, hi, last_txid, last_id
    from trunq.subscription s where s.subscription_id = p_subscription_id;
  end if;
end $$;
comment on function trunq_queue._specimen_position is 'The newest lease of a subscription, which is its cursor; lease_id 0: it has none yet.';
