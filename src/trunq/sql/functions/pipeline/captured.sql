-- What a pipeline with changes = 'capture' makes for itself (src/trunq/pipeline/source/capture.py): a queue, a capture into it, and an
-- exclusive subscription, which keeps changes until they are written. They go with it, or changes would pile up for nobody.
--
-- What the pipeline found by the name that it was given, and what lies in another database, stays.

create or replace function trunq._own_name(p_what text, p_pipeline text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_pipeline like '%/%'
    then format('%s_%s_%s', p_what, left(split_part(p_pipeline, '/', 1), 26), left(encode(sha256(convert_to(p_pipeline, 'UTF8')), 'hex'), 12))
    else left(p_what || '_' || p_pipeline, 48) end
$$;
comment on function trunq._own_name is 'How a pipeline, or an instance, calls what it makes for itself (in Python: src/trunq/pipeline/source/own.py).';

create or replace function trunq._check_own_name(p_pipeline text, p_definition jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_sources constant text[] := '{table,queue}';
  v_other text;
begin
  select p.name into v_other from trunq.pipeline p
  where p_definition #>> '{source,format}' = any(c_sources) and p.definition #>> '{source,format}' = any(c_sources)
    and p.parent_id is null and trunq._own_name('pipeline', p.name) = trunq._own_name('pipeline', p_pipeline) limit 1;
  if found then
    perform trunq._fail('TQ031', format('pipelines "%s" and "%s" would share subscription "%s": what one of them has read, the other would lose', p_pipeline, v_other,
      trunq._own_name('pipeline', p_pipeline)), 'give it a name that differs in its first 39 characters');
  end if;
end $$;
comment on function trunq._check_own_name is
  'Refuses (TQ031) a new pipeline that would call its subscription as another calls its own. Tables count too: changes of them may be captured later.';

create or replace function trunq._leave_capture(p_pipeline text, p_source jsonb) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_of record;
begin
  for v_of in
    select p.name, p.definition->'source' as source, trunq._own_name('changes', p.name) as own, trunq._own_name('pipeline', p.name) as subscription,
      coalesce(p.definition #>> '{source,changes}' = 'capture' and p_source->>'changes' = 'capture' and not p_source ? 'dsn'
        and p_source->>'table' is not distinct from p.definition #>> '{source,table}', false) as stays,
      p.state->>'queue' as queue
    from trunq.pipeline p
    where (p.name = p_pipeline or p.parent_id = (select o.pipeline_id from trunq.pipeline o where o.name = p_pipeline))
      and p.definition #>> '{source,changes}' = 'capture' and not p.definition->'source' ? 'dsn'
    order by p.name
  loop
    -- Before its first run has ended, a state says nothing.
    v_of.queue := coalesce(v_of.queue, (select q.name from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where s.name = v_of.subscription limit 1), v_of.own);
    continue when not exists (select from trunq.queue q where q.name = v_of.queue);
    if not v_of.source ? 'subscription' and (not v_of.stays or p_source ? 'subscription') and trunq._has_subscription(v_of.queue, v_of.subscription) then
      perform trunq.unsubscribe(v_of.queue, v_of.subscription);
    end if;
    if not v_of.stays and v_of.queue = v_of.own and not v_of.source ? 'queue'
      and not exists (select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where q.name = v_of.queue)
    then
      perform trunq.drop_queue(v_of.queue, true);
    end if;
  end loop;
end $$;
comment on function trunq._leave_capture is
  'Ends the subscriptions that a pipeline and its instances made for the changes of a table, and drops the queues that they made, with the captures into them, unless others read them, when the pipeline is dropped (p_source null) or gets another source.';
