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
-- A message that was committed before the slice of a run was fixed asks for nothing that is not in that slice: if it says the same as that
-- run's, the run is its run too. So what piles up while one runs becomes one.

create or replace function trunq._open_run(
  p_pipeline text, p_message_id bigint, p_payload jsonb default null, p_backfill boolean default false, p_hold_for interval default '30 seconds'
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_backfill bigint := case when p_backfill then p_message_id else 0 end;
  v_run trunq.pipeline_run;
  v_first record;
  v_now timestamptz;
begin
  perform trunq._require_read_committed('_open_run');
  v_pipeline := trunq._hold_pipeline(p_pipeline);
  v_now := trunq.clock();
  select r.* into v_run from trunq.pipeline_run r where r.message_id = p_message_id and r.pipeline_id = v_pipeline.pipeline_id and r.ended_at is not null;
  if found then
    return jsonb_build_object('action', 'answer', 'run', trunq._tell_run(v_run));
  end if;
  select r.* into v_run from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = v_backfill and r.ended_at is null;
  if found then
    -- The same message again: whoever had it lost its lease.
    if v_run.held_until > v_now and v_run.holder is distinct from p_message_id then
      return jsonb_build_object('action', 'wait', 'seconds', least(30, greatest(1, extract(epoch from v_now - v_run.begun_at) / 10)));
    end if;
    update trunq.pipeline_run r set holder = p_message_id, held_until = v_now + p_hold_for where r.run_id = v_run.run_id returning r.* into v_run;
    return jsonb_build_object('action', 'take', 'run', trunq._tell_run(v_run), 'state', v_pipeline.state, 'identity', v_pipeline.identity, 'definition', v_pipeline.definition);
  end if;
  if v_pipeline.paused_until > v_now then
    return jsonb_build_object('action', 'wait', 'seconds', least(10, greatest(0.1, extract(epoch from v_pipeline.paused_until - v_now))));
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
  -- Of the source, all that was committed before this is seen by whoever plans after it.
  return jsonb_build_object('action', 'plan', 'snapshot', trunq.snapshot()::text, 'state', v_pipeline.state, 'done', v_pipeline.done,
    'plan_hash', trunq._hash_plan(v_pipeline), 'identity', v_pipeline.identity, 'definition', v_pipeline.definition);
end $$;
comment on function trunq._open_run(text, bigint, jsonb, boolean, interval) is
  'What whoever has a message that asks for a run is to do: answer (the run is over), take (this run is open), wait (somebody is at it, or the pipeline is paused) or plan a slice. infinity as a pause is 10 seconds here.';

create or replace function trunq._begin_run(
  p_pipeline text, p_message_id bigint, p_slice jsonb, p_snapshot text, p_done bigint, p_payload jsonb default null, p_backfill boolean default false,
  p_chain uuid default null, p_started_by text default null, p_hold_for interval default '30 seconds', p_plan_hash bigint default null
) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
  v_run trunq.pipeline_run;
begin
  if not p_backfill and (v_pipeline.done <> p_done or trunq._hash_plan(v_pipeline) <> p_plan_hash) then
    return null;
  end if;
  insert into trunq.pipeline_run (pipeline_id, backfill, number, message_id, payload, chain, started_by, slice, snapshot, begun_at, holder, held_until)
  values (v_pipeline.pipeline_id, case when p_backfill then p_message_id else 0 end, case when p_backfill then 1 else p_done + 1 end, p_message_id, p_payload,
    coalesce(p_chain, gen_random_uuid()), p_started_by, p_slice, p_snapshot::pg_snapshot, trunq.clock(), p_message_id, trunq.clock() + p_hold_for)
  on conflict do nothing
  returning * into v_run;
  return case when found then trunq._tell_run(v_run) end;
end $$;
comment on function trunq._begin_run(text, bigint, jsonb, text, bigint, jsonb, boolean, uuid, text, interval, bigint) is
  'Begins the run of a slice that was planned when p_done was the newest run that had ended, and state, source and sink those of p_plan_hash; null when another has begun meanwhile, or one of them was set.';

create or replace function trunq._note_nothing(p_pipeline text, p_done bigint, p_state jsonb, p_plan_hash bigint) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline p set state = p_state where p.name = p_pipeline and p.done = p_done and trunq._hash_plan(p) = p_plan_hash
    and not exists (select from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is null)
$$;
comment on function trunq._note_nothing(text, bigint, jsonb, bigint) is
  'The source has nothing new up to this state: the next look begins there, unless the state, the source or the sink was set while this one looked (they had p_plan_hash).';

create or replace function trunq._hash_plan(p_pipeline trunq.pipeline) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select hashtextextended(concat_ws(' ', p_pipeline.state, p_pipeline.definition->'source', p_pipeline.definition->'sink'), 0)
$$;
comment on function trunq._hash_plan(trunq.pipeline) is 'By which state, source and sink are known again, of which a slice was planned: what goes through Python may come back with fewer digits.';

create or replace function trunq._try_run(p_run_id bigint) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_attempt bigint := greatest(1, trunq._token());
begin
  update trunq.pipeline_run r set attempts = r.attempts + 1 where r.run_id = p_run_id and r.ended_at is null;
  if not found then
    return null;
  end if;
  insert into trunq.pipeline_attempt (attempt, run_id, begun_at) values (v_attempt, p_run_id, trunq.clock());
  return v_attempt;
end $$;
comment on function trunq._try_run(bigint) is
  'Begins an attempt at an open run: a random number, so that a database that was set back makes none that a sink has; null when the run is over.';

create or replace function trunq._hold_run(p_run_id bigint, p_holder bigint, p_progress jsonb, p_hold_for interval default '30 seconds') returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_run trunq.pipeline_run;
begin
  update trunq.pipeline_run r set held_until = trunq.clock() + p_hold_for, progress = coalesce(p_progress, r.progress)
  where r.run_id = p_run_id and r.ended_at is null and r.holder = p_holder returning r.* into v_run;
  return case when not found then 'over' when v_run.is_cancelled then 'cancelled' end;
end $$;
comment on function trunq._hold_run(bigint, bigint, jsonb, interval) is
  'Who is at a run says so, and how far it is. over: the run has ended or another is at it; cancelled: it is to be given up; null: go on.';

create or replace function trunq._let_go(p_run_id bigint, p_holder bigint, p_error text default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set held_until = null, holder = null, error = left(p_error, trunq._limit('error_characters'))
  where r.run_id = p_run_id and r.ended_at is null and r.holder = p_holder
$$;
comment on function trunq._let_go(bigint, bigint, text) is 'Who was at a run is not any more, because of an error: others need not wait.';

create or replace function trunq._note_crash(p_pipeline text, p_message_id bigint, p_error text) returns integer
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.pipeline_run r set held_until = null, holder = null, error = left(p_error, trunq._limit('error_characters')), crashes = r.crashes + 1
  from trunq.pipeline p
  where p.name = p_pipeline and r.pipeline_id = p.pipeline_id and r.ended_at is null and r.holder = p_message_id
  returning r.crashes
$$;
comment on function trunq._note_crash(text, bigint, text) is
  'The process that was at a run for a message crashed.
Returns: how often that has happened to the run; null when it was not at one.';

create or replace function trunq._stage_run(
  p_attempt bigint, p_parts text[], p_rows_in bigint, p_rows_out bigint, p_rows_bad bigint, p_state_after jsonb default null
) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- The sink, which may be elsewhere, is not to know of an attempt that a crash took from here.
  select set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') = 'off';
  update trunq.pipeline_attempt a set parts = p_parts, state_after = p_state_after, rows_in = p_rows_in, rows_out = p_rows_out, rows_bad = p_rows_bad
  where a.attempt = p_attempt
$$;
comment on function trunq._stage_run(bigint, text[], bigint, bigint, bigint, jsonb) is 'All rows of an attempt are staged: what the run becomes if the sink takes it.';

create or replace function trunq._finish_run(p_run_id bigint, p_attempt bigint) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_run trunq.pipeline_run;
  v_attempt trunq.pipeline_attempt;
begin
  select p.* into v_pipeline from trunq.pipeline p join trunq.pipeline_run r on r.pipeline_id = p.pipeline_id where r.run_id = p_run_id for no key update of p;
  select r.* into v_run from trunq.pipeline_run r where r.run_id = p_run_id;
  if not found or v_run.ended_at is not null then
    return trunq._tell_run(v_run);
  end if;
  if p_attempt <> 0 then
    select a.* into v_attempt from trunq.pipeline_attempt a where a.attempt = p_attempt and a.run_id = p_run_id and a.parts is not null;
    if not found then
      perform trunq._fail('TQ031', format('the sink of pipeline "%s" holds an attempt at run %s that this database knows nothing of', v_pipeline.name, v_run.number),
        'this database was set back, or another has the same pipeline: make the pipeline anew, with a state that fits what is in the sink');
    end if;
  end if;
  update trunq.pipeline_run r set ended_at = trunq.clock(), outcome = case when p_attempt = 0 then 'cancelled' else 'done' end, attempt = nullif(p_attempt, 0),
    rows_in = v_attempt.rows_in, rows_out = v_attempt.rows_out, rows_bad = v_attempt.rows_bad, holder = null, held_until = null,
    error = case when p_attempt = 0 then r.error end
  where r.run_id = p_run_id returning r.* into v_run;
  delete from trunq.quarantine q using trunq.pipeline_attempt a
  where a.run_id = p_run_id and q.attempt = a.attempt and (q.attempt <> p_attempt or q.part is not null and q.part <> all(a.parts));
  delete from trunq.pipeline_attempt a where a.run_id = p_run_id and a.attempt <> p_attempt;
  if v_run.backfill = 0 then
    update trunq.pipeline p set done = v_run.number, state = coalesce(v_attempt.state_after, p.state), asked = array_remove(p.asked, v_run.message_id)
    where p.pipeline_id = v_pipeline.pipeline_id;
    if v_pipeline.definition->'trigger' ? 'continuous' then
      perform trunq._call_runners();
    end if;
  end if;
  if p_attempt <> 0 then
    perform trunq._settle_run(v_pipeline, v_run);
  end if;
  delete from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.ended_at is not null
    and r.run_id <= (select o.run_id from trunq.pipeline_run o where o.pipeline_id = v_pipeline.pipeline_id order by o.run_id desc offset 1000 limit 1);
  return trunq._tell_run(v_run);
end $$;
comment on function trunq._finish_run(bigint, bigint) is
  'Ends a run as its sink says: with the attempt that it holds, or (0) with none, since the run was cancelled. State, counts and quarantine are that attempt''s; pipelines that run after it get their message. A run that has ended stays as it is.';

create or replace function trunq._settle_run(p_pipeline trunq.pipeline, p_run trunq.pipeline_run) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_run.slice ? 'quarantine' then
    delete from trunq.quarantine q where q.quarantine_id in (select jsonb_array_elements_text(p_run.slice->'quarantine')::bigint);
  end if;
  update trunq.quarantine q set run_id = p_run.run_id where q.attempt = p_run.attempt;
  if p_run.backfill = 0 and p_run.slice ? 'files' then
    insert into trunq.pipeline_file (pipeline_id, path, size, modified_at, number)
    select p_pipeline.pipeline_id, f->>0, (f->>1)::bigint, (f->>2)::bigint, p_run.number from jsonb_array_elements(p_run.slice->'files') f
    on conflict do nothing;
  end if;
  if p_run.backfill = 0 then
    perform trunq.publish('pipelines', null, f, p_headers => jsonb_build_object('chain', p_run.chain, 'by', p_pipeline.name))
    from unnest(p_pipeline.followers) f;
  end if;
end $$;
comment on function trunq._settle_run(trunq.pipeline, trunq.pipeline_run) is 'What follows from a run that its sink has taken.';

create or replace function trunq._find_new_files(p_pipeline text, p_files jsonb, p_limit integer default null) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_agg(n.f order by n.at), '[]') from (
    select f, at from jsonb_array_elements(p_files) with ordinality g(f, at)
    where not exists (
      select from trunq.pipeline_file k join trunq.pipeline p on p.pipeline_id = k.pipeline_id
      where p.name = p_pipeline and k.path = f->>0 and k.size = (f->>1)::bigint and k.modified_at = (f->>2)::bigint)
    order by at limit p_limit) n
$$;
comment on function trunq._find_new_files(text, jsonb, integer) is 'Of files (path, size, time in nanoseconds) those that no run of the pipeline has read.';

create or replace function trunq._tell_run(p_run trunq.pipeline_run) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object('run_id', p_run.run_id, 'number', p_run.number, 'backfill', p_run.backfill, 'message_id', p_run.message_id, 'chain', p_run.chain,
    'outcome', p_run.outcome, 'rows_in', p_run.rows_in, 'rows_out', p_run.rows_out, 'rows_bad', p_run.rows_bad, 'slice', p_run.slice, 'payload', p_run.payload,
    'is_cancelled', p_run.is_cancelled)
$$;
comment on function trunq._tell_run(trunq.pipeline_run) is 'A run as an object, for who works on it.';

create or replace function trunq.cancel_pipeline(p_pipeline text, p_backfill bigint default 0) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
begin
  -- It would ask for the same again at once.
  if p_backfill = 0 and v_pipeline.definition->'trigger' ? 'continuous' and (v_pipeline.paused_until > trunq.clock()) is not true then
    perform trunq.pause_pipeline(p_pipeline);
  end if;
  update trunq.pipeline_run r set is_cancelled = true where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = p_backfill and r.ended_at is null;
  return found;
end $$;
comment on function trunq.cancel_pipeline(text, bigint) is
  'Cancels the open run of a pipeline, or of a backfill of it: whoever is at it, or comes next, has its sink note that this run brings nothing. The state stays: the next run reads from there. What is in the sink already is not taken back: such a run ends as done. A continuous pipeline is paused as well, until it is resumed.
Returns: false when no run is open.
Raises: TQ030.
Locks: the run.';

create or replace function trunq.list_runs(p_pipeline text default null, p_chain uuid default null, p_limit integer default 100)
returns table (
  pipeline text, number bigint, backfill bigint, message_id bigint, chain uuid, started_by text, begun_at timestamptz, ended_at timestamptz, outcome text,
  attempts integer, rows_in bigint, rows_out bigint, rows_bad bigint, error text, is_cancelled boolean, progress jsonb, payload jsonb, slice jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline is not null then
    perform trunq._find_pipeline(p_pipeline);
  end if;
  perform trunq._check_limit(p_limit);
  return query
    select p.name, r.number, r.backfill, r.message_id, r.chain, r.started_by, r.begun_at, r.ended_at, r.outcome, r.attempts, r.rows_in, r.rows_out, r.rows_bad,
      r.error, r.is_cancelled, r.progress, r.payload, r.slice
    from trunq.pipeline_run r join trunq.pipeline p on p.pipeline_id = r.pipeline_id
    where (p_pipeline is null or p.name = p_pipeline) and (p_chain is null or r.chain = p_chain)
    order by r.run_id desc limit p_limit;
end $$;
comment on function trunq.list_runs(text, uuid, integer) is
  'Runs, newest first: of a pipeline, of a chain (a run and those that ran after it, which have one chain), or all. outcome null: it is open; error: of its newest attempt that failed; started_by: the pipeline that it ran after; backfill: the message that asked for a range, or 0.
Raises: TQ005, TQ030.';
