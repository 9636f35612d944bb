-- What happened to each message is forgotten with its segments. A queue may have an archive: trunq_archive.<queue>, a plain table of
-- the user's to read, one row an attempt that is over, with its message. A duty fills it from leases, receipts and log; rotation
-- empties nothing that is not archived (trunq._is_taken).
--
-- The duty goes down the leases of a subscription by their number: they are numbered and committed in one order, under the
-- subscription's lock, so what is above the mark came later. A lease is archived once, when it is over: when all its messages are
-- answered, or when it was reaped. No answer can be added to it then. Those still open are noted in the mark and looked at again, so
-- that a job of hours holds up its own segments alone. Rows and mark commit together; the row of the policy is locked, so two leaders
-- take turns; and the primary key would refuse an attempt that came twice.
--
-- A subscription that ends takes its name along: its mark stays until its leases are archived. Of the open ones what was answered is,
-- and nobody answers the rest any more.
--
-- Partitions are months by finished_at, in UTC. Each is attached to the archive, which hinders no reader; an old one is dropped, which
-- waits for readers 50 ms at a time.

create or replace function trunq.create_archive(p_queue text, p_archive_for interval default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_role text;
  v_is_made boolean;
begin
  perform trunq._require_read_committed('create_archive');
  perform trunq._check_interval(format('the time for which queue "%s" keeps its archive', p_queue), p_archive_for, '0');
  v_role := trunq._become_owner();
  -- Rotation waits: what is there is archived, too.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);  -- it may have been dropped meanwhile
  insert into trunq.archive_policy (queue_id, archive_for) values (v_queue.queue_id, nullif(p_archive_for, '0'))
  on conflict (queue_id) do nothing;
  v_is_made := found;
  if not v_is_made then
    update trunq.archive_policy a set archive_for = nullif(p_archive_for, '0')
    where a.queue_id = v_queue.queue_id and p_archive_for is not null;
  end if;
  if to_regclass(format('trunq_archive.%I', v_queue.name)) is null then
    execute format('create table trunq_archive.%I (like trunq_data._specimen_archive including all) partition by range (finished_at)', v_queue.name);
    execute format('comment on table trunq_archive.%I is %L', v_queue.name, obj_description('trunq_data._specimen_archive'::regclass, 'pg_class'));
  end if;
  perform set_config('role', v_role, true);
  return v_is_made;
exception when lock_not_available then
  perform trunq._fail('TQ009', format('an open transaction uses queue "%s"', p_queue),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq.create_archive is
  'Keeps every attempt of the shared subscriptions of a queue in the table trunq_archive.<queue>, which is yours to read: one row an attempt that is over, with its message, outcome, error, result, worker and times. It begins with what the queue still holds. p_archive_for: how long rows stay (null or 0: for ever), by whole months. Of a queue that has one, it changes p_archive_for (null: nothing, 0: for ever). An archive that a dropped queue of this name left is continued.
Returns: true when the queue had none.
Raises: TQ001, TQ005, TQ007; TQ009 when an open transaction creates or drops it for 5 seconds.
Locks: the queue, shared.';

create or replace function trunq.drop_archive(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_role text := trunq._become_owner();
begin
  if p_queue is null or to_regclass(format('trunq_archive.%I', p_queue)) is null then
    perform trunq._find_queue(p_queue);
    perform trunq._fail('TQ005', format('queue "%s" has no archive', p_queue),
      'select * from trunq.list_archives() shows those there are');
  end if;
  delete from trunq.archive_policy a using trunq.queue q where q.queue_id = a.queue_id and q.name = p_queue;
  delete from trunq.archive_mark m using trunq.queue q where q.queue_id = m.queue_id and q.name = p_queue;
  execute format('drop table trunq_archive.%I', p_queue);
  perform set_config('role', v_role, true);
exception when lock_not_available then
  perform trunq._fail('TQ009', format('somebody reads or fills the archive of queue "%s"', p_queue),
    'end that transaction (pg_stat_activity shows it) and try again');
end $$;
comment on function trunq.drop_archive is
  'Drops the archive of a queue, with all its rows; also the one that a dropped queue left.
Raises: TQ001; TQ005 when the queue has none; TQ009 while somebody reads it for 5 seconds.
Locks: the archive, exclusively.';

create or replace function trunq.list_archives()
returns table (queue text, archive_for interval, is_filled boolean, first_month date, last_month date, bytes bigint)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.relname::text, a.archive_for, a.queue_id is not null, min(m.month), max(m.month), coalesce(sum(pg_total_relation_size(m.part)), 0)::bigint
  from pg_class c
  left join trunq.queue q on q.name = c.relname
  left join trunq.archive_policy a on a.queue_id = q.queue_id
  left join lateral trunq._archive_months(c.relname) m on true
  where c.relnamespace = 'trunq_archive'::regnamespace and c.relkind = 'p'
  group by c.relname, a.archive_for, a.queue_id order by c.relname
$$;
comment on function trunq.list_archives is
  'The archives there are. is_filled false: its queue is gone, and nothing is added or dropped any more; archive_for null: for ever; bytes: on disk, with indexes.';

create or replace function trunq.archive(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_policy trunq.archive_policy;
  v_id integer;
  v_total integer := 0;
begin
  perform trunq._require_read_committed('archive');
  if not exists (select from trunq.archive_policy a where a.queue_id = v_queue.queue_id) then
    return 0;
  end if;
  -- By a statement of its own: the next ones see what the one who held it did.
  select * into v_policy from trunq.archive_policy a where a.queue_id = v_queue.queue_id for update skip locked;
  if not found then
    return null;
  end if;
  perform trunq._enroll(v_queue);
  for v_id in select m.subscription_id from trunq.archive_mark m where m.queue_id = v_queue.queue_id order by m.subscription_id loop
    v_total := v_total + trunq._archive(v_queue, v_id, trunq._limit('archived_messages') - v_total);
    exit when v_total >= trunq._limit('archived_messages');
  end loop;
  if v_policy.archive_for is not null then
    perform trunq._drop_months(v_queue, trunq.clock() - v_policy.archive_for);
  end if;
  return v_total;
exception when lock_not_available then
  return null;  -- a subscription is about to end, or somebody makes an index
end $$;
comment on function trunq.archive is
  'Writes attempts that are over into the archive of the queue, if it has one, and drops the months that it keeps no longer. A leader does so every 30 seconds. It needs READ COMMITTED.
Returns: how many messages the leases had that it archived, some thousands at most; null when another is doing it.
Raises: TQ001, TQ007.
Locks: its row in trunq.archive_policy; the archive, shared, and 50 ms exclusively where a month is dropped.';

create or replace function trunq._enroll(p_queue trunq.queue) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into trunq.archive_mark (queue_id, subscription_id, subscription)
  select s.queue_id, s.subscription_id, s.name from trunq.archive_policy a join trunq.subscription s on s.queue_id = a.queue_id
  where a.queue_id = p_queue.queue_id and s.mode = 'shared'
    and not exists (select from trunq.archive_mark m where m.queue_id = s.queue_id and m.subscription_id = s.subscription_id)
  order by s.subscription_id
  on conflict do nothing;
  insert into trunq.taker_mark (queue_id, taker, subscription_id, subscription, reader)
  select s.queue_id, t.name, s.subscription_id, s.name, trunq._reader_name(s) from trunq.taker t join trunq.subscription s on s.queue_id = t.queue_id
  where t.queue_id = p_queue.queue_id and s.mode = 'shared'
    and not exists (select from trunq.taker_mark m where m.queue_id = s.queue_id and m.taker = t.name and m.subscription_id = s.subscription_id)
  order by t.name, s.subscription_id
  on conflict do nothing
$$;
comment on function trunq._enroll is
  'Gives each shared subscription of a queue its marks, one for the archive and one for each taker, where there are such; also before one ends.';

create or replace function trunq._archive(
  p_queue trunq.queue, p_subscription_id integer, p_messages integer, p_is_last boolean default false
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_mark trunq.archive_mark;
  v_is_ended boolean;
  v_walk record;
begin
  select * into v_mark from trunq.archive_mark m where m.queue_id = p_queue.queue_id and m.subscription_id = p_subscription_id;
  v_is_ended := not exists (select from trunq.subscription s where s.subscription_id = p_subscription_id);
  v_walk := trunq._walk(p_queue, p_subscription_id, v_mark.lease_id, v_mark.open, p_messages, p_is_last or v_is_ended);
  if v_walk.over <> '{}' then
    perform trunq._write_archive(p_queue, v_mark, v_walk.over);
  end if;
  if v_walk.has_seen then
    update trunq.archive_mark m set lease_id = v_walk.up_to, open = v_walk.still_open
    where m.queue_id = p_queue.queue_id and m.subscription_id = p_subscription_id;
  elsif v_is_ended then
    delete from trunq.archive_mark m where m.queue_id = p_queue.queue_id and m.subscription_id = p_subscription_id;
  end if;
  return v_walk.size;
end $$;
comment on function trunq._archive is
  'Archives leases of one subscription that are over, until they are about p_messages; if p_is_last, what is answered of those that are not. The last call for a subscription that ended removes its mark. The caller holds the row of the policy.
Returns: how many messages these leases had.';

create or replace function trunq._walk(
  p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_open bigint[], p_messages bigint, p_is_last boolean,
  out over bigint[], out up_to bigint, out still_open bigint[], out size bigint, out has_seen boolean
)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_lease record;
  v_closed bigint[] := '{}';
begin
  over := '{}'; up_to := p_lease_id; still_open := '{}'; size := 0; has_seen := false;
  for v_lease in
    execute format($q$
      select l.lease_id, coalesce(l.size, 0) size, l.size is null or l.size = 0 or l.reaped_at is not null or l.size <= coalesce((
        select sum(r.size) from trunq_data.%2$I r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = l.subscription_id), 0) is_over
      from (
        select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = any ($3)
        union all
        (select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id > $2 order by l.lease_id)) l
    $q$, p_queue.lease_table, p_queue.receipt_table) using p_subscription_id, p_lease_id, p_open
  loop
    exit when size >= p_messages;
    has_seen := true;
    up_to := greatest(up_to, v_lease.lease_id);
    if not v_lease.is_over and not (p_is_last and trunq._abandon(p_queue, p_subscription_id, v_lease.lease_id)) then
      if v_lease.lease_id > p_lease_id then
        still_open := still_open || v_lease.lease_id;
      end if;
      continue;
    end if;
    if v_lease.lease_id <= p_lease_id then
      v_closed := v_closed || v_lease.lease_id;
    end if;
    if v_lease.size > 0 then
      over := over || v_lease.lease_id;
      size := size + v_lease.size;
    end if;
  end loop;
  -- Those that it did not come to stay noted.
  still_open := array(select unnest(p_open) except select unnest(v_closed) order by 1) || still_open;
end $$;
comment on function trunq._walk is
  'Goes down the leases of a subscription from a mark until those that are over have about p_messages. p_is_last: ends those that are not.
Returns: the leases with messages that are over, the mark behind them (up_to, still_open), how many messages they have, and whether there was a lease at all.';

create or replace function trunq._abandon(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  if not pg_try_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(p_queue.queue_id, p_lease_id)) then
    return false;  -- an answer is on its way
  end if;
  -- Refuses one that found the subscription while it was there.
  execute format('update trunq_data.%I set reaped_at = trunq.clock() where subscription_id = $1 and lease_id = $2 and reaped_at is null', p_queue.lease_table)
    using p_subscription_id, p_lease_id;
  return true;
end $$;
comment on function trunq._abandon is 'Ends an open lease of a subscription that was dropped.
Returns: false when its lock is held just now.';

create or replace function trunq._write_archive(p_queue trunq.queue, p_mark trunq.archive_mark, p_leases bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
-- As trunq_queue.<queue>_give_back, for columns of the user and for the plan.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
declare
  v_extra text := case when trunq._is_wider(format('trunq_log.%I', p_queue.log_table)::regclass) then 'trunq._extra(to_jsonb(g))' else 'null::jsonb' end;
begin
  for v_try in 1..2 loop
    begin
      execute trunq._attempts(p_queue) || format($q$
        insert into trunq_archive.%1$I (id, subscription, attempt, outcome, error, result, worker, published_at, leased_at, finished_at, took,
          priority, kind, key, payload, body, headers, options, extra, subscription_id, lease_id)
        select a.id, $3, g.attempt, trunq._outcome(a.outcome), a.error, a.result, a.worker, g.created_at, a.leased_at, a.finished_at, a.took,
          g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.options, g.extra, $1, a.lease_id
        from attempt a
        left join lateral (
          select g.*, %3$s extra from trunq_log.%2$I g where trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, $1) limit 1) g on true
      $q$, p_queue.name, p_queue.log_table, v_extra)
      using p_mark.subscription_id, p_leases, p_mark.subscription;
      return;
    exception when check_violation then
      if v_try = 2 then
        raise;
      end if;
    end;
    perform trunq._make_months(p_queue, p_leases);
  end loop;
end $$;
comment on function trunq._write_archive is 'Inserts the attempts of leases that are over into the archive; the first of a month makes its partition.';

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

create or replace function trunq._make_months(p_queue trunq.queue, p_leases bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC' set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_month timestamptz;
  v_part text;
  v_role text := trunq._become_owner();
begin
  for v_month in
    execute format('select distinct date_trunc(''month'', r.finished_at) from unnest($1) o(lease_id) join trunq_data.%I r on r.lease_id = o.lease_id order by 1',
      p_queue.receipt_table) using p_leases
  loop
    v_part := format('%s_archive_%s', p_queue.name, to_char(v_month, 'YYYYMM'));
    continue when exists (select from trunq._archive_months(p_queue.name) m where m.month = v_month::date);
    -- To attach it locks nobody out who reads; to make it as a partition would.
    execute format('create table trunq_data.%I (like trunq_archive.%I including all)', v_part, p_queue.name);
    execute format('alter table trunq_archive.%I attach partition trunq_data.%I for values from (%L) to (%L)',
      p_queue.name, v_part, v_month, v_month + interval '1 month');
  end loop;
  perform set_config('role', v_role, true);
end $$;
comment on function trunq._make_months is 'Makes the partitions of an archive that the attempts of these leases need.';

create or replace function trunq._archive_months(p_archive text) returns table (part regclass, month date)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select i.inhrelid::regclass, to_date(substring(c.relname from '_archive_(\d{6})$'), 'YYYYMM')
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = to_regclass(format('trunq_archive.%I', p_archive)) and c.relname ~ '_archive_\d{6}$'
$$;
comment on function trunq._archive_months is 'The partitions of an archive, those that a user attached excepted.';

create or replace function trunq._drop_months(p_queue trunq.queue, p_before timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '50ms' as $$
declare
  v_part regclass;
begin
  for v_part in select m.part from trunq._archive_months(p_queue.name) m where m.month + interval '1 month' <= p_before order by m.month loop
    execute format('drop table %s', v_part);
  end loop;
exception when lock_not_available then
  null;  -- somebody reads it: the next time
end $$;
comment on function trunq._drop_months is 'Drops the months of an archive that ended before a time, unless somebody reads it just now.';

create or replace function trunq._archive_rest(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_id integer;
begin
  -- The duty may hold it and wait for the leases, which the caller has locked.
  perform from trunq.archive_policy a where a.queue_id = p_queue.queue_id for update nowait;
  perform trunq._enroll(p_queue);
  for v_id in select m.subscription_id from trunq.archive_mark m where m.queue_id = p_queue.queue_id order by m.subscription_id loop
    while trunq._archive(p_queue, v_id, trunq._limit('archived_messages'), true) > 0 loop
    end loop;
  end loop;
end $$;
comment on function trunq._archive_rest is
  'Archives all attempts that are over, before all leases go. The caller has locked them, exclusively, and tries again when a lock is missing (trunq._in_turns).';

create or replace function trunq._is_taken(p_queue trunq.queue, p_table text, p_segment integer, p_open bigint[] default '{}') returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  v_low bigint := 0;
  v_high bigint := 9223372036854775807;
  v_is_left boolean;
begin
  if not exists (select from trunq.archive_policy a where a.queue_id = p_queue.queue_id)
    and not exists (select from trunq.taker t where t.queue_id = p_queue.queue_id) then
    return true;
  end if;
  if exists (
      select from trunq.archive_policy a join trunq.subscription s on s.queue_id = a.queue_id
      where a.queue_id = p_queue.queue_id and s.mode = 'shared'
        and not exists (select from trunq.archive_mark m where m.queue_id = s.queue_id and m.subscription_id = s.subscription_id))
    or exists (
      select from trunq.taker t join trunq.subscription s on s.queue_id = t.queue_id
      where t.queue_id = p_queue.queue_id and s.mode = 'shared'
        and not exists (select from trunq.taker_mark m where m.queue_id = s.queue_id and m.taker = t.name and m.subscription_id = s.subscription_id)) then
    return false;  -- the duty, or a taker, has not begun with it
  end if;
  if p_table = 'log' then
    execute format($q$
      select (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid, g.id limit 1),
        (select g.txid::text::bigint from trunq_data.%1$I g order by g.txid desc, g.id desc limit 1)
    $q$, v_name) into v_low, v_high;
  end if;
  execute format($q$
    select exists (
      select from (
        select m.subscription_id, m.lease_id, m.open from trunq.archive_mark m where m.queue_id = $1
        union all
        select m.subscription_id, m.lease_id, m.open from trunq.taker_mark m where m.queue_id = $1) m
      cross join lateral (
        select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id > m.lease_id
        union all
        select * from trunq_data.%1$I l where l.subscription_id = m.subscription_id and l.lease_id = any (m.open)) l
      where l.size > 0 and l.min_txid <= $3 and l.max_txid >= $2 and l.lease_id <> all ($4))
  $q$, case p_table when 'log' then p_queue.lease_table else v_name end) into v_is_left using p_queue.queue_id, v_low, v_high, p_open;
  return not v_is_left;
end $$;
comment on function trunq._is_taken is
  'Whether whatever takes history elsewhere, the archive and takers, has all of a segment of the log or the leases, but for what the leases p_open have of it.';
