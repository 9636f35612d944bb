-- What a pipeline with changes = 'capture' makes for itself (src/trunq/pipeline/source/capture.py): a queue, a capture into it, and an
-- exclusive subscription, which keeps changes until they are written. They go with it, or changes would pile up for nobody.
--
-- What the pipeline found by the name that it was given, and what lies in another database, stays.

create or replace function trunq._leave_capture(p_pipeline text, p_source jsonb) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_old jsonb;
  v_queue text;
  v_stays boolean;
  v_own constant text := left('changes_' || p_pipeline, 48);
  v_subscription constant text := left('pipeline_' || p_pipeline, 48);
begin
  select p.definition->'source', coalesce(p.state->>'queue', p.definition #>> '{source,queue}', v_own) into v_old, v_queue
  from trunq.pipeline p where p.name = p_pipeline;
  if v_old->>'changes' is distinct from 'capture' or v_old ? 'dsn' or not exists (select from trunq.queue q where q.name = v_queue) then
    return;
  end if;
  v_stays := coalesce(p_source->>'changes' = 'capture' and not p_source ? 'dsn' and p_source->>'table' = v_old->>'table', false);
  if not v_old ? 'subscription' and (not v_stays or p_source ? 'subscription') and trunq._has_subscription(v_queue, v_subscription) then
    perform trunq.unsubscribe(v_queue, v_subscription);
  end if;
  if not v_stays and v_queue = v_own and not v_old ? 'queue'
    and not exists (select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where q.name = v_queue)
  then
    perform trunq.drop_queue(v_queue, true);
  end if;
end $$;
comment on function trunq._leave_capture is
  'Ends the subscription that a pipeline made for the changes of a table, and drops the queue that it made, with the capture into it, unless others read it, when the pipeline is dropped (p_source null) or gets another source.';
