-- Old segments are emptied by TRUNCATE, one table of one segment a call, once nothing in it is needed:
--   log      every message is read by every subscription and answered, and older than the queue's retention
--   lease    its messages are gone, every lease in it is complete, and no subscription has its cursor there
--   receipt  the leases of its segment, which are the ones it answers, are gone: without its receipt, a finished lease would
--            look open
-- If one cannot be emptied now, new rows simply land in it: only space depends on this. What a queue holds no more for subscriptions
-- that stand still is emptied all the same, and written down first (functions/keep/loss.sql).
--
-- A segment is old for one span in each round of the ring, and must be emptied within it: rotation is called several times a
-- span. Called once a span or less often, it would meet the same segments each time and leave the others full.
--
-- What takes time is done before the table is locked, and goes on beside everybody: cursors are carried forward a few
-- subscriptions at a time, each under its lock, in a transaction of their own; then every subscription is asked whether it
-- needs the segment. Positions only move forward (who moves one back holds the queue's lock, as rotation does), so under the
-- lock, by a later statement, one question is left: what came in between, by a transaction that began long ago? Checked before
-- the lock alone, its rows would be lost. The lock is tried for 5 ms, so that nobody waits longer behind it, and given back at
-- once when something came in.
--
-- Where transactions overlap, 5 ms may never do. So rotation notes each refusal (trunq.refusal), and waits twice as long the next time, up to 80 ms. Whoever
-- comes meanwhile waits behind it: so it waits longer than 5 ms for a fiftieth of the time at most. trunq.list_warnings says who holds the lock.
--
-- The steps return 1 when they did something, 0 when the segment is needed, null when somebody was in the way just now.

create or replace function trunq.rotate(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_segment integer;
  v_is_old boolean;
  v_reason text;
  v_step integer;
  v_is_busy boolean := false;
  v_has_log boolean := false;
  v_now constant timestamptz := trunq.clock();
begin
  perform trunq._require_read_committed('rotate');
  if pg_current_xact_id_if_assigned() is null and current_setting('synchronous_commit') <> 'off' then
    -- In a transaction of its own, nobody waits for a standby while a segment is locked. What a standby that takes over has
    -- not seen of it was not needed.
    perform set_config('synchronous_commit', 'local', true);
  end if;
  if not pg_try_advisory_xact_lock(trunq._lock_class('queue'), v_queue.queue_id) then
    perform trunq._note_refusal(v_queue.queue_id, 'queue', 5);
    return null;  -- somebody subscribes, drops or rotates
  end if;
  v_queue := trunq._find_queue(p_queue);
  for v_segment, v_is_old, v_reason in select o.segment, o.is_old, o.reason from trunq._old_segments(v_queue) o loop
    if trunq._has_rows(v_queue, 'log', v_segment) then
      -- The oldest go first: nothing is lost of this one while an older one stays.
      v_step := trunq._empty_log(v_queue, v_segment, case when not v_has_log then v_reason end);
      v_has_log := true;
    elsif v_has_log or not v_is_old then
      v_step := 0;  -- its leases may have held messages of the older segment; only the log is cut by size
    elsif trunq._has_rows(v_queue, 'lease', v_segment) then
      v_step := trunq._empty_leases(v_queue, v_segment);
    elsif trunq._has_rows(v_queue, 'receipt', v_segment) then
      v_step := trunq._truncate(v_queue, 'receipt', v_segment);
    else
      v_step := trunq._empty_lanes(v_queue, v_segment);
    end if;
    if v_step = 1 then
      return 1;
    end if;
    v_is_busy := v_is_busy or v_step is null;
  end loop;
  perform trunq._forget_ticks(v_queue);
  -- Locks that it did not try for this time: somebody needs the segment by now, or it is no longer old.
  delete from trunq.refusal r using (
    select f.name from trunq.refusal f where f.queue_id = v_queue.queue_id and f.refused_at < v_now for update skip locked) f
  where r.queue_id = v_queue.queue_id and r.name = f.name;
  return case when v_is_busy then null else 0 end;
end $$;
comment on function trunq.rotate is
  'Empties one table of one old segment in which nothing is needed. Call it several times a span (trunq.list_queues), with READ COMMITTED and in a transaction of its own.
Returns: 1 when it did, or moved cursors out of the way first (call again at once); 0 when there is nothing to do; null when somebody was in the way (call again within a second).
Raises: TQ001, TQ007.
Locks: that segment, exclusively, waiting 5 ms for it, up to 80 ms when that was refused before; or a few subscriptions, while their cursors are carried forward. To the end of the transaction: call it in a short one of its own, which does not wait for a standby.';

create or replace function trunq._span_number(p_queue trunq.queue, p_at timestamptz) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select floor(date_part('epoch', p_at))::bigint / extract(epoch from p_queue.span)::bigint
$$;
comment on function trunq._span_number is
  'The number of the span a time lies in, by full seconds as the segment of a row is (trunq._segment).';

create or replace function trunq._segment_at(p_queue trunq.queue, p_at timestamptz) returns smallint
language sql immutable set search_path = pg_catalog, pg_temp as $$ select (trunq._span_number(p_queue, p_at) % p_queue.segments)::smallint $$;
comment on function trunq._segment_at is 'The segment that rows of a time lie in.';

create or replace function trunq._old_segments(p_queue trunq.queue) returns table (segment integer, is_old boolean, reason text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_span bigint := trunq._span_number(p_queue, trunq.clock());
  v_age interval;
  -- What was there when the span became longer is as old as that, whatever its segment (operate/conversion.sql).
  v_since constant interval := trunq.clock() - p_queue.reshaped_at;
  -- Of the log from this segment on: without it and those before, so many bytes fewer.
  v_bytes bigint := 0;
  v_has_size constant boolean := num_nonnulls(p_queue.hold_size, p_queue.retain_size) > 0;
begin
  if v_has_size then
    v_bytes := trunq._log_bytes(p_queue, p_queue.segments - 1);
  end if;
  -- The one being written to is never old.
  for segment in select o.segment from trunq._segments_in_order(p_queue, v_span) o loop
    v_age := least(trunq._segment_age(p_queue, v_span - (v_span - segment) % p_queue.segments), v_since);
    is_old := v_age >= p_queue.retention;
    reason := case when v_age >= p_queue.hold_at_most then 'time' when v_bytes > p_queue.hold_size then 'size' end;
    if is_old or reason is not null or v_bytes > p_queue.retain_size then
      return next;
    end if;
    if v_has_size then
      v_bytes := v_bytes - trunq._segment_bytes(p_queue, segment);
    end if;
  end loop;
end $$;
comment on function trunq._old_segments is
  'The segments that may be emptied, the oldest first. is_old: its last span ended longer ago than the retention; without, only its log is too much. reason: the limit of the queue (time or size) behind which it is emptied though subscriptions need it.';

create or replace function trunq._has_rows(p_queue trunq.queue, p_table text, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Rolled-back rows count: their space is wanted back too. One page is what an empty BRIN keeps, so look at the heap alone.
  return pg_relation_size(format('trunq_data.%I', trunq._segment_name(p_queue, p_table, p_segment))::regclass) > 0;
end $$;
comment on function trunq._has_rows is 'Whether a segment takes space, rolled-back rows and those not yet committed included.';

create or replace function trunq._empty_log(p_queue trunq.queue, p_segment integer, p_reason text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- Before what is asked: rows that it does not see have not been looked at.
  v_seen pg_snapshot := trunq.snapshot();
  v_needing integer[] := trunq._subscriptions_needing(p_queue, p_segment);
  v_step integer;
begin
  if v_needing <> '{}' then
    v_step := trunq._move_idle(p_queue, v_needing);
    return case when v_step = 0 and p_reason is not null then trunq._lose_segment(p_queue, p_segment, p_reason, v_seen) else v_step end;
  end if;
  if p_reason is not null and trunq._is_held(p_queue, 'log', p_segment) then
    return trunq._lose_segment(p_queue, p_segment, p_reason, v_seen);
  end if;
  if trunq._is_held(p_queue, 'log', p_segment) or not trunq._is_taken(p_queue, 'log', p_segment) then
    return 0;
  end if;
  -- No tick is being cut that has not seen what goes.
  if not pg_try_advisory_xact_lock(trunq._lock_class('tick'), p_queue.queue_id) then
    return null;
  end if;
  return trunq._truncate(p_queue, 'log', p_segment, p_seen => v_seen, p_tick_id => trunq._first_tick_after(p_queue, p_segment));
end $$;
comment on function trunq._empty_log is 'Empties a segment of the log, or moves idle readers out of its way; with p_reason, though it is needed.
Returns: 1, 0 or null, as rotate does.';

create or replace function trunq._empty_leases(p_queue trunq.queue, p_segment integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_subscriptions integer[];
  v_newest bigint[];
  v_behind integer[];
begin
  -- Before it is asked which are open. Leases of one subscription are numbered and committed in one order, under its lock:
  -- what is above these came later.
  select array_agg(r.subscription_id), array_agg(r.lease_id), array_agg(r.subscription_id) filter (where r.segment = p_segment)
  into v_subscriptions, v_newest, v_behind from trunq._list_readers(p_queue) r;
  if trunq._is_held(p_queue, 'lease', p_segment) or not trunq._is_taken(p_queue, 'lease', p_segment) then
    return 0;
  end if;
  if v_behind is not null then
    return trunq._carry_cursors(p_queue, p_segment, v_behind);
  end if;
  return trunq._truncate(p_queue, 'lease', p_segment, p_subscriptions => v_subscriptions, p_newest => v_newest);
end $$;
comment on function trunq._empty_leases is 'Empties a segment of the leases, or carries cursors out of it first.
Returns: 1, 0 or null, as rotate does.';

create or replace function trunq._truncate(
  p_queue trunq.queue, p_table text, p_segment integer,
  p_seen pg_snapshot default null, p_tick_id bigint default null, p_subscriptions integer[] default null, p_newest bigint[] default null
) returns integer
-- Found by index. Every wait in here is as short as the first.
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms'
set trunq.plan = index as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  v_patience constant integer := trunq._lock_wait(p_queue.queue_id, v_name);
  v_is_needed boolean;
  v_is_locked boolean := false;
begin
  -- Or longer, as this function is made.
  perform set_config('lock_timeout', greatest(extract(epoch from current_setting('lock_timeout')::interval) * 1000, v_patience)::integer || 'ms', true);
  if p_tick_id > p_queue.reachable_tick_id then
    update trunq.queue q set reachable_tick_id = p_tick_id where q.queue_id = p_queue.queue_id;
  end if;
  execute format('lock table only trunq_data.%I in access exclusive mode', v_name);
  v_is_locked := true;
  -- Under the lock, by a later statement: what came in since everything else was asked.
  if p_table = 'log' then
    execute format($q$
      select exists (select from trunq_data.%1$I g where g.txid >= pg_snapshot_xmax($1))
        or exists (select from pg_snapshot_xip($1) late(txid), lateral (
          select from trunq_data.%1$I g where g.txid = late.txid limit 1) g)
    $q$, v_name) into v_is_needed using p_seen;
  elsif p_table = 'lease' then
    execute format($q$
      select exists (select from unnest($1, $2) s(subscription_id, newest), lateral (
        select from trunq_data.%I l where l.subscription_id = s.subscription_id and l.lease_id > s.newest limit 1) l)
    $q$, v_name) into v_is_needed using p_subscriptions, p_newest;
  elsif p_table = 'wake' then
    v_is_needed := trunq._needs_wakes(p_queue, p_segment);
  else
    v_is_needed := trunq._has_rows(p_queue, 'lease', p_segment);
  end if;
  if v_is_needed then
    -- Whatever ends this function other than well gives the lock back.
    raise exception using errcode = 'object_in_use';
  end if;
  execute format('truncate table trunq_data.%I', v_name);
  perform trunq._unsummarize(format('trunq_data.%I', v_name)::regclass);
  delete from trunq.refusal r where r.queue_id = p_queue.queue_id and r.name = v_name;
  return 1;
exception when lock_not_available or object_in_use then
  if not v_is_locked then
    perform trunq._note_refusal(p_queue.queue_id, v_name, v_patience);
  end if;
  return null;
end $$;
comment on function trunq._truncate is
  'Empties one table of one segment that nobody needed when it was looked at. p_seen: what was looked at of the log, and p_tick_id: the first tick that stays in reach; p_newest: the newest lease of each subscription that was looked at.
Returns: 1, or null when the lock was not to be had, or something came in.';

create or replace function trunq._lock_wait(p_queue_id integer, p_name text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v trunq.refusal;
begin
  select r.* into v from trunq.refusal r where r.queue_id = p_queue_id and r.name = p_name;
  -- Either way: a clock may go back.
  if found and abs(extract(epoch from trunq.clock() - v.waited_at)) * 20 >= v.waited then
    return least(2 * v.waited, 80);
  end if;
  return 5;
end $$;
comment on function trunq._lock_wait is
  'How many milliseconds rotation waits for a lock: 5, and for one that was refused before 10, 20, 40, 80, each once fifty times the previous wait has passed.';

create or replace function trunq._note_refusal(p_queue_id integer, p_name text, p_waited integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms' as $$
declare
  v_now timestamptz := trunq.clock();
begin
  insert into trunq.refusal as r (queue_id, name, refused, since, refused_at, waited, waited_at) values (p_queue_id, p_name, 1, v_now, v_now, p_waited, v_now)
  on conflict (queue_id, name) do update set
    refused = least(r.refused, 1000000) + 1, since = least(r.since, v_now), refused_at = v_now,
    waited = case when p_waited > 5 then p_waited else r.waited end, waited_at = case when p_waited > 5 then v_now else r.waited_at end;
exception when lock_not_available then
  null;  -- another rotates, and notes it
end $$;
comment on function trunq._note_refusal is 'Notes that rotation did not get a lock within so many milliseconds: of a segment, or of the queue.';

create or replace function trunq._list_readers(p_queue trunq.queue)
returns table (
  subscription_id integer, mode text, lease_id bigint, segment smallint, lo pg_snapshot, hi pg_snapshot, last_txid xid8, last_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  return query execute format($q$
    select s.subscription_id, s.mode, coalesce(l.lease_id, 0), l.segment,
      coalesce(k.floor, l.lo, s.start), coalesce(k.floor, l.hi, s.start),
      coalesce(pg_snapshot_xmax(k.floor), l.last_txid, pg_snapshot_xmax(s.start)),
      case when k.floor is null then coalesce(l.last_id, 0) else 0 end
    from trunq.subscription s
    left join lateral (
      select * from trunq_data.%I l where l.subscription_id = s.subscription_id order by l.lease_id desc limit 1) l on true
    left join lateral (select trunq._repeatable_snapshot($1, s) where s.mode = 'exclusive') k(floor) on true
    where s.queue_id = ($1).queue_id
  $q$, p_queue.lease_table) using p_queue;
end $$;
comment on function trunq._list_readers is
  'Each subscription with its newest lease (0: none) and the position from which it needs the messages.';

create or replace function trunq._repeatable_snapshot(p_queue trunq.queue, p_sub trunq.subscription) returns pg_snapshot
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- This first: a position only moves forward.
  v_floor pg_snapshot := trunq._read_floor(p_sub);
  v_tick_id bigint := trunq._tick_position(p_sub);
begin
  return coalesce((
    select t.snapshot from trunq.tick t
    where t.queue_id = p_queue.queue_id and t.tick_id < v_tick_id and t.tick_id >= p_queue.reachable_tick_id
    order by t.tick_id desc limit 1), v_floor);
end $$;
comment on function trunq._repeatable_snapshot is
  'The snapshot an exclusive subscription needs all after: of the tick before its position, because a reader elsewhere may have to repeat its last batch.';

create or replace function trunq._subscriptions_needing(p_queue trunq.queue, p_segment integer) returns integer[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_needing integer[];
begin
  -- The rest of the window and everything behind it; late ones of the window; late ones of the next.
  execute format($q$
    select array_agg(r.subscription_id order by r.subscription_id) from trunq._list_readers($1) r
    where exists (
        select from trunq_data.%1$I g
        where (g.txid, g.id) > (greatest(r.last_txid, pg_snapshot_xmax(r.lo)), case when r.last_txid < pg_snapshot_xmax(r.lo) then 0 else r.last_id end))
      or exists (
        select from pg_snapshot_xip(r.lo) late(txid), lateral (
          select from trunq_data.%1$I g where g.txid = late.txid and (g.txid, g.id) > (r.last_txid, r.last_id) limit 1) g
        where r.last_txid < pg_snapshot_xmax(r.lo))
      or exists (
        select from pg_snapshot_xip(r.hi) late(txid), lateral (
          select from trunq_data.%1$I g where g.txid = late.txid limit 1) g)
  $q$, trunq._segment_name(p_queue, 'log', p_segment)) into v_needing using p_queue;
  v_needing := coalesce(v_needing, '{}');
  if p_queue.lanes is not null and v_needing = '{}' then
    -- By a later statement: what was found before is held by a lane, or was handed out since.
    execute format('select trunq_queue.%I($1)', p_queue.name || '_needing') into v_needing using p_segment;
  end if;
  return v_needing;
end $$;
comment on function trunq._subscriptions_needing is
  'The subscriptions that have not read every message of this segment of the log. By index probes alone.';

create or replace function trunq._is_held(p_queue trunq.queue, p_table text, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  v_low bigint := 0;
  v_high bigint := 9223372036854775807;
  v_held boolean;
begin
  if p_table = 'log' then
    -- By g.txid: "txid" would be the output column, an expression, and Postgres would sort the whole segment.
    execute format($q$
      select (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid, g.id limit 1),
        (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid desc, g.id desc limit 1)
    $q$, v_name) into v_low, v_high;
    if v_low is null then
      return false;
    end if;
  end if;
  -- Open are those that expire behind the reaper's mark, or were made since its last look, and have fewer answers than messages.
  execute format($q$
    select exists (
      select from trunq.subscription s
      left join trunq.mark m on m.queue_id = s.queue_id and m.subscription_id = s.subscription_id and m.duty = 'reap'
      cross join lateral (
        select * from trunq_data.%1$I l where l.subscription_id = s.subscription_id and l.lease_id > coalesce(m.last_id, 0)
        union all
        select * from trunq_data.%1$I l where l.subscription_id = s.subscription_id and l.expires_at > coalesce(m.at, 'epoch')) l
      where s.queue_id = $1 and s.mode = 'shared' and l.size > 0 and l.reaped_at is null and l.min_txid <= $3 and l.max_txid >= $2
        and l.size > coalesce((
          select sum(r.size) from trunq_data.%2$I r
          where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), 0))
  $q$, case p_table when 'log' then p_queue.lease_table else v_name end, p_queue.receipt_table)
  into v_held using p_queue.queue_id, v_low, v_high;
  if p_table = 'lease' and not v_held then
    v_held := exists (
      select from trunq.subscription s cross join lateral trunq._open_batches(p_queue, s.subscription_id) o
      where s.queue_id = p_queue.queue_id and s.mode = 'exclusive' and o.segment = p_segment);
  end if;
  return v_held;
end $$;
comment on function trunq._is_held is
  'Whether an open lease needs a segment of the log, or lies in one of the leases. Which messages open batches need, _needing tells.';

create or replace function trunq._first_tick_after(p_queue trunq.queue, p_segment integer) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_name text := trunq._segment_name(p_queue, 'log', p_segment);
  v_last xid8;
  v_tick_id bigint;
begin
  execute format('select g.txid from trunq_data.%I g order by g.txid desc, g.id desc limit 1', v_name) into v_last;
  if v_last is null then
    return p_queue.reachable_tick_id;
  end if;
  -- Each tick sees what the one before it sees. Those before the last that goes do not see it; then come those that were cut
  -- while one of its transactions was open.
  execute format($q$
    select t.tick_id from trunq.tick t
    where t.queue_id = $1 and t.tick_id >= $2 and pg_snapshot_xmax(t.snapshot) > $3
      and not exists (
        select from pg_snapshot_xip(t.snapshot) late(txid), lateral (
          select from trunq_data.%I g where g.txid = late.txid limit 1) g)
    order by t.tick_id limit 1
  $q$, v_name) into v_tick_id using p_queue.queue_id, p_queue.reachable_tick_id, v_last;
  return coalesce(v_tick_id, (select max(t.tick_id) + 1 from trunq.tick t where t.queue_id = p_queue.queue_id));
end $$;
comment on function trunq._first_tick_after is
  'The first tick that sees every message of a segment, the next one to be cut if there is none: it stays in reach when the segment is emptied. The caller holds the lock of the queue''s ticks.';

create or replace function trunq._move_idle(p_queue trunq.queue, p_subscriptions integer[]) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_id integer;
  v record;
  v_hi pg_snapshot;
  v_moved integer := 0;
  v_is_busy boolean := false;
begin
  for v_id in
    select s.subscription_id from trunq.subscription s
    where s.subscription_id = any (p_subscriptions) and s.mode = 'shared' order by s.subscription_id
  loop
    exit when v_moved >= 10;
    continue when exists (select from trunq._unread(p_queue, v_id, 1));
    begin
      if not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_id) then
        v_is_busy := true;
        continue;
      end if;
      v := trunq._position(p_queue, v_id);
      v_hi := trunq.snapshot();
      -- What is unread is read by a later statement than v_hi: whatever v_hi sees was looked at.
      if exists (select from trunq._unread(p_queue, v_id, 1)) then
        raise exception using errcode = 'object_in_use';
      end if;
      perform trunq._carry_cursor(p_queue, v_id, trunq._segment_at(p_queue, trunq.clock()), v.hi, v_hi, pg_snapshot_xmax(v_hi), 0);
      v_moved := v_moved + 1;
    exception when object_in_use then
      null;  -- the subscription's lock is given back
    end;
  end loop;
  return case when v_moved > 0 then 1 when v_is_busy then null else 0 end;
end $$;
comment on function trunq._move_idle is
  'Moves the cursors of shared subscriptions that have nothing to read, at most ten. They stay where their last message was, and would hold every segment.
Returns: 1, 0 or null, as rotate does.';

-- Before a segment of leases is emptied, each cursor in it is inserted again, under its subscription's lock: read without it, a
-- worker's lease in between would be followed by an older position.
create or replace function trunq._carry_cursors(p_queue trunq.queue, p_segment integer, p_subscriptions integer[]) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_id integer;
  v_mode text;
  v record;
  -- By the clock, not by default: a transaction begun long ago would write into the segment that is to be emptied.
  v_into smallint := trunq._segment_at(p_queue, trunq.clock());
  v_moved integer := 0;
  v_is_busy boolean := false;
begin
  for v_id, v_mode in
    select s.subscription_id, s.mode from trunq.subscription s where s.subscription_id = any (p_subscriptions) order by s.subscription_id
  loop
    exit when v_moved >= 10 or v_into = p_segment;
    if not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_id) then
      v_is_busy := true;
      continue;
    end if;
    if v_mode = 'exclusive' then
      v := trunq._newest_batch(p_queue, v_id);
      continue when v.segment = p_segment and not v.finished;
      if v.segment = p_segment then
        perform trunq._put_batch(p_queue, v_id, trunq._position_worker(v_id), v.lo, v.hi, v.from_tick_id, v.to_tick_id, v_into,
          array(select o.lease_id from trunq._open_batches(p_queue, v_id) o));
      end if;
    else
      v := trunq._position(p_queue, v_id);
      if v.segment = p_segment then
        perform trunq._carry_cursor(p_queue, v_id, v_into, v.lo, v.hi, v.last_txid, v.last_id);
      end if;
    end if;
    v_moved := v_moved + 1;  -- by us, or by itself meanwhile
  end loop;
  return case when v_moved > 0 then 1 when v_is_busy then null else 0 end;
end $$;
comment on function trunq._carry_cursors is
  'Copies the cursors of these subscriptions out of a segment of leases, at most ten. An open batch stays, and keeps it.
Returns: 1, 0 or null, as rotate does.';

create or replace function trunq._carry_cursor(
  p_queue trunq.queue, p_subscription_id integer, p_segment smallint,
  p_lo pg_snapshot, p_hi pg_snapshot, p_last_txid xid8, p_last_id bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue.lanes is not null then
    execute format('select trunq_queue.%I($1, $2, $3, $4, $5, $6)', p_queue.name || '_carry_cursor')
      using p_subscription_id, p_segment, p_lo, p_hi, p_last_txid, p_last_id;
    return;
  end if;
  execute format($q$
    insert into trunq_data.%1$I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at, segment, tokens, tokens_at, ahead)
    select nextval('trunq_data.%2$I'), $1, trunq._token(), trunq._position_worker($1), $2, $3, $4, $5, trunq.clock(), $6, l.tokens, l.tokens_at, l.ahead
    from (select) one left join (select n.tokens, n.tokens_at, n.ahead from trunq_data.%1$I n where n.subscription_id = $1 order by n.lease_id desc limit 1) l on true
  $q$, p_queue.lease_table, p_queue.lease_sequence)
  using p_subscription_id, p_lo, p_hi, p_last_txid, p_last_id, p_segment;
end $$;
comment on function trunq._carry_cursor is 'Writes a position again, as an empty lease in another segment.';
