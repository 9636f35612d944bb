-- A mover reads an exclusive subscription and publishes its messages into other queues, of this database or of another one, exactly once.
--
-- *The mark is committed with the messages.* In the target, receive() takes the mark of the stream, says whether a batch is new, and notes it;
-- the messages follow in the same transaction. Then the batch is finished in the source. Whoever dies in between leaves a batch open that the
-- target has: the next one is told so, publishes nothing and finishes it. Two processes at once wait for each other at the mark: what the
-- lease of the batch says does not matter for that.
--
-- *A place* is where a batch begins or ends: the tick and its snapshot and, within a window, the message behind which it goes on. A batch follows
-- if it begins where the mark ends, snapshot and all: a position that was moved, or a database that came from a backup, does not fit, and is
-- refused. So that every message passes the mark, a mover's subscription gives up none: it has no max_attempts.

create or replace function trunq.start_mover(p_queue text, p_subscription text, p_worker text, p_definition jsonb) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v_stops integer;
begin
  perform trunq._check_cluster();
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  if v_sub.group_id is not null then
    perform trunq._fail('TQ011', format('subscription "%s" of queue "%s" is a group, whose members have batches side by side', p_subscription, p_queue),
      'move a stream that has one reader at a time: another subscription');
  elsif coalesce(p_worker, '') = '' then
    perform trunq._fail('TQ005', 'a mover starts under the name of its process, and gave none');
  elsif jsonb_typeof(p_definition) is distinct from 'object' then
    perform trunq._fail('TQ005', format('the definition of a mover is a JSON object, not %s', coalesce(p_definition::text, 'null')));
  elsif v_sub.max_attempts is not null then
    perform trunq._fail('TQ005', format('subscription "%s" of queue "%s" gives a message up after %s attempts: it would be missing where it is moved to', p_subscription, p_queue, v_sub.max_attempts),
      format('let it have no limit: select trunq.subscribe(%L, %L, ''exclusive'', p_max_attempts => 0)', p_queue, p_subscription));
  end if;
  insert into trunq.mover as m (subscription_id, definition, worker, started_at)
  values (v_sub.subscription_id, p_definition, p_worker, trunq.clock())
  on conflict (subscription_id) do update set definition = p_definition, worker = p_worker, started_at = trunq.clock(), started_stops = m.stops,
    error = null, failed_at = null
  returning m.stops into v_stops;
  return v_stops;
end $$;
comment on function trunq.start_mover is
  'Notes that a process begins to move the messages of an exclusive subscription without max_attempts; p_definition: where to, for people.
Returns: how often it was asked to stop so far: when that becomes more, the process should end.
Raises: TQ001, TQ002, TQ005, TQ010, TQ011.
Locks: the row of the mover.';

create or replace function trunq.begin_move(p_queue text, p_subscription text, p_batch_id bigint, p_token bigint)
returns table (source text, subscription_id integer, from_place jsonb, to_place jsonb, moved_place jsonb)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
begin
  perform trunq._require_read_committed('begin_move');
  perform trunq._check_cluster();
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  return query
    select format('%s/%s', trunq._database(), v_queue.queue_id), v_sub.subscription_id, p.from_place, p.to_place,
      (select m.place from trunq.mover m where m.subscription_id = v_sub.subscription_id)
    from trunq._batch_places(v_queue, v_sub, p_batch_id, p_token) p;
  if current_setting('synchronous_commit') = 'off' then
    -- Before the target has its messages, the batch is on disk, with all that was committed before: after a crash, it would be opened with
    -- another end. Only a commit that wrote something waits for the disk.
    perform set_config('synchronous_commit', 'on', true);
    perform from trunq.subscription s where s.subscription_id = v_sub.subscription_id for key share;
  end if;
end $$;
comment on function trunq.begin_move is
  'What the target has to be told of an open batch before its messages (trunq.receive): which stream it belongs to, where the batch begins and ends, and the end of the last one that was moved and finished.
Raises: TQ001, TQ002, TQ007, TQ008, TQ010, TQ011; TQ003 when another reader has it.
Locks: the subscription.';

create or replace function trunq.receive(
  p_source text, p_subscription_id integer, p_from jsonb, p_to jsonb, p_moved jsonb default null, p_accept boolean default false
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_mark trunq.received;
  v_from bigint[];
  v_to bigint[];
begin
  perform trunq._require_read_committed('receive');
  if current_setting('synchronous_commit') = 'off' then
    -- The source forgets the batch when this is committed.
    perform set_config('synchronous_commit', 'on', true);
  end if;
  v_from := trunq._read_place(p_from); v_to := trunq._read_place(p_to);
  if coalesce(p_source, '') = '' or p_subscription_id is null or v_from is null or v_to is null or v_from > v_to then
    perform trunq._fail('TQ005', 'a batch that is received has a source, and two places', 'trunq.begin_move in the source tells them');
  end if;
  insert into trunq.received (source, subscription_id) values (p_source, p_subscription_id) on conflict do nothing;
  -- To the end of the transaction: of two processes that bring one batch, the second finds that it is here.
  select * into v_mark from trunq.received r where r.source = p_source and r.subscription_id = p_subscription_id for update;
  if v_from >= trunq._read_place(v_mark.from_place) and v_to <= trunq._read_place(v_mark.to_place)
      and (v_from > trunq._read_place(v_mark.from_place) or p_from = v_mark.from_place)
      and (v_to < trunq._read_place(v_mark.to_place) or p_to = v_mark.to_place) then
    return false;
  end if;
  if p_accept is not true and v_mark.to_place is null and p_moved is not null then
    perform trunq._fail('TQ028',
      format('this database has received nothing of stream %s/%s, which was moved up to tick %s before', p_source, p_subscription_id, p_moved ->> 'tick_id'),
      'is it the right database, and not from a backup? To begin here from where the stream stands, accept its position: p_accept');
  elsif p_accept is not true and v_mark.to_place <> p_from then
    perform trunq._fail('TQ028',
      format('this database has received stream %s/%s up to %s, and the batch begins at %s', p_source, p_subscription_id,
        trunq._told_place(v_mark.to_place), trunq._told_place(p_from)),
      format('the stream was moved by hand, or one of the two databases came from a backup; where tick %s is in reach, seek to it: nothing is missing or doubled then. To go on from where the stream stands, accept its position: p_accept', v_mark.to_place ->> 'tick_id'));
  end if;
  update trunq.received r set from_place = p_from, to_place = p_to, received_at = trunq.clock()
  where r.source = p_source and r.subscription_id = p_subscription_id;
  return true;
end $$;
comment on function trunq.receive is
  'Notes, in the target of a mover, that a batch is here: call it with what trunq.begin_move told in the source, and publish the messages of the batch in the same transaction, if it says so. p_accept: even if the batch does not follow the last one.
Returns: whether the batch is new; false when its messages are here already.
Raises: TQ005, TQ007; TQ028 when the batch does not follow the last one that was received.
Locks: the mark of this stream, to the end of the transaction.';

create or replace function trunq.finish_move(
  p_queue text, p_subscription text, p_batch_id bigint, p_token bigint, p_messages bigint default 0
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_place jsonb;
begin
  perform trunq._require_read_committed('finish_move');
  v_sub := trunq._subscription(p_queue, p_subscription, 'exclusive');
  if p_messages is null or p_messages < 0 then
    perform trunq._fail('TQ005', format('%s is not a number of messages', coalesce(p_messages::text, 'null')));
  end if;
  perform trunq._lock_subscription(v_sub.subscription_id, p_queue, p_subscription);
  if exists (select from trunq._open_batches(v_queue, v_sub.subscription_id) o where o.lease_id = p_batch_id) then
    v_place := (trunq._batch_places(v_queue, v_sub, p_batch_id, p_token)).to_place;
  end if;
  if not trunq.finish_batch(p_queue, p_subscription, p_batch_id, p_token) then
    return false;
  end if;
  update trunq.mover m set place = v_place, batches = m.batches + 1, messages = m.messages + p_messages, moved_at = trunq.clock(), error = null, failed_at = null
  where m.subscription_id = v_sub.subscription_id;
  return true;
end $$;
comment on function trunq.finish_move is
  'Finishes a batch that the target has, and notes that p_messages of it were moved now (0: it had them before).
Returns: false when it was finished before.
Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ011; TQ003 when another reader has it.
Locks: the subscription; the row of the mover.';

create or replace function trunq.fail_move(
  p_queue text, p_subscription text, p_batch_id bigint, p_token bigint, p_error text, p_after interval default null
) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_until timestamptz;
begin
  v_until := trunq.fail_batch(p_queue, p_subscription, p_batch_id, p_token, p_error, p_after);
  update trunq.mover m set error = left(coalesce(p_error, 'failed'), trunq._limit('error_characters')), failed_at = trunq.clock()
  where m.subscription_id = (trunq._subscription(p_queue, p_subscription, 'exclusive')).subscription_id;
  return v_until;
end $$;
comment on function trunq.fail_move is
  'Gives a batch back that could not be moved, as trunq.fail_batch, and notes why for trunq.list_movers.
Returns: from when on it is handed out.
Raises: TQ001, TQ002, TQ003 when another reader has it, TQ005, TQ007, TQ008, TQ011.
Locks: the subscription; the row of the mover.';

create or replace function trunq.stop_mover(p_queue text, p_subscription text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_mover trunq.mover;
begin
  perform trunq._audit('stop_mover', p_queue, jsonb_build_object('subscription', p_subscription));
  update trunq.mover m set stops = m.stops + 1
  where m.subscription_id = (trunq._subscription(p_queue, p_subscription, 'exclusive')).subscription_id returning m.* into v_mover;
  if not found then
    perform trunq._fail('TQ002', format('nobody moves subscription "%s" of queue "%s"', p_subscription, p_queue),
      'select * from trunq.list_movers() shows who moves what');
  end if;
  return v_mover.worker is not null;
end $$;
comment on function trunq.stop_mover is
  'Asks a mover to stop: it does so when its current batch is done, or within seconds when it has none.
Returns: whether one has started and not ended since; one that was killed cannot say so.
Raises: TQ001, TQ011; TQ002 when nobody ever moved this subscription.
Locks: the row of the mover.';

create or replace function trunq.end_mover(p_queue text, p_subscription text, p_worker text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  update trunq.mover m set worker = null
  where m.subscription_id = (trunq._subscription(p_queue, p_subscription, 'exclusive')).subscription_id and m.worker = p_worker;
  return found;
end $$;
comment on function trunq.end_mover is
  'Notes that the process of a mover ends.
Returns: false when another has started since.
Raises: TQ001, TQ002, TQ011.
Locks: the row of the mover.';

create or replace function trunq.list_movers(p_queue text default null)
returns table (
  queue text, subscription text, definition jsonb, worker text, stopping boolean, started_at timestamptz, batches bigint, messages bigint,
  moved_at timestamptz, position_tick_id bigint, pending bigint, is_estimate boolean, lag interval, batch_id bigint, error text, failed_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select t.queue, t.subscription, m.definition, m.worker, m.worker is not null and m.stops > m.started_stops, m.started_at, m.batches, m.messages,
      m.moved_at, t.position_tick_id, t.pending, t.is_estimate, t.lag, t.batch_id, m.error, m.failed_at
    from trunq.mover m join trunq.subscription s using (subscription_id) join trunq.queue q on q.queue_id = s.queue_id
    cross join lateral trunq.list_streams(q.name) t
    where t.subscription = s.name and (p_queue is null or q.name = p_queue) order by t.queue, t.subscription;
end $$;
comment on function trunq.list_movers is
  'Which process moves which stream, where to, and how far it is. worker: the process that started last; null: it has ended; stopping: it was asked to. batches, messages: moved so far; pending, lag: what waits, as in trunq.list_streams; error: why the last try failed, until one succeeds.
Raises: TQ001, TQ010.';

create or replace function trunq._mover_stops(p_queue text, p_subscription text) returns integer
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select m.stops from trunq.mover m join trunq.subscription s using (subscription_id) join trunq.queue q on q.queue_id = s.queue_id
    where q.name = p_queue and s.name = p_subscription);
end $$;
comment on function trunq._mover_stops is 'How often a mover was asked to stop; null when its subscription is gone.';

create or replace function trunq._database() returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select format('%s/%s', s.system_identifier, d.oid) from pg_control_system() s cross join pg_database d where d.datname = current_database()
$$;
comment on function trunq._database is 'What tells this database from any other: the system identifier of its cluster and its number there.';

create or replace function trunq._batch_places(
  p_queue trunq.queue, p_sub trunq.subscription, p_batch_id bigint, p_token bigint, out from_place jsonb, out to_place jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  perform trunq._held_batch(p_queue, p_sub, p_batch_id, p_token);
  select o.* into v from trunq._open_batches(p_queue, p_sub.subscription_id) o where o.lease_id = p_batch_id;
  from_place := jsonb_build_object('tick_id', v.from_tick_id, 'snapshot', v.lo, 'txid', coalesce(v.after_txid, '0')::text::bigint, 'id', coalesce(v.after_id, 0));
  -- The end of a window is its last tick, whatever lies in it.
  to_place := case when v.last_txid >= pg_snapshot_xmax(v.hi) then jsonb_build_object('tick_id', v.to_tick_id, 'snapshot', v.hi, 'txid', 0, 'id', 0)
    else from_place || jsonb_build_object('txid', v.last_txid::text::bigint, 'id', v.last_id) end;
end $$;
comment on function trunq._batch_places is
  'Where a batch that the caller has in hand begins and ends; TQ003 when another has it. Takes the subscription''s lock.';

create or replace function trunq._read_place(p_place jsonb) returns bigint[]
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_place is null then
    return null;
  elsif jsonb_typeof(p_place) = 'object' and jsonb_typeof(p_place -> 'snapshot') = 'string' and jsonb_typeof(p_place -> 'tick_id') = 'number'
      and jsonb_typeof(p_place -> 'txid') = 'number' and jsonb_typeof(p_place -> 'id') = 'number'
      and not exists (
        select from unnest('{tick_id,txid,id}'::text[]) n(name) where (p_place ->> n.name)::numeric not between -9223372036854775808 and 9223372036854775807
          or (p_place ->> n.name)::numeric % 1 <> 0) then
    return array[(p_place ->> 'tick_id')::bigint, (p_place ->> 'txid')::bigint, (p_place ->> 'id')::bigint];
  end if;
  perform trunq._fail('TQ005', format('this is not a place in a stream: %s', left(p_place::text, 200)), 'trunq.begin_move tells the two of a batch');
end $$;
comment on function trunq._read_place is 'A place in a stream, as numbers in its order; TQ005 for anything else.';

create or replace function trunq._told_place(p_place jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('tick %s (snapshot %s)%s', p_place ->> 'tick_id', p_place ->> 'snapshot',
    case when p_place ->> 'txid' <> '0' then format(', behind message %s', p_place ->> 'id') end)
$$;
comment on function trunq._told_place is 'A place in a stream, for people.';

create or replace function trunq._warn_movers(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Without the time: the leader logs the same words once.
  select q.name, s.name, format('the mover of subscription "%s" of queue "%s" moves nothing: %s', s.name, q.name, split_part(m.error, E'\n', 1)),
    case when m.worker is null then 'it has ended; what it said, its log has'
      else format('it tries again by itself; %s has its log', m.worker) end || '. How far it is: trunq stream moves'
  from trunq.mover m join trunq.subscription s using (subscription_id) join trunq.queue q on q.queue_id = s.queue_id
  where m.error is not null and (p_queue is null or q.name = p_queue) order by q.name, s.name
$$;
comment on function trunq._warn_movers is 'Movers whose last try failed, until one succeeds.';
