-- A lease is a worker's hold on some messages until a time, and the position of its subscription after them: one
-- inserted row. The newest lease of a subscription is its cursor; no cursor row is ever updated. What a reader is to
-- read is its window (ground/window.sql); a window that is used up has last_txid = xmax(hi), and the next one starts
-- where it ended.
--
-- Every lease of a subscription is taken under its lock, and hi is read after the lock was got: positions never cross.
-- Rows are read by a later statement than hi, so everything hi sees is there.

create or replace function trunq_queue._specimen_lease(
  p_subscription text, p_worker text, p_max_messages integer default 1, p_lease_time interval default null,
  p_max_bytes bigint default 16777216, p_asks jsonb default null
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql security definer volatile rows 100 set search_path = pg_catalog, pg_temp
-- Without statistics, only a walk of the index (txid, id) that stops early costs the same whatever the backlog; one
-- plan serves all calls. These hold in the functions that it calls, too.
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  c trunq.leasing; v_mode text; v_start pg_snapshot; v_lease_time interval; v_is_limited boolean; v_filter jsonb;
  v_goes_on boolean; v_is_lost boolean; v_txid xid8; v_expiries smallint; v_max_age interval;
begin
  -- One condition for all that is unusual.
  if current_setting('transaction_isolation') <> 'read committed'
      or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
      or p_max_messages is null or p_max_messages not between 1 and 10000 /*limit lease_messages*/
      or p_lease_time not between '1 microsecond' and '1000 years' then
    perform trunq._check_lease(p_max_messages, p_lease_time);
  end if;
  -- A list of INTO costs less than assignments: Postgres prepares each of those anew in each transaction.
  select s.subscription_id, s.max_attempts, s.has_cancelled, s.filter is null, p_max_messages, p_max_messages,
    clock_timestamp(), case when s.has_asks or p_asks is not null then 'asked' else s.mode end, s.start,
    coalesce(p_lease_time, s.lease_time), s.is_limited, s.filter, s.max_age
  into c.subscription_id, c.max_attempts, c.has_cancelled, c.reads_all, c.max_messages, c.most,
    c.began_at, v_mode, v_start, v_lease_time, v_is_limited, v_filter, v_max_age
  from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_mode is distinct from 'shared' then
    perform trunq._subscription('_specimen', p_subscription, 'shared');
    -- Somebody asks for a part; or it did not say what is missing: the subscription was made just now.
    return query select * from trunq_queue._specimen_lease_asked($1, $2, $3, $4, $5, $6);
    return;
  end if;
  if not pg_try_advisory_xact_lock(1953656418 /*lock subscription*/, c.subscription_id) then
    perform trunq._wait_for_subscription(c.subscription_id, '_specimen', p_subscription);
  end if;
  c.leased_at := trunq.clock();
  if v_max_age is not null then
    c.oldest := c.leased_at - v_max_age;
  end if;
  if not c.reads_all then
    select f.* into c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers
    from trunq._read_filter(v_filter) f;
  end if;
  if v_is_limited then
    select a.allowed, a.allowed, a.tokens, a.tokens_at, a.open_leases
    into c.max_messages, c.most, c.tokens, c.tokens_at, c.open_leases
    from trunq_queue._specimen_allowance(c.subscription_id, p_max_messages, c.leased_at) a;
    if c.max_messages < 1 then
      return;
    end if;
  end if;
  select l.lo, l.hi, l.last_txid, l.last_id, pg_snapshot_xmax(l.hi), l.last_txid, l.last_id,
    c.leased_at + v_lease_time, case when l.ahead >= pg_snapshot_xmin(l.lo) then l.ahead end,
    l.worker = 'lost', l.worker is distinct from 'lost'
      and l.last_txid >= pg_snapshot_xmax(l.lo) and l.last_txid < pg_snapshot_xmax(l.hi)
  into c.lo, c.hi, c.last_txid, c.last_id, c.first_xmax, c.from_txid, c.from_id, c.expires_at, c.ahead,
    v_is_lost, v_goes_on
  from trunq_data._specimen_lease l where l.subscription_id = c.subscription_id
  order by l.lease_id desc limit 1;
  -- Most often it goes on in the range of its window.
  if v_goes_on is not true then
    if v_is_lost then
      -- Said by the newest lease: what was read of the subscription before its lock may be older.
      perform trunq._check_loss(c.subscription_id);
    end if;
    c := trunq._find_range(c, v_start, v_lease_time);
  end if;
  loop
    if c.most = 1 and c.late is null then
      -- The same as for many, for one message: Postgres then prepares a third of the plan nodes.
      select w.id, w.attempt, w.kind, w.key, w.payload, w.body, w.headers, w.priority, w.created_at, w.options,
        coalesce((w.options->>'max_attempts')::integer, c.max_attempts), c.expires_at, w.txid, w.expiries, w.hold
      into id, attempt, kind, key, payload, body, headers, priority, created_at, options,
        max_attempts, expires_at, v_txid, v_expiries, c.hold
      from trunq_queue._specimen_walk(c.from_txid, c.from_id, c.hi) w
      where (w.subscription_id = c.subscription_id or w.subscription_id is null and (c.reads_all or trunq._passes(
        c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers, w.kind, w.key, w.headers)))
        and (c.ahead is null or w.txid > c.ahead or not trunq._is_ahead(c.subscription_id, w.txid, w.id))
      limit 1;
      if found then
        lease_id := nextval('trunq_data._specimen_lease_id'); token := trunq._token();
        insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
          min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
          awaited, keyed, ahead)
        values (lease_id, c.subscription_id, token, p_worker, c.lo, c.hi, v_txid, id, v_txid::text::bigint,
          v_txid::text::bigint, 1, array[id], array[v_txid], c.leased_at, expires_at, nullif(v_expiries > 1, false),
          c.tokens - 1, c.tokens_at, case when c.open_leases is not null then c.open_leases || lease_id end,
          case when options->>'awaited' is not null then array[id] end, trunq_queue._specimen_note_key(c.hold, id),
          c.ahead);
        if not ((c.has_cancelled or options is not null or c.oldest is not null) and trunq._fate_of(
              options, created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id, id) is not null
            or trunq_queue._specimen_is_replaced(c.hold, attempt)) then
          return next;
          return;
        end if;
      end if;
    else
      lease_id := nextval('trunq_data._specimen_lease_id');
      return query select * from trunq_queue._specimen_lease_some(c, lease_id, p_worker, p_max_bytes);
      if found then
        return;
      end if;
    end if;
    -- An empty poll wrote nothing, and need not look.
    if lease_id is not null and pg_current_xact_id_if_assigned() is not null then
      return query select * from trunq_queue._specimen_sort_out(c.subscription_id, lease_id, c.leased_at);
      if found then
        return;
      end if;
    end if;
    c := trunq_queue._specimen_go_further(c, lease_id, p_worker);
    exit when c.is_over;
    lease_id := null;
  end loop;
end $$;
revoke execute on function trunq_queue._specimen_lease from public;
comment on function trunq_queue._specimen_lease is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker. Messages that expired, or that somebody cancelled, are dead instead; those older than the subscription takes (max_age) are passed over. p_asks: only what it says, as trunq.lease.
Returns: one row a message, all of one lease; none when there is nothing, or after 2 seconds in which it found only such messages: lease again (workers are told).
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when messages were lost.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq_queue._specimen_lease_some(
  c trunq.leasing, p_lease_id bigint, p_worker text, p_max_bytes bigint
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_token constant bigint := trunq._token();
begin
  return query
    with batch as materialized (
      select u.* from trunq_queue._specimen_upcoming(c.subscription_id, c.late, c.last_txid, c.last_id,
        c.from_txid, c.from_id, c.hi) u
      where (u.subscription_id = c.subscription_id or u.subscription_id is null and (c.reads_all or trunq._passes(
        c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers, u.kind, u.key, u.headers)))
        -- Where the walk ended is no message, whatever else has its place.
        and (c.ahead is null or u.attempt = 0 or u.txid > c.ahead
          or not trunq._is_ahead(c.subscription_id, u.txid, u.id))
      limit c.most),
    total as (
      select array_agg(b.id) ids, array_agg(b.txid) txids, count(nullif(b.attempt, 0))::integer n,
        min(b.attempt) = 0 ended, sum(trunq._message_bytes(b.kind, b.key, b.payload, b.body, b.headers)) bytes,
        coalesce(max(b.expiries), 0) expiries, count(b.options) optioned, count(b.hold) holding
      from batch b),
    taken as materialized (
      select t.*,
        case when t.expiries <= 1 and c.most = c.max_messages
            and t.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/) then t.n
          else (select trunq._cut(t.n, p_max_bytes, c.max_messages, array_agg(b.expiries),
              array_agg(trunq._message_bytes(b.kind, b.key, b.payload, b.body, b.headers)),
              case when c.most > c.max_messages then array_agg(
                trunq._fate_of(b.options, b.created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id,
                  b.id) is null
                and not (trunq_queue._specimen_replaces() and exists (
                  select from trunq_queue._specimen_replaced_by(b.hold, b.attempt)))) end)
            from batch b) end size,
        -- Then nothing is handed out here, and what is over is sorted out below.
        case when t.optioned > 0 or c.has_cancelled or c.oldest is not null or trunq_queue._specimen_replaces()
          then exists (
          select from batch b
          where trunq._fate_of(b.options, b.created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id, b.id)
              is not null
            or trunq_queue._specimen_replaces() and exists (
              select from trunq_queue._specimen_replaced_by(b.hold, b.attempt))) end is_mixed
      from total t),
    made as (
      insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
        min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
        awaited, keyed, ahead)
      select p_lease_id, c.subscription_id, v_token, p_worker, c.lo, c.hi,
        case when t.size < t.n or t.n = c.most then t.txids[t.size] when t.ended then t.txids[t.n + 1]
          else pg_snapshot_xmax(c.hi) end,
        case when t.size < t.n or t.n = c.most then t.ids[t.size]
          when t.ended
            then greatest(t.ids[t.n + 1], case when t.txids[t.size] = t.txids[t.n + 1] then t.ids[t.size] end)
          else 0 end,
        t.txids[1]::text::bigint, t.txids[t.size]::text::bigint, t.size, t.ids[1:t.size], t.txids[1:t.size],
        c.leased_at, c.expires_at,
        case when t.expiries > 1 then nullif((select b.expiries > 1 from batch b limit 1), false) end,
        c.tokens - t.size, c.tokens_at, case when c.open_leases is not null then c.open_leases || p_lease_id end,
        case when t.optioned > 0
          then (select array_agg(b.id) from batch b where b.options->>'awaited' is not null) end,
        case when t.holding > 0 then (
          select trunq_queue._specimen_note_keys(array_agg(x.id) filter (where (x.hold).is_keyed),
            array_agg(x.id) filter (where (x.hold).is_freed))
          from (select b.* from batch b limit t.size) x) end,
        c.ahead
      from taken t where t.n > 0)
    select p_lease_id, v_token, b.id, b.attempt, coalesce((b.options->>'max_attempts')::integer, c.max_attempts),
      b.kind, b.key, b.payload, b.body, b.headers, b.priority, b.created_at, c.expires_at, b.options
    from (
      select b.* from batch b where b.attempt > 0
      limit (select case when t.is_mixed then 0 else t.size end from taken t)) b;
end $$;
comment on function trunq_queue._specimen_lease_some is
  'The step of a lease that may take several messages, from what comes next: it hands out none if one of them is for nobody, and leaves it to be sorted out.';

create or replace function trunq_queue._specimen_sort_out(p_subscription_id integer, p_lease_id bigint,
  p_now timestamptz)
returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
  payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz,
    options jsonb
)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp set trunq.plan = index
as $$
#variable_conflict use_column
declare
  v_sub record; v_lease record; v_found record;
begin
  select s.max_attempts, s.has_cancelled, p_now - s.max_age oldest into v_sub from trunq.subscription s
    where s.subscription_id = p_subscription_id;
  select l.token, l.ids, l.txids, l.expires_at into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  -- Decided for each message once: it is handed out, or answered. Somebody may cancel it while this runs.
  select array_agg(m.id) filter (where m.fate is null) ids, array_agg(m.txid) filter (where m.fate is null) txids,
    array_agg(m.id) filter (where m.fate = 'e') expired, array_agg(m.id) filter (where m.fate = 'c') cancelled,
    array_agg(m.id) filter (where m.fate = 'p') replaced, array_agg(m.by) filter (where m.fate = 'p') newer,
    array_agg(m.id) filter (where m.fate = 'o') outdated
  into v_found
  from (
    select u.id, u.txid, r.by, coalesce(
      trunq._fate_of(g.options, g.created_at, p_now, v_sub.oldest, v_sub.has_cancelled, p_subscription_id, g.id),
      case when r.by is not null then 'p'::"char" end) fate
    from unnest(v_lease.ids, v_lease.txids) with ordinality u(id, txid, at)
    cross join lateral (
      select g.id, g.options, g.attempt, g.created_at, trunq_queue._specimen_key_hold(g) hold
      from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, p_subscription_id) offset 0) g
    left join lateral trunq_queue._specimen_replaced_by(g.hold, g.attempt) r on true
    order by u.at) m;
  if v_found.expired is not null then
    perform trunq_queue._specimen_bury(p_subscription_id, p_lease_id, v_found.expired, p_now, 'e');
  end if;
  if v_found.cancelled is not null then
    perform trunq_queue._specimen_bury(p_subscription_id, p_lease_id, v_found.cancelled, p_now, 'c');
  end if;
  if v_found.replaced is not null then
    perform trunq_queue._specimen_pass_over(p_subscription_id, p_lease_id, v_found.replaced, v_found.newer, p_now);
  end if;
  if v_found.outdated is not null then
    perform trunq_queue._specimen_leave_out(p_subscription_id, p_lease_id, v_found.outdated, p_now);
  end if;
  return query
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
  'Of a lease that has messages which nobody is to handle any more (trunq._fate_of): answers these, in the transaction of the lease. So lease and receipts stay the whole history.
Returns: the others, as lease does.';

create or replace function trunq_queue._specimen_bury(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_now timestamptz, p_outcome "char"
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
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

create or replace function trunq_queue._specimen_leave_out(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_now timestamptz
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_lease record; v_awaited bigint[]; v_keyed bigint[];
begin
  select l.segment, l.tokens, l.awaited, l.keyed into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  v_awaited := array(select u.id from unnest(p_ids) u(id) where u.id = any (v_lease.awaited));
  v_keyed := array(select u.id from unnest(p_ids) u(id) where u.id = any (v_lease.keyed));
  if v_awaited <> '{}' then
    perform trunq._reply(0 /*queue_id*/, p_subscription_id, v_awaited, 'outdated', null, p_now);
  end if;
  if v_keyed <> '{}' then
    perform trunq_queue._specimen_note_keys(null, v_keyed);
  end if;
  insert into trunq_data._specimen_receipt (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
  select p_lease_id, coalesce(max(r.number) + 1, 0), v_lease.segment, p_subscription_id, 'o', cardinality(p_ids),
    p_ids, p_now
  from trunq_data._specimen_receipt r
  where r.lease_id = p_lease_id and r.segment = v_lease.segment and r.subscription_id = p_subscription_id;
  if v_lease.tokens is not null then
    update trunq_data._specimen_lease l set tokens = l.tokens + cardinality(p_ids)
    where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  end if;
  -- Of attempts before.
  perform trunq._drop_progress(p_subscription_id, p_ids);
end $$;
comment on function trunq_queue._specimen_leave_out is
  'Answers messages of a lease that were not handed out because they are older than the subscription takes: outdated (o), and kept nowhere else.';

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
  -- The subscription's lock comes before the lease's (ground/lock.sql): whether it is needed is asked before either.
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
  pg_temp set trunq.plan = index as $$
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
