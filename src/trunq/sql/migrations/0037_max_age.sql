-- A shared subscription may say how old a message may be when it is handed out (max_age): an older one is passed over, and
-- its receipt says so (outcome o).
alter table trunq.subscription add column max_age interval
  constraint max_age_is_positive check (max_age > '0');
comment on column trunq.subscription.max_age is 'Messages that are older when they would be handed out are passed over; null: none.';

-- What a lease knows of it: created, or due, before this, a message is too old.
alter type trunq.leasing add attribute oldest timestamptz;

-- The words are in functions/ground/outcome.sql, and whoever reads a letter that has none says so. The check, which each answer
-- paid for, would have to be made anew in each queue.
alter table trunq_data._specimen_receipt drop constraint if exists outcome_is_known;
alter table trunq.reply drop constraint outcome_is_known;
alter table trunq.reply add constraint outcome_is_known check (
  outcome in ('success', 'rejected', 'failed', 'timed_out', 'lease_expired', 'expired', 'cancelled', 'replaced', 'outdated')) not valid;
alter table trunq.reply validate constraint outcome_is_known;
comment on column trunq_data._specimen_archive.outcome is
  'success, failed (retried, or given up after its last attempt), timed_out, rejected, released, lease_expired, expired, cancelled, replaced or outdated.';

-- The rule of before, whatever it is by now, and one option more: when a message that was put off fell due. What is there obeys a
-- stricter rule, and nobody reads it all for that.
do $$
declare
  v_rule text := (
    select pg_get_expr(c.conbin, 0) from pg_constraint c
    where c.contypid = 'trunq.options'::regtype and c.conname = 'options_are_known_and_readable');
begin
  alter domain trunq.options drop constraint options_are_known_and_readable;
  execute format('alter domain trunq.options add constraint options_are_known_and_readable check (value is null or (%s) and case
    when value->>''due_at'' is null then true
    when value->>''due_at'' !~ ''^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$'' then false
    else (value->>''due_at'')::timestamptz is not null end) not valid',
    regexp_replace(v_rule, '- ''\{', '- ''{due_at,'));
end $$;

-- Functions that take more now, or return more: made anew.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('subscribe', 'list_subscriptions')
      or p.pronamespace = 'trunq_queue'::regnamespace and p.proname in ('_lanespecimen_lease_whole', '_lanespecimen_lease_turns')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
