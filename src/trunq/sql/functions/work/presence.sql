-- What workers say of themselves, every ten seconds: who they are, and what each slot handles. Rows are inserted and never changed; the newest of
-- a worker is the worker. One that says nothing for thirty seconds and had no last word is lost; it stays visible for an hour.
--
-- Who there was is read by a walk over an index from the newest row of one worker to that of the next: as many steps as there were workers, however
-- often each of them spoke.

create or replace function trunq._report(
  p_worker text, p_queues text[], p_subscription text, p_host text, p_pid integer, p_seconds double precision, p_version text, p_slots integer,
  p_handling jsonb, p_last_word text default null, p_clock double precision default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue text;
begin
  -- Each by itself: a role may work on one and not on another.
  foreach v_queue in array p_queues loop
    perform trunq._report_queue(v_queue, p_worker, p_subscription, p_host, p_pid, p_seconds, p_version, p_slots,
      coalesce((select jsonb_agg(h.value - 'queue') from jsonb_array_elements(p_handling) h where h.value->>'queue' = v_queue), '[]'), p_last_word, p_clock);
  end loop;
end $$;
comment on function trunq._report is 'Tells who a worker is, since how many seconds it runs and what it handles, at its end its last word, and what its clock shows, in seconds since 1970.';

create or replace function trunq._report_queue(
  p_queue text, p_worker text, p_subscription text, p_host text, p_pid integer, p_seconds double precision, p_version text, p_slots integer,
  p_handling jsonb, p_last_word text, p_clock double precision default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz;
begin
  v_now := trunq.clock();
  -- A time that nobody's driver can read would keep all who look from all workers.
  if (p_seconds between 0 and 1e9) is not true then
    perform trunq._fail('TQ005', format('a worker does not run since %s seconds', coalesce(p_seconds::text, 'null')));
  end if;
  if jsonb_typeof(p_handling) is distinct from 'array' or length(p_handling::text) > 200000 or exists (
      select from jsonb_array_elements(p_handling) h
      where jsonb_typeof(h.value->'seconds') is distinct from 'number' or (h.value->>'seconds')::numeric not between -1e9 and 1e9) then
    perform trunq._fail('TQ005', 'what a worker handles is a list of objects with a number of seconds each');
  end if;
  insert into trunq.worker_report (queue_id, process, subscription, worker, host, pid, at, segment, began_at, version, slots, last_word, handling, ahead)
  select q.queue_id, md5(md5(p_subscription) || md5(left(p_worker, 1000)) || md5(left(p_host, 253)) || p_pid)::uuid,
    p_subscription, left(p_worker, 1000), left(p_host, 253), p_pid, v_now, trunq._report_segment(v_now),
    v_now - p_seconds * interval '1 second', left(p_version, 100), p_slots, p_last_word, p_handling, trunq._ahead(p_clock)
  from trunq.queue q where q.name = p_queue;
end $$;
comment on function trunq._report_queue is '_report, for one queue.';

create or replace function trunq._ahead(p_clock double precision) returns double precision
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select p_clock - extract(epoch from clock_timestamp())::double precision where abs(p_clock) < 1e11
$$;
comment on function trunq._ahead is 'By how many seconds a clock that shows p_clock, in seconds since 1970, is ahead of the server''s. What a statement takes on its way makes it less.';

create or replace function trunq._report_segment(p_at timestamptz) returns smallint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select (floor(extract(epoch from p_at) / 1800)::bigint % 6)::smallint
$$;
comment on function trunq._report_segment is 'The segment of what a worker says: six of half an hour.';

create or replace function trunq._newest_reports(p_queue_id integer, p_now timestamptz) returns setof trunq.worker_report
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_first integer := coalesce(p_queue_id, 0);
  v_last integer := coalesce(p_queue_id, 2147483647);
  v_segment smallint;
begin
  -- Backwards, so that the first row of a process is its newest.
  foreach v_segment in array array(select trunq._report_segment(p_now - k * interval '30 minutes') from generate_series(0, 2) k) loop
    return query
      with recursive walk as (
        (select r as newest from trunq.worker_report r
        where r.segment = v_segment and r.queue_id >= v_first and r.queue_id <= v_last and r.at <= p_now
        order by r.queue_id desc, r.process desc, r.at desc limit 1)
        union all
        select n.newest from walk w cross join lateral (
          select r as newest from trunq.worker_report r
          where r.segment = v_segment and (r.queue_id, r.process) < ((w.newest).queue_id, (w.newest).process) and r.queue_id >= v_first and r.at <= p_now
          order by r.queue_id desc, r.process desc, r.at desc limit 1) n)
      select (w.newest).* from walk w where (w.newest).at > p_now - interval '1 hour';
  end loop;
end $$;
comment on function trunq._newest_reports is
  'What each worker process said last in each segment of the last hour, of one queue or of all (null).';

create or replace function trunq.list_reports(p_queue text default null)
returns table (
  worker text, queue text, subscription text, state text, host text, pid integer, version text, slots integer, began_at timestamptz, seen_at timestamptz,
  handling jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
  v_id integer;
begin
  if p_queue is not null then
    v_id := (trunq._find_queue(p_queue)).queue_id;
  end if;
  return query
    select n.worker, n.name, n.subscription,
      coalesce(n.last_word, case when n.at < v_now - interval '30 seconds' then 'lost' else 'running' end), n.host, n.pid, n.version, n.slots, n.began_at, n.at,
      -- What it handles has gone on since; of one that is gone, what it handled at the end.
      (select coalesce(jsonb_agg(jsonb_build_object('id', h.value->'id', 'kind', h.value->'kind', 'since', n.at - (h.value->>'seconds')::double precision * interval '1 second')
        order by (h.value->>'seconds')::double precision desc), '[]') from jsonb_array_elements(n.handling) h)
    from (
      select distinct on (r.queue_id, r.process) q.name, r.*
      from trunq._newest_reports(v_id, v_now) r join trunq.queue q on q.queue_id = r.queue_id order by r.queue_id, r.process, r.at desc) n
    order by n.name, n.subscription, n.worker, n.at;
end $$;
comment on function trunq.list_reports is
  'What workers of a queue, or of all, said of themselves within an hour: name, host, pid, version, and what each slot handles (id, kind, since), as of seen_at; they say it every 10 seconds. state: running; drained (it ended, and what it had was finished); killed (it was ended before); lost (it has said nothing for 30 seconds, and had no last word). of one that is gone, handling is what it handled last.
Returns: one row a worker process, queue and subscription.
Raises: TQ001.';
