-- Slots: a group by key splits its messages over them, so that members work beside each other and the messages of one key stay in order.
--
-- *Each slot is an exclusive subscription of its own*, named <group>#<slot>, whose filter says which keys: all that holds for a stream (one batch
-- at a time, takeover, halves, retries, seek, rotation) holds for a slot. A key is in one slot, by a hash of its own that no upgrade of Postgres
-- changes; a message without a key is in that of its id. Slots are fixed when the group is made. Nothing is assigned to members and nothing
-- rebalanced: who asks gets the slot furthest behind that is free and has messages. A slot in another's hands is passed over, not waited for.
--
-- *What it costs*: a batch of one slot walks over the rows of the others, so the log is walked once a slot (docs/decisions/0017-a-slot-is-a-stream.md
-- has the figures). A batch ends where the slot has messages, over as many ticks as that takes; one that has none writes nothing, and is taken along
-- every thousand messages, lest it hold the log.
--
-- *An empty poll looks at what is new, not at slots*: a member that found all slots done, and no batch open, notes the snapshot (trunq.member.done).
-- From then on only a slot for which a row came that it does not see can have something. Only a position that moves back makes the note wrong: whoever
-- moves one counts it (trunq._move_back), and members read the count before they look.
--
-- Functions that take the name of a subscription take that of a group by key as far as it makes sense: with a batch, they find its slot
-- (trunq._subscription_of); seek, position, pause and policies go for all slots.

create or replace function trunq._slot(p_key text, p_id bigint, p_slots integer) returns integer
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable parallel safe as $$
  select case when p_key is null then (p_id operator(pg_catalog.&) (p_slots operator(pg_catalog.-) 1))::integer
    else ('x' operator(pg_catalog.||) pg_catalog.left(pg_catalog.md5(p_key), 4))::bit(16)::integer operator(pg_catalog.&) (p_slots operator(pg_catalog.-) 1) end
$$;
comment on function trunq._slot is 'The slot of a message, by its key: the first two bytes of md5; without one, by its id.';

create or replace function trunq._check_slots(p_slots integer) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_slots not between 1 and 1024 or p_slots & (p_slots - 1) <> 0 then
    perform trunq._fail('TQ005', format('a group has 1 to 1024 slots, a power of two, not %s', p_slots),
      'give 16, or more where more members work at the same time; none (null) for members with whole batches');
  end if;
end $$;
comment on function trunq._check_slots is 'Refuses (TQ005) a number of slots that no group has; null is none.';

create or replace function trunq._make_slots(p_queue trunq.queue, p_group trunq.subscription_group, p_tick trunq.tick) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into trunq.subscription (queue_id, name, mode, start, queue_paused_until, start_tick_id, group_id, slot, filter)
  select p_queue.queue_id, format('%s#%s', p_group.name, n), 'exclusive', p_tick.snapshot, p_queue.paused_until, p_tick.tick_id, p_group.group_id, n,
    jsonb_build_object('slot', n, 'slots', p_group.slots)
  from generate_series(0, p_group.slots - 1) n
$$;
comment on function trunq._make_slots is 'Makes the subscriptions of a group by key.';

create or replace function trunq._set_slots(
  p_queue text, p_group text, p_mode text, p_policy trunq.policy, p_lease_time interval, p_dead_retention interval, p_filter jsonb
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_mode is distinct from 'exclusive' then
    perform trunq._fail('TQ011', format('"%s" of queue "%s" is a group: it is exclusive, not %s', p_group, p_queue, coalesce(p_mode, 'null')),
      'choose another name, or unsubscribe it first');
  end if;
  perform trunq._check_policy(format('group "%s"', p_group), p_policy);
  perform trunq._check_interval('the time of a lease', p_lease_time);
  perform trunq._check_filter(p_filter);
  perform trunq._check_filter_columns(p_queue, p_filter);
  update trunq.subscription s set
    max_attempts = case when p_policy.max_attempts is null then s.max_attempts else nullif(p_policy.max_attempts, 0) end,
    lease_time = coalesce(p_lease_time, s.lease_time),
    backoff = coalesce(p_policy.backoff, s.backoff),
    backoff_base = coalesce(p_policy.backoff_base, s.backoff_base),
    backoff_cap = coalesce(p_policy.backoff_cap, s.backoff_cap),
    jitter = coalesce(p_policy.jitter, s.jitter),
    dead_retention = case when p_dead_retention is null then s.dead_retention else nullif(p_dead_retention, '0') end,
    filter = case when p_filter is null then s.filter
      else p_filter || jsonb_build_object('slot', s.filter->'slot', 'slots', s.filter->'slots') end
  from trunq.queue q where q.queue_id = s.queue_id and q.name = p_queue and s.name in (select trunq._slots(p_queue, p_group));
end $$;
comment on function trunq._set_slots is 'Changes the policies given of a group by key, as subscribe does.';

create or replace function trunq._slots(p_queue text, p_group text) returns setof text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.name from trunq.queue q join trunq.subscription_group g on g.queue_id = q.queue_id join trunq.subscription s on s.group_id = g.group_id
  where q.name = p_queue and g.name = p_group and g.slots is not null order by s.subscription_id
$$;
comment on function trunq._slots is 'The names of the slots of a group by key, in the order in which their locks are taken; none: there is no such group.';

create or replace function trunq._is_split(p_queue text, p_group text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (select from trunq._slots(p_queue, p_group))
$$;
comment on function trunq._is_split is 'Whether this is the name of a group by key.';

create or replace function trunq._subscription_of(p_queue text, p_subscription text, p_lease_id bigint, p_mode text default 'exclusive') returns trunq.subscription
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_is_its boolean;
begin
  select s.* into v_sub from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
  where q.name = p_queue and s.name = p_subscription;
  if found and (p_mode is null or v_sub.mode = p_mode) then
    return v_sub;
  elsif not trunq._is_split(p_queue, p_subscription) then
    return trunq._subscription(p_queue, p_subscription, p_mode);
  end if;
  for v_sub in
    select s.* from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
    where q.name = p_queue and s.name in (select trunq._slots(p_queue, p_subscription)) order by s.slot
  loop
    execute format('select exists (select from trunq_data.%I l where l.subscription_id = $1 and l.lease_id = $2)',
      (trunq._find_queue(v_sub.queue_id)).lease_table) into v_is_its using v_sub.subscription_id, p_lease_id;
    exit when v_is_its or p_lease_id is null;
  end loop;
  return v_sub;
end $$;
comment on function trunq._subscription_of is
  'A subscription by name, or that slot of a group which has this batch (the last one when none has); TQ001, TQ002, TQ011 as trunq._subscription.';

create or replace function trunq._slot_window(
  p_queue trunq.queue, p_sub trunq.subscription, p_from_tick_id bigint, p_from_snapshot pg_snapshot, p_max_ticks integer, p_now timestamptz,
  p_min_lag interval, p_min_count bigint, p_min_interval interval, p_cut boolean, out tick_id bigint, out snapshot pg_snapshot
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_last trunq.tick;
  v_seen pg_snapshot;
  v_txid xid8;
  v_least trunq.tick;
begin
  select t.* into v_last from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1;
  v_seen := case when p_cut then trunq.snapshot() else v_last.snapshot end;
  -- By a later statement: whatever v_seen sees is there for it.
  execute format('select trunq_queue.%I($1, $2, $3)', p_queue.name || '_first_of_slot') into v_txid using p_sub, p_from_snapshot, v_seen;
  if v_txid is null then
    if v_last.tick_id > p_from_tick_id and trunq._should_move_slot(p_queue.queue_id, p_from_tick_id, v_last) then
      perform trunq._put_batch(p_queue, p_sub.subscription_id, 'skip', p_from_snapshot, v_last.snapshot, p_from_tick_id, v_last.tick_id,
        trunq._segment_at(p_queue, now()));
    end if;
    return;
  end if;
  if not pg_visible_in_snapshot(v_txid, v_last.snapshot)
      and not trunq._cut_for_reader(p_queue.queue_id, v_last, p_from_tick_id, p_min_lag, p_min_count, p_min_interval) then
    return;
  end if;
  select t.tick_id, t.snapshot into tick_id, snapshot from trunq._find_tick(p_queue.queue_id, p_from_tick_id,
    case when p_min_lag is null then p_now else trunq.clock() end, p_max_ticks, p_min_lag, p_min_count, p_min_interval) t;
  -- The first tick that sees it: those before may have nothing for this slot.
  select t.* into v_least from trunq.tick t
  where t.queue_id = p_queue.queue_id and t.tick_id > p_from_tick_id and pg_visible_in_snapshot(v_txid, t.snapshot) order by t.tick_id limit 1;
  if v_least.tick_id is null or v_least.created_at > trunq.clock() - p_min_lag then
    tick_id := null;
  elsif tick_id < v_least.tick_id then
    tick_id := v_least.tick_id; snapshot := v_least.snapshot;
  end if;
end $$;
comment on function trunq._slot_window is
  'Up to which tick the next batch of a slot goes, which has messages then; it cuts one where it must. Null: there is nothing for it, and a slot that is far behind moves on. The caller holds its lock.';

create or replace function trunq._should_move_slot(p_queue_id integer, p_tick_id bigint, p_last trunq.tick) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_last.tick_id > p_tick_id and coalesce((
    select p_last.last_message_id - t.last_message_id > 1000 or p_last.created_at - t.created_at > '1 minute'
    from trunq.tick t where t.queue_id = p_queue_id and t.tick_id = p_tick_id), true)
$$;
comment on function trunq._should_move_slot is 'Whether a slot that has nothing to read should move on, so that nobody walks the same rows again, nor rotation waits for it.';

create or replace function trunq._is_done(p_member trunq.member, p_group trunq.subscription_group, p_now timestamptz) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- The minute is a net: what nobody thought of costs no more than that.
  select coalesce(p_member.done_moves = p_group.moves and p_now - p_member.done_at between '0' and '1 minute', false)
$$;
comment on function trunq._is_done is 'Whether what a member has noted of its group still holds: all that trunq.member.done sees is done, in every slot.';

create or replace function trunq._note_done(
  p_member trunq.member, p_group trunq.subscription_group, p_done pg_snapshot, p_tick_id bigint, p_now timestamptz
) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  update trunq.member m set done = p_done, done_tick_id = p_tick_id, done_moves = p_group.moves, done_at = p_now
  where m.group_id = p_member.group_id and m.name = p_member.name
    -- Every ten seconds: between two batches of a stream, looking costs less than writing.
    and (p_member.done_moves = p_group.moves and p_now - p_member.done_at between '0' and '10 seconds') is not true
$$;
comment on function trunq._note_done is
  'Notes that a member found every slot done up to a snapshot, with no batch open, and the slot furthest behind at a tick. p_group was read before it looked: where somebody moved a slot back since, the note does not hold.';

create or replace function trunq._move_back(p_queue_id integer, p_subscription_id integer default null) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  update trunq.subscription_group g set moves = g.moves + 1
  where g.queue_id = p_queue_id and g.slots is not null and (p_subscription_id is null
    or g.group_id = (select s.group_id from trunq.subscription s where s.subscription_id = p_subscription_id))
$$;
comment on function trunq._move_back is 'Says that a slot, or what a queue has of them, was moved, perhaps back: what members noted of their groups holds no more. It locks the row of the group, before any lock of a subscription: else two who move slots of one group could wait for each other.';

create or replace function trunq._member_lock(p_group_id integer, p_member text) returns integer
language sql immutable parallel safe as $$ select (pg_catalog.hashtextextended(p_member, p_group_id) operator(pg_catalog.&) 2147483647)::integer $$;
comment on function trunq._member_lock is 'The second integer of the lock of a member. Two that share a hash only pass each other over.';
