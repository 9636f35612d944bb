-- Emptying a queue for good and at once, for a DBA: a test that ran away, a consumer that is gone. Whoever holds messages or an open
-- batch finds that the lease has ended (TQ003); that is not refused, as the one who wants a queue empty mostly wants just that.

create or replace function trunq.empty_queue(p_queue text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_count bigint;
begin
  perform trunq._find_queue(p_queue);
  perform trunq._require_read_committed('empty_queue');
  perform trunq._check_cluster();
  v_count := trunq._try_for_locks(p_queue, 'select trunq._empty_queue($1)');
  perform trunq._audit('empty_queue', p_queue, '{}', v_count);
  return v_count;
end $$;
comment on function trunq.empty_queue is
  'Deletes every message of a queue, handled, waiting, leased or delayed, with leases and receipts. Dead messages stay; ids and ticks go on. Workers and readers lose what they hold.
Returns: how many messages it threw away, handled ones that were still in the log included.
Raises: TQ001, TQ007, TQ010; TQ009 while an open transaction uses the queue, and while history of it is still to be taken by a taker.
Locks: its tables, exclusively, waiting 200 ms at a time.';

create or replace function trunq._empty_queue(p_queue trunq.queue) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_tables text := format('trunq_log.%I, trunq_data.%I, trunq_data.%I', p_queue.log_table, p_queue.lease_table, p_queue.receipt_table)
    || trunq._lane_tables(p_queue) || trunq._unique_tables(p_queue);
  v_tick trunq.tick;
  v_logged bigint;
  v_delayed bigint;
begin
  -- First what may have to wait.
  execute format('lock table %s in access exclusive mode', v_tables);
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), p_queue.queue_id);
  perform trunq._require_taken(p_queue);
  perform trunq._archive_rest(p_queue);
  -- Positions were leases. From now on each is where it starts: here, under the lock. What is published by a transaction that has
  -- begun but not written yet is not in the tick's snapshot, so it will be read.
  v_tick := trunq._cut_tick(p_queue);
  update trunq.subscription s set start = v_tick.snapshot, lost_at = null, start_tick_id = case s.mode when 'exclusive' then v_tick.tick_id end
  where s.queue_id = p_queue.queue_id;
  update trunq.queue q set reachable_tick_id = v_tick.tick_id where q.queue_id = p_queue.queue_id;
  with gone as (delete from trunq.delayed d where d.queue_id = p_queue.queue_id returning d.subscription_id)
  select count(*) into v_delayed from gone g where g.subscription_id is null;
  delete from trunq.cancelled c where c.queue_id = p_queue.queue_id;
  delete from trunq.ahead a where a.queue_id = p_queue.queue_id;
  delete from trunq.due d where d.queue_id = p_queue.queue_id;
  delete from trunq.progress p where p.queue_id = p_queue.queue_id
    and not exists (select from trunq.dead d where d.queue_id = p.queue_id and d.subscription_id = p.subscription_id and d.id = p.id);
  execute format('select count(*) from trunq_log.%I where subscription_id is null', p_queue.log_table) into v_logged;
  execute format('truncate %s', v_tables);
  perform trunq._unsummarize(format('trunq_data.%I', trunq._segment_name(p_queue, t.name, n))::regclass)
  from unnest(array['log', 'receipt']) t(name), generate_series(0, p_queue.segments - 1) n;
  return v_logged + v_delayed;
end $$;
comment on function trunq._empty_queue is 'One try of empty_queue, under the lock of the queue.';
