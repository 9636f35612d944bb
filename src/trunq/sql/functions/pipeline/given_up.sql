-- What people do about a run that does not end.
--
-- A run that is given up while nobody is at it (cancel_pipeline), or for good (skip_pipeline), ends at once. Its sink may hold it all the same,
-- if somebody was killed after the commit, and somebody frozen may still commit it. So no attempt of it can be staged any more (_stage_run), and
-- whoever comes next has the sink note that it brings nothing before anything else is planned (settled): if the sink holds it, it is done.
--
-- A sink that holds a newer run than this database knows, or an attempt that it does not know, or an older run than it held before: one of
-- the two was set back. Nothing runs until somebody accepts that (accept_pipeline).

create or replace function trunq.cancel_pipeline(p_pipeline text, p_backfill bigint default 0) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_instance(p_pipeline);
  v_run trunq.pipeline_run;
begin
  perform trunq._audit('cancel_pipeline', null, jsonb_build_object('pipeline', p_pipeline, 'backfill', p_backfill));
  if p_backfill <> 0 and trunq._cancel_shares(v_pipeline, p_backfill) then
    return true;
  end if;
  -- It would ask for the same again at once.
  if p_backfill = 0 and v_pipeline.definition->'trigger' ? 'continuous' and (v_pipeline.paused_until > trunq.clock()) is not true then
    perform trunq.pause_pipeline(p_pipeline);
  end if;
  update trunq.pipeline_run r set is_cancelled = true where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = p_backfill and r.ended_at is null
  returning r.* into v_run;
  if not found then
    return false;
  elsif not trunq._is_run_held(v_run) then
    perform trunq._give_up_run(v_run, 'cancelled');
  end if;
  return true;
end $$;
comment on function trunq.cancel_pipeline is
  'Cancels the open run of a pipeline, or of a backfill of it, with all shares that are not done: none of its rows arrives, the state stays, and the next run reads from there. A run that no runner is working on ends at once; a runner that is working on it is told, and ends it (if that runner has died, cancel it again after 30 seconds). Rows that are in the sink already stay: such a run ends as done when the next runner finds it. A continuous pipeline is paused as well, until it is resumed.
Returns: false when no run is open.
Raises: TQ030.
Locks: the pipeline, the run.';

create or replace function trunq.skip_pipeline(p_pipeline text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_instance(p_pipeline);
  v_run trunq.pipeline_run;
begin
  perform trunq._audit('skip_pipeline', null, jsonb_build_object('pipeline', p_pipeline));
  select r.* into v_run from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = 0 and r.ended_at is null for no key update;
  if not found then
    return null;
  elsif not v_run.slice ? 'after' then
    perform trunq._fail('TQ031', format('run %s of pipeline "%s" has read nothing that says where the next one begins', v_run.number, p_pipeline),
      format('trunq pipeline cancel %s gives it up, and the next run begins where it began; trunq pipeline state %s --set says another place', p_pipeline, p_pipeline));
  end if;
  update trunq.pipeline p set state = v_run.slice->'after' where p.pipeline_id = v_pipeline.pipeline_id;
  update trunq.pipeline_attempt a set state_after = null where a.run_id = v_run.run_id;
  if v_run.slice ? 'files' then
    perform trunq._note_files(v_run);
  end if;
  perform trunq._give_up_run(v_run, 'skipped');
  return jsonb_build_object('number', v_run.number, 'slice', v_run.slice - 'after', 'before', v_pipeline.state, 'after', v_run.slice->'after');
end $$;
comment on function trunq.skip_pipeline is
  'Gives up the open run of a pipeline with its rows: it ends at once as skipped, and the next run begins behind its slice, so none of these rows ever arrives. A runner that is working on it is told. If the sink has taken it already, it ends as done.
Returns: the number of the run and its slice, which says what is left out: files, or what the source has between the states before and after; null when no run is open. list_runs shows it later.
Raises: TQ030; TQ031 where only the end of a run tells what it has read (http, python, rows of the quarantine).
Locks: the pipeline, the run.';

create or replace function trunq._give_up_run(p_run trunq.pipeline_run, p_outcome text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set ended_at = trunq.clock(), outcome = p_outcome, is_cancelled = true, holder = null, held_until = null,
    -- A backfill is a series of its own: nothing comes after it that could have its rows again.
    is_settled = r.backfill <> 0, failures = 0, failing_since = null
  where r.run_id = p_run.run_id;
  update trunq.pipeline p set done = p_run.number, asked = array_remove(p.asked, p_run.message_id) where p.pipeline_id = p_run.pipeline_id and p_run.backfill = 0;
  select trunq._drop_attempts(p_run.run_id) where p_run.backfill <> 0;
  select trunq._end_share(p_run, p_outcome, null);
  select trunq._call_runners();
$$;
comment on function trunq._give_up_run is 'Ends a run here; its sink is asked by whoever comes next.';

create or replace function trunq.accept_pipeline(p_pipeline text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_instance(p_pipeline);
  v_run trunq.pipeline_run;
begin
  perform trunq._audit('accept_pipeline', null, jsonb_build_object('pipeline', p_pipeline));
  select r.* into v_run from trunq.pipeline_run r
  where r.pipeline_id = v_pipeline.pipeline_id and r.sink_number is not null and (r.ended_at is null or not r.is_settled) order by r.run_id limit 1 for no key update;
  if not found then
    return null;
  end if;
  if v_run.backfill <> 0 or v_run.sink_number < v_run.number then
    update trunq.pipeline_run r set sink_number = null, ended_at = coalesce(r.ended_at, case when r.backfill <> 0 then trunq.clock() end),
      outcome = coalesce(r.outcome, case when r.backfill <> 0 then 'cancelled' end) where r.run_id = v_run.run_id;
    perform trunq._end_share(v_run, 'cancelled', null);
  else
    -- The sink takes no run of a number that it has passed: this one cannot be in it any more.
    perform trunq._give_up_run(v_run, coalesce(v_run.outcome, 'cancelled'));
    update trunq.pipeline_run r set is_settled = true, sink_number = null where r.run_id = v_run.run_id;
  end if;
  perform trunq._drop_attempts(v_run.run_id) where v_run.backfill <> 0 or v_run.sink_number >= v_run.number;
  update trunq.pipeline p set done = case when v_run.backfill = 0 then greatest(p.done, v_run.sink_number) else p.done end, marked = 0
  where p.pipeline_id = v_pipeline.pipeline_id;
  return v_run.sink_number;
end $$;
comment on function trunq.accept_pipeline is
  'Goes on with a pipeline whose sink holds another run than this database knows, because one of the two was set back (a failover, a backup), as a runner has found: from the state that this database has, or that you have set before. What the sink has of runs that are lost here comes again, twice where the sink appends; what the sink has lost does not come again by itself.
Returns: the run that the sink holds; null when there is nothing to accept.
Raises: TQ030.
Locks: the pipeline, the run.';
