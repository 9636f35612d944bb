do $$
declare
  v_pipeline text;
  v_function text;
begin
  select p.name into v_pipeline from trunq.pipeline p
  where p.definition ?| '{per,limits,message,credentials}' or p.definition->'trigger' ? 'priority' order by p.parent_id is not null, p.name limit 1;
  if found then
    raise exception 'pipeline "%" has per, message, credentials, limits or trigger.priority, which the older release does not know', v_pipeline
      using hint = format('with per, drop it first, with what it knows of its instances (trunq pipeline drop %s); else create it without them', v_pipeline);
  end if;
  foreach v_function in array
    '{"trunq._open_run(text, bigint, jsonb, boolean, interval, jsonb)","trunq.run_pipeline(text, jsonb, smallint)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
alter table trunq.pipeline
  drop constraint name_is_short_and_plain,
  drop column parent_id, drop column message, drop column day, drop column day_rows, drop column day_bytes, drop column put_off_until, drop column put_off_for,
  add constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$');
