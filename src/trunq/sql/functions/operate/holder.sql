-- Who stands in the way: sessions that hold what trunq waits for, and sessions that hold messages and do nothing. pg_locks and pg_stat_activity tell.
-- Each is read once for all queues, and only the first of them where nothing is wrong.
--
-- Everybody sees the process, role and application of a session. What it does, and since when, Postgres tells to members of its role and of
-- pg_read_all_stats alone. Whose state is hidden is named only where rotation was refused.

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
    else format('select pg_terminate_backend(%s) ends it', p_pid) end
$$;
comment on function trunq._way_to_end is 'How a session, or a prepared transaction, is ended.';

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
