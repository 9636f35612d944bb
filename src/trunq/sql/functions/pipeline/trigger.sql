-- What starts runs of a pipeline by itself: its trigger, a part of its definition. Whatever it is, a message of the queue "pipelines" asks
-- for each run, and so priority, retries, dead messages and history are those of a queue.
--
--   every, cron   a schedule (schedule.sql) of the name pipeline/<name>, which no other schedule can have. It leaves a time out while the
--                 message of the last one waits or runs: what cannot be done in time does not pile up
--   on message    a subscription trigger_<name> of the queue that is named. A runner moves its messages on, a few at a time, in one
--                 transaction with their ack (_relay): the others wait in their own queue
--   on webhook    whoever receives requests publishes
--   continuous    a runner looks, again and again, whether the source has something new, and asks only then (_ask_run)
--
-- Asked is what a trigger has published and may still wait; both _relay and _ask_run go by it, so a trigger that is faster than its pipeline
-- never has more than a few messages in the queue "pipelines".

create or replace function trunq._check_trigger(p_pipeline text, p_definition jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_words constant text[] := '{every,cron,on,continuous}';
  v_trigger jsonb := p_definition->'trigger';
  v_source jsonb := p_definition->'source';
  v_what constant text := format('pipeline "%s"', p_pipeline);
  v_wrong text;
begin
  if v_trigger is null then
    return;
  elsif jsonb_typeof(v_trigger) <> 'object' or (select count(*) from jsonb_object_keys(v_trigger) k where k = any(c_words)) <> 1 then
    perform trunq._fail('TQ031', format('%s: a trigger has one of every, cron, on and continuous, and is not %s', v_what, left(v_trigger::text, 100)),
      'without a trigger it runs when somebody asks: trunq.run_pipeline');
  end if;
  select k into v_wrong from jsonb_object_keys(v_trigger) k
  where k <> all(c_words) and v_trigger->>'on' is distinct from 'webhook'
    and not (k = 'time_zone' and v_trigger ? 'cron' or k = 'queue' and v_trigger ? 'on' or k in ('for', 'priority') and v_trigger ?| '{every,cron}') limit 1;
  if found then
    perform trunq._fail('TQ031', format('%s: its trigger has no "%s"', v_what, left(v_wrong, 100)), 'time_zone goes with cron, queue with on = "message", for and priority with every or cron');
  elsif v_trigger ? 'on' and (v_trigger->>'on' in ('message', 'webhook')) is not true then
    perform trunq._fail('TQ031', format('%s: a trigger is on message or webhook, not on "%s"', v_what, left(coalesce(v_trigger->>'on', 'null'), 100)));
  elsif v_trigger->>'on' = 'message' then
    perform trunq._check_relay(p_pipeline, p_definition);
  elsif v_source ? 'tables' and v_trigger ?| '{continuous,for}' then
    perform trunq._fail('TQ031', format('%s has many tables, and each time of its trigger is for all of them', v_what), 'give it every or cron, without for');
  elsif p_definition ? 'per' and not v_source ? 'tables' and (v_trigger ? 'continuous' or v_trigger ?| '{every,cron}' and not v_trigger ? 'for') then
    perform trunq._fail('TQ031', format('%s has a run for each %s, and its trigger says none', v_what, p_definition->>'per'),
      'with every or cron: "for": ["a", "b"], or {"table": "customer", "column": "name"}; or "on": "message"');
  elsif v_trigger ? 'for' and not p_definition ? 'per' then
    perform trunq._fail('TQ031', format('%s has a trigger with for, and no per that it would be for', v_what), '"per": "message.customer"');
  elsif v_trigger ? 'priority' and (v_trigger->>'priority' ~ '^-?[0-9]{1,4}$') is not true then
    perform trunq._fail('TQ031', format('%s: the priority of its trigger is a whole number, not %s', v_what, left((v_trigger->'priority')::text, 100)));
  elsif v_trigger ? 'continuous' and v_trigger->'continuous' <> 'true' then
    perform trunq._fail('TQ031', format('%s: continuous is true, or not there', v_what));
  elsif v_trigger ? 'continuous' and (v_source->>'format' not in ('table', 'queue', 'csv', 'json', 'parquet') or v_source->>'changes' = 'all') then
    perform trunq._fail('TQ031', format('%s cannot run continuously: only a run tells whether its source has something new', v_what),
      'give it a trigger with every; tables with changes = "window", queues and files tell by a look');
  end if;
end $$;
comment on function trunq._check_trigger is 'Refuses (TQ031) a definition whose trigger cannot be.';

create or replace function trunq._check_relay(p_pipeline text, p_definition jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue text := p_definition->'trigger'->>'queue';
  v_sink jsonb := p_definition->'sink';
begin
  if jsonb_typeof(p_definition->'trigger'->'queue') is distinct from 'string' then
    perform trunq._fail('TQ031', format('pipeline "%s": a trigger on message names a queue', p_pipeline), '"trigger": {"on": "message", "queue": "orders"}');
  elsif v_queue = 'pipelines' then
    perform trunq._fail('TQ031', format('pipeline "%s": messages of the queue "pipelines" ask for runs already', p_pipeline), 'then names pipelines that run after another');
  elsif v_sink->>'format' = 'queue' and v_sink->>'queue' = v_queue and v_sink->>'dsn' is null then
    perform trunq._fail('TQ031', format('pipeline "%s" writes into the queue whose messages start it: it would never end', p_pipeline), 'let it write into another queue');
  elsif length(p_pipeline) > 40 then
    perform trunq._fail('TQ031', format('pipeline "%s": its name is too long for a trigger on message, %s characters', p_pipeline, length(p_pipeline)),
      'it has 40 at most: the subscription has its name too');
  end if;
  perform trunq._find_queue(v_queue);
end $$;
comment on function trunq._check_relay is 'Refuses (TQ031, TQ001) a trigger on messages that cannot be.';

create or replace function trunq._set_trigger(p_pipeline trunq.pipeline, p_before jsonb, p_due_times timestamptz[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_trigger jsonb := p_pipeline.definition->'trigger';
  v_old text := case when p_before->>'on' = 'message' then p_before->>'queue' end;
  v_new text := case when v_trigger->>'on' = 'message' then v_trigger->>'queue' end;
begin
  if coalesce(v_trigger ?| '{every,cron}', false) then
    perform trunq._set_trigger_schedule(p_pipeline, p_due_times);
  elsif p_due_times is not null then
    perform trunq._fail('TQ031', format('pipeline "%s": due times go with a trigger that has a cron text', p_pipeline.name));
  else
    delete from trunq.schedule s where s.pipeline_id = p_pipeline.pipeline_id;
  end if;
  if v_old is distinct from v_new or not trunq._has_subscription(v_new, 'trigger_' || p_pipeline.name) then
    perform trunq._end_trigger(p_pipeline.name, p_before);
    if v_new is not null then
      if trunq._has_subscription(v_new, 'trigger_' || p_pipeline.name) then
        perform trunq._fail('TQ031', format('pipeline "%s": queue "%s" has a subscription "trigger_%s" of somebody else', p_pipeline.name, v_new, p_pipeline.name),
          'drop it, or give the pipeline another name');
      end if;
      perform trunq.subscribe(v_new, 'trigger_' || p_pipeline.name);
      if p_pipeline.paused_until > trunq.clock() then
        perform trunq.pause_subscription(v_new, 'trigger_' || p_pipeline.name, p_pipeline.paused_until);
      end if;
    end if;
  end if;
  perform trunq._call_runners();
end $$;
comment on function trunq._set_trigger is
  'Makes, changes or removes what the trigger of a pipeline needs: its schedule, its subscription. p_before: its trigger so far.';

create or replace function trunq._set_trigger_schedule(p_pipeline trunq.pipeline, p_due_times timestamptz[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_trigger jsonb := p_pipeline.definition->'trigger';
  v_queue trunq.queue := trunq._find_queue('pipelines');
  v_new trunq.schedule;
begin
  v_new.name := 'pipeline/' || p_pipeline.name;
  v_new.pipeline_id := p_pipeline.pipeline_id;
  v_new.queue_id := v_queue.queue_id;
  v_new.cron := v_trigger->>'cron';
  v_new.zone := coalesce(v_trigger->>'time_zone', case when v_new.cron is not null then 'UTC' end);
  begin
    v_new.every := (v_trigger->>'every')::interval;
  exception when others then
    perform trunq._fail('TQ031', format('pipeline "%s": "%s" is no interval', p_pipeline.name, left(v_trigger->>'every', 100)), '"trigger": {"every": "10 minutes"}');
  end;
  v_new.missed := 'one';
  v_new.overlap := 'skip';
  v_new.kind := p_pipeline.name;
  v_new.priority := case when v_trigger ? 'for' then 0 else coalesce((v_trigger->>'priority')::smallint, 0) end;
  perform trunq._check_schedule(v_new, v_queue);
  perform trunq._check_due_times(v_new, p_due_times);
  if trunq._set_schedule(v_new, p_due_times) then
    update trunq.schedule s set paused_until = p_pipeline.paused_until where s.pipeline_id = p_pipeline.pipeline_id;
  end if;
  perform trunq._call_leader();
end $$;
comment on function trunq._set_trigger_schedule is 'Makes or changes the schedule of a pipeline.';

create or replace function trunq._end_trigger(p_pipeline text, p_trigger jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_trigger->>'on' = 'message' and trunq._has_subscription(p_trigger->>'queue', 'trigger_' || p_pipeline) then
    perform trunq.unsubscribe(p_trigger->>'queue', 'trigger_' || p_pipeline);
  end if;
end $$;
comment on function trunq._end_trigger is 'Ends the subscription of a trigger, if there is one.';

create or replace function trunq._pause_trigger(p_pipeline trunq.pipeline, p_until timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue text := p_pipeline.definition->'trigger'->>'queue';
  v_schedule text := 'pipeline/' || p_pipeline.name;
begin
  if exists (select from trunq.schedule s where s.pipeline_id = p_pipeline.pipeline_id) then
    if p_until is null then
      perform trunq.resume_schedule(v_schedule);
    else
      perform trunq.pause_schedule(v_schedule, p_until);
    end if;
  elsif trunq._has_subscription(v_queue, 'trigger_' || p_pipeline.name) then
    if p_until is null then
      perform trunq.resume_subscription(v_queue, 'trigger_' || p_pipeline.name);
    else
      perform trunq.pause_subscription(v_queue, 'trigger_' || p_pipeline.name, p_until);
    end if;
  end if;
  perform trunq._call_runners();
end $$;
comment on function trunq._pause_trigger is 'Pauses what starts a pipeline as well as itself; null: resumes it.';

create or replace function trunq._has_subscription(p_queue text, p_subscription text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where q.name = p_queue and s.name = p_subscription)
$$;
comment on function trunq._has_subscription is 'Whether a queue, if there is one of that name, has a subscription.';

create or replace function trunq._call_runners() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify('trunq_pipelines', '');
  end if;
end $$;
comment on function trunq._call_runners is 'Has runners look at what triggers ask of them, when the transaction commits.';

create or replace function trunq._list_triggered()
returns table (pipeline_id integer, pipeline text, definition jsonb, state jsonb, done bigint, is_open boolean)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p.pipeline_id, p.name, p.definition, p.state, p.done,
    exists (select from trunq.pipeline_run r where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is null)
  from trunq.pipeline p
  where p.parent_id is null and (p.definition->'trigger'->>'on' = 'message' or p.definition->'trigger' ? 'continuous') and (p.paused_until > trunq.clock()) is not true
  order by p.name
$$;
comment on function trunq._list_triggered is 'Pipelines that a runner starts: on messages of a queue, and continuous ones. Those that are paused are left out.';

create or replace function trunq._open_requests(p_asked bigint[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_sub trunq.subscription;
begin
  select q.* into v_queue from trunq.queue q where q.name = 'pipelines';
  select s.* into v_sub from trunq.subscription s where s.queue_id = v_queue.queue_id and s.name = 'default' and s.mode = 'shared';
  if not found or coalesce(p_asked, '{}') = '{}' then
    return '{}';
  end if;
  -- All in one look, as one costs ten milliseconds. Of most all is among what was published about then.
  return array(
    with near as materialized (select m.id, m.state from trunq._message(v_sub, v_queue, p_asked, true, true) m where m.is_whole),
    far as (
      select m.id, m.state from (select array_agg(i) as ids from unnest(p_asked) i where i not in (select n.id from near n)) r
      cross join lateral trunq._message(v_sub, v_queue, r.ids, true, false) m where r.ids is not null),
    found as (select * from near union all select * from far)
    select i from unnest(p_asked) with ordinality g(i, place) where exists (select from found f where f.id = i and trunq._is_open(f.state)) order by place);
end $$;
comment on function trunq._open_requests is 'Of messages that ask for runs those that wait or are under way.';

create or replace function trunq._ask_run(p_pipeline text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_asked bigint[];
  v_id bigint;
begin
  perform trunq._require_read_committed('_ask_run');
  select p.* into v_pipeline from trunq.pipeline p
  where p.name = p_pipeline and p.definition->'trigger' ? 'continuous' and (p.paused_until > trunq.clock()) is not true for no key update;
  if not found then
    return null;
  end if;
  v_asked := trunq._open_requests(v_pipeline.asked);
  if cardinality(v_asked) > 0 then
    return v_asked[1];
  end if;
  v_id := trunq.publish('pipelines', null, p_pipeline, p_headers => '{"on": "continuous"}');
  update trunq.pipeline p set asked = array[v_id] where p.pipeline_id = v_pipeline.pipeline_id;
  return v_id;
end $$;
comment on function trunq._ask_run is
  'Asks for the next run of a continuous pipeline, unless the last one that was asked for is still to come.
Returns: the id of its message; null when the pipeline is paused, not continuous any more, or gone.';

create or replace function trunq._relay(p_pipeline text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_ahead constant integer := 16;
  v_pipeline trunq.pipeline;
  v_queue text;
  v_asked bigint[];
  v_ids bigint[] := '{}';
  v_message record;
begin
  perform trunq._require_read_committed('_relay');
  -- Whoever changes the trigger locks the pipeline first, too. One that is locked is left to the next look: another runner may be at it.
  select p.* into v_pipeline from trunq.pipeline p
  where p.name = p_pipeline and p.definition->'trigger'->>'on' = 'message' and (p.paused_until > trunq.clock()) is not true
  for no key update skip locked;
  if not found then
    return 0;
  end if;
  v_queue := v_pipeline.definition->'trigger'->>'queue';
  v_asked := trunq._open_requests(v_pipeline.asked);
  if not trunq._has_subscription(v_queue, 'trigger_' || p_pipeline) then
    perform trunq._fail('TQ031', format('pipeline "%s": queue "%s" has no subscription "trigger_%s" any more', p_pipeline, v_queue, p_pipeline),
      'trunq pipeline create, with the file it came from, makes it again');
  elsif cardinality(v_asked) >= c_ahead then
    return 0;
  end if;
  for v_message in select * from trunq.lease(v_queue, 'trigger_' || p_pipeline, 'pipeline ' || p_pipeline, c_ahead - cardinality(v_asked)) loop
    v_ids := v_ids || v_message.id;
    v_asked := v_asked || trunq.publish('pipelines', v_message.payload, p_pipeline, trunq._read_per(v_pipeline.definition, v_message.payload), p_headers => jsonb_build_object('on', jsonb_strip_nulls(
      jsonb_build_object('queue', v_queue, 'id', v_message.id, 'kind', v_message.kind, 'key', v_message.key))));
  end loop;
  if v_ids = '{}' then
    return 0;
  end if;
  perform trunq.ack(v_queue, 'trigger_' || p_pipeline, v_message.lease_id, v_message.token, v_ids);
  update trunq.pipeline p set asked = v_asked where p.pipeline_id = v_pipeline.pipeline_id;
  return cardinality(v_ids);
end $$;
comment on function trunq._relay is
  'Asks for runs of a pipeline by messages of the queue that starts it, each with its payload, and answers for those messages, in one transaction: each asks once. A few at a time: while 16 of them wait, the others wait in their own queue.
Returns: how many.
Raises: TQ031 when the subscription is gone.
Locks: the pipeline, passing over one that somebody holds; the subscription of the trigger.';
