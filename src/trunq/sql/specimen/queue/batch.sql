-- Batches of an exclusive subscription; the rules are in functions/stream/batch.sql.

create or replace function trunq_queue._specimen_next_batch(
  p_subscription text, p_worker text, p_max_ticks integer default 1, p_lease_time interval default null,
  p_min_lag interval default null, p_min_count bigint default null, p_min_interval interval default null,
  p_cut boolean default true
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot,
  to_snapshot pg_snapshot, expires_at timestamptz, attempt integer, is_part boolean
)
language plpgsql security definer volatile set search_path = pg_catalog, pg_temp
-- Leases, receipts and ticks are found by index.
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription; v_group trunq.subscription_group; v_newest record; v_open record; v_open_ids bigint[];
  v_from_tick_id bigint; v_from_snapshot pg_snapshot; v_to record; v_last trunq.tick; v_seen pg_snapshot;
  v_now timestamptz; v_failures integer; v_is_mine boolean; v_is_group boolean;
  v_has_minimum constant boolean := num_nonnulls(p_min_lag, p_min_count, p_min_interval) > 0;
begin
  select s.* into v_sub from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription and s.mode = 'exclusive';
  if not found then
    select g.* into v_group from trunq.subscription_group g
    where g.queue_id = 0 /*queue_id*/ and g.name = p_subscription and g.slots is not null;
    if found then
      return query select b.* from trunq_queue._specimen_next_in_group(v_group, p_worker, p_max_ticks, p_lease_time,
        p_min_lag, p_min_count, p_min_interval, p_cut) b;
      return;
    end if;
    v_sub := trunq._subscription('_specimen', p_subscription, 'exclusive');  -- says why
  end if;
  -- In one statement: each costs as much as the checks.
  perform trunq._require_read_committed('next_batch'),
    trunq._check_next_batch(p_worker, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval),
    trunq._check_cluster(),
    trunq._lock_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  v_now := trunq.clock();
  v_is_group := v_sub.group_id is not null and v_sub.slot is null;
  if v_is_group then
    perform trunq._see_member(v_sub.group_id, p_worker, v_now);
  end if;
  select b.* into v_newest from trunq_queue._specimen_newest(v_sub.subscription_id) b;
  if v_newest.worker = 'lost' or v_sub.lost_at is not null then
    perform trunq._check_loss(v_sub.subscription_id);
  end if;
  while v_newest.lease_id is not null and (not v_newest.finished or v_newest.open_leases is not null) loop
    -- The one this worker has in hand, or the first in order; in a group, the first that is free.
    select o.*, case when v_is_group then o.expires_at > v_now else bool_or(o.expires_at > v_now) over () end is_held,
      array_agg(o.lease_id) over () open into v_open
    from trunq_queue._specimen_open_batches(v_sub.subscription_id) o
    order by (o.worker = p_worker and o.expires_at > v_now) is true desc, (v_is_group and o.expires_at > v_now) is true,
      o.from_tick_id, o.after_txid nulls first, o.after_id limit 1;
    exit when not found;
    v_is_mine := coalesce(v_open.worker = p_worker and v_open.expires_at > v_now, false);
    if v_is_group and not v_is_mine and v_open.is_held then
      v_open_ids := v_open.open;  -- each is in somebody's hands: the next window is opened beside them
      exit;
    elsif not v_is_mine and (v_open.is_held or trunq._is_paused(v_sub, v_now)) then
      return;
    end if;
    perform trunq._check_reachable(0 /*queue_id*/, v_open.from_tick_id);
    v_failures := coalesce(v_open.failures, 0) + case when v_open.worker is null then 0 else 1 end;
    if v_open.worker is not null and v_failures >= v_sub.max_attempts then
      perform trunq._reopen_batch(trunq._find_queue(0 /*queue_id*/), v_sub, v_open.lease_id, v_failures,
        format('batch %s of worker %s was not finished', v_open.lease_id, v_open.worker), null);
      select b.* into v_newest from trunq_queue._specimen_newest(v_sub.subscription_id) b;
      continue;
    end if;
    if v_is_mine or v_open.worker is null then
      return query select * from trunq_queue._specimen_take_open(v_sub.subscription_id, p_worker, v_open.lease_id,
        v_open.segment, v_is_mine, v_failures, v_now, coalesce(p_lease_time, v_sub.lease_time));
    else
      return query
        select o.lease_id, o.token, v_open.from_tick_id, v_open.to_tick_id, v_open.lo, v_open.hi, o.expires_at, v_failures + 1,
          v_open.after_txid is not null or v_open.last_txid < pg_snapshot_xmax(v_open.hi)
        from trunq_queue._specimen_open_batch(v_sub.subscription_id, p_worker, v_open.lo, v_open.hi, v_open.from_tick_id, v_open.to_tick_id,
          v_now, v_now + coalesce(p_lease_time, v_sub.lease_time), nullif(array_remove(v_open.open, v_open.lease_id), '{}'),
          v_open.after_txid, v_open.after_id, v_open.last_txid, v_open.last_id, v_failures, v_open.error) o;
    end if;
    return;
  end loop;
  if trunq._is_paused(v_sub, v_now) then
    return;
  end if;
  v_from_tick_id := coalesce(v_newest.to_tick_id, v_sub.start_tick_id); v_from_snapshot := coalesce(v_newest.hi, v_sub.start);
  if v_sub.slot is not null then
    select t.* into v_to from trunq._slot_window(trunq._find_queue(0 /*queue_id*/), v_sub, v_from_tick_id, v_from_snapshot, p_max_ticks, v_now,
      p_min_lag, p_min_count, p_min_interval, p_cut) t;
    v_now := trunq.clock();
  elsif v_has_minimum then
    select t.* into v_to from trunq._find_tick(0 /*queue_id*/, v_from_tick_id, v_now, p_max_ticks, p_min_lag, p_min_count, p_min_interval) t;
  else
    select n.tick_id, n.snapshot into v_to from (
      select t.tick_id, t.snapshot from trunq.tick t
      where t.queue_id = 0 /*queue_id*/ and t.tick_id > v_from_tick_id order by t.tick_id limit p_max_ticks) n
    order by n.tick_id desc limit 1;
  end if;
  if v_to.tick_id is null and p_cut and v_sub.slot is null then
    select t.* into v_last from trunq.tick t where t.queue_id = 0 /*queue_id*/ order by t.tick_id desc limit 1;
    v_seen := trunq.snapshot();
    -- By a later statement: whatever v_seen sees is there for it.
    if exists (select from trunq_queue._specimen_window(v_last.snapshot, v_seen))
        and trunq._cut_for_reader(0 /*queue_id*/, v_last, v_from_tick_id, p_min_lag, p_min_count, p_min_interval) then
      v_now := trunq.clock();
      select t.* into v_to from trunq._find_tick(0 /*queue_id*/, v_from_tick_id, v_now, p_max_ticks, p_min_lag, p_min_count, p_min_interval) t;
    end if;
  end if;
  if v_to.tick_id is null then
    return;
  end if;
  perform trunq._check_position(v_to.snapshot, trunq.snapshot()), trunq._check_reachable(0 /*queue_id*/, v_from_tick_id);
  return query
    insert into trunq_data._specimen_lease as made (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id, leased_at,
      expires_at, open_leases)
    values (nextval('trunq_data._specimen_lease_id'), v_sub.subscription_id, trunq._token(), p_worker, v_from_snapshot, v_to.snapshot,
      pg_snapshot_xmax(v_to.snapshot), 0, v_from_tick_id, v_to.tick_id, v_now, v_now + coalesce(p_lease_time, v_sub.lease_time), v_open_ids)
    returning made.lease_id, made.token, made.from_tick_id, made.to_tick_id, made.lo, made.hi, made.expires_at, 1, false;
end $$;
revoke execute on function trunq_queue._specimen_next_batch from public;
comment on function trunq_queue._specimen_next_batch is
  'Opens the next batch of an exclusive subscription, or returns the one this worker has open, with a new token: of two readers of one name,
only the one that asked last can finish it. Arguments as trunq.next_batch.
Returns: no row when there is nothing to read, another worker holds the batch (in a group: holds all there is), or the subscription is paused.
Raises: TQ002, TQ005, TQ007, TQ008, TQ010, TQ011; TQ012 when messages after the position are gone; TQ026 when messages were lost.
Locks: the subscription; the queue''s ticks when it cuts one.';

create or replace function trunq_queue._specimen_take_open(
  p_subscription_id integer, p_worker text, p_lease_id bigint, p_segment smallint, p_is_mine boolean,
  p_failures integer, p_now timestamptz, p_lease_time interval
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot,
  to_snapshot pg_snapshot, expires_at timestamptz, attempt integer, is_part boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  -- Perhaps another process of this name has it open: a new token fences that one, which can finish nothing any more.
  return query
    update trunq_data._specimen_lease l set token = trunq._token(), worker = p_worker,
      failures = nullif(least(p_failures, 32767), 0)::smallint,
      leased_at = case when p_is_mine then l.leased_at else p_now end,
      expires_at = case when p_is_mine then l.expires_at else p_now + p_lease_time end
    where l.lease_id = p_lease_id and l.segment = p_segment and l.subscription_id = p_subscription_id
    returning l.lease_id, l.token, l.from_tick_id, l.to_tick_id, l.lo, l.hi, l.expires_at, p_failures + 1,
      l.after_txid is not null or l.last_txid < pg_snapshot_xmax(l.hi);
end $$;
comment on function trunq_queue._specimen_take_open is
  'Hands an open batch to a worker again, who had it (p_is_mine), or one that nobody has. The caller, next_batch, holds the subscription''s lock; planned under its settings.';

create or replace function trunq_queue._specimen_open_batch(
  p_subscription_id integer, p_worker text, p_lo pg_snapshot, p_hi pg_snapshot, p_from_tick_id bigint, p_to_tick_id bigint,
  p_now timestamptz, p_expires_at timestamptz, p_open bigint[],
  p_after_txid xid8 default null, p_after_id bigint default null, p_last_txid xid8 default null, p_last_id bigint default 0,
  p_failures integer default null, p_error text default null,
  out lease_id bigint, out token bigint, out expires_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_newest record;
begin
  select b.to_tick_id, b.hi into v_newest from trunq_queue._specimen_newest_batch(p_subscription_id) b;
  insert into trunq_data._specimen_lease as made (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, from_tick_id, to_tick_id,
    leased_at, expires_at, open_leases, after_txid, after_id, failures, error, frontier_tick_id, frontier)
  values (nextval('trunq_data._specimen_lease_id'), p_subscription_id, trunq._token(), p_worker, p_lo, p_hi,
    coalesce(p_last_txid, pg_snapshot_xmax(p_hi)), p_last_id, p_from_tick_id, p_to_tick_id,
    p_now, p_expires_at, p_open, p_after_txid, p_after_id, nullif(least(coalesce(p_failures, 0), 32767), 0)::smallint, p_error,
    case when v_newest.to_tick_id > p_to_tick_id then v_newest.to_tick_id end, case when v_newest.to_tick_id > p_to_tick_id then v_newest.hi end)
  returning made.lease_id, made.token, made.expires_at into lease_id, token, expires_at;
end $$;
comment on function trunq_queue._specimen_open_batch is
  'Writes an open batch over a window, or over a part of one; p_open: those that stay open beside it; p_worker null: nobody has it, and from p_expires_at on (null: at once) anybody may. It carries the frontier on. The caller holds the subscription''s lock.';

create or replace function trunq_queue._specimen_finish_batch(
  p_subscription text, p_batch_id bigint, p_token bigint, p_upto_txid bigint default null, p_upto_id bigint default null
) returns boolean
language plpgsql security definer volatile
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
declare
  v_sub trunq.subscription;
  v_newest record;
  v_batch record;
begin
  select s.* into v_sub from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription and s.mode = 'exclusive';
  if not found then
    v_sub := trunq._subscription_of('_specimen', p_subscription, p_batch_id);
  end if;
  perform trunq._require_read_committed('finish_batch'), trunq._lock_subscription(v_sub.subscription_id, '_specimen', p_subscription);
  select b.* into v_newest from trunq_queue._specimen_newest(v_sub.subscription_id) b;
  if v_newest.lease_id = p_batch_id and not v_newest.finished then
    v_batch := v_newest;
  else
    -- One that was open before the newest; lease_id null: it is open no more.
    select o.* into v_batch from trunq_queue._specimen_open_batches(v_sub.subscription_id) o
    where o.lease_id = p_batch_id and v_newest.open_leases is not null;
  end if;
  if v_batch.lease_id is null and p_token = (
      select l.token from trunq_data._specimen_lease l
      where l.lease_id = p_batch_id and l.subscription_id = v_sub.subscription_id limit 1) and exists (
      select from trunq_data._specimen_receipt r
      where r.lease_id = p_batch_id and r.subscription_id = v_sub.subscription_id and r.outcome = 'b') then
    -- Who finished it may ask again. Another reader of this batch must not take it for its own success.
    return false;
  end if;
  if v_batch.lease_id is null or v_batch.token is distinct from p_token then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_batch_id);
  end if;
  if num_nonnulls(p_upto_txid, p_upto_id) > 0 then
    perform trunq._open_rest(trunq._find_queue(0 /*queue_id*/), v_sub, p_batch_id, p_upto_txid, p_upto_id);
  end if;
  insert into trunq_data._specimen_receipt (lease_id, segment, subscription_id, outcome, size, ids, finished_at)
  values (p_batch_id, v_batch.segment, v_sub.subscription_id, 'b', 0, '{}', trunq.clock());
  return true;
end $$;
revoke execute on function trunq_queue._specimen_finish_batch from public;
comment on function trunq_queue._specimen_finish_batch is
  'Finishes an open batch: the position moves to its last tick; with p_upto_txid and p_upto_id, behind that message, and the next batch is the rest.
Returns: false when it was finished before, with this token.
Raises: TQ002, TQ007, TQ008, TQ011; TQ003 when another reader has it or finished it; TQ005 for a place outside of it.
Locks: the subscription.';

create or replace function trunq_queue._specimen_newest(p_subscription_id integer)
returns table (
  lease_id bigint, token bigint, worker text, from_tick_id bigint, to_tick_id bigint, lo pg_snapshot, hi pg_snapshot, expires_at timestamptz,
  segment smallint, open_leases bigint[], finished boolean
)
-- No settings here: Postgres then puts the query in the place of its call. The receipt is looked up by itself: as a join, or by exists, Postgres
-- would read every receipt of the queue.
language sql stable rows 1 as $$
  select l.lease_id, l.token, l.worker, l.from_tick_id, coalesce(l.frontier_tick_id, l.to_tick_id), l.lo, coalesce(l.frontier, l.hi), l.expires_at, l.segment,
    l.open_leases, (
      select true from trunq_data._specimen_receipt r
      where r.lease_id operator(pg_catalog.=) l.lease_id and r.segment operator(pg_catalog.=) l.segment and r.outcome operator(pg_catalog.=) 'b' limit 1)
      is not null
  from trunq_data._specimen_lease l where l.subscription_id operator(pg_catalog.=) p_subscription_id order by l.lease_id desc limit 1
$$;
comment on function trunq_queue._specimen_newest is
  'trunq_queue.<queue>_newest_batch for functions that keep the plans of their statements, with enable_seqscan and enable_bitmapscan off. No row: it has had none.';

create or replace function trunq_queue._specimen_newest_batch(
  p_subscription_id integer,
  out lease_id bigint, out token bigint, out worker text, out from_tick_id bigint, out to_tick_id bigint,
  out lo pg_snapshot, out hi pg_snapshot, out expires_at timestamptz, out segment smallint, out open_leases bigint[], out finished boolean
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
begin
  select b.lease_id, b.token, b.worker, b.from_tick_id, b.to_tick_id, b.lo, b.hi, b.expires_at, b.segment, b.open_leases, b.finished
  into lease_id, token, worker, from_tick_id, to_tick_id, lo, hi, expires_at, segment, open_leases, finished
  from trunq_queue._specimen_newest(p_subscription_id) b;
end $$;
comment on function trunq_queue._specimen_newest_batch is
  'The newest batch of an exclusive subscription, open or finished; lease_id null: it has had none. to_tick_id and hi: the frontier, up to which batches were handed out: its own end, unless it is an older window than another. open_leases: those that were open before it; null: none.';

create or replace function trunq_queue._specimen_open_batches(p_subscription_id integer)
returns table (
  lease_id bigint, token bigint, worker text, from_tick_id bigint, to_tick_id bigint, lo pg_snapshot, hi pg_snapshot,
  after_txid xid8, after_id bigint, last_txid xid8, last_id bigint, leased_at timestamptz, expires_at timestamptz,
  failures smallint, error text, segment smallint
)
language plpgsql stable rows 1
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v record;
begin
  select l.lease_id, l.open_leases into v from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  if v.lease_id is null then
    return;
  end if;
  return query
    select l.lease_id, l.token, l.worker, l.from_tick_id, l.to_tick_id, l.lo, l.hi, l.after_txid, l.after_id, l.last_txid, l.last_id,
      l.leased_at, l.expires_at, l.failures, l.error, l.segment
    from unnest(v.open_leases || v.lease_id) o(lease_id) cross join lateral (
      select l.* from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = o.lease_id offset 0) l
    -- One look for each: as a join, Postgres would read every receipt of the queue.
    where (select true from trunq_data._specimen_receipt r where r.lease_id = l.lease_id and r.segment = l.segment and r.outcome = 'b' limit 1) is null
    order by l.from_tick_id, l.after_txid nulls first, l.after_id;
end $$;
comment on function trunq_queue._specimen_open_batches is
  'The open batches of an exclusive subscription, in order: the newest and those open before it, less those that have a receipt. In one state of the database, as it is stable: a batch finished in part and its rest are seen together.';

create or replace function trunq_queue._specimen_read_page(
  p_sub trunq.subscription, p_batch_id bigint, p_after_txid xid8, p_after_id bigint, p_limit integer, p_filter jsonb
) returns table (
  id bigint, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, attempt smallint, created_at timestamptz, txid bigint,
  columns jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v record;
  v_count bigint;
  v_all constant boolean := num_nonnulls(p_sub.filter, p_filter) = 0;
  v_slots constant integer := (p_sub.filter->>'slots')::integer;
  v_own record;
  v_also record;
  v_gives_back constant boolean := current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
begin
  -- Null, too, are read: a record without columns is none that a statement may name.
  if v_all then
    select null::text[] kinds, null::text[] not_kinds, null::text[] keys, null::text[] not_keys, null::jsonb headers, null::jsonb[] not_headers into v_own;
    v_also := v_own;
  else
    v_own := trunq._read_filter(p_sub.filter); v_also := trunq._read_filter(p_filter);
  end if;
  begin
    select l.lo, l.hi, l.from_tick_id, coalesce(l.after_txid, '0') after_txid, coalesce(l.after_id, 0) after_id, l.last_txid, l.last_id into v
    from trunq_data._specimen_lease l where l.subscription_id = p_sub.subscription_id and l.lease_id = p_batch_id limit 1;
    if not found then
      perform trunq._fail_no_batch('_specimen', p_sub.name, p_batch_id);
    elsif (p_after_txid, p_after_id) > (v.after_txid, v.after_id) then
      v.after_txid := p_after_txid; v.after_id := p_after_id;
    end if;
    -- As trunq._part_query.
    return query
      select g.id, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.attempt, g.created_at,
        g.txid::text::bigint, g.told->'columns'
      from (
        select g.* from pg_snapshot_xip(v.lo) late(txid) cross join lateral (
          select g.*, trunq_queue._specimen_told_options(g) told from trunq_log._specimen g
          where g.txid = late.txid and (g.txid, g.id) > (v.after_txid, v.after_id) and (g.txid, g.id) <= (v.last_txid, v.last_id)
          order by g.id offset 0) g
        where late.txid >= v.after_txid and late.txid <= v.last_txid and pg_visible_in_snapshot(late.txid, v.hi)
        union all
        (select g.*, trunq_queue._specimen_told_options(g) from trunq_log._specimen g
         where (g.txid, g.id) > (greatest(v.after_txid, pg_snapshot_xmax(v.lo)), case when v.after_txid < pg_snapshot_xmax(v.lo) then 0 else v.after_id end)
           and (g.txid, g.id) <= (v.last_txid, v.last_id) and pg_visible_in_snapshot(g.txid, v.hi)
         order by g.txid, g.id)) g
      where (g.subscription_id = p_sub.subscription_id or g.subscription_id is null and (v_all
          or (v_slots is null or trunq._slot(g.key, g.id, v_slots) = p_sub.slot) and trunq._passes(v_own.kinds, v_own.not_kinds, v_own.keys, v_own.not_keys, v_own.headers, v_own.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, g.told))))
        and (v_all or trunq._passes(v_also.kinds, v_also.not_kinds, v_also.keys, v_also.not_keys, v_also.headers, v_also.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, g.told)))
      limit p_limit;
    get diagnostics v_count = row_count;
    -- Afterwards, by a later statement: what was emptied before those rows were read is known by now.
    perform trunq._check_reachable(0 /*queue_id*/, v.from_tick_id);
    if v_gives_back then
      raise exception using errcode = 'TQ900';  -- gives the locks back; what was returned stays
    end if;
  exception when sqlstate 'TQ900' then
  end;
  if v_gives_back and v_count > 0 and exists (
      -- Values that lie outside of their rows are fetched when the rows are sent.
      select from pg_inherits i join pg_class c on c.oid = i.inhrelid
      where i.inhparent = 'trunq_log._specimen'::regclass and pg_relation_size(c.reltoastrelid) > 0) then
    perform trunq_queue._specimen_keep_span(p_sub.subscription_id, p_batch_id);
    -- Under the locks: nobody emptied them in between.
    perform trunq._check_reachable(0 /*queue_id*/, v.from_tick_id);
  end if;
end $$;
comment on function trunq_queue._specimen_read_page is
  'The first messages of a batch behind a place, p_limit at most, by a plan that the session keeps. trunq.read_batch calls it: for few rows, planning costs more than reading. It keeps no lock, or those on the segments of the batch.';

create or replace function trunq_queue._specimen_keep_span(p_subscription_id integer, p_batch_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
declare
  v record;
  v_segments integer[];
  v_segment integer;
begin
  begin
    select l.lo, l.last_txid, l.last_id into v
    from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_batch_id limit 1;
    v_segments := array(
      select n from generate_series(0, (select q.segments - 1 from trunq.queue q where q.queue_id = 0 /*queue_id*/)) n
      where exists (
          select from trunq_log._specimen g
          where g.segment = n and g.txid >= pg_snapshot_xmax(v.lo) and (g.txid, g.id) <= (v.last_txid, v.last_id))
        or exists (
          select from pg_snapshot_xip(v.lo) late(txid) cross join lateral (
            select from trunq_log._specimen g where g.segment = n and g.txid = late.txid limit 1) g));
    raise exception using errcode = 'TQ900';  -- gives the locks on the others back
  exception when sqlstate 'TQ900' then
  end;
  foreach v_segment in array v_segments loop
    execute format('lock table only trunq_data.%I in access share mode', '_specimen_log_' || v_segment);
  end loop;
end $$;
comment on function trunq_queue._specimen_keep_span is
  'Keeps the segments in which a batch has messages from being emptied, to the end of the transaction. The batch keeps them anyway while it is open.';
