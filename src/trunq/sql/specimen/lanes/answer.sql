-- What the answers to the messages of a lease mean to lanes. The essay is in functions/lanes/lane.sql.

create or replace function trunq_queue._lanespecimen_wake_lanes() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_is_whole boolean;
  v_in_order boolean;
begin
  select l.ids = new.ids, (select s.in_order from trunq.subscription s where s.subscription_id = l.subscription_id) into v_is_whole, v_in_order
  from trunq_data._lanespecimen_lease l
  where l.subscription_id = new.subscription_id and l.lease_id = new.lease_id and l.segment = new.segment and l.lanes is not null;
  -- What does not succeed may come back: _go_on says what does not.
  if v_is_whole is null or v_in_order and new.outcome not in ('a', 'p', 'o') then
    return null;
  end if;
  -- In the transaction of the answer: a lease that does not see the receipt does not see this either, and one after it sees both.
  insert into trunq_data._lanespecimen_wake (subscription_id, priority, lane, id)
  select distinct l.subscription_id, u.priority, u.lane, case when v_in_order then u.id end
  from trunq_data._lanespecimen_lease l cross join lateral unnest(l.ids, l.priorities, l.lanes) u(id, priority, lane)
  where l.subscription_id = new.subscription_id and l.lease_id = new.lease_id and l.segment = new.segment
    and (v_is_whole or u.id = any (new.ids));
  if found then
    perform trunq._ring_bell(0 /*queue_id*/);
  end if;
  return null;
end $$;
comment on function trunq_queue._lanespecimen_wake_lanes is
  'After a receipt: the lanes of its messages, where they have limits, are to be looked at again.';

create or replace function trunq_queue._lanespecimen_go_on(
  p_subscription_id integer, p_ids bigint[], p_lease_ids bigint[], p_lease_txids xid8[]
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  if p_ids = '{}' then
    return;
  end if;
  -- Of one that somebody deleted from the log, the lane is not known: all are asked.
  insert into trunq_data._lanespecimen_wake (subscription_id, priority, lane, id)
  select p_subscription_id, g.priority, g.lane, u.id
  from unnest(p_ids) u(id) left join unnest(p_lease_ids, p_lease_txids) l(id, txid) on l.id = u.id
  left join lateral (
    select g.priority, coalesce(g.key, '') /*lane*/ lane from trunq_log._specimen g where trunq._is_row(g.txid, g.id, g.subscription_id, l.txid, l.id, p_subscription_id) offset 0) g on true;
  perform trunq._ring_bell(0 /*queue_id*/);
end $$;
comment on function trunq_queue._lanespecimen_go_on is
  'Of a subscription in order: messages of a lease are over and do not come back, so that their lanes go on.';

create or replace function trunq_queue._lanespecimen_let_go(
  p_subscription_id integer, p_ids bigint[], p_priorities smallint[], p_keys text[]
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  insert into trunq_data._lanespecimen_wake (subscription_id, priority, lane, id)
  select p_subscription_id, u.priority, coalesce(u.key, ''), u.id from unnest(p_ids, p_priorities, p_keys) u(id, priority, key);
  perform trunq._ring_bell(0 /*queue_id*/);
end $$;
comment on function trunq_queue._lanespecimen_let_go is
  'Of a subscription in order, which goes by keys: messages that were put off are over, so that their lanes go on.';

create or replace function trunq_queue._lanespecimen_make_room(p_subscription_id integer, p_lease_id bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  -- Those that it answered itself.
  v_ids constant bigint[] := array(
    select unnest(r.ids) from trunq_data._specimen_receipt r
    where r.lease_id = p_lease_id and r.subscription_id = p_subscription_id);
begin
  -- Only turns of limited lanes know of either.
  update trunq_data._lanespecimen_turn t set tokens = t.tokens + n.buried, state = case t.state when 'b' then 'r' else t.state end,
    open_leases = n.leases, open_ids = n.ids
  from (
    select n.seq, n.segment, u.buried, o.*
    from (
      select u.priority, u.lane, count(*) buried
      from trunq_data._lanespecimen_lease l cross join lateral unnest(l.ids, l.priorities, l.lanes) u(id, priority, lane)
      where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id and l.lanes is not null and u.id = any (v_ids)
      group by u.priority, u.lane) u
    cross join lateral (
      select n.* from trunq_data._lanespecimen_turn n
      where n.subscription_id = p_subscription_id and n.priority = u.priority and n.lane = u.lane collate "C" order by n.seq desc limit 1) n
    cross join lateral (
      select array_agg(o.lease_id) leases, array_agg(o.id) ids from unnest(n.open_leases, n.open_ids) o(lease_id, id)
      where (o.lease_id = p_lease_id and o.id = any (v_ids)) is not true) o) n
  where t.subscription_id = p_subscription_id and t.seq = n.seq and t.segment = n.segment and t.lease_id = p_lease_id;
end $$;
comment on function trunq_queue._lanespecimen_make_room is
  'After a lease sorted out messages of its own (trunq_queue.<queue>_sort_out): these take no token of their lane, and no place among those that run.';
