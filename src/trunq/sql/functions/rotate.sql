-- Old segments are emptied by TRUNCATE, one table of one segment a call, once nothing in it is needed:
--   log      every message read by every subscription and answered, and older than the queue's retention
--   lease    every lease in it complete; the newest of each subscription, its cursor, is inserted again first
--   receipt  every lease it answers is gone: without its receipt, a finished lease would look open
-- If one cannot be emptied now, new rows simply land in it: only space depends on this.
--
-- Lock first, check by index probes in a later statement, then truncate: checked before the lock, a long transaction's late
-- insert would be lost. The lock is tried for 10 ms at a time, so that nobody waits longer behind it, and given back at once
-- when the segment turns out to be needed.

create or replace function trunq.rotate(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_table text;
  v_segment integer;
  v_left boolean;
begin
  perform trunq._require_read_committed('rotate');
  v_queue := trunq._find_queue(p_queue);
  if not pg_try_advisory_xact_lock(trunq._lock_class('queue'), v_queue.queue_id) then
    return 0;  -- somebody subscribes, drops or rotates
  end if;
  foreach v_table in array array['log', 'lease', 'receipt'] loop
    v_left := false;
    for v_segment in 0 .. v_queue.segments - 1 loop
      continue when not (trunq._is_old(v_queue, v_segment) and trunq._has_rows(v_queue, v_table, v_segment));
      if trunq._empty(v_queue, v_table, v_segment) then
        return 1;
      end if;
      v_left := true;
    end loop;
    -- A lease goes after its messages and a receipt after its lease.
    exit when v_left;
  end loop;
  if v_left and v_table = 'log' then
    -- A reader with nothing to do stays where its last message was, and would hold every segment.
    for v_segment in 0 .. v_queue.segments - 1 loop
      if trunq._is_old(v_queue, v_segment) and trunq._move_idle(v_queue, v_segment) then
        return 1;
      end if;
    end loop;
  end if;
  perform trunq._forget_ticks(v_queue.queue_id);
  return 0;
end $$;
comment on function trunq.rotate(text) is
  'Empties one table of one old segment in which nothing is needed.
Returns: 1 when it did, or moved the cursors of idle readers first (call again), 0 when there is nothing to do.
Raises: TQ001, TQ007.
Locks: that segment, exclusively, waiting at most 10 ms at a time for it; the subscriptions while a cursor is carried forward. To the end of the transaction: call it in a short one of its own.';

create or replace function trunq._turn(p_queue trunq.queue, p_at timestamptz) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select floor(date_part('epoch', p_at))::bigint / extract(epoch from p_queue.span)::bigint
$$;
comment on function trunq._turn(trunq.queue, timestamptz) is
  'The number of the span a time lies in, by full seconds as the segment of a row is (trunq._segment).';

create or replace function trunq._segment_at(p_queue trunq.queue, p_at timestamptz) returns smallint
language sql immutable set search_path = pg_catalog, pg_temp as $$ select (trunq._turn(p_queue, p_at) % p_queue.segments)::smallint $$;
comment on function trunq._segment_at(trunq.queue, timestamptz) is 'The segment that rows of a time lie in.';

create or replace function trunq._is_old(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_turn bigint := trunq._turn(p_queue, v_now);
  v_back integer := ((v_turn % p_queue.segments)::integer - p_segment + p_queue.segments) % p_queue.segments;
begin
  -- Its last turn ended (turn - back + 1) spans after the epoch; the one being written to is never old.
  return v_back > 0
    and floor(date_part('epoch', v_now))::bigint - (v_turn - v_back + 1) * extract(epoch from p_queue.span)
      >= extract(epoch from p_queue.retention);
end $$;
comment on function trunq._is_old(trunq.queue, integer) is 'Whether the last turn of a segment ended longer ago than the retention.';

create or replace function trunq._has_rows(p_queue trunq.queue, p_table text, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Rolled-back rows count: their space is wanted back too. One page is what an empty BRIN keeps, so look at the heap alone.
  return pg_relation_size(format('trunq_data.%I', trunq._segment_name(p_queue, p_table, p_segment))::regclass) > 0;
end $$;
comment on function trunq._has_rows(trunq.queue, text, integer) is 'Whether a segment takes space, rolled-back rows included.';

create or replace function trunq._move_idle(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub record;
  v record;
  v_hi pg_snapshot;
  v_moved boolean := false;
begin
  for v_sub in
    select s.subscription_id from trunq.subscription s
    where s.queue_id = p_queue.queue_id and s.mode = 'shared' order by s.subscription_id
  loop
    continue when not trunq._is_needed(p_queue, p_segment, v_sub.subscription_id)
      or exists (select from trunq._unread(p_queue, v_sub.subscription_id, 1));
    begin
      continue when not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_sub.subscription_id);
      v := trunq._position(p_queue, v_sub.subscription_id);
      v_hi := trunq.snapshot();
      -- What is unread is read by a later statement than v_hi: whatever v_hi sees was looked at.
      if exists (select from trunq._unread(p_queue, v_sub.subscription_id, 1)) then
        raise exception using errcode = 'object_in_use';
      end if;
      perform trunq._carry_cursor(p_queue, v_sub.subscription_id, trunq._segment_at(p_queue, trunq.clock()),
        v.hi, v_hi, pg_snapshot_xmax(v_hi), 0);
      v_moved := true;
    exception when object_in_use then
      null;  -- the subscription's lock is given back
    end;
  end loop;
  return v_moved;
end $$;
comment on function trunq._move_idle(trunq.queue, integer) is
  'Moves the cursor of every shared subscription that holds this segment and has nothing to read.
Returns: whether one moved.';

create or replace function trunq._empty(p_queue trunq.queue, p_table text, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  -- Leases of one subscription are numbered and committed in one order, under its lock: what is above these came later.
  v_newest jsonb := (
    select jsonb_object_agg(s.subscription_id, (trunq._position(p_queue, s.subscription_id)).lease_id)
    from trunq.subscription s where s.queue_id = p_queue.queue_id);
begin
  -- 1. Without the lock: what would be slow under it.
  if not trunq._is_read(p_queue, p_table, p_segment) or trunq._is_held(p_queue, p_table, p_segment, null) then
    return false;
  end if;
  for v_try in 1..3 loop
    begin
      -- 2. The lock, for a short time. Whatever ends this block other than well gives it back.
      execute format('lock table only trunq_data.%I in access exclusive mode', v_name);
      -- 3. Under it, by later statements: what came in between.
      if not trunq._is_read(p_queue, p_table, p_segment)
          or trunq._is_held(p_queue, p_table, p_segment, v_newest)
          or p_table = 'lease' and not trunq._carry_cursors(p_queue, p_segment) then
        raise exception using errcode = 'object_in_use';
      end if;
      execute format('truncate table trunq_data.%I', v_name);
      return true;
    exception
      when lock_not_available then null;
      when object_in_use then return false;
    end;
  end loop;
  return false;
end $$;
comment on function trunq._empty(trunq.queue, text, integer) is 'Empties one table of one segment, if nothing in it is needed.
Returns: whether it did.';

create or replace function trunq._is_read(p_queue trunq.queue, p_table text, p_segment integer) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select p_table <> 'log' or not coalesce(bool_or(trunq._is_needed(p_queue, p_segment, s.subscription_id)), false)
  from trunq.subscription s where s.queue_id = p_queue.queue_id
$$;
comment on function trunq._is_read(trunq.queue, text, integer) is 'Whether every subscription has read every message of a segment; for leases and receipts there is nothing to ask.';

create or replace function trunq._is_needed(p_queue trunq.queue, p_segment integer, p_subscription_id integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v record := trunq._position(p_queue, p_subscription_id);
  v_sub trunq.subscription;
  v_needed boolean;
begin
  select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  if v_sub.mode = 'exclusive' then
    v.hi := trunq._floor(v_sub);
    v.last_txid := pg_snapshot_xmax(v.hi);
    v.last_id := 0;
  end if;
  -- The rest of the window and everything behind it; late ones of the window; late ones of the next.
  execute format($q$
    select exists (
        select from trunq_data.%1$I g
        where (g.txid, g.id) > (greatest($3, pg_snapshot_xmax($1)), case when $3 < pg_snapshot_xmax($1) then 0 else $4 end))
      or exists (
        select from pg_snapshot_xip($1) late(txid), lateral (
          select from trunq_data.%1$I g where g.txid = late.txid and (g.txid, g.id) > ($3, $4) limit 1) g
        where $3 < pg_snapshot_xmax($1))
      or exists (
        select from pg_snapshot_xip($2) late(txid), lateral (
          select from trunq_data.%1$I g where g.txid = late.txid limit 1) g)
  $q$, trunq._segment_name(p_queue, 'log', p_segment)) into v_needed using coalesce(v.lo, v.hi), v.hi, v.last_txid, v.last_id;
  return v_needed;
end $$;
comment on function trunq._is_needed(trunq.queue, integer, integer) is
  'Does this segment of the log hold a message that this subscription has not read? By index probes alone.';

create or replace function trunq._is_held(p_queue trunq.queue, p_table text, p_segment integer, p_newest jsonb) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_sub record;
  v_low bigint := 0;
  v_high bigint := 9223372036854775807;
  v_held boolean;
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
begin
  if p_table = 'log' then
    execute format('select (select txid::text::bigint from trunq_data.%1$I order by txid, id limit 1), (select txid::text::bigint from trunq_data.%1$I order by txid desc, id desc limit 1)', v_name)
      into v_low, v_high;
    if v_low is null then
      return false;
    end if;
  end if;
  for v_sub in
    select s.subscription_id, s.mode, m.at, coalesce((p_newest ->> s.subscription_id::text)::bigint, m.last_id, 0) newest
    from trunq.subscription s
    left join trunq.mark m on m.queue_id = s.queue_id and m.subscription_id = s.subscription_id and m.duty = 'reap'
    where s.queue_id = p_queue.queue_id
  loop
    if p_table = 'receipt' then
      execute format($q$
        select exists (
          select from trunq_data.%1$I r
          where r.subscription_id = $1
            and r.lease_id >= (select l.lease_id from trunq_data.%2$I l where l.subscription_id = $1 order by l.lease_id limit 1)
            and exists (select from trunq_data.%2$I l where l.subscription_id = $1 and l.lease_id = r.lease_id))
      $q$, v_name, p_queue.lease_table) into v_held using v_sub.subscription_id;
    elsif v_sub.mode = 'shared' then
      -- Open are those that expire behind the reaper's mark, or were made since its last look.
      execute format($q$
        with open as (
          select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id > $4
          union all
          select l.* from trunq_data.%1$I l where $6 and l.subscription_id = $1 and l.expires_at > $5)
        select exists (
          select from open l
          where l.size > 0 and l.reaped_at is null and l.min_txid <= $2 and l.max_txid >= $3
            and l.size > coalesce((
              select sum(r.size) from trunq_data.%2$I r where r.lease_id = l.lease_id and r.subscription_id = $1), 0))
      $q$, case p_table when 'log' then p_queue.lease_table else v_name end, p_queue.receipt_table)
      into v_held using v_sub.subscription_id, v_high, v_low, v_sub.newest, coalesce(v_sub.at, 'epoch'), p_newest is null;
    end if;
    if v_held then
      return true;
    end if;
  end loop;
  return false;
end $$;
comment on function trunq._is_held(trunq.queue, text, integer, jsonb) is 'Whether an open lease needs a segment. With p_newest, only leases newer than those count. A receipt is needed while its lease is there. An open batch is the newest lease of its subscription: _is_read and _carry_cursors look at it.';

-- Before a segment of leases is emptied, each cursor in it is inserted again as an empty lease, under its subscription's lock:
-- read without it, a worker's lease in between would be followed by an older position.
create or replace function trunq._carry_cursors(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub record;
  v record;
  -- By the clock, not by default: a transaction begun long ago would write into the segment it empties.
  v_into smallint := trunq._segment_at(p_queue, trunq.clock());
begin
  if v_into = p_segment then
    return false;
  end if;
  for v_sub in
    select s.subscription_id, s.mode from trunq.subscription s where s.queue_id = p_queue.queue_id order by s.subscription_id
  loop
    if not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_sub.subscription_id) then
      return false;
    end if;
    v := trunq._position(p_queue, v_sub.subscription_id);
    continue when v.segment is distinct from p_segment;
    if v_sub.mode = 'shared' then
      perform trunq._carry_cursor(p_queue, v_sub.subscription_id, v_into, v.lo, v.hi, v.last_txid, v.last_id);
      continue;
    end if;
    v := trunq._newest_batch(p_queue, v_sub.subscription_id);
    if not v.finished then
      return false;
    end if;
    -- Somebody may be changing or ending it: next time.
    perform from trunq.subscription s where s.subscription_id = v_sub.subscription_id for no key update skip locked;
    if not found then
      return false;
    end if;
    update trunq.subscription s set start = v.hi, start_tick_id = v.to_tick_id where s.subscription_id = v_sub.subscription_id;
  end loop;
  return true;
end $$;
comment on function trunq._carry_cursors(trunq.queue, integer) is 'Copies each cursor out of a segment of leases before it is emptied.
Returns: false when one cannot be copied now.';

create or replace function trunq._carry_cursor(
  p_queue trunq.queue, p_subscription_id integer, p_segment smallint,
  p_lo pg_snapshot, p_hi pg_snapshot, p_last_txid xid8, p_last_id bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at, segment)
    values (nextval('trunq_data.%I'), $1, trunq._token(), 'rotate', $2, $3, $4, $5, trunq.clock(), $6)
  $q$, p_queue.lease_table, p_queue.lease_sequence)
  using p_subscription_id, p_lo, p_hi, p_last_txid, p_last_id, p_segment;
end $$;
comment on function trunq._carry_cursor(trunq.queue, integer, smallint, pg_snapshot, pg_snapshot, xid8, bigint) is 'Writes a position again, as an empty lease in another segment.';
