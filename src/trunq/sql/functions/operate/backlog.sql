-- One number for scaling: what a subscription has for its workers.

create or replace function trunq.backlog(p_queue text, p_subscription text default 'default') returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_most constant integer := 10000;
  v_now timestamptz := trunq.clock();
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_count bigint := 0;
begin
  -- Of a group by key all slots.
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id and (s.name = p_subscription or split_part(s.name, '#', 1) = p_subscription)
  loop
    begin
      v_count := v_count + (trunq._count_waiting(v_queue, v_sub.subscription_id)).ready + (trunq._count_leased(v_queue, v_sub, v_now)).leased;
      raise exception using errcode = 'TQ900';  -- gives the locks back
    exception when sqlstate 'TQ900' then
    end;
  end loop;
  if v_sub.subscription_id is null then
    perform trunq._subscription(p_queue, p_subscription);
  end if;
  return least(c_most, v_count);
end $$;
comment on function trunq.backlog is
  'How many messages a subscription, or a group, has for its workers: ready and leased together, at most 10,000. For scaling: whoever counts those that wait alone takes away a worker whose handler runs.
Raises: TQ001, TQ002.';
