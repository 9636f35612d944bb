-- What is waiting, running, put off and given up, by subscription. Counting what waits costs what waits: it stops at 100,000.

create or replace function trunq.status(p_queue text default null)
returns table (
  queue text, subscription text, mode text, ready bigint, leased bigint, delayed bigint, dead bigint,
  oldest_ready interval, workers integer, done_last_minute bigint, ready_is_capped boolean
)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  c_cap constant integer := 100000;
  v record;
  v_now timestamptz := trunq.clock();
  v_position bigint;
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  for v in
    select q as row, q.queue_id, q.name as queue, s.subscription_id, s.name as subscription, s.mode, s as sub
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where p_queue is null or q.name = p_queue order by q.name, s.name
  loop
    queue := v.queue; subscription := v.subscription; mode := v.mode;
    if v.mode = 'shared' then
      select count(*), v_now - min(u.created_at) into ready, oldest_ready
      from trunq._unread(v.row, v.subscription_id, c_cap) u;
    else
      -- Once, and not for each tick looked at: it moves meanwhile.
      v_position := trunq._tick_position(v.sub);
      select greatest(0, trunq._last_message_id(v.row) - max(t.last_message_id)), v_now - min(t.created_at)
      into ready, oldest_ready
      from trunq.tick t where t.queue_id = v.queue_id and t.tick_id = v_position;
      oldest_ready := case when ready > 0 then oldest_ready end;
    end if;
    ready_is_capped := v.mode = 'shared' and ready >= c_cap;
    select o.leased, o.workers into leased, workers
    from trunq._leased(v.row, v.subscription_id, v_now) o;
    select count(*) into delayed from trunq.delayed d
    where d.queue_id = v.queue_id and (d.subscription_id is null or d.subscription_id = v.subscription_id);
    select count(*) into dead from trunq.dead d where d.queue_id = v.queue_id and d.subscription_id = v.subscription_id;
    execute format($q$
      select coalesce(sum(r.size), 0) from trunq_data.%I r
      where r.finished_at > $1 and r.subscription_id = $2 and r.outcome = 'a'
    $q$, (v.row).receipt_table) into done_last_minute using v_now - interval '1 minute', v.subscription_id;
    return next;
  end loop;
end $$;
comment on function trunq.status(text) is
  'One row a subscription. ready: waiting now, counted up to 100,000 (ready_is_capped); for exclusive ones an estimate from ids; leased: held; delayed: put off; workers: that hold or held a lease within a minute.
Raises: TQ001.';

create or replace function trunq._leased(
  p_queue trunq.queue, p_subscription_id integer, p_now timestamptz, out leased bigint, out workers integer
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_mark record := trunq._reaped(p_queue, p_subscription_id);
begin
  execute format($q$
    select coalesce(sum(l.size - coalesce((
        select sum(r.size) from trunq_data.%2$I r where r.lease_id = l.lease_id and r.subscription_id = $1), 0))
        filter (where (l.expires_at > $2 or l.lease_id > $4) and l.reaped_at is null), 0),
      count(distinct l.worker) filter (where l.leased_at > $3 - interval '1 minute' or l.expires_at > $3 and l.reaped_at is null)
    from trunq_data.%1$I l
    where l.subscription_id = $1 and l.size > 0 and (l.expires_at > least($2, $3 - interval '1 minute') or l.lease_id > $4)
  $q$, p_queue.lease_table, p_queue.receipt_table) into leased, workers
  using p_subscription_id, v_mark.until, p_now, v_mark.newest;
end $$;
comment on function trunq._leased(trunq.queue, integer, timestamptz) is 'How many messages are under open leases, and how many workers hold or held one within a minute.';
