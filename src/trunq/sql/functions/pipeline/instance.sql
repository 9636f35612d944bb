-- An instance is a pipeline for one value of its `per`, a field of the message that asks for a run: with "per": "message.customer", a message
-- {"customer": "acme"} asks for a run of instance "orders/acme" of pipeline "orders".
--
-- It is a row of trunq.pipeline with a name that has a slash, and so has all that a pipeline has: an identity, which names it in the marks of
-- sinks, a state, runs, backfills, files, columns and a quarantine; every function that takes the name of a pipeline takes that of an instance.
-- Runs of one instance are one after the other, and whoever begins or ends one locks the row of that instance alone. The definition is copied
-- into the rows of the instances when the pipeline is made anew; the trigger, and the pause of all, are the pipeline's.
--
-- The first message with a new value begins an instance, after a runner has checked the message (_open_run answers "begin").

create or replace function trunq._read_per(p_definition jsonb, p_payload jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select substring(p_payload #>> string_to_array(substr(p_definition->>'per', 9), '.') from '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$')
$$;
comment on function trunq._read_per is 'The value that a message has for the per of a definition; null: none, or one that no instance can have.';

create or replace function trunq._hold_asked(p_pipeline text, p_payload jsonb, p_message jsonb) returns trunq.pipeline
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline;
  v_instance trunq.pipeline;
begin
  loop
    select p.* into v_pipeline from trunq.pipeline p
    where p.name = p_pipeline and (p.parent_id is not null or not p.definition ? 'per') for no key update;
    if found then
      return v_pipeline;
    end if;
    v_pipeline := trunq._find_pipeline(p_pipeline);
    if v_pipeline.parent_id is null and v_pipeline.definition ? 'per' then
      select p.* into v_instance from trunq.pipeline p
      where p.name = p_pipeline || '/' || trunq._read_per(v_pipeline.definition, p_payload) for no key update;
      if found or p_message is null or trunq._read_per(v_pipeline.definition, p_payload) is null then
        return v_instance;
      end if;
      -- Whoever makes the pipeline anew changes its instances, so none comes meanwhile.
      insert into trunq.pipeline (name, definition, followers, parent_id, message)
      select p.name || '/' || trunq._read_per(p.definition, p_payload), p.definition, p.followers, p.pipeline_id, p_message
      from (select p.* from trunq.pipeline p where p.pipeline_id = v_pipeline.pipeline_id for share) p
      where trunq._read_per(p.definition, p_payload) is not null
      on conflict do nothing;
    end if;
  end loop;
end $$;
comment on function trunq._hold_asked is
  'The pipeline, or the instance, of which a message asks for a run, locked; it begins the instance if p_message has what a runner found good. Null: there is no such instance yet.';

create or replace function trunq._hold_instance(p_pipeline text) returns trunq.pipeline
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
begin
  perform trunq._require_own_runs(v_pipeline);
  return v_pipeline;
end $$;
comment on function trunq._hold_instance is 'A pipeline or an instance that has runs of its own, or TQ030, TQ031; locked.';

create or replace function trunq._require_own_runs(p_pipeline trunq.pipeline) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline.parent_id is null and p_pipeline.definition ? 'per' then
    perform trunq._fail('TQ031', format('pipeline "%s" has no runs of its own: each value of %s has', p_pipeline.name, p_pipeline.definition->>'per'),
      format('name an instance, as %1$s/VALUE; trunq pipeline instances %1$s shows them', p_pipeline.name));
  end if;
end $$;
comment on function trunq._require_own_runs is 'Refuses (TQ031) a pipeline whose instances have runs in its place.';

create or replace function trunq._find_series(p_pipeline trunq.pipeline) returns integer[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_pipeline.pipeline_id || array(select p.pipeline_id from trunq.pipeline p where p.parent_id = p_pipeline.pipeline_id)
$$;
comment on function trunq._find_series is 'The ids of a pipeline and of its instances.';

create or replace function trunq._check_per(p_pipeline text, p_definition jsonb, p_followers text[], p_before jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_other text;
begin
  if p_definition ? 'per' and (p_definition->>'per' ~ '^message(\.[A-Za-z_][A-Za-z0-9_]*)+$') is not true then
    perform trunq._fail('TQ031', format('pipeline "%s": per names a field of the message, and is not %s', p_pipeline, left(p_definition->>'per', 100)), '"per": "message.customer"');
  elsif p_before is not null and p_before->>'per' is distinct from p_definition->>'per' then
    perform trunq._fail('TQ031', format('pipeline "%s" has state and runs %s, which mean nothing %s', p_pipeline,
      coalesce('for each ' || (p_before->>'per'), 'of its own'), coalesce('for each ' || (p_definition->>'per'), 'without per')),
      'make a pipeline of another name, or drop this one first');
  end if;
  select p.name into v_other from trunq.pipeline p
  where p.parent_id is null and (p.definition->'source' ? 'tables') <> (p_definition->'source' ? 'tables')
    and (p_pipeline = any(p.followers) and p_definition ? 'per' or p.name = any(p_followers) and p.definition ? 'per') order by 1 limit 1;
  if v_other is not null then
    perform trunq._fail('TQ031', format('pipelines "%s" and "%s" run one after the other, and one of them has a run for each table: the message of the first names no run of the second',
      p_pipeline, v_other), 'take it out of then, and give the second a trigger of its own');
  elsif p_definition ? 'per' then
    select p.name into v_other from trunq.pipeline p where p_pipeline = any(p.followers) and p.parent_id is null and not p.definition ? 'per' order by 1 limit 1;
  else
    select p.name into v_other from trunq.pipeline p where p.name = any(p_followers) and p.definition ? 'per' order by 1 limit 1;
  end if;
  if v_other is not null then
    perform trunq._fail('TQ031', case when p_definition ? 'per' then format('pipeline "%s" runs after "%s", whose runs have no message with %s', p_pipeline, v_other, p_definition->>'per')
      else format('pipeline "%s" runs after "%s", whose runs have no message for its per', v_other, p_pipeline) end,
      'give both of them per, or neither');
  end if;
end $$;
comment on function trunq._check_per is 'Refuses (TQ031) a per that cannot be, or cannot be any more; p_before: the definition so far.';

create or replace function trunq._nest(p_path text[], p_value jsonb) returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  for v_at in reverse cardinality(p_path) .. 1 loop
    p_value := jsonb_build_object(p_path[v_at], p_value);
  end loop;
  return p_value;
end $$;
comment on function trunq._nest is 'An object that has a value at a path, and nothing else.';

create or replace function trunq._sum_instances(p_pipeline trunq.pipeline, out done bigint, out quarantined bigint, out error text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(sum(i.done), 0)::bigint, coalesce(sum((select count(*) from trunq.quarantine q where q.pipeline_id = i.pipeline_id and q.run_id is not null)), 0)::bigint,
    (array_agg(f.error order by f.failing_since) filter (where f.error is not null))[1]
  from trunq.pipeline i
  left join lateral (
    select i.name || ': ' || r.error as error, r.failing_since from trunq.pipeline_run r
    where r.pipeline_id = i.pipeline_id and r.ended_at is null and r.failures > 0
    union all
    select i.name || ': ' || i.error, i.failing_since where i.failures > 0 limit 1
  ) f on true
  where i.parent_id = p_pipeline.pipeline_id
$$;
comment on function trunq._sum_instances is 'Of all instances of a pipeline: runs, rows in quarantine, and the error of the run that has failed the longest.';

create or replace function trunq._ask_each(p_pipeline text, p_values text[], p_unfit jsonb default null) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- Whoever makes the pipeline anew changes its instances, too.
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
  v_path text[] := string_to_array(substr(v_pipeline.definition->>'per', 9), '.');
  v_priority smallint := coalesce((v_pipeline.definition->'trigger'->>'priority')::smallint, 0);
  -- Of values that no instance has yet, the pipeline knows what was asked for.
  v_first bigint[] := trunq._open_requests(v_pipeline.asked);
  v_waiting jsonb := (select coalesce(jsonb_object_agg(l.key, true), '{}') from trunq_log.pipelines l where l.id = any(v_first) and l.key is not null);
  v_value text;
  v_payload jsonb;
  v_id bigint;
  v_count integer := 0;
begin
  foreach v_value in array p_values loop
    -- What cannot be done in time does not pile up.
    continue when v_waiting ? v_value or exists (
      select from trunq.pipeline p where p.name = p_pipeline || '/' || v_value and p.asked <> '{}' and cardinality(trunq._open_requests(p.asked)) > 0);
    v_payload := case when v_pipeline.definition #>> array['message', array_to_string(v_path, '.')] = 'integer' then to_jsonb(v_value::bigint) else to_jsonb(v_value) end;
    v_id := trunq.publish('pipelines', trunq._nest(v_path, v_payload), p_pipeline, v_value, p_headers => '{"on": "each"}', p_priority => v_priority);
    update trunq.pipeline p set asked = array[v_id] where p.name = p_pipeline || '/' || v_value;
    if not found then
      v_first := v_first || v_id;
    end if;
    v_count := v_count + 1;
  end loop;
  if v_pipeline.failures > 0 then
    perform trunq._note_plan(p_pipeline);
  end if;
  update trunq.pipeline p set asked = v_first, unfit = p_unfit
  where p.pipeline_id = v_pipeline.pipeline_id and (p.asked, p.unfit) is distinct from (v_first, p_unfit);
  return v_count;
end $$;
comment on function trunq._ask_each is
  'Asks for a run of each of some instances of a pipeline, unless the last one that was asked for is still to come. p_unfit: of the values that the trigger found those that cannot be ("count", "values"), which _warn_pending names.
Returns: of how many.';

create or replace function trunq.list_instances(p_pipeline text, p_limit integer default 100)
returns table (
  pipeline text, value text, runs bigint, open_run bigint, open_since timestamptz, failures integer, failing_since timestamptz, error text,
  last_outcome text, last_ended_at timestamptz, quarantined bigint, paused boolean, put_off_until timestamptz, put_off_for text,
  rows_today bigint, bytes_today bigint, fresh_at timestamptz, message jsonb, state jsonb, refused text, hint text, instances bigint
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_now timestamptz := trunq.clock();
begin
  perform trunq._check_limit(p_limit);
  return query
    select p.name, split_part(p.name, '/', 2), p.done, o.number, o.begun_at, greatest(f.failures, p.failures), least(f.failing_since, p.failing_since), coalesce(p.error, f.error, l.error),
      l.outcome, l.ended_at, (select count(*) from trunq.quarantine q where q.pipeline_id = p.pipeline_id and q.run_id is not null),
      coalesce(greatest(p.paused_until, v_pipeline.paused_until) > v_now, false),
      case when p.put_off_until > v_now then nullif(p.put_off_until, 'infinity') end, case when p.put_off_until > v_now then p.put_off_for end,
      case when p.day = trunq._today() then p.day_rows else 0 end, case when p.day = trunq._today() then p.day_bytes else 0 end,
      coalesce(p.newest_at, greatest(p.looked_at, l.begun_at)), p.message, p.state, p.refused, p.hint, count(*) over ()
    from trunq.pipeline p
    left join trunq.pipeline_run o on o.pipeline_id = p.pipeline_id and o.backfill = 0 and o.ended_at is null
    left join lateral (
      select r.failures, r.failing_since, r.error from trunq.pipeline_run r
      where r.pipeline_id = p.pipeline_id and (r.ended_at is null or not r.is_settled) order by r.failures desc limit 1
    ) f on true
    left join lateral (
      select r.outcome, r.ended_at, r.error, case when r.outcome = 'done' then r.begun_at end as begun_at from trunq.pipeline_run r
      where r.pipeline_id = p.pipeline_id and r.backfill = 0 and r.ended_at is not null order by r.number desc limit 1
    ) l on true
    where v_pipeline.pipeline_id in (p.parent_id, case when p.parent_id is not null then p.pipeline_id end)
    order by greatest(f.failures, p.failures) desc, p.refused is null, p.put_off_until > v_now desc nulls last, o.begun_at nulls last, l.ended_at nulls first, p.name limit p_limit;
end $$;
comment on function trunq.list_instances is
  'The instances of a pipeline with per (of the name of an instance that one), p_limit of them at most (100), the worst first: those whose open run fails, the most often first; those of tables that cannot be read or are gone (refused, with the way out); those that a limit puts off; those with an open run, the oldest first; then by the end of the newest run. pipeline: the name of the instance, which every function takes in the place of that of a pipeline; failures, failing_since, error: of its open run, or of tries to begin one; put_off_for: a limit, or pause, with put_off_until null: until it is resumed; rows_today, bytes_today: what its sink took on this day of UTC, where its definition has a limit of them; instances: how many there are.
Raises: TQ005, TQ030.';
