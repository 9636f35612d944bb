-- What an operator should know before it hurts. Each kind of warning is a function of its own; list_warnings is their union. The leader
-- logs each when it appears, and `trunq status` shows them.

create or replace function trunq.list_warnings(p_queue text default null)
returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select f.queue, null::text, format('duty %s failed at %s: %s', f.duty, date_trunc('second', f.failed_at), f.error),
      'the leader tries it again; the server log has the details'
    from trunq.duty_failure f where p_queue is null or f.queue = p_queue order by f.queue, f.duty;
  return query
    select q.name, null::text, w.warning, w.hint from trunq.queue q cross join lateral trunq._warn_unreachable(q) w
    where p_queue is null or q.name = p_queue order by q.name;
  return query select * from trunq._warn_unhandled(p_queue);
  return query select * from trunq._warn_unread(p_queue);
  return query select * from trunq._warn_unranked(p_queue);
  return query select * from trunq._warn_schedules(p_queue);
  return query select * from trunq._warn_captures(p_queue);
  return query select * from trunq._warn_takers(p_queue);
  return query select * from trunq._warn_space(p_queue);
  return query select * from trunq._warn_movers(p_queue);
  return query select * from trunq._warn_pipelines(p_queue);
end $$;
comment on function trunq.list_warnings(text) is
  'What is wrong, of one queue or all: duties that fail, rows in a log that nobody will lease, kinds that no worker has a handler for, subscriptions that nobody reads from and that hold messages for longer than the retention, those whose lanes no process ranks, those that come near to what the queue holds for them, or lost messages, schedules that cannot publish or whose due times come to an end, captures that miss something, movers whose last try failed, runs of pipelines that fail, pipelines that have found no file yet, and history that waits for its taker for longer than the retention.
Returns: one row a warning, with the way out; subscription null: it is about the queue.
Raises: TQ001.';

create or replace function trunq._warn_unhandled(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  for v in
    select q.name, s.name subscription, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and s.mode = 'shared' order by q.name, s.name
  loop
    return query
      select v.name, v.subscription,
        format('no handler for %s in subscription "%s" of queue "%s"', coalesce('kind ' || u.kind, 'messages without a kind'), v.subscription, v.name),
        format('%s; start a worker with a handler for that, or one with --unknown-kinds reject',
          case when u.number = 1 then '1 message waits' when u.number > 1000 then 'more than 1,000 messages wait' else u.number || ' messages wait' end)
      from trunq._unhandled(v.subscription_id) u;
  end loop;
end $$;
comment on function trunq._warn_unhandled(text) is 'Kinds that workers put off because they have no handler for them, the first 20 of each subscription.';

create or replace function trunq._unhandled(p_subscription_id integer) returns table (kind text, number bigint)
language sql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  -- From one kind to the next by the index, past however many messages of each. The order in the counts leaves the planner no other index: with
  -- statistics from before these messages, it takes each for as good.
  with recursive known as (
    (select d.kind, 1 n from trunq.delayed d
     where d.subscription_id = p_subscription_id and d.errors -> -1 ? 'times' order by d.kind limit 1)
    union all
    select (
      select d.kind from trunq.delayed d
      where d.subscription_id = p_subscription_id and d.errors -> -1 ? 'times' and d.kind > k.kind order by d.kind limit 1), k.n + 1
    from known k where k.kind is not null and k.n <= 20)
  select k.kind, (
    select count(*) from (
      select from trunq.delayed d
      where d.subscription_id = p_subscription_id and d.errors -> -1 ? 'times' and d.kind >= k.kind and d.kind <= k.kind order by d.kind limit 1001) o)
  from known k where k.kind is not null and k.n <= 20
  union all
  select null, n.number from (
    select count(*) number from (
      select from trunq.delayed d
      where d.subscription_id = p_subscription_id and d.errors -> -1 ? 'times' and d.kind is null order by d.kind limit 1001) o) n
  where n.number > 0
$$;
comment on function trunq._unhandled(integer) is 'How many messages of each kind wait for a worker that has a handler for it: exact up to 1,000.';

create or replace function trunq._warn_unread(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v record;
  v_oldest timestamptz;
  v_leased_at timestamptz;
begin
  for v in
    select q as row, s as sub, q.name, s.name subscription, trunq.clock() - q.retention before from trunq.queue q
    join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and s.created_at < trunq.clock() - q.retention order by q.name, s.name
  loop
    execute format($q$
      select l.leased_at from trunq_data.%I l where l.subscription_id = $1 and coalesce(l.worker, '') not in ('rotate', 'skip', 'lost')
      order by l.lease_id desc limit 1
    $q$, (v.row).lease_table) into v_leased_at using (v.sub).subscription_id;
    continue when v_leased_at >= v.before;
    v_oldest := (select u.created_at from trunq._unread(v.row, (v.sub).subscription_id, 1) u);
    continue when v_oldest is null or v_oldest >= v.before;
    continue when (queue = v.name and subscription = split_part(v.subscription, '#', 1)) is true;  -- another slot of its group
    queue := v.name;
    subscription := split_part(v.subscription, '#', 1);
    warning := format('subscription "%s" of queue "%s" holds messages since %s, longer than the retention of %s, and nobody reads from it',
      subscription, queue, date_trunc('second', v_oldest), (v.row).retention);
    hint := format('start a worker, or end it: select trunq.unsubscribe(''%s'', ''%s'')', queue, subscription);
    if subscription = 'default' then
      hint := concat(hint, '; a queue for streams alone does without: create_queue(..., p_default_subscription => false)');
    end if;
    return next;
  end loop;
end $$;
comment on function trunq._warn_unread(text) is 'Subscriptions that nobody read from for as long as the retention, and that hold messages older than it: their queue only grows.';
