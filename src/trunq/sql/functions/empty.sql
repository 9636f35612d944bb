-- Emptying a queue for good and at once, for a DBA: a test that ran away, a consumer that is gone. Whoever holds messages or an open
-- batch finds that the lease has ended (TQ003); that is not refused, as the one who wants a queue empty mostly wants just that.

create or replace function trunq.empty_queue(p_queue text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_tick trunq.tick;
  v_logged bigint;
  v_delayed bigint;
begin
  perform trunq._require_read_committed('empty_queue');
  perform trunq._check_cluster();
  perform trunq._lock_to_empty(v_queue);
  execute format('select count(*) from trunq_log.%I where subscription_id is null', v_queue.log_table) into v_logged;
  execute format('truncate trunq_log.%I, trunq_data.%I, trunq_data.%I%s', v_queue.log_table, v_queue.lease_table, v_queue.receipt_table,
    trunq._lane_tables(v_queue));
  with gone as (delete from trunq.delayed d where d.queue_id = v_queue.queue_id returning d.subscription_id)
  select count(*) into v_delayed from gone g where g.subscription_id is null;
  -- Positions were leases. From now on each is where it starts: here, under the lock. What is published by a transaction that has
  -- begun but not written yet is not in the tick's snapshot, so it will be read.
  perform pg_advisory_xact_lock(trunq._lock_class('tick'), v_queue.queue_id);
  v_tick := trunq._cut_tick(v_queue);
  update trunq.subscription s set start = v_tick.snapshot, start_tick_id = case s.mode when 'exclusive' then v_tick.tick_id end
  where s.queue_id = v_queue.queue_id;
  update trunq.queue q set reachable_tick_id = v_tick.tick_id where q.queue_id = v_queue.queue_id;
  return v_logged + v_delayed;
end $$;
comment on function trunq.empty_queue(text) is
  'Throws away every message of a queue, handled, waiting, leased or delayed, with leases and receipts. Dead messages stay; ids and ticks go on. Workers and readers lose what they hold.
Returns: how many messages it threw away, handled ones that were still in the log included.
Raises: TQ001, TQ007, TQ010; TQ009 while an open transaction uses the queue.
Locks: its tables, exclusively, waiting 200 ms at a time.';

create or replace function trunq._lock_to_empty(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
begin
  -- Behind one open publisher all others would queue up: wait in short turns, letting them pass.
  for v_try in 1..10 loop
    begin
      perform pg_advisory_xact_lock(trunq._lock_class('queue'), p_queue.queue_id);
      perform trunq._find_queue(p_queue.name);
      execute format('lock table trunq_log.%I, trunq_data.%I, trunq_data.%I%s in access exclusive mode', p_queue.log_table, p_queue.lease_table,
        p_queue.receipt_table, trunq._lane_tables(p_queue));
      return;
    exception when lock_not_available then
      perform pg_sleep(0.05);
    end;
  end loop;
  perform trunq._fail('TQ009', format('queue "%s" is in use by an open transaction', p_queue.name),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq._lock_to_empty(trunq.queue) is 'Locks the tables of a queue exclusively, or TQ009.';
