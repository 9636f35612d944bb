-- What a pipeline, or an instance, leaves behind when it is dropped: the subscription by which it read a queue goes with it, as it does when it
-- gets another queue. What an attempt that was
-- killed had staged lies in the sink, which may be anywhere; the next run would have removed it. So a message asks a runner to do so. It says no
-- more than which row of trunq.pipeline_left is meant: whoever may publish is not to choose where a runner removes something.

create or replace function trunq._leave_source(p_pipeline trunq.pipeline) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_source jsonb := p_pipeline.definition->'source';
  v_value text := split_part(p_pipeline.name, '/', 2);
  v_queue text := replace(v_source->>'queue', format('${%s}', p_pipeline.definition->>'per'), v_value);
  v_subscription text := trunq._own_name('pipeline', p_pipeline.name);
begin
  if v_source->>'format' = 'queue' and not v_source ?| '{dsn,subscription}' and trunq._has_subscription(v_queue, v_subscription) then
    perform trunq.unsubscribe(v_queue, v_subscription);
  end if;
end $$;
comment on function trunq._leave_source is
  'Ends the subscription by which a pipeline reads a queue, where it has the name that trunq._own_name gives it. One that the definition names is the user''s, and one of another database nobody reaches from here.';

create or replace function trunq._check_other_queue(p_pipeline trunq.pipeline, p_definition jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue text := p_pipeline.definition #>> '{source,queue}';
begin
  if p_definition #>> '{source,format}' = 'queue' and p_pipeline.state ? 'tick' then
    perform trunq._fail('TQ031', format('pipeline "%s" reads queue "%s": where it is would mean nothing in queue "%s"', p_pipeline.name, v_queue, p_definition #>> '{source,queue}'),
      format('to begin at the beginning of that one: trunq pipeline state %s --reset, then this again; or make a pipeline of another name', p_pipeline.name));
  end if;
end $$;
comment on function trunq._check_other_queue is 'Refuses (TQ031) another queue while the state of a pipeline is a place in the one so far: messages would be left out, without a word.';

create or replace function trunq._note_left(p_pipeline trunq.pipeline) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- A run that ended with its first attempt has left nothing.
  v_backfills bigint[] := array(
    select distinct r.backfill from trunq.pipeline_run r
    where r.pipeline_id = p_pipeline.pipeline_id and r.attempts > 0 and (r.attempts > 1 or r.outcome is distinct from 'done') order by 1);
begin
  if v_backfills = '{}' or not exists (select from trunq.queue q where q.name = 'pipelines') then
    return;
  end if;
  insert into trunq.pipeline_left (identity, name, definition, message, backfills, dropped_at)
  values (p_pipeline.identity::text, p_pipeline.name, p_pipeline.definition, p_pipeline.message, v_backfills, trunq.clock());
  perform trunq.publish('pipelines', null, p_pipeline.name, nullif(split_part(p_pipeline.name, '/', 2), ''),
    p_headers => jsonb_build_object('left', p_pipeline.identity::text));
end $$;
comment on function trunq._note_left is 'Asks a runner to remove what attempts of a pipeline that is dropped may have staged.';

create or replace function trunq._find_left(p_identity text) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select to_jsonb(l) from trunq.pipeline_left l where l.identity = p_identity
$$;
comment on function trunq._find_left is 'What is known of a pipeline that was dropped and may have left something; null: nothing is left.';

create or replace function trunq._forget_left(p_identity text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  delete from trunq.pipeline_left l where l.identity = p_identity
$$;
comment on function trunq._forget_left is 'What a pipeline that was dropped had left is gone.';
