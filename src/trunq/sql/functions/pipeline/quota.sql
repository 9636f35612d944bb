-- What puts a run off before it is planned: a pause, of the pipeline or of its instance, and its limits:
--
--   running       so many runs of it are held at once, a run and its backfills
--   rate          "10/minute": so many runs begin in a minute (second, hour, day)
--   rows_a_day    no run begins on a day of UTC on which its sink took so many rows; the run that passes them goes on to its end
--   bytes_a_day   likewise, in Arrow's memory
--
-- Each is of one instance where there is per. What is counted stands in the row that whoever opens a run holds anyhow, or in the newest runs.
-- The message comes again after a while: a limit that is changed is met within ten minutes.

create or replace function trunq._today() returns date
language sql stable set search_path = pg_catalog, pg_temp as $$
  select (trunq.clock() at time zone 'UTC')::date
$$;
comment on function trunq._today is 'The day of UTC.';

create or replace function trunq._is_run_held(p_run trunq.pipeline_run) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Nobody holds one for a minute: where that is so, the clock has gone back since.
  select coalesce(p_run.held_until > trunq.clock() and p_run.held_until < trunq.clock() + interval '1 minute', false)
$$;
comment on function trunq._is_run_held is 'Whether somebody says that he is at a run.';

create or replace function trunq._is_full(p_pipeline trunq.pipeline, p_message_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_pipeline.definition->'limits' ? 'running' and (p_pipeline.definition #>> '{limits,running}')::integer <= (
    select count(*) from trunq.pipeline_run r
    where r.pipeline_id = p_pipeline.pipeline_id and r.ended_at is null and trunq._is_run_held(r) and r.holder is distinct from p_message_id)
$$;
comment on function trunq._is_full is 'Whether others hold as many runs of a pipeline as its limits let run at once.';

create or replace function trunq._put_off_run(p_pipeline trunq.pipeline) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_soon constant interval := '1 minute';
  v_limits jsonb := p_pipeline.definition->'limits';
  v_now timestamptz := trunq.clock();
  v_until timestamptz := p_pipeline.paused_until;
  v_for text;
begin
  if p_pipeline.parent_id is not null then
    v_until := greatest(v_until, (select p.paused_until from trunq.pipeline p where p.pipeline_id = p_pipeline.parent_id));
  end if;
  if v_until > v_now then
    update trunq.pipeline p set put_off_until = v_until, put_off_for = 'pause'
    where p.pipeline_id = p_pipeline.pipeline_id and (p.put_off_until, p.put_off_for) is distinct from (v_until, 'pause');
    return jsonb_build_object('action', 'wait', 'seconds', least(10, greatest(0.1, extract(epoch from v_until - v_now))))
      || case when v_until > v_now + c_soon then jsonb_build_object('why', format('pipeline "%s" is paused', p_pipeline.name)) else '{}' end;
  elsif v_limits is null and p_pipeline.put_off_until is null then
    return null;
  end if;
  if p_pipeline.day = trunq._today() then
    v_for := case when p_pipeline.day_rows >= (v_limits->>'rows_a_day')::bigint then 'rows_a_day' when p_pipeline.day_bytes >= (v_limits->>'bytes_a_day')::bigint then 'bytes_a_day' end;
    v_until := (p_pipeline.day + 1)::timestamp at time zone 'UTC';
  end if;
  if v_for is null and v_limits ? 'rate' then
    -- What seems to begin later was begun before the clock went back: it would hold up all runs until then.
    select r.begun_at + ('1 ' || split_part(v_limits->>'rate', '/', 2))::interval into v_until from trunq.pipeline_run r
    where r.pipeline_id = p_pipeline.pipeline_id and r.backfill = 0 and r.begun_at <= v_now order by r.number desc offset split_part(v_limits->>'rate', '/', 1)::integer - 1 limit 1;
    v_for := case when v_until > v_now then 'rate' end;
  end if;
  if v_for is null then
    -- It has other limits since, or their time has come.
    update trunq.pipeline p set put_off_until = null, put_off_for = null where p.pipeline_id = p_pipeline.pipeline_id and p.put_off_until is not null;
    return null;
  end if;
  update trunq.pipeline p set put_off_until = v_until, put_off_for = v_for
  where p.pipeline_id = p_pipeline.pipeline_id and (p.put_off_until, p.put_off_for) is distinct from (v_until, v_for);
  return jsonb_build_object('action', 'wait', 'seconds', least(600, greatest(0.1, extract(epoch from v_until - v_now))))
    || case when v_until > v_now + c_soon then jsonb_build_object('why', format('pipeline "%s" has used its limits.%s (%s): no run of it begins before %s',
      p_pipeline.name, v_for, v_limits->>v_for, date_trunc('second', v_until))) else '{}' end;
end $$;
comment on function trunq._put_off_run is 'What whoever asks for a run of a pipeline is told when it is paused, or has used what its limits give it, with why where that lasts longer than a minute; null: go on. The pipeline is locked.';

create or replace function trunq._count_day(p_pipeline trunq.pipeline, p_attempt trunq.pipeline_attempt) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline p set day = trunq._today(),
    day_rows = case when p.day = trunq._today() then p.day_rows else 0 end + coalesce(p_attempt.rows_out, 0),
    day_bytes = case when p.day = trunq._today() then p.day_bytes else 0 end + coalesce(p_attempt.bytes_out, 0)
  where p.pipeline_id = p_pipeline.pipeline_id
$$;
comment on function trunq._count_day is 'Counts what the sink of a pipeline took today. The pipeline is locked.';

create or replace function trunq._check_pipeline_limits(p_pipeline text, p_definition jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  c_numbers constant text[] := '{running,rows_a_day,bytes_a_day}';
  v_limits jsonb := p_definition->'limits';
  v_wrong text;
begin
  if v_limits is null then
    return;
  elsif jsonb_typeof(v_limits) <> 'object' then
    perform trunq._fail('TQ031', format('pipeline "%s": limits are an object, not %s', p_pipeline, left(v_limits::text, 100)), '{"running": 1, "rate": "10/minute"}');
  end if;
  select e.key into v_wrong from jsonb_each_text(v_limits) e
  where (case when e.key = any(c_numbers) then e.value ~ '^[1-9][0-9]{0,14}$' and (e.key <> 'running' or length(e.value) < 5)
    when e.key = 'rate' then e.value ~ '^[1-9][0-9]{0,3}/(second|minute|hour|day)$' and split_part(e.value, '/', 1)::integer <= 1000 else false end) is not true limit 1;
  if found then
    perform trunq._fail('TQ031', format('pipeline "%s": limits.%s cannot be %s', p_pipeline, left(v_wrong, 100), left((v_limits->v_wrong)::text, 100)),
      'running, rows_a_day and bytes_a_day are numbers from 1, and rate is as "10/minute", 1000 at most a second, minute, hour or day');
  end if;
end $$;
comment on function trunq._check_pipeline_limits is 'Refuses (TQ031) limits that cannot be.';

create or replace function trunq._warn_put_off(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- A rate puts off for a moment, as it is meant to; a pause is _warn_pending's.
  select 'pipelines', null::text, format('pipeline "%s" has used its limits.%s of today (%s): runs of it wait', p.name, p.put_off_for, p.definition #>> array['limits', p.put_off_for]),
    format('it goes on at %s; with other limits, within ten minutes: trunq pipeline create FILE', date_trunc('second', p.put_off_until))
  from trunq.pipeline p
  where p.put_off_until > trunq.clock() and p.put_off_for in ('rows_a_day', 'bytes_a_day') and coalesce(p_queue, 'pipelines') = 'pipelines'
  order by 3 limit 100
$$;
comment on function trunq._warn_put_off is 'Pipelines and instances whose quota of a day is used up, and that somebody has asked for since.';
