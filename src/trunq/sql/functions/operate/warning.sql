-- What an operator should know before it hurts. Each kind of warning is a function of its own; list_warnings is their union. The leader
-- logs each when it appears, and `trunq status` shows them.

create or replace function trunq.list_warnings(p_queue text default null)
returns table (queue text, subscription text, warning text, hint text, severity text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query select w.queue, w.subscription, w.warning, w.hint, w.severity from trunq._list_warnings(p_queue, null, true) with ordinality w
    order by w.place, w.since nulls last, w.ordinality;
end $$;
comment on function trunq.list_warnings is
  'What is wrong, of one queue or all: positions of another cluster, duties that fail, or were not done for long, rows in a log that nobody will lease, segments that rotation does not get for a while, and who holds them, transactions that are open and do nothing, and sessions that hold a queue''s locks, workers whose leases ran out within ten minutes, kinds that no worker has a handler for, messages that are parked for longer than a week, messages that no lease asks for, subscriptions that nobody has read from for five minutes while messages wait, those whose lanes no process ranks, those that come near to what the queue holds for them, or lost messages, those of which a hundred messages died within a day, schedules that cannot publish or whose due times come to an end, captures that miss something, movers whose last try failed, runs of pipelines that fail, or that cannot begin, that nobody goes on with, or that a pause or a limit keeps waiting, pipelines that have found no file yet, or whose trigger finds values that cannot be, what dropped pipelines may have left in their sinks, backfills that failed, tables of a pipeline that it cannot read or that are gone, Delta tables whose compaction fails, history that waits for its taker for longer than the retention, and, of all queues, a server that may not come back after a crash. What other sessions do, Postgres tells to members of pg_read_all_stats alone.
Returns: one row a warning, with the way out, the worst first, of those that are as bad the oldest; severity is error (messages are lost, or soon will be) or warning; subscription null: it is about the queue; queue empty: about the database.
Raises: TQ001.';

create or replace function trunq._list_warnings(p_queue text, p_queues text[], p_with_sessions boolean)
returns table (queue text, subscription text, warning text, hint text, severity text, place integer, since timestamptz)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue;
  v record;
  v_told text[];
  v_other record := trunq._other_cluster();
begin
  -- trunq.diagnose has an area of its own for it, and asks without sessions.
  return query select coalesce(p_queue, ''), null::text, v_other.finding, v_other.hint, 'error', 1, null::timestamptz where v_other.finding is not null and p_with_sessions;
  return query
    select f.queue, null::text, format('duty %s failed at %s: %s', f.duty, date_trunc('second', f.failed_at), f.error),
      'the leader tries it again; the server log has the details', 'warning', 20, f.failed_at
    from trunq.duty_failure f where p_queue is null or f.queue = p_queue order by f.queue, f.duty;
  return query select w.*, 'warning', 20, null::timestamptz from trunq._warn_late(p_queue) w;
  for v_queue in
    select q.* from trunq.queue q where (p_queue is null or q.name = p_queue) and (p_queues is null or q.name = any (p_queues)) order by q.name
  loop
    begin
      return query select v_queue.name, null::text, w.warning, w.hint, 'error', 2, null::timestamptz from trunq._warn_unreachable(v_queue) w where v_other.finding is null;
      return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_unhandled(v_queue.name) w;
      v_told := '{}';
      for v in select w.* from trunq._warn_space(v_queue.name) w order by w.share desc loop
        v_told := v_told || v.subscription;
        return query select v.queue, v.subscription, v.warning, v.hint, case when v.share >= 95 then 'error' else 'warning' end,
          case v.share when 100 then 3 when 95 then 4 else 30 end, v.since;
      end loop;
      -- That it holds its messages for long is said already.
      return query select w.queue, w.subscription, w.warning, w.hint, 'warning', case when w.is_over then 40 else 50 end, w.since
        from trunq._warn_unread(v_queue.name) w where not (w.is_over and w.subscription = any (v_told));
      return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_parked(v_queue.name) w;
      return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_unasked(v_queue.name) w;
      return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_takers(v_queue.name) w;
      return query select w.queue, w.subscription, w.warning, w.hint, 'warning', case when w.is_many then 54 else 55 end, null::timestamptz from trunq._warn_dead(v_queue) w;
      raise exception using errcode = 'TQ900';  -- gives the locks back: of many queues, those of one are held
    exception
      when sqlstate 'TQ900' then
        null;
      when lock_not_available then
        queue := v_queue.name; subscription := null;
        warning := format('nobody looked at queue "%s": an open transaction locks its tables', v_queue.name);
        hint := 'look again; select pid, xact_start, query from pg_stat_activity order by xact_start shows who it may be';
        severity := 'warning'; place := 25; since := null;
        return next;
      when undefined_table or undefined_function or sqlstate 'TQ001' then
        if exists (select from trunq.queue q where q.queue_id = v_queue.queue_id) then
          raise;
        end if;  -- dropped meanwhile
    end;
  end loop;
  return query select w.*, 'warning', 25, null::timestamptz from trunq._warn_sessions(p_queue) w where p_with_sessions;
  return query select w.*, 'warning', 45, null::timestamptz from trunq._warn_expired(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_unranked(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_schedules(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_captures(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_movers(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_pipelines(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_pending(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_put_off(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_backfills(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_tables(p_queue) w;
  return query select w.*, 'warning', 60, null::timestamptz from trunq._warn_compactions(p_queue) w;
  return query select w.*, 'warning', 10, null::timestamptz from trunq._warn_recovery() w where p_queue is null;
end $$;
comment on function trunq._list_warnings is
  'list_warnings; p_queues: those that are looked at one by one, null: all; p_with_sessions: those about sessions, too. place: which is worse, the lowest first.';

create or replace function trunq._warn_recovery() returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Recovery comes to a change of a page whose file went with a truncated segment. The image of the page would make it again; without, Postgres 16 to 18
  -- read the number of a buffer that is not there (brin_xlog_insert_update), and end. With fsync off, a server promises nothing.
  select '', null::text, 'full_page_writes is off: after a crash, Postgres may fail to start, as it cannot replay changes of a BRIN index whose table was truncated since, and rotation truncates',
    'turn it on: alter system set full_page_writes = on, then select pg_reload_conf()'
  where current_setting('full_page_writes') = 'off' and current_setting('fsync') = 'on' and exists (select from trunq.queue)
$$;
comment on function trunq._warn_recovery is 'That this server may not come back after a crash.';

create or replace function trunq._warn_late(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Only while somebody performs duties: that nobody does is what status().led says.
  select n.queue, null::text, format('duty %s%s was last done at %s, %s ago', n.duty,
      case when n.queue = '' then '' else format(' of queue "%s"', n.queue) end, date_trunc('second', n.done_at), date_trunc('second', trunq.clock() - n.done_at)),
    'see what it waits for: select pid, query, wait_event_type, pg_blocking_pids(pid) from pg_stat_activity where application_name like ''trunq leader%'''
  from trunq.duty_done n join trunq.list_duties() d on d.duty = n.duty
  where (p_queue is null or n.queue = p_queue) and n.done_at < trunq.clock() - greatest(interval '1 minute', 5 * d.every) and trunq._is_led()
    and (n.queue = '' or exists (select from trunq.queue q where q.name = n.queue))
    and not exists (select from trunq.duty_failure f where f.duty = n.duty and f.queue = n.queue)
  order by n.queue, n.duty
$$;
comment on function trunq._warn_late is 'Duties that were last done longer ago than they should be, and did not fail: of each the queue for which it is longest ago.';

create or replace function trunq._warn_unhandled(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  for v in
    select q as row, q.name, s.name subscription, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and s.mode = 'shared' order by q.name, s.name
  loop
    return query
      select v.name, v.subscription,
        format('no handler for %s in subscription "%s" of queue "%s"', coalesce('kind ' || u.kind, 'messages without a kind'), v.subscription, v.name),
        format('%s; start a worker with a handler for that, or one with --unknown-kinds reject',
          case when u.number = 1 then '1 message waits' when u.number > 1000 then 'more than 1,000 messages wait' else u.number || ' messages wait' end)
      from (
        select a.kind, sum(a.number)::bigint number from (
          select * from trunq._unhandled(v.subscription_id)
          union all
          select * from trunq._unhandled_ready(v.row, v.subscription_id)) a
        group by a.kind order by a.kind limit 21) u;
  end loop;
end $$;
comment on function trunq._warn_unhandled is 'Kinds that workers put off because they have no handler for them, the first 20 of each subscription.';

create or replace function trunq._unhandled(p_subscription_id integer) returns table (kind text, number bigint)
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = unsorted as $$
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
comment on function trunq._unhandled is 'How many messages of each kind are put off for want of a worker that has a handler for it: exact up to 1,000.';

create or replace function trunq._unhandled_ready(p_queue trunq.queue, p_subscription_id integer) returns table (kind text, number bigint)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record;
begin
  if not exists (select from trunq.unhandled h where h.subscription_id = p_subscription_id) then
    return;
  end if;
  v := trunq._read_position(p_queue, p_subscription_id);
  return query execute format($q$
    select g.kind, count(*) from (
      select h.kind, h.txid, u.id from trunq.unhandled h cross join lateral unnest(h.ids) u(id) where h.subscription_id = $1) g
    where not %s group by g.kind
  $q$, trunq._is_read(p_queue, 'g', 'trunq._is_read_at(g.txid, g.id, $2, $3, $4, $5)'))
  using p_subscription_id, v.lo, v.hi, v.last_txid, v.last_id;
end $$;
comment on function trunq._unhandled_ready is
  'How many messages of each kind that were put off for want of a handler are ready again, and nobody has leased them yet.';

create or replace function trunq._forget_unhandled(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_id integer;
  v record;
begin
  for v_id in select distinct h.subscription_id from trunq.unhandled h where h.queue_id = p_queue.queue_id order by 1 loop
    v := trunq._read_position(p_queue, v_id);
    execute format($q$
      delete from trunq.unhandled h where h.subscription_id = $1
        and not exists (select from unnest(h.ids) u(id) cross join lateral (select h.txid, u.id) g where not %s)
    $q$, trunq._is_read(p_queue, 'g', 'trunq._is_read_at(g.txid, g.id, $2, $3, $4, $5)'))
    using v_id, v.lo, v.hi, v.last_txid, v.last_id;
  end loop;
end $$;
comment on function trunq._forget_unhandled is 'Forgets those that were ready for want of a handler and have been leased since.';

create or replace function trunq._warn_unread(p_queue text)
returns table (queue text, subscription text, warning text, hint text, since timestamptz, is_over boolean)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_now timestamptz := trunq.clock();
  v record;
  v_oldest timestamptz;
begin
  for v in
    select q as row, s as sub, q.name, s.name subscription, q.retention, least(q.retention, case
        -- Its next message may not be due yet.
        when s.rate is not null then make_interval(secs => least(greatest(300, 2 * extract(epoch from s.rate_interval)::double precision / s.rate), 1e9))
        -- A lane may wait for a retry.
        when q.lanes is not null and exists (select from trunq.delayed d where d.subscription_id = s.subscription_id) then q.retention
        else '5 minutes' end) as age
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and not trunq._is_paused(s, v_now)
    order by q.name, s.name
  loop
    continue when (v.sub).created_at >= v_now - v.age;
    continue when (queue = v.name and subscription = split_part(v.subscription, '#', 1)) is true;  -- another slot of its group
    v_oldest := trunq._unread_since(v.row, (v.sub).subscription_id, v_now - v.age);
    continue when v_oldest is null;
    -- A lane that somebody paused is a finding of its own (operate/pause.sql).
    continue when (v.row).lanes is not null and not (trunq._lanes_at_rest(v.row, (v.sub).subscription_id)).others_wait;
    queue := v.name;
    subscription := split_part(v.subscription, '#', 1);
    since := v_oldest;
    is_over := v_oldest < v_now - v.retention;
    if is_over then
      warning := format('subscription "%s" of queue "%s" has held messages since %s, longer than the retention of %s, and nobody reads from it',
        subscription, queue, date_trunc('second', v_oldest), v.retention);
      hint := format('start a worker, or end it: select trunq.unsubscribe(''%s'', ''%s'')', queue, subscription);
    else
      warning := format('nobody has read from subscription "%s" of queue "%s" for %s, and messages have waited since %s',
        subscription, queue, case when v.age = '5 minutes' then 'five minutes' else v.age::text end, date_trunc('second', v_oldest));
      hint := format('start a worker or reader of it, or see what the one that runs does; or end it: select trunq.unsubscribe(''%s'', ''%s'')', queue, subscription);
    end if;
    if subscription = 'default' and exists (select from trunq.subscription s where s.queue_id = (v.row).queue_id and s.mode = 'exclusive') then
      hint := concat(hint, '; a queue that only streams read needs no "default": trunq.create_queue(..., p_default_subscription => false)');
    end if;
    return next;
  end loop;
end $$;
comment on function trunq._warn_unread is
  'Subscriptions that nobody has read from for five minutes, though messages wait for them. Not those that are paused, nor those whose messages are in somebody''s hands.';

create or replace function trunq._unread_since(p_queue trunq.queue, p_subscription_id integer, p_before timestamptz) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_leased_at timestamptz;
  v_oldest timestamptz;
begin
  execute format($q$
    select l.leased_at from trunq_data.%I l where l.subscription_id = $1 and coalesce(l.worker, '') not in ('rotate', 'skip', 'lost')
    order by l.lease_id desc limit 1
  $q$, p_queue.lease_table) into v_leased_at using p_subscription_id;
  if v_leased_at >= p_before or trunq._has_leases_after(p_queue, p_subscription_id, trunq.clock()) then
    return null;
  end if;
  v_oldest := (select u.created_at from trunq._unread(p_queue, p_subscription_id, 1) u);
  return case when v_oldest < p_before then v_oldest end;
end $$;
comment on function trunq._unread_since is
  'Since when messages wait that nobody reads; null: somebody read since p_before, or holds some, or none has waited that long.';
