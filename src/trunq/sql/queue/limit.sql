-- How many messages a lease may hand out; the rules are in functions/pause.sql.

create or replace function trunq_queue._specimen_allowance(p_subscription_id integer, p_max_messages integer, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
begin
  select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  if trunq._is_paused(v_sub, p_now) then
    return 0;
  end if;
  return p_max_messages;
end $$;
comment on function trunq_queue._specimen_allowance(integer, integer, timestamptz) is
  'How many messages a subscription that is limited may hand out now, at most p_max_messages. The caller holds its lock.';
