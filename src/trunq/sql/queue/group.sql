-- The slots of a group by key; the rules are in functions/slot.sql.

create or replace function trunq_queue._specimen_next_in_group(
  p_group trunq.subscription_group, p_member text, p_max_ticks integer, p_lease_time interval, p_min_lag interval, p_min_count bigint,
  p_min_interval interval, p_cut boolean
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  expires_at timestamptz, attempt integer, is_part boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  c_look constant integer := 300;
  v_now timestamptz;
  v_last trunq.tick;
  v_seen pg_snapshot;
  v_ids integer[]; v_slots integer[]; v_his pg_snapshot[]; v_first pg_snapshot;
  v_found integer[];
  v_count bigint;
  v record;
begin
  perform trunq._check_next_batch(p_member, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval);
  perform trunq._check_cluster();
  v_now := trunq.clock();
  -- A member has one batch at a time, whatever its slot: of two processes of one name, one finds nothing.
  if not pg_try_advisory_xact_lock(trunq._lock_class('member'), trunq._member_lock(p_group.group_id, p_member)) then
    return;
  end if;
  perform trunq._see_member(p_group.group_id, p_member, v_now);
  -- What one slot lost, the group lost.
  perform trunq._check_loss(s.subscription_id) from trunq.subscription s where s.group_id = p_group.group_id and s.lost_at is not null limit 1;
  select t.* into v_last from trunq.tick t where t.queue_id = 0 /*queue_id*/ order by t.tick_id desc limit 1;
  v_seen := case when p_cut then trunq.snapshot() else v_last.snapshot end;
  -- By a later statement: where a slot stands, and what v_seen sees.
  select array_agg(c.subscription_id order by c.tick_id, c.slot), array_agg(c.slot order by c.tick_id, c.slot), array_agg(c.hi order by c.tick_id, c.slot),
    (array_agg(c.hi order by c.tick_id))[1] into v_ids, v_slots, v_his, v_first
  from trunq_queue._specimen_slots(p_group.group_id, p_member, v_now) c where not c.is_open;
  if v_ids is not null then
    select array_agg(distinct r.slot) filter (where not pg_visible_in_snapshot(r.txid, v_his[array_position(v_slots, r.slot)])), count(*) into v_found, v_count
    from (
      select g.txid, case when g.subscription_id is null then trunq._slot(g.key, g.id, p_group.slots)
        else v_slots[array_position(v_ids, g.subscription_id)] end slot
      from trunq_queue._specimen_window(v_first, v_seen) g limit c_look) r;
  end if;
  for v in
    select c.* from trunq_queue._specimen_slots(p_group.group_id, p_member, v_now) c
    where c.is_mine or not c.is_held and (c.is_open or v_count >= c_look or c.slot = any (v_found)
      -- Nothing in sight for it: it is taken along now and then.
      or trunq._is_far(0 /*queue_id*/, c.tick_id, v_last))
    order by c.is_mine desc, c.tick_id, c.slot
  loop
    -- A slot that another asks for just now is left to it.
    continue when not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v.subscription_id);
    return query select b.* from trunq_queue._specimen_next_batch(v.name, p_member, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval, p_cut) b;
    exit when found or v.is_mine;
  end loop;
end $$;
revoke execute on function trunq_queue._specimen_next_in_group from public;
comment on function trunq_queue._specimen_next_in_group is
  'The next batch of a member of a group by key: the one it has in hand, or that of the slot furthest behind that is free and has messages. Arguments and results as next_batch.';

create or replace function trunq_queue._specimen_slots(p_group_id integer, p_member text, p_now timestamptz)
returns table (subscription_id integer, name text, slot integer, tick_id bigint, hi pg_snapshot, is_open boolean, is_held boolean, is_mine boolean)
language plpgsql stable rows 16
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select s.subscription_id, s.name, s.slot::integer, coalesce(o.tick_id, b.to_tick_id, s.start_tick_id), coalesce(b.hi, s.start),
      o.tick_id is not null, coalesce(o.is_held, false), coalesce(o.is_mine, false)
    from trunq.subscription s
    cross join lateral trunq_queue._specimen_newest_batch(s.subscription_id) b
    left join lateral (
      select min(o.from_tick_id) tick_id, bool_or(o.expires_at > p_now) is_held, bool_or(o.worker = p_member and o.expires_at > p_now) is_mine
      from trunq_queue._specimen_open_batches(s.subscription_id) o where not b.finished or b.open_leases is not null) o on true
    where s.group_id = p_group_id;
end $$;
comment on function trunq_queue._specimen_slots is
  'The slots of a group: where each stands, whether it has an open batch, whether somebody has that in hand or waits for it, and whether p_member has.';

create or replace function trunq_queue._specimen_first_of_slot(p_sub trunq.subscription, p_lo pg_snapshot, p_hi pg_snapshot) returns xid8
language plpgsql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
  v_id constant integer := p_sub.subscription_id;
  v_slot constant integer := p_sub.slot;
  v_slots constant integer := (p_sub.filter->>'slots')::integer;
  v_all constant boolean := p_sub.filter - '{slot,slots}'::text[] = '{}';
  f record;
  v_txid xid8;
begin
  f := trunq._read_filter(p_sub.filter);
  select g.txid into v_txid from trunq_queue._specimen_window(p_lo, p_hi) g
  where g.subscription_id = v_id or g.subscription_id is null and trunq._slot(g.key, g.id, v_slots) = v_slot
    and (v_all or trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, g.headers))
  limit 1;
  return v_txid;
end $$;
comment on function trunq_queue._specimen_first_of_slot is
  'The transaction of the first message of a slot that hi sees and lo does not; null: there is none.';
