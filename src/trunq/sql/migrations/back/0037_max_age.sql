-- What was passed over as too old is forgotten: its receipts become those of messages that expired, which older functions
-- know. trunq.options stays as wide as it is, and receipts have no check.
do $$
declare
  v_queue trunq.queue;
begin
  for v_queue in select q.* from trunq.queue q loop
    execute format('update trunq_data.%I set outcome = ''e'' where outcome = ''o''', v_queue.receipt_table);
  end loop;
end $$;
delete from trunq.reply where outcome = 'outdated';
alter table trunq.reply drop constraint outcome_is_known;
alter table trunq.reply add constraint outcome_is_known check (
  outcome in ('success', 'rejected', 'failed', 'timed_out', 'lease_expired', 'expired', 'cancelled', 'replaced'));
alter type trunq.leasing drop attribute oldest;
alter table trunq.subscription drop column max_age;
