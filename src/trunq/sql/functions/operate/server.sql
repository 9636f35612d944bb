-- What is wrong with the server beneath, as far as it hurts trunq: areas of trunq.diagnose (operate/diagnosis.sql). A healthy server with the
-- settings that Postgres comes with shows nothing.

create or replace function trunq._diagnose_transactions(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text,
    format('%s: until it ends, vacuum keeps all rows that were deleted since', h.who), trunq._way_to_end(h.pid), h.since
  from (
    select trunq._describe_session(a.pid) as who, a.pid, a.xact_start as since from pg_stat_activity a
    where a.xact_start < trunq.clock() - interval '5 minutes' and a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
      and (a.backend_xmin is not null or a.backend_xid is not null) and (a.datname = current_database() or a.datname is null)
    union all
    select format('the prepared transaction %L of role %s, since %s', p.gid, p.owner, date_trunc('second', p.prepared)), null, p.prepared
    from pg_prepared_xacts p where p.database = current_database() and p.prepared < trunq.clock() - interval '5 minutes') h
  order by h.since limit 20
$$;
comment on function trunq._diagnose_transactions is 'A transaction, or a prepared one, has been open for five minutes: vacuum keeps all that was deleted since. The oldest 20.';

create or replace function trunq._diagnose_slots(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when s.wal_status in ('unreserved', 'lost') then 'error' else 'warning' end, null::text, null::text,
    concat(format('replication slot "%s" is read by %s', s.slot_name, coalesce('process ' || s.active_pid, 'nobody')),
      case when s.wal_status = 'lost' then ' and has lost WAL: its reader has to begin anew' end,
      case when b.bytes > 0 then format(' and keeps %s of WAL', pg_size_pretty(b.bytes)) end,
      case when b.age > 0 then format('; vacuum keeps what was deleted within the last %s transactions', b.age) end),
    case when s.active then 'see what its reader waits for: select * from pg_stat_replication; where it is a standby, the oldest query there'
      else format('start its reader, or: select pg_drop_replication_slot(%L)', s.slot_name) end, null::timestamptz
  from pg_replication_slots s
  cross join lateral (
    select pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, s.restart_lsn)::bigint as bytes, greatest(age(s.xmin), age(s.catalog_xmin)) as age) b
  where not pg_is_in_recovery() and (b.age > 1000000 or not s.active and not s.temporary and (b.bytes > 1073741824 or s.wal_status in ('unreserved', 'lost')))
  union all
  select 'warning', null, null,
    format('standby "%s" has vacuum here keep what was deleted within the last %s transactions, for a query that runs there', r.application_name, age(r.backend_xmin)),
    format('end that query there; or there: alter system set hot_standby_feedback = off, then select pg_reload_conf(); here it is process %s', r.pid), null
  from pg_stat_replication r where age(r.backend_xmin) > 1000000
$$;
comment on function trunq._diagnose_slots is 'A replication slot keeps the rows of a million transactions, or nobody reads it and it keeps more than a gigabyte of WAL, or has lost its WAL; a standby keeps the rows of a million transactions for a query there.';

create or replace function trunq._diagnose_freeze(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with aged as (
    select c.oid, a.age, current_setting(a.setting)::bigint as due, a.what from pg_class c
    cross join lateral (values
      (age(c.relfrozenxid)::bigint, 'autovacuum_freeze_max_age', 'transactions'),
      (mxid_age(c.relminmxid)::bigint, 'autovacuum_multixact_freeze_max_age', 'multixacts')) a(age, setting, what)
    where c.relnamespace::regnamespace::text in ('trunq', 'trunq_data', 'trunq_log', 'trunq_archive') and c.relkind in ('r', 'm') and c.relfrozenxid <> '0')
  (select case when max(o.age) > 1600000000 then 'error' else 'warning' end, null::text, null::text,
     format('%s of trunq''s tables are overdue for freezing, the oldest, %s, by %s %s: at two billion Postgres refuses every write', count(*),
       (array_agg(o.oid::regclass order by o.age desc))[1], max(o.age - o.due), o.what),
     format('vacuum (freeze) %s, and so on by: select oid::regclass, age(relfrozenxid) from pg_class order by 2 desc; area transactions or slots may say what holds it back',
       (array_agg(o.oid::regclass order by o.age desc))[1]), null::timestamptz
   from aged o where o.age > 1.2 * o.due or o.age > 1600000000 group by o.what order by o.what)
  union all
  select 'error', null, null, format('database "%s" has used %s of two billion transactions since it was frozen; then Postgres refuses every write', d.datname, age(d.datfrozenxid)),
    'vacuum (freeze) those tables: select oid::regclass, age(relfrozenxid) from pg_class where relfrozenxid <> ''0'' order by 2 desc limit 20', null
  from pg_database d where d.datname = current_database() and age(d.datfrozenxid) > 1600000000
$$;
comment on function trunq._diagnose_freeze is 'Tables that the forced autovacuum should have frozen are not; the database is near to the end of its transaction ids.';

create or replace function trunq._diagnose_vacuum(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text, format('%s is off: nobody vacuums, and tables grow', n.name),
    format('alter system set %s = on, then select pg_reload_conf()', n.name), null::timestamptz
  from unnest('{autovacuum,track_counts}'::text[]) n(name) where current_setting(n.name) = 'off'
  union all
  select 'warning', null, null, format('%s has %s dead rows beside %s live ones', t.oid::regclass, pg_stat_get_dead_tuples(t.oid), pg_stat_get_live_tuples(t.oid)),
    format('vacuum %s; where that frees nothing, area transactions or slots says who keeps them', t.oid::regclass),
    coalesce(pg_stat_get_last_autovacuum_time(t.oid), pg_stat_get_last_vacuum_time(t.oid))
  from pg_class t
  where t.relnamespace in ('trunq'::regnamespace, 'trunq_archive'::regnamespace) and t.relkind in ('r', 'm')
    and pg_stat_get_dead_tuples(t.oid) > greatest(50000, 5 * pg_stat_get_live_tuples(t.oid))
  order by 4
$$;
comment on function trunq._diagnose_vacuum is 'Autovacuum is off; most rows of a table are dead.';

create or replace function trunq._diagnose_notifications(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when u.usage > 0.5 then 'error' else 'warning' end, null::text, null::text,
    format('the queue of NOTIFY is %s %% full: at 100 %% every publish to a queue whose workers sleep fails', round(100 * u.usage)),
    'end the session that LISTENs in a transaction that stays open; the server log names it, and so does: select pid, query, xact_start from pg_stat_activity order by xact_start',
    null::timestamptz
  from (select pg_notification_queue_usage()::numeric as usage) u where u.usage > 0.1
$$;
comment on function trunq._diagnose_notifications is 'Sessions that LISTEN and do not read fill the queue of NOTIFY.';

create or replace function trunq._diagnose_locks(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text,
    format('this database has %s tables, and the server room for %s locks: pg_dump locks each table, and may fail with "out of shared memory"', t.number, l.number),
    format('alter system set max_locks_per_transaction = %s, then restart the server',
      ceil(1.5 * t.number / (current_setting('max_connections')::integer + current_setting('max_prepared_transactions')::integer))), null::timestamptz
  from (select count(*) as number from pg_class c where c.relkind in ('r', 'p', 'S') and c.relnamespace >= 16384) t,
    (select current_setting('max_locks_per_transaction')::bigint
      * (current_setting('max_connections')::integer + current_setting('max_prepared_transactions')::integer) as number) l
  where t.number > l.number
  union all
  -- Before Postgres 18, sixteen locks of a session take no room of what all share; then as many as it may have on average.
  select 'warning', q.name, null,
    format('a transaction that works on queue "%s" takes up to %s locks, and half of the %s connections at a time more than the %s for which the server has room: publishers and workers fail with "out of shared memory"',
      q.name, q.number, s.sessions, s.room),
    format('alter system set max_locks_per_transaction = %s, then restart the server', ceil(1.2 * q.number)), null
  from trunq._widest_queue() q, (
    select n.sessions, n.most * (n.sessions + current_setting('max_prepared_transactions')::integer) as room,
      case when current_setting('server_version_num')::integer >= 180000 then n.most else 16 end as beside
    from (select current_setting('max_connections')::integer as sessions, current_setting('max_locks_per_transaction')::integer as most) n) s
  where s.sessions / 2 * (q.number - s.beside) > s.room
$$;
comment on function trunq._diagnose_locks is 'A dump cannot lock all tables; or transactions that work on one queue in half of the connections take more locks than the server has room for (max_locks_per_transaction).';

create or replace function trunq._widest_queue(out name text, out number bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
declare
  v_queue trunq.queue;
begin
  select q.* into v_queue from trunq.queue q order by q.segments * case when q.lanes is null then 3 else 5 end desc, q.name limit 1;
  if found then
    name := v_queue.name;
    -- Each table and each of its indexes, of the whole and of each segment.
    number := (select sum((1 + v_queue.segments) * (1 + i.number)) from trunq._tables_like(v_queue) t
      cross join lateral (select count(*) as number from pg_index i where i.indrelid = t.name) i where t.place <= 5);
  end if;
end $$;
comment on function trunq._widest_queue is 'The queue with the most partitions, and how many locks one transaction on it may take.';

create or replace function trunq._diagnose_disk(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_disk constant bigint := pg_size_bytes(nullif(current_setting('trunq.disk_size', true), ''));
  v_now constant timestamptz := trunq.clock();
  v_used bigint;
  v_left bigint;
  v record;
  v_queue record;
begin
  if v_disk is null then
    return;  -- Postgres does not know
  end if;
  v_used := pg_database_size(current_database());
  v_left := v_disk - v_used;
  select greatest(regr_slope(s.bytes, extract(epoch from s.at)::double precision) * 86400, 0) as a_day, min(s.at) as since into v
  from trunq.sample s where s.queue_id = 0 and s.subscription = '' and s.at > v_now - interval '1 day' and s.at <= v_now and s.bytes is not null
  -- Of less than an hour, it says nothing of a day.
  having max(s.at) - min(s.at) > interval '1 hour';
  severity := case when v_left < least(0.02 * v_disk, 1e10) or v_left < coalesce(v.a_day, 0) then 'error'
    when v_left < least(0.1 * v_disk, 1e11) or v_left < 7 * coalesce(v.a_day, 0) then 'warning' end;
  if severity is null then
    return;
  end if;
  select q.name, sum(pg_total_relation_size(s.name)) as bytes into v_queue
  from trunq.queue q cross join generate_series(0, q.segments - 1) n cross join unnest('{log,lease,receipt}'::text[]) k
  cross join lateral (select to_regclass(format('trunq_data.%I', trunq._segment_name(q, k, n))) as name) s
  group by q.name order by 2 desc nulls last limit 1;
  finding := concat(format('of a disk of %s this database has %s', pg_size_pretty(v_disk), pg_size_pretty(v_used)),
    case when v.a_day >= 1 then format(' and has grown by %s a day since %s: it is full in %s days', pg_size_pretty(v.a_day::bigint), date_trunc('second', v.since),
      round((greatest(v_left, 0) / v.a_day)::numeric, 1)) end,
    case when v_queue.name is not null then format('; the largest queue, "%s", has %s', v_queue.name, pg_size_pretty(v_queue.bytes)) end);
  hint := case when v_queue.name is null then 'give the disk more room' else format(
    'keep less of what everybody has read: select trunq.set_queue(%L, p_retain_size => %s); or give the disk more room', v_queue.name,
    greatest(v_queue.bytes::bigint / 2, 1048576)) end;
  since := v.since;
  return next;
end $$;
comment on function trunq._diagnose_disk is 'The disk is nearly full, or, as the database has grown within a day, will be within a week. How large it is, Postgres does not know: `trunq doctor --disk 200GB`, or `alter database shop set trunq.disk_size = ''200GB''`.';

create or replace function trunq._diagnose_connections(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text, format('%s of %s connections are taken', c.number, m.number),
    'end those that nobody needs, put a pooler in front, or raise max_connections', null::timestamptz
  from (select count(*) as number from pg_stat_activity a where a.backend_type = 'client backend') c,
    (select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer as number) m
  where c.number >= 0.9 * m.number
$$;
comment on function trunq._diagnose_connections is 'Nine connections of ten are taken.';

create or replace function trunq._diagnose_settings(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', null::text, null::text, 'fsync is off: a crash of the machine may lose or damage everything in this server',
    'alter system set fsync = on, then select pg_reload_conf()', null::timestamptz
  where current_setting('fsync') = 'off'
  union all
  select 'warning', null, null, format('%s has synchronous_commit off: what it publishes or answers may be lost when the server crashes, though it was told that it is done', s.who), s.hint, null
  from trunq._settings_of('synchronous_commit') s where s.value = 'off'
  union all
  select 'warning', null, null, format('%s has default_transaction_isolation %L: trunq refuses what needs READ COMMITTED there, and publishers fail where they meet', s.who, s.value), s.hint, null
  from trunq._settings_of('default_transaction_isolation') s where s.value not in ('read committed', 'read uncommitted')
  union all
  select 'error', null, null, format('%s has session_replication_role %L: no trigger fires there, so what it publishes wakes nobody and is checked by nothing', s.who, s.value), s.hint, null
  from trunq._settings_of('session_replication_role') s where s.value = 'replica'
  union all
  select 'error', null, null, format('%s has standard_conforming_strings off: functions of trunq take the backslashes in their own texts for something else, so that lists are wrong', s.who), s.hint, null
  from trunq._settings_of('standard_conforming_strings') s where not s.value::boolean
  union all
  -- A role that only looks may well be read-only.
  select 'error', null, null, format('%s has default_transaction_read_only on: nobody publishes or works there, and workers take it for a database that is away', s.who),
    'set default_transaction_read_only = off, then ' || s.hint, null
  from trunq._settings_of('default_transaction_read_only') s where s.value::boolean and s.who !~ '^role ' and not pg_is_in_recovery()
  union all
  select 'warning', null, null, format('%s has %s %s: %s', s.who, n.name, s.value, n.harm), s.hint, null
  from (values
    ('statement_timeout', 5000, 'a lease of many messages or a requeue fails where it takes longer'),
    ('transaction_timeout', 60000, 'a handler that works in the transaction of its answer is cut off, and its message tried again'),
    ('idle_in_transaction_session_timeout', 60000, 'a handler that computes in the transaction of its answer is cut off, and its message tried again'),
    ('idle_session_timeout', 60000, 'workers that sleep lose their connections, and their bells with them')) n(name, least, harm)
  cross join lateral trunq._settings_of(n.name) s where trunq._milliseconds(s.value) between 1 and n.least - 1
  union all
  select 'warning', null, null, format('%s has jit_above_cost %s: Postgres compiles statements of pages and lists, which takes longer than they do', s.who, s.value), s.hint, null
  from trunq._settings_of('jit_above_cost') s where s.value::double precision between 0 and 9999 and current_setting('jit') = 'on'
$$;
comment on function trunq._diagnose_settings is 'Settings of the server, the database or a role that cost promises, or hurt: fsync or synchronous_commit off, another isolation level, triggers switched off, transactions that only read, backslashes that are escapes; time-outs of less than a minute for sessions and transactions, or of less than five seconds for statements; jit at a low cost.';

create or replace function trunq._milliseconds(p_value text) returns numeric
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_value ~ '^\s*-?[\d.]+\s*$' then p_value::numeric else extract(epoch from p_value::interval) * 1000 end
$$;
comment on function trunq._milliseconds is 'A length of time as settings have it.';

create or replace function trunq._settings_of(p_name text) returns table (who text, value text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'the server', s.setting, format('alter system reset %I, then select pg_reload_conf()', p_name) from pg_settings s
  where s.name = p_name and s.source in ('configuration file', 'command line', 'environment variable')
  union all
  select concat_ws(' in ', 'role ' || r.rolname, 'database ' || d.datname), split_part(c.setting, '=', 2),
    case when r.rolname is null then format('alter database %I reset %I', d.datname, p_name)
      else format('alter role %I %sreset %I', r.rolname, 'in database ' || quote_ident(d.datname) || ' ', p_name) end
  from pg_db_role_setting s cross join lateral unnest(s.setconfig) c(setting)
  left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase
  where split_part(c.setting, '=', 1) = p_name and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  order by 1
$$;
comment on function trunq._settings_of is 'What the server, the database and roles in it set, and how that is taken back.';

create or replace function trunq._diagnose_statistics(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz, missing_grant text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'unseen', null::text, null::text,
    format('role %I does not see since when others'' transactions are open, nor what they do', current_user),
    g.missing || ' shows it', null::timestamptz, g.missing
  from (select format('grant pg_read_all_stats to %I', current_user) as missing) g
  where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
  union all
  select 'warning', null, null, 'track_activities is off: Postgres does not say what sessions do, and nobody can be named who holds something',
    'alter system set track_activities = on, then select pg_reload_conf()', null, null
  where current_setting('track_activities') = 'off'
$$;
comment on function trunq._diagnose_statistics is 'Postgres does not say what other sessions do.';
