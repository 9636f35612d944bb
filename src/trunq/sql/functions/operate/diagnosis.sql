-- What is wrong with this database, area by area, for `trunq doctor`. Each area is a function of its own with the columns of diagnose but the first;
-- trunq._areas says which there are. Those about the server are in operate/server.sql. An area that fails leaves the others their turn: what the caller
-- may not see is named, with the grant that shows it (missing_grant; an area that knows of one by itself has that column, too). The comment of each says what is wrong, as the page about it does (tools/reference.py).
--
-- Limits are those at which somebody should act, far from what a healthy server shows: five minutes for a transaction, a gigabyte of WAL for a
-- slot, 1.6 billion transactions (of 2.1) before Postgres refuses to write.
--
-- Four areas are cheap and tell what hurts at once: leader, workers, failures and sessions. Each names its trouble at the latest twelve seconds after it
-- began, so that a page that asks for these alone every two seconds shows it within fifteen (docs/operate/web.md).
--
-- It blocks nobody: it waits for no lock longer than 100 ms, and gives back what an area locked. It costs the same with a thousand queues as with
-- twenty: what is asked of each queue (some 40 ms) is asked of twenty, half of them the worst by the newest samples, and of others each minute.

create or replace function trunq._areas() returns table (area text, place bigint)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select * from unnest('{cluster,leader,version,workers,failures,sessions,queues,functions,structure,warnings,pauses,bells,clocks,transactions,slots,freeze,vacuum,disk,notifications,locks,connections,settings,rights,statistics}'::text[])
    with ordinality
$$;
comment on function trunq._areas is 'What trunq.diagnose looks at, in its order: trunq._diagnose_AREA is the function of each.';

create or replace function trunq.diagnose(p_queues integer default 20, p_areas text[] default null)
returns table (
  area text, severity text, queue text, subscription text, finding text, hint text, since timestamptz, missing_grant text
)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
  v_area text;
  v_queues text[];
begin
  if p_queues < 0 then
    perform trunq._fail('TQ005', format('a look takes in one queue or more, not %s', p_queues), '0 is all of them');
  end if;
  foreach v_area in array coalesce(p_areas, '{}') loop
    perform trunq._check_word(coalesce(v_area, ''), array(select a.area from trunq._areas() a order by a.place), 'there is no area "%s"');
  end loop;
  begin
    v_queues := trunq._queues_of_round(nullif(p_queues, 0));
  exception when insufficient_privilege or lock_not_available then
    null;  -- each area says so for itself
  end;
  for v_area in select a.area from trunq._areas() a where p_areas is null or a.area = any (p_areas) order by a.place loop
    area := v_area; severity := 'unseen'; queue := null; subscription := null; since := null; missing_grant := null;
    begin
      return query execute format('select %L, d.severity, d.queue, d.subscription, d.finding, d.hint, d.since, to_jsonb(d)->>''missing_grant'' from trunq.%I($1) d',
        v_area, '_diagnose_' || v_area) using v_queues;
      raise exception using errcode = 'TQ900';  -- gives its locks back
    exception
      when sqlstate 'TQ900' then
        null;
      when insufficient_privilege then
        finding := format('role %s may not look at %s: %s', quote_ident(current_user), v_area, sqlerrm);
        missing_grant := (select format(case when pg_has_role(r.oid, 'member') then 'set role %I' else 'grant %I to %I' end, r.rolname, current_user)
          from pg_namespace n join pg_roles r on r.oid = n.nspowner where n.nspname = 'trunq');
        hint := missing_grant || ' shows it';
        return next;
      when lock_not_available then
        finding := format('nobody looked at %s: an open transaction locks a table that it needs', v_area);
        hint := 'look again; select pid, xact_start, query from pg_stat_activity order by xact_start shows who it may be';
        return next;
      when query_canceled then
        if not trunq._has_timed_out() then
          raise;
        end if;
        finding := format('the look at %s, and what comes after it, took longer than the statement_timeout of %s', v_area, current_setting('statement_timeout'));
        hint := 'set statement_timeout = ''60s'', and look again';
        return next;
        return;
      when others then
        severity := 'error';
        finding := format('the look at %s failed: %s', v_area, sqlerrm);
        hint := 'the log of the server has more';
        return next;
    end;
  end loop;
end $$;
comment on function trunq.diagnose is
  'What is wrong with this database and what helps, area by area: another cluster''s positions, nobody who performs the duties, workers of several versions, workers that say nothing and hold messages, handlers that fail, sessions in the way, functions that somebody changed, tables that lack an index or a trigger, all that list_warnings says, pauses without an end while messages wait, workers that do not wake, clocks that are wrong, transactions, standbys and replication slots that hold back vacuum or WAL, freezing that does not keep up, tables that vacuum leaves, a disk that fills, a full queue of notifications, too few locks or connections, settings that cost promises, and rights. p_queues: how many queues it looks at one by one, where that is asked of each; of more, the worst, and others each minute; 0: all. p_areas: these areas alone; leader, workers, failures and sessions are cheap, to be asked every few seconds.
Returns: one row a finding; severity is error (messages are late, lost or at risk until somebody acts), warning, or unseen (this role may not look, or it was not looked at). queue null: of the database. since null: Postgres does not say. missing_grant: the statement that shows it to this role; null: the role lacks none.
Raises: TQ005.
Locks: waiting 100 ms for each at most, and to the end of a look at one area.';

create or replace function trunq._queues_of_round(p_most integer) returns text[]
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with queue as materialized (
    select q.queue_id, q.name, row_number() over (order by q.name) - 1 as place, count(*) over () as number from trunq.queue q),
  -- Whose trouble is known is not to wait for its minute: half of them are the worst by the newest samples, in the order of trunq.overview.
  worst as materialized (
    select n.queue_id from trunq._newest_samples(trunq._last_sampled(trunq.clock())) n
    where p_most < (select q.number from queue q limit 1) and (n.lost_at is not null or n.oldest_ready_at < trunq.clock() - interval '1 minute' or n.dead > 0)
    group by n.queue_id order by bool_or(n.lost_at is not null) desc, min(n.oldest_ready_at) filter (where n.paused is not true) nulls last, max(n.dead) desc nulls last,
      n.queue_id limit p_most / 2),
  round as (
    select case when exists (select from worst) then p_most - p_most / 2 else p_most end as size)
  select coalesce(array_agg(q.name order by q.name), '{}') from queue q cross join round r
  where p_most is null or q.queue_id in (select w.queue_id from worst w)
    or q.place / r.size = floor(extract(epoch from trunq.clock()) / 60)::bigint % ((q.number + r.size - 1) / r.size)
$$;
comment on function trunq._queues_of_round is 'The queues that are looked at one by one in this minute: p_most of them, half of which are the worst, and others each minute, until all have had a look; null: all.';

create or replace function trunq._diagnose_queues(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'unseen', null::text, null::text,
    format('%s of %s queues were looked at one by one, those in trouble first: others follow each minute', cardinality(p_queues), n.number),
    'trunq doctor looks at all of them at once, and so does: select * from trunq.diagnose(0)', null::timestamptz
  from (select count(*) as number from trunq.queue) n where n.number > cardinality(p_queues) and cardinality(p_queues) > 0
$$;
comment on function trunq._diagnose_queues is 'There are more queues than one look takes in: structure, warnings and rights are of some.';

create or replace function trunq._diagnose_functions(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', null::text, null::text, c.defect, 'trunq db upgrade --repair', null::timestamptz from trunq._changed_functions() c limit 100
$$;
comment on function trunq._diagnose_functions is 'Somebody changed or dropped functions of trunq, which then do something else than this version says: `trunq db upgrade --repair` puts them back.';

create or replace function trunq._diagnose_version(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with version as (
    select p.version, count(*) as number, min(p.began_at) as began_at, (array_agg(p.worker order by p.began_at))[1] as worker
    from (select distinct on (p.worker, p.host, p.pid) p.* from trunq._present_workers() p) p group by p.version)
  select 'warning', null::text, null::text,
    format('workers are of different versions of trunq: %s',
      string_agg(format('%s of %s ("%s", since %s)', v.number, v.version, v.worker, date_trunc('second', v.began_at)), ', ' order by v.began_at)),
    'restart the older ones with the newer version: select worker, host, pid, version, began_at from trunq.list_reports() where state = ''running'' order by version', max(v.began_at)
  -- While one release takes the place of another, both are there.
  from version v having count(*) > 1 and max(v.began_at) < trunq.clock() - interval '10 minutes'
$$;
comment on function trunq._diagnose_version is 'Workers of different versions of trunq have run side by side for ten minutes.';

create or replace function trunq._present_workers() returns setof trunq.worker_report
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select distinct on (r.queue_id, r.process) r.* from (select trunq.clock() as now) c cross join lateral trunq._newest_reports(null, c.now) r
  where r.at > c.now - interval '30 seconds' order by r.queue_id, r.process, r.at desc
$$;
comment on function trunq._present_workers is 'The last report of each worker that has said something within thirty seconds, its last word too.';

create or replace function trunq._diagnose_clocks(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- A report that was long on its way makes a clock seem behind: of a host the one that was fastest.
  select 'warning', null::text, null::text,
    format('the clock of %s is %s s %s the server''s', c.who, round(abs(c.ahead)), case when c.ahead > 0 then 'ahead of' else 'behind' end),
    'have both follow NTP (timedatectl set-ntp true); trunq goes by the server''s, and times in logs mislead', null::timestamptz
  from (
    select format('host %s, where worker "%s" runs,', p.host, (array_agg(p.worker order by p.worker))[1]) as who, (array_agg(p.ahead order by abs(p.ahead)))[1] as ahead
    from trunq._present_workers() p where p.ahead is not null group by p.host
    union all
    select format('leader "%s"', l.name), l.ahead from trunq.leader l where trunq._leads(l, trunq.clock())) c
  where abs(c.ahead) > 5 order by abs(c.ahead) desc limit 20
$$;
comment on function trunq._diagnose_clocks is 'The clock of the leader, or of a host where workers run, is more than five seconds off the server''s.';

create or replace function trunq._diagnose_bells(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', q.name, null::text,
    format('process %s of role %s%s holds the bell of queue "%s", and has been silent since %s: no other worker of it is woken', a.pid, a.usename,
      format(', application "%s",', nullif(a.application_name, '')), q.name, date_trunc('second', a.state_change)),
    trunq._call_to_end(a.pid), a.state_change
  from pg_locks l join pg_stat_activity a on a.pid = l.pid join trunq.queue q on q.queue_id = l.objid::bigint
  -- A worker that sleeps asks for a sign of life every thirty seconds.
  where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.mode = 'ExclusiveLock' and l.classid::bigint = trunq._lock_class('bell')
    and l.database = (select d.oid from pg_database d where d.datname = current_database()) and a.state_change < trunq.clock() - interval '5 minutes'
  order by q.name limit 20
$$;
comment on function trunq._diagnose_bells is 'A session that holds the bell of a queue has been silent for five minutes: its worker is frozen, or gone behind a pooler, and the others poll.';

create or replace function trunq._diagnose_cluster(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', null::text, null::text, o.finding, o.hint, null::timestamptz from trunq._other_cluster() o where o.finding is not null
$$;
comment on function trunq._diagnose_cluster is 'Positions are those of another Postgres cluster: the database was restored from a dump.';

create or replace function trunq._diagnose_leader(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', null::text, null::text,
    concat('nobody performs the duties', ' since ' || date_trunc('second', l.last), ': nothing delayed or retried runs, nothing that a dead worker held comes back, and no space is freed'),
    'start a worker, or: trunq leader', l.last
  from (select greatest((select l.expires_at from trunq.leader l), (select max(d.done_at) from trunq.duty_done d)) as last) l
  where not trunq._is_led() and exists (select from trunq.queue) and exists (select from trunq.leader)
  union all
  -- It renews its lease in each third of it. Before that runs out, nobody else is elected.
  select 'error', null, null,
    format('leader "%s" has said nothing for %s: it is stopped, hangs or is gone, and until %s, when its lease ends, nobody else performs the duties',
      l.name, date_trunc('second', c.now - l.expires_at + l.lease_time), date_trunc('second', l.expires_at)),
    'have another one ready, a worker or: trunq leader; then see to that process', l.expires_at - l.lease_time
  from trunq.leader l cross join (select trunq.clock() as now) c
  where trunq._leads(l, c.now) and c.now > l.expires_at - 0.4 * l.lease_time and exists (select from trunq.queue)
  union all
  select 'error', null, null, 'the row of trunq.leader is gone: nobody can be elected, and nobody performs the duties', 'insert into trunq.leader default values', null
  where not exists (select from trunq.leader)
  union all
  select 'warning', null, null, 'trunq.leader is unlogged: a crash of the server empties it, and then nobody can be elected', 'alter table trunq.leader set logged', null
  from pg_class c where c.oid = 'trunq.leader'::regclass and c.relpersistence = 'u'
$$;
comment on function trunq._diagnose_leader is 'Nobody performs the duties, neither a leader nor pg_cron; a leader has not renewed its lease for three fifths of it (nine seconds); or nobody can be elected, now or after a crash.';

create or replace function trunq._diagnose_workers(p_queues text[])
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
      select distinct on (r.queue_id, r.subscription, r.worker) r.* from trunq._newest_reports(null, v_now) r
      where r.at > v_now - interval '10 minutes' order by r.queue_id, r.subscription, r.worker, r.at desc) n
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
comment on function trunq._diagnose_workers is 'A worker has said nothing for twelve seconds, without a last word, and holds messages: it is stopped, hangs or is gone. The first 20.';

create or replace function trunq._diagnose_failures(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_least constant integer := 10;
  c_share constant double precision := 0.1;
  -- Samples are five seconds apart. In half a minute of a busy queue, what has just begun to fail is not a tenth yet; in ten seconds it is within three
  -- where a third fails. What fails less often shows in half a minute alone.
  c_long constant interval := '35 seconds';
  c_short constant interval := '12 seconds';
  v_last timestamptz := trunq._last_sampled(trunq.clock());
  v record;
begin
  for v in
    with told as (
      select s.queue_id, s.subscription, s.at, s.answered, f.number as failed
      from trunq.sample s cross join lateral (select trunq._failed(s.answers) as number) f
      -- When nobody samples, what was a minute ago is no news.
      where v_last > trunq.clock() - interval '1 minute' and s.at > v_last - c_long and s.at <= v_last and s.queue_id > 0 and s.subscription <> ''
        and s.segment = any (array[trunq._sample_segment(v_last - c_long), trunq._sample_segment(v_last)])),
    step as (
      select t.queue_id, t.subscription, l.length, min(t.at) as first_at, max(t.answered) - min(t.answered) as answered, max(t.failed) - min(t.failed) as failed
      from told t join unnest(array[c_long, c_short]) l(length) on t.at > v_last - l.length
      group by t.queue_id, t.subscription, l.length),
    failing as (
      select distinct on (t.queue_id, t.subscription) t.* from step t where t.failed >= c_least and t.failed >= c_share * t.answered
      order by t.queue_id, t.subscription, t.length desc)
    select q.queue_id, q.name, n.subscription as reader, n.failed, n.answered, n.first_at
    from failing n join trunq.queue q on q.queue_id = n.queue_id order by n.failed desc, q.name limit 20
  loop
    severity := case when 2 * v.failed >= v.answered then 'error' else 'warning' end;
    queue := v.name; subscription := v.reader; since := v.first_at;
    finding := format('%s of the last %s answers in subscription "%s" of queue "%s" are failures%s', v.failed, v.answered, v.reader, v.name,
      trunq._tell_failures(v.queue_id, v.reader, v.first_at));
    hint := format('see what failed: trunq dead list %s, or trunq message list %s --state retrying; once that is mended, what died is requeued with trunq dead requeue %s --all',
      v.name, v.name, v.name);
    return next;
  end loop;
end $$;
comment on function trunq._diagnose_failures is 'A tenth of the answers of a subscription within half a minute, or within ten seconds, ten at least, are failures: of which kinds, and the last error. The first 20.';

create or replace function trunq._diagnose_sessions(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', w.queue, w.subscription, w.warning, w.hint, null::timestamptz from trunq._warn_sessions(null) w
$$;
comment on function trunq._diagnose_sessions is 'Sessions in the way: locks that rotation does not get, and who holds them; transactions that have been idle for ten seconds and have published, or for thirty and hold locks on a queue''s tables; who holds the lock of a queue or subscription for thirty seconds.';

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

create or replace function trunq._diagnose_structure(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'error', d.queue, null::text, d.defect, 'trunq db upgrade --repair puts it back, or: ' || d.repair, null::timestamptz
  from unnest(coalesce(p_queues, array[null])) n(name) cross join lateral trunq.list_defects(n.name) d order by d.queue, d.object, d.kind limit 100
$$;
comment on function trunq._diagnose_structure is 'A queue lacks an index, a partition, a trigger, a default or a function, or somebody changed one of its functions: `trunq db upgrade --repair` puts it back. The first 100.';

create or replace function trunq._diagnose_warnings(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select w.severity, nullif(w.queue, ''), w.subscription, w.warning, w.hint, null::timestamptz
  from trunq._list_warnings(null, p_queues, false) with ordinality w order by w.place, w.since nulls last, w.ordinality
$$;
comment on function trunq._diagnose_warnings is 'All else that `trunq.list_warnings()` says: duties that fail or are late, segments that are held, subscriptions that nobody reads, and more.';

create or replace function trunq._diagnose_pauses(p_queues text[])
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
    queue := v.name; subscription := v.reader; since := null;
    begin
      since := (select u.created_at from trunq._unread(v.row, v.subscription_id, 1) u);
      raise exception using errcode = 'TQ900';  -- gives the locks back: whoever pauses a thousand queues has too many of them
    exception
      when sqlstate 'TQ900' then
        null;
      when undefined_table then
        null;  -- dropped meanwhile
    end;
    continue when since is null;
    finding := format('subscription "%s" of queue "%s" is paused without an end, and messages have waited since %s', v.reader, v.name, date_trunc('second', since));
    hint := case when v.paused_until = 'infinity' then format('select trunq.resume_queue(%L)', v.name)
      else format('select trunq.resume_subscription(%L, %L)', v.name, v.reader) end;
    return next;
  end loop;
  return query select 'warning', l.queue, l.subscription, l.warning, l.hint, l.since from trunq._warn_lanes() l;
end $$;
comment on function trunq._diagnose_pauses is 'A subscription, or a lane, is paused until somebody resumes it, and messages wait.';

create or replace function trunq._diagnose_rights(p_queues text[])
returns table (severity text, queue text, subscription text, finding text, hint text, since timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = nested set quote_all_identifiers = off as $$
  with queue as materialized (
    select q.name from trunq.queue q where p_queues is null or q.name = any (p_queues)),
  function as (
    select p.oid, p.prosecdef, p.proconfig from trunq.function f join pg_proc p on p.oid = to_regprocedure(f.signature) where starts_with(f.signature, 'trunq.')
    union all
    -- By the index: other queues have thousands.
    select p.oid, p.prosecdef, p.proconfig from queue q cross join lateral (
      select p.* from pg_proc p where p.proname >= q.name || '_' and p.proname < q.name || '`' and p.pronamespace = 'trunq_queue'::regnamespace offset 0) p)
  select 'error', null::text, null::text, format('everybody may make objects in schema %I, and so change what trunq''s functions do', n.nspname),
    format('revoke create on schema %I from public', n.nspname), null::timestamptz
  from pg_namespace n where n.nspname in ('trunq', 'trunq_data', 'trunq_log', 'trunq_queue', 'trunq_archive')
    and exists (select from aclexplode(n.nspacl) a where a.grantee = 0 and a.privilege_type = 'CREATE')
  union all
  select 'error', null, null, format('function %s runs with its owner''s rights and no search_path of its own', f.oid::regprocedure),
    format('alter function %s set search_path = pg_catalog, pg_temp', f.oid::regprocedure), null
  from function f where f.prosecdef and not exists (select from unnest(f.proconfig) c(setting) where c.setting like 'search_path=%')
  union all
  select 'error', q.name, null, format('everybody may call %s, which does with the owner''s rights what only roles of queue "%s" may', p.oid::regprocedure, q.name),
    format('revoke execute on function %s from public', p.oid::regprocedure), null
  from (select s.proname from pg_proc s where s.proname like '\_specimen\_%' and s.pronamespace = 'trunq_queue'::regnamespace and s.prosecdef offset 0) s
  cross join queue q cross join lateral (
    select p.* from pg_proc p where p.proname = q.name || substr(s.proname, 10) and p.pronamespace = 'trunq_queue'::regnamespace and p.prosecdef offset 0) p
  where p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0)
  union all
  select 'error', null, null, format('%s may change rows of %s past the functions of trunq', coalesce('role ' || r.rolname, 'everybody'), c.oid::regclass),
    format('revoke insert, update, delete, truncate on %s from %s', c.oid::regclass, coalesce(quote_ident(r.rolname), 'public')), null
  from pg_class c cross join lateral (
    select distinct a.grantee from aclexplode(c.relacl) a where a.grantee <> c.relowner and a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')) a
  left join pg_roles r on r.oid = a.grantee
  where c.relacl is not null and c.relkind in ('r', 'p') and c.relnamespace = 'trunq_data'::regnamespace
  order by 4
$$;
comment on function trunq._diagnose_rights is 'Others may change what functions of trunq do, call the doors of a queue, or write past them.';
