-- Listening without being a subscription: who reads on from a place in the log, again and again, and keeps the place itself.
--
-- A place is text: queue, tick, and, within a window, the tick up to which it goes and the last message read of it. It goes from tick to
-- tick, as streams and Spark do, so what commits late comes late and is not missed. Nothing in the database knows of a listener: so
-- nothing waits for it, and rotation empties what it has not read. It notes up to which tick it did (trunq._check_reachable), and a listener that is
-- further behind is told so. The ticks are the queue's; a place names the queue by its number, so one of a dropped queue fits no other.
--
-- Numbers alone would lie: after a failover that lost the last ticks, or a restore, others get the same numbers, and another database has a queue 1, too.
-- So a place ends with a check of the tick that it was found by: its snapshot and its time, which no other tick of that number has.

create or replace function trunq.find_place(p_queue text, p_start text default null, p_at timestamptz default null)
returns table (place text, created_at timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_tick trunq.tick;
begin
  perform trunq._require_read_committed('find_place');
  if num_nonnulls(p_start, p_at) > 1 then
    perform trunq._fail('TQ005', 'a listener begins at one place', 'give p_start or p_at');
  end if;
  perform trunq._check_start(coalesce(p_start, 'latest'), null, p_at);
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);
  perform trunq._check_cluster();
  v_tick := trunq._start_tick(v_queue, coalesce(p_start, 'latest'), null, p_at);
  return query select format('%s.%s-%s', v_queue.queue_id, v_tick.tick_id, trunq._check_of_tick(v_tick)), v_tick.created_at;
end $$;
comment on function trunq.find_place is
  'A place in the log from which trunq.read_on reads: latest, which is now (the default), the earliest in reach, or, with p_at, the last at or before a time, so that nothing since then is missed.
Returns: the place, and from when it is.
Raises: TQ001, TQ005, TQ007, TQ010; TQ012 when messages after that time are gone.
Locks: the queue, shared; its ticks, waiting for them.';

create or replace function trunq.read_on(p_queue text, p_place text, p_limit integer default 1000, p_filter jsonb default null)
returns table (
  id bigint, kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, columns jsonb, place text
)
language plpgsql set search_path = pg_catalog, pg_temp
set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_place record;
  v_from trunq.tick;
  v_to trunq.tick;
  v_count integer;
begin
  perform trunq._require_read_committed('read_on');
  perform trunq._check_cluster();
  perform trunq._check_limit(p_limit);
  perform trunq._check_filter(p_filter);
  perform trunq._check_filter_columns(p_queue, p_filter);
  v_place := trunq._parse_place(v_queue, p_place);
  v_from := trunq._kept_tick(v_queue, v_place.tick_id, case when v_place.to_tick_id is null then v_place.tick_check end);
  if v_place.to_tick_id is not null then
    v_to := trunq._kept_tick(v_queue, v_place.to_tick_id, v_place.tick_check);
  else
    v_to := trunq._tick_for_listener(v_queue, v_from);
    if v_to.tick_id is null then
      return;
    end if;
  end if;
  perform trunq._check_position(v_to.snapshot, trunq.snapshot());
  return query execute format($q$
    select g.id, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.priority::smallint, g.created_at, %s,
      concat(%L, g.txid, '.', g.id, '-', %L)
    from (%s) g limit %s
  $q$, trunq._own_values(v_queue, 'g'), format('%s.%s.%s.', v_queue.queue_id, v_from.tick_id, v_to.tick_id), trunq._check_of_tick(v_to),
    trunq._part_query(v_queue, null, p_filter), p_limit)
  using v_from.snapshot, v_to.snapshot, v_place.txid, v_place.id, pg_snapshot_xmax(v_to.snapshot), 0::bigint, null::integer;
  get diagnostics v_count = row_count;
  -- Afterwards, by a later statement: what was emptied before those rows were read is known by now. The rest is kept by our locks.
  perform trunq._check_reachable(v_queue.queue_id, v_from.tick_id);
  if v_count < p_limit then
    created_at := v_to.created_at;
    place := format('%s.%s-%s', v_queue.queue_id, v_to.tick_id, trunq._check_of_tick(v_to));
    return next;
  end if;
end $$;
comment on function trunq.read_on is
  'The messages that were committed after a place, for a listener that is no subscription and keeps the place itself; ordered as trunq.read_batch, each message once, retries not. p_place: what trunq.find_place said, or the place of a row returned before. p_limit: at most so many (up to 100,000). p_filter: only messages that pass it, written as in subscribe. If there is no newer tick but something was committed, the call cuts one.
Returns: where fewer than p_limit are left, a last row without an id: its place is where to read on, with the time up to which all was read. No row: nothing was committed since.
Raises: TQ001, TQ005, TQ007, TQ010; TQ012 when messages after the place are gone, or it is one of another database, or one that a failover or a restore lost: trunq.find_place finds where to begin again.
Locks: the segments of the log against rotation, and the queue''s ticks when it cuts one, to the end of the transaction: call it in a short one of its own.';

create or replace function trunq._parse_place(
  p_queue trunq.queue, p_place text, out tick_id bigint, out to_tick_id bigint, out txid xid8, out id bigint, out tick_check text
)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  -- One that was kept since before places had a check has none.
  v_parts text[] := regexp_match(p_place, '^([0-9]{1,9})\.([0-9]{1,18})(?:\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18}))?(?:-([0-9a-f]{12}))?$');
begin
  if v_parts is null then
    perform trunq._fail('TQ005', format('"%s" is no place in a log', left(p_place, 100)), 'give what trunq.find_place returned, or trunq.read_on');
  elsif v_parts[1]::integer <> p_queue.queue_id then
    perform trunq._fail('TQ012', format('place %s is not of this queue "%s": it is of another, or of one of this name that was dropped', p_place, p_queue.name),
      format('select place from trunq.find_place(%L, ''earliest'') is where this one begins', p_queue.name));
  end if;
  tick_id := v_parts[2]::bigint;
  to_tick_id := v_parts[3]::bigint;
  txid := coalesce(v_parts[4], '0')::xid8;
  id := coalesce(v_parts[5], '0')::bigint;
  tick_check := v_parts[6];
end $$;
comment on function trunq._parse_place is
  'What a place of trunq.find_place or trunq.read_on says; to_tick_id null: it lies between two windows. tick_check: the check of the newest tick that it names.';

create or replace function trunq._check_of_tick(p_tick trunq.tick) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select left(encode(sha256(convert_to(concat(p_tick.snapshot, ' ', extract(epoch from p_tick.created_at)), 'UTF8')), 'hex'), 12)
$$;
comment on function trunq._check_of_tick is 'What tells a tick from one of the same number: of another database, or of this one after a failover or a restore that lost it.';

create or replace function trunq._kept_tick(p_queue trunq.queue, p_tick_id bigint, p_check text) returns trunq.tick
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_tick trunq.tick;
  v_hint constant text := format('select place from trunq.find_place(%L, ''earliest'') is the first place in reach', p_queue.name);
begin
  select t.* into v_tick from trunq.tick t where t.queue_id = p_queue.queue_id and t.tick_id = p_tick_id;
  if not found then
    perform trunq._fail('TQ012', format('queue "%s" has no tick %s any more: messages after it may be gone', p_queue.name, p_tick_id), v_hint);
  elsif p_check <> trunq._check_of_tick(v_tick) then
    perform trunq._fail('TQ012', format('tick %s of queue "%s" is not the one of this place: that is of another database, or a failover or a restore has lost it',
      p_tick_id, p_queue.name), v_hint);
  end if;
  return v_tick;
end $$;
comment on function trunq._kept_tick is 'A tick of a queue; TQ012 when it is gone, or another one has its number. p_check: of trunq._check_of_tick; null: it is not known.';

create or replace function trunq._tick_for_listener(p_queue trunq.queue, p_from trunq.tick) returns trunq.tick
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_newest trunq.tick;
begin
  select t.* into v_newest from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1;
  if v_newest.tick_id = p_from.tick_id and trunq._has_new(p_queue.name, v_newest.snapshot)
      and trunq._cut_for_reader(p_queue.queue_id, v_newest, p_from.tick_id) then
    select t.* into v_newest from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1;
  end if;
  if v_newest.tick_id > p_from.tick_id then
    return v_newest;
  end if;
  return null;
end $$;
comment on function trunq._tick_for_listener is
  'The newest tick after one, which is cut where there is none but something was committed; null: nothing was.';

create or replace function trunq.notify(p_channel text, p_payload text default '') returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(octet_length(p_channel), 0) not between 1 and 63 then
    perform trunq._fail('TQ005', format('the name of a channel has 1 to 63 bytes, not %s', coalesce(octet_length(p_channel), 0)),
      'Postgres cuts off the rest, so that others would hear it too');
  elsif octet_length(p_payload) >= 8000 then
    perform trunq._fail('TQ006', format('a notification on channel "%s" would have %s bytes, and Postgres takes fewer than 8000', p_channel, octet_length(p_payload)),
      'publish it into a queue, whose listeners get messages of up to 16 MB, or notify where it is');
  end if;
  perform pg_notify(p_channel, coalesce(p_payload, ''));
  return pg_backend_pid();
end $$;
comment on function trunq.notify is
  'Tells whoever listens to a channel, when the transaction commits. Nothing keeps it: who does not listen then does not hear it; trunq.publish is for what must be.
Returns: the process id of this session, which listeners see too.
Raises: TQ005; TQ006 from 8000 bytes on.';
