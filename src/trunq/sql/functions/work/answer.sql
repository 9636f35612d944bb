-- What became of leased messages: ack, retry, time_out, reject, release. Each is an inserted receipt for a group of messages of one
-- lease, and for retry and release the message again: in the log when it may run at once, in trunq.delayed until it is due.
--
-- An answer names lease and token and is refused when the lease ended: LeaseLost, nothing changed. It takes the lock of its lease
-- to the commit in one statement, and checks in the next; of several leases in one transaction, in order of lease_id. Answering
-- twice changes nothing. An answer that comes after the time ran out but before the reaper is accepted: nobody else holds the
-- message yet.
--
-- An answer to one message shares the lock, so that handlers whose acks commit with what they wrote do not wait for each other, and
-- their commits for the disk together. Answers to several, the reaper, reclaim, extensions and reports of progress take it for
-- themselves. Answers to one message wait for each other by a lock of its own, and the second finds the first. The number of a receipt
-- is unique in its lease, in an index that knows no snapshots:
--   0 to 9999       answers to several, one after the other
--   10001 to 20000  answers to one: 10000 + the place of the message in its lease
--   -1              the reaper
-- In a handler's transaction the ack is the last statement, so the lock is held for the time of the commit. A transaction that answers
-- several of a lease, or extends it, does so before it answers one of it: two that do so behind meet in a deadlock (40P01), and one gives way.
--
-- Above READ COMMITTED a check may see the past. So the reaper updates the lease it ends; and an answer there takes the lock for itself, and
-- tries the numbers that others may have taken unseen: that of the next answer to several, and those of its messages. A taken one fails (40001).
--
-- Here are the answers by the name of the queue, for people; the queue's own are in sql/specimen/queue/answer.sql.

create or replace function trunq.ack(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_results jsonb[] default null,
  p_took real[] default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'a', null, null, p_results, p_took)
$$;
comment on function trunq.ack is
  'Marks messages of a lease as done, each with a result where the subscription keeps results. p_took: how many seconds each one ran.
Returns: how many messages this call answered; those answered before do not count.
Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005, TQ011, TQ013 for a message of another lease.
Locks: the lease.';

create or replace function trunq.retry(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_errors text[] default null,
  p_delays interval[] default null,
  p_took real[] default null,
  p_max_attempts integer default null,
  p_backoff text default null,
  p_backoff_base interval default null,
  p_backoff_cap interval default null,
  p_jitter real default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'r', p_errors, p_delays, null, p_took,
    row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy)
$$;
comment on function trunq.retry is
  'Hands messages of a lease out again, to this subscription only, each after a delay (null: as the policy says). A message that has used up its attempts is dead. Policy arguments given here (as in subscribe) override the subscription''s; a message''s own options override both.
Returns: how many messages this call answered.
Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq.time_out(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_errors text[] default null,
  p_took real[] default null,
  p_max_attempts integer default null,
  p_backoff text default null,
  p_backoff_base interval default null,
  p_backoff_cap interval default null,
  p_jitter real default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 't', p_errors, null, null, p_took,
    row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy)
$$;
comment on function trunq.time_out is
  'Reports that messages of a lease ran for longer than they may. They are handed out again as by trunq.retry, with the same policy arguments; their history says timed_out.
Returns: how many messages this call answered.
Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq.reject(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_errors text[] default null,
  p_took real[] default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'j', p_errors, null, null, p_took)
$$;
comment on function trunq.reject is
  'Gives up messages of a lease at once: they are dead, with the reason rejected.
Returns: how many messages this call answered.
Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq.release(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_errors text[] default null,
  p_delays interval[] default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'l', p_errors, p_delays, null, null)
$$;
comment on function trunq.release is
  'Gives back messages of a lease that were not started; the attempt does not count. Each is handed out again after its delay, or at once; with an error (such as: no handler for this kind) and no delay, after a delay that grows each time, up to 5 minutes.
Returns: how many messages this call answered.
Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq.list_fates(p_queue text, p_subscription text, p_ids bigint[])
returns table (id bigint, wait interval, reason text)
language plpgsql set search_path = pg_catalog, pg_temp
set trunq.plan = kept as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
  v_now timestamptz := trunq.clock();
begin
  -- Asked for their order too: without statistics all indexes look alike, and another one would read all that is delayed.
  return query
    select u.id, e.due_at - v_now, e.reason from unnest(p_ids) u(id) cross join lateral (
      (select d.id, d.due_at, null::text reason from trunq.delayed d
       where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id >= u.id
       order by d.queue_id, d.subscription_id, d.id limit 1)
      union all
      (select d.id, null, d.reason from trunq.dead d
       where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id >= u.id
       order by d.queue_id, d.subscription_id, d.id limit 1)) e
    where e.id = u.id;
end $$;
comment on function trunq.list_fates is
  'What became of messages that a subscription gave back, asked in the same transaction. wait: the time until a message is handed out again; reason: why it is dead.
Returns: no row for a message that runs again at once, or is neither delayed nor dead.
Raises: TQ001, TQ002.';

create or replace function trunq._answer(
  p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_outcome "char",
  p_errors text[], p_delays interval[], p_results jsonb[], p_took real[], p_policy trunq.policy default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_answered integer;
begin
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)', trunq._function(p_queue, 'answer'))
    into v_answered using p_subscription, p_lease_id, p_token, p_ids, p_outcome, p_errors, p_delays, p_results, p_took, p_policy;
  return v_answered;
end $$;
comment on function trunq._answer is
  'The answers by the name of the queue.';

create or replace function trunq._check_answer(p_ids bigint[], p_outcome "char") returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if array_ndims(p_ids) > 1 then
    perform trunq._fail('TQ005', 'an answer names messages in an array of one dimension');
  elsif array_position(p_ids, null) is not null then
    perform trunq._fail('TQ005', 'an answer names messages by id, not null');
  elsif p_outcome is null or p_outcome not in ('a', 'r', 't', 'j', 'l', 'k') then
    perform trunq._fail('TQ005', format('no answer is "%s"', p_outcome), 'use ack, retry, time_out, reject or release');
  elsif cardinality(p_ids) > 0 then
    perform trunq._fail('TQ005', format('an answer for %s messages came with arrays of another length, or arrays that do not begin at 1', cardinality(p_ids)),
      'give one element for each id, or null for none');
  end if;
end $$;
comment on function trunq._check_answer is 'Says what is wrong with an answer; nothing is when it names no message.';

create or replace function trunq._require_answered(p_answered integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_answered is distinct from 1 then
    perform trunq._fail('TQ003', 'the message was answered before');
  end if;
end $$;
comment on function trunq._require_answered is
  'Refuses (TQ003) an ack that answered nothing, where a COMMIT comes with it: the server executes nothing behind a statement that failed.';

create or replace function trunq._backoff(
  p_backoff text, p_base interval, p_cap interval, p_jitter real, p_attempt integer
) returns interval
language sql volatile as $$
  -- In seconds: an interval overflows long before the cap is asked.
  select pg_catalog.make_interval(secs => least(extract(epoch from p_cap)::double precision, extract(epoch from p_base) operator(pg_catalog.*) case p_backoff
      when 'constant' then 1
      when 'linear' then p_attempt
      else pg_catalog.power(2::double precision, least(p_attempt operator(pg_catalog.-) 1, 30)) end)
    operator(pg_catalog.*) (1 operator(pg_catalog.-) (p_jitter operator(pg_catalog.*) pg_catalog.random())))
$$;
comment on function trunq._backoff is
  'How long to wait after a failed attempt: base, base x attempt or base x 2^(attempt - 1), at most the cap, less a random share up to the jitter.';

create or replace function trunq._own_backoff(p_sub trunq.subscription, p_options jsonb, p_attempt integer) returns interval
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select trunq._backoff(coalesce(p_options->>'backoff', p_sub.backoff),
    coalesce(make_interval(secs => (p_options->>'backoff_base')::double precision), p_sub.backoff_base),
    coalesce(make_interval(secs => (p_options->>'backoff_cap')::double precision), p_sub.backoff_cap),
    coalesce((p_options->>'jitter')::real, p_sub.jitter), p_attempt)
  where p_options ?| '{backoff,backoff_base,backoff_cap,jitter}'
$$;
comment on function trunq._own_backoff is
  'How long a message with a back-off of its own waits after a failed attempt: what its options do not say, the policy says. Null: it has none.';

create or replace function trunq._add_error(p_errors jsonb, p_attempt integer, p_at timestamptz, p_worker text, p_error text) returns jsonb
language sql immutable as $$
  -- A message that is retried for ever keeps the newest.
  select case when pg_catalog.jsonb_array_length(e) operator(pg_catalog.>) trunq._limit('errors_kept') then e operator(pg_catalog.-) 0 else e end
  from (select coalesce(p_errors, '[]') operator(pg_catalog.||) pg_catalog.jsonb_build_object('attempt', p_attempt, 'at', p_at, 'worker', p_worker, 'error', pg_catalog.left(p_error, trunq._limit('error_characters')))) x(e)
$$;
comment on function trunq._add_error is 'The errors of a message, with one more.';

create or replace function trunq._add_put_off(p_errors jsonb, p_attempt integer, p_at timestamptz, p_worker text, p_error text) returns jsonb
language sql immutable as $$
  -- One entry however often: this may go on for ever, and must not push out the errors of attempts.
  select pg_catalog.jsonb_set(
    trunq._add_error(case when p_errors operator(pg_catalog.->) -1 operator(pg_catalog.?) 'times' then p_errors operator(pg_catalog.-) -1 else p_errors end, p_attempt, p_at, p_worker, p_error),
    '{-1,times}', pg_catalog.to_jsonb(coalesce((p_errors operator(pg_catalog.->) -1 operator(pg_catalog.->>) 'times')::bigint, 0) operator(pg_catalog.+) 1))
$$;
comment on function trunq._add_put_off is
  'The errors of a message that a worker could not start, with this one, which says how many times in a row.';

create or replace function trunq._put_off(p_errors jsonb) returns interval
language sql volatile as $$
  -- 5 minutes at most: whoever deploys the handler should not wait longer. Scattered, so that many do not return at once.
  select pg_catalog.make_interval(secs => least(300, pg_catalog.power(2::double precision, least((p_errors operator(pg_catalog.->) -1 operator(pg_catalog.->>) 'times')::bigint operator(pg_catalog.-) 1, 30)))
    operator(pg_catalog.*) (1 operator(pg_catalog.-) (0.2 operator(pg_catalog.*) pg_catalog.random())))
$$;
comment on function trunq._put_off is 'How long a message waits that a worker could not start: 1, 2, 4 seconds and so on, up to 5 minutes, less a random share.';
