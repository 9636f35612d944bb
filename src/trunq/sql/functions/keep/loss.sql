-- How much a queue holds for subscriptions that stand still: hold_at_most, a time, and hold_size, bytes of log. Null, as it is made: for ever.
-- A segment behind either limit is emptied though subscriptions need it, the oldest first, never the one that is written to. In the
-- transaction that empties it, under the locks of all who need it:
--   leases    that hold messages of it are ended: those go back as after an expiry, into another segment. They are not lost.
--   loss      a row in trunq.loss for each subscription that had messages of it to read
--   position  a shared one stays where it is, as positions are made of snapshots and what is gone is passed over: it loses that segment and
--             nothing else. An exclusive one moves to the first tick that sees all of the segment; what lies before that is lost, and an open
--             batch ends. Parts of batches behind the tick stay.
--   lost_at   of the subscription; and its newest lease is by a worker "lost". So the next lease or batch, which reads the newest lease
--             under the lock anyway, raises TQ026 until somebody accepts the loss.
-- What the archive and takers have still to take of a segment keeps it, whatever the limits: they have a warning of their own.
-- Attempts that are ended here are told without their message where they are taken after it is gone.
--
-- retain_size is another thing: what everybody has read is kept no longer than for so many bytes.

create or replace function trunq.list_losses(p_queue text default null)
returns table (
  queue text, subscription text, reason text, messages bigint, is_more boolean, from_tick_id bigint, to_tick_id bigint,
  from_txid bigint, to_txid bigint, first_at timestamptz, last_at timestamptz, lost_at timestamptz, accepted_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, s.name, o.reason, o.messages, o.is_more, o.from_tick_id, o.to_tick_id, o.from_txid::text::bigint, o.to_txid::text::bigint,
      o.first_at, o.last_at, o.lost_at, o.accepted_at
    from trunq.loss o join trunq.queue q on q.queue_id = o.queue_id
    join trunq.subscription s on s.subscription_id = o.subscription_id
    where p_queue is null or q.name = p_queue order by q.name, s.name, o.loss_id;
end $$;
comment on function trunq.list_losses is
  'What subscriptions lost because their queue holds no more for them, the oldest first; the newest 100 of each. reason: time (hold_at_most) or size (hold_size); messages: how many, is_more: at least; from_tick_id and to_tick_id: from where to where an exclusive one was moved; from_txid to last_at: the first and the last of the messages; accepted_at null: it hands out nothing.
Raises: TQ001.';

create or replace function trunq.accept_loss(p_queue text, p_subscription text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_subs trunq.subscription[];
  v_sub trunq.subscription;
  v_count integer;
begin
  perform trunq._require_read_committed('accept_loss');
  -- Of a group by key, all its slots.
  v_subs := array(
    select s from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id left join trunq.subscription_group g on g.group_id = s.group_id
    where q.name = p_queue and p_subscription in (s.name, g.name) order by s.subscription_id);
  if cardinality(v_subs) = 0 then
    perform trunq._subscription(p_queue, p_subscription);
  end if;
  foreach v_sub in array v_subs loop
    perform trunq._lock_subscription(v_sub.subscription_id, p_queue, v_sub.name);
  end loop;
  update trunq.subscription s set lost_at = null from unnest(v_subs) u where s.subscription_id = u.subscription_id and s.lost_at is not null;
  update trunq.loss o set accepted_at = trunq.clock() from unnest(v_subs) u where o.subscription_id = u.subscription_id and o.accepted_at is null;
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform trunq._call_workers((v_subs[1]).queue_id);
  end if;
  perform trunq._audit('accept_loss', p_queue, jsonb_build_object('subscription', p_subscription), v_count);
  return v_count;
end $$;
comment on function trunq.accept_loss is
  'Lets a subscription, or a group, that lost messages go on with what is there. trunq.list_losses keeps what was lost.
Returns: how many losses this accepts; 0 when there was none.
Raises: TQ001, TQ002, TQ007; TQ008 when an open transaction holds the subscription for 5 seconds.
Locks: the subscription, or each of the group.';

create or replace function trunq._check_loss(p_subscription_id integer) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  select q.name queue, coalesce(g.name, s.name) subscription, trunq._told_loss(s) loss into v
  from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id left join trunq.subscription_group g on g.group_id = s.group_id
  where s.subscription_id = p_subscription_id and s.lost_at is not null;
  if not found then
    return;
  end if;
  perform trunq._fail('TQ026', format('subscription "%s" of queue "%s" has lost messages: %s', v.subscription, v.queue, v.loss),
    format('the queue holds no more for it; select * from trunq.list_losses(''%1$s'') tells which, and trunq.accept_loss(''%1$s'', ''%2$s'') lets it go on', v.queue, v.subscription));
end $$;
comment on function trunq._check_loss is 'Refuses (TQ026) to hand anything out to a subscription whose loss nobody has accepted.';

create or replace function trunq._told_loss(p_sub trunq.subscription) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select format('%s, at %s', trunq._told_count(sum(o.messages)::bigint, bool_or(o.is_more)), date_trunc('second', p_sub.lost_at))
  from trunq.loss o join trunq.subscription s using (subscription_id)
  where (s.subscription_id = p_sub.subscription_id or s.group_id = p_sub.group_id) and o.accepted_at is null
$$;
comment on function trunq._told_loss is 'How many messages a subscription, or the group that it is a slot of, lost and nobody has accepted, for people.';

create or replace function trunq._told_count(p_number bigint, p_is_more boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_is_more then 'more than ' else '' end || ltrim(to_char(p_number, 'FM999,999,999,999,990'))
$$;
comment on function trunq._told_count is 'A count for people.';

create or replace function trunq._position_worker(p_subscription_id integer) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when s.lost_at is null then 'rotate' else 'lost' end from trunq.subscription s where s.subscription_id = p_subscription_id
$$;
comment on function trunq._position_worker is 'The worker of a position that rotation writes again: lost as long as nobody has accepted a loss.';

create or replace function trunq._segment_age(p_queue trunq.queue, p_number bigint) returns interval
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select make_interval(secs => (floor(date_part('epoch', trunq.clock()))::bigint - (p_number + 1) * extract(epoch from p_queue.span)::bigint)::double precision)
$$;
comment on function trunq._segment_age is 'How long ago the span of this number ended; negative: it has not.';

create or replace function trunq._segment_bytes(p_queue trunq.queue, p_segment integer) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(pg_total_relation_size(to_regclass(format('trunq_data.%I', trunq._segment_name(p_queue, 'log', p_segment)))), 0)
$$;
comment on function trunq._segment_bytes is 'What a segment of the log takes on disk, with its indexes.';

create or replace function trunq._log_bytes(p_queue trunq.queue, p_back integer) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select sum(trunq._segment_bytes(p_queue, ((trunq._span_number(p_queue, trunq.clock()) - b) % p_queue.segments)::integer))::bigint
  from generate_series(0, least(p_back, p_queue.segments - 1)) b
$$;
comment on function trunq._log_bytes is 'What the log takes on disk from the segment so many spans back on.';

create or replace function trunq._held_space(p_queue trunq.queue, p_subscription_id integer, out held_for interval, out held_bytes bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_span constant bigint := trunq._span_number(p_queue, trunq.clock());
  v_filled constant smallint[] := trunq._filled_segments(p_queue, 'log');
  v_oldest record;
  v_waits interval;
  v_back integer;
begin
  -- By where its oldest message lies: one that was put off may be older than its row.
  execute format($q$
    select g.* from trunq._unread($1, $2, 1, %2$L) u
    cross join lateral (
      select g.segment, g.txid, greatest(g.created_at, (g.errors #>> '{-1,at}')::timestamptz) at from trunq_log.%1$I g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, $2) and g.segment = any (%2$L) limit 1) g
  $q$, p_queue.log_table, v_filled) into v_oldest using p_queue, p_subscription_id;
  if v_oldest.segment is null then
    return;
  end if;
  v_back := (v_span - v_oldest.segment) % p_queue.segments;
  held_for := greatest(trunq._segment_age(p_queue, v_span - v_back), '0');
  -- Was it there a whole ring ago? Then its segment has been written to again, and no longer says since when. A row that came after the
  -- first tick that is kept was put off, and is younger than its message.
  v_waits := trunq.clock() - v_oldest.at;
  if trunq._is_reshaping(p_queue) then
    -- Segments tell no age yet (keep/rotate.sql).
    held_for := greatest(v_waits, '0');
    held_bytes := trunq._log_bytes(p_queue, p_queue.segments - 1);
    return;
  end if;
  if v_waits > p_queue.segments * p_queue.span then
    v_waits := least(v_waits, (
      select case when not pg_visible_in_snapshot(v_oldest.txid, t.snapshot) then trunq.clock() - t.created_at end
      from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id limit 1));
    if v_waits > p_queue.segments * p_queue.span then
      held_for := v_waits;
      v_back := p_queue.segments - 1;
    end if;
  end if;
  held_bytes := trunq._log_bytes(p_queue, v_back);
end $$;
comment on function trunq._held_space is
  'How much of the log a subscription holds, from the oldest message that it has not read: how long ago the segment of that was last written to, or, once the ring has come around, since when the message waits; and the bytes from there on. Nulls: nothing.';

create or replace function trunq._warn_space(p_queue text)
returns table (queue text, subscription text, warning text, hint text, share integer, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
  v_held record;
  v_by_time numeric;
  v_by_size numeric;
begin
  -- A group by key is one.
  for v in
    select q as row, q.name, coalesce(g.name, s.name) subscription, array_agg(s.subscription_id) ids,
      (array_agg(s order by s.lost_at) filter (where s.lost_at is not null))[1] lost
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id left join trunq.subscription_group g on g.group_id = s.group_id
    where (p_queue is null or q.name = p_queue) and (s.lost_at is not null or num_nonnulls(q.hold_at_most, q.hold_size) > 0)
    group by q.queue_id, coalesce(g.name, s.name) order by q.name, 3
  loop
    queue := v.name; subscription := v.subscription;
    if (v.lost).lost_at is not null then
      warning := format('subscription "%s" of queue "%s" has lost messages: %s', subscription, queue, trunq._told_loss(v.lost));
      hint := format('it hands out nothing until somebody accepts that: select trunq.accept_loss(''%s'', ''%s'')', queue, subscription);
      share := 100; since := (v.lost).lost_at;
      return next;
    end if;
    continue when num_nonnulls((v.row).hold_at_most, (v.row).hold_size) = 0;
    select max(h.held_for) held_for, max(h.held_bytes) held_bytes into v_held from unnest(v.ids) i(id) cross join lateral trunq._held_space(v.row, i.id) h;
    v_by_time := coalesce(extract(epoch from v_held.held_for) / extract(epoch from (v.row).hold_at_most), 0);
    v_by_size := coalesce(v_held.held_bytes::numeric / (v.row).hold_size, 0);
    share := (select max(t) from unnest(array[50, 80, 95]) t where t <= 100 * greatest(v_by_time, v_by_size));
    continue when share is null;
    since := null;
    -- The same words until the next threshold: the leader logs each warning once.
    warning := format('subscription "%s" of queue "%s" has used %s %% of %s', subscription, queue, share,
      case when v_by_time >= v_by_size then format('the time for which the queue holds messages for it, %s', (v.row).hold_at_most)
        else format('the %s that the queue holds for it', pg_size_pretty((v.row).hold_size)) end);
    hint := format('the oldest of its messages are lost at 100 %%: start a worker, hold more (trunq.set_queue), or end it: select trunq.unsubscribe(''%s'', ''%s'')', queue, subscription);
    return next;
  end loop;
end $$;
comment on function trunq._warn_space is 'Subscriptions that have used 50, 80 or 95 % of what their queue holds for them, and those that lost messages; share: 50, 80, 95, or 100: lost.';

create or replace function trunq._lose_segment(p_queue trunq.queue, p_segment integer, p_reason text, p_seen pg_snapshot) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_messages constant integer := trunq._limit('reaped_messages') * 10;
  v_holding record;
  v_sub trunq.subscription;
  v_needing integer[];
  v_tick trunq.tick;
  v_tick_id bigint;
  v_count integer;
  v_messages integer := 0;
begin
  if trunq._is_in_use(p_queue, p_segment) or not pg_try_advisory_xact_lock(trunq._lock_class('tick'), p_queue.queue_id) then
    return null;
  end if;
  for v_sub in select s.* from trunq.subscription s where s.subscription_id = any (trunq._all_subscriptions_needing(p_queue, p_segment)) order by s.subscription_id loop
    if not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_sub.subscription_id) then
      raise exception using errcode = 'object_in_use';
    end if;
  end loop;
  -- By later statements than the locks. Positions only move forward: nobody else needs it now.
  v_needing := trunq._all_subscriptions_needing(p_queue, p_segment);
  v_holding := trunq._leases_of_segment(p_queue, p_segment);
  if not trunq._is_taken(p_queue, 'log', p_segment, v_holding.leases) then
    return 0;
  end if;
  v_tick_id := trunq._first_tick_after(p_queue, p_segment);
  select t.* into v_tick from trunq.tick t where t.queue_id = p_queue.queue_id and t.tick_id = v_tick_id;
  if not found and exists (
      select from trunq.subscription s
      where s.subscription_id = any (v_needing) and s.mode = 'exclusive' and trunq._tick_position(s) < v_tick_id) then
    if p_queue.tick_paused or p_queue.tick_external then
      return 0;  -- it has no place to go on at until somebody cuts one
    end if;
    v_tick := trunq._cut_tick(p_queue);
  end if;
  for v_n in 1 .. cardinality(v_holding.leases) loop
    v_count := trunq._end_lease(p_queue, v_holding.subscriptions[v_n], v_holding.leases[v_n], 'infinity', trunq.clock());
    if v_count is null then
      raise exception using errcode = 'object_in_use';  -- an answer is on its way
    end if;
    v_messages := v_messages + v_count;
    if v_messages >= c_messages and v_n < cardinality(v_holding.leases) then
      return 1;
    end if;
  end loop;
  for v_sub in select s.* from trunq.subscription s where s.subscription_id = any (v_needing) order by s.subscription_id loop
    if v_sub.mode = 'shared' then
      perform trunq._lose_messages(p_queue, v_sub, p_segment, p_reason);
    elsif trunq._tick_position(v_sub) < v_tick_id then
      perform trunq._lose_batches(p_queue, v_sub, v_tick, p_reason);
    end if;
  end loop;
  if trunq._truncate(p_queue, 'log', p_segment, p_seen => p_seen, p_tick_id => v_tick_id) is null then
    raise exception using errcode = 'object_in_use';
  end if;
  return 1;
exception when object_in_use or lock_not_available then
  return null;
end $$;
comment on function trunq._lose_segment is
  'Empties a segment of the log that subscriptions need, after it has written down what they lose. p_seen: what was there before anybody was asked.
Returns: 1; 0 when the archive or a taker needs it, or an exclusive subscription a tick that nobody cuts; null when somebody was in the way.';

create or replace function trunq._all_subscriptions_needing(p_queue trunq.queue, p_segment integer) returns integer[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_needing integer[] := trunq._subscriptions_needing(p_queue, p_segment);
  v_more integer[] := '{}';
begin
  -- _needing asks lanes only where nobody else needs it. By a later statement, as there.
  if p_queue.lanes is not null then
    execute format('select trunq_queue.%I($1)', p_queue.name || '_needing') into v_more using p_segment;
  end if;
  return array(select distinct n from unnest(v_needing || v_more) n order by n);
end $$;
comment on function trunq._all_subscriptions_needing is 'As _needing: all of them, those whose lanes alone hold something of the segment, too.';

create or replace function trunq._is_in_use(p_queue trunq.queue, p_segment integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms' as $$
declare
  v_name text := trunq._segment_name(p_queue, 'log', p_segment);
  v_patience constant integer := trunq._lock_wait(p_queue.queue_id, v_name);
begin
  -- Or longer, as this function is made.
  perform set_config('lock_timeout', greatest(extract(epoch from current_setting('lock_timeout')::interval) * 1000, v_patience)::integer || 'ms', true);
  execute format('lock table only trunq_data.%I in access exclusive mode', v_name);
  -- Gives it back at once.
  raise exception using errcode = 'TQ000';
exception
  when sqlstate 'TQ000' then
    return false;
  when lock_not_available then
    perform trunq._note_refusal(p_queue.queue_id, v_name, v_patience);
    return true;
end $$;
comment on function trunq._is_in_use is
  'Whether somebody uses a segment of the log just now, a dump for hours perhaps: then it spares counting under the locks of its readers.';

create or replace function trunq._leases_of_segment(p_queue trunq.queue, p_segment integer, out subscriptions integer[], out leases bigint[])
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  -- As _is_held, and exactly: those that have a message of it.
  execute format($q$
    select array_agg(o.subscription_id order by o.lease_id), array_agg(o.lease_id order by o.lease_id) from (
      select distinct l.subscription_id, l.lease_id from trunq.subscription s
      left join trunq.mark m on m.queue_id = s.queue_id and m.subscription_id = s.subscription_id and m.duty = 'reap'
      cross join lateral (
        select l.* from trunq_data.%1$I l where l.subscription_id = s.subscription_id and l.lease_id > coalesce(m.last_id, 0)
        union all
        select l.* from trunq_data.%1$I l where l.subscription_id = s.subscription_id and l.expires_at > coalesce(m.at, 'epoch')) l
      where s.queue_id = $1 and s.mode = 'shared' and l.size > 0 and l.reaped_at is null
        and l.size > coalesce((
          select sum(r.size) from trunq_data.%2$I r
          where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), 0)
        and exists (
          select from unnest(l.txids) u(txid) cross join lateral (select from trunq_data.%3$I g where g.txid = u.txid limit 1) g)) o
  $q$, p_queue.lease_table, p_queue.receipt_table, trunq._segment_name(p_queue, 'log', p_segment)) into subscriptions, leases using p_queue.queue_id;
  subscriptions := coalesce(subscriptions, '{}'); leases := coalesce(leases, '{}');
end $$;
comment on function trunq._leases_of_segment is 'The open leases that hold messages of a segment of the log.';

create or replace function trunq._lose_messages(p_queue trunq.queue, p_sub trunq.subscription, p_segment integer, p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  -- A lane is asked for each row what it has handed out.
  c_count constant integer := case when p_queue.lanes is null then 1000000 else 20000 end;
  v_segment constant text := trunq._segment_name(p_queue, 'log', p_segment);
  v record;
begin
  execute format($q$
    select count(*) filter (where u.is_here) n, count(*) > $3 is_more, min(u.txid) filter (where u.is_here) from_txid, max(u.txid) filter (where u.is_here) to_txid,
      min(u.created_at) filter (where u.is_here) first_at, max(u.created_at) filter (where u.is_here) last_at
    from (
      select u.*, %2$s is_here from trunq._unread($1, $2, $3 + 1, array[$4]) u) u
  $q$, v_segment, case when p_queue.lanes is null then 'true' else format('exists (select from trunq_data.%I g where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, $2))', v_segment) end)
  into v using p_queue, p_sub.subscription_id, c_count, p_segment::smallint;
  if v.n = 0 and not v.is_more then
    return;  -- what is left of it is not for this one
  end if;
  if p_sub.in_order then
    perform trunq._free_lost_lanes(p_queue, p_sub.subscription_id, p_segment);
  end if;
  perform trunq._note_loss(p_sub, p_reason, least(v.n, c_count), v.is_more, null, null, v.from_txid, v.to_txid, v.first_at, v.last_at);
  v := trunq._position(p_queue, p_sub.subscription_id);
  perform trunq._carry_cursor(p_queue, p_sub.subscription_id, trunq._segment_at(p_queue, trunq.clock()), v.lo, v.hi, v.last_txid, v.last_id);
end $$;
comment on function trunq._lose_messages is
  'Writes down what a shared subscription loses with a segment, if anything. The caller holds its lock.';

create or replace function trunq._free_lost_lanes(p_queue trunq.queue, p_subscription_id integer, p_segment integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = scan as $$
begin
  -- A lane is held for a message that was to come again: it never will.
  execute format($q$
    select trunq_queue.%1$I($1, array_agg(g.id), array_agg(g.priority::smallint), array_agg(g.key::text))
    from trunq_data.%2$I g where g.subscription_id = $1 and g.expiries is not null and not trunq_queue.%3$I($1, g.txid, g.id) having count(*) > 0
  $q$, p_queue.name || '_let_go', trunq._segment_name(p_queue, 'log', p_segment), p_queue.name || '_is_read') using p_subscription_id;
end $$;
comment on function trunq._free_lost_lanes is
  'Of a subscription in order: lanes that are held for messages of a segment that goes let the next ones out.';

create or replace function trunq._lose_batches(p_queue trunq.queue, p_sub trunq.subscription, p_tick trunq.tick, p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_count constant integer := 1000000;
  v_newest record := trunq._newest_batch(p_queue, p_sub.subscription_id);
  v_end bigint := coalesce(v_newest.to_tick_id, p_sub.start_tick_id);
  v_position bigint := trunq._tick_position(p_sub);
  v_into smallint := trunq._segment_at(p_queue, trunq.clock());
  v_part record;
  v_lost record;
  v_total record;
  v_open bigint[] := '{}';
begin
  select 0::bigint n, null::xid8 from_txid, null::xid8 to_txid, null::timestamptz first_at, null::timestamptz last_at into v_total;
  for v_part in
    select o.lease_id, o.lo, o.hi, o.from_tick_id, o.to_tick_id, o.after_txid, o.after_id, o.last_txid, o.last_id, o.failures, o.error
    from trunq._open_batches(p_queue, p_sub.subscription_id) o
    union all
    select null, coalesce(v_newest.hi, p_sub.start), p_tick.snapshot, v_end, p_tick.tick_id, null, null, pg_snapshot_xmax(p_tick.snapshot), 0, null, null
    where v_end < p_tick.tick_id
  loop
    if v_part.from_tick_id >= p_tick.tick_id then
      v_open := v_open || v_part.lease_id;
      continue;
    end if;
    execute format($q$
      select count(*) n, min(g.txid) from_txid, max(g.txid) to_txid, min(g.created_at) first_at, max(g.created_at) last_at from (
        select g.txid, g.created_at from (%s) g where pg_visible_in_snapshot(g.txid, $8) limit $9) g
    $q$, trunq._part_query(p_queue, p_sub.filter)) into v_lost
    using v_part.lo, v_part.hi, coalesce(v_part.after_txid, '0'), coalesce(v_part.after_id, 0), v_part.last_txid, v_part.last_id, p_sub.subscription_id,
      p_tick.snapshot, c_count + 1 - v_total.n;
    select v_total.n + v_lost.n n, least(v_total.from_txid, v_lost.from_txid) from_txid, greatest(v_total.to_txid, v_lost.to_txid) to_txid,
      least(v_total.first_at, v_lost.first_at) first_at, greatest(v_total.last_at, v_lost.last_at) last_at into v_total;
    if v_part.to_tick_id > p_tick.tick_id then
      -- What of it lies behind the tick is the next batch.
      v_part.lo := p_tick.snapshot; v_part.from_tick_id := p_tick.tick_id;
      v_open := v_open || trunq._open_part(p_queue, p_sub.subscription_id, v_part, v_part.after_txid, v_part.after_id, v_part.last_txid, v_part.last_id,
        null, v_open, v_part.failures, v_part.error);
    end if;
  end loop;
  if v_total.n > 0 then
    perform trunq._note_loss(p_sub, p_reason, least(v_total.n, c_count), v_total.n > c_count, v_position, p_tick.tick_id,
      v_total.from_txid, v_total.to_txid, v_total.first_at, v_total.last_at);
  end if;
  if v_end > p_tick.tick_id then
    perform trunq._put_batch(p_queue, p_sub.subscription_id, trunq._position_worker(p_sub.subscription_id), v_newest.hi, v_newest.hi, v_end, v_end, v_into, v_open);
  else
    perform trunq._put_batch(p_queue, p_sub.subscription_id, trunq._position_worker(p_sub.subscription_id), p_tick.snapshot, p_tick.snapshot, p_tick.tick_id, p_tick.tick_id,
      v_into, v_open);
  end if;
end $$;
comment on function trunq._lose_batches is
  'Moves an exclusive subscription to a tick, and writes down what it loses before it, if anything. An open batch ends; parts behind the tick stay open. The caller holds its lock.';

create or replace function trunq._note_loss(
  p_sub trunq.subscription, p_reason text, p_messages bigint, p_is_more boolean, p_from_tick_id bigint, p_to_tick_id bigint,
  p_from_txid xid8, p_to_txid xid8, p_first_at timestamptz, p_last_at timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Whoever changes its policy holds the row, for as long as his transaction is open.
  perform from trunq.subscription s where s.subscription_id = p_sub.subscription_id for no key update nowait;
  update trunq.subscription s set lost_at = trunq.clock() where s.subscription_id = p_sub.subscription_id;
  insert into trunq.loss (queue_id, subscription_id, reason, messages, is_more, from_tick_id, to_tick_id, from_txid, to_txid, first_at, last_at, lost_at)
  values (p_sub.queue_id, p_sub.subscription_id, p_reason, p_messages, p_is_more, p_from_tick_id, p_to_tick_id, p_from_txid, p_to_txid, p_first_at, p_last_at,
    trunq.clock());
  delete from trunq.loss o where o.subscription_id = p_sub.subscription_id and o.accepted_at is not null and o.loss_id <= (
    select n.loss_id from trunq.loss n where n.subscription_id = p_sub.subscription_id order by n.loss_id desc offset 100 limit 1);
end $$;
comment on function trunq._note_loss is
  'Writes a loss, and that the subscription lost something; forgets accepted ones beyond the newest 100.';
