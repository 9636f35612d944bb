-- Rows that broke a rule, with the reasons. An attempt writes them as it meets them; they are shown when the sink has taken that attempt. Where
-- tasks of an attempt write them, each under a part of its own, only those are shown whose part is among the attempt's: a task may be repeated.

create or replace function trunq._quarantine(p_attempt bigint, p_reasons jsonb, p_contents jsonb, p_part text default null) returns bigint
language sql set search_path = pg_catalog, pg_temp as $$
  with written as (
    insert into trunq.quarantine (pipeline_id, attempt, part, reasons, content, created_at)
    select r.pipeline_id, p_attempt, p_part, array(select jsonb_array_elements_text(w.reasons)), c.content, trunq.clock()
    from trunq.pipeline_attempt a join trunq.pipeline_run r on r.run_id = a.run_id,
      jsonb_array_elements(p_reasons) with ordinality w(reasons, at) join jsonb_array_elements(p_contents) with ordinality c(content, at) using (at)
    where a.attempt = p_attempt and r.ended_at is null returning 1)
  select count(*) from written
$$;
comment on function trunq._quarantine is 'Keeps rows of an attempt at an open run, and of a part of it, with a list of reasons each. Returns: how many.';

create or replace function trunq._refuse_staged(p_attempt bigint, p_reason text, p_content jsonb) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  select trunq._quarantine(p_attempt, jsonb_build_array(jsonb_build_array(p_reason)), jsonb_build_array(p_content));
  update trunq.pipeline_attempt a set rows_out = a.rows_out - 1, rows_bad = a.rows_bad + 1 where a.attempt = p_attempt;
$$;
comment on function trunq._refuse_staged is 'Keeps a row of an attempt that was staged, and that its sink refuses, in the quarantine.';

create or replace function trunq._drop_attempts(p_run_id bigint, p_attempt bigint default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- What is staged by now, the sink may take yet. A task that is late finds no attempt that it could write for.
  with dropped as (
    delete from trunq.pipeline_attempt a
    where a.run_id = p_run_id and (p_attempt is null or a.attempt = p_attempt and a.parts is null) returning a.attempt)
  delete from trunq.quarantine q using dropped d where q.attempt = d.attempt
$$;
comment on function trunq._drop_attempts is
  'Forgets an attempt at a run that failed before all was staged, or all attempts at one of which nobody asks any more, with the rows that they kept out: nobody would see them, and each attempt has them anew.';

create or replace function trunq._read_quarantine(p_pipeline text, p_ids jsonb) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_agg(q.content order by q.quarantine_id), '[]') from trunq.quarantine q join trunq.pipeline p on p.pipeline_id = q.pipeline_id
  where p.name = p_pipeline and q.quarantine_id in (select jsonb_array_elements_text(p_ids)::bigint)
$$;
comment on function trunq._read_quarantine is 'Rows of a quarantine by their ids.';

create or replace function trunq._read_reasons(p_pipeline text, p_ids jsonb) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_agg(to_jsonb(q.reasons) order by q.quarantine_id), '[]') from trunq.quarantine q
  join trunq.pipeline p on p.pipeline_id = q.pipeline_id
  where p.name = p_pipeline and q.quarantine_id in (select jsonb_array_elements_text(p_ids)::bigint)
$$;
comment on function trunq._read_reasons is 'The reasons of rows of a quarantine, by their ids, in the order of _read_quarantine.';

create or replace function trunq._find_quarantined(p_pipeline text, p_reason text default null) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  -- Whoever may publish may say in headers that rows are to come again.
  perform trunq._check_resend(trunq._find_pipeline(p_pipeline));
  return coalesce(jsonb_agg(f.quarantine_id), '[]') from (
    select q.quarantine_id from trunq.quarantine q join trunq.pipeline p on p.pipeline_id = q.pipeline_id
    where p.name = p_pipeline and q.run_id is not null and (p_reason is null or p_reason = any(q.reasons)) order by 1 limit 10000) f;
end $$;
comment on function trunq._find_quarantined is 'Ids of rows in a quarantine, 10,000 at most.';

create or replace function trunq.list_quarantine(p_pipeline text, p_reason text default null, p_limit integer default 100, p_before bigint default null)
returns table (pipeline text, quarantine_id bigint, number bigint, reasons text[], content jsonb, created_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  perform trunq._check_limit(p_limit);
  return query
    select p.name, q.quarantine_id, r.number, q.reasons, q.content, q.created_at
    from trunq.quarantine q join trunq.pipeline p on p.pipeline_id = q.pipeline_id left join trunq.pipeline_run r on r.run_id = q.run_id
    where q.pipeline_id = any(trunq._find_series(v_pipeline)) and q.run_id is not null and (p_reason is null or p_reason = any(q.reasons)) and (p_before is null or q.quarantine_id < p_before)
    order by q.quarantine_id desc limit p_limit;
end $$;
comment on function trunq.list_quarantine is
  'Rows of a pipeline that broke a rule, newest first, p_limit of them at most (100), with the run that met them, and the pipeline, or the instance, whose run that was; of one reason or all. p_before: the smallest quarantine_id of the page before.
Raises: TQ005, TQ030.';

create or replace function trunq.count_quarantine(p_pipeline text) returns table (reason text, quarantined bigint, newest_at timestamptz, example jsonb)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  return query
    select c.reason, c.quarantined, e.created_at, e.content
    from (
      select w.reason, count(*) as quarantined, max(q.quarantine_id) as newest from trunq.quarantine q, unnest(q.reasons) w(reason)
      where q.pipeline_id = any(trunq._find_series(v_pipeline)) and q.run_id is not null group by 1
    ) c join trunq.quarantine e on e.quarantine_id = c.newest
    order by 2 desc, 1;
end $$;
comment on function trunq.count_quarantine is
  'How many rows of a pipeline broke which rule, the most frequent first; a row that broke two is counted by both. example: the newest of them, kept out at newest_at.
Raises: TQ030.';

create or replace function trunq._check_resend(p_pipeline trunq.pipeline) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_mode constant text := p_pipeline.definition #>> '{sink,mode}';
begin
  if v_mode = 'apply' then
    perform trunq._fail('TQ031', format('pipeline "%s" applies changes, and a row of its quarantine may be older than that of its sink', p_pipeline.name),
      format('change the row in the source, and it comes again; or trunq pipeline state %s --reset has the next run read all of the table anew', p_pipeline.name));
  elsif v_mode in ('replace', 'replace_partitions') then
    perform trunq._fail('TQ031', format('pipeline "%s" has mode %s: rows that are sent again would be there alone, and %s gone', p_pipeline.name, v_mode,
      case v_mode when 'replace' then 'all others' else 'the others of their partitions' end),
      format('a run reads all that its source has, and those that pass by then are written: %strunq pipeline run %s; without what is kept out: trunq pipeline quarantine %s --purge',
        case when p_pipeline.definition #>> '{source,format}' in ('csv', 'json', 'parquet') then format('trunq pipeline state %s --reset, and ', p_pipeline.name) end,
        p_pipeline.name, p_pipeline.name));
  end if;
  perform trunq._require_own_runs(p_pipeline);
end $$;
comment on function trunq._check_resend is 'Refuses (TQ031) to send rows of a quarantine again to a sink that would take older rows for newer ones, or drop all others, and of a pipeline whose instances have them.';

create or replace function trunq.resend_quarantine(p_pipeline text, p_reason text default null) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._check_resend(trunq._find_pipeline(p_pipeline));
  perform trunq._audit('resend_quarantine', null, jsonb_build_object('pipeline', p_pipeline, 'reason', p_reason));
  return trunq.publish('pipelines', jsonb_build_object('reason', p_reason), p_pipeline, nullif(split_part(p_pipeline, '/', 2), ''), p_headers => '{"resend": true}');
end $$;
comment on function trunq.resend_quarantine is
  'Asks for a run that sends rows of the quarantine through the pipeline once more, of one reason or all, the oldest 10,000 at most. Those that pass leave the quarantine in the step in which that run ends; those that break a rule again come back with the new reasons.
Returns: the id of the message.
Raises: TQ001, TQ030; TQ031 for the modes apply, replace and replace_partitions, and for a pipeline with per, whose instances have the rows.';

create or replace function trunq.purge_quarantine(p_pipeline text, p_reason text default null) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_count bigint;
begin
  delete from trunq.quarantine q where q.pipeline_id = any(trunq._find_series(v_pipeline)) and q.run_id is not null and (p_reason is null or p_reason = any(q.reasons));
  get diagnostics v_count = row_count;
  perform trunq._audit('purge_quarantine', null, jsonb_build_object('pipeline', p_pipeline, 'reason', p_reason), v_count);
  return v_count;
end $$;
comment on function trunq.purge_quarantine is
  'Deletes rows of the quarantine of a pipeline, of one reason or all.
Returns: how many.
Raises: TQ030.';
