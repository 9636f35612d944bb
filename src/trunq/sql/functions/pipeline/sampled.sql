-- What pipelines are like, as the duty sample (operate/sample.sql) writes it down for /metrics: how many runs a pipeline and its instances had and what
-- lies in their quarantine is counted there, and whoever scrapes reads a row a pipeline. A call looks at twenty at most, those first that were not
-- looked at for longest, and begins no look after half a second.

create or replace function trunq._sample_pipelines(p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_begun timestamptz := clock_timestamp();
  v_error text;
begin
  for v_pipeline in
    select p.* from trunq.pipeline p left join trunq.pipeline_sample s on s.pipeline_id = p.pipeline_id
    where p.parent_id is null and (s.looked_at is null or s.looked_at not between p_now - interval '9 seconds' and p_now)
    order by s.looked_at nulls first, p.pipeline_id limit 20
  loop
    exit when clock_timestamp() > v_begun + interval '0.5 seconds';
    begin
      perform trunq._sample_pipeline(v_pipeline, p_now);
    exception
      when lock_not_available or foreign_key_violation then
        null;  -- in somebody's hands, or dropped
      when query_canceled then
        raise;
      when others then
        v_error := format('pipeline "%s": %s', v_pipeline.name, sqlerrm);
    end;
  end loop;
  if v_error is null then
    delete from trunq.duty_failure f where f.duty = 'sample' and f.queue = '(pipelines)';
    return;
  end if;
  -- Queues and the other pipelines have their figures all the same.
  insert into trunq.duty_failure (duty, queue, failed_at, error)
  values ('sample', '(pipelines)', trunq.clock(), left(v_error, trunq._limit('error_characters')))
  on conflict on constraint duty_failure_pkey do update set failed_at = excluded.failed_at, error = excluded.error;
end $$;
comment on function trunq._sample_pipelines is 'Writes down what twenty pipelines are like, those first that were not looked at for longest.';

create or replace function trunq._sample_pipeline(p_pipeline trunq.pipeline, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_most constant integer := 10000;
  v_series integer[] := trunq._find_series(p_pipeline);
begin
  insert into trunq.pipeline_sample as s (pipeline_id, looked_at, fresh_at, runs, quarantined, is_failing, rows_in, rows_out)
  select p_pipeline.pipeline_id, p_now, coalesce(p_pipeline.newest_at, greatest(p_pipeline.looked_at, d.begun_at)), i.done, q.number,
    p_pipeline.error is not null or i.fails or l.error is not null, n.rows_in, n.rows_out
  from (
    select sum(p.done) as done, coalesce(bool_or(p.failures > 0), false) or exists (
        select from trunq.pipeline_run o where o.pipeline_id = any (v_series) and o.ended_at is null and o.error is not null
          and (o.failures > 0 or o.pipeline_id = p_pipeline.pipeline_id and o.backfill = 0)) as fails
    from trunq.pipeline p where p.pipeline_id = any (v_series)) i
  cross join lateral (
    select count(*) as number from (
      select from unnest(v_series) u(id) cross join lateral (
        select from trunq.quarantine q where q.pipeline_id = u.id and q.run_id is not null limit c_most) q limit c_most) c) q
  left join lateral (
    select r.error from trunq.pipeline_run r where r.pipeline_id = p_pipeline.pipeline_id and r.backfill = 0 and r.ended_at is not null
    order by r.number desc limit 1) l on true
  left join lateral (
    select r.begun_at from trunq.pipeline_run r
    where r.pipeline_id = p_pipeline.pipeline_id and r.backfill = 0 and r.outcome = 'done' and not r.slice ? 'quarantine'
    order by r.number desc limit 1) d on true
  left join lateral (
    select r.rows_in, r.rows_out from unnest(v_series) u(id) cross join lateral (
      select r.run_id, r.rows_in, r.rows_out from trunq.pipeline_run r
      where r.pipeline_id = u.id and r.backfill = 0 and r.ended_at is not null order by r.number desc limit 1) r
    order by r.run_id desc limit 1) n on true
  on conflict (pipeline_id) do update set
    looked_at = excluded.looked_at, fresh_at = excluded.fresh_at, runs = greatest(s.runs, excluded.runs), quarantined = excluded.quarantined,
    is_failing = excluded.is_failing, rows_in = excluded.rows_in, rows_out = excluded.rows_out;
end $$;
comment on function trunq._sample_pipeline is 'Writes down what a pipeline is like, with its instances.';
