-- What is parked runs when its time is over, as if somebody had resumed it without a value.
drop trigger if exists unpark_deleted on trunq.delayed;
drop trigger if exists unpark_changed on trunq.delayed;
drop table trunq.parked;
-- The words of before have none for an attempt that was parked: released, as no attempt counts then either.
do $$
declare
  v_table text;
  v_is_there boolean;
begin
  for v_table in select q.receipt_table from trunq.queue q loop
    begin
      execute format('select exists (select from trunq_data.%I where outcome = ''k'')', v_table) into v_is_there;
      if not v_is_there then
        raise no_data_found;  -- gives the locks of this queue back
      end if;
      execute format('update trunq_data.%I set outcome = ''l'' where outcome = ''k''', v_table);
    exception when no_data_found then null;
    end;
  end loop;
end $$;
alter table trunq.delayed drop column parked_at;
alter table trunq.progress drop column resumed, drop column resumed_at;
do $$
declare
  v_function text;
begin
  foreach v_function in array '{trunq.status(text),"trunq._statuses(text, boolean)"}'::text[] loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
