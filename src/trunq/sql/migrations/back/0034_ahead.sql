-- What was leased by its id, and the position has not come to yet, would be handed out again.
do $$
declare
  v record;
  v_is_ahead boolean;
begin
  for v in
    select q.name queue, q.lease_table, s.name subscription, s.subscription_id
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where exists (select from trunq.ahead a where a.subscription_id = s.subscription_id)
  loop
    execute format($q$
      select exists (select from trunq.ahead a where a.subscription_id = $1 and not (pg_visible_in_snapshot(a.txid, l.lo)
        or pg_visible_in_snapshot(a.txid, l.hi) and (a.txid, a.id) <= (l.last_txid, l.last_id)))
      from trunq_data.%I l where l.subscription_id = $1 order by l.lease_id desc limit 1
    $q$, v.lease_table) into v_is_ahead using v.subscription_id;
    if v_is_ahead then
      raise exception 'subscription "%" of queue "%" has leased messages by their ids that lie ahead of its position', v.subscription, v.queue
        using hint = 'let workers read what waits before them, or they would be handed out again (trunq status shows what is ready)';
    end if;
  end loop;
end $$;
alter type trunq.leasing drop attribute ahead;
alter table trunq_data._specimen_lease drop column ahead;
drop table trunq.ahead;
