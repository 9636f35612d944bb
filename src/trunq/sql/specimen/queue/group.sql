-- The slots of a group by key; the rules are in functions/stream/slot.sql.

create or replace function trunq_queue._specimen_next_in_group(
  p_group trunq.subscription_group, p_member text, p_max_ticks integer, p_lease_time interval, p_min_lag interval, p_min_count bigint,
  p_min_interval interval, p_cut boolean
) returns table (
  batch_id bigint, token bigint, from_tick_id bigint, to_tick_id bigint, from_snapshot pg_snapshot, to_snapshot pg_snapshot,
  expires_at timestamptz, attempt integer, is_part boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  c_look constant integer := 300;
  v_now timestamptz;
  v_member trunq.member;
  v_last trunq.tick;
  v_seen pg_snapshot;
  v_is_noted boolean;
  v_arrived integer[];
  v_count bigint;
  v_is_done boolean := true;
  v_tick_id bigint;
  v record;
begin
  perform trunq._require_read_committed('next_batch'),
    trunq._check_next_batch(p_member, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval),
    trunq._check_cluster();
  v_now := trunq.clock();
  -- A member has one batch at a time, whatever its slot: of two processes of one name, one finds nothing.
  if not pg_try_advisory_xact_lock(trunq._lock_class('member'), trunq._member_lock(p_group.group_id, p_member)) then
    return;
  end if;
  perform trunq._see_member(p_group.group_id, p_member, v_now);
  -- What one slot lost, the group lost.
  perform trunq._check_loss(s.subscription_id) from trunq.subscription s where s.group_id = p_group.group_id and s.lost_at is not null limit 1;
  select m.* into v_member from trunq.member m where m.group_id = p_group.group_id and m.name = p_member;
  select t.* into v_last from trunq.tick t where t.queue_id = 0 /*queue_id*/ order by t.tick_id desc limit 1;
  v_seen := case when p_cut then trunq.snapshot() else v_last.snapshot end;
  -- By later statements: what v_seen sees, and where slots stand.
  v_is_noted := trunq._is_done(v_member, p_group, v_now) and not trunq._should_move_slot(0 /*queue_id*/, v_member.done_tick_id, v_last);
  if v_is_noted then
    select array_agg(distinct r.slot), count(*) into v_arrived, v_count
    from trunq_queue._specimen_arrivals(p_group, v_member.done, v_seen, c_look) r;
    if v_count = 0 then
      return;
    elsif v_count >= c_look then
      v_is_noted := false; v_arrived := null;
    end if;
  end if;
  for v in
    with slots as materialized (
      select c.* from trunq_queue._specimen_slots(p_group.group_id, p_member, v_now, v_arrived) c),
    arrived as materialized (
      select r.* from (select c.hi from slots c where not c.is_open order by c.tick_id limit 1) f
      cross join lateral trunq_queue._specimen_arrivals(p_group, f.hi, v_seen, c_look) r)
    select c.*, (select count(*) from arrived) >= c_look or exists (
        select from arrived r where r.slot = c.slot and not pg_visible_in_snapshot(r.txid, c.hi)) has_more,
      trunq._should_move_slot(0 /*queue_id*/, c.tick_id, v_last) is_far
    from slots c order by c.is_mine desc, c.tick_id, c.slot
  loop
    v_is_done := v_is_done and not v.is_open and not v.has_more;
    v_tick_id := least(v_tick_id, case when v.is_far then v_last.tick_id else v.tick_id end);
    -- A slot that nothing arrived for is taken along now and then. One that another asks for just now is left to it.
    continue when not v.is_mine and (v.is_held or not (v.is_open or v.has_more or v.is_far))
      or not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v.subscription_id);
    return query select b.* from trunq_queue._specimen_next_batch(v.name, p_member, p_max_ticks, p_lease_time, p_min_lag, p_min_count, p_min_interval, p_cut) b;
    if found or v.is_mine then
      return;
    end if;
  end loop;
  if v_is_done then
    -- Where it did not look at all of them, those behind stand where they stood.
    perform trunq._note_done(v_member, p_group, v_seen, case when v_is_noted then v_member.done_tick_id else v_tick_id end, v_now);
  end if;
end $$;
revoke execute on function trunq_queue._specimen_next_in_group from public;
comment on function trunq_queue._specimen_next_in_group is
  'The next batch of a member of a group by key: the one it has in hand, or that of the slot furthest behind that is free and has messages. Arguments and results as next_batch.';

create or replace function trunq_queue._specimen_slots(p_group_id integer, p_member text, p_now timestamptz, p_slots integer[])
returns table (subscription_id integer, name text, slot integer, tick_id bigint, hi pg_snapshot, is_open boolean, is_held boolean, is_mine boolean)
language plpgsql stable rows 16
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
begin
  return query
    select s.subscription_id, s.name, s.slot::integer, coalesce(o.tick_id, b.to_tick_id, s.start_tick_id), coalesce(b.hi, s.start),
      o.tick_id is not null, coalesce(o.is_held, false), coalesce(o.is_mine, false)
    from trunq.subscription s
    left join lateral trunq_queue._specimen_newest(s.subscription_id) b on true
    left join lateral (
      select min(o.from_tick_id) tick_id, bool_or(o.expires_at > p_now) is_held, bool_or(o.worker = p_member and o.expires_at > p_now) is_mine
      from trunq_queue._specimen_open_batches(s.subscription_id) o where not b.finished or b.open_leases is not null) o on true
    where s.group_id = p_group_id and (p_slots is null or s.slot = any (p_slots));
end $$;
comment on function trunq_queue._specimen_slots is
  'Slots of a group, p_slots or all: where each stands, whether it has an open batch, whether somebody has that in hand or waits for it, and whether p_member has.';

create or replace function trunq_queue._specimen_arrivals(p_group trunq.subscription_group, p_lo pg_snapshot, p_hi pg_snapshot, p_limit integer)
returns table (txid xid8, slot integer)
language plpgsql stable rows 10
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v_group_id constant integer := p_group.group_id;
  v_slots constant integer := p_group.slots;
begin
  return query
    select g.txid, case when g.subscription_id is null then trunq._slot(g.key, g.id, v_slots)
      else (select s.slot::integer from trunq.subscription s where s.subscription_id = g.subscription_id and s.group_id = v_group_id) end
    from trunq_queue._specimen_window(p_lo, p_hi) g limit p_limit;
end $$;
comment on function trunq_queue._specimen_arrivals is
  'The first rows that hi sees and lo does not, and the slot of each; null: it is for another subscription.';

create or replace function trunq_queue._specimen_first_of_slot(p_sub trunq.subscription, p_lo pg_snapshot, p_hi pg_snapshot) returns xid8
language plpgsql stable
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
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
    and (v_all or trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq_queue._specimen_sifted(g.headers, trunq_queue._specimen_told_options(g))))
  limit 1;
  return v_txid;
end $$;
comment on function trunq_queue._specimen_first_of_slot is
  'The transaction of the first message of a slot that hi sees and lo does not; null: there is none.';
