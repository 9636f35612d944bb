-- A lease is a worker's hold on some messages until a time, and the reader's position after them: one inserted row. The
-- newest lease of a subscription is its cursor; no cursor row is ever updated.
--
-- Ids are handed out before commit, so "id > last" would lose what commits late. A reader keeps two snapshots, lo and hi:
-- its window is what hi sees and lo does not. Inside it goes by (txid, id): first the rows of transactions that were in
-- progress in lo (they lie below its xmax), then the range from xmax(lo) on. A window used up has last_txid = xmax(hi), and
-- the next one starts where it ended.
--
-- Every lease of a subscription is taken under its lock, and hi is read after the lock was got: positions never cross.
-- Rows are read by a later statement than hi, so everything hi sees is there.

create or replace function trunq._dispatch_lease() returns void
language plpgsql as $$
begin
  execute replace($q$
    create or replace function trunq.lease(
      p_queue text,
      p_subscription text,
      p_worker text,
      p_max_messages integer default 1,
      p_lease_time interval default null,
      p_max_bytes bigint default 16777216
    ) returns table (
      lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
      payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz
    )
    language plpgsql rows 100 as $f$
    #variable_conflict use_column
    declare
      v_sub record;
    begin
      -- One condition for all that is unusual.
      if current_setting('transaction_isolation') <> 'read committed'
          or current_setting('trunq.cluster_checked', true) is distinct from 'yes'
          or p_max_messages is null or p_max_messages not between 1 and 10000 or p_lease_time <= '0' then
        perform trunq._check_lease(p_max_messages, p_lease_time);
      end if;
      select s.subscription_id, s.queue_id, s.mode, s.start, s.max_attempts,
        coalesce(p_lease_time, s.lease_time) lease_time, coalesce(p_max_bytes, 16777216) max_bytes into v_sub
      from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
      where q.name = p_queue and s.name = p_subscription;
      if v_sub.mode is distinct from 'shared' then
        perform trunq._subscription(p_queue, p_subscription, 'shared');
        -- It did not say what is missing: the subscription was made just now.
        return query select * from trunq.lease(p_queue, p_subscription, p_worker, p_max_messages, p_lease_time, p_max_bytes);
        return;
      end if;
      if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
        perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
      end if;
      {branches}
      return query execute
        format('select * from trunq_data.%I($1, $2, $3, $4, $5, $6, $7)', 'lease_' || v_sub.queue_id)
        using v_sub.subscription_id, v_sub.start, v_sub.max_attempts, p_worker, p_max_messages, v_sub.lease_time, v_sub.max_bytes;
    end $f$
  $q$, '{branches}', trunq._branches('return query select * from trunq_data.lease_%2$s(v_sub.subscription_id, v_sub.start, '
    'v_sub.max_attempts, p_worker, p_max_messages, v_sub.lease_time, v_sub.max_bytes); return;'));
  comment on function trunq.lease(text, text, text, integer, interval, bigint) is
    'Leases up to p_max_messages (and p_max_bytes, payloads as they are stored, but at least one) to a worker. Returns: one row a message, all of one lease; none when there is nothing. Raises: TQ001, TQ002, TQ005, TQ007, TQ008, TQ010, TQ011. Locks: the subscription, to the end of the transaction: lease in a short one of its own.';
end $$;
comment on function trunq._dispatch_lease() is 'Generates trunq.lease.';

create or replace function trunq._check_lease(p_max_messages integer, p_lease_time interval) returns void
language plpgsql as $$
begin
  perform trunq._require_read_committed('lease');
  if p_max_messages is null or p_max_messages not between 1 and 10000 then
    perform trunq._fail('TQ005', format('lease takes 1 to 10000 messages, not %s', p_max_messages));
  end if;
  if p_lease_time <= '0' then
    perform trunq._fail('TQ005', format('the time of a lease must be positive, not %s', p_lease_time));
  end if;
  perform trunq._check_cluster();
end $$;

create or replace function trunq.extend(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_lease_time interval default null
) returns timestamptz
language plpgsql as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
  v_lease record;
  v_batch record;
  v_until timestamptz;
begin
  perform trunq._require_read_committed('extend');
  if p_lease_time < '0' then
    perform trunq._fail('TQ005', format('the time of a lease cannot be negative, not %s', p_lease_time));
  end if;
  perform trunq._lock_lease(p_lease_id);
  if v_sub.mode = 'exclusive' then
    -- A batch that ran out is not reaped but taken over, under the subscription's lock, by a newer lease.
    if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
      perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
    end if;
    v_batch := trunq._newest_batch(v_sub.queue_id, v_sub.subscription_id);
    if v_batch.finished or v_batch.lease_id <> p_lease_id then
      perform trunq._fail_lease_lost(p_queue, p_subscription, p_lease_id);
    end if;
  end if;
  v_lease := trunq._lease(v_sub.queue_id, v_sub.subscription_id, p_lease_id);
  if (v_lease.token = p_token) is not true or v_lease.reaped_at is not null then
    perform trunq._fail_lease_lost(p_queue, p_subscription, p_lease_id);
  end if;
  v_until := trunq.clock() + coalesce(p_lease_time, v_sub.lease_time);
  if v_until < v_lease.expires_at and v_sub.mode = 'shared' then
    -- The reaper goes by expiry and never looks behind its mark. An earlier expiry may appear only as a new lease does, and,
    -- since the clock may have gone back, not behind the mark.
    if not pg_try_advisory_xact_lock(1953656418, v_sub.subscription_id) then
      perform trunq._wait_for_subscription(v_sub.subscription_id, p_queue, p_subscription);
    end if;
    v_until := trunq.clock() + coalesce(p_lease_time, v_sub.lease_time);
    insert into trunq.mark (queue_id, subscription_id, duty, at) values (v_sub.queue_id, v_sub.subscription_id, 'reap', 'epoch')
    on conflict (queue_id, subscription_id, duty) do update set at = least(mark.at, v_until - interval '1 microsecond');
  end if;
  execute format('update trunq_data.%I set expires_at = $1 where subscription_id = $2 and lease_id = $3', 'lease_' || v_sub.queue_id)
    using v_until, v_sub.subscription_id, p_lease_id;
  return v_until;
end $$;
comment on function trunq.extend(text, text, bigint, bigint, interval) is
  'Moves the end of a lease to p_lease_time from now (default: the subscription''s), later or sooner. Returns: the new end. Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005, TQ007, TQ008. Locks: the lease; the subscription too when it gets shorter or is a batch.';

create or replace function trunq._wait_for_subscription(p_subscription_id integer, p_queue text, p_subscription text) returns void
language plpgsql set lock_timeout = '5s' as $$
declare
  v_holder text;
begin
  perform pg_advisory_xact_lock(1953656418, p_subscription_id);
exception when lock_not_available then
  select string_agg(coalesce('process ' || l.pid, 'a prepared transaction, see pg_prepared_xacts'), ', ') into v_holder
  from pg_locks l
  where l.locktype = 'advisory' and l.granted and l.classid = 1953656418 and l.objid = p_subscription_id and l.objsubid = 2
    and l.database = (select d.oid from pg_database d where d.datname = current_database());
  perform trunq._fail('TQ008',
    format('an open transaction has held subscription "%s" of queue "%s" for 5 seconds (%s)', p_subscription, p_queue,
      coalesce(v_holder, 'gone by now')),
    'lease in a short transaction of its own; pg_stat_activity shows what that process does');
end $$;

create or replace function trunq._lock_lease(p_lease_id bigint) returns void
language sql volatile as $$ select pg_advisory_xact_lock(1953656419, (p_lease_id & 2147483647)::integer) $$;
comment on function trunq._lock_lease(bigint) is
  'Answers, extensions and the reaper of one lease meet here. What they then check is read by a later statement: in the same one it would be the old snapshot.';

create or replace function trunq._fail_lease_lost(p_queue text, p_subscription text, p_lease_id bigint) returns void
language plpgsql as $$
begin
  perform trunq._fail('TQ003',
    format('lease %s of subscription "%s" on queue "%s" has ended: its messages were handed out again', p_lease_id, p_subscription, p_queue),
    'nothing was changed; extend a lease before it runs out, or subscribe with a longer lease time');
end $$;

create or replace function trunq._lease(
  p_queue_id integer, p_subscription_id integer, p_lease_id bigint,
  out lease_id bigint, out token bigint, out worker text, out ids bigint[], out txids xid8[],
  out expires_at timestamptz, out reaped_at timestamptz
)
language plpgsql as $$
begin
  execute format('select lease_id, token, worker, ids, txids, expires_at, reaped_at from trunq_data.%I where subscription_id = $1 and lease_id = $2',
    'lease_' || p_queue_id)
  into lease_id, token, worker, ids, txids, expires_at, reaped_at using p_subscription_id, p_lease_id;
end $$;

create or replace function trunq._define_lease(p_queue_id integer, p_queue text) returns void
language plpgsql as $$
begin
  execute format($q$
    create or replace function trunq_data.lease_%2$s(
      p_subscription_id integer, p_start pg_snapshot, p_max_attempts integer, p_worker text, p_max_messages integer,
      p_lease_time interval, p_max_bytes bigint)
    returns table (
      lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text,
      payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz)
    language plpgsql volatile rows 100
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off set plan_cache_mode = force_generic_plan
    as $f$
    #variable_conflict use_column
    declare
      c_walk constant integer := 50000;  -- index rows one look walks at most
      v_lo pg_snapshot; v_hi pg_snapshot; v_last_txid xid8; v_last_id bigint;
      v_late xid8[]; v_from_txid xid8; v_from_id bigint;
      v_lease_id bigint; v_token bigint; v_now timestamptz := trunq.clock();
      v_started timestamptz := clock_timestamp();
      v_opened boolean := false; v_walked integer := 0; v_moved boolean := false; v_count integer;
      v_place_txid xid8; v_place_id bigint; v_xmax_before xid8;
    begin
      select l.lo, l.hi, l.last_txid, l.last_id into v_lo, v_hi, v_last_txid, v_last_id
      from trunq_data.lease_%2$s l where l.subscription_id = p_subscription_id
      order by l.lease_id desc limit 1;
      if not found then
        v_hi := p_start; v_last_txid := pg_snapshot_xmax(p_start); v_last_id := 0;
      end if;
      v_xmax_before := pg_snapshot_xmax(v_hi);
      loop
        if v_last_txid >= pg_snapshot_xmax(v_hi) then
          exit when v_opened;
          v_lo := v_hi; v_hi := trunq.snapshot(); v_last_txid := '0'; v_last_id := 0; v_opened := true;
          if pg_snapshot_xmax(v_lo) > pg_snapshot_xmax(v_hi) then
            perform trunq._check_position(v_lo, v_hi);
          end if;
        end if;
        if v_last_txid < pg_snapshot_xmax(v_lo) then
          v_late := array(select x from pg_snapshot_xip(v_lo) x where x >= v_last_txid and pg_visible_in_snapshot(x, v_hi));
          v_from_txid := pg_snapshot_xmax(v_lo); v_from_id := 0;
        else
          v_late := '{}'; v_from_txid := v_last_txid; v_from_id := v_last_id;
        end if;
        v_lease_id := nextval('trunq_data.lease_id_%2$s');
        v_token := trunq._token();
        return query
          with batch as materialized (
            -- 1. Late ones, each transaction by itself. No sort: the snapshot lists them in order, and a sort would read all.
            (select m.id, m.txid, m.attempt, m.kind, m.key, m.payload, m.body, m.headers, m.priority, m.created_at
             from unnest(v_late) late(txid) cross join lateral (
               select g.* from trunq_log.%1$I g
               where g.txid = late.txid and g.id > case when late.txid = v_last_txid then v_last_id else 0 end
                 and (g.subscription_id is null or g.subscription_id = p_subscription_id)
               order by g.id limit p_max_messages) m
             limit p_max_messages)
            union all
            -- 2. The range. One row comparison is one start key; the walk ends after so many index rows, mine or not.
            (select w.id, w.txid, w.attempt, w.kind, w.key, w.payload, w.body, w.headers, w.priority, w.created_at
             from (
               select g.* from trunq_log.%1$I g
               where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
               order by g.txid, g.id limit c_walk) w
             where pg_visible_in_snapshot(w.txid, v_hi) and (w.subscription_id is null or w.subscription_id = p_subscription_id)
             limit p_max_messages)
            union all
            -- 3. Where the walk ended, if it did: attempt 0 marks it. Reached only when 1 and 2 did not fill the lease.
            (select g.id, g.txid, 0::smallint, null, null, null::jsonb, null::bytea, null::jsonb, 0::smallint, null::timestamptz
             from trunq_log.%1$I g
             where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
             order by g.txid, g.id offset c_walk - 1 limit 1)
            limit p_max_messages
          ),
          total as (
            select array_agg(b.id) ids, array_agg(b.txid) txids, count(*)::integer n, coalesce(min(b.attempt), 1) = 0 ended,
              sum(coalesce(pg_column_size(b.payload), 0) + coalesce(octet_length(b.body), 0)) bytes
            from batch b
          ),
          taken as materialized (
            select t.ids, t.txids, t.ended, t.n, case
              when t.bytes <= p_max_bytes then t.n - t.ended::integer
              else greatest(1, (
                select count(*)::integer from (
                  select sum(coalesce(pg_column_size(b.payload), 0) + coalesce(octet_length(b.body), 0)) over (rows unbounded preceding) bytes
                  from batch b where b.attempt > 0) r
                where r.bytes <= p_max_bytes)) end as size
            from total t
          ),
          made as (
            insert into trunq_data.lease_%2$s (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
              min_txid, max_txid, size, ids, txids, leased_at, expires_at)
            select v_lease_id, p_subscription_id, v_token, p_worker, v_lo, v_hi,
              case when t.size = t.n - t.ended::integer and not t.ended and t.n < p_max_messages then pg_snapshot_xmax(v_hi)
                when t.size = t.n - t.ended::integer then t.txids[t.n] else t.txids[t.size] end,
              case when t.size = t.n - t.ended::integer and not t.ended and t.n < p_max_messages then 0
                when t.size = t.n - t.ended::integer then t.ids[t.n] else t.ids[t.size] end,
              t.txids[1]::text::bigint, t.txids[t.size]::text::bigint, t.size,
              t.ids[1:t.size], t.txids[1:t.size], v_now, v_now + p_lease_time
            from taken t where t.n - t.ended::integer > 0
          )
          select v_lease_id, v_token, b.id, b.attempt, p_max_attempts, b.kind, b.key, b.payload, b.body, b.headers, b.priority,
            b.created_at, v_now + p_lease_time
          from batch b where b.attempt > 0 limit (select t.size from taken t);
        get diagnostics v_count = row_count;
        if v_count > 0 then
          return;
        end if;
        -- Nothing here for this reader. Did the walk end before the window?
        select g.txid, g.id into v_place_txid, v_place_id from trunq_log.%1$I g
        where g.txid < pg_snapshot_xmax(v_hi) and (g.txid, g.id) > (v_from_txid, v_from_id)
        order by g.txid, g.id offset c_walk - 1 limit 1;
        if found then
          v_last_txid := v_place_txid; v_last_id := v_place_id; v_moved := true; v_walked := v_walked + 1;
          exit when v_walked >= 40;
        else
          v_last_txid := pg_snapshot_xmax(v_hi); v_last_id := 0;
        end if;
      end loop;
      -- A look that had to walk far writes an empty lease, or the next one would walk it again, and no segment ever be let go.
      if v_moved or pg_snapshot_xmax(v_hi)::text::bigint - v_xmax_before::text::bigint > 1000
          or clock_timestamp() - v_started > '3 milliseconds' then
        insert into trunq_data.lease_%2$s (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at)
        values (nextval('trunq_data.lease_id_%2$s'), p_subscription_id, v_token, p_worker, v_lo, v_hi, v_last_txid, v_last_id, v_now);
      end if;
    end $f$
  $q$, p_queue, p_queue_id);
end $$;
