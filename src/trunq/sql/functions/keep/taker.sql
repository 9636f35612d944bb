-- A taker takes the history of a queue elsewhere, at its own pace: a pipeline whose source has format = "history", into a lake or any other
-- sink; or the archive of the queue, which is a table beside it (archive.sql). Rotation empties nothing that a taker has still to take
-- (trunq._is_taken). A queue without one pays nothing.
--
-- A taker goes down the leases of a subscription (_walk), which are numbered and committed in one order: what is above its mark came later. A
-- lease is taken once, when it is over: when all its messages are answered, or when it was reaped. No answer can be added to it then. Those
-- still open are noted in the mark and looked at again, so that a job of hours holds up its own segments alone. The mark of a subscription
-- that ended stays until its leases are taken; of the open ones what was answered is, and nobody answers the rest any more.
--
-- A pipeline keeps where it stands itself, with what it wrote. The marks here, which rotation asks, are never ahead of that, as _take_history
-- comes after it; those of the archive are where it stands.
--
--   _plan_history   from a state: the marks are set to it, and what is over behind them is the next slice
--   _read_history   the attempts of a slice, as often as it is asked
--   _take_history   all before a state is written elsewhere: the marks move there
--
-- So a slice, the numbers of its leases, always has the same rows. What a crash could take back may not be in it: a lease that was not on the
-- disk comes again under its number, with other messages. So _plan_history writes a row, and its commit brings all that it saw to the disk.
--
-- A state names subscriptions by their ids and when they were made: in another database, and in a queue that was made again, they are others.

create or replace function trunq.create_taker(p_queue text, p_taker text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_is_made boolean;
begin
  perform trunq._require_read_committed('create_taker');
  perform trunq._check_name('taker', p_taker);
  -- Rotation waits: what is there is for it, too.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);  -- it may have been dropped meanwhile
  insert into trunq.taker (queue_id, name, created_at) values (v_queue.queue_id, p_taker, trunq.clock()) on conflict do nothing;
  v_is_made := found;
  perform trunq._make_marks(v_queue);
  return v_is_made;
exception when lock_not_available then
  perform trunq._fail('TQ009', format('an open transaction uses queue "%s"', p_queue),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq.create_taker is
  'Keeps the attempts of the shared subscriptions of a queue until a taker has them, a pipeline of that name with the source history, which does this by itself when it first runs. It begins with what the queue still holds.
Returns: true when there was none of that name.
Raises: TQ001, TQ004, TQ007; TQ009 when an open transaction creates or drops the queue for 5 seconds.
Locks: the queue, shared.';

create or replace function trunq.drop_taker(p_queue text, p_taker text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('drop_taker', p_queue, jsonb_build_object('taker', p_taker));
  delete from trunq.taker t using trunq.queue q where q.queue_id = t.queue_id and q.name = p_queue and t.name = p_taker
    and t.name <> '(archive)';
  if not found then
    perform trunq._find_queue(p_queue);
    perform trunq._fail('TQ005', format('queue "%s" has no taker "%s"', p_queue, coalesce(p_taker, '')),
      'select * from trunq.list_takers() shows those there are');
  end if;
end $$;
comment on function trunq.drop_taker is
  'Keeps nothing for a taker any more: rotation may empty what it has not taken. Dropping its pipeline does so, too.
Raises: TQ001; TQ005 when there is none of that name.
Locks: the taker.';

create or replace function trunq.list_takers(p_queue text default null)
returns table (queue text, taker text, behind interval, open integer, taken_at timestamptz, created_at timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, t.name, trunq.clock() - trunq._first_untaken(q, t.name),
      (select coalesce(sum(cardinality(m.open)), 0)::integer from trunq.taker_mark m where m.queue_id = t.queue_id and m.taker = t.name), t.taken_at, t.created_at
    from trunq.taker t join trunq.queue q on q.queue_id = t.queue_id
    where t.name <> '(archive)' and (p_queue is null or q.name = p_queue) order by q.name, t.name;
end $$;
comment on function trunq.list_takers is
  'Takers of queues, which copy their history elsewhere. behind: how long ago the first attempt ended that is not taken yet (null: all are); open: leases that it passed while they were open, and will come back to; taken_at: when it last took all there was up to a place.
Raises: TQ001.';

create or replace function trunq._unmarked(p_queue trunq.queue) returns setof trunq.taker_mark
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.queue_id, t.name, s.subscription_id, s.name, trunq._reader_name(s), 0::bigint, '{}'::bigint[] from trunq.taker t join trunq.subscription s on s.queue_id = t.queue_id
  where t.queue_id = p_queue.queue_id and s.mode = 'shared'
    and not exists (select from trunq.taker_mark m where m.queue_id = t.queue_id and m.taker = t.name and m.subscription_id = s.subscription_id)
$$;
comment on function trunq._unmarked is 'The marks that takers of a queue have yet to get, of shared subscriptions which they have not begun with.';

create or replace function trunq._make_marks(p_queue trunq.queue) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into trunq.taker_mark select u.* from trunq._unmarked(p_queue) u order by u.taker, u.subscription_id on conflict do nothing
$$;
comment on function trunq._make_marks is 'Gives each taker of a queue its mark of each shared subscription; also before one ends.';

create or replace function trunq._forget_ended(p_queue trunq.queue, p_taker text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_ended constant integer[] := array(
    select m.subscription_id from trunq.taker_mark m where m.queue_id = p_queue.queue_id and m.taker = p_taker
      and not exists (select from trunq.subscription s where s.subscription_id = m.subscription_id));
begin
  if v_ended <> '{}' then
    execute format($q$
      delete from trunq.taker_mark m where m.queue_id = $1 and m.taker = $2 and m.subscription_id = any ($3) and not exists (
        select from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id > m.lease_id
        union all
        select from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id = any (m.open))
    $q$, p_queue.lease_table) using p_queue.queue_id, p_taker, v_ended;
  end if;
end $$;
comment on function trunq._forget_ended is 'Removes the marks of subscriptions that ended and of which a taker has all.';

create or replace function trunq._walk_leases(
  p_queue trunq.queue, p_mark trunq.taker_mark, p_messages bigint, p_is_last boolean,
  out over bigint[], out up_to bigint, out still_open bigint[], out size bigint
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_lease record;
  v_closed bigint[] := '{}';
begin
  over := '{}'; up_to := p_mark.lease_id; still_open := '{}'; size := 0;
  for v_lease in
    execute format($q$
      select l.lease_id, coalesce(l.size, 0) size, l.size is null or l.size = 0 or l.reaped_at is not null or l.size <= coalesce((
        select sum(r.size) from trunq_data.%2$I r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), 0) is_over
      from (
        select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = any ($3)
        union all
        (select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id > $2 order by l.lease_id)) l
    $q$, p_queue.lease_table, p_queue.receipt_table) using p_mark.subscription_id, p_mark.lease_id, p_mark.open
  loop
    exit when size >= p_messages;
    up_to := greatest(up_to, v_lease.lease_id);
    if not v_lease.is_over and not (p_is_last and trunq._end_abandoned_lease(p_queue, p_mark.subscription_id, v_lease.lease_id)) then
      if v_lease.lease_id > p_mark.lease_id then
        still_open := still_open || v_lease.lease_id;
      end if;
      continue;
    end if;
    if v_lease.lease_id <= p_mark.lease_id then
      v_closed := v_closed || v_lease.lease_id;
    end if;
    if v_lease.size > 0 then
      over := over || v_lease.lease_id;
      size := size + v_lease.size;
    end if;
  end loop;
  -- Those that it did not come to stay noted.
  still_open := array(select unnest(p_mark.open) except select unnest(v_closed) order by 1) || still_open;
end $$;
comment on function trunq._walk_leases is
  'Goes down the leases of a subscription from a mark until those that are over have about p_messages. p_is_last: ends those that are not.
Returns: the leases with messages that are over, the mark behind them (up_to, still_open), and how many messages they have.';

create or replace function trunq._end_abandoned_lease(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  if not pg_try_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(p_queue.queue_id, p_lease_id)) then
    return false;  -- an answer is on its way
  end if;
  -- Refuses one that found the subscription while it was there.
  execute format('update trunq_data.%I set reaped_at = trunq.clock() where subscription_id = $1 and lease_id = $2 and reaped_at is null', p_queue.lease_table)
    using p_subscription_id, p_lease_id;
  return true;
end $$;
comment on function trunq._end_abandoned_lease is 'Ends an open lease of a subscription that was dropped.
Returns: false when its lock is held just now.';

create or replace function trunq._first_untaken(p_queue trunq.queue, p_taker text) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_is_over constant text := format($q$
    l.size > 0 and (l.reaped_at is not null or not exists (select from trunq.subscription s where s.subscription_id = l.subscription_id) or l.size <= coalesce((
      select sum(r.size) from trunq_data.%1$I r
      where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), 0))
  $q$, p_queue.receipt_table);
  v_at timestamptz;
begin
  execute format($q$
    select min(coalesce((
      select max(r.finished_at) from trunq_data.%2$I r
      where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), l.reaped_at, l.leased_at))
    from trunq._taker_marks($1, $2) m cross join lateral (
      (select l.* from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id > m.lease_id and %3$s order by l.lease_id limit 1)
      union all
      select l.* from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id = any (m.open) and %3$s) l
  $q$, p_queue.lease_table, p_queue.receipt_table, c_is_over) into v_at using p_queue, p_taker;
  return v_at;
end $$;
comment on function trunq._first_untaken is
  'When about the first attempt ended that a taker has not taken: of each subscription, in the order of its leases. Null: it has all.';

create or replace function trunq._taker_marks(p_queue trunq.queue, p_taker text) returns setof trunq.taker_mark
language sql stable set search_path = pg_catalog, pg_temp as $$
  select m.* from trunq.taker_mark m where m.queue_id = p_queue.queue_id and m.taker = p_taker
  union all
  select u.* from trunq._unmarked(p_queue) u where u.taker = p_taker
$$;
comment on function trunq._taker_marks is 'The marks of a taker, those that subscriptions have yet to get included; for a look, also on a standby.';

create or replace function trunq._warn_takers(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select q.name, null::text,
    format('history of queue "%s" since %s waits for its taker "%s", longer than the retention of %s: segments stay until it is taken',
      q.name, date_trunc('second', u.at), t.name, q.retention),
    format('run that pipeline (select trunq.run_pipeline(''%2$s'')), or give it up: select trunq.drop_taker(''%1$s'', ''%2$s'')', q.name, t.name)
  from trunq.taker t join trunq.queue q on q.queue_id = t.queue_id cross join lateral (select trunq._first_untaken(q, t.name) at) u
  where t.name <> '(archive)' and (p_queue is null or q.name = p_queue) and u.at < trunq.clock() - q.retention order by q.name, t.name
$$;
comment on function trunq._warn_takers is 'Takers that are further behind than the retention: rotation waits for them.';

create or replace function trunq._is_taken(p_queue trunq.queue, p_table text, p_segment integer, p_open bigint[] default '{}') returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  v_low bigint := 0;
  v_high bigint := 9223372036854775807;
  v_is_left boolean;
begin
  if not exists (select from trunq.taker t where t.queue_id = p_queue.queue_id) then
    return true;
  elsif exists (select from trunq._unmarked(p_queue)) then
    return false;  -- a taker has not begun with it
  end if;
  if p_table = 'log' then
    execute format($q$
      select (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid, g.id limit 1),
        (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid desc, g.id desc limit 1)
    $q$, v_name) into v_low, v_high;
  end if;
  execute format($q$
    select exists (
      select from trunq.taker_mark m cross join lateral (
        select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id > m.lease_id
        union all
        select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id = any (m.open)) l
      where m.queue_id = $1 and l.size > 0 and l.min_txid <= $3 and l.max_txid >= $2 and l.lease_id <> all ($4))
  $q$, case p_table when 'log' then p_queue.lease_table else v_name end) into v_is_left using p_queue.queue_id, v_low, v_high, p_open;
  return not v_is_left;
end $$;
comment on function trunq._is_taken is
  'Whether all takers of a queue, its archive among them, have all of a segment of the log or the leases, but for what the leases p_open have of it.';

create or replace function trunq._first_missing(p_queue trunq.queue, p_is_archive boolean) returns text
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_taker text;
begin
  execute format($q$
    select m.taker from trunq.taker_mark m cross join lateral (
      select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id > m.lease_id
      union all
      select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id = any (m.open)) l
    where m.queue_id = $1 and (m.taker = '(archive)') = $2 and l.size > 0 and exists (
      select from trunq_data.%2$I r where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id)
    order by 1 limit 1
  $q$, p_queue.lease_table, p_queue.receipt_table) into v_taker using p_queue.queue_id, p_is_archive;
  return v_taker;
end $$;
comment on function trunq._first_missing is 'A taker of a queue, or its archive, that has not taken all attempts that were answered.';

create or replace function trunq._require_taken(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_taker text;
begin
  perform trunq._make_marks(p_queue);
  v_taker := trunq._first_missing(p_queue, false);
  if v_taker is not null then
    perform trunq._fail('TQ009', format('history of queue "%s" is still to be taken by "%s"', p_queue.name, v_taker),
      format('run that pipeline first, or give it up: select trunq.drop_taker(''%s'', ''%s'')', p_queue.name, v_taker));
  end if;
end $$;
comment on function trunq._require_taken is 'Refuses (TQ009) while a taker has not taken all attempts that ended.';

create or replace function trunq._reader_name(p_sub trunq.subscription) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select format('%s/%s', p_sub.subscription_id, (extract(epoch from p_sub.created_at) * 1000000)::bigint)
$$;
comment on function trunq._reader_name is 'Names a subscription in the state of a taker.';

create or replace function trunq._plan_history(p_queue text, p_taker text, p_state jsonb, p_messages bigint) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_mark trunq.taker_mark;
  v_piece record;
  v_parts jsonb := '[]';
  v_state jsonb;
begin
  perform trunq._require_read_committed('_plan_history');
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'local', true);
  end if;
  -- The marks may go back, where the state was set back: no rotation meanwhile.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);
  perform trunq._find_taker(v_queue, p_taker, p_state);
  update trunq.taker t set planned_at = trunq.clock() where t.queue_id = v_queue.queue_id and t.name = p_taker;
  perform trunq._make_marks(v_queue);
  -- Of other queues, which this pipeline read before; forgotten when they are gone.
  select coalesce(jsonb_object_agg(e.key, e.value), '{}') into v_state from jsonb_each(p_state) e
  where exists (select from trunq.subscription s where trunq._reader_name(s) = e.key);
  for v_mark in
    update trunq.taker_mark m set lease_id = coalesce((p_state #>> array[m.reader, 'lease'])::bigint, 0),
      open = case when p_state ? m.reader then array(select jsonb_array_elements_text(p_state #> array[m.reader, 'open'])::bigint) else '{}' end
    where m.queue_id = v_queue.queue_id and m.taker = p_taker returning m.*
  loop
    perform trunq._check_lease(v_queue, v_mark);
    v_piece := trunq._next_part(v_queue, v_mark, p_messages, not exists (select from trunq.subscription s where s.subscription_id = v_mark.subscription_id));
    v_state := v_state || jsonb_build_object(v_mark.reader, v_piece.state);
    if v_piece.size > 0 then
      v_parts := v_parts || v_piece.part;
    end if;
  end loop;
  return jsonb_build_object('state', v_state, 'slice',
    case when v_parts <> '[]' then jsonb_build_object('queue_id', v_queue.queue_id, 'parts', v_parts) end);
end $$;
comment on function trunq._plan_history is
  'The next slice of a taker after a state, of about p_messages of each subscription (null: nothing is new), and the state after it. Makes the taker when its state has nothing of this queue.
Locks: the queue, shared; the taker.';

create or replace function trunq._find_taker(p_queue trunq.queue, p_taker text, p_state jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from trunq.taker t where t.queue_id = p_queue.queue_id and t.name = p_taker) then
    return;
  end if;
  if exists (select from trunq.subscription s where s.queue_id = p_queue.queue_id and p_state ? trunq._reader_name(s)) then
    perform trunq._fail('TQ031', format('history of queue "%s" is not kept for "%s" any more: its taker was dropped', p_queue.name, p_taker),
      format('select trunq.create_taker(''%s'', ''%s'') goes on where it was, without what was emptied meanwhile', p_queue.name, p_taker));
  end if;
  perform trunq.create_taker(p_queue.name, p_taker);
end $$;
comment on function trunq._find_taker is 'Makes a taker that begins; refuses (TQ031) one that was dropped.';

create or replace function trunq._check_lease(p_queue trunq.queue, p_mark trunq.taker_mark) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_newest bigint;
begin
  execute format('select s.last_value from trunq_data.%I s', p_queue.lease_sequence) into v_newest;
  if p_mark.lease_id > v_newest then
    perform trunq._fail('TQ031', format('queue "%s" was set back: "%s" has taken leases up to number %s, and the newest is %s',
      p_queue.name, p_mark.taker, p_mark.lease_id, v_newest), 'take its history with a new pipeline, into another place: what is there has attempts that this database does not know');
  end if;
end $$;
comment on function trunq._check_lease(trunq.queue, trunq.taker_mark) is 'Refuses (TQ031) a place ahead of all leases.';

create or replace function trunq._next_part(
  p_queue trunq.queue, p_mark trunq.taker_mark, p_messages bigint, p_is_last boolean, out part jsonb, out state jsonb, out size bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_walk record := trunq._walk_leases(p_queue, p_mark, p_messages, p_is_last);
begin
  size := v_walk.size;
  state := jsonb_build_object('lease', v_walk.up_to, 'open', to_jsonb(v_walk.still_open));
  part := jsonb_build_object('subscription_id', p_mark.subscription_id, 'subscription', p_mark.subscription, 'after', p_mark.lease_id, 'to', v_walk.up_to,
    'except', to_jsonb(array(select o from unnest(v_walk.still_open) o where o > p_mark.lease_id)),
    'again', to_jsonb(array(select o from unnest(v_walk.over) o where o <= p_mark.lease_id)), 'leases', cardinality(v_walk.over));
end $$;
comment on function trunq._next_part is
  'Of one subscription what a slice has: leases above after and up to to, but for those in except, and those in again, which were open when they were passed; how many that are; and the state after it.';

create or replace function trunq._untaken_history(p_queue text, p_taker text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  return jsonb_build_object('queue_id', v_queue.queue_id, 'parts', coalesce((
    select jsonb_agg(p.part) from trunq._taker_marks(v_queue, p_taker) m cross join lateral trunq._next_part(v_queue, m, 9223372036854775807, false) p
    where p.size > 0), '[]'));
end $$;
comment on function trunq._untaken_history is
  'All that is over and that a taker has not said to have taken, as a slice: for a look at it, which nothing is kept for.';

create or replace function trunq._list_leases(p_queue text, p_queue_id integer, p_part jsonb, p_after bigint, p_messages bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue := trunq._queue_of_slice(p_queue, p_queue_id);
  v_leases bigint[];
begin
  execute format($q$
    select array_agg(p.lease_id order by p.lease_id) from (
      select l.lease_id, sum(l.size) over (order by l.lease_id) - l.size before from (
        select l.lease_id, l.size from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = any ($5) and l.lease_id > $2
        union all
        (select l.lease_id, l.size from trunq_data.%1$I l
        where l.subscription_id = $1 and l.lease_id > greatest($2, $3) and l.lease_id <= $4 and l.size > 0 and l.lease_id <> all ($6)
        order by l.lease_id limit $7)) l) p
    where p.before < $7
  $q$, v_queue.lease_table) into v_leases
  using (p_part->>'subscription_id')::integer, p_after, (p_part->>'after')::bigint, (p_part->>'to')::bigint,
    array(select jsonb_array_elements_text(p_part->'again')::bigint), array(select jsonb_array_elements_text(p_part->'except')::bigint), p_messages;
  return coalesce(v_leases, '{}');
end $$;
comment on function trunq._list_leases is
  'The next leases of a part of a slice, above p_after, until they have about p_messages; none at its end.';

create or replace function trunq._attempts(p_queue trunq.queue) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($q$
    with lease as materialized (
      select l.lease_id, l.segment, l.worker, l.leased_at, l.ids, l.txids from unnest($2) o(lease_id)
      cross join lateral (select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = o.lease_id offset 0) l),
    receipt as materialized (
      select l.worker, l.leased_at, l.txids, r.ids = l.ids is_whole, r.* from lease l
      cross join lateral (
        select r.* from trunq_data.%2$I r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = $1 and r.outcome <> 'b' offset 0) r),
    place as (
      select l.lease_id, u.id, u.txid from lease l cross join lateral unnest(l.ids, l.txids) u(id, txid)
      where l.lease_id in (select r.lease_id from receipt r where not r.is_whole)),
    -- Most receipts are about a whole lease: then its arrays go side by side.
    attempt as (
      select r.lease_id, r.worker, r.leased_at, r.outcome, r.finished_at, u.* from receipt r
      cross join lateral unnest(r.ids, r.txids, r.took, r.errors, r.results) u(id, txid, took, error, result)
      where r.is_whole
      union all
      select r.lease_id, r.worker, r.leased_at, r.outcome, r.finished_at, u.id, p.txid, u.took, u.error, u.result from receipt r
      cross join lateral unnest(r.ids, r.took, r.errors, r.results) u(id, took, error, result)
      join place p on p.lease_id = r.lease_id and p.id = u.id
      where not r.is_whole)
  $q$, p_queue.lease_table, p_queue.receipt_table)
$$;
comment on function trunq._attempts is
  'The beginning of a query over the attempts (attempt) of leases ($2) of a subscription ($1), one row each. Written for plans without nested loops over the whole.';

create or replace function trunq._read_history(
  p_queue text, p_queue_id integer, p_part jsonb, p_leases bigint[], p_payload boolean default false
) returns table (
  queue text, subscription text, kind text, key text, id bigint, attempt integer, outcome text, error text, worker text,
  published_at timestamptz, leased_at timestamptz, finished_at timestamptz, took real, waited double precision, priority integer,
  subscription_id integer, lease_id bigint, payload text, headers text, result text
)
language plpgsql set search_path = pg_catalog, pg_temp
-- As trunq._write_archive, for the plan.
set trunq.plan = hash as $$
declare
  v_queue trunq.queue := trunq._queue_of_slice(p_queue, p_queue_id);
begin
  return query execute trunq._attempts(v_queue) || format($q$
    select %2$L::text, $3, g.kind::text, g.key::text, a.id, g.attempt::integer, trunq._outcome(a.outcome), left(split_part(a.error, E'\n', 1), 1000), a.worker,
      case when g.created_at between '1970-01-01' and '9999-01-01' then g.created_at end, a.leased_at, a.finished_at,
      -- What is no time (NaN, infinity), as a worker in any language may say.
      case when a.took between 0 and 1e9 then a.took end,
      -- A retry waited for its time; and the clock may have gone back.
      case when g.subscription_id is null and g.created_at between '1970-01-01' and '9999-01-01' then greatest(extract(epoch from a.leased_at - g.created_at)::double precision, 0) end,
      g.priority::integer, $1, a.lease_id,
      case when $4 then g.payload::text end, case when $4 then g.headers::text end, case when $4 then a.result::text end
    from attempt a left join lateral (select g.* from trunq_log.%1$I g where trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, $1) limit 1) g on true
  $q$, v_queue.log_table, v_queue.name) using (p_part->>'subscription_id')::integer, p_leases, p_part->>'subscription', p_payload;
end $$;
comment on function trunq._read_history is
  'The attempts of leases of a part of a slice, one row each. error: its first line; took and waited: seconds, from publishing to the first lease; p_payload: with payload, headers and result.';

create or replace function trunq._queue_of_slice(p_queue text, p_queue_id integer) returns trunq.queue
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
begin
  select q.* into v_queue from trunq.queue q where q.name = p_queue and q.queue_id = p_queue_id;
  if not found then
    perform trunq._fail('TQ031', format('the queue "%s" whose history is read was dropped, and with it what was not taken', p_queue),
      'cancel the run: trunq pipeline cancel; the next one begins with the queue that is there now');
  end if;
  return v_queue;
end $$;
comment on function trunq._queue_of_slice is 'The queue that a slice is of; TQ031 when it was dropped, whatever has its name now.';

create or replace function trunq._take_history(p_queue text, p_taker text, p_state jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  update trunq.taker t set taken_at = trunq.clock() where t.queue_id = v_queue.queue_id and t.name = p_taker;
  -- One that comes late moves nothing back.
  update trunq.taker_mark m set lease_id = (p_state #>> array[m.reader, 'lease'])::bigint,
    open = array(select jsonb_array_elements_text(p_state #> array[m.reader, 'open'])::bigint)
  where m.queue_id = v_queue.queue_id and m.taker = p_taker and m.lease_id <= (p_state #>> array[m.reader, 'lease'])::bigint;
  perform trunq._forget_ended(v_queue, p_taker);
end $$;
comment on function trunq._take_history is
  'All attempts before a state are taken: rotation need not keep them for this taker. The mark of a subscription that ended goes with its last.
Locks: the taker.';

create or replace function trunq._leave_takers(p_pipeline text, p_source jsonb) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  delete from trunq.taker t using trunq.pipeline p, trunq.queue q
  where p.name = p_pipeline and p.definition #>> '{source,format}' = 'history' and p.definition #> '{source,dsn}' is null
    and t.name = coalesce(p.definition #>> '{source,taker}', p.name) and q.queue_id = t.queue_id and q.name = p.definition #>> '{source,queue}'
    and (p_source is null or row (p_source->>'queue', coalesce(p_source->>'taker', p_pipeline), p_source->>'dsn') is distinct from row (q.name, t.name, null))
$$;
comment on function trunq._leave_takers is 'Ends the taker of a pipeline that is dropped (p_source null) or gets another source. One in another database stays.';
