-- Functions of doors (functions/operate/door.sql) that are no more, or have other arguments since then.
do $$
declare
  v_function text;
begin
  foreach v_function in array array[
    'trunq._doors(text)',
    'trunq._door(text, text)',
    'trunq._goes_through(text, text)',
    'trunq._open_to(text)',
    'trunq._through(text, text, text[])',
    'trunq._pass(text, text, text[])',
    'trunq._set_memo(text, text, text, jsonb, interval, bigint)',
    'trunq._get_memo(text, text, text)',
    'trunq._delete_memo(text, text, text, bigint)',
    'trunq._list_memos(text, text, text, integer, text, text)']
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
