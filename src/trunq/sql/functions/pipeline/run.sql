-- A run of a pipeline: a numbered slice of its source, fixed before anything is read. Whoever has a message that asks for one goes
--
--   _open_run    what there is to do: this message has had its run; or there is an open run to take up; or one is to be planned
--   _begin_run   the slice is fixed
--   _try_run     an attempt begins: a random number
--   _stage_run   all its rows are staged: how many, in which parts, and the state after it
--                (the sink takes data and mark, the run's number and the attempt's, in one commit)
--   _finish_run  the sink says which attempt it holds: that one's state becomes the pipeline's
--
-- Killed before the sink's commit, the slice is read again. Killed after it, the mark says that the data is in. Two at the same run (one lost
-- its lease and works on) may both stage: the sink takes one of them, and state and counts are that one's. Nobody has to guess.
--
-- Runs of a pipeline are one after the other: at most one is open. Whoever is at it says so until a time (_hold_run); others wait until then.
-- That only saves work: nothing depends on it.
--
-- What people do about one that stands still is in given_up.sql.
--
-- A message that was committed before the slice of a run was fixed asks for nothing that is not in that slice: if it says the same as that
-- run's, the run is its run too. So what piles up while one runs becomes one.

create or replace function trunq._open_run(
  p_pipeline text, p_message_id bigint, p_payload jsonb default null, p_backfill boolean default false, p_hold_for interval default '30 seconds',
  p_message jsonb default null
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_backfill bigint := case when p_backfill then p_message_id else 0 end;
  v_run trunq.pipeline_run;
  v_first record;
  v_now timestamptz;
  v_put_off jsonb;
begin
  perform trunq._require_read_committed('_open_run');
  v_pipeline := trunq._hold_asked(p_pipeline, p_payload, p_message);
  if v_pipeline.pipeline_id is null then
    return jsonb_build_object('action', 'begin', 'definition', (trunq._find_pipeline(p_pipeline)).definition);
  end if;
  v_now := trunq.clock();
  select r.* into v_run from trunq.pipeline_run r where r.message_id = p_message_id and r.pipeline_id = v_pipeline.pipeline_id and r.ended_at is not null;
  if found then
    return jsonb_build_object('action', 'answer', 'run', trunq._tell_run(v_run));
  elsif p_backfill and trunq._is_share_over(v_pipeline.pipeline_id, p_message_id) then
    v_run.outcome := 'cancelled';
    return jsonb_build_object('action', 'answer', 'run', trunq._tell_run(v_run));
  end if;
  if not p_backfill then
    select r.* into v_run from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and not r.is_settled order by r.number limit 1;
    if found then
      return trunq._take_run(v_pipeline, v_run);
    end if;
  end if;
  select r.* into v_run from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = v_backfill and r.ended_at is null;
  if found then
    -- The same message again: whoever had it lost its lease.
    if trunq._is_run_held(v_run) and v_run.holder is distinct from p_message_id or trunq._is_full(v_pipeline, p_message_id) then
      return jsonb_build_object('action', 'wait', 'seconds', least(30, greatest(1, extract(epoch from v_now - v_run.begun_at) / 10)));
    end if;
    update trunq.pipeline_run r set holder = p_message_id, held_until = v_now + p_hold_for where r.run_id = v_run.run_id returning r.* into v_run;
    return trunq._take_run(v_pipeline, v_run);
  end if;
  if not p_backfill then
    select l.txid, l.created_at into v_first from trunq_log.pipelines l where l.id = p_message_id order by l.txid limit 1;
    select r.* into v_run from trunq.pipeline_run r
    where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = 0 and r.outcome = 'done' and r.payload is not distinct from p_payload
      and r.begun_at >= v_first.created_at and pg_visible_in_snapshot(v_first.txid, r.snapshot) order by r.number limit 1;
    if found then
      return jsonb_build_object('action', 'answer', 'run', trunq._tell_run(v_run));
    end if;
  end if;
  if p_backfill then
    -- Whoever may publish may say so in headers; rows that a sink would have twice, or alone, no message brings.
    perform trunq._check_backfill(v_pipeline, p_payload);
  end if;
  v_put_off := trunq._put_off_run(v_pipeline);
  if v_put_off is not null then
    return v_put_off;
  elsif trunq._is_full(v_pipeline, p_message_id) then
    return jsonb_build_object('action', 'wait', 'seconds', 2);
  end if;
  -- Of the source, all that was committed before this is seen by whoever plans after it.
  return jsonb_build_object('action', 'plan', 'snapshot', trunq.snapshot()::text, 'state', v_pipeline.state, 'done', v_pipeline.done,
    'plan_hash', case when p_backfill then trunq._hash_range(v_pipeline) else trunq._hash_plan(v_pipeline) end, 'failures', v_pipeline.failures) || trunq._tell_pipeline(v_pipeline);
end $$;
comment on function trunq._open_run is
  'What whoever has a message that asks for a run is to do: answer (the run is over), take (this run is open, or is to be settled), wait (somebody is at it, or the pipeline is paused, or has used its limits), plan a slice, or begin the instance, once the message is checked, by a call with what it says as p_message. infinity as a pause is 10 seconds here.';

create or replace function trunq._take_run(p_pipeline trunq.pipeline, p_run trunq.pipeline_run) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object('action', 'take', 'run', trunq._tell_run(p_run), 'state', p_pipeline.state) || trunq._tell_pipeline(p_pipeline)
$$;
comment on function trunq._take_run is 'Has somebody take up a run.';

create or replace function trunq._tell_pipeline(p_pipeline trunq.pipeline) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Of one without instances, its newest run knows what a message said.
  select jsonb_build_object('pipeline', p_pipeline.name, 'message', case when p_pipeline.message is not null or not p_pipeline.definition ? 'message' then p_pipeline.message
    else (select r.slice->'message' from trunq.pipeline_run r where r.pipeline_id = p_pipeline.pipeline_id and r.backfill = 0 and r.slice ? 'message' order by r.number desc limit 1) end, 'identity', p_pipeline.identity, 'definition', p_pipeline.definition, 'sink_hash', trunq._hash_sink(p_pipeline), 'marked', p_pipeline.marked,
    'refused', p_pipeline.refused, 'hint', p_pipeline.hint)
$$;
comment on function trunq._tell_pipeline is 'What whoever works on a run is to know of its pipeline.';

create or replace function trunq._begin_run(
  p_pipeline text, p_message_id bigint, p_slice jsonb, p_snapshot text, p_done bigint, p_payload jsonb default null, p_backfill boolean default false,
  p_chain uuid default null, p_started_by text default null, p_hold_for interval default '30 seconds', p_plan_hash bigint default null
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
  v_run trunq.pipeline_run;
begin
  if not p_backfill and (v_pipeline.done <> p_done or trunq._hash_plan(v_pipeline) <> p_plan_hash)
    or p_backfill and trunq._hash_range(v_pipeline) <> p_plan_hash then
    return null;
  elsif trunq._is_full(v_pipeline, p_message_id) then
    -- A backfill and a run were planned at the same time.
    return null;
  elsif p_backfill and trunq._is_share_over(v_pipeline.pipeline_id, p_message_id) then
    -- Given up, or cancelled, while it was planned.
    return null;
  end if;
  insert into trunq.pipeline_run (pipeline_id, backfill, number, message_id, payload, chain, started_by, slice, snapshot, begun_at, holder, held_until)
  values (v_pipeline.pipeline_id, case when p_backfill then p_message_id else 0 end, case when p_backfill then 1 else p_done + 1 end, p_message_id, p_payload,
    coalesce(p_chain, gen_random_uuid()), p_started_by, p_slice, p_snapshot::pg_snapshot, trunq.clock(), p_message_id, trunq.clock() + p_hold_for)
  on conflict do nothing
  returning * into v_run;
  if v_run.backfill = 0 and v_pipeline.parent_id is not null then
    update trunq.pipeline p set message = p_slice->'message', put_off_until = null, put_off_for = null
    where p.pipeline_id = v_pipeline.pipeline_id and (p.message is distinct from p_slice->'message' or p.put_off_until is not null);
  end if;
  if v_run.backfill = 0 and v_pipeline.failures > 0 then
    perform trunq._note_plan(v_pipeline.name);
  end if;
  return case when v_run.run_id is not null then trunq._tell_run(v_run) end;
end $$;
comment on function trunq._begin_run is
  'Begins the run of a slice that was planned when p_done was the newest run that had ended, and state, source and sink (of a backfill, the latter two alone) those of p_plan_hash; null when another has begun meanwhile, or one of them was set, or no more may run at once.';

create or replace function trunq._note_plan(p_pipeline text, p_error text default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline p set failures = case when p_error is null then 0 else p.failures + 1 end,
    failing_since = case when p_error is not null then coalesce(p.failing_since, trunq.clock()) end, error = left(p_error, trunq._limit('error_characters'))
  where p.name = p_pipeline and (p_error is not null or p.failures > 0)
$$;
comment on function trunq._note_plan is 'Why a run of a pipeline could not begin; null: it could, or there was nothing new.';

create or replace function trunq._note_nothing(p_pipeline text, p_done bigint, p_state jsonb, p_plan_hash bigint) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline p set state = p_state, looked_at = trunq.clock() where p.name = p_pipeline and p.done = p_done and trunq._hash_plan(p) = p_plan_hash
    and not exists (select from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is null)
$$;
comment on function trunq._note_nothing is
  'The source has nothing new up to this state: the next look begins there, unless the state, the source or the sink was set while this one looked (they had p_plan_hash).';

create or replace function trunq._hash_plan(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(concat_ws(' ', p_pipeline.identity, p_pipeline.state, p_pipeline.definition->'source', p_pipeline.definition->'sink'), 0)
$$;
comment on function trunq._hash_plan is 'By which state, source and sink are known again, of which a slice was planned: what goes through Python may come back with fewer digits.';

create or replace function trunq._hash_range(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(concat_ws(' ', p_pipeline.identity, p_pipeline.definition->'source', p_pipeline.definition->'sink'), 0)
$$;
comment on function trunq._hash_range is 'As trunq._hash_plan, of a range: usual runs, which go on beside it, move the state.';

create or replace function trunq._hash_sink(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(p_pipeline.definition->>'sink', 0)
$$;
comment on function trunq._hash_sink is 'By which the sink is known again that a run was committed to.';

create or replace function trunq._try_run(p_run_id bigint, p_engine text default null, p_engine_reason text default null) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_attempt bigint := greatest(1, trunq._token());
begin
  update trunq.pipeline_run r set attempts = r.attempts + 1, engine = p_engine, engine_reason = p_engine_reason
  where r.run_id = p_run_id and r.ended_at is null;
  if not found then
    return null;
  end if;
  insert into trunq.pipeline_attempt (attempt, run_id, begun_at, engine, engine_reason) values (v_attempt, p_run_id, trunq.clock(), p_engine, p_engine_reason);
  return v_attempt;
end $$;
comment on function trunq._try_run is
  'Begins an attempt at an open run: a random number, so that a database that was set back makes none that a sink has; null when the run is over. p_engine: where its rows pass, and p_engine_reason: why.';

create or replace function trunq._hold_run(p_run_id bigint, p_holder bigint, p_progress jsonb, p_hold_for interval default '30 seconds') returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_run trunq.pipeline_run;
begin
  -- One that came back late has the same message, and so let go of what we hold: nobody else is at it.
  update trunq.pipeline_run r set holder = p_holder, held_until = trunq.clock() + p_hold_for, progress = coalesce(p_progress, r.progress)
  where r.run_id = p_run_id and r.ended_at is null and coalesce(r.holder, p_holder) = p_holder returning r.* into v_run;
  return case when not found then 'over' when v_run.is_cancelled then 'cancelled' end;
end $$;
comment on function trunq._hold_run is
  'Who is at a run says so, and how far it is. over: the run has ended or another is at it; cancelled: it is to be given up; null: go on.';

create or replace function trunq._let_run_go(p_run_id bigint, p_holder bigint, p_error text default null, p_has_failed boolean default true) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set held_until = null, holder = null, error = coalesce(left(p_error, trunq._limit('error_characters')), r.error),
    failures = r.failures + f.failed, failing_since = case when f.failed = 1 then coalesce(r.failing_since, trunq.clock()) else r.failing_since end
  from (select (p_error is not null and p_has_failed)::integer as failed) f
  where r.run_id = p_run_id and (r.holder = p_holder and r.ended_at is null or not r.is_settled)
$$;
comment on function trunq._let_run_go is
  'Who was at a run is not any more: others need not wait. p_error: why; p_has_failed: and that is a failure.';

create or replace function trunq._note_crash(p_pipeline text, p_message_id bigint, p_error text) returns integer
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set held_until = null, holder = null, error = left(p_error, trunq._limit('error_characters')), crashes = r.crashes + 1,
    failures = r.failures + 1, failing_since = coalesce(r.failing_since, trunq.clock())
  from trunq.pipeline p
  where p.name = p_pipeline and r.pipeline_id = p.pipeline_id and r.ended_at is null and r.holder = p_message_id
  returning r.crashes
$$;
comment on function trunq._note_crash is
  'The process that was at a run for a message crashed.
Returns: how often that has happened to the run; null when it was not at one.';

create or replace function trunq._stage_run(
  p_attempt bigint, p_parts text[], p_rows_in bigint, p_rows_out bigint, p_rows_bad bigint, p_state_after jsonb default null,
  p_bytes_in bigint default null, p_bytes_out bigint default null, p_source_ms bigint default null, p_work_ms bigint default null,
  p_sink_ms bigint default null, p_newest_at timestamptz default null, p_columns jsonb default null, p_newest_by text default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline_id integer;
begin
  -- The sink, which may be elsewhere, is not to know of an attempt that a crash took from here.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'local', true);
  end if;
  -- Whoever ends the run waits for us, or we for them: after its end, nobody has anything to commit that was not staged before.
  select r.pipeline_id into v_pipeline_id from trunq.pipeline_run r join trunq.pipeline_attempt a on a.run_id = r.run_id
  where a.attempt = p_attempt and r.ended_at is null for share of r;
  if not found then
    return false;
  end if;
  update trunq.pipeline_attempt a set parts = p_parts, state_after = p_state_after, rows_in = p_rows_in, rows_out = p_rows_out, rows_bad = p_rows_bad,
    bytes_in = p_bytes_in, bytes_out = p_bytes_out, source_ms = p_source_ms, work_ms = p_work_ms, sink_ms = p_sink_ms, newest_at = p_newest_at,
    newest_by = p_newest_by, columns = trunq._find_new_columns(v_pipeline_id, p_columns)
  where a.attempt = p_attempt;
  return found;
end $$;
comment on function trunq._stage_run is
  'All rows of an attempt are staged: what the run becomes if the sink takes it, with its figures (figure.sql); p_columns: those that the sink has for the rows, with their types.
Returns: false when the run is over, and the sink is to take nothing of this attempt.';

create or replace function trunq._finish_run(
  p_run_id bigint, p_attempt bigint, p_number bigint default null, p_sink_hash bigint default null, p_commit_ms bigint default null
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_run trunq.pipeline_run;
  v_attempt trunq.pipeline_attempt;
  v_is_current boolean;
begin
  select p.* into v_pipeline from trunq.pipeline p join trunq.pipeline_run r on r.pipeline_id = p.pipeline_id where r.run_id = p_run_id for no key update of p;
  select r.* into v_run from trunq.pipeline_run r where r.run_id = p_run_id;
  if not found or v_run.ended_at is not null and v_run.is_settled then
    return trunq._tell_run(v_run);
  end if;
  if p_attempt <> 0 then
    select a.* into v_attempt from trunq.pipeline_attempt a where a.attempt = p_attempt and a.run_id = p_run_id and a.parts is not null;
  end if;
  if p_number <> v_run.number or p_attempt <> 0 and v_attempt.attempt is null then
    return trunq._note_sink(p_run_id, coalesce(p_number, v_run.number));
  end if;
  update trunq.pipeline_run r set ended_at = coalesce(r.ended_at, trunq.clock()), outcome = case when p_attempt <> 0 then 'done' else coalesce(r.outcome, 'cancelled') end,
    attempt = nullif(p_attempt, 0), rows_in = v_attempt.rows_in, rows_out = v_attempt.rows_out, rows_bad = v_attempt.rows_bad,
    bytes_in = v_attempt.bytes_in, bytes_out = v_attempt.bytes_out, source_ms = v_attempt.source_ms, work_ms = v_attempt.work_ms,
    sink_ms = v_attempt.sink_ms + coalesce(p_commit_ms, 0), engine = v_attempt.engine, engine_reason = v_attempt.engine_reason, newest_at = v_attempt.newest_at, holder = null, held_until = null,
    error = case when p_attempt = 0 then r.error end, is_settled = true, sink_number = null
  where r.run_id = p_run_id returning r.* into v_run;
  delete from trunq.quarantine q using trunq.pipeline_attempt a
  where a.run_id = p_run_id and q.attempt = a.attempt and (q.attempt <> p_attempt or q.part is not null and q.part <> all(a.parts));
  delete from trunq.pipeline_attempt a where a.run_id = p_run_id and a.attempt <> p_attempt;
  -- Of another sink, which it has by now, this run tells nothing.
  v_is_current := p_sink_hash is null or p_sink_hash = trunq._hash_sink(v_pipeline);
  if v_run.backfill = 0 then
    update trunq.pipeline p set done = v_run.number, state = coalesce(v_attempt.state_after, p.state), asked = array_remove(p.asked, v_run.message_id),
      marked = case when p_sink_hash = trunq._hash_sink(p) then v_run.number else p.marked end,
      -- Of a column that says it no more, this run tells nothing either.
      newest_at = case when p_attempt <> 0 and v_is_current and v_attempt.newest_by is not distinct from trunq._freshness_column(p.definition)
        then trunq._next_newest(p.definition, p.newest_at, v_attempt.newest_at) else p.newest_at end
    where p.pipeline_id = v_pipeline.pipeline_id;
    if v_pipeline.definition->'trigger' ? 'continuous' then
      perform trunq._call_runners();
    end if;
  end if;
  if p_attempt <> 0 then
    if v_attempt.columns is not null and v_is_current then
      perform trunq._note_columns(v_run, v_attempt.columns);
    end if;
    perform trunq._settle_run(v_pipeline, v_run);
    if v_pipeline.definition ? 'limits' then
      perform trunq._count_day(v_pipeline, v_attempt);
    end if;
  end if;
  perform trunq._end_share(v_run, v_run.outcome, v_run.rows_out);
  -- Shares of a backfill, of which there may be thousands, take the place of no usual run.
  delete from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.ended_at is not null and r.is_settled
    and (r.backfill = 0) = (v_run.backfill = 0) and r.run_id <= (select o.run_id from trunq.pipeline_run o
      where o.pipeline_id = v_pipeline.pipeline_id and (o.backfill = 0) = (v_run.backfill = 0) order by o.run_id desc offset 1000 limit 1);
  return trunq._tell_run(v_run);
end $$;
comment on function trunq._finish_run is
  'Ends, or settles, a run as its sink says: with the attempt that it holds, or (0) with none, since the run was given up. State, counts and quarantine are that attempt''s; pipelines that run after it get their message. A run that has ended stays as it is. p_number: the run that the sink holds; p_sink_hash: which sink that is; p_commit_ms: how long its commit took, where that was seen.
Returns: the run; with "is_lost" when the sink holds another run, or an attempt, that this database knows nothing of: that is noted, and nothing ends.';

create or replace function trunq._note_sink(p_run_id bigint, p_number bigint) returns jsonb
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set sink_number = p_number where r.run_id = p_run_id returning trunq._tell_run(r) || '{"is_lost": true}'
$$;
comment on function trunq._note_sink is 'Notes which run the sink of a run holds, where this database does not expect it: one of the two was set back.';

create or replace function trunq._settle_run(p_pipeline trunq.pipeline, p_run trunq.pipeline_run) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_run.slice ? 'quarantine' then
    delete from trunq.quarantine q where q.quarantine_id in (select jsonb_array_elements_text(p_run.slice->'quarantine')::bigint);
  elsif p_run.slice ?| array['all', 'snapshot'] and coalesce(p_pipeline.definition #>> '{sink,mode}', 'append') <> 'append' then
    -- It has read all rows again: those that earlier runs kept out have passed, are kept out anew, or are gone.
    delete from trunq.quarantine q where q.pipeline_id = p_run.pipeline_id and q.run_id < p_run.run_id;
  end if;
  update trunq.quarantine q set run_id = p_run.run_id where q.attempt = p_run.attempt;
  if p_run.backfill = 0 and p_run.slice ? 'files' then
    perform trunq._note_files(p_run);
  end if;
  if p_run.backfill = 0 then
    perform trunq.publish('pipelines', m.payload, f.name, trunq._read_per(f.definition, m.payload),
      p_headers => jsonb_build_object('chain', p_run.chain, 'by', p_pipeline.name))
    from trunq.pipeline f, lateral (
      select case when f.definition ? 'per' then coalesce(case when not p_run.slice ? 'quarantine' then nullif(p_run.payload, 'null') end, p_run.slice->'message') end as payload) m
    where f.name = any(p_pipeline.followers);
  end if;
end $$;
comment on function trunq._settle_run is 'What follows from a run that its sink has taken.';

create or replace function trunq._note_files(p_run trunq.pipeline_run) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into trunq.pipeline_file (pipeline_id, path, size, modified_at, number)
  select p_run.pipeline_id, f->>0, (f->>1)::bigint, (f->>2)::bigint, p_run.number from jsonb_array_elements(p_run.slice->'files') f
  on conflict do nothing
$$;
comment on function trunq._note_files is 'No further run reads the files of this one.';

create or replace function trunq._find_new_files(p_pipeline text, p_files jsonb, p_limit integer default null) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_agg(n.f order by n.at), '[]') from (
    select f, at from jsonb_array_elements(p_files) with ordinality g(f, at)
    where not exists (
      select from trunq.pipeline_file k join trunq.pipeline p on p.pipeline_id = k.pipeline_id
      where p.name = p_pipeline and k.path = f->>0 and k.size = (f->>1)::bigint and k.modified_at = (f->>2)::bigint)
    order by at limit p_limit) n
$$;
comment on function trunq._find_new_files is 'Of files (path, size, time in nanoseconds) those that no run of the pipeline has read.';

create or replace function trunq._find_changed_files(p_pipeline text, p_files jsonb) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_agg(f->>0 order by at), '[]') from jsonb_array_elements(p_files) with ordinality g(f, at)
  where exists (select from trunq.pipeline_file k join trunq.pipeline p on p.pipeline_id = k.pipeline_id where p.name = p_pipeline and k.path = f->>0)
$$;
comment on function trunq._find_changed_files is 'Of files that no run of the pipeline has read, the paths of those that one has read as they were before.';

create or replace function trunq._tell_run(p_run trunq.pipeline_run) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object('run_id', p_run.run_id, 'number', p_run.number, 'backfill', p_run.backfill, 'message_id', p_run.message_id, 'chain', p_run.chain,
    'outcome', p_run.outcome, 'rows_in', p_run.rows_in, 'rows_out', p_run.rows_out, 'rows_bad', p_run.rows_bad, 'slice', p_run.slice, 'payload', p_run.payload,
    'is_cancelled', p_run.is_cancelled, 'begun_at', p_run.begun_at)
$$;
comment on function trunq._tell_run is 'A run as an object, for who works on it.';

create or replace function trunq._warn_pipelines(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- How often stands in the hint: the leader logs the same words once.
  select 'pipelines', null::text, format('run %s of pipeline "%s" has failed since %s: %s', r.number, p.name, date_trunc('second', r.failing_since), split_part(r.error, E'\n', 1)),
    format('it failed %s times. ', r.failures) || case when r.sink_number is not null then format('To go on all the same: trunq pipeline accept %s', p.name)
      when r.ended_at is not null then format('it is given up, and its sink is to note that. With another sink: trunq pipeline create FILE')
      else format('After a mistake in its file: trunq pipeline create FILE; to give it up: trunq pipeline cancel %s%s', p.name,
        case when r.backfill <> 0 then format(' --backfill %s', r.backfill)
          when r.slice ? 'after' then format('; with its rows: trunq pipeline skip %s', p.name) else '' end) end
  from trunq.pipeline_run r join trunq.pipeline p on p.pipeline_id = r.pipeline_id
  where (r.ended_at is null or not r.is_settled) and (r.failures >= 3 or r.sink_number is not null and r.failures > 0) and coalesce(p_queue, 'pipelines') = 'pipelines'
  union all
  select 'pipelines', null, format('pipeline "%s" has found no file that matches %s', p.name, p.state->>'unmatched'),
    'is that path right, as a runner sees it? With another one: trunq pipeline create FILE'
  from trunq.pipeline p
  where p.state ? 'unmatched' and p.definition->'source'->>'path' is not null and coalesce(p_queue, 'pipelines') = 'pipelines'
    and not exists (select from trunq.pipeline_file f where f.pipeline_id = p.pipeline_id)
  order by 3
$$;
comment on function trunq._warn_pipelines is 'Runs of pipelines that are open, or to be settled, and failed three times, or whose sink holds an unexpected run; and files that never came.';
