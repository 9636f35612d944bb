-- What is wrong with this database, area by area, for `trunq doctor`. Each area is a function of its own with the columns of diagnose but the first;
-- trunq._areas says which there are. An area that fails leaves the others their turn: what the caller may not see is named, with the grant that shows it.
--
-- Limits are those at which somebody should act, far from what a healthy server shows: five minutes for a transaction, a gigabyte of WAL for a
-- slot, 1.6 billion transactions (of 2.1) before Postgres refuses to write.

create or replace function trunq._areas() returns table (area text, place bigint)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select * from unnest('{cluster,leader,workers,failures,structure,warnings,pauses,transactions,slots,freeze,vacuum,notifications,locks,connections,settings,rights,statistics}'::text[])
    with ordinality
$$;
comment on function trunq._areas is 'What trunq.diagnose looks at, in its order: trunq._diagnose_AREA is the function of each.';

create or replace function trunq.diagnose()
returns table (area text, severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_area text;
begin
  for v_area in select a.area from trunq._areas() a order by a.place loop
    begin
      return query execute format('select %L, d.* from trunq.%I() d', v_area, '_diagnose_' || v_area);
    exception
      when insufficient_privilege then
        area := v_area; severity := 'unseen'; queue := null; subscription := null; since := null;
        finding := format('role %s may not look at %s: %s', quote_ident(current_user), v_area, sqlerrm);
        hint := (select format('grant %I to %s shows it', r.rolname, quote_ident(current_user))
          from pg_namespace n join pg_roles r on r.oid = n.nspowner where n.nspname = 'trunq');
        return next;
      when others then
        area := v_area; severity := 'error'; queue := null; subscription := null; since := null;
        finding := format('the look at %s failed: %s', v_area, sqlerrm);
        hint := 'the log of the server has more';
        return next;
    end;
  end loop;
end $$;
comment on function trunq.diagnose is
  'What is wrong with this database and what helps, area by area: another cluster''s positions, nobody who performs the duties, workers that say nothing and hold messages, handlers that fail, tables that lack an index or a trigger, all that list_warnings says, pauses without an end while messages wait, transactions and replication slots that hold back vacuum or WAL, freezing that does not keep up, tables that vacuum leaves, a full queue of notifications, too few locks or connections, settings that cost promises, and rights.
Returns: one row a finding; severity is error (messages are late, lost or at risk until somebody acts), warning, or unseen (this role may not look; the hint names the grant). queue null: of the database. since null: Postgres does not say.';

create or replace function trunq._diagnose_cluster()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform set_config('trunq.cluster_checked', 'no', false);
  perform trunq._check_cluster();
exception when others then
  if sqlstate <> 'TQ010' then
    raise;
  end if;
  get stacked diagnostics finding = message_text, hint = pg_exception_hint;
  severity := 'error';
  return next;
end $$;
comment on function trunq._diagnose_cluster is 'Whether positions are those of another Postgres cluster.';

create or replace function trunq._diagnose_leader()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', null::text, null::text,
    concat('nobody performs the duties', ' since ' || date_trunc('second', l.last), ': nothing delayed or retried runs, nothing that a dead worker held comes back, and no space is freed'),
    'start a worker, or: trunq leader', l.last
  from (select greatest((select l.expires_at from trunq.leader l), (select max(d.done_at) from trunq.duty_done d)) as last) l
  where not trunq._is_led() and exists (select from trunq.queue)
$$;
comment on function trunq._diagnose_leader is 'That there are queues, and neither a leader nor pg_cron.';

create or replace function trunq._diagnose_workers()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v record;
begin
  severity := 'error';
  -- A worker speaks every ten seconds, so one that is stopped or cut off is seen before its lease ends.
  for v in
    select q.name, n.* from (
      select distinct on (r.queue_id, r.subscription, r.worker) r.* from trunq.worker_report r
      where r.at > v_now - interval '10 minutes' and r.at <= v_now
        and r.segment = any (array[trunq._report_segment(v_now - interval '10 minutes'), trunq._report_segment(v_now)])
      order by r.queue_id, r.subscription, r.worker, r.at desc) n
    join trunq.queue q on q.queue_id = n.queue_id
    where n.last_word is null and n.at < v_now - interval '12 seconds' order by q.name, n.subscription, n.worker limit 20
  loop
    queue := v.name; subscription := v.subscription; since := v.at;
    select format('worker "%s" has said nothing for %s, and holds %s: process %s on %s is stopped, hangs or is gone, and nobody else gets them before %s', v.worker,
        date_trunc('second', v_now - v.at), case when w.held = 1 then '1 message' else w.held || ' messages' end, v.pid, v.host, date_trunc('second', w.until)),
      format('select trunq.free_worker(%L) hands them to others at once; then see to the process', v.worker)
    into finding, hint
    from trunq.list_workers(v.name) w where w.worker = v.worker and w.subscription = v.subscription and w.held > 0;
    if found then
      return next;
    end if;
  end loop;
end $$;
comment on function trunq._diagnose_workers is 'Workers that have said nothing for twelve seconds, without a last word, and hold messages: the first 20.';

create or replace function trunq._diagnose_failures()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_least constant integer := 10;
  c_share constant double precision := 0.1;
  v_last timestamptz := trunq._last_sampled(trunq.clock());
  v record;
begin
  for v in
    select q.queue_id, q.name, n.subscription as reader, n.failed, n.answered, n.first_at from (
      select s.queue_id, s.subscription, min(s.at) as first_at, max(s.answered) - min(s.answered) as answered, max(f.number) - min(f.number) as failed
      from trunq.sample s cross join lateral (select trunq._failed(s.answers) as number) f
      -- When nobody samples, what was a minute ago is no news.
      where v_last > trunq.clock() - interval '1 minute' and s.at > v_last - interval '35 seconds' and s.at <= v_last and s.queue_id > 0 and s.subscription <> ''
        and s.segment = any (array[trunq._sample_segment(v_last - interval '35 seconds'), trunq._sample_segment(v_last)])
      group by s.queue_id, s.subscription) n
    join trunq.queue q on q.queue_id = n.queue_id
    where n.failed >= c_least and n.failed >= c_share * n.answered order by n.failed desc, q.name limit 20
  loop
    severity := case when 2 * v.failed >= v.answered then 'error' else 'warning' end;
    queue := v.name; subscription := v.reader; since := v.first_at;
    finding := format('%s of the last %s answers in subscription "%s" of queue "%s" are failures%s', v.failed, v.answered, v.reader, v.name,
      trunq._tell_failures(v.queue_id, v.reader, v.first_at));
    hint := format('see what failed: trunq dead list %s, or trunq message list %s --state retrying; once that is mended, what died is requeued with trunq dead requeue %s',
      v.name, v.name, v.name);
    return next;
  end loop;
end $$;
comment on function trunq._diagnose_failures is 'Subscriptions of whose answers within half a minute a tenth are failures, ten at least, as samples tell: the first 20, with the kinds and the last error.';

create or replace function trunq._failed(p_answers jsonb) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(sum((p_answers->>trunq._outcome(o))::bigint), 0) from unnest('{r,t,j,x}'::"char"[]) o
$$;
comment on function trunq._failed is 'How many of the answers are failures: of a handler, or of a worker that died.';

create or replace function trunq._tell_failures(p_queue_id integer, p_subscription text, p_since timestamptz) returns text
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- The newest hundred that died or wait for another try, of each slot of a group.
  with failed as (
    select f.kind, f.errors -> -1 as error from trunq.subscription s cross join lateral (
      (select d.kind, d.errors, d.died_at as at from trunq.dead d
       where d.queue_id = p_queue_id and d.subscription_id = s.subscription_id order by d.dead_id desc limit 100)
      union all
      (select d.kind, d.errors, (d.errors #>> '{-1,at}')::timestamptz from trunq.delayed d
       where d.queue_id = p_queue_id and d.subscription_id = s.subscription_id order by d.id desc limit 100)) f
    where s.queue_id = p_queue_id and split_part(s.name, '#', 1) = p_subscription and f.at >= p_since and f.errors is not null),
  kind as (
    select f.kind, count(*) as number, (array_agg(f.error->>'error' order by f.error->>'at' desc) filter (where f.error->>'error' is not null))[1] as error
    from failed f group by f.kind order by count(*) desc, f.kind limit 3)
  select concat(': ' || string_agg(coalesce('kind ' || left(k.kind, 100), 'without a kind'), ', ' order by k.number desc, k.kind),
    '; the last error: ' || left(split_part((array_agg(k.error order by k.number desc))[1], E'\n', 1), 200))
  from kind k
$$;
comment on function trunq._tell_failures is 'Of which kinds the newest failures are, the most frequent three, and what the last error of the first says.';

create or replace function trunq._diagnose_structure()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', d.queue, null::text, d.defect, 'trunq db upgrade --repair puts it back, or: ' || d.repair, null::timestamptz
  from trunq.list_defects() d order by d.queue, d.object, d.kind limit 100
$$;
comment on function trunq._diagnose_structure is 'What tables of queues lack: the first 100.';

create or replace function trunq._diagnose_warnings()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', nullif(w.queue, ''), w.subscription, w.warning, w.hint, null::timestamptz from trunq.list_warnings() w
$$;
comment on function trunq._diagnose_warnings is 'All that trunq.list_warnings says.';

create or replace function trunq._diagnose_pauses()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  severity := 'warning';
  for v in
    select q as row, q.name, q.paused_until, s.name as reader, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where trunq._paused_until(s) = 'infinity' and s.slot is null order by q.name, s.name
  loop
    queue := v.name; subscription := v.reader;
    since := (select u.created_at from trunq._unread(v.row, v.subscription_id, 1) u);
    continue when since is null;
    finding := format('subscription "%s" of queue "%s" is paused without an end, and messages have waited since %s', v.reader, v.name, date_trunc('second', since));
    hint := case when v.paused_until = 'infinity' then format('select trunq.resume_queue(%L)', v.name)
      else format('select trunq.resume_subscription(%L, %L)', v.name, v.reader) end;
    return next;
  end loop;
end $$;
comment on function trunq._diagnose_pauses is 'Subscriptions that are paused until somebody resumes them, while messages wait.';

create or replace function trunq._diagnose_transactions()
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
comment on function trunq._diagnose_transactions is 'Transactions of this database, prepared ones too, that have been open for five minutes: the oldest 20.';

create or replace function trunq._diagnose_slots()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when s.wal_status in ('unreserved', 'lost') then 'error' else 'warning' end, null::text, null::text,
    concat(format('replication slot "%s" is read by nobody', s.slot_name),
      case when s.wal_status = 'lost' then ' and has lost WAL: its reader has to begin anew' end,
      case when b.bytes > 0 then format(' and keeps %s of WAL', pg_size_pretty(b.bytes)) end,
      case when b.age > 0 then format('; vacuum keeps what was deleted within the last %s transactions', b.age) end),
    format('start its reader, or: select pg_drop_replication_slot(%L)', s.slot_name), null::timestamptz
  from pg_replication_slots s
  cross join lateral (
    select pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint as bytes, greatest(age(s.xmin), age(s.catalog_xmin)) as age) b
  where not pg_is_in_recovery() and not s.active and not s.temporary
    and (b.bytes > 1073741824 or b.age > 1000000 or s.wal_status in ('unreserved', 'lost'))
  order by b.bytes desc nulls last
$$;
comment on function trunq._diagnose_slots is 'Replication slots that nobody reads, and that keep more than a gigabyte of WAL or the rows of a million transactions.';

create or replace function trunq._diagnose_freeze()
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
comment on function trunq._diagnose_freeze is 'Tables of trunq that the forced autovacuum should have frozen and has not, and a database that comes near to the end of its transaction ids.';

create or replace function trunq._diagnose_vacuum()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text, format('%s is off: nobody vacuums, and tables grow', n.name),
    format('alter system set %s = on, then select pg_reload_conf()', n.name), null::timestamptz
  from unnest('{autovacuum,track_counts}'::text[]) n(name) where current_setting(n.name) = 'off'
  union all
  select 'warning', null, null, format('%s.%I has %s dead rows beside %s live ones', t.schemaname, t.relname, t.n_dead_tup, t.n_live_tup),
    format('vacuum %I.%I; where that frees nothing, area transactions or slots says who keeps them', t.schemaname, t.relname), coalesce(t.last_autovacuum, t.last_vacuum)
  from pg_stat_all_tables t
  where t.schemaname in ('trunq', 'trunq_archive') and t.n_dead_tup > 50000 and t.n_dead_tup > 5 * t.n_live_tup
  order by 4
$$;
comment on function trunq._diagnose_vacuum is 'That autovacuum is off, and tables most of whose rows are dead.';

create or replace function trunq._diagnose_notifications()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when u.usage > 0.5 then 'error' else 'warning' end, null::text, null::text,
    format('the queue of NOTIFY is %s %% full: at 100 %% every publish to a queue whose workers sleep fails', round(100 * u.usage)),
    'end the session that LISTENs in a transaction that stays open; the server log names it, and so does: select pid, query, xact_start from pg_stat_activity order by xact_start',
    null::timestamptz
  from (select pg_notification_queue_usage()::numeric as usage) u where u.usage > 0.1
$$;
comment on function trunq._diagnose_notifications is 'That sessions which LISTEN do not read what they are told.';

create or replace function trunq._diagnose_locks()
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
$$;
comment on function trunq._diagnose_locks is 'That a dump cannot lock all tables.';

create or replace function trunq._diagnose_connections()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', null::text, null::text, format('%s of %s connections are taken', c.number, m.number),
    'end those that nobody needs, put a pooler in front, or raise max_connections', null::timestamptz
  from (select count(*) as number from pg_stat_activity a where a.backend_type = 'client backend') c,
    (select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer as number) m
  where c.number >= 0.9 * m.number
$$;
comment on function trunq._diagnose_connections is 'That nine connections of ten are taken.';

create or replace function trunq._diagnose_settings()
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
$$;
comment on function trunq._diagnose_settings is 'Settings of the server, the database and its roles that cost promises of trunq.';

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

create or replace function trunq._diagnose_rights()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
  select 'error', null::text, null::text, format('everybody may make objects in schema %I, and so change what trunq''s functions do', n.nspname),
    format('revoke create on schema %I from public', n.nspname), null::timestamptz
  from pg_namespace n where n.nspname in ('trunq', 'trunq_data', 'trunq_log', 'trunq_queue', 'trunq_archive')
    and exists (select from aclexplode(n.nspacl) a where a.grantee = 0 and a.privilege_type = 'CREATE')
  union all
  select 'error', null, null, format('function %s runs with its owner''s rights and no search_path of its own', p.oid::regprocedure),
    'trunq db upgrade makes the functions of trunq again', null
  from pg_proc p where p.pronamespace::regnamespace::text in ('trunq', 'trunq_queue') and p.prosecdef
    and not exists (select from unnest(p.proconfig) c(setting) where c.setting like 'search_path=%')
$$;
comment on function trunq._diagnose_rights is 'Rights with which others could change what trunq does.';

create or replace function trunq._diagnose_statistics()
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'unseen', null::text, null::text,
    format('role %I does not see since when others'' transactions are open, nor what they do', current_user), format('grant pg_read_all_stats to %I', current_user), null::timestamptz
  where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
  union all
  select 'warning', null, null, 'track_activities is off: Postgres does not say what sessions do, and nobody can be named who holds something',
    'alter system set track_activities = on, then select pg_reload_conf()', null
  where current_setting('track_activities') = 'off'
$$;
comment on function trunq._diagnose_statistics is 'What Postgres does not tell the caller of other sessions.';
