-- A lease of messages by their ids, ahead of the position; functions/work/ahead.sql has the essay. c is what a lease
-- knows (trunq.leasing).

create or replace function trunq_queue._specimen_lease_ids(
  p_subscription text, p_worker text, p_ids bigint[], p_lease_time interval default null
) returns table (
  id bigint, state text, reason text, worker text, due_at timestamptz, lease_id bigint, token bigint, attempt smallint,
  max_attempts integer, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint,
  created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql security definer volatile rows 100 set search_path = pg_catalog, pg_temp set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v_queue constant trunq.queue := trunq._find_queue('_specimen');
  v_sub trunq.subscription;
  v_ids constant bigint[] := array(select distinct u.id from unnest(p_ids) u(id));
  v_at trunq.leasing; v_found record; v_told jsonb; v_rows record; v_lost bigint[]; v_aside bigint[]; v_places tid[];
begin
  perform trunq._check_ids(p_ids, p_lease_time);
  v_sub := trunq._subscription('_specimen', p_subscription, 'shared');
  -- Before the lock, so that nobody waits for it: where they are, and what those are that do not wait.
  select array_agg(r.id) ids, array_agg(r.txid) txids into v_found
  from trunq._unread_rows(v_queue, v_sub.subscription_id, v_ids, true) r;
  select coalesce(jsonb_agg(to_jsonb(t)), '[]') into v_told
  from trunq._tell_ids(v_queue, v_sub.subscription_id,
    array(select unnest(v_ids) except select unnest(v_found.ids))) t;
  -- A retry waits far from where its id was drawn.
  select v_found.ids || array_agg(r.id), v_found.txids || array_agg(r.txid) into v_found.ids, v_found.txids
  from (select array_agg(t.id) ids from jsonb_to_recordset(v_told) t(id bigint, state text) where t.state = 'ready') t
  cross join lateral trunq._unread_rows(v_queue, v_sub.subscription_id, t.ids, false) r where t.ids is not null;
  v_at := trunq_queue._specimen_lock_cursor(v_sub.subscription_id, p_subscription, p_lease_time, cardinality(v_ids));
  if v_sub.has_asks then
    select array_agg(d.id), array_agg(d.ctid) into v_aside, v_places from trunq.delayed d
    where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id = any (v_ids) and d.aside is not null;
    perform trunq_queue._specimen_put_back(v_places) where v_aside is not null;
    -- Also those that are not there now: what these are is told below.
    v_found.ids := v_found.ids || v_aside;
    v_found.txids := v_found.txids || array_fill(pg_current_xact_id(), array[coalesce(cardinality(v_aside), 0)]);
  end if;
  v_rows := trunq_queue._specimen_lease_ahead(v_at, p_worker, v_found.ids, v_found.txids);
  if exists (select unnest(v_aside) except select unnest(v_rows.ids)) then
    -- What it put into the log and did not get waits there for others.
    perform trunq._call_workers(v_sub.queue_id);
  end if;
  -- Somebody had it before the lock: what it is now.
  v_lost := array(select unnest(v_found.ids) except select unnest(v_rows.waiting));
  if v_lost <> '{}' then
    select coalesce(jsonb_agg(to_jsonb(t)) filter (where t.id <> all (v_lost)), '[]') || coalesce((
        select jsonb_agg(to_jsonb(n)) from trunq._tell_ids(v_queue, v_sub.subscription_id, v_lost) n), '[]')
    into v_told from jsonb_to_recordset(v_told) t(
      id bigint, state text, reason text, worker text, due_at timestamptz, expires_at timestamptz);
  end if;
  return query
    select u.id,
      case when g.id is not null then 'leased' when w.reason = 'replaced' then 'replaced'
        when w.id is not null then 'ready' else t.state end,
      case when g.id is not null or w.reason = 'replaced' then null when w.id is not null then w.reason else t.reason end,
      case when g.id is not null then p_worker when w.id is null then t.worker end,
      case when g.id is null and w.id is null then t.due_at end,
      case when g.id is not null then v_rows.lease_id end, case when g.id is not null then v_rows.token end, g.attempt,
      case when g.id is not null then coalesce((g.options->>'max_attempts')::integer, v_sub.max_attempts) end,
      g.kind, g.key, g.payload, g.body, g.headers, g.priority, g.created_at,
      case when g.id is not null then v_at.expires_at when w.id is null then t.expires_at end, g.options
    from (select u.id, min(u.at) at from unnest(p_ids) with ordinality u(id, at) group by u.id) u
    left join unnest(v_rows.waiting, v_rows.reasons) w(id, reason) on w.id = u.id
    left join lateral (
      select g.id, g.attempt, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb,
        g.priority::smallint, g.created_at, g.told as options
      from unnest(v_rows.ids, v_rows.txids) x(id, txid) cross join lateral (
        select g.*, trunq_queue._specimen_told_options(g) told from trunq_log._specimen g
        where trunq._is_row(g.txid, g.id, g.subscription_id, x.txid, x.id, v_sub.subscription_id) offset 0) g
      where x.id = u.id) g on true
    left join jsonb_to_recordset(v_told) t(
      id bigint, state text, reason text, worker text, due_at timestamptz, expires_at timestamptz) on t.id = u.id
    order by u.at;
end $$;
revoke execute on function trunq_queue._specimen_lease_ids from public;
comment on function trunq_queue._specimen_lease_ids is
  'Leases messages by their ids, up to 10,000, whatever waits before them. Nobody else gets what it took.
Returns: one row for each id, as trunq.lease_ids.
Raises: TQ002, TQ005, TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when messages were lost.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq_queue._specimen_lock_cursor(
  p_subscription_id integer, p_subscription text, p_lease_time interval, p_count integer
) returns trunq.leasing
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = kept as $$
#variable_conflict use_column
declare
  c trunq.leasing; v_start pg_snapshot; v_lease_time interval; v_is_lost boolean;
begin
  perform trunq._lock_subscription(p_subscription_id, '_specimen', p_subscription);
  c.subscription_id := p_subscription_id;
  c.leased_at := trunq.clock();
  -- By later statements than the lock.
  select s.has_cancelled, s.filter is null, s.start, coalesce(p_lease_time, s.lease_time), p_count,
    c.leased_at - s.max_age
  into c.has_cancelled, c.reads_all, v_start, v_lease_time, c.max_messages, c.oldest
  from trunq.subscription s where s.subscription_id = p_subscription_id;
  if not found then
    perform trunq._subscription('_specimen', p_subscription, 'shared');
  end if;
  select f.* into c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers
  from trunq.subscription s cross join trunq._read_filter(s.filter) f
  where s.subscription_id = p_subscription_id and s.filter is not null;
  select a.allowed, a.tokens, a.tokens_at, a.open_leases into c.max_messages, c.tokens, c.tokens_at, c.open_leases
  from trunq.subscription s
  cross join trunq_queue._specimen_allowance(p_subscription_id, p_count, c.leased_at) a
  where s.subscription_id = p_subscription_id and s.is_limited;
  c.max_messages := coalesce(c.max_messages, p_count);
  select l.lo, l.hi, l.last_txid, l.last_id, l.worker = 'lost',
    case when l.ahead >= pg_snapshot_xmin(l.lo) then l.ahead end
  into c.lo, c.hi, c.last_txid, c.last_id, v_is_lost, c.ahead
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id
  order by l.lease_id desc limit 1;
  if v_is_lost then
    perform trunq._check_loss(p_subscription_id);
  end if;
  c.lo := coalesce(c.lo, v_start); c.hi := coalesce(c.hi, v_start);
  c.last_txid := coalesce(c.last_txid, pg_snapshot_xmax(v_start)); c.last_id := coalesce(c.last_id, 0);
  c.expires_at := c.leased_at + v_lease_time;
  return c;
end $$;
comment on function trunq_queue._specimen_lock_cursor is
  'Locks a subscription, and reads what a lease by id needs to know of it: its position, filter, and how many it may hand out.';

create or replace function trunq_queue._specimen_lease_ahead(
  c trunq.leasing, p_worker text, p_ids bigint[], p_txids xid8[],
  out lease_id bigint, out token bigint, out ids bigint[], out txids xid8[], out waiting bigint[], out reasons text[]
)
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = kept as $$
#variable_conflict use_column
declare
  v_awaited bigint[]; v_keyed bigint[]; v_freed bigint[]; v_is_suspect boolean;
begin
  waiting := '{}'; ids := '{}';
  -- Those that still wait, each with what stands in its way; decided once.
  with found as materialized (
    select g.id, g.txid, g.hold, g.options->>'awaited' is not null is_awaited,
      coalesce(g.expiries, 0) > 1 is_suspect,
      trunq._message_bytes(g.kind, g.key, g.payload, g.body, g.headers) size,
      case trunq._fate_of(g.options, g.created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id, g.id)
        when 'e' then 'expired' when 'c' then 'cancelled' when 'o' then 'outdated'
        else case when trunq_queue._specimen_replaces() and exists (
          select from trunq_queue._specimen_replaced_by(g.hold, g.attempt)) then 'replaced' end end fate
    from unnest(p_ids, p_txids) u(id, txid)
    cross join lateral (
      select g.id, g.txid, g.attempt, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb,
        g.created_at, g.options::jsonb, g.expiries, trunq_queue._specimen_key_hold(g) hold
      from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, c.subscription_id) offset 0) g
    where not trunq._is_read_at(g.txid, g.id, c.lo, c.hi, c.last_txid, c.last_id)
      and not trunq._is_ahead(c.subscription_id, g.txid, g.id)),
  -- Suspects are alone in their lease.
  judged as (
    select f.*, coalesce(f.fate, case when f.is_suspect and (
        count(*) filter (where f.fate is null and not f.is_suspect) over () > 0
        or count(*) filter (where f.fate is null and f.is_suspect) over (order by f.txid, f.id) > 1)
      then 'alone' end) no
    from found f),
  placed as (
    select j.*, row_number() over w place, sum(j.size) over w bytes
    from judged j window w as (partition by j.no is null order by j.txid, j.id)),
  told as (
    select p.*, coalesce(p.no, case
        when p.place > c.max_messages and c.max_messages < 1 and trunq._is_paused(s, c.leased_at) then 'paused'
        when p.place > c.max_messages then 'limit'
        when p.bytes > 16777216 /*limit lease_bytes*/ and p.place > 1 then 'bytes' end) reason
    from placed p cross join trunq.subscription s where s.subscription_id = c.subscription_id)
  select array_agg(m.id order by m.txid, m.id), array_agg(m.reason order by m.txid, m.id),
    array_agg(m.id order by m.txid, m.id) filter (where m.reason is null),
    array_agg(m.txid order by m.txid, m.id) filter (where m.reason is null),
    array_agg(m.id) filter (where m.reason is null and m.is_awaited),
    array_agg(m.id) filter (where m.reason is null and (m.hold).is_keyed),
    array_agg(m.id) filter (where m.reason is null and (m.hold).is_freed),
    bool_or(m.is_suspect) filter (where m.reason is null)
  into waiting, reasons, ids, txids, v_awaited, v_keyed, v_freed, v_is_suspect
  from told m;
  waiting := coalesce(waiting, '{}'); ids := coalesce(ids, '{}');
  if ids = '{}' then
    return;
  end if;
  lease_id := nextval('trunq_data._specimen_lease_id'); token := trunq._token();
  insert into trunq.ahead (queue_id, subscription_id, id, txid, lease_id, due)
  select 0 /*queue_id*/, c.subscription_id, u.id, u.txid, lease_id, c.due from unnest(ids, txids) u(id, txid);
  c.ahead := greatest(c.ahead, (select max(u.txid) from unnest(txids) u(txid)));
  c := trunq_queue._specimen_pass_ahead(c, cardinality(ids));
  insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
    min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
    awaited, keyed, ahead)
  values (lease_id, c.subscription_id, token, p_worker, c.lo, c.hi, c.last_txid, c.last_id,
    txids[1]::text::bigint, txids[cardinality(txids)]::text::bigint, cardinality(ids), ids, txids, c.leased_at,
    c.expires_at, nullif(v_is_suspect, false), c.tokens - cardinality(ids), c.tokens_at,
    case when c.open_leases is not null then c.open_leases || lease_id end, v_awaited,
    trunq_queue._specimen_note_keys(v_keyed, v_freed), c.ahead);
end $$;
comment on function trunq_queue._specimen_lease_ahead is
  'The step of a lease by id under the lock: makes the lease of those rows that still wait and are to be had.
Returns: it, its messages (ids), those that wait (waiting), and what stands in the way of each (reasons; null: nothing, it was taken).';

create or replace function trunq_queue._specimen_pass_ahead(c trunq.leasing, p_count integer) returns trunq.leasing
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_most constant integer := 2 * p_count + 100;
  v_next record;
begin
  c := trunq._find_range(c, null, null);
  -- Up to the next that is to be handed out, which is most often the first. Before it, not behind the one before: that
  -- may have the same place, for another reader (functions/ground/place.sql).
  select u.at, u.txid, u.id - 1 id into v_next
  from (
    select row_number() over () at, u.txid, u.id, u.attempt > 0
      and (u.subscription_id = c.subscription_id or u.subscription_id is null and (c.reads_all or trunq._passes(
        c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers, u.kind, u.key,
        trunq_queue._specimen_sifted(u.headers, u.options))))
      and not trunq._is_ahead(c.subscription_id, u.txid, u.id) is_next
    from trunq_queue._specimen_upcoming(c.subscription_id, c.late, c.last_txid, c.last_id,
      c.from_txid, c.from_id, c.hi) u
    limit v_most) u
  where u.is_next limit 1;
  if not found then
    select null::bigint at, u.txid, u.id - 1 id into v_next
    from trunq_queue._specimen_upcoming(c.subscription_id, c.late, c.last_txid, c.last_id,
      c.from_txid, c.from_id, c.hi) u
    offset v_most - 1 limit 1;
  end if;
  if v_next.at > 1 or v_next.at is null and v_next.txid is not null then
    c.last_txid := v_next.txid; c.last_id := v_next.id;
  elsif v_next.at is null and not exists (
      select from trunq_log._specimen g
      where g.txid < pg_snapshot_xmax(c.hi) and (g.txid, g.id) > (c.from_txid, c.from_id)
      order by g.txid, g.id offset 50000 /*limit walk_rows*/ - 1 limit 1) then
    -- All of the window was handed out.
    c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
  end if;
  return c;
end $$;
comment on function trunq_queue._specimen_pass_ahead is
  'Moves a position on over what comes next and was leased by id, or is for others: twice as much as was just taken, and a hundred.';
