-- A subscription is a named reader of one queue. shared: workers compete, each message is answered on its own. exclusive:
-- one reader takes whole batches between ticks, in order. Every subscription sees every message whose transaction was not
-- finished at the snapshot taken inside subscribe(), also the rows that transaction had inserted before.

create or replace function trunq.subscribe(
  p_queue text,
  p_subscription text,
  p_mode text default 'shared',
  p_start text default 'latest',
  p_max_attempts integer default null,
  p_lease_time interval default null,
  p_backoff text default null,
  p_backoff_base interval default null,
  p_backoff_cap interval default null,
  p_jitter real default null,
  p_keep_results boolean default null,
  p_dead_retention interval default null,
  p_filter jsonb default null,
  p_rate double precision default null,
  p_rate_interval interval default null,
  p_burst integer default null,
  p_max_running integer default null,
  p_time_out interval default null,
  p_in_order boolean default null,
  p_tick_id bigint default null,
  p_at timestamptz default null,
  p_max_age interval default null,
  p_due_first boolean default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_sub trunq.subscription;
  v_created boolean := false;
  v_tick trunq.tick;
begin
  perform trunq._require_read_committed('subscribe');
  if trunq._is_split(p_queue, p_subscription) then
    if num_nonnulls(p_rate, p_rate_interval, p_burst, p_max_running, nullif(p_time_out, '0'), p_in_order, nullif(p_max_age, '0'), nullif(p_due_first, false)) > 0 then
      perform trunq._fail('TQ005', format('"%s" is a group: it has no rate, no time-out, no max_age and no due_first, and its keys are in order', p_subscription),
        'more slots let more members work at the same time, fewer ticks at a time make smaller batches');
    end if;
    select s.* into v_sub from trunq.subscription s join trunq.subscription_group g on g.group_id = s.group_id
    where s.queue_id = v_queue_id and g.name = p_subscription and s.slot = 0;
    perform trunq._set_slots(p_queue, p_subscription, p_mode, row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy,
      p_lease_time, p_dead_retention, p_filter);
    perform trunq._audit_policy(p_queue, v_sub);
    return false;
  end if;
  perform trunq._check_name('subscription', p_subscription);
  if coalesce(p_mode, '') <> all (trunq._words('mode')) then
    perform trunq._fail('TQ005', format('a subscription is shared or exclusive, not "%s"', p_mode));
  end if;
  perform trunq._check_start(p_start, p_tick_id, p_at);
  perform trunq._check_policy(format('subscription "%s"', p_subscription),
    row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy);
  perform trunq._check_interval(format('lease_time in the policy of subscription "%s"', p_subscription), p_lease_time);
  perform trunq._check_interval(format('time_out in the policy of subscription "%s"', p_subscription), p_time_out, '0');
  perform trunq._check_interval(format('dead_retention in the policy of subscription "%s"', p_subscription), p_dead_retention, '0');
  if p_mode = 'exclusive' and p_time_out > '0' then
    perform trunq._fail('TQ005', format('subscription "%s" is exclusive: its batches have no time-out', p_subscription),
      'give it to a shared subscription, whose messages workers handle one by one');
  end if;
  perform trunq._check_interval(format('max_age in the policy of subscription "%s"', p_subscription), p_max_age, '0');
  if p_mode = 'exclusive' and p_max_age > '0' then
    perform trunq._fail('TQ005', format('subscription "%s" is exclusive: its batches are the same whenever they are read, whatever their age', p_subscription),
      'give max_age to a shared subscription, or have the reader pass over what was created too long ago');
  end if;
  perform trunq._check_filter(p_filter), trunq._check_filter_columns(p_queue, p_filter);
  perform trunq._check_limits(p_subscription, p_rate, p_rate_interval, p_burst, p_max_running);
  -- Shared with other subscribers; rotation and drop wait, so no segment goes that this reader is about to need.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_queue_id);
  v_queue_id := (trunq._find_queue(p_queue)).queue_id;  -- it may have been dropped meanwhile
  perform trunq._check_cluster();
  select * into v_sub from trunq.subscription s where s.queue_id = v_queue_id and s.name = p_subscription;
  if not found then
    v_tick := trunq._start_snapshot(trunq._find_queue(v_queue_id), p_mode, p_start, p_tick_id, p_at);
    insert into trunq.subscription (queue_id, name, mode, start, queue_paused_until, start_tick_id)
    values (v_queue_id, p_subscription, p_mode, v_tick.snapshot, (trunq._find_queue(v_queue_id)).paused_until, case p_mode when 'exclusive' then v_tick.tick_id end)
    on conflict (queue_id, name) do nothing
    returning * into v_sub;
    v_created := found;
    if v_created and p_mode = 'shared' and (p_start, p_tick_id, p_at) is distinct from ('latest', null::bigint, null::timestamptz) then
      perform trunq._skip_deleted(trunq._find_queue(v_queue_id), v_sub.subscription_id);
    elsif not v_created then
      select * into v_sub from trunq.subscription s where s.queue_id = v_queue_id and s.name = p_subscription;
    end if;
  end if;
  if v_sub.mode <> p_mode then
    perform trunq._fail('TQ011', format('subscription "%s" of queue "%s" is %s, not %s', p_subscription, p_queue, v_sub.mode, p_mode),
      'choose another name, or unsubscribe it first');
  end if;
  if p_mode = 'exclusive' and num_nonnulls(p_rate, p_rate_interval, p_burst, p_max_running) > 0 then
    perform trunq._fail('TQ005', format('subscription "%s" is exclusive: it has no rate, and runs one batch at a time', p_subscription), 'limit a shared subscription, or read fewer ticks at a time');
  end if;
  perform trunq._check_due_first(p_due_first, v_queue_id, p_subscription, p_mode);
  if p_in_order is distinct from v_sub.in_order and p_in_order is not null then
    perform trunq._set_order(trunq._find_queue(v_queue_id), v_sub, p_in_order);
  end if;
  if num_nonnulls(p_max_attempts, p_lease_time, p_backoff, p_backoff_base, p_backoff_cap, p_jitter, p_keep_results, p_dead_retention, p_filter,
      p_rate, p_rate_interval, p_burst, p_max_running, p_time_out, p_max_age, p_due_first) > 0 then
    update trunq.subscription s set
      max_attempts = case when p_max_attempts is null then s.max_attempts else nullif(p_max_attempts, 0) end,
      lease_time = coalesce(p_lease_time, s.lease_time),
      backoff = coalesce(p_backoff, s.backoff), backoff_base = coalesce(p_backoff_base, s.backoff_base),
      backoff_cap = coalesce(p_backoff_cap, s.backoff_cap),
      jitter = coalesce(p_jitter, s.jitter), keep_results = coalesce(p_keep_results, s.keep_results),
      dead_retention = case when p_dead_retention is null then s.dead_retention else nullif(p_dead_retention, '0') end,
      filter = case when p_filter is null then s.filter else nullif(p_filter, '{}') end,
      rate = case when p_rate is null then s.rate else nullif(p_rate, 0) end,
      rate_interval = coalesce(p_rate_interval, s.rate_interval),
      burst = case when p_burst is null then s.burst else nullif(p_burst, 0) end,
      max_running = case when p_max_running is null then s.max_running else nullif(p_max_running, 0) end,
      time_out = case when p_time_out is null then s.time_out else nullif(p_time_out, '0') end,
      max_age = case when p_max_age is null then s.max_age else nullif(p_max_age, '0') end,
      due_first = coalesce(p_due_first, s.due_first)
    where s.subscription_id = v_sub.subscription_id;
    perform trunq._audit_policy(p_queue, v_sub);
  end if;
  if num_nonnulls(p_filter, p_rate, p_rate_interval, p_burst, p_max_running) > 0 then
    perform trunq._call_workers(v_queue_id);
  end if;
  return v_created;
end $$;
comment on function trunq.subscribe is
  'Makes a subscription, or changes the policies given of one that is there. p_mode: shared among workers (the default), or exclusive, which is read in batches. It sees every message whose transaction was not finished at this moment: p_start latest; at earliest also all that is kept; with p_tick_id those after that tick; with p_at those since that time and a few before, back to a tick. A message is tried p_max_attempts times (20; 0: for ever), each under a lease of p_lease_time (60 s). The delay before attempt n + 1 is p_backoff_base (1 s), times n with p_backoff linear, times 2^(n - 1) with exponential, at most p_backoff_cap (6 h), less a random part of it, up to the share p_jitter (0.1). What handlers return is kept with p_keep_results. Dead messages are kept for p_dead_retention (0, the default: until they are purged). p_filter: which messages it reads, {} for all: any of kinds, not_kinds, keys, not_keys (lists), headers and not_headers (objects), all of which must hold; a change counts for what is read from then on. p_rate: how many it hands out in p_rate_interval (a second), p_burst of them at once; p_max_running: how many run at the same time (up to 1,000), in all workers together; p_time_out: how long a worker lets a handler run; 0: no limit. p_max_age: a message that is older when it would be handed out is passed over and counted (outdated), a retry too; its age counts since it was published, was due if it was published for later, or was requeued (0: whatever its age). p_due_first: what fell due, after a delay or for a retry, comes before what waits; not in a queue with lanes. p_in_order: of a queue with lanes by key, one message of each key at a time, and one that is retried holds its key until it is done or dead; to be said before it hands anything out.
Returns: true when it was made, false when it was there.
Raises: TQ001, TQ004, TQ005, TQ007, TQ010; TQ008, with p_in_order; TQ011 when it is there in the other mode; TQ012 when messages after that tick or time are gone.
Locks: the queue, shared; with p_in_order the subscription.';

create or replace function trunq.unsubscribe(p_queue text, p_subscription text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_subscription_id integer;
begin
  perform trunq._audit('unsubscribe', p_queue, jsonb_build_object('subscription', p_subscription));
  if exists (select from trunq.subscription_group g where g.queue_id = v_queue_id and g.name = p_subscription) then
    return trunq.drop_group(p_queue, p_subscription);
  elsif exists (select from trunq.subscription s where s.queue_id = v_queue_id and s.name = p_subscription and s.slot is not null) then
    perform trunq._fail('TQ005', format('"%s" of queue "%s" is a slot of a group: without it, nobody would read its keys', p_subscription, p_queue),
      format('end the group: select trunq.drop_group(%L, %L)', p_queue, split_part(p_subscription, '#', 1)));
  end if;
  perform trunq._make_marks(trunq._find_queue(v_queue_id));
  delete from trunq.subscription s where s.queue_id = v_queue_id and s.name = p_subscription
  returning s.subscription_id into v_subscription_id;
  perform trunq._forget_subscription(v_queue_id, v_subscription_id);
  return v_subscription_id is not null;
end $$;
comment on function trunq.unsubscribe is
  'Ends a subscription, or a group: its position, delayed and dead messages go with it.
Returns: false when there was none.
Raises: TQ001; TQ005 for a slot of a group.';

create or replace function trunq.reset(p_queue text, p_subscription text, p_start text default 'latest') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v_tick trunq.tick;
  v_name text;
  v_new_id integer;
begin
  perform trunq._audit('reset', p_queue, jsonb_build_object('subscription', p_subscription, 'start', p_start));
  perform trunq._require_read_committed('reset');
  perform trunq._check_start(p_start);
  -- As subscribe does: no segment goes that this reader is about to need.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), (trunq._find_queue(p_queue)).queue_id);
  perform trunq._check_cluster();
  v_sub := trunq._subscription_of(p_queue, p_subscription, null, null);
  -- It may cut a tick: before the locks of subscriptions (functions/ground/lock.sql), of a group those of all slots.
  v_tick := trunq._start_snapshot(trunq._find_queue(p_queue), v_sub.mode, p_start);
  perform trunq._move_back(v_sub.queue_id, v_sub.subscription_id);
  for v_name in
    select p_subscription where not trunq._is_split(p_queue, p_subscription) union all select trunq._slots(p_queue, p_subscription)
  loop
    v_sub := trunq._subscription(p_queue, v_name);
    perform trunq._lock_subscription(v_sub.subscription_id, p_queue, v_name);
    perform trunq._make_marks(trunq._find_queue(v_sub.queue_id));
    -- Under a new id nothing of what it had read, held or given up is its own any more; its name and its policy stay.
    update trunq.subscription s set subscription_id = default, lost_at = null, start = v_tick.snapshot, start_tick_id = v_tick.tick_id
    where s.subscription_id = v_sub.subscription_id
    returning s.subscription_id into v_new_id;
    perform trunq._forget_subscription(v_sub.queue_id, v_sub.subscription_id);
    if v_sub.mode = 'shared' and p_start <> 'latest' then
      perform trunq._skip_deleted(trunq._find_queue(v_sub.queue_id), v_new_id);
    end if;
  end loop;
end $$;
comment on function trunq.reset is
  'Starts a subscription, or all slots of a group, afresh: at latest it skips what waits, at earliest it reads all that is still kept once more. Its policy stays; its position, history, delayed and dead messages go, and answers under its leases are refused.
Raises: TQ001, TQ002, TQ005, TQ007, TQ010; TQ008 when an open transaction holds the subscription for 5 seconds.
Locks: the queue, shared; the subscription.';

create or replace function trunq.list_subscriptions(p_queue text default null)
returns table (
  queue text, subscription text, subscription_id integer, mode text, max_attempts integer, lease_time interval,
  backoff text, backoff_base interval, backoff_cap interval, jitter real, time_out interval, keep_results boolean, dead_retention interval, filter jsonb,
  rate double precision, rate_interval interval, burst integer, max_running integer, in_order boolean, max_age interval, due_first boolean,
  paused boolean, paused_until timestamptz, created_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, split_part(s.name, '#', 1), s.subscription_id, s.mode, s.max_attempts, s.lease_time, s.backoff, s.backoff_base, s.backoff_cap,
      s.jitter, s.time_out, s.keep_results, s.dead_retention, nullif(s.filter - '{slot,slots}'::text[], '{}'),
      s.rate, s.rate_interval, s.burst, s.max_running, s.in_order, s.max_age, s.due_first, p.paused, p.paused_until, s.created_at
    from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
    cross join lateral trunq._pause(s, trunq.clock()) p
    where (p_queue is null or q.name = p_queue) and coalesce(s.slot, 0) = 0 order by q.name, s.name;
end $$;
comment on function trunq.list_subscriptions is
  'Subscriptions with their policies, of one queue or all; a group by key is one row. max_attempts null: for ever; time_out null: none; max_age null: whatever its age, a message is handed out; due_first: what fell due comes before what waits; dead_retention null: dead messages are kept until purged; paused: by itself or with its queue; paused_until null: until it is resumed.
Raises: TQ001.';

create or replace function trunq._subscription(p_queue text, p_subscription text, p_mode text default null) returns trunq.subscription
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
begin
  select s.* into v_sub from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
  where q.name = p_queue and s.name = p_subscription;
  if not found then
    perform trunq._find_queue(p_queue);
    if trunq._owns() and trunq._is_split(p_queue, p_subscription) then
      perform trunq._fail('TQ011', format('"%s" of queue "%s" is a group by key, not one subscription', p_subscription, p_queue),
        format('its slots are subscriptions, %s#0 and so on', p_subscription));
    end if;
    if p_mode = 'shared' and not exists (
        select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where q.name = p_queue and s.mode = 'shared')
      and exists (select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where q.name = p_queue) then
      perform trunq._fail('TQ002', format('queue "%s" has no subscription "%s": streams alone read it', p_queue, coalesce(p_subscription, '')),
        format('select * from trunq.list_streams(''%1$s'') tells where they stand, trunq.show_message(''%1$s'', 42) where a message is', p_queue));
    end if;
    perform trunq._fail('TQ002', format('queue "%s" has no subscription "%s"', p_queue, coalesce(p_subscription, '')),
      format('create it: select trunq.subscribe(''%s'', ''name''); select * from trunq.list_subscriptions() shows those there are', p_queue));
  end if;
  if p_mode is not null and v_sub.mode <> p_mode then
    perform trunq._fail('TQ011', format('subscription "%s" of queue "%s" is %s, not %s', p_subscription, p_queue, v_sub.mode, p_mode),
      case p_mode when 'shared' then 'read it with next_batch, read_batch and finish_batch' else 'read it with lease and ack' end);
  end if;
  return v_sub;
end $$;
comment on function trunq._subscription is 'A subscription by name, or TQ001, TQ002; TQ011 when it is of another mode than p_mode.';

create or replace function trunq._check_policy(p_what text, p_policy trunq.policy) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_policy.max_attempts < 0 then
    perform trunq._fail('TQ005', format('max_attempts in the policy of %s cannot be %s', p_what, p_policy.max_attempts), 'give 1 or more, or 0 for ever');
  elsif p_policy.backoff <> all (trunq._words('backoff')) then
    perform trunq._fail('TQ005', format('backoff in the policy of %s cannot be "%s"', p_what, left(p_policy.backoff, 100)), 'give ' || trunq._list_choices(trunq._words('backoff')));
  elsif p_policy.jitter not between 0 and 1 then
    perform trunq._fail('TQ005', format('jitter in the policy of %s cannot be %s', p_what, p_policy.jitter), 'give a number from 0 to 1');
  end if;
  perform trunq._check_interval(format('backoff_base in the policy of %s', p_what), p_policy.backoff_base, '0');
  perform trunq._check_interval(format('backoff_cap in the policy of %s', p_what), p_policy.backoff_cap, '0');
end $$;
comment on function trunq._check_policy is 'Refuses (TQ005) a policy that cannot be; null in it says nothing.';

create or replace function trunq._check_start(p_start text, p_tick_id bigint default null, p_at timestamptz default null) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(p_tick_id, p_at) = 2 or num_nonnulls(p_tick_id, p_at) = 1 and p_start is distinct from 'latest' then
    perform trunq._fail('TQ005', 'a subscription starts at one place', 'give p_start, p_tick_id or p_at');
  end if;
  if coalesce(p_start, '') <> all (trunq._words('start')) then
    perform trunq._fail('TQ005', format('a subscription starts at latest or earliest, not "%s"', p_start));
  end if;
end $$;
comment on function trunq._check_start is 'Refuses (TQ005) what is no place to start at.';

create or replace function trunq._start_snapshot(
  p_queue trunq.queue, p_mode text, p_start text, p_tick_id bigint default null, p_at timestamptz default null
) returns trunq.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_tick trunq.tick;
begin
  if p_mode = 'exclusive' or num_nonnulls(p_tick_id, p_at) > 0 then
    return trunq._start_tick(p_queue, p_start, p_tick_id, p_at);
  end if;
  v_tick.snapshot := case p_start when 'earliest' then '3:3:'::pg_snapshot else trunq.snapshot() end;
  return v_tick;
end $$;
comment on function trunq._start_snapshot is
  'Where a subscription starts: a snapshot, which for an exclusive one is that of a tick. The caller holds the lock of the queue.';

create or replace function trunq._forget_subscription(p_queue_id integer, p_subscription_id integer) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  delete from trunq.mark m where m.queue_id = p_queue_id and m.subscription_id = p_subscription_id;
  delete from trunq.expiry e where e.subscription_id = p_subscription_id;
  delete from trunq.delayed d where d.subscription_id = p_subscription_id;
  delete from trunq.dead d where d.subscription_id = p_subscription_id;
  delete from trunq.purged p where p.subscription_id = p_subscription_id;
  delete from trunq.unhandled h where h.subscription_id = p_subscription_id;
  delete from trunq.cancelled c where c.subscription_id = p_subscription_id;
  delete from trunq.ahead a where a.subscription_id = p_subscription_id;
  delete from trunq.due d where d.subscription_id = p_subscription_id;
  delete from trunq.ask a where a.subscription_id = p_subscription_id;
  delete from trunq.progress p where p.subscription_id = p_subscription_id;
  delete from trunq.reply r where r.subscription_id = p_subscription_id;
  delete from trunq.forwarded f where f.origin_subscription_id = p_subscription_id;
  delete from trunq.loss o where o.subscription_id = p_subscription_id;
$$;
comment on function trunq._forget_subscription is 'Deletes what the tables of rules hold of a subscription besides itself.';

create or replace function trunq._position(
  p_queue trunq.queue, p_subscription_id integer,
  out lease_id bigint, out lo pg_snapshot, out hi pg_snapshot, out last_txid xid8, out last_id bigint, out segment smallint
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  execute format('select * from trunq_queue.%I($1)', p_queue.name || '_position')
    into lease_id, lo, hi, last_txid, last_id, segment using p_subscription_id;
end $$;
comment on function trunq._position is 'The newest lease of a subscription, which is its cursor; lease_id 0: it has none yet.';

create or replace function trunq._read_floor(p_sub trunq.subscription) returns pg_snapshot
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_sub.queue_id);
  v record;
begin
  if p_sub.mode = 'exclusive' then
    v := trunq._stream_position(v_queue, p_sub);
    return v.lo;
  end if;
  v := trunq._position(v_queue, p_sub.subscription_id);
  return case when v.last_txid >= pg_snapshot_xmax(v.hi) then v.hi else v.lo end;
end $$;
comment on function trunq._read_floor is 'A snapshot: the subscription has read everything visible in it.';

create or replace function trunq._read_position(
  p_queue trunq.queue, p_subscription_id integer, out lo pg_snapshot, out hi pg_snapshot, out last_txid xid8, out last_id bigint
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
  v record;
begin
  select s.* into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  if v_sub.mode = 'exclusive' then
    v := trunq._stream_position(p_queue, v_sub);
    lo := v.lo; hi := v.hi; last_txid := v.after_txid; last_id := v.after_id;
  else
    v := trunq._position(p_queue, p_subscription_id);
    lo := v.lo; hi := v.hi; last_txid := v.last_txid; last_id := v.last_id;
  end if;
end $$;
comment on function trunq._read_position is
  'The position of a subscription: a shared one is behind its newest lease, an exclusive one behind what it finished.';
