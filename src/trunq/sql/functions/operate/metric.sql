-- Figures of the whole database for /metrics, beside those that the samples have. Whoever serves them asks every few seconds, so nothing here reads
-- messages, runs or rows in quarantine: of pipelines it reads what the duty sample wrote down (pipeline/sampled.sql). What is read grows with the number
-- of queues alone; of schedules and pipelines 200 are told, and of lanes 10,000 are counted.

create or replace function trunq._list_figures(p_sizes boolean default false)
returns table (figure text, queue text, label text, value double precision)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
begin
  return query select 'leader_up', null::text, null::text, trunq._is_led()::integer::double precision;
  return query select 'sample_age_seconds', null::text, null::text, trunq._seconds(v_now - trunq.sampled_at()) where trunq.sampled_at() is not null;
  return query select 'duty_age_seconds', null::text, d.duty, trunq._seconds(v_now - d.done_at) from trunq.duty_done d;
  return query
    select 'oldest_transaction_seconds', null::text, null::text, coalesce(max(trunq._seconds(clock_timestamp() - a.xact_start)), 0)
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
      and (a.backend_xmin is not null or a.backend_xid is not null);
  return query
    select 'tick_age_seconds', q.name, null::text, trunq._seconds(v_now - t.created_at)
    from trunq.queue q cross join lateral (
      select t.created_at from trunq.tick t where t.queue_id = q.queue_id order by t.tick_id desc limit 1) t
    where not q.tick_paused;
  return query
    select 'lost_messages', q.name, coalesce(split_part(s.name, '#', 1), s.name), sum(o.messages)::double precision
    from trunq.loss o join trunq.queue q on q.queue_id = o.queue_id join trunq.subscription s on s.subscription_id = o.subscription_id
    where o.accepted_at is null group by 2, 3;
  return query
    select f.figure, q.name, s.name, f.value
    from trunq.lane_policy p join trunq.subscription s on s.subscription_id = p.subscription_id join trunq.queue q on q.queue_id = s.queue_id
    cross join lateral (
      select count(*) filter (where num_nonnulls(l.max_running, l.rate) > 0) as limited, count(*) filter (where l.paused_until > v_now) as paused
      from (select l.* from trunq.lane l where l.subscription_id = s.subscription_id limit 10000) l) n
    cross join lateral (values
      ('lane_max_running', p.max_running::double precision), ('lane_rate', p.rate),
      ('lanes_limited', n.limited::double precision), ('lanes_paused', n.paused::double precision)
    ) f(figure, value) where f.value is not null;
  return query
    select 'schedule_late_seconds', q.name, s.name, case when s.is_paused then 0 else greatest(0, trunq._seconds(v_now - s.next_due)) end
    from (
      (select s.*, false as is_paused from trunq.schedule s
      where s.next_due is not null and s.paused_until > v_now is not true order by s.next_due limit 200)
      union all
      (select s.*, true from trunq.schedule s where s.next_due is not null and s.paused_until > v_now order by s.next_due limit 200)
      limit 200) s
    join trunq.queue q on q.queue_id = s.queue_id;
  return query
    select f.figure, null::text, p.name, f.value
    from (select s.* from trunq.pipeline_sample s order by s.fresh_at, s.pipeline_id limit 200) s
    join trunq.pipeline p on p.pipeline_id = s.pipeline_id
    cross join lateral (values
      ('pipeline_lag_seconds', case when s.fresh_at is not null then trunq._seconds(greatest(interval '0', v_now - s.fresh_at)) end), ('pipeline_runs', s.runs::double precision),
      ('pipeline_quarantined_rows', s.quarantined), ('pipeline_failing', s.is_failing::integer),
      ('pipeline_paused', (p.paused_until > v_now is true)::integer),
      ('pipeline_last_rows_in', s.rows_in), ('pipeline_last_rows_out', s.rows_out)
    ) f(figure, value) where f.value is not null;
  if p_sizes then
    return query
      select 'queue_bytes', q.name, null::text, (
        select sum(pg_total_relation_size(to_regclass(format('trunq_data.%I', trunq._segment_name(q, t, n)))))::double precision
        from unnest('{log,lease,receipt}'::text[]) t cross join generate_series(0, q.segments - 1) n)
      from trunq.queue q;
    return query
      select 'segments_held', q.name, null::text, (
        select count(*)::double precision from trunq._old_segments(q) o where o.is_old and trunq._has_rows(q, 'log', o.segment))
      from trunq.queue q;
  end if;
end $$;
comment on function trunq._list_figures is
  'Figures of the whole database by name: of a queue, and of what label says (a duty, a subscription, a schedule, a pipeline). p_sizes: also how large queues are, and how many segments are due to be emptied and are not, which asks for the size of each file.';

create or replace function trunq._seconds(p_interval interval) returns double precision
language sql immutable set search_path = pg_catalog, pg_temp as $$ select extract(epoch from p_interval)::double precision $$;
comment on function trunq._seconds is 'An interval in seconds.';

create or replace function trunq._list_totals()
returns table (queue text, subscription text, kind text, took bigint[], waited bigint[], took_sum double precision, waited_sum double precision, bounds double precision[])
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q.name, t.subscription, t.kind, t.took, t.waited, t.took_sum, t.waited_sum, trunq._total_bounds()
  from trunq.statistic_total t join trunq.queue q on q.queue_id = t.queue_id
  where exists (select from trunq.subscription s where s.queue_id = t.queue_id and s.name = t.subscription)
  order by q.name, t.subscription, t.kind
$$;
comment on function trunq._list_totals is 'How long messages that succeeded ran and waited, in buckets: of each queue, subscription and kind, since the statistics began.';
