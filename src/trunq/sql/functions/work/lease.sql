-- Leases by the name of the queue, for people, and what the queue's own functions (queue/lease.sql) have in common. 

create or replace function trunq.lease(
  p_queue text,
  p_subscription text,
  p_worker text,
  p_max_messages integer default 1,
  p_lease_time interval default null,
  p_max_bytes bigint default 16777216,
  p_asks jsonb default null
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
  payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile set search_path = pg_catalog, pg_temp rows 100 as $$
begin
  -- A queue that an upgrade has not come to yet knows of no asks.
  return query execute format('select * from trunq_queue.%I($1, $2, $3, $4, $5%s)', trunq._function(p_queue, 'lease'),
      case when p_asks is not null then ', $6' end)
    using p_subscription, p_worker, p_max_messages, p_lease_time, p_max_bytes, p_asks;
end $$;
comment on function trunq.lease is
  'Leases up to p_max_messages (and p_max_bytes of what the worker receives, but at least one) to a worker. Messages that expired, or that somebody cancelled, are dead instead; those older than the subscription takes (max_age) are passed over. p_asks: only these, a filter as for subscribe, or with a "key_prefix"; what it comes upon and was not asked for is set aside for leases that ask for it, or for everything.
Returns: one row for each message, all of one lease; none when there is nothing, or after 2 seconds in which it found only such messages: lease again (workers are told).
Raises: TQ001, TQ002; TQ005 also for p_asks in a queue with lanes, and for more than 100 different ones within an hour; TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when it lost messages and nobody accepted that.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq.extend(
  p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_lease_time interval default null
) returns table (expires_at timestamptz, cancelled bigint[])
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query execute format('select * from trunq_queue.%I($1, $2, $3, $4)', trunq._function(p_queue, 'extend'))
    using p_subscription, p_lease_id, p_token, p_lease_time;
end $$;
comment on function trunq.extend is
  'Moves the end of a lease to p_lease_time from now (default: the subscription''s), later or sooner.
Returns: the new end, and those of its messages that somebody cancelled, whose handlers should stop.
Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005, TQ007, TQ008.
Locks: the lease; before it the subscription, when the lease gets shorter or is a batch.';

create or replace function trunq._check_lease(p_max_messages integer, p_lease_time interval) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._require_read_committed('lease');
  if p_max_messages is null or p_max_messages not between 1 and trunq._limit('lease_messages') then
    perform trunq._fail('TQ005', format('lease takes 1 to %s messages, not %s', trunq._limit('lease_messages'), p_max_messages));
  end if;
  perform trunq._check_interval('the time of a lease', p_lease_time);
  perform trunq._check_cluster();
end $$;
comment on function trunq._check_lease(integer, interval) is 'Refuses what is not possible (TQ005, TQ007, TQ010); once a session it checks the cluster.';

create or replace function trunq._find_range(c trunq.leasing, p_start pg_snapshot, p_lease_time interval)
returns trunq.leasing
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if c.hi is null then
    c.hi := p_start; c.last_txid := pg_snapshot_xmax(p_start); c.last_id := 0;
    c.first_xmax := c.last_txid; c.expires_at := c.leased_at + p_lease_time;
  end if;
  if c.last_txid >= pg_snapshot_xmax(c.hi) then
    if c.is_new then
      c.is_over := true;
      return c;
    end if;
    c.lo := c.hi; c.hi := trunq.snapshot(); c.last_txid := '0'; c.last_id := 0; c.is_new := true;
    if pg_snapshot_xmax(c.lo) > pg_snapshot_xmax(c.hi) then
      perform trunq._check_position(c.lo, c.hi);
    end if;
  end if;
  if c.last_txid < pg_snapshot_xmax(c.lo) then
    c.late := nullif(array(
      select x from pg_snapshot_xip(c.lo) x where x >= c.last_txid and pg_visible_in_snapshot(x, c.hi)), '{}');
    c.from_txid := pg_snapshot_xmax(c.lo); c.from_id := 0;
  else
    c.late := null; c.from_txid := c.last_txid; c.from_id := c.last_id;
  end if;
  return c;
end $$;
comment on function trunq._find_range is
  'What a lease reads next: late transactions, then the range behind a place (functions/ground/window.sql). It opens the next window where one is used up; is_over: it did so before. The first lease of a subscription begins at p_start.';

create or replace function trunq._cut(
  p_count integer, p_max_bytes bigint, p_max_messages integer, p_expiries smallint[], p_bytes bigint[], p_live boolean[]
) returns integer
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  return least(
    p_count,
    (select greatest(1, count(*)) from (
       select sum(u.bytes) over (order by u.at) bytes from unnest(p_bytes) with ordinality u(bytes, at)) u
     where u.bytes <= coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/)),
    -- A suspect is leased alone.
    (select greatest(1, min(u.at) - 1) from unnest(p_expiries) with ordinality u(expiries, at)
     where u.expiries > 1 having count(*) > 0),
    -- Behind the last that it may hand out.
    (select u.at from unnest(p_live) with ordinality u(is_live, at) where u.is_live
     order by u.at offset p_max_messages - 1 limit 1));
end $$;
comment on function trunq._cut is
  'How many of the first p_count messages a lease takes: so many bytes, but at least one; a suspect alone; and of those that are live no more than it may hand out (p_live null: all are).';

create or replace function trunq._fate(
  p_options jsonb, p_now timestamptz, p_has_cancelled boolean, p_subscription_id integer, p_id bigint
) returns "char"
-- No settings here: Postgres then puts the expression in the place of its call.
language sql stable as $$
  select case when (p_options operator(pg_catalog.->>) 'expires_at')::pg_catalog.timestamptz operator(pg_catalog.<=) p_now then 'e'::"char"
    when p_has_cancelled and trunq._is_cancelled(p_subscription_id, p_id) then 'c'::"char" end
$$;
comment on function trunq._fate is
  'The same without an age, as functions ask of queues that an upgrade has not come to yet.';

create or replace function trunq._fate_of(
  p_options jsonb, p_created_at timestamptz, p_now timestamptz, p_oldest timestamptz, p_has_cancelled boolean,
  p_subscription_id integer, p_id bigint
) returns "char"
-- No settings here: Postgres then puts the expression in the place of its call.
language sql stable as $$
  select case when (p_options operator(pg_catalog.->>) 'expires_at')::pg_catalog.timestamptz operator(pg_catalog.<=) p_now then 'e'::"char"
    when p_has_cancelled and trunq._is_cancelled(p_subscription_id, p_id) then 'c'::"char"
    when p_oldest operator(pg_catalog.>) coalesce((p_options operator(pg_catalog.->>) 'due_at')::pg_catalog.timestamptz, p_created_at)
      then 'o'::"char" end
$$;
comment on function trunq._fate_of is
  'The outcome (trunq._outcomes) of a message that waits and that nobody is to handle any more: expired, cancelled, or outdated, which is created, or due, before p_oldest. Null: it is to be handled.';

create or replace function trunq._has_buried_long(p_queue_id integer, p_buried integer, p_since timestamptz) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_buried < trunq._limit('walk_rows') and clock_timestamp() - p_since <= '2 seconds' then
    return false;
  end if;
  -- The others wait for its lock, 5 seconds at most. What it did is done, and nobody takes its silence for the end.
  perform trunq._call_workers(p_queue_id);
  return true;
end $$;
comment on function trunq._has_buried_long is
  'Whether a lease that found only messages not to be handed out is to end here; then every sleeping worker looks again.';

create or replace function trunq._message_bytes(p_kind text, p_key text, p_payload jsonb, p_body bytea, p_headers jsonb) returns bigint
-- No settings here: Postgres then puts the expression in the place of its call.
language sql stable as $$
  -- A jsonb that is not compressed has about the size of its text, and to write the text took half the time of a large lease.
  select coalesce(pg_catalog.octet_length(p_kind), 0)::bigint operator(pg_catalog.+) coalesce(pg_catalog.octet_length(p_key), 0) operator(pg_catalog.+) coalesce(pg_catalog.octet_length(p_body), 0)
    operator(pg_catalog.+) coalesce(case when pg_catalog.pg_column_compression(p_payload) is null then pg_catalog.pg_column_size(p_payload) else pg_catalog.octet_length(p_payload::text) end, 0)
    operator(pg_catalog.+) coalesce(case when pg_catalog.pg_column_compression(p_headers) is null then pg_catalog.pg_column_size(p_headers) else pg_catalog.octet_length(p_headers::text) end, 0)
$$;
comment on function trunq._message_bytes is
  'How many bytes of a message a worker receives, about: not those of its row, where they may be compressed.';

create or replace function trunq._lock_subscription(p_subscription_id integer, p_queue text, p_subscription text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), p_subscription_id) then
    perform trunq._wait_for_subscription(p_subscription_id, p_queue, p_subscription);
  end if;
end $$;
comment on function trunq._lock_subscription is
  'Takes the lock of a subscription, under which its position is read and moved. What the caller then reads must be read by a later statement.';

create or replace function trunq._wait_for_subscription(p_subscription_id integer, p_queue text, p_subscription text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_holder text;
begin
  perform pg_advisory_xact_lock(trunq._lock_class('subscription'), p_subscription_id);
exception when lock_not_available then
  select string_agg(trunq._describe_session(l.pid), ', ') into v_holder
  from pg_locks l
  where l.locktype = 'advisory' and l.granted and l.classid = trunq._lock_class('subscription') and l.objid = p_subscription_id and l.objsubid = 2
    and l.database = (select d.oid from pg_database d where d.datname = current_database());
  perform trunq._fail('TQ008',
    format('an open transaction has held subscription "%s" of queue "%s" for 5 seconds (%s)', p_subscription, p_queue,
      coalesce(v_holder, 'gone by now')),
    'lease in a short transaction of its own; pg_stat_activity shows what that process does, and pg_terminate_backend ends it');
end $$;
comment on function trunq._wait_for_subscription is
  'Waits 5 seconds for the lock of a subscription, then raises TQ008, which names the process that holds it.';

create or replace function trunq._fail_lease_lost(p_queue text, p_subscription text, p_lease_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription := trunq._subscription_of(p_queue, p_subscription, p_lease_id, null);
  v_other text;
begin
  if v_sub.lost_at is not null then
    perform trunq._fail('TQ003',
      format('lease %s of subscription "%s" on queue "%s" has ended: the queue held no more for it', p_lease_id, p_subscription, p_queue),
      format('nothing was changed; select * from trunq.list_losses(''%s'') tells what was lost', p_queue));
  end if;
  if v_sub.mode = 'exclusive' then
    execute format('select s.name from trunq.subscription s where s.queue_id = $1 and s.subscription_id <> $2'
      ' and exists (select from trunq_data.%I l where l.subscription_id = s.subscription_id and l.lease_id = $3) limit 1',
      (trunq._find_queue(p_queue)).lease_table) into v_other using v_sub.queue_id, v_sub.subscription_id, p_lease_id;
    if v_other is not null then
      perform trunq._fail('TQ003', format('batch %s of queue "%s" is of subscription "%s", not of "%s"', p_lease_id, p_queue, v_other, p_subscription),
        'nothing was changed; name the subscription that it was opened for');
    end if;
    perform trunq._fail('TQ003', format('batch %s of subscription "%s" on queue "%s" has ended: it was handed out again, or the subscription was moved',
      coalesce(p_lease_id::text, 'null'), p_subscription, p_queue), 'nothing was changed; extend a batch before it runs out, or subscribe with a longer lease time');
  end if;
  perform trunq._fail('TQ003',
    format('lease %s of subscription "%s" on queue "%s" has ended: its messages were handed out again', p_lease_id, p_subscription, p_queue),
    'nothing was changed; extend a lease before it runs out, or subscribe with a longer lease time');
end $$;
comment on function trunq._fail_lease_lost is 'Raises TQ003.';

create or replace function trunq._fail_not_of_lease(p_queue text, p_subscription text, p_lease_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ013',
    format('not all of these messages belong to lease %s of subscription "%s" on queue "%s"', p_lease_id, p_subscription, p_queue),
    'nothing was changed; answer each message under the lease it came with');
end $$;
comment on function trunq._fail_not_of_lease is 'Raises TQ013.';

create or replace function trunq._lease(
  p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint,
  out lease_id bigint, out token bigint, out worker text, out ids bigint[], out txids xid8[],
  out expires_at timestamptz, out reaped_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('select lease_id, token, worker, ids, txids, expires_at, reaped_at from trunq_data.%I where subscription_id = $1 and lease_id = $2',
    p_queue.lease_table)
  into lease_id, token, worker, ids, txids, expires_at, reaped_at using p_subscription_id, p_lease_id;
end $$;
comment on function trunq._lease is 'A lease by its id; nulls when its segment was emptied.';
