-- Groups: several members read one stream at the same time.
--
-- *With whole batches* (slots null): the group is an exclusive subscription whose members have a batch each. Which are open is the set that the
-- newest lease carries (batch.sql); a batch whose time ran out goes to whichever member asks next. Batches are done beside each
-- other: a message may be done before an older one.
--
-- *By key* (slots): functions/stream/slot.sql.
--
-- A member is a name. It joins by asking for a batch; trunq.join_group also refuses a name that another uses. What it has in hand is its lease and
-- nothing else: its row only says when it was last seen, written every ten seconds at most.

create or replace function trunq.create_group(
  p_queue text, p_group text, p_slots integer default null, p_start text default 'latest', p_tick_id bigint default null, p_at timestamptz default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_group trunq.subscription_group;
  v_mode text;
begin
  perform trunq._require_read_committed('create_group');
  perform trunq._check_name('group', p_group);
  perform trunq._check_slots(p_slots);
  perform trunq._check_start(p_start, p_tick_id, p_at);
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue.queue_id);
  v_queue := trunq._find_queue(p_queue);  -- it may have been dropped meanwhile
  insert into trunq.subscription_group (queue_id, name, slots) values (v_queue.queue_id, p_group, p_slots)
  on conflict (queue_id, name) do nothing returning * into v_group;
  if not found then
    v_group := trunq._group(p_queue, p_group);
    if v_group.slots is distinct from p_slots then
      perform trunq._fail('TQ011', format('group "%s" of queue "%s" is there, and reads %s', p_group, p_queue, trunq._reading_way(v_group.slots)),
        'that is fixed when it is made: choose another name, or drop it first');
    end if;
    return false;
  end if;
  if p_slots is not null then
    select s.mode into v_mode from trunq.subscription s where s.queue_id = v_queue.queue_id and s.name = p_group;
    if found then
      perform trunq._fail('TQ011', format('"%s" is the name of a subscription of queue "%s", which is %s', p_group, p_queue, v_mode),
        'a group by key has slots of its own: choose another name');
    end if;
    perform trunq._check_cluster();
    perform trunq._make_slots(v_queue, v_group, trunq._start_tick(v_queue, p_start, p_tick_id, p_at));
    return true;
  end if;
  perform trunq.subscribe(p_queue, p_group, 'exclusive', p_start, p_tick_id => p_tick_id, p_at => p_at);
  update trunq.subscription s set group_id = v_group.group_id where s.queue_id = v_queue.queue_id and s.name = p_group;
  return true;
end $$;
comment on function trunq.create_group is
  'Makes a group of readers, each of which has a batch of its own at the same time. Without p_slots its members read whole batches beside each other. With p_slots (1 to 1024, a power of two; 16 is usual) they read by key: messages of one key come in order, those of the same slot one batch at a time. It starts as subscribe says; without slots, an exclusive subscription of this name becomes the group, and goes on where it stands.
Returns: false when it was there.
Raises: TQ001, TQ004, TQ005, TQ007, TQ010; TQ011 when it is there in another way, or a subscription has its name; TQ012 when messages after that tick or time are gone.
Locks: the queue, shared.';

create or replace function trunq.drop_group(p_queue text, p_group text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_group_id integer;
  v_ids integer[];
begin
  perform trunq._audit('drop_group', p_queue, jsonb_build_object('group', p_group));
  perform trunq._make_marks(v_queue);
  select g.group_id into v_group_id from trunq.subscription_group g where g.queue_id = v_queue.queue_id and g.name = p_group for update;
  if not found then
    return false;
  end if;
  v_ids := array(select s.subscription_id from trunq.subscription s where s.group_id = v_group_id order by s.subscription_id);
  delete from trunq.subscription_group g where g.group_id = v_group_id;
  perform trunq._forget_subscription(v_queue.queue_id, u.id) from unnest(v_ids) u(id);
  return true;
end $$;
comment on function trunq.drop_group is
  'Ends a group: its members, positions, delayed and dead messages go with it.
Returns: false when there was none.
Raises: TQ001.';

create or replace function trunq.join_group(p_queue text, p_group text, p_member text) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_group trunq.subscription_group;
  v_member trunq.member;
  v_now timestamptz;
begin
  perform trunq._require_read_committed('join_group');
  v_group := trunq._group(p_queue, p_group);
  perform trunq._check_member(p_member);
  v_now := trunq.clock();
  insert into trunq.member (group_id, name, joined_at, seen_at)
  select g.group_id, p_member, v_now, v_now from trunq.subscription_group g where g.group_id = v_group.group_id for key share
  on conflict (group_id, name) do nothing;
  if found then
    return v_now;
  end if;
  perform trunq._group(p_queue, p_group);  -- it may have been dropped meanwhile
  -- Of two at once, the second waits here and finds it seen.
  select m.* into v_member from trunq.member m where m.group_id = v_group.group_id and m.name = p_member for update;
  if not found or trunq._is_alive(v_member, v_now) or exists (
      select from trunq._held_in_group(v_group) h where h.worker = p_member and h.expires_at > v_now) then
    perform trunq._fail('TQ027', format('group "%s" of queue "%s" has a member "%s" that lives', p_group, p_queue, p_member),
      'choose another name; one that is not heard of for a minute, and has no batch, is taken for dead, and trunq.leave_group ends it at once');
  end if;
  update trunq.member m set joined_at = v_now, seen_at = v_now where m.group_id = v_group.group_id and m.name = p_member;
  return v_now;
end $$;
comment on function trunq.join_group is
  'Makes p_member a member of a group; asking for a batch does so too, and asks nobody. Under a name of its own it can tell its batches from those of others.
Returns: when it joined.
Raises: TQ001, TQ002, TQ005, TQ007; TQ027 when a member of that name lives: it asked for a batch within a minute, or has one whose time is not over.
Locks: the row of a member of that name.';

create or replace function trunq.leave_group(p_queue text, p_group text, p_member text, p_batch text default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_group trunq.subscription_group;
  v_held record;
begin
  perform trunq._require_read_committed('leave_group');
  v_group := trunq._group(p_queue, p_group);
  if p_batch <> all (trunq._words('batch_left')) then
    perform trunq._fail('TQ005', format('what becomes of the batch of a member who leaves is finish or give_back, not "%s"', left(p_batch, 100)));
  end if;
  -- Nobody gives it a batch meanwhile.
  if v_group.slots is null then
    perform trunq._lock_subscription(s.subscription_id, p_queue, p_group) from trunq.subscription s where s.group_id = v_group.group_id;
  elsif not pg_try_advisory_xact_lock(trunq._lock_class('member'), trunq._member_lock(v_group.group_id, p_member)) then
    perform trunq._fail('TQ008', format('member "%s" of group "%s" asks for a batch just now', p_member, p_group), 'try again when it has it');
  end if;
  for v_held in
    select h.* from trunq._held_in_group(v_group) h where h.worker = p_member order by h.subscription_id, h.lease_id
  loop
    perform trunq._end_held(v_queue, v_held.subscription_id, v_held.lease_id, p_member, p_batch);
  end loop;
  delete from trunq.member m where m.group_id = v_group.group_id and m.name = p_member;
  return found;
end $$;
comment on function trunq.leave_group is
  'Ends a member. With a batch in hand it is an error, unless p_batch says what becomes of it: finish, as if the member had done so; give_back: the next who asks has it.
Returns: false when there was no such member.
Raises: TQ001, TQ002, TQ005, TQ007, TQ008; TQ027 when it has a batch in hand.
Locks: the subscription.';

create or replace function trunq.list_groups(p_queue text default null)
returns table (
  queue text, group_name text, slots integer, members integer, alive integer, position_tick_id bigint, newest_tick_id bigint, pending bigint,
  is_estimate boolean, lag interval, batches integer, created_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
  v_now timestamptz := trunq.clock();
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  perform trunq._check_cluster();
  for v in
    select g as row, q.name queue_name from trunq.subscription_group g join trunq.queue q on q.queue_id = g.queue_id
    where p_queue is null or q.name = p_queue order by q.name, g.name
  loop
    queue := v.queue_name; group_name := (v.row).name; slots := (v.row).slots; created_at := (v.row).created_at;
    select count(*), count(*) filter (where m.is_alive) into members, alive from trunq._members(v.row, v_now) m;
    select min(s.position_tick_id), max(s.newest_tick_id), sum(s.pending), bool_or(s.is_estimate), max(s.lag), sum(s.batches)::integer
    into position_tick_id, newest_tick_id, pending, is_estimate, lag, batches
    from trunq._streams(queue) s where s.group_id = (v.row).group_id;
    return next;
  end loop;
end $$;
comment on function trunq.list_groups is
  'The groups of a queue, or of all. slots: null for whole batches; members, and alive: those heard of within a minute or with a batch whose time is not over; position_tick_id to lag: as trunq.list_streams has them, of the slot that is furthest behind, pending of all; batches: how many are open, with those that wait.
Raises: TQ001, TQ010.';

create or replace function trunq.list_members(p_queue text, p_group text)
returns table (
  member text, is_alive boolean, batch_id bigint, slot integer, from_tick_id bigint, to_tick_id bigint, attempt integer, opened_at timestamptz,
  expires_at timestamptz, joined_at timestamptz, seen_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return query select m.* from trunq._members(trunq._group(p_queue, p_group), trunq.clock()) m order by m.member;
end $$;
comment on function trunq.list_members is
  'The members of a group, and the batch that each has in hand. is_alive: it asked for a batch within a minute, or the time of its batch is not over; slot: of which slot the batch is, of a group by key.
Raises: TQ001, TQ002.';

create or replace function trunq._members(p_group trunq.subscription_group, p_now timestamptz)
returns table (
  member text, is_alive boolean, batch_id bigint, slot integer, from_tick_id bigint, to_tick_id bigint, attempt integer, opened_at timestamptz,
  expires_at timestamptz, joined_at timestamptz, seen_at timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select m.name, trunq._is_alive(m, p_now) or coalesce(h.expires_at > p_now, false), h.lease_id, h.slot, h.from_tick_id, h.to_tick_id,
    case when h.lease_id is not null then coalesce(h.failures, 0) + 1 end, h.leased_at, h.expires_at, m.joined_at, greatest(m.seen_at, h.leased_at)
  from trunq.member m left join lateral (
    select h.* from trunq._held_in_group(p_group) h where h.worker = m.name order by h.lease_id desc limit 1) h on true
  where m.group_id = p_group.group_id
$$;
comment on function trunq._members is 'The members of a group, as trunq.list_members shows them.';

create or replace function trunq._held_in_group(p_group trunq.subscription_group)
returns table (
  subscription_id integer, slot integer, lease_id bigint, worker text, from_tick_id bigint, to_tick_id bigint, leased_at timestamptz,
  expires_at timestamptz, failures integer
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.subscription_id, s.slot::integer, o.lease_id, o.worker, o.from_tick_id, o.to_tick_id, o.leased_at, o.expires_at, o.failures::integer
  from trunq.subscription s cross join lateral trunq._open_batches(trunq._find_queue(s.queue_id), s.subscription_id) o
  where s.group_id = p_group.group_id and o.worker is not null
$$;
comment on function trunq._held_in_group is 'The batches that members of a group have in hand, those whose time is over among them.';

create or replace function trunq._end_held(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_member text, p_way text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v record;
begin
  select s.* into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  perform trunq._lock_subscription(p_subscription_id, p_queue.name, v_sub.name);
  -- By a later statement than the lock: it may have been finished, or taken over, meanwhile.
  select o.* into v from trunq._open_batches(p_queue, p_subscription_id) o where o.lease_id = p_lease_id and o.worker = p_member;
  if not found then
    return;
  elsif p_way is null then
    perform trunq._fail('TQ027', format('member "%s" has batch %s of queue "%s" in hand', p_member, p_lease_id, p_queue.name),
      'finish it first, or say what becomes of it: p_batch => ''give_back'' or ''finish''');
  elsif p_way = 'finish' then
    execute format($q$
      insert into trunq_data.%I (lease_id, segment, subscription_id, outcome, size, ids, finished_at) values ($1, $2, $3, 'b', 0, '{}', $4)
    $q$, p_queue.receipt_table) using p_lease_id, v.segment, p_subscription_id, trunq.clock();
  else
    perform trunq._open_part(p_queue, p_subscription_id, v, v.after_txid, v.after_id, v.last_txid, v.last_id, null,
      array(select o.lease_id from trunq._open_batches(p_queue, p_subscription_id) o where o.lease_id <> p_lease_id), v.failures::integer, v.error);
  end if;
end $$;
comment on function trunq._end_held is
  'Ends a batch that a member has in hand: finish, give_back, or null: it may have none (TQ027). Takes the subscription''s lock.';

create or replace function trunq._see_member(p_group_id integer, p_member text, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_seen_at timestamptz;
begin
  select m.seen_at into v_seen_at from trunq.member m where m.group_id = p_group_id and m.name = p_member;
  if found and p_now - v_seen_at between '0' and '10 seconds' then
    return;
  elsif not found then
    perform trunq._check_member(p_member);
    -- Names of processes that were never heard of again.
    delete from trunq.member m where m.group_id = p_group_id and m.seen_at < p_now - interval '1 day';
  end if;
  insert into trunq.member as m (group_id, name, joined_at, seen_at)
  select g.group_id, p_member, p_now, p_now from trunq.subscription_group g where g.group_id = p_group_id for key share
  on conflict (group_id, name) do update set seen_at = excluded.seen_at;
  if not found then
    perform trunq._fail('TQ002', format('the group that member "%s" asks for a batch was dropped meanwhile', p_member),
      'create it: select trunq.create_group(''queue'', ''name''); select * from trunq.list_groups() shows those there are');
  end if;
end $$;
comment on function trunq._see_member is 'Notes that a member asked for a batch, every ten seconds.';

create or replace function trunq._check_member(p_member text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(p_member, '') = '' or octet_length(p_member) > 200 then
    perform trunq._fail('TQ005', case when coalesce(p_member, '') = '' then 'a member of a group has a name, and gave none'
      else format('the name of a member has at most 200 bytes, not %s', octet_length(p_member)) end);
  end if;
end $$;
comment on function trunq._check_member is 'Refuses (TQ005) what cannot be the name of a member.';

create or replace function trunq._is_alive(p_member trunq.member, p_now timestamptz) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$ select p_member.seen_at > p_now - interval '1 minute' $$;
comment on function trunq._is_alive is 'Whether a member was heard of within a minute. One that is busy longer has a batch.';

create or replace function trunq._group(p_queue text, p_group text) returns trunq.subscription_group
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_group trunq.subscription_group;
begin
  select g.* into v_group from trunq.subscription_group g where g.queue_id = (trunq._find_queue(p_queue)).queue_id and g.name = p_group;
  if not found then
    perform trunq._fail('TQ002', format('queue "%s" has no group "%s"', p_queue, coalesce(p_group, '')),
      'create it: select trunq.create_group(''queue'', ''name''); select * from trunq.list_groups() shows those there are');
  end if;
  return v_group;
end $$;
comment on function trunq._group is 'A group by name, or TQ001, TQ002.';

create or replace function trunq._reading_way(p_slots integer) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_slots is null then 'whole batches' else format('by key over %s slots', p_slots) end
$$;
comment on function trunq._reading_way is 'How a group reads, in words.';

create or replace function trunq._frontier(p_queue trunq.queue, p_subscription_id integer) returns pg_snapshot
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  if not exists (select from trunq.subscription s where s.subscription_id = p_subscription_id and s.group_id is not null and s.slot is null) then
    return null;
  end if;
  v := trunq._newest_batch(p_queue, p_subscription_id);
  return v.hi;
end $$;
comment on function trunq._frontier is
  'Up to where the batches of a group were handed out, some of which may be finished before others; null: it has had none, or is no group with whole batches.';
