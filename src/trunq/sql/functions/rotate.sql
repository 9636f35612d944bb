-- Old segments are emptied by TRUNCATE, one table of one segment a call, once nothing in it is needed:
--   log      every message read by every subscription and answered, and older than the queue's retention
--   lease    every lease in it complete; the newest of each subscription, its cursor, is inserted again first
--   receipt  no open lease has its answers there
-- If one cannot be emptied now, new rows simply land in it: only space depends on this.
--
-- Lock first, check by index probes in a later statement, then truncate: checked before the lock, a long transaction's late
-- insert would be lost. The lock is tried for 10 ms at a time, so that nobody waits longer behind it.

create or replace function trunq.rotate(p_queue text) returns integer
language plpgsql as $$
declare
  v_queue trunq.queue;
  v_table text;
  v_segment integer;
  v_left boolean;
begin
  perform trunq._require_read_committed('rotate');
  select * into v_queue from trunq.queue q where q.queue_id = trunq._queue_id(p_queue);
  if not pg_try_advisory_xact_lock(1953656420, v_queue.queue_id) then
    return 0;  -- somebody subscribes, drops or rotates
  end if;
  foreach v_table in array array['log', 'lease', 'receipt'] loop
    v_left := false;
    for v_segment in 0 .. v_queue.segments - 1 loop
      continue when not (trunq._is_old(v_queue, v_segment) and trunq._has_rows(v_queue.queue_id, v_table, v_segment));
      if trunq._empty(v_queue.queue_id, v_table, v_segment) then
        return 1;
      end if;
      v_left := true;
    end loop;
    -- A lease goes after its messages and a receipt after its lease: without its receipt, a finished one would look open.
    exit when v_left;
  end loop;
  if v_left and v_table = 'log' then
    -- A reader with nothing to do stays where its last message was, and would hold every segment.
    for v_segment in 0 .. v_queue.segments - 1 loop
      if trunq._is_old(v_queue, v_segment) and trunq._move_idle(v_queue.queue_id, v_segment) > 0 then
        return 1;
      end if;
    end loop;
  end if;
  perform trunq._forget_ticks(v_queue.queue_id);
  return 0;
end $$;
comment on function trunq.rotate(text) is
  'Empties one table of one old segment in which nothing is needed. Returns: 1 when it did, or moved the cursors of idle readers first (call again), 0 when there is nothing to do. Raises: TQ001, TQ007. Locks: that segment, exclusively, waiting at most 10 ms at a time for it; the subscriptions while a cursor is carried forward.';

create or replace function trunq._is_old(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql as $$
declare
  v_span double precision := extract(epoch from p_queue.span);
  v_now double precision := date_part('epoch', trunq.clock());
  v_turn bigint := floor(v_now / v_span);
  v_back integer := ((v_turn % p_queue.segments)::integer - p_segment + p_queue.segments) % p_queue.segments;
begin
  -- Its last turn ended (turn - back + 1) spans after the epoch; the one being written to is never old.
  return v_back > 0 and v_now - (v_turn - v_back + 1) * v_span >= extract(epoch from p_queue.retention);
end $$;

create or replace function trunq._segment_name(p_queue_id integer, p_table text, p_segment integer) returns text
language sql immutable as $$ select format('%s_%s_%s', p_table, p_queue_id, p_segment) $$;

create or replace function trunq._has_rows(p_queue_id integer, p_table text, p_segment integer) returns boolean
language plpgsql as $$
begin
  -- Rolled-back rows count: their space is wanted back too. One page is what an empty BRIN keeps, so look at the heap alone.
  return pg_relation_size(format('trunq_data.%I', trunq._segment_name(p_queue_id, p_table, p_segment))::regclass) > 0;
end $$;

create or replace function trunq._move_idle(p_queue_id integer, p_segment integer) returns integer
language plpgsql as $$
declare
  v_sub record;
  v record;
  v_hi pg_snapshot;
  v_moved integer := 0;
begin
  for v_sub in
    select s.subscription_id from trunq.subscription s where s.queue_id = p_queue_id and s.mode = 'shared' order by s.subscription_id
  loop
    continue when not trunq._is_needed(p_queue_id, p_segment, v_sub.subscription_id)
      or not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id);
    v := trunq._position(p_queue_id, v_sub.subscription_id);
    v_hi := trunq.snapshot();
    -- What is unread is read by a later statement than v_hi: whatever v_hi sees was looked at.
    continue when exists (select from trunq._unread(p_queue_id, v_sub.subscription_id, 1));
    execute format($q$
      insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at)
      values (nextval('trunq_data.lease_id_%s'), $1, trunq._token(), 'rotate', $2, $3, pg_snapshot_xmax($3), 0, trunq.clock())
    $q$, 'lease_' || p_queue_id, p_queue_id) using v_sub.subscription_id, v.hi, v_hi;
    v_moved := 1;
  end loop;
  return v_moved;
end $$;
comment on function trunq._move_idle(integer, integer) is
  'Moves the cursor of every shared subscription that holds this segment and has nothing to read. Returns: 1 when one moved.';

create or replace function trunq._empty(p_queue_id integer, p_table text, p_segment integer) returns boolean
language plpgsql set lock_timeout = '10ms' as $$
declare
  v_name text := trunq._segment_name(p_queue_id, p_table, p_segment);
  v_before bigint[];
begin
  -- 1. Without the lock: what would be slow under it. v_before: the newest lease of each subscription at that time.
  v_before := trunq._newest_leases(p_queue_id);
  if not trunq._is_read(p_queue_id, p_table, p_segment)
      or trunq._is_held(p_queue_id, p_table, p_segment, null) then
    return false;
  end if;
  -- 2. The lock, three short tries.
  for v_try in 1..3 loop
    begin
      execute format('lock table only trunq_data.%I in access exclusive mode', v_name);
      exit;
    exception when lock_not_available then
      if v_try = 3 then
        return false;
      end if;
    end;
  end loop;
  -- 3. Under it, by later statements: what came in between.
  if not trunq._is_read(p_queue_id, p_table, p_segment)
      or trunq._is_held(p_queue_id, p_table, p_segment, v_before) then
    return false;
  end if;
  if p_table = 'lease' and not trunq._carry_cursors(p_queue_id, p_segment) then
    return false;
  end if;
  execute format('truncate table trunq_data.%I', v_name);
  return true;
end $$;

create or replace function trunq._newest_leases(p_queue_id integer) returns bigint[]
language plpgsql as $$
declare
  v_newest bigint[];
begin
  -- Leases of one subscription are numbered and committed in one order, under its lock: what is above this came later.
  select array_agg((trunq._position(p_queue_id, s.subscription_id)).lease_id order by s.subscription_id) into v_newest
  from trunq.subscription s where s.queue_id = p_queue_id;
  return coalesce(v_newest, '{}');
end $$;

-- Is every message of this segment read by every subscription? (For leases and receipts: nothing to ask.)
create or replace function trunq._is_read(p_queue_id integer, p_table text, p_segment integer) returns boolean
language sql volatile as $$
  select p_table <> 'log' or not coalesce(bool_or(trunq._is_needed(p_queue_id, p_segment, s.subscription_id)), false)
  from trunq.subscription s where s.queue_id = p_queue_id
$$;

create or replace function trunq._is_needed(p_queue_id integer, p_segment integer, p_subscription_id integer) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_needed boolean;
begin
  execute format($q$
    select exists (select from trunq_data.%1$I g where g.txid >= pg_snapshot_xmax($1))
      or exists (select from pg_snapshot_xip($1) late(txid), lateral (select from trunq_data.%1$I g where g.txid = late.txid limit 1) g)
  $q$, trunq._segment_name(p_queue_id, 'log', p_segment)) into v_needed using trunq._floor(p_queue_id, p_subscription_id);
  return v_needed;
end $$;
comment on function trunq._is_needed(integer, integer, integer) is
  'Does this segment of the log hold a message that this subscription has not read? By index probes alone.';

-- Does an open lease need this segment? With p_before: only leases newer than those are looked at.
create or replace function trunq._is_held(p_queue_id integer, p_table text, p_segment integer, p_before bigint[]) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_sub record;
  v_mark timestamptz;
  v_leases bigint[];
  v_low bigint;
  v_high bigint;
  v_held boolean;
  v_name text := trunq._segment_name(p_queue_id, p_table, p_segment);
begin
  if p_table = 'log' then
    execute format('select (select txid::text::bigint from trunq_data.%1$I order by txid, id limit 1), (select txid::text::bigint from trunq_data.%1$I order by txid desc, id desc limit 1)', v_name)
      into v_low, v_high;
    if v_low is null then
      return false;
    end if;
  end if;
  for v_sub in
    select s.subscription_id
    from trunq.subscription s where s.queue_id = p_queue_id and s.mode = 'shared'
  loop
    if p_before is null then
      select m.at into v_mark from trunq.mark m
      where m.queue_id = p_queue_id and m.subscription_id = v_sub.subscription_id and m.duty = 'reap';
      v_leases := trunq._open_leases(p_queue_id, v_sub.subscription_id, coalesce(v_mark, 'epoch'), 'infinity', null, 100000);
    else
      execute format('select coalesce(array_agg(l.lease_id), ''{}'') from trunq_data.%I l where l.subscription_id = $1 and l.lease_id > $2 and l.size > 0', 'lease_' || p_queue_id)
        into v_leases using v_sub.subscription_id, coalesce(p_before[trunq._place(p_queue_id, v_sub.subscription_id)], 0);
    end if;
    continue when v_leases = '{}';
    case p_table
      when 'log' then
        execute format('select exists (select from trunq_data.%I l where l.subscription_id = $1 and l.lease_id = any ($2) and l.min_txid <= $3 and l.max_txid >= $4)', 'lease_' || p_queue_id)
          into v_held using v_sub.subscription_id, v_leases, v_high, v_low;
      when 'lease' then
        execute format('select exists (select from trunq_data.%I l where l.subscription_id = $1 and l.lease_id = any ($2))', v_name)
          into v_held using v_sub.subscription_id, v_leases;
      else
        execute format('select exists (select from trunq_data.%I r where r.lease_id = any ($1))', v_name)
          into v_held using v_leases;
    end case;
    if v_held then
      return true;
    end if;
  end loop;
  -- An open batch of an exclusive subscription is its newest lease: carried, or held by _is_read; its receipts come after it.
  return false;
end $$;

create or replace function trunq._place(p_queue_id integer, p_subscription_id integer) returns integer
language sql stable as $$
  select count(*)::integer from trunq.subscription s where s.queue_id = p_queue_id and s.subscription_id <= p_subscription_id
$$;

-- Before a segment of leases is emptied, each cursor in it is inserted again as an empty lease, under its subscription's lock:
-- read without it, a worker's lease in between would be followed by an older position.
create or replace function trunq._carry_cursors(p_queue_id integer, p_segment integer) returns boolean
language plpgsql as $$
declare
  v_sub record;
  v record;
begin
  for v_sub in select s.* from trunq.subscription s where s.queue_id = p_queue_id order by s.subscription_id loop
    if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
      return false;
    end if;
    v := trunq._position(p_queue_id, v_sub.subscription_id);
    continue when v.segment is distinct from p_segment;
    if v_sub.mode = 'exclusive' then
      v := trunq._newest_batch(p_queue_id, v_sub.subscription_id);
      if not v.finished then
        return false;
      end if;
      update trunq.subscription s set start = v.hi, start_tick_id = v.to_tick_id where s.subscription_id = v_sub.subscription_id;
      continue;
    end if;
    execute format($q$
      insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at)
      values (nextval('trunq_data.lease_id_%s'), $1, trunq._token(), 'rotate', $2, $3, $4, $5, trunq.clock())
    $q$, 'lease_' || p_queue_id, p_queue_id) using v_sub.subscription_id, v.lo, v.hi, v.last_txid, v.last_id;
  end loop;
  return true;
end $$;

create or replace function trunq.summarize(p_queue text) returns integer
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
  v_index regclass;
  v_count integer := 0;
begin
  for v_index in
    select i.indexrelid from pg_index i
    join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
    join pg_class t on t.oid = i.indrelid
    where a.amname = 'brin' and c.relkind = 'i' and t.relnamespace = 'trunq_data'::regnamespace
      and t.relname ~ format('^(log|lease|receipt)_%s_[0-9]+$', v_queue_id)
  loop
    v_count := v_count + brin_summarize_new_values(v_index);
  end loop;
  return v_count;
end $$;
comment on function trunq.summarize(text) is
  'Summarizes the new pages of the queue''s BRIN indexes: vacuum, which would, is off there. Returns: how many page ranges. Raises: TQ001. Locks: none that readers or publishers feel.';
