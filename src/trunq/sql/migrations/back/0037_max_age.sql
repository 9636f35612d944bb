-- What was passed over as too old is forgotten: its receipts become those of messages that expired, which older functions
-- know. trunq.options stays as wide as it is, and receipts have no check.
do $$
declare
  v_table text;
  v_is_there boolean;
begin
  for v_table in select q.receipt_table from trunq.queue q loop
    begin
      execute format('select exists (select from trunq_data.%I where outcome = ''o'')', v_table) into v_is_there;
      if not v_is_there then
        raise no_data_found;  -- gives the locks of this queue back
      end if;
      execute format('update trunq_data.%I set outcome = ''e'' where outcome = ''o''', v_table);
    exception when no_data_found then null;
    end;
  end loop;
end $$;
delete from trunq.reply where outcome = 'outdated';
alter table trunq.reply drop constraint outcome_is_known;
alter table trunq.reply add constraint outcome_is_known check (
  outcome in ('success', 'rejected', 'failed', 'timed_out', 'lease_expired', 'expired', 'cancelled', 'replaced'));
alter type trunq.leasing drop attribute oldest;
alter table trunq.subscription drop column max_age;
