-- After a logical restore into another cluster the transaction ids of log and positions mean nothing. rebase() gives every row
-- the oldest id there is, so that all of them are read, and publishes again, for each subscription, what it had not answered.

create or replace function trunq.rebase() returns bigint
language plpgsql as $$
declare
  v_queue record;
  v_sub record;
  v_tick trunq.tick;
  v_count bigint;
  v_total bigint := 0;
begin
  perform trunq._require_read_committed('rebase');
  for v_queue in select q.queue_id, q.name from trunq.queue q order by q.queue_id loop
    execute format('lock table trunq_log.%I, trunq_data.%I, trunq_data.%I in access exclusive mode', v_queue.name,
      'lease_' || v_queue.queue_id, 'receipt_' || v_queue.queue_id);
    v_tick := trunq._cut_tick(v_queue.queue_id);
    for v_sub in select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id order by s.subscription_id loop
      execute format($q$
        with answered as (
          select l.subscription_id, u.txid, u.id from trunq_data.%2$I l
          cross join lateral unnest(l.txids, l.ids) u(txid, id)
          join trunq_data.%3$I r on r.lease_id = l.lease_id and r.subscription_id = l.subscription_id and u.id = any (r.ids)
          where l.subscription_id = $1),
        unanswered as (
          select g.* from trunq_log.%1$I g
          where (g.subscription_id is null or g.subscription_id = $1) and g.txid <> pg_current_xact_id())
        insert into trunq_log.%1$I (id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors)
        select g.id, $1, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors
        from unanswered g
        where case $2 when 'shared' then not exists (select from answered a where a.txid = g.txid and a.id = g.id)
          -- Its position is a snapshot of the old cluster; it still tells which of the old ids were read.
          else not pg_visible_in_snapshot(g.txid, $3) end
        order by g.txid, g.id
      $q$, v_queue.name, 'lease_' || v_queue.queue_id, 'receipt_' || v_queue.queue_id)
      using v_sub.subscription_id, v_sub.mode, trunq._floor(v_queue.queue_id, v_sub.subscription_id);
      get diagnostics v_count = row_count;
      v_total := v_total + v_count;
    end loop;
    execute format('update trunq_log.%I set txid = ''3'' where txid <> pg_current_xact_id()', v_queue.name);
    execute format('update trunq_data.%I set txids = null, min_txid = 3, max_txid = 3, reaped_at = coalesce(reaped_at, trunq.clock())',
      'lease_' || v_queue.queue_id);
    delete from trunq.tick t where t.queue_id = v_queue.queue_id and t.tick_id < v_tick.tick_id;
    update trunq.subscription s set start = v_tick.snapshot, start_tick_id = case s.mode when 'exclusive' then v_tick.tick_id end
    where s.queue_id = v_queue.queue_id;
    for v_sub in select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id and s.mode = 'shared' loop
      execute format($q$
        insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at)
        values (nextval('trunq_data.lease_id_%s'), $1, trunq._token(), 'rebase', $2, $2, pg_snapshot_xmax($2), 0, trunq.clock())
      $q$, 'lease_' || v_queue.queue_id, v_queue.queue_id) using v_sub.subscription_id, v_tick.snapshot;
    end loop;
    execute format('delete from trunq_data.%I l using trunq.subscription s where s.subscription_id = l.subscription_id and s.mode = ''exclusive''',
      'lease_' || v_queue.queue_id);
  end loop;
  update trunq.cluster c set system_identifier = (select s.system_identifier from pg_control_system() s);
  return v_total;
end $$;
comment on function trunq.rebase() is
  'After a restore into another cluster, with all workers and publishers stopped: publishes again, for each subscription, what it had not answered, and starts the positions afresh. Ticks start anew: Spark queries need a new checkpoint. Returns: how many messages. Raises: TQ007. Locks: every queue, exclusively.';

create or replace function trunq._floor(p_queue_id integer, p_subscription_id integer) returns pg_snapshot
language plpgsql as $$
declare
  v_sub trunq.subscription;
  v record;
begin
  select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  if v_sub.mode = 'exclusive' then
    v := trunq._newest_batch(p_queue_id, p_subscription_id);
    return coalesce(case when v.finished then v.hi else v.lo end, v_sub.start);
  end if;
  v := trunq._position(p_queue_id, p_subscription_id);
  return case when v.last_txid >= pg_snapshot_xmax(v.hi) then v.hi else v.lo end;
end $$;
comment on function trunq._floor(integer, integer) is 'Everything visible in this snapshot has been read by the subscription.';
