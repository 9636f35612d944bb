-- Figures of the whole database for /metrics, beside those that the samples have. Whoever serves them asks every few seconds, so nothing here reads
-- messages: what is read grows with the number of queues, schedules and pipelines alone, and of schedules and pipelines 200 are told.

create or replace function trunq._list_figures(p_sizes boolean default false)
returns table (figure text, queue text, label text, value double precision)
language plpgsql set search_path = pg_catalog, pg_temp as $$
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
    cross join lateral (values
      ('lane_max_running', p.max_running::double precision), ('lane_rate', p.rate),
      ('lanes_limited', (select count(*) from trunq.lane l where l.subscription_id = s.subscription_id and num_nonnulls(l.max_running, l.rate) > 0)::double precision),
      ('lanes_paused', (select count(*) from trunq.lane l where l.subscription_id = s.subscription_id and l.paused_until > v_now)::double precision)
    ) f(figure, value) where f.value is not null;
  return query
    select 'schedule_late_seconds', s.queue, s.schedule, case when s.paused then 0 else greatest(0, trunq._seconds(v_now - s.next_due)) end
    from trunq.list_schedules() s where s.next_due is not null order by s.paused, s.next_due limit 200;
  return query
    select f.figure, null::text, p.pipeline, f.value
    from (select * from trunq.list_pipelines() l order by l.age desc nulls last, l.pipeline limit 200) p
    left join lateral (select r.* from trunq.list_runs(p.pipeline, p_limit => 5) r where r.ended_at is not null limit 1) r on true
    cross join lateral (values
      ('pipeline_lag_seconds', trunq._seconds(p.age)), ('pipeline_runs', p.runs), ('pipeline_quarantined_rows', p.quarantined),
      ('pipeline_failing', (p.error is not null)::integer), ('pipeline_paused', p.paused::integer),
      ('pipeline_last_rows_in', r.rows_in), ('pipeline_last_rows_out', r.rows_out)
    ) f(figure, value) where f.value is not null;
  if p_sizes then
    return query
      select 'queue_bytes', q.name, null::text, (
        select sum(pg_total_relation_size(to_regclass(format('trunq_data.%I', trunq._segment_name(q, t, n)))))::double precision
        from unnest('{log,lease,receipt}'::text[]) t cross join generate_series(0, q.segments - 1) n)
      from trunq.queue q;
  end if;
end $$;
comment on function trunq._list_figures is
  'Figures of the whole database by name: of a queue, and of what label says (a duty, a subscription, a schedule, a pipeline). p_sizes: also how large queues are, which asks for the size of each file.';

create or replace function trunq._seconds(p_interval interval) returns double precision
language sql immutable set search_path = pg_catalog, pg_temp as $$ select extract(epoch from p_interval)::double precision $$;
comment on function trunq._seconds is 'An interval in seconds.';
