-- A tick is a stored snapshot of a queue: what lies between two is the same set of rows every time it is read. Cut by the
-- leader when enough messages (tick_max_count) or enough time (tick_max_lag) have passed; with nothing new, ever less often, up
-- to tick_idle_period (null: none); or by a reader that finds no newer one (batch.sql); or forced. A tick must commit
-- on its own to mean anything to others, and it waits for the disk: it may be in a checkpoint elsewhere before the next crash.
--
-- Nobody cuts ticks of a queue whose ticks are paused, and of one whose ticks are external only who says so, with trunq.cut_tick or by force:
-- the leader and readers leave it alone, and a reader that starts there begins at the newest tick.
--
-- A tick is reachable as long as the log holds everything after it; which is the first, rotation notes (trunq.queue). It is
-- the first that sees all that was emptied, not the first whose transactions were all over: behind a writer that stays open for
-- hours there would be none.

create or replace function trunq.tick(p_queue text, p_force boolean default false) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_last trunq.tick;
  v_before timestamptz;
  v_seq bigint;
  v_age interval;
  v_due interval;
begin
  perform trunq._require_read_committed('tick');
  v_queue := trunq._find_queue(p_queue);
  perform trunq._check_cluster();
  if p_force then
    perform pg_advisory_xact_lock(trunq._lock_class('tick'), v_queue.queue_id);
    return (trunq._cut_tick(v_queue)).tick_id;
  elsif not pg_try_advisory_xact_lock(trunq._lock_class('tick'), v_queue.queue_id) then
    return null;  -- somebody cuts one just now: the leader has other queues to see to
  end if;
  if v_queue.tick_paused or v_queue.tick_external then
    return null;
  end if;
  select * into v_last from trunq.tick t where t.queue_id = v_queue.queue_id order by t.tick_id desc limit 1;
  v_seq := trunq._last_message_id(v_queue);
  v_age := trunq.clock() - v_last.created_at;
  v_due := v_queue.tick_max_lag;
  -- Ids are handed out 32 at a time to each session: more of them are gone for sure, but with none gone, look at the log.
  if v_seq = v_last.last_message_id and not (v_age > v_due and trunq._has_new(v_queue.name, v_last.snapshot)) then
    if v_queue.tick_idle_period is null then
      return null;
    end if;
    -- Idle: wait half the lag, then twice the gap before, up to the idle period.
    select t.created_at into v_before from trunq.tick t
    where t.queue_id = v_queue.queue_id and t.tick_id < v_last.tick_id order by t.tick_id desc limit 1;
    v_due := least(v_queue.tick_idle_period, greatest(v_queue.tick_max_lag / 2, 2 * (v_last.created_at - v_before)));
  end if;
  if v_seq - v_last.last_message_id < v_queue.tick_max_count and v_age between '0' and v_due then
    return null;
  end if;
  return (trunq._cut_tick(v_queue)).tick_id;
end $$;
comment on function trunq.tick is
  'Cuts a tick when one is due, or, forced, always, even where ticks are paused or external.
Returns: its id, null when none was due, or somebody else cuts one just now.
Raises: TQ001, TQ007, TQ010.
Locks: the queue''s ticks; forced, it waits for them.';

create or replace function trunq.cut_tick(
  p_queue text, p_tick_id bigint default null, p_created_at timestamptz default null, p_last_message_id bigint default null
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_last trunq.tick;
begin
  perform trunq._require_read_committed('cut_tick');
  v_queue := trunq._find_queue(p_queue);
  perform trunq._check_cluster();
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), v_queue.queue_id);
  -- Under the lock: one who paused them waits for nobody, but nobody who came after him cuts one.
  v_queue := trunq._find_queue(p_queue);
  if not v_queue.tick_external or v_queue.tick_paused then
    perform trunq._fail('TQ005', format('ticks of queue "%s" %s', p_queue, case when v_queue.tick_paused then 'are paused' else 'are not external: trunq cuts them' end),
      case when v_queue.tick_paused then format('select trunq.resume_ticks(''%s'')', p_queue)
        else format('select trunq.set_queue(''%s'', p_tick_external => true), or trunq.tick(''%1$s'', true) for one', p_queue) end);
  end if;
  select * into v_last from trunq.tick t where t.queue_id = v_queue.queue_id order by t.tick_id desc limit 1;
  if p_tick_id <= v_last.tick_id then
    perform trunq._fail('TQ005', format('tick %s of queue "%s" does not come after its newest, %s', p_tick_id, p_queue, v_last.tick_id), 'ticks are numbered upwards');
  elsif p_last_message_id < 0 then
    perform trunq._fail('TQ005', format('the ids of queue "%s" cannot have come to %s', p_queue, p_last_message_id));
  elsif p_created_at not between '1970-01-01' and '9999-01-01' then
    perform trunq._fail('TQ005', format('a tick of queue "%s" cannot be from %s', p_queue, p_created_at));
  end if;
  return (trunq._cut_tick(v_queue, p_tick_id, p_created_at, p_last_message_id)).tick_id;
end $$;
comment on function trunq.cut_tick is
  'Cuts a tick of a queue whose ticks are external, with what another system says of it: its id, its time, and where message ids stood (at least where they do stand). Left out: the next, now, as it is.
Returns: its id.
Raises: TQ001, TQ007, TQ010; TQ005 where ticks are not external, or are paused, and for an id that is not the newest.
Locks: the queue''s ticks, waiting for them.';

create or replace function trunq.pause_ticks(p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('pause_ticks', p_queue);
  perform trunq._find_queue(p_queue);
  update trunq.queue q set tick_paused = true where q.name = p_queue and not q.tick_paused;
  return found;
end $$;
comment on function trunq.pause_ticks is
  'Stops cutting ticks of a queue until trunq.resume_ticks, by the leader and by readers: exclusive subscriptions have nothing to read behind the newest tick. A forced tick is still cut.
Returns: false when they were paused.
Raises: TQ001.';

create or replace function trunq.resume_ticks(p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_resumed boolean;
begin
  perform trunq._audit('resume_ticks', p_queue);
  perform trunq._find_queue(p_queue);
  update trunq.queue q set tick_paused = false where q.name = p_queue and q.tick_paused;
  v_is_resumed := found;
  perform trunq._call_workers((trunq._find_queue(p_queue)).queue_id);
  return v_is_resumed;
end $$;
comment on function trunq.resume_ticks is
  'Cuts ticks of a queue again, and wakes its readers.
Returns: false when they were not paused.
Raises: TQ001.';

create or replace function trunq.list_ticks(p_queue text, p_from bigint default null, p_to bigint default null)
returns table (tick_id bigint, snapshot pg_snapshot, last_message_id bigint, created_at timestamptz, reachable boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  perform trunq._check_cluster();
  return query
    select t.tick_id, t.snapshot, t.last_message_id, t.created_at, t.tick_id >= v_queue.reachable_tick_id from trunq.tick t
    where t.queue_id = v_queue.queue_id and t.tick_id >= coalesce(p_from, 0) and t.tick_id <= coalesce(p_to, 9223372036854775807)
    order by t.tick_id;
end $$;
comment on function trunq.list_ticks is
  'The ticks kept, in order, from p_from to p_to, both included. last_message_id: where the ids stood; differences estimate sizes. reachable: every message after it is still in the log.
Raises: TQ001, TQ010.';

create or replace function trunq._last_message_id(p_queue trunq.queue) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  -- Null before the first. A SELECT from the sequence would be planned each time.
  return coalesce(pg_sequence_last_value(p_queue.id_sequence::regclass), 0);
end $$;
comment on function trunq._last_message_id is 'The last message id handed out; sessions take 32 at a time.';

create or replace function trunq._cut_tick(
  p_queue trunq.queue, p_tick_id bigint default null, p_created_at timestamptz default null, p_last_message_id bigint default null
) returns trunq.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_tick trunq.tick;
begin
  perform trunq._wait_for_disk();
  insert into trunq.tick (queue_id, tick_id, snapshot, last_message_id, created_at)
  -- Not below where ids stand: a later one counts as drawn after the tick.
  select p_queue.queue_id, coalesce(p_tick_id, max(t.tick_id) + 1, 1), trunq.snapshot(), greatest(p_last_message_id, trunq._last_message_id(p_queue)),
    coalesce(p_created_at, trunq.clock())
  from trunq.tick t where t.queue_id = p_queue.queue_id
  returning * into v_tick;
  return v_tick;
end $$;
comment on function trunq._cut_tick is 'Stores a tick; the caller holds the lock of the queue''s ticks.';

create or replace function trunq._wait_for_disk() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('synchronous_commit') = 'off' then
    -- For the transaction: a setting of the function that cuts a tick would be gone before its commit.
    perform set_config('synchronous_commit', 'on', true);
  end if;
end $$;
comment on function trunq._wait_for_disk is 'Lets the commit of this transaction wait for the disk.';

create or replace function trunq._find_tick(
  p_queue_id integer, p_from_tick_id bigint, p_now timestamptz, p_max_ticks integer,
  p_min_lag interval default null, p_min_count bigint default null, p_min_interval interval default null,
  out tick_id bigint, out snapshot pg_snapshot
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_from trunq.tick;
  v_least bigint := p_from_tick_id + 1;
begin
  if num_nonnulls(p_min_count, p_min_interval) > 0 then
    select t.* into v_from from trunq.tick t where t.queue_id = p_queue_id and t.tick_id = p_from_tick_id;
    select t.tick_id into v_least from trunq.tick t
    where t.queue_id = p_queue_id and t.tick_id > p_from_tick_id
      and (p_min_count is null or t.last_message_id - coalesce(v_from.last_message_id, 0) >= p_min_count)
      and (p_min_interval is null or t.created_at - coalesce(v_from.created_at, '-infinity') >= p_min_interval)
    order by t.tick_id limit 1;
    if not found then
      return;
    end if;
  end if;
  select n.tick_id, n.snapshot into tick_id, snapshot from (
    (select t.tick_id, t.snapshot, t.created_at from trunq.tick t
     where t.queue_id = p_queue_id and t.tick_id > p_from_tick_id and (p_min_lag is null or t.created_at <= p_now - p_min_lag)
     order by t.tick_id limit p_max_ticks)
    union all
    select t.tick_id, t.snapshot, t.created_at from trunq.tick t
    where t.queue_id = p_queue_id and t.tick_id = v_least and (p_min_lag is null or t.created_at <= p_now - p_min_lag)) n
  order by n.tick_id desc limit 1;
  if tick_id < v_least then
    tick_id := null;  -- the first that is far enough is not old enough yet
    snapshot := null;
  end if;
end $$;
comment on function trunq._find_tick is
  'The tick up to which a batch goes: p_max_ticks further, or as many as the minima ask for; null when there is none yet.';

create or replace function trunq._cut_for_reader(
  p_queue_id integer, p_last trunq.tick, p_from_tick_id bigint,
  p_min_lag interval default null, p_min_count bigint default null, p_min_interval interval default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- Between two ticks of readers: what comes in it is one batch.
  c_gap constant interval := '10 milliseconds';
  v_age interval := trunq.clock() - p_last.created_at;
  v_queue trunq.queue := trunq._find_queue(p_queue_id);
begin
  if v_queue.tick_paused or v_queue.tick_external then
    return false;
  elsif p_min_count is not null and trunq._last_message_id(v_queue) - coalesce((
      select t.last_message_id from trunq.tick t where t.queue_id = p_queue_id and t.tick_id = p_from_tick_id), 0) < p_min_count then
    return false;
  elsif v_age between '0' and greatest(p_min_lag, p_min_interval) / 10 then
    return false;  -- a reader that wants to be behind needs no tick at each look
  elsif v_age between '0' and c_gap then
    perform pg_sleep(extract(epoch from c_gap - v_age));
  end if;
  -- Behind the subscription's lock it may not wait for this one; who holds it does so for a moment, and mostly cuts the very tick.
  for v_try in 1..20 loop
    if pg_try_advisory_xact_lock(trunq._lock_class('tick'), p_queue_id) then
      if not exists (select from trunq.tick t where t.queue_id = p_queue_id and t.tick_id > p_last.tick_id) then
        perform trunq._cut_tick(v_queue);
      end if;
      return true;
    end if;
    perform pg_sleep(0.002);
  end loop;
  return false;
end $$;
comment on function trunq._cut_for_reader is
  'Cuts a tick for a reader for whom p_last is not enough, unless another just did, or the minima could not be met.
Returns: whether there is a newer one than p_last.';

create or replace function trunq._start_tick(p_queue trunq.queue, p_start text, p_tick_id bigint default null, p_at timestamptz default null) returns trunq.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_tick trunq.tick;
begin
  -- The caller has the queue's lock, shared: what is in reach stays so.
  if p_tick_id is not null then
    select t.* into v_tick from trunq.tick t where t.queue_id = p_queue.queue_id and t.tick_id = p_tick_id;
    if not found then
      perform trunq._fail('TQ012', format('queue "%s" has no tick %s', p_queue.name, p_tick_id),
        format('select * from trunq.list_ticks(%L) shows those kept', p_queue.name));
    end if;
    perform trunq._check_reachable(p_queue.queue_id, p_tick_id);
    return v_tick;
  elsif p_at is not null then
    -- The last before any that is later: where a clock went back, rather one more than one too few.
    select t.* into v_tick from trunq.tick t
    where t.queue_id = p_queue.queue_id and t.tick_id < coalesce((
      select min(l.tick_id) from trunq.tick l where l.queue_id = p_queue.queue_id and l.created_at > p_at), 9223372036854775807)
    order by t.tick_id desc limit 1;
    if v_tick.tick_id >= (select q.reachable_tick_id from trunq.queue q where q.queue_id = p_queue.queue_id) then
      return v_tick;
    end if;
    perform trunq._fail('TQ012', format('queue "%s" keeps no tick in reach from %s or before: messages since then are gone', p_queue.name, p_at),
      format('the first in reach is %s; start at earliest to begin there', coalesce((
        select format('tick %s, from %s', t.tick_id, t.created_at) from trunq.tick t join trunq.queue q on q.queue_id = t.queue_id
        where t.queue_id = p_queue.queue_id and t.tick_id >= q.reachable_tick_id order by t.tick_id limit 1), 'the next to be cut')));
  end if;
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), p_queue.queue_id);
  if p_start = 'earliest' then
    select t.* into v_tick from trunq.tick t join trunq.queue q on q.queue_id = t.queue_id
    where t.queue_id = p_queue.queue_id and t.tick_id >= q.reachable_tick_id order by t.tick_id limit 1;
    if found then
      return v_tick;
    end if;
  elsif p_queue.tick_paused or p_queue.tick_external then
    select t.* into v_tick from trunq.tick t join trunq.queue q on q.queue_id = t.queue_id
    where t.queue_id = p_queue.queue_id and t.tick_id >= q.reachable_tick_id order by t.tick_id desc limit 1;
    if found then
      return v_tick;
    end if;
  end if;
  return trunq._cut_tick(p_queue);
end $$;
comment on function trunq._start_tick is
  'The tick a reader starts at: this one, the last one at or before a time, the earliest in reach, or one cut now (the newest where ticks are paused or external); TQ012 when it is not in reach. The caller holds the lock of the queue.';

create or replace function trunq._check_reachable(p_queue_id integer, p_tick_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue record;
begin
  select q.name, q.reachable_tick_id into v_queue from trunq.queue q where q.queue_id = p_queue_id;
  if p_tick_id < v_queue.reachable_tick_id then
    perform trunq._fail('TQ012', format('tick %s of queue "%s" is out of reach: messages after it are gone', p_tick_id, v_queue.name),
      format('they were older than the retention; tick %s is the first in reach (trunq.list_ticks), trunq.advance moves a subscription to it',
        v_queue.reachable_tick_id));
  end if;
end $$;
comment on function trunq._check_reachable is 'Refuses (TQ012) to read from a tick after which messages were emptied.';

create or replace function trunq._forget_ticks(p_queue trunq.queue) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- Kept: the newest, those younger than the retention, and every reader's position with the tick before it, because a
  -- reader elsewhere may have to repeat its last batch.
  v_kept bigint := (
    select least(
      (select t.tick_id from trunq.tick t
       where t.queue_id = p_queue.queue_id and t.created_at >= trunq.clock() - p_queue.retention order by t.tick_id limit 1),
      (select t.tick_id from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1),
      (select min(coalesce((select max(b.tick_id) from trunq.tick b where b.queue_id = p_queue.queue_id and b.tick_id < p.tick_id), p.tick_id))
       from trunq.subscription s cross join lateral (select trunq._tick_position(s) tick_id) p where s.queue_id = p_queue.queue_id and s.mode = 'exclusive')));
  v_count integer;
begin
  delete from trunq.tick t where t.queue_id = p_queue.queue_id and t.tick_id < v_kept;
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq._forget_ticks is 'Deletes ticks that nobody needs any more. It looks at these and at those that a reader holds.
Returns: how many.';
