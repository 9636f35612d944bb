-- A pipeline moves rows from a source into a sink. Its row holds what it is (definition, which Python reads: src/trunq/pipeline), where its
-- next slice begins (state) and the number of the newest run that ended (done). A run is asked for by a message of the queue "pipelines"
-- whose kind is the pipeline's name; run.sql has what happens then.
--
-- A definition is kept as it was written: ${NAME} stands for what a runner has in its environment, so no password lies here.
--
-- Locks: pipelines are made and dropped one at a time, or two that name each other as followers would make a circle. The row of a pipeline
-- is held by whoever begins or ends a run of it, for that one statement. Whoever makes a pipeline anew, or drops it, holds its row and then
-- those of its instances; its row not for update until it has all of these: who changes an instance twice in a transaction locks its parent's key.

create or replace function trunq.create_pipeline(p_pipeline text, p_definition jsonb, p_due_times timestamptz[] default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_old trunq.pipeline;
  v_new trunq.pipeline;
  v_followers text[];
  v_open text;
begin
  perform trunq._check_name('pipeline', p_pipeline);
  v_followers := trunq._check_definition(p_pipeline, p_definition);
  p_definition := trunq._check_tables(p_pipeline, p_definition);
  if not exists (select from trunq.queue q where q.name = 'pipelines') then
    perform trunq.create_queue('pipelines', p_lanes => case when p_definition ? 'per' then 'priority,key' end);
  end if;
  perform pg_advisory_xact_lock(trunq._lock_class('pipelines'), 0);
  perform trunq._check_followers(p_pipeline, v_followers);
  perform trunq._check_pipeline_limits(p_pipeline, p_definition);
  perform trunq._check_trigger(p_pipeline, p_definition);
  perform trunq._check_sink_alone(p_pipeline, p_definition->'sink');
  select p.* into v_old from trunq.pipeline p where p.name = p_pipeline for no key update;
  -- No run of an instance begins meanwhile, either.
  perform from trunq.pipeline p where p.parent_id = v_old.pipeline_id for no key update;
  perform trunq._check_per(p_pipeline, p_definition, v_followers, v_old.definition);
  if v_old.pipeline_id is null then
    perform trunq._check_own_name(p_pipeline, p_definition);
    insert into trunq.pipeline (name, definition, followers) values (p_pipeline, p_definition, v_followers) returning * into v_new;
    perform trunq._set_trigger(v_new, null, p_due_times);
    return true;
  end if;
  if (p_definition, v_followers) is not distinct from (v_old.definition, v_old.followers) then
    -- A subscription that somebody dropped comes back, and so do times that were computed by older rules of a time zone.
    if p_due_times is not null or p_definition #>> '{trigger,on}' = 'message'
      and not trunq._has_subscription(p_definition #>> '{trigger,queue}', 'trigger_' || p_pipeline) then
      perform trunq._set_trigger(v_old, v_old.definition->'trigger', p_due_times);
    end if;
    return null;
  end if;
  if p_definition->'source' is distinct from v_old.definition->'source' or p_definition->'sink' is distinct from v_old.definition->'sink' then
    select p.name into v_open from trunq.pipeline_run r join trunq.pipeline p on p.pipeline_id = r.pipeline_id
    where v_old.pipeline_id in (p.pipeline_id, p.parent_id) and r.ended_at is null order by 1 limit 1;
    if p_definition->'source'->>'format' is distinct from v_old.definition->'source'->>'format' then
      perform trunq._fail('TQ031', format('pipeline "%s" reads from a %s: where it is would mean nothing to a %s',
        p_pipeline, v_old.definition->'source'->>'format', p_definition->'source'->>'format'), 'make a pipeline of another name, or drop this one first');
    end if;
    perform trunq._check_soft(p_pipeline, p_definition, v_old.definition);
    if trunq._slice_part(p_definition->'source') <> trunq._slice_part(v_old.definition->'source')
      and v_open is not null
    then
      perform trunq._fail('TQ031', format('pipeline "%s" has an open run, whose slice is of the source that it has now', v_open),
        format('let it end, or give it up: trunq pipeline cancel %s (select trunq.cancel_pipeline(''%s''))', v_open, v_open));
    end if;
    if p_definition #>> '{source,queue}' <> v_old.definition #>> '{source,queue}' then
      perform trunq._check_other_queue(p, p_definition), trunq._leave_source(p) from trunq.pipeline p where v_old.pipeline_id in (p.pipeline_id, p.parent_id);
    end if;
  end if;
  perform trunq._leave_takers(p_pipeline, p_definition->'source');
  perform trunq._leave_capture(p_pipeline, p_definition->'source');
  -- The values of its trigger are looked at anew.
  update trunq.pipeline p set definition = p_definition, followers = v_followers, unfit = null,
    -- What another sink holds, its first run tells.
    marked = case when p_definition->'sink' = v_old.definition->'sink' then p.marked else 0 end,
    newest_at = case when trunq._sink_target(p_definition) = trunq._sink_target(v_old.definition)
      and trunq._freshness_column(p_definition) = trunq._freshness_column(v_old.definition) then p.newest_at end
  where v_old.pipeline_id in (p.pipeline_id, p.parent_id);
  select p.* into v_new from trunq.pipeline p where p.pipeline_id = v_old.pipeline_id;
  if trunq._sink_target(p_definition) <> trunq._sink_target(v_old.definition) then
    delete from trunq.pipeline_column k using trunq.pipeline p where k.pipeline_id = p.pipeline_id and v_old.pipeline_id in (p.pipeline_id, p.parent_id);
  end if;
  perform trunq._set_trigger(v_new, v_old.definition->'trigger', p_due_times);
  return false;
end $$;
comment on function trunq.create_pipeline is
  'Makes a pipeline, or changes the one of that name, whose state and runs stay. p_definition: an object with source and sink, each with a format; and what trunq.pipeline.Pipeline has besides. then: names of pipelines that run after each run that succeeded. trigger: what starts it by itself; p_due_times: the next times of a trigger with a cron text, which the caller computes. It makes the queue "pipelines" where there is none.
Returns: true when it was made, false when it was changed; null when it was the same before, and nothing is written.
Raises: TQ004, TQ031, also for another source while a run is open, unless its slice stays the same (how files, pages or rows are read may change, and so may the sink), for another queue while the state is a place in the one so far, for a name that begins as that of another which makes subscriptions, and for a sink that another pipeline replaces; TQ030 for an unknown name in then; TQ001, TQ005, TQ017 for a trigger.
Locks: others who make or drop a pipeline; the pipeline.';

create or replace function trunq._slice_part(p_source jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- Which of many tables it is of, the message of its run says. A slice of files is a list of them, one of an API has pages that were landed, one of a function is its state.
  select case when p_source->>'format' in ('csv', 'json', 'parquet', 'python') then jsonb_build_object('format', p_source->>'format')
    when p_source->>'format' = 'http' then p_source - '{headers,oauth,per_second,time_out,types,keep,max_pages,rows,errors}'::text[]
    when p_source->>'format' = 'history' then p_source - '{payload,max_messages}'::text[]
    when p_source->>'format' = 'jdbc' then p_source - '{user,password,driver,properties,shares,share_by,lag}'::text[]
    else p_source - '{tables,except}'::text[] end
$$;
comment on function trunq._slice_part is 'What of a source a slice, once it is fixed, depends on.';

create or replace function trunq.drop_pipeline(p_pipeline text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_before text;
  v_pipeline trunq.pipeline;
begin
  perform trunq._audit('drop_pipeline', null, jsonb_build_object('pipeline', p_pipeline));
  perform pg_advisory_xact_lock(trunq._lock_class('pipelines'), 0);
  v_pipeline := trunq._find_pipeline(p_pipeline);
  select p.name into v_before from trunq.pipeline p where p_pipeline = any(p.followers) and p.parent_id is null order by p.name limit 1;
  if found then
    perform trunq._fail('TQ031', format('pipeline "%s" runs "%s" after itself', v_before, p_pipeline), format('take it out of then of "%s" first', v_before));
  end if;
  -- The pipeline first, and then what its trigger has, as whoever pauses it or relays for it. A look that is at it may find that its table is back.
  v_pipeline := trunq._hold_pipeline(p_pipeline);
  perform trunq._require_no_table(v_pipeline);
  perform trunq._end_trigger(p_pipeline, v_pipeline.definition->'trigger');
  perform trunq._leave_takers(p_pipeline, null);
  perform trunq._leave_capture(p_pipeline, null);
  perform from trunq.pipeline p where p.parent_id = v_pipeline.pipeline_id for update;
  perform trunq._leave_source(p), trunq._note_left(p) from trunq.pipeline p where v_pipeline.pipeline_id in (p.pipeline_id, p.parent_id);
  delete from trunq.pipeline p where p.name = p_pipeline;
  perform trunq._call_runners();
end $$;
comment on function trunq.drop_pipeline is
  'Drops a pipeline, or an instance, with its state, its trigger, its runs and its quarantine; of a queue of this database that it reads, also the subscription pipeline_<name>, unless its definition names another, and the capture that it made. What it wrote stays, and so do messages that ask for runs of it. Where its sink may have what an attempt had staged, a runner is asked to remove that.
Raises: TQ030; TQ031 while another runs it after itself, and for one of many tables that is there; TQ009 while an open transaction uses the table that it captures.
Locks: others who make or drop a pipeline; the pipeline.';

create or replace function trunq.list_pipelines(p_pipeline text default null)
returns table (
  pipeline text, source text, sink text, followers text[], paused boolean, paused_until timestamptz, runs bigint, open_run bigint, open_since timestamptz,
  last_outcome text, last_ended_at timestamptz, error text, quarantined bigint, state jsonb, definition jsonb, created_at timestamptz,
  trigger jsonb, next_due timestamptz, fresh_at timestamptz, age interval, fresh_by text
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline is not null then
    perform trunq._find_pipeline(p_pipeline);
  end if;
  return query
    select p.name, p.definition->'source'->>'format', p.definition->'sink'->>'format', p.followers, coalesce(u.until > trunq.clock(), false),
      case when u.until > trunq.clock() then nullif(u.until, 'infinity') end, p.done + i.done, o.number, o.begun_at, l.outcome, l.ended_at,
      coalesce(p.error, o.error, l.error, i.error), i.quarantined + (select count(*) from trunq.quarantine q where q.pipeline_id = p.pipeline_id and q.run_id is not null), p.state, p.definition, p.created_at,
      p.definition->'trigger', s.next_due, f.fresh_at, case when f.fresh_at is not null then greatest(trunq.clock() - f.fresh_at, interval '0') end,
      case when p.newest_at is not null then trunq._freshness_column(p.definition) end
    from trunq.pipeline p
    left join trunq.schedule s on s.pipeline_id = p.pipeline_id
    left join trunq.pipeline_run o on o.pipeline_id = p.pipeline_id and o.backfill = 0 and o.ended_at is null
    left join lateral (
      select r.outcome, r.ended_at, r.error from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is not null
      order by r.number desc limit 1
    ) l on true
    left join lateral (
      select r.begun_at from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.outcome = 'done' and not r.slice ? 'quarantine'
      order by r.number desc limit 1
    ) d on true
    cross join lateral (select coalesce(p.newest_at, greatest(p.looked_at, d.begun_at)) as fresh_at) f
    cross join lateral trunq._sum_instances(p) i
    cross join lateral (select greatest(p.paused_until, (select a.paused_until from trunq.pipeline a where a.pipeline_id = p.parent_id)) as until) u
    where p_pipeline is null and p.parent_id is null or p.name = p_pipeline
    order by p.name;
end $$;
comment on function trunq.list_pipelines is
  'Pipelines by name, or the one of a name, which may be an instance (list_instances); of a pipeline with per, runs, quarantined and error are of all its instances. runs: how many of them ended; open_run: the number of the one that is open; paused_until null: until it is resumed; error: of the newest attempt that failed; quarantined: rows; trigger: what starts it by itself, null: nothing; next_due: when it is due next, with every or cron. fresh_at: the newest value in its sink of the column fresh_by; with fresh_by null, when the newest slice that is in the sink was fixed, or the source had nothing new; age: how long ago that is.
Raises: TQ030.';

create or replace function trunq.pause_pipeline(p_pipeline text, p_until timestamptz default 'infinity') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
begin
  perform trunq._audit('pause_pipeline', null, jsonb_build_object('pipeline', p_pipeline, 'until', p_until));
  perform trunq._check_pause(format('pipeline "%s"', p_pipeline), p_until);
  update trunq.pipeline p set paused_until = p_until where p.pipeline_id = v_pipeline.pipeline_id;
  perform trunq._pause_trigger(v_pipeline, p_until);
end $$;
comment on function trunq.pause_pipeline is
  'Begins no run of a pipeline before p_until (left out: until it is resumed). Messages that ask for a run wait, its trigger publishes none, and the current run goes on to its end.
Raises: TQ030; TQ005 for a time that is over.
Locks: the pipeline.';

create or replace function trunq.resume_pipeline(p_pipeline text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
begin
  perform trunq._audit('resume_pipeline', null, jsonb_build_object('pipeline', p_pipeline));
  update trunq.pipeline p set paused_until = null where p.pipeline_id = v_pipeline.pipeline_id;
  perform trunq._pause_trigger(v_pipeline, null);
  return coalesce(v_pipeline.paused_until > trunq.clock(), false);
end $$;
comment on function trunq.resume_pipeline is
  'Ends the pause of a pipeline.
Returns: false when it was not paused.
Raises: TQ030.
Locks: the pipeline.';

create or replace function trunq.run_pipeline(p_pipeline text, p_payload jsonb default null, p_priority smallint default 0) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_key text := trunq._read_per(v_pipeline.definition, p_payload);
begin
  if v_pipeline.parent_id is not null then
    if v_key is distinct from split_part(p_pipeline, '/', 2) and p_payload is not null then
      perform trunq._fail('TQ031', format('the message is not of instance "%s": its %s is another', p_pipeline, v_pipeline.definition->>'per'),
        format('give it to pipeline "%s", or leave it out', split_part(p_pipeline, '/', 1)));
    end if;
    v_key := split_part(p_pipeline, '/', 2);
  elsif v_key is null and v_pipeline.definition ? 'per' and (p_payload is not null or not v_pipeline.definition->'source' ? 'tables') then
    perform trunq._fail('TQ031', format('pipeline "%s" has a run for each %s, %s', p_pipeline, v_pipeline.definition->>'per',
      coalesce('and this message has no value of it that can be one: ' || left(p_payload::text, 100), 'so a message has to say which')),
      format('name one: trunq pipeline run %s --message ''%s''', p_pipeline,
      trunq._nest(string_to_array(substr(v_pipeline.definition->>'per', 9), '.'), '"acme"')));
  end if;
  return trunq.publish('pipelines', p_payload, p_pipeline, v_key, p_priority => p_priority);
end $$;
comment on function trunq.run_pipeline is
  'Asks for a run of a pipeline: publishes a message into the queue "pipelines" with its name as kind, which you may as well do yourself, or a schedule. The functions of the pipeline find p_payload as context.message. Messages with equal payloads, or none, that wait while a run goes on get one run. With per, the message names the instance, whose value is its key; the name of an instance asks for a run of that one with the message that it had last. Of a pipeline of many tables, no payload asks for a run of each table. p_priority: in a queue "pipelines" with lanes by priority, the smallest first.
Returns: the id of the message.
Raises: TQ001, TQ005, TQ030, TQ006; TQ031 for a message without what per names.';

create or replace function trunq.backfill_pipeline(p_pipeline text, p_range jsonb, p_every text default null, p_at_once integer default 1) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
begin
  perform trunq._check_backfill(v_pipeline, p_range);
  perform trunq._audit('backfill_pipeline', null, jsonb_build_object('pipeline', p_pipeline, 'range', p_range, 'every', p_every));
  if p_every is not null then
    return trunq._begin_shares(v_pipeline, p_range, p_every, p_at_once);
  elsif p_at_once is distinct from 1 then
    perform trunq._fail('TQ005', format('pipeline "%s": at_once is for a range in shares', p_pipeline), 'give p_every, as ''1 month''');
  end if;
  return trunq._publish_range(p_pipeline, p_range, false);
end $$;
comment on function trunq.backfill_pipeline is
  'Asks for a run that reads a range again and does not move the state; the other runs go on beside it. A range of a table: {"column": "day", "from": "2030-01-01", "to": "2030-02-01"}. For sinks with mode upsert and newest, and for replace_partitions where the column of the range is one of partition_by and no function, sql or transform changes rows, nor cast, rename or mask a column. p_every cuts the range into shares of that length (1 month, or a number where from and to are numbers), up to 10,000: each is a run of its own, p_at_once of them (1, up to 32) at a time. list_backfills tells how far they are, rerun_shares runs those again that failed.
Returns: the id of the message; of shares, that of the first, which names the backfill.
Raises: TQ001, TQ005, TQ030, TQ031.
Locks: the pipeline.';

create or replace function trunq._check_backfill(p_pipeline trunq.pipeline, p_range jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_definition jsonb := p_pipeline.definition;
  v_sink jsonb := v_definition->'sink';
  v_mode text := coalesce(v_sink->>'mode', 'append');
begin
  perform trunq._require_own_runs(p_pipeline);
  if jsonb_typeof(p_range) is distinct from 'object' or p_range = '{}' then
    perform trunq._fail('TQ031', format('pipeline "%s": a range to fill is a JSON object, not %s', p_pipeline.name, left(coalesce(p_range::text, 'null'), 100)),
      'of a table: {"column": "day", "from": "2030-01-01", "to": "2030-02-01"}');
  elsif v_mode = 'replace_partitions' then
    -- A partition is replaced by what a range has of it, which has to be all of it.
    if v_sink->'partition_by' ? (p_range->>'column') is not true then
      perform trunq._fail('TQ031', format('pipeline "%s" replaces whole partitions, and a range of %s may have a part of one', p_pipeline.name,
        coalesce(quote_ident(p_range->>'column'), 'no column')), format('of one of the columns in partition_by: %s', v_sink->'partition_by'));
    elsif v_definition ?| array['function', 'sql', 'transform'] then
      perform trunq._fail('TQ031', format('pipeline "%s" changes rows by function, sql or transform: nothing says that a range of the source has whole partitions of the sink', p_pipeline.name),
        'a range can be filled with mode upsert');
    elsif v_definition->'columns' ?| array['cast', 'rename', 'mask'] then
      perform trunq._fail('TQ031', format('pipeline "%s" casts, renames or masks columns: nothing says that a range of the source has whole partitions of the sink', p_pipeline.name),
        'a range can be filled with mode upsert');
    end if;
  elsif v_mode = 'apply' then
    perform trunq._fail('TQ031', format('pipeline "%s" has every change of its table: a range of it is in the sink already', p_pipeline.name),
      format('trunq pipeline state %s --reset has the next run read all of the table anew', p_pipeline.name));
  elsif v_mode <> 'upsert' then
    perform trunq._fail('TQ031', format('pipeline "%s" has mode %s: rows of a range that are in its sink would be there %s', p_pipeline.name, v_mode,
      case v_mode when 'replace' then 'alone, and all others gone' else 'twice' end), 'a range can be filled with mode upsert');
  elsif v_sink->>'newest' is null then
    perform trunq._fail('TQ031', format('pipeline "%s": runs go on beside a backfill, which must not put an older row over a newer one', p_pipeline.name),
      'give its sink newest, a column that grows with each change of a row');
  end if;
end $$;
comment on function trunq._check_backfill is 'Refuses (TQ031) a range, or a pipeline whose sink would have rows of a range twice.';

create or replace function trunq.set_pipeline_state(p_pipeline text, p_state jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_instance(p_pipeline);
begin
  if jsonb_typeof(p_state) is distinct from 'object' then
    perform trunq._fail('TQ031', format('the state of pipeline "%s" is a JSON object, not %s', p_pipeline, left(coalesce(p_state::text, 'null'), 100)), '{} begins at the beginning');
  elsif exists (select from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = 0 and r.ended_at is null) then
    perform trunq._fail('TQ031', format('pipeline "%s" has an open run, which will set its state', p_pipeline), format('let it end, or give it up: trunq pipeline cancel %s', p_pipeline));
  end if;
  perform trunq._audit('set_pipeline_state', null, jsonb_build_object('pipeline', p_pipeline, 'state', p_state));
  update trunq.pipeline p set state = p_state, marked = 0 where p.pipeline_id = v_pipeline.pipeline_id;
  -- A run that was given up may turn out to be in the sink; where the next one begins is said by now.
  update trunq.pipeline_attempt a set state_after = null from trunq.pipeline_run r
  where r.run_id = a.run_id and r.pipeline_id = v_pipeline.pipeline_id and not r.is_settled;
  if p_state = '{}' then
    delete from trunq.pipeline_file f where f.pipeline_id = v_pipeline.pipeline_id;
  end if;
  return v_pipeline.state;
end $$;
comment on function trunq.set_pipeline_state is
  'Sets where the next slice of a pipeline begins; {}: at the beginning, with every file as if it were new. What is in the sink stays, so a pipeline that appends may double rows.
Returns: the state before.
Raises: TQ030, TQ031.
Locks: the pipeline.';

create or replace function trunq._find_pipeline(p_pipeline text) returns trunq.pipeline
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
begin
  select p.* into v_pipeline from trunq.pipeline p where p.name = p_pipeline;
  if not found then
    perform trunq._fail('TQ030', format('there is no pipeline "%s"', coalesce(p_pipeline, '')), 'select * from trunq.list_pipelines() shows those there are');
  end if;
  return v_pipeline;
end $$;
comment on function trunq._find_pipeline is 'A pipeline by its name, or TQ030.';

create or replace function trunq._hold_pipeline(p_pipeline text) returns trunq.pipeline
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
begin
  loop
    select p.* into v_pipeline from trunq.pipeline p where p.name = p_pipeline for no key update;
    exit when found;
    -- Dropped while this waited: another of that name may be there by now.
    perform trunq._find_pipeline(p_pipeline);
  end loop;
  return v_pipeline;
end $$;
comment on function trunq._hold_pipeline is
  'A pipeline by its name, or TQ030, as it is once whoever changes or drops it is done; locked to the end of the transaction.';

create or replace function trunq._check_definition(p_pipeline text, p_definition jsonb) returns text[]
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  c_sources constant text[] := '{table,queue,history,csv,json,parquet,http,python,jdbc}';
  c_sinks constant text[] := '{table,queue,delta,parquet,http,jdbc}';
begin
  if jsonb_typeof(p_definition) is distinct from 'object' then
    perform trunq._fail('TQ031', format('pipeline "%s": a definition is a JSON object, not %s', p_pipeline, left(coalesce(p_definition::text, 'null'), 100)));
  elsif jsonb_typeof(p_definition->'source'->'format') is distinct from 'string' then
    perform trunq._fail('TQ031', format('pipeline "%s" has no source with a format', p_pipeline), '"source": {"format": "table", ...}');
  elsif jsonb_typeof(p_definition->'sink'->'format') is distinct from 'string' then
    perform trunq._fail('TQ031', format('pipeline "%s" has no sink with a format', p_pipeline), '"sink": {"format": "table", ...}');
  elsif p_definition->'source'->>'format' <> all(c_sources) then
    perform trunq._fail('TQ031', format('pipeline "%s": there is no source of the format "%s"', p_pipeline, left(p_definition->'source'->>'format', 100)),
      format('there are %s', array_to_string(c_sources, ', ')));
  elsif p_definition->'sink'->>'format' <> all(c_sinks) then
    perform trunq._fail('TQ031', format('pipeline "%s": there is no sink of the format "%s"', p_pipeline, left(p_definition->'sink'->>'format', 100)),
      format('there are %s', array_to_string(c_sinks, ', ')));
  elsif p_definition ? 'then' and (jsonb_typeof(p_definition->'then') <> 'array' or jsonb_path_exists(p_definition, '$.then[*] ? (@.type() != "string")')) then
    perform trunq._fail('TQ031', format('pipeline "%s": then is a list of names', p_pipeline));
  end if;
  return array(select distinct jsonb_array_elements_text(coalesce(p_definition->'then', '[]')) order by 1);
end $$;
comment on function trunq._check_definition is 'Refuses (TQ031) what cannot be a pipeline; the names of those that run after it.';

create or replace function trunq._check_followers(p_pipeline text, p_followers text[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_way text[];
begin
  if p_pipeline = any(p_followers) then
    perform trunq._fail('TQ031', format('pipeline "%s" cannot run after itself', p_pipeline));
  end if;
  perform trunq._find_pipeline(f) from unnest(p_followers) f;
  with recursive way(names, last) as (
    select array[f], f from unnest(p_followers) f
    union all
    -- One way to each is enough: all of them would be too many to count.
    select distinct on (f) w.names || f, f from way w join trunq.pipeline p on p.name = w.last, unnest(p.followers) f where w.last <> p_pipeline
  )
  select w.names into v_way from way w where w.last = p_pipeline limit 1;
  if found then
    perform trunq._fail('TQ031', format('pipeline "%s" would run after itself: %s', p_pipeline, array_to_string(p_pipeline || v_way, ' -> ')),
      'take one of them out of then');
  end if;
end $$;
comment on function trunq._check_followers is 'Refuses pipelines after one that are not there (TQ030), or that lead back to it (TQ031).';

create or replace function trunq._check_sink_alone(p_pipeline text, p_sink jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_other record;
begin
  -- Known is what is written alike: two addresses may be of one database.
  select p.name, trunq._stands_for_all(p.definition->'sink') as replaces into v_other from trunq.pipeline p
  where p.name <> p_pipeline and p.parent_id is null and trunq._sink_place(p.definition->'sink') = trunq._sink_place(p_sink)
    and (trunq._stands_for_all(p_sink) or trunq._stands_for_all(p.definition->'sink')) limit 1;
  if found then
    perform trunq._fail('TQ031', format('pipelines "%s" and "%s" write into %s, and %s stands for all of it: what the other wrote would be gone',
        p_pipeline, v_other.name, trunq._sink_place(p_sink)->>1, case when v_other.replaces then 'the second' else 'the first' end),
      'give one of them another sink, or mode append or upsert to both, without missing');
  end if;
end $$;
comment on function trunq._check_sink_alone is 'Refuses (TQ031) a sink that one of two pipelines replaces.';

create or replace function trunq._stands_for_all(p_sink jsonb) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(p_sink->>'mode' in ('replace', 'apply') or p_sink->>'missing' = 'delete', false)
$$;
comment on function trunq._stands_for_all is 'Whether rows of a sink go that its source does not have.';

create or replace function trunq._check_soft(p_pipeline text, p_definition jsonb, p_before jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_before #>> '{sink,deletes}' = 'soft' and p_definition #>> '{sink,deletes}' is distinct from 'soft'
    and trunq._sink_target(p_before) = trunq._sink_target(p_definition) then
    perform trunq._fail('TQ031', format('pipeline "%s" keeps deleted rows with a time in deleted_at, and without deletes = "soft" those that come again would stay marked', p_pipeline),
      format('keep it, or write to another sink; or: trunq pipeline drop %s, delete the rows of its sink that have a deleted_at, and create it again', p_pipeline));
  end if;
end $$;
comment on function trunq._check_soft is 'Refuses (TQ031) to give up soft deletes in a sink that has such rows.';

create or replace function trunq._sink_place(p_sink jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_sink ? 'table' then jsonb_build_array('table', regexp_replace(p_sink->>'table', '^public\.', ''), coalesce(p_sink->>'dsn', p_sink->>'url'))
    when p_sink->>'format' = 'delta' then jsonb_build_array('delta', rtrim(p_sink->>'path', '/')) end
$$;
comment on function trunq._sink_place is 'The table or directory that a sink writes into, as far as its definition tells; null for one to which nothing can be lost.';
