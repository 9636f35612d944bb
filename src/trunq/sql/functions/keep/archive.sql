-- What happened to each message is forgotten with its segments. A queue may have an archive: trunq_archive.<queue>, a plain table of
-- the user's to read, one row an attempt that is over, with its message. It is a taker (taker.sql) whose sink is this table: its name is
-- (archive), which no other can have; a duty of the leader is its run; and where it stands are its marks, which commit together with
-- the rows. Its row in trunq.taker is locked meanwhile, so two leaders take turns; and the primary key would refuse an attempt that came
-- twice. A queue that is dropped or emptied does not wait for the duty: it archives the rest itself.
--
-- An archive may be written at once: whatever ends an attempt inserts a receipt (an answer, the reaper, a lease that meets what expired), and
-- a trigger on the receipts, which only such a queue has, writes the rows in that transaction (at_once.sql). The duty goes down the leases all the
-- same, and writes what it misses there: what was over before, and what the trigger had to leave. So each attempt has one row whenever
-- this is turned on or off.
--
-- Partitions are months by finished_at, in UTC. Each is attached to the archive, which hinders no reader; an old one is dropped, which
-- waits for readers 50 ms at a time.

create or replace function trunq.create_archive(
  p_queue text, p_archive_for interval default null, p_at_once boolean default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_role text;
  v_is_made boolean;
begin
  perform trunq._require_read_committed('create_archive');
  perform trunq._check_interval(format('the time for which queue "%s" keeps its archive', p_queue), p_archive_for, '0');
  v_role := trunq._become_owner();
  if p_at_once is null then
    -- Rotation waits: what is there is archived, too.
    perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
    -- It may have been dropped meanwhile.
    v_is_made := trunq._create_archive(trunq._find_queue(p_queue), p_archive_for, p_at_once);
  else
    v_is_made := trunq._try_for_locks(p_queue, format('select trunq._create_archive($1, %L, %L)::integer', p_archive_for, p_at_once)) = 1;
  end if;
  perform set_config('role', v_role, true);
  return v_is_made;
exception when lock_not_available then
  perform trunq._fail('TQ009', format('an open transaction uses queue "%s"', p_queue),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq.create_archive is
  'Keeps every attempt of the shared subscriptions of a queue in the table trunq_archive.<queue>, which is yours to read: one row for each finished attempt, with its message, outcome, error, result, worker and times. It begins with what the queue still holds. p_archive_for: how long rows are kept, by whole months (null or 0: for ever). p_at_once: whatever ends an attempt writes its row in the same transaction, so that it is there as soon as the answer is; else the leader does, within half a minute. Where the queue has an archive already, the call changes p_archive_for (null: unchanged; 0: for ever) and p_at_once (null: unchanged). Where a dropped queue of this name left an archive, it is continued.
Returns: true when the queue had none.
Raises: TQ001, TQ005, TQ007; TQ009 when an open transaction creates or drops it for 5 seconds, or, with p_at_once, has answered messages of the queue.
Locks: the queue, shared; with p_at_once the queue, and its answers, waiting 200 ms at a time.';

create or replace function trunq._create_archive(p_queue trunq.queue, p_archive_for interval, p_at_once boolean) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_made boolean;
begin
  insert into trunq.taker (queue_id, name, created_at, archive_for)
  values (p_queue.queue_id, '(archive)', trunq.clock(), nullif(p_archive_for, '0')) on conflict do nothing;
  v_is_made := found;
  update trunq.taker t set
    archive_for = case when p_archive_for is null then t.archive_for else nullif(p_archive_for, '0') end,
    at_once = case when p_at_once or t.at_once is not null then coalesce(p_at_once, t.at_once) end
  where t.queue_id = p_queue.queue_id and t.name = '(archive)' and num_nonnulls(p_archive_for, p_at_once) > 0;
  if to_regclass(format('trunq_archive.%I', p_queue.name)) is null then
    execute format('create table trunq_archive.%I (like trunq_data._specimen_archive including all) partition by range (finished_at)', p_queue.name);
    execute format('comment on table trunq_archive.%I is %L', p_queue.name, obj_description('trunq_data._specimen_archive'::regclass, 'pg_class'));
  else
    perform trunq._complete_tables(p_queue);  -- one that a dropped queue left may be of a former version
  end if;
  if p_at_once is not null then
    perform trunq._define_at_once(p_queue);
  end if;
  if p_at_once then
    perform trunq._make_coming_months(p_queue.name);
  end if;
  return v_is_made;
end $$;
comment on function trunq._create_archive is
  'What create_archive does, under the lock of the queue: shared, or for itself where the way in which the archive is written changes.
Returns: true when the queue had none.';

create or replace function trunq.drop_archive(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_role text := trunq._become_owner();
begin
  perform trunq._audit('drop_archive', p_queue);
  if p_queue is null or to_regclass(format('trunq_archive.%I', p_queue)) is null then
    perform trunq._find_queue(p_queue);
    perform trunq._fail('TQ005', format('queue "%s" has no archive', p_queue),
      'select * from trunq.list_archives() shows those there are');
  end if;
  if exists (select from trunq.taker t join trunq.queue q on q.queue_id = t.queue_id where q.name = p_queue and t.name = '(archive)' and t.at_once) then
    perform trunq._try_for_locks(p_queue, 'select 0 from trunq._drop_archive(($1).name)');
  else
    perform trunq._drop_archive(p_queue);
  end if;
  perform set_config('role', v_role, true);
exception when lock_not_available then
  perform trunq._fail('TQ009', format('somebody reads or fills the archive of queue "%s"', p_queue),
    'end that transaction (pg_stat_activity shows it) and try again');
end $$;
comment on function trunq.drop_archive is
  'Drops the archive of a queue, with all its rows; also the one that a dropped queue left.
Raises: TQ001; TQ005 when the queue has none; TQ009 when somebody has read it for 5 seconds without an end, or, where answers write it, an open transaction has answered.
Locks: the archive, exclusively; where answers write it also them, waiting 200 ms at a time.';

create or replace function trunq._drop_archive(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
begin
  delete from trunq.taker t using trunq.queue q where q.queue_id = t.queue_id and q.name = p_queue and t.name = '(archive)';
  select q.* into v_queue from trunq.queue q where q.name = p_queue;
  if found then
    -- First, as an answer writes its receipt, then the archive.
    perform trunq._define_at_once(v_queue);
  end if;
  execute format('drop table trunq_archive.%I', p_queue);
end $$;
comment on function trunq._drop_archive is 'What drop_archive does.';

create or replace function trunq.list_archives()
returns table (queue text, archive_for interval, is_filled boolean, first_month date, last_month date, bytes bigint, at_once boolean)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.relname::text, t.archive_for, t.queue_id is not null, min(m.month), max(m.month), coalesce(sum(pg_total_relation_size(m.part)), 0)::bigint,
    coalesce(t.at_once, false)
  from pg_class c
  left join trunq.queue q on q.name = c.relname
  left join trunq.taker t on t.queue_id = q.queue_id and t.name = '(archive)'
  left join lateral trunq._archive_months(c.relname) m on true
  where c.relnamespace = 'trunq_archive'::regnamespace and c.relkind = 'p'
  group by c.relname, t.archive_for, t.queue_id, t.at_once order by c.relname
$$;
comment on function trunq.list_archives is
  'The archives there are. is_filled false: its queue is gone, and nothing is added or dropped any more; archive_for null: for ever; bytes: on disk, with indexes; at_once: answers write it themselves.';

create or replace function trunq.archive(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_taker trunq.taker;
  v_total integer;
begin
  perform trunq._require_read_committed('archive');
  if not exists (select from trunq.taker t where t.queue_id = v_queue.queue_id and t.name = '(archive)') then
    return 0;
  end if;
  -- By a statement of its own: the next ones see what the one who held it did.
  select t.* into v_taker from trunq.taker t where t.queue_id = v_queue.queue_id and t.name = '(archive)' for no key update skip locked;
  if not found then
    return null;
  end if;
  if v_taker.at_once then
    perform trunq._make_coming_months(v_queue.name);
  end if;
  v_total := trunq._archive(v_queue, false);
  if v_taker.archive_for is not null then
    perform trunq._drop_months(v_queue, trunq.clock() - v_taker.archive_for);
  end if;
  return v_total;
exception when lock_not_available then
  return null;  -- a subscription is about to end, or somebody makes an index
end $$;
comment on function trunq.archive is
  'Writes attempts that are over into the archive of the queue, if it has one, and drops the months that it keeps no longer. A leader does so every 30 seconds. It needs READ COMMITTED.
Returns: how many messages the leases had that it archived, some thousands at most; null when another is doing it.
Raises: TQ001, TQ007.
Locks: its row in trunq.taker; the archive, shared, and 50 ms exclusively where a month is dropped.';

create or replace function trunq._archive(p_queue trunq.queue, p_is_last boolean) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_most constant integer := trunq._limit('archived_messages');
  v_mark trunq.taker_mark;
  v_walk record;
  v_total integer := 0;
begin
  perform trunq._make_marks(p_queue);
  for v_mark in
    select m.* from trunq.taker_mark m where m.queue_id = p_queue.queue_id and m.taker = '(archive)' order by m.subscription_id
  loop
    exit when v_total >= c_most;
    v_walk := trunq._walk_leases(p_queue, v_mark, c_most - v_total,
      p_is_last or not exists (select from trunq.subscription s where s.subscription_id = v_mark.subscription_id));
    if v_walk.over <> '{}' then
      perform trunq._write_archive(p_queue, v_mark, v_walk.over);
    end if;
    update trunq.taker_mark m set lease_id = v_walk.up_to, open = v_walk.still_open
    where m.queue_id = p_queue.queue_id and m.taker = '(archive)' and m.subscription_id = v_mark.subscription_id
      and (m.lease_id, m.open) is distinct from (v_walk.up_to, v_walk.still_open);
    v_total := v_total + v_walk.size;
  end loop;
  perform trunq._forget_ended(p_queue, '(archive)');
  return v_total;
end $$;
comment on function trunq._archive is
  'Archives leases that are over, until they are some thousand messages; if p_is_last, what is answered of those that are not. The caller holds the row of the archive in trunq.taker.
Returns: how many messages these leases had.';

create or replace function trunq._write_archive(p_queue trunq.queue, p_mark trunq.taker_mark, p_leases bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
-- As trunq_queue.<queue>_give_back, for columns of the user and for the plan.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
set trunq.plan = hash as $$
declare
  v_extra text := case when trunq._is_wider(format('trunq_log.%I', p_queue.log_table)::regclass) then 'trunq._extra(to_jsonb(g))' else 'null::jsonb' end;
  -- What answers wrote themselves. Asked first: of these no message is read.
  v_missing text := case when exists (
      select from trunq.taker t where t.queue_id = p_queue.queue_id and t.name = '(archive)' and t.at_once is not null) then format($q$
    where not exists (
      select from trunq_archive.%I r where r.id = a.id and r.subscription = $3 and r.lease_id = a.lease_id and r.finished_at = a.finished_at offset 0)
  $q$, p_queue.name) end;
begin
  for v_try in 1..2 loop
    begin
      execute trunq._attempts(p_queue) || format($q$
        insert into trunq_archive.%1$I (id, subscription, attempt, outcome, error, result, worker, published_at, leased_at, finished_at, took,
          priority, kind, key, payload, body, headers, options, extra, subscription_id, lease_id)
        select a.id, $3, g.attempt, trunq._outcome(a.outcome), a.error, a.result, a.worker, g.created_at, a.leased_at, a.finished_at, a.took,
          g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.options, g.extra, $1, a.lease_id
        from (select a.* from attempt a %4$s offset 0) a
        left join lateral (
          select g.*, %3$s extra from trunq_log.%2$I g where trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, $1) limit 1) g on true
      $q$, p_queue.name, p_queue.log_table, v_extra, v_missing)
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

create or replace function trunq._make_months(p_queue trunq.queue, p_leases bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC' set trunq.plan = index as $$
begin
  execute format($q$
    select trunq._make_month($1, m.month) from (
      select distinct date_trunc('month', r.finished_at) as month from unnest($2) o(lease_id) join trunq_data.%I r on r.lease_id = o.lease_id order by 1) m
  $q$, p_queue.receipt_table) using p_queue.name, p_leases;
end $$;
comment on function trunq._make_months is 'Makes the partitions of an archive that the attempts of these leases need.';

create or replace function trunq._make_month(p_queue text, p_at timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  v_month constant timestamptz := date_trunc('month', p_at);
  v_part constant text := format('%s_archive_%s', p_queue, to_char(v_month, 'YYYYMM'));
  v_role text;
  v_is_there boolean := true;
begin
  if exists (select from trunq._archive_months(p_queue) m where m.month = v_month::date) then
    return true;
  elsif to_regclass(format('trunq_archive.%I', p_queue)) is null then
    return false;
  end if;
  v_role := trunq._become_owner();
  -- One at a time: it conflicts with itself, and hinders nobody who reads or writes rows.
  execute format('lock table only trunq_archive.%I in share update exclusive mode', p_queue);
  -- What Postgres knows now, whatever the snapshot.
  if to_regclass(format('trunq_data.%I', v_part)) is null then
    -- To attach it locks nobody out who reads; to make it as a partition would.
    execute format('create table trunq_data.%I (like trunq_archive.%I including all)', v_part, p_queue);
    execute format('alter table trunq_archive.%I attach partition trunq_data.%I for values from (%L) to (%L)',
      p_queue, v_part, v_month, v_month + interval '1 month');
  else
    v_is_there := exists (select from trunq._archive_months(p_queue) m where m.month = v_month::date);
  end if;
  perform trunq._restore_role(v_role);
  return v_is_there;
end $$;
comment on function trunq._make_month is
  'Makes the partition of an archive for the month of a time, in UTC.
Returns: whether it is there: not where somebody detached it and let it keep its name, or dropped the archive.';

create or replace function trunq._make_coming_months(p_queue text) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- To make a partition is nothing that answers should wait for.
  select trunq._make_month(p_queue, trunq.clock() + d) from unnest(array['0', '10 days']::interval[]) d
$$;
comment on function trunq._make_coming_months is 'Makes the partitions of an archive that answers write, before they need them.';

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
begin
  -- The duty may hold it and wait for the leases, which the caller has locked.
  perform from trunq.taker t where t.queue_id = p_queue.queue_id and t.name = '(archive)' for no key update nowait;
  if found then
    while trunq._archive(p_queue, true) > 0 loop
    end loop;
    if trunq._first_missing(p_queue, true) is not null then
      raise lock_not_available using message = 'an answer holds its lease, and waits for a table that is locked here';
    end if;
  end if;
end $$;
comment on function trunq._archive_rest is
  'Archives all attempts that are over, before all leases go. The caller has locked them, exclusively, and tries again when a lock is missing (trunq._try_for_locks).';
