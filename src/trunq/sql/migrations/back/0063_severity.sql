do $$
declare
  v_function text;
begin
  foreach v_function in array '{"diagnose(integer, text[])",_diagnose_statistics(text[]),list_warnings(text),"_list_warnings(text, text[], boolean)",_warn_unread(text),_warn_space(text)}'::text[] loop
    if to_regprocedure('trunq.' || v_function) is not null then
      execute format('drop function trunq.%s', v_function);
    end if;
  end loop;
end $$;
