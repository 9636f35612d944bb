-- Functions that have other arguments since then. Under their old ones they stayed, and where the new ones have defaults, no call says which of
-- the two it means: nobody could drop a queue.
do $$
declare
  v_function text;
begin
  foreach v_function in array array[
    'trunq._drop_functions(trunq.queue)',
    'pgq._capture_row(text, text, oid, text, text, text[], anyelement, anyelement)',
    'pgq._capture_truncate(text, text, oid, text, text, text[])',
    'pgq._evaluate(jsonb, anyelement)',
    'pgq._find_changes(text[], text[], text[], oid[], anyelement, anyelement)',
    'pgq._read_options(text[])',
    'pgq._refuse_change(jsonb, text, text, text, text)']
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
