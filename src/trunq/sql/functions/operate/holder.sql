-- Who stands in the way: sessions that hold what trunq waits for, and sessions that hold messages and do nothing. pg_locks and pg_stat_activity tell.
-- Each is read once for all queues, and only the first of them where nothing is wrong.
--
-- Everybody sees the process, role and application of a session. What it does, and since when, Postgres tells to members of its role and of
-- pg_read_all_stats alone. Whose state is hidden is named only where rotation was refused.
--
-- Whoever is named can be ended (end_session), and nobody else: the statement that a finding says is what is asked for again before it is done.

create or replace function trunq._describe_session(p_pid integer) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when p_pid is null then 'a prepared transaction, see pg_prepared_xacts' else coalesce((
    select concat('process ', p_pid, ' of ', coalesce('role ' || a.usename, a.backend_type), format(', application "%s"', nullif(a.application_name, '')),
      case when a.state like 'idle in transaction%' then ', idle' end, ', in a transaction since ' || date_trunc('second', a.xact_start))
    from pg_stat_activity a where a.pid = p_pid), 'process ' || p_pid) end
$$;
comment on function trunq._describe_session is 'A session as a warning or an error names it: process, role, application and since when, as far as the caller may see; null: a prepared transaction.';

create or replace function trunq._way_to_end(p_pid integer) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when p_pid is null then 'commit prepared or rollback prepared ends it, with the gid in pg_prepared_xacts'
    else trunq._call_to_end(p_pid) || ' ends it' end
$$;
comment on function trunq._way_to_end is 'How a session, or a prepared transaction, is ended.';

create or replace function trunq._call_to_end(p_pid integer) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce((
    -- Read back in any session, whatever its DateStyle: trunq._named_sessions, pages, the shell.
    select format('select trunq.end_session(%s, %L)', p_pid, to_char(a.backend_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00')
    from pg_stat_activity a where a.pid = p_pid and a.backend_start is not null and trunq._owns()), format('select pg_terminate_backend(%s)', p_pid))
$$;
comment on function trunq._call_to_end is
  'The statement that ends a session; that of Postgres, where the caller does not own trunq or may not see when the session began.';

create or replace function trunq.end_session(p_pid integer, p_began_at timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_finding text;
  v_has_ended boolean;
begin
  if not trunq._owns() then
    perform trunq._fail('42501', 'permission denied: only the owner of trunq ends sessions',
      'select nspowner::regrole from pg_namespace where nspname = ''trunq'' says which role that is');
  end if;
  -- A statement before may have looked: whoever has the process id now may be another.
  perform pg_stat_clear_snapshot();
  v_finding := (select n.finding from trunq._named_sessions() n where n.pid = p_pid and n.began_at = p_began_at and n.pid <> pg_backend_pid() limit 1);
  if v_finding is null then
    perform trunq._fail('TQ005',
      format('process %s, whose session began at %s, is in nobody''s way', coalesce(p_pid::text, '(null)'), coalesce(p_began_at::text, '(null)')),
      case when pg_has_role(current_user, 'pg_read_all_stats', 'usage') then 'select finding, hint from trunq.diagnose() names those that are'
        else format('grant pg_read_all_stats to %s, and trunq.diagnose() names those that are', quote_ident(current_user)) end);
  end if;
  perform trunq._audit('end_session', null, jsonb_build_object('pid', p_pid, 'began_at', p_began_at, 'finding', v_finding));
  begin
    v_has_ended := pg_terminate_backend(p_pid, 1000);
  exception when insufficient_privilege then
    perform trunq._fail('42501', format('role %s may not end process %s: %s', quote_ident(current_user), p_pid, sqlerrm),
      case when (select r.rolsuper from pg_stat_activity a join pg_roles r on r.oid = a.usesysid where a.pid = p_pid)
        then 'it is a session of a superuser, which superusers alone end' else format('grant pg_signal_backend to %s', quote_ident(current_user)) end);
  end;
  -- A caller that rolls back takes its row of the audit back, and the session is gone all the same.
  raise log 'trunq: % has ended process %: %', (select a.who from trunq._actor() a), p_pid, v_finding;
  return v_has_ended;
end $$;
comment on function trunq.end_session is
  'Ends a session that stands in the way, as a finding of trunq.diagnose names it: its transaction is rolled back and its locks go; a worker or a pool connects anew. p_began_at: when the session began (backend_start in pg_stat_activity), so that nobody else is ended who has got its process id since. Only one that stands in the way at this moment: a transaction that keeps vacuum or rotation waiting, holds the lock of a queue or of a subscription, or has published and does nothing; a worker that holds a bell and is silent. For the owner of trunq, who needs pg_read_all_stats to see it and pg_signal_backend to end it; a session of a superuser only a superuser ends. Nothing takes it back, a rollback neither.
Returns: false when it was told to end, and had not within a second.
Raises: TQ005 for one that is in nobody''s way, or has ended.';

create or replace function trunq._named_sessions() returns table (pid integer, began_at timestamptz, finding text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- By what findings themselves say: nobody is ended whom no diagnosis names.
  select m.found[1]::integer, m.found[2]::timestamptz, f.finding
  from (
    select d.finding, d.hint from trunq._diagnose_transactions(null) d
    union all
    select d.finding, d.hint from trunq._diagnose_bells(null) d
    union all
    select w.warning, w.hint from trunq._warn_sessions(null) w) f
  cross join lateral (select regexp_match(f.hint, 'select trunq\.end_session\((\d+), ''([^'']+)''\)') as found) m
  where m.found is not null
$$;
comment on function trunq._named_sessions is 'Sessions that findings of trunq.diagnose name as in the way, and when each began.';

create or replace function trunq._warn_refused(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v record;
  v_pids integer[];
begin
  for v in
    select q.name, q.queue_id, r.name as lock, r.since from trunq.refusal r join trunq.queue q on q.queue_id = r.queue_id
    where (p_queue is null or q.name = p_queue) and r.refused >= 3 and r.since <= v_now - interval '10 seconds'
      and r.refused_at >= v_now - greatest(interval '1 minute', q.span)
    order by q.name, r.name
  loop
    -- The oldest transaction first.
    v_pids := array(
      select h.pid from (
        select distinct l.pid from pg_locks l
        where l.granted and l.pid is distinct from pg_backend_pid() and l.database = (select d.oid from pg_database d where d.datname = current_database())
          and case when v.lock = 'queue'
            then l.locktype = 'advisory' and l.classid = trunq._lock_class('queue') and l.objid = v.queue_id and l.objsubid = 2
            else l.locktype = 'relation' and l.relation = to_regclass(format('trunq_data.%I', v.lock)) end) h
      left join pg_stat_activity a on a.pid = h.pid order by a.xact_start, h.pid limit 5);
    queue := v.name;
    warning := format('rotation of queue "%s" has not got the lock of %s since %s: %s', v.name,
      case when v.lock = 'queue' then 'the queue' else 'trunq_data.' || v.lock end, date_trunc('second', v.since),
      coalesce((select string_agg(trunq._describe_session(p.pid), '; ' order by p.place) from unnest(v_pids) with ordinality p(pid, place)),
        'one short transaction after another'));
    hint := concat('until then no space is freed',
      case when cardinality(v_pids) > 0 then '; ' || trunq._way_to_end(v_pids[1]) else '; keep transactions that read its tables apart' end);
    return next;
  end loop;
end $$;
comment on function trunq._warn_refused is 'Locks that rotation was refused three times or more, for ten seconds, and who holds them.';

create or replace function trunq._warn_locked(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select q.name, s.name,
    format('%s holds the lock of %s', trunq._describe_session(l.pid), case when s.name is null then format('queue "%s"', q.name)
      else format('subscription "%s" of queue "%s"', s.name, q.name) end),
    concat(case when s.name is null then 'what changes or rotates the queue, or cuts its ticks, waits for it' else 'nobody else can read from it (TQ008)' end,
      '; ', trunq._way_to_end(l.pid))
  from pg_locks l
  join pg_stat_activity a on a.pid = l.pid
  left join trunq.subscription s on l.classid = trunq._lock_class('subscription') and s.subscription_id = l.objid::bigint
  join trunq.queue q on q.queue_id = case when l.classid = trunq._lock_class('subscription') then s.queue_id else l.objid::bigint end
  where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.pid <> pg_backend_pid()
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.classid::bigint in (
      trunq._lock_class('queue'), trunq._lock_class('subscription'), trunq._lock_class('tick'), trunq._lock_class('reap'))
    and (p_queue is null or q.name = p_queue)
    -- trunq takes them in transactions alone, so whoever has one without is a stranger.
    and a.state is not null and (a.xact_start is null or a.xact_start < trunq.clock() - interval '30 seconds')
  order by q.name, s.name, l.pid
$$;
comment on function trunq._warn_locked is 'Sessions that hold the lock of a queue or of a subscription for more than 30 seconds, or outside of a transaction.';

create or replace function trunq._warn_idle(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pids integer[] := array(
    select a.pid from pg_stat_activity a
    where a.datname = current_database() and a.state like 'idle in transaction%' and a.state_change < trunq.clock() - interval '10 seconds'
    order by a.state_change limit 100);
begin
  if v_pids = '{}' then
    return;
  end if;
  return query
    select q.name, null::text,
      format('%s has %s queue "%s"', trunq._describe_session(l.pid), case when bool_or(l.is_published) then 'published to' else 'locks on tables of' end, q.name),
      concat(case when bool_or(l.is_published) then 'nobody reads what it published until it commits, and ' end, 'what it has used is not emptied; ', trunq._way_to_end(l.pid))
    from (
      select k.pid, n.nspname = 'trunq_log' is_log,
        -- A queue may be called as a segment is: orders_log_1.
        case n.nspname when 'trunq_log' then c.relname else regexp_replace(c.relname, '_(log|lease|receipt|turn|wake)_[0-9]+$', '') end as name,
        k.mode = 'RowExclusiveLock' and (n.nspname = 'trunq_log' or c.relname ~ '_log_[0-9]+$') is_published
      from pg_locks k join pg_class c on c.oid = k.relation join pg_namespace n on n.oid = c.relnamespace
      where k.locktype = 'relation' and k.granted and k.pid = any (v_pids) and n.nspname in ('trunq_log', 'trunq_data') and c.relkind in ('r', 'p')
        and k.database = (select d.oid from pg_database d where d.datname = current_database())) l
    join trunq.queue q on case when l.is_log then q.log_table else q.name end = l.name
    where p_queue is null or q.name = p_queue
    group by q.name, l.pid
    -- What was published is late already; locks hurt where rotation waits.
    having bool_or(l.is_published) or exists (select from pg_stat_activity a where a.pid = l.pid and a.state_change < trunq.clock() - interval '30 seconds')
    order by q.name, l.pid limit 100;
end $$;
comment on function trunq._warn_idle is
  'Transactions that have been open and idle for 10 seconds and have published, or for 30 seconds and hold locks on a queue''s tables: the first 100.';

create or replace function trunq._warn_expired(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select q.name, split_part(s.name, '#', 1),
    format('worker "%s" of subscription "%s" of queue "%s" died or was cut off with messages in hand: %s, the last lease ran out at %s',
      e.worker, split_part(s.name, '#', 1), q.name, e.messages, date_trunc('second', e.expired_at)),
    'they are handed out again; the log of the worker may say why, or it needs a longer lease time'
  from trunq.queue q cross join lateral (
    select e.* from trunq.expiry e
    where e.queue_id = q.queue_id and e.expired_at between trunq.clock() - interval '10 minutes' and trunq.clock() + interval '1 minute'
    order by e.expired_at desc limit 20) e
  join trunq.subscription s on s.subscription_id = e.subscription_id
  where p_queue is null or q.name = p_queue order by q.name, s.name, e.expired_at
$$;
comment on function trunq._warn_expired is 'Workers whose leases ran out within ten minutes while messages of them were unanswered, the newest 20 of each queue.';

create or replace function trunq._warn_sessions(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select * from trunq._warn_refused(p_queue)
  union all
  select * from trunq._warn_locked(p_queue)
  union all
  select * from trunq._warn_idle(p_queue)
$$;
comment on function trunq._warn_sessions is 'All that is said about sessions in the way.';
