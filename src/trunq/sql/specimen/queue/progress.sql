-- What a handler reports while its message runs. The rules are in functions/work/progress.sql.

create or replace function trunq_queue._specimen_set_progress(
  p_subscription text, p_lease_id bigint, p_token bigint, p_id bigint,
  p_percent double precision default null, p_note text default null, p_checkpoint jsonb default null
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set trunq.plan = index
as $$
declare
  v_sub trunq.subscription := trunq._subscription('_specimen', p_subscription, 'shared');
  v_lease record;
  v_now timestamptz;
  -- JSON null: the checkpoint is dropped.
  v_drops boolean := coalesce(p_checkpoint = 'null', false);
begin
  perform trunq._require_read_committed('set_progress');
  perform trunq._check_progress(p_percent, p_note, p_checkpoint);
  p_checkpoint := nullif(p_checkpoint, 'null');
  perform pg_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(v_sub.queue_id, p_lease_id));
  v_now := trunq.clock();
  -- By a later statement than the lock: it sees what an answer and the reaper did.
  select l.token, l.worker, l.reaped_at, l.segment, p_id = any (l.ids) is_ours into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = v_sub.subscription_id and l.lease_id = p_lease_id;
  if (v_lease.token = p_token) is not true or v_lease.reaped_at is not null then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  elsif v_lease.is_ours is not true then
    perform trunq._fail('TQ013', format('message %s does not belong to lease %s of subscription "%s" on queue "%s"', p_id, p_lease_id, p_subscription, '_specimen'),
      'nothing was changed; report for a message under the lease it came with');
  elsif exists (
      select from trunq_data._specimen_receipt r
      where r.lease_id = p_lease_id and r.number >= 0 and r.segment = v_lease.segment and r.subscription_id = v_sub.subscription_id and p_id = any (r.ids)) then
    -- No error: in a handler's transaction the ack may overtake a report that is on its way.
    return false;
  end if;
  update trunq.progress p set
    lease_id = p_lease_id, worker = v_lease.worker, reported_at = v_now,
    percent = case when p.lease_id = p_lease_id then coalesce(p_percent, p.percent) else p_percent end,
    note = case when p.lease_id = p_lease_id then coalesce(p_note, p.note) else p_note end,
    checkpoint = case when p_checkpoint is null and not v_drops then p.checkpoint else p_checkpoint end,
    checkpoint_bytes = case when p_checkpoint is null and not v_drops then p.checkpoint_bytes else octet_length(p_checkpoint::text) end
  where p.subscription_id = v_sub.subscription_id and p.id = p_id;
  if found then
    return true;
  end if;
  if not trunq._use_progress(v_sub.subscription_id) then
    -- It ended, or was reset, just now.
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  insert into trunq.progress (queue_id, subscription_id, id, lease_id, worker, percent, note, checkpoint, checkpoint_bytes, reported_at, look_at)
  values (v_sub.queue_id, v_sub.subscription_id, p_id, p_lease_id, v_lease.worker, p_percent, p_note, p_checkpoint, octet_length(p_checkpoint::text),
    v_now, v_now + interval '1 minute');
  return true;
end $$;
revoke execute on function trunq_queue._specimen_set_progress from public;
comment on function trunq_queue._specimen_set_progress is
  'Says how far a message of a lease is: p_percent (0 to 100), p_note (up to 500 characters), and p_checkpoint, up to 1 MB of JSON that the next attempt is given, whatever ends this one (JSON null: no more). What is null stays as this attempt said it. In a transaction of its own, not in the handler''s, it is seen at once and stands whatever becomes of that.
Returns: false when the message was answered: then nothing is said any more.
Raises: TQ002, TQ003 when the lease ended, TQ005, TQ006 for a checkpoint over 1 MB, TQ007, TQ011, TQ013 for a message of another lease.
Locks: the lease.';
