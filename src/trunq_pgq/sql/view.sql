-- PgQ's tables that programs read, as views over trunq's. In each, what a caller may see is what PgQ let everybody see: names, settings and
-- positions, no events.

do $$
begin
  perform pgq._lock_names();
  perform pgq._restore_queues();
  -- Each in a transaction of its own: trunq._refresh_next.
  insert into trunq.outdated (queue_id, changes) select f.queue_id, '[]' from pgq._queue f on conflict do nothing;
  perform pgq._define_insert();
end $$;

create or replace view pgq.queue as
  select f.queue_id, f.queue_name, f.queue_ntables, f.queue_cur_table, f.queue_rotation_period, f.queue_switch_step1, f.queue_switch_step2,
    f.queue_switch_time, q.tick_external queue_external_ticker, f.queue_disable_insert, q.tick_paused queue_ticker_paused, q.tick_max_count queue_ticker_max_count,
    q.tick_max_lag queue_ticker_max_lag, q.tick_idle_period queue_ticker_idle_period, f.queue_per_tx_limit,
    'pgq.event_' || f.queue_id queue_data_pfx, 'pgq.event_' || f.queue_id || '_id_seq' queue_event_seq,
    'pgq.event_' || f.queue_id || '_tick_seq' queue_tick_seq, f.queue_extra_maint
  from pgq._queue f join trunq.queue q on q.queue_id = f.queue_id;
comment on view pgq.queue is 'One row a queue that has a name in PgQ. What people set may be updated here: thresholds, period, pauses, limits, maintenance.';
create or replace trigger instead instead of update on pgq.queue for each row execute function pgq._update_queue();

create or replace view pgq.tick as
  -- PgQ reads the last value of the sequence, which is 1 before and after the first nextval.
  select t.queue_id tick_queue, t.tick_id, t.created_at tick_time, t.snapshot::text::txid_snapshot tick_snapshot,
    greatest(t.last_message_id, 1) tick_event_seq
  from trunq.tick t where exists (select from pgq._queue f where f.queue_id = t.queue_id);
comment on view pgq.tick is 'The ticks of these queues.';

create or replace view pgq.retry_queue as
  select d.due_at ev_retry_after, d.queue_id ev_queue, d.id ev_id, d.created_at ev_time, null::bigint ev_txid, d.subscription_id ev_owner,
    nullif(d.attempt - 1, 0) ev_retry, d.kind ev_type, d.payload #>> '{}' ev_data, d.key ev_extra1, d.headers ->> 'extra2' ev_extra2,
    d.headers ->> 'extra3' ev_extra3, d.headers ->> 'extra4' ev_extra4
  from trunq.delayed d where d.subscription_id is not null and exists (select from pgq._queue f where f.queue_id = d.queue_id);
comment on view pgq.retry_queue is 'Events that wait to be handed out again.';

create or replace view pgq.subscription as
  select s.subscription_id sub_id, s.sub_queue, s.sub_consumer,
    case when o.batch_id is not null then o.from_tick_id when not s.is_member then c.tick_id end sub_last_tick,
    case when s.is_member or exists (select from pgq._subscription m where m.subscription_id = s.subscription_id and m.is_member) then s.active_at
      when o.batch_id is not null then o.leased_at
      else c.seen_at end sub_active,
    o.batch_id sub_batch, case when o.batch_id is not null then o.to_tick_id end sub_next_tick
  from pgq._subscription s cross join lateral pgq._stand(s.sub_queue, s.subscription_id) c
  left join lateral (
    select o.* from pgq._open(s.sub_queue, s.subscription_id) o where o.sub_consumer = s.sub_consumer order by o.batch_id limit 1) o on true;
comment on view pgq.subscription is 'Where consumers stand, and the batch that each has open. Of it, sub_active may be updated.';
create or replace trigger instead instead of update on pgq.subscription for each row execute function pgq._update_subscription();

do $$
begin
  -- The number of a queue's last tick, whoever cut it. To make the trigger locks trunq.tick.
  if not exists (select from pg_trigger t where t.tgrelid = 'trunq.tick'::regclass and t.tgname = 'pgq_follow') then
    create trigger pgq_follow after insert on trunq.tick for each row execute function pgq._follow_tick();
  end if;
end $$;
