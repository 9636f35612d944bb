-- A queue gets what it was not made with: a longer retention, lanes, unique keys. Its tables stay, and with them all that is in them or
-- hangs on them: messages, leases, receipts, ids, ticks, positions, grants, captures, archives. Nothing is copied, so how long
-- publishers wait does not depend on how much waits.
--
-- Longer retention: the ring keeps its number of segments, and each is written to for longer. The segment of a row follows from the clock as
-- before, by another expression. Which segments may be emptied is asked of their rows wherever something could be lost
-- (keep/rotate.sql); by the clock alone goes what is old, and what was there lies in segments that the new count takes for older
-- than it is. So nothing is old by time until the new retention has passed since (queue.reshaped_at).
--
-- Lanes: a position of a plain queue is one of discovery (lanes/lane.sql), so the newest lease of each subscription stays its cursor. The columns that
-- its table gets make it the last of a window numbered 0, in which no lane was found yet. What is left of that window is discovered as
-- ever, but for one thing: a turn begins at the start of its window, and here plain leases have handed out a part. trunq.seam
-- says up to where; turns of window 0 begin there. So each lane hands out what waited before what came later.
--
-- A session may still run a function of before. Whoever publishes so writes a row as ever. Whoever leases so, because it waited for the
-- lock of its subscription, would write a position without turns, and lanes would be forgotten: the default of the column epoch
-- refuses it (40001, and workers lease again). A lease under way in a queue that gets unique keys may miss that it should free a key:
-- the duty that forgets keys frees it.
--
-- Unique keys: columns that are null in what is there, and two tables.
--
-- The log of a queue with lanes has one more index. Built under the lock of the log it would hold publishers up for as long as the log is large:
-- trunq.list_preparations gives the statements that build it beside them, a segment at a time; the index of the whole takes these
-- over. What else takes long (functions, new tables) is done before the log is locked.

create or replace function trunq.convert_queue(
  p_queue text, p_retention interval default null, p_hold_at_most interval default null, p_lanes text default null, p_unique text default null,
  p_at_once boolean default false
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_role text;
  v_before trunq.queue := trunq._find_queue(p_queue);
  v_after trunq.queue;
  v_changes jsonb;
begin
  perform trunq._audit('convert_queue', p_queue, jsonb_build_object('retention', p_retention, 'hold_at_most', p_hold_at_most, 'lanes', p_lanes,
    'unique', p_unique, 'at_once', p_at_once));
  perform trunq._require_read_committed('convert_queue');
  v_role := trunq._become_owner();
  begin
    -- In the order of ground/lock.sql: roles are granted again, and an upgrade makes all functions again.
    perform pg_advisory_xact_lock(trunq._lock_class('rights'), 0);
    perform pg_advisory_xact_lock_shared(trunq._lock_class('queues'), 0);
    perform pg_advisory_xact_lock(trunq._lock_class('queue'), v_before.queue_id);
  exception when lock_not_available then
    perform trunq._fail_conversion(p_queue);
  end;
  v_before := trunq._find_queue(p_queue);
  v_after := trunq._converted(v_before, p_retention, p_hold_at_most, p_lanes, p_unique);
  if v_after is not distinct from v_before then
    perform trunq._restore_role(v_role);
    return false;
  end if;
  if not p_at_once then
    perform trunq._require_prepared(v_before, v_after);
  end if;
  select coalesce(jsonb_agg(c.change), '[]') into v_changes from jsonb_array_elements(trunq._find_changes()) c(change)
  where starts_with(c.change->>'signature', format('trunq_queue.%s_', p_queue));
  update trunq.queue q set retention = v_after.retention, hold_at_most = v_after.hold_at_most, span = v_after.span, reshaped_at = v_after.reshaped_at,
    lanes = v_after.lanes, unique_policy = v_after.unique_policy
  where q.queue_id = v_after.queue_id;
  if v_after.span <> v_before.span or v_after.lanes is distinct from v_before.lanes or v_after.unique_policy is distinct from v_before.unique_policy then
    perform trunq._convert(v_before, v_after, v_changes);
  end if;
  perform trunq._restore_role(v_role);
  return true;
end $$;
comment on function trunq.convert_queue is
  'Gives a queue what it was not made with, in place: p_retention and p_hold_at_most also longer than it was made for; p_lanes and p_unique, as for trunq.create_queue, where it has none. Messages, ids, leases, positions, schedules, captures, archives and grants stay; workers and publishers go on. What waits is handed out first, with lanes: in each lane. The index by lanes of a log above 64 MB is built beforehand (trunq.list_preparations; the client and the shell do it), or p_at_once, while publishers wait. For the owner of trunq, or a member of that role.
Returns: true when it changed something, false when the queue is so already.
Raises: TQ001; TQ005 for what no queue can have, other lanes or another policy of unique keys than it has, and columns of yours with the names of ours; TQ007; TQ009 while an open transaction uses the queue, where a view of yours holds its column priority, while an upgrade has yet to bring it up to date, for an index that is to be built, and for lanes while messages that were leased by their ids lie ahead of a position.
Locks: granting; the queue; then for a moment its tables, exclusively, waiting 200 ms at a time.';

create or replace function trunq._fail_conversion(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ009', format('queue "%s" is in use by an open transaction', p_queue),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again; all is as it was');
end $$;
comment on function trunq._fail_conversion is 'Says that an open transaction holds what a conversion needs (TQ009).';

create or replace function trunq._converted(
  p_queue trunq.queue, p_retention interval, p_hold_at_most interval, p_lanes text, p_unique text
) returns trunq.queue
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := p_queue;
  v_longest constant interval := (p_queue.segments - 2) * p_queue.span;
begin
  if exists (select from trunq.outdated o where o.queue_id = p_queue.queue_id) then
    perform trunq._fail('TQ009', format('an upgrade has yet to bring queue "%s" up to date', p_queue.name), 'finish it first: trunq db upgrade');
  end if;
  v_queue.retention := coalesce(p_retention, p_queue.retention);
  v_queue.hold_at_most := case when p_hold_at_most is null then p_queue.hold_at_most else nullif(p_hold_at_most, '0') end;
  perform trunq._check_queue(p_queue.name, v_queue.retention, null, null, null, v_queue.hold_at_most, null, null);
  if greatest(v_queue.retention, v_queue.hold_at_most) > v_longest then
    v_queue.span := make_interval(secs => ceil(extract(epoch from greatest(v_queue.retention, v_queue.hold_at_most)) / (p_queue.segments - 2))::double precision);
    v_queue.reshaped_at := trunq.clock();
  end if;
  v_queue.lanes := coalesce(p_queue.lanes, p_lanes);
  v_queue.unique_policy := coalesce(p_queue.unique_policy, p_unique);
  if p_queue.lanes is not null or p_lanes <> all (trunq._words('lanes')) then
    perform trunq._check_lanes(p_queue.name, p_lanes);
  end if;
  if p_queue.unique_policy is not null or p_unique <> all (trunq._words('unique_policy')) then
    perform trunq._check_unique_policy(p_queue.name, p_unique);
  end if;
  return v_queue;
end $$;
comment on function trunq._converted is 'What a queue is to become; refused (TQ005, TQ009) where it cannot.';

create or replace function trunq.list_preparations(p_queue text, p_lanes text) returns table (statement text, bytes bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_segment record;
  v_is_narrow boolean;
begin
  if v_queue.lanes is not null or p_lanes <> all (trunq._words('lanes')) then
    perform trunq._check_lanes(p_queue, p_lanes);
    return;
  end if;
  v_is_narrow := p_lanes like 'priority%' and trunq._is_narrow(v_queue);
  for v_segment in
    select s.name, pg_relation_size(format('trunq_data.%I', s.name)::regclass) size, i.indisvalid is_valid,
      format('%s_by_%s', s.name, case when p_lanes like '%key' then 'key' when p_lanes like '%kind' then 'kind' else 'none' end) index
    from generate_series(0, v_queue.segments - 1) n cross join lateral trunq._segment_name(v_queue, 'log', n) s(name)
    left join pg_index i on i.indexrelid = to_regclass(format('trunq_data.%I', format('%s_by_%s', s.name,
      case when p_lanes like '%key' then 'key' when p_lanes like '%kind' then 'kind' else 'none' end)))
    order by n
  loop
    bytes := v_segment.size;
    if v_segment.is_valid is false then
      -- What was broken off is no index, and would make that of the whole none either.
      statement := format('drop index concurrently trunq_data.%I', v_segment.index);
      return next;
    end if;
    if v_segment.is_valid is not true and bytes > 0 then
      if v_is_narrow then
        -- Or the change of its type would build the index again.
        statement := format('select trunq._prepare_priority(%L)', p_queue);
        bytes := 0;
        return next;
        v_is_narrow := false;
        bytes := v_segment.size;
      end if;
      statement := format('create index concurrently %I on trunq_data.%I %s', v_segment.index, v_segment.name, trunq._lane_index(p_lanes));
      return next;
    end if;
  end loop;
end $$;
comment on function trunq.list_preparations is
  'The statements that build the index by lanes of a plain queue beside its publishers, a segment at a time: run each outside of a transaction, as the owner of trunq (in psql by its command gexec), before trunq.convert_queue. Each waits for transactions that are open when it begins. bytes: how much it reads.
Returns: no row when nothing is left to do. They come again until they were run; dropping these indexes undoes it.
Raises: TQ001, TQ005.';

create or replace function trunq._is_narrow(p_queue trunq.queue) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select a.atttypid <> 'smallint'::regtype from pg_attribute a where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attname = 'priority'
$$;
comment on function trunq._is_narrow is 'Whether the log of a queue has no room for priorities.';

create or replace function trunq._prepare_priority(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._try_for_locks(p_queue, 'select 0 from trunq._widen_priority($1, true)');
end $$;
comment on function trunq._prepare_priority is 'Gives the log of a plain queue room for priorities, which it refuses as before.';

create or replace function trunq._widen_priority(p_queue trunq.queue, p_is_plain boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Nothing is written anew: the domain was one over this type.
  if trunq._is_narrow(p_queue) then
    execute format('alter table trunq_log.%I alter priority type smallint', p_queue.log_table);
    if p_is_plain then
      execute format('alter table trunq_log.%I add constraint plain_queue_has_no_priority check (priority = 0) not valid', p_queue.log_table);
    end if;
  elsif not p_is_plain then
    execute format('alter table trunq_log.%I drop constraint if exists plain_queue_has_no_priority', p_queue.log_table);
  end if;
exception when feature_not_supported then
  perform trunq._fail('TQ009', format('queue "%s" cannot have priorities while a view or rule of yours holds its column priority', p_queue.name),
    'drop the view, convert the queue, and make the view again');
end $$;
comment on function trunq._widen_priority is
  'Gives the log of a queue room for priorities; p_is_plain: which it refuses as before.';

create or replace function trunq._require_prepared(p_before trunq.queue, p_after trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_bytes bigint;
begin
  if p_before.lanes is null and p_after.lanes is not null then
    select sum(p.bytes) into v_bytes from trunq.list_preparations(p_before.name, p_after.lanes) p;
    if v_bytes > trunq._most_indexed() then
      perform trunq._fail('TQ009', format('the log of queue "%s" has no index by lanes yet, and %s to be read for it', p_before.name, pg_size_pretty(v_bytes)),
        format('build it beside publishers: "trunq queue convert" does, or in psql: select statement from trunq.list_preparations(''%s'', ''%s'') \gexec. With p_at_once they wait meanwhile',
          p_before.name, p_after.lanes));
    end if;
  end if;
end $$;
comment on function trunq._require_prepared is 'Refuses (TQ009) to build an index of more than 64 MB of log while publishers wait.';

create or replace function trunq._most_indexed() returns bigint
language sql immutable as $$ select 67108864::bigint $$;
comment on function trunq._most_indexed is 'How many bytes of log get an index while publishers wait: some 0.3 seconds.';

create or replace function trunq._convert(p_before trunq.queue, p_after trunq.queue, p_changes jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
begin
  -- All that can be made while everybody goes on.
  if p_before.lanes is null and p_after.lanes is not null then
    perform trunq._end_asks(p_after.queue_id);
    perform trunq._create_lanes(p_after);
  end if;
  if p_before.unique_policy is null and p_after.unique_policy is not null then
    perform trunq._create_unique(p_after);
  end if;
  perform trunq._define_functions(p_after);
  perform trunq._define_capture(c) from trunq.capture c where c.queue_id = p_after.queue_id order by c.capture_id;
  for v_try in 1..10 loop
    begin
      perform trunq._convert_tables(p_before, p_after);
      exit;
    exception when lock_not_available then
      if v_try = 10 then
        perform trunq._fail_conversion(p_after.name);
      end if;
      perform pg_sleep(0.05);
    end;
  end loop;
  if to_regprocedure('pgq._define_queue(integer)') is not null then
    execute 'select pgq._define_queue(f.queue_id) from pgq._queue f where f.queue_id = $1' using p_after.queue_id;  -- PgQ's names for it (trunq_pgq)
  end if;
  perform trunq._change_again(p_changes);
end $$;
comment on function trunq._convert is
  'Makes a queue what it is to become. Behind one open transaction all others would queue up: it waits for the tables in short tries, letting them pass.';

create or replace function trunq._convert_tables(p_before trunq.queue, p_after trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' set quote_all_identifiers = off as $$
declare
  v_table text;
  v_gets_lanes constant boolean := p_before.lanes is null and p_after.lanes is not null;
begin
  -- A reaper that has begun knows the queue as it was.
  if not pg_try_advisory_xact_lock(trunq._lock_class('reap'), p_after.queue_id) then
    raise exception using errcode = 'lock_not_available';
  end if;
  execute format('lock table trunq_log.%I, trunq_data.%I, trunq_data.%I%s in access exclusive mode', p_after.log_table, p_after.lease_table, p_after.receipt_table,
    trunq._lane_tables(p_before) || trunq._unique_tables(p_before));
  if p_after.span <> p_before.span then
    foreach v_table in array regexp_split_to_array(format('trunq_log.%I, trunq_data.%I, trunq_data.%I%s', p_after.log_table, p_after.lease_table,
        p_after.receipt_table, trunq._lane_tables(p_before)), ', ') loop
      execute format('alter table %s alter segment set default %s', v_table, trunq._segment(p_after));
    end loop;
  end if;
  if p_before.unique_policy is null and p_after.unique_policy is not null then
    -- To add a column of a domain that checks, Postgres writes the table anew. Who takes a key writes it into the table of keys, which checks.
    perform trunq._add_unique_columns(p_after, 'text collate "C"');
  end if;
  if v_gets_lanes then
    perform trunq._require_none_due_first(p_after);
    -- Again: a lease may have set something aside since.
    perform trunq._end_asks(p_after.queue_id);
    perform trunq._require_none_ahead(p_after);
    if p_after.lanes like 'priority%' then
      perform trunq._widen_priority(p_after, false);
    end if;
    perform trunq._index_lanes(p_after);
    perform trunq._complete_tables(p_after);
    execute format('alter table trunq_data.%I alter epoch set default -1,'
      ' add constraint is_of_lanes check (epoch >= 0 or from_tick_id is not null or trunq._refuse_former_lease()) not valid,'
      ' add constraint records_what_it_hands_out check (coalesce(cardinality(ids), 0) = coalesce(size, 0)) not valid', p_after.lease_table);
    execute format('comment on table trunq_data.%I is %L', p_after.lease_table, obj_description('trunq_data._lanespecimen_lease'::regclass, 'pg_class'));
    execute format($q$
      insert into trunq.seam (subscription_id, last_txid, last_id)
      select s.subscription_id, l.last_txid, l.last_id from trunq.subscription s cross join lateral (
        select l.* from trunq_data.%I l where l.subscription_id = s.subscription_id order by l.lease_id desc limit 1) l
      where s.queue_id = $1 and s.mode = 'shared' and l.last_txid < pg_snapshot_xmax(l.hi)
    $q$, p_after.lease_table) using p_after.queue_id;
  end if;
  perform trunq._define_triggers(p_after);
exception when duplicate_column then
  perform trunq._fail('TQ005', format('the log of queue "%s" has a column of yours by the name of one that unique keys need', p_after.name),
    'rename it: unique_key, unique_turn and unique_until are ours');
end $$;
comment on function trunq._convert_tables is 'What of a conversion needs the tables of a queue for itself; failing (55P03) where it would have to wait for longer than 200 ms.';

create or replace function trunq._require_none_ahead(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_subscription text;
begin
  execute format($q$
    select s.name from trunq.subscription s cross join lateral (
      select l.* from trunq_data.%I l where l.subscription_id = s.subscription_id order by l.lease_id desc limit 1) l
    where s.queue_id = $1 and s.mode = 'shared' and l.ahead is not null and exists (
      select from trunq.ahead a where a.subscription_id = s.subscription_id
        and not trunq._is_read_at(a.txid, a.id, l.lo, l.hi, l.last_txid, l.last_id))
    limit 1
  $q$, p_queue.lease_table) into v_subscription using p_queue.queue_id;
  if v_subscription is not null then
    perform trunq._fail('TQ009', format('subscription "%s" of queue "%s" has leased messages by their ids that lie ahead of its position', v_subscription, p_queue.name),
      'let workers read what waits before them (trunq status shows it), then convert the queue: its lanes would hand them out again');
  end if;
end $$;
comment on function trunq._require_none_ahead is
  'Refuses (TQ009) lanes for a queue whose positions have yet to pass over messages that were leased by their ids: lanes know of none.';

create or replace function trunq._refuse_former_lease() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = 'serialization_failure', message = 'the queue got lanes while this lease was being made', hint = 'lease again';
end $$;
comment on function trunq._refuse_former_lease is 'Refuses a lease that a function of a plain queue makes in a queue that has got lanes.';

create or replace function trunq._seam(p_subscription_id integer, out txid xid8, out id bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  select s.last_txid, s.last_id into txid, id from trunq.seam s where s.subscription_id = p_subscription_id;
  if not found then
    txid := '0'; id := 0;
  end if;
end $$;
comment on function trunq._seam is 'Where the turns begin that discovery makes in the window numbered 0, of a queue that got lanes later.';

create or replace function trunq._is_reshaping(p_queue trunq.queue) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(p_queue.reshaped_at + p_queue.segments * p_queue.span > trunq.clock(), false)
$$;
comment on function trunq._is_reshaping is 'Whether segments of a queue may hold rows of a ring with another span.';

create or replace function trunq._segments_in_order(p_queue trunq.queue, p_span_number bigint) returns table (segment integer)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_txid xid8;
  v_newest xid8[] := array_fill(null::xid8, array[p_queue.segments]);
begin
  if trunq._is_reshaping(p_queue) then
    -- Its numbers tell no order yet: the rows do.
    for v_n in 0 .. p_queue.segments - 1 loop
      execute format('select g.txid from trunq_data.%I g order by g.txid desc, g.id desc limit 1', trunq._segment_name(p_queue, 'log', v_n)) into v_txid;
      v_newest[v_n + 1] := v_txid;
    end loop;
  end if;
  return query
    select ((p_span_number - b) % p_queue.segments)::integer from generate_series(p_queue.segments - 1, 1, -1) b
    order by v_newest[(p_span_number - b) % p_queue.segments + 1] nulls first, b desc;
end $$;
comment on function trunq._segments_in_order is 'The segments of the ring, the oldest first, but for the one that is written to.';
