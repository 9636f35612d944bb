-- Compaction of a Delta table: what a pipeline does for its sink between two runs. A runner does it when a run has ended, in a commit that
-- any run outruns, so nothing waits for it; here is when it is due, who is at it, and what became of it.

create or replace function trunq._begin_compaction(p_pipeline text, p_after bigint default null, p_hold_for interval default '1 hour') returns uuid
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_holder uuid := gen_random_uuid();
begin
  if p_after is not null and not exists (
    select from trunq.pipeline p left join trunq.pipeline_compaction c using (pipeline_id)
    where p.pipeline_id = v_pipeline.pipeline_id and p.done - coalesce(c.done, 0) >= p_after
      and coalesce(c.retry_at <= trunq.clock(), true) and coalesce(c.held_until <= trunq.clock(), true))
  then
    return null;  -- most runs end here, and write nothing
  end if;
  insert into trunq.pipeline_compaction as c (pipeline_id, holder, held_until, began_at)
  values (v_pipeline.pipeline_id, v_holder, trunq.clock() + p_hold_for, trunq.clock())
  on conflict (pipeline_id) do update set holder = excluded.holder, held_until = excluded.held_until, began_at = excluded.began_at
    where coalesce(c.held_until <= trunq.clock(), true)
      and (p_after is null or v_pipeline.done - c.done >= p_after and coalesce(c.retry_at <= trunq.clock(), true));
  return case when found then v_holder end;
end $$;
comment on function trunq._begin_compaction is
  'Begins a compaction of the table that a pipeline writes, when p_after runs have ended since the last one that succeeded (null: whenever it is asked for), and nobody is at one; null: it is not to be begun.';

create or replace function trunq._end_compaction(
  p_pipeline text, p_token uuid, p_files_merged bigint default null, p_files_made bigint default null, p_files_deleted bigint default null,
  p_error text default null
) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- One that failed is tried again after a minute, then two, up to a day.
  update trunq.pipeline_compaction c set holder = null, held_until = null, ended_at = trunq.clock(), error = p_error, files_merged = p_files_merged,
    files_made = p_files_made, files_deleted = p_files_deleted,
    done = case when p_error is null then p.done else c.done end,
    failures = case when p_error is null then 0 else c.failures + 1 end,
    retry_at = case when p_error is not null then trunq.clock() + least(interval '1 minute' * 2 ^ least(c.failures, 11), interval '1 day') end
  from trunq.pipeline p
  where p.name = p_pipeline and c.pipeline_id = p.pipeline_id and c.holder = p_token
$$;
comment on function trunq._end_compaction is 'Notes what became of a compaction, unless another took over.';

create or replace function trunq.show_compaction(p_pipeline text)
returns table (
  began_at timestamptz, ended_at timestamptz, files_merged bigint, files_made bigint, files_deleted bigint, failures integer, error text, retry_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  return query
    select c.began_at, c.ended_at, c.files_merged, c.files_made, c.files_deleted, c.failures, c.error, c.retry_at
    from trunq.pipeline_compaction c where c.pipeline_id = v_pipeline.pipeline_id;
end $$;
comment on function trunq.show_compaction is
  'What became of the last compaction of the Delta table that a pipeline writes: how many small files were merged into how many, and how many that no reader needs any more were deleted. ended_at older than began_at, or null: one is going on, or its process died.
Returns: one row; none before the first.
Raises: TQ030.';

create or replace function trunq._warn_compactions(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'pipelines', null::text, format('compaction of pipeline "%s" fails: %s', p.name, split_part(c.error, E'\n', 1)),
    format('its runs go on, and its small files stay; it failed %s times. To see why, and have it done: trunq pipeline compact %s', c.failures, p.name)
  from trunq.pipeline_compaction c join trunq.pipeline p using (pipeline_id)
  where c.failures >= 3 and coalesce(p_queue, 'pipelines') = 'pipelines'
  order by 3
$$;
comment on function trunq._warn_compactions is 'Compactions that failed three times in a row.';

create or replace function trunq._tell_named(p_pipeline text) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select trunq._tell_pipeline(trunq._find_pipeline(p_pipeline))
$$;
comment on function trunq._tell_named is 'What whoever works for a pipeline, or an instance, is to know of it.';
