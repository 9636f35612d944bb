-- What became of leased messages: ack, retry, reject, release. Each is an inserted receipt for a group of messages of one
-- lease, and for retry and release the message again: in the log when it may run at once, in trunq.delayed until it is due.
--
-- An answer names lease and token and is refused when the lease ended: LeaseLost, nothing changed. Answers of one lease take
-- its lock, exclusively, in one statement, and check in the next; of several leases in one transaction, in order of
-- lease_id. In a handler's transaction the ack is the last statement. Answering twice changes nothing. An answer that comes
-- after the time ran out but before the reaper is accepted: nobody else holds the message yet.
--
-- Above READ COMMITTED a check may see the past. So the reaper updates the lease it ends, and the answers of a lease are
-- numbered, in an index that knows no snapshots: an answer that does not see what came before it fails (40001).
--
-- outcome: a ack, r retry, j reject, l release, x lease expired (reap.sql), b batch finished (batch.sql)

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
comment on function trunq.ack(text, text, bigint, bigint, bigint[], jsonb[], real[]) is
  'Says that messages of a lease are done, with a result each where the subscription keeps results; p_took: seconds each ran. Returns: how many were answered by this call. Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005, TQ011, TQ013 for a message of another lease. Locks: the lease.';

create or replace function trunq.retry(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_errors text[] default null,
  p_delays interval[] default null,
  p_took real[] default null
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'r', p_errors, p_delays, null, p_took)
$$;
comment on function trunq.retry(text, text, bigint, bigint, bigint[], text[], interval[], real[]) is
  'Hands messages of a lease out again, to this subscription only, after a delay each (null: by the policy); dead when their attempts are used up. Returns: how many were answered by this call. Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013. Locks: the lease.';

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
comment on function trunq.reject(text, text, bigint, bigint, bigint[], text[], real[]) is
  'Gives messages of a lease up at once: dead, reason rejected. Returns: how many were answered by this call. Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013. Locks: the lease.';

create or replace function trunq.release(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[]
) returns integer
language sql volatile as $$
  select trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'l', null, null, null, null)
$$;
comment on function trunq.release(text, text, bigint, bigint, bigint[]) is
  'Gives back messages of a lease that were not started: handed out again at once, the attempt not counted. Returns: how many were answered by this call. Raises: TQ001, TQ002, TQ003, TQ005, TQ011, TQ013. Locks: the lease.';

create or replace function trunq._dispatch_answer() returns void
language plpgsql as $$
begin
  execute replace($q$
    create or replace function trunq._answer(
      p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_outcome "char",
      p_errors text[], p_delays interval[], p_results jsonb[], p_took real[]
    ) returns integer
    language plpgsql as $f$
    declare
      v_sub record;
      v_answered integer;
    begin
      -- One condition for all that is unusual.
      if coalesce(cardinality(p_ids), 0) = 0 or array_position(p_ids, null) is not null
          or cardinality(p_errors) <> cardinality(p_ids) or cardinality(p_delays) <> cardinality(p_ids)
          or cardinality(p_results) <> cardinality(p_ids) or cardinality(p_took) <> cardinality(p_ids) then
        perform trunq._check_answer(p_ids);
        return 0;
      end if;
      select s.subscription_id, s.queue_id, s.mode, s.keep_results into v_sub
      from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
      where q.name = p_queue and s.name = p_subscription;
      if v_sub.mode is distinct from 'shared' then
        perform trunq._subscription(p_queue, p_subscription, 'shared');
        -- It did not say what is missing: the subscription was made just now.
        return trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, p_outcome, p_errors, p_delays, p_results, p_took);
      end if;
      if not v_sub.keep_results then
        p_results := null;
      end if;
      perform trunq._lock_lease(p_lease_id);
      {branches}
      execute format('select trunq_data.%I($1, $2, $3, $4, $5, $6, $7, $8, $9)', 'answer_' || v_sub.queue_id)
        into v_answered
        using v_sub.subscription_id, p_lease_id, p_token, p_ids, p_outcome, p_errors, p_delays, p_results, p_took;
      return trunq._answered(v_answered, p_queue, p_subscription, p_lease_id);
    end $f$
  $q$, '{branches}', trunq._branches('v_answered := trunq_data.answer_%2$s(v_sub.subscription_id, p_lease_id, p_token, p_ids, '
    'p_outcome, p_errors, p_delays, p_results, p_took); '
    'if v_answered >= 0 then return v_answered; end if; return trunq._answered(v_answered, p_queue, p_subscription, p_lease_id);'));
end $$;
comment on function trunq._dispatch_answer() is 'Generates trunq._answer.';

create or replace function trunq._check_answer(p_ids bigint[]) returns void
language plpgsql as $$
begin
  if array_position(p_ids, null) is not null then
    perform trunq._fail('TQ005', 'an answer names messages by id, not null');
  elsif cardinality(p_ids) > 0 then
    perform trunq._fail('TQ005', format('an answer for %s messages came with arrays of another length', cardinality(p_ids)),
      'give one element for each id, or null for none');
  end if;
end $$;
comment on function trunq._check_answer(bigint[]) is 'Says what is wrong with an answer; nothing is when it names no message.';

create or replace function trunq._answered(p_answered integer, p_queue text, p_subscription text, p_lease_id bigint) returns integer
language plpgsql as $$
begin
  if p_answered = -1 then
    perform trunq._fail_lease_lost(p_queue, p_subscription, p_lease_id);
  elsif p_answered = -2 then
    perform trunq._fail('TQ013',
      format('not all of these messages belong to lease %s of subscription "%s" on queue "%s"', p_lease_id, p_subscription, p_queue),
      'nothing was changed; answer each message under the lease it came with');
  end if;
  return p_answered;
end $$;

create or replace function trunq._backoff(
  p_backoff text, p_base interval, p_cap interval, p_jitter real, p_attempt integer
) returns interval
language sql volatile as $$
  -- In seconds: an interval overflows long before the cap is asked.
  select make_interval(secs => least(extract(epoch from p_cap)::double precision, extract(epoch from p_base) * case p_backoff
      when 'constant' then 1
      when 'linear' then p_attempt
      else power(2::double precision, least(p_attempt - 1, 30)) end)
    * (1 - p_jitter * random()))
$$;
comment on function trunq._backoff(text, interval, interval, real, integer) is
  'How long to wait after a failed attempt: base, base x attempt or base x 2^(attempt - 1), at most the cap, less a random share up to the jitter.';

create or replace function trunq._add_error(p_errors jsonb, p_attempt integer, p_at timestamptz, p_worker text, p_error text) returns jsonb
language sql immutable as $$
  -- Who retries for ever keeps the newest hundred.
  select case when jsonb_array_length(e) > 100 then e - 0 else e end
  from (select coalesce(p_errors, '[]') || jsonb_build_object('attempt', p_attempt, 'at', p_at, 'worker', p_worker, 'error', left(p_error, 8000))) x(e)
$$;

create or replace function trunq._define_answer(p_queue_id integer, p_queue text) returns void
language plpgsql as $$
begin
  execute format($q$
    create or replace function trunq_data.answer_%2$s(
      p_subscription_id integer, p_lease_id bigint, p_token bigint, p_ids bigint[], p_outcome "char",
      p_errors text[], p_delays interval[], p_results jsonb[], p_took real[])
    returns integer language plpgsql volatile
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
    as $f$
    declare
      v_token bigint; v_worker text; v_ids bigint[]; v_txids xid8[]; v_reaped_at timestamptz; v_segment smallint; v_number smallint;
      v_now timestamptz := trunq.clock();
      v_earlier bigint[]; v_kept integer[]; v_given integer := cardinality(p_ids); v_mine integer; v_unknown integer;
    begin
      -- The lock was taken by the statement before: this one sees what the one who had it did.
      if current_setting('transaction_isolation') = 'read committed' then
        select l.token, l.worker, l.ids, l.txids, l.reaped_at, l.segment into v_token, v_worker, v_ids, v_txids, v_reaped_at, v_segment
        from trunq_data.lease_%2$s l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
      else
        -- A stale snapshot must fail here: the reaper updates the row it reaps.
        select l.token, l.worker, l.ids, l.txids, l.reaped_at, l.segment into v_token, v_worker, v_ids, v_txids, v_reaped_at, v_segment
        from trunq_data.lease_%2$s l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id for share;
      end if;
      if (v_token = p_token) is not true then
        return -1;
      end if;
      select coalesce(array_agg(e.id), '{}'), coalesce(max(e.number) + 1, 0) into v_earlier, v_number
      from (select r.number, unnest(r.ids) id from trunq_data.receipt_%2$s r
            where r.lease_id = p_lease_id and r.subscription_id = p_subscription_id and r.outcome <> 'x') e;
      if v_earlier <> '{}' or p_ids <> v_ids then
        select array_agg(k.at order by k.at) filter (where k.earlier is null),
          count(*) filter (where k.mine is null)
        into v_kept, v_unknown
        from (
          select given.at, mine.id mine, earlier.id earlier
          from (select g.id, min(g.at)::integer at from unnest(p_ids) with ordinality g(id, at) group by g.id) given
          left join (select unnest(v_ids) id) mine on mine.id = given.id
          left join (select unnest(v_earlier) id) earlier on earlier.id = given.id) k;
        if v_unknown > 0 then
          return -2;
        end if;
        if v_kept is null then
          return 0;
        end if;
        if cardinality(v_kept) < v_given then
          -- Subscripts walk the array: fine here, where an answer came twice.
          p_ids := array(select p_ids[k] from unnest(v_kept) k);
          if p_errors is not null then p_errors := array(select p_errors[k] from unnest(v_kept) k); end if;
          if p_delays is not null then p_delays := array(select p_delays[k] from unnest(v_kept) k); end if;
          if p_results is not null then p_results := array(select p_results[k] from unnest(v_kept) k); end if;
          if p_took is not null then p_took := array(select p_took[k] from unnest(v_kept) k); end if;
        end if;
      end if;
      if v_reaped_at is not null then
        return -1;
      end if;
      if current_setting('transaction_isolation') = 'read committed' then
        insert into trunq_data.receipt_%2$s (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, took, errors, results)
        values (p_lease_id, v_number, v_segment, p_subscription_id, p_outcome, cardinality(p_ids), p_ids, v_now, p_took, p_errors, p_results);
      else
        -- An answer that the snapshot does not see has this number: 40001, as for the reaper.
        insert into trunq_data.receipt_%2$s (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, took, errors, results)
        values (p_lease_id, v_number, v_segment, p_subscription_id, p_outcome, cardinality(p_ids), p_ids, v_now, p_took, p_errors, p_results)
        on conflict do nothing;
      end if;
      if p_outcome <> 'a' then
        perform trunq_data.give_back_%2$s(p_subscription_id, v_worker, p_ids, v_ids, v_txids, p_outcome, p_errors, p_delays, v_now);
      end if;
      return cardinality(p_ids);
    end $f$
  $q$, p_queue, p_queue_id);

  execute format($q$
    create or replace function trunq_data.give_back_%2$s(
      p_subscription_id integer, p_worker text, p_ids bigint[], p_lease_ids bigint[], p_lease_txids xid8[], p_outcome "char",
      p_errors text[], p_delays interval[], p_now timestamptz)
    returns void language plpgsql volatile
    set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
    as $f$
    declare
      v_sub trunq.subscription;
      v_found integer;
    begin
      select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
      if not found then
        perform trunq._fail('TQ002', format('a subscription of queue "%%s" has just ended, and its messages with it', %1$L));
      end if;
      with given as materialized (
        select g.id, g.error, g.delay, g.at from unnest(p_ids, p_errors, p_delays) with ordinality g(id, error, delay, at)
      ),
      place as materialized (
        select l.id, l.txid from unnest(p_lease_ids, p_lease_txids) l(id, txid)
      ),
      message as materialized (
        select m.*, given.delay,
          case when p_outcome = 'l' then m.errors else
            trunq._add_error(m.errors, m.attempt, p_now, p_worker, given.error) end all_errors,
          case when p_outcome = 'j' then 'rejected'
            when p_outcome = 'r' and m.attempt >= v_sub.max_attempts then 'max_attempts'
            when p_outcome = 'x' and m.attempt >= v_sub.max_attempts then 'lease_expired' end reason,
          given.at
        from given join place on place.id = given.id
        cross join lateral (
          select g.* from trunq_log.%1$I g
          where g.txid = place.txid and g.id = place.id and (g.subscription_id is null or g.subscription_id = p_subscription_id)
          offset 0) m
      ),
      fate as materialized (
        select m.*, case when p_outcome = 'r' and m.reason is null then coalesce(m.delay,
          trunq._backoff(v_sub.backoff, v_sub.backoff_base, v_sub.backoff_cap, v_sub.jitter, m.attempt)) else '0' end wait,
          case when p_outcome = 'l' then m.attempt else least(m.attempt + 1, 32767)::smallint end next_attempt
        from message m
      ),
      died as (
        insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, payload, body, headers, errors)
        select %2$s, p_subscription_id, f.id, f.reason, f.created_at, p_now, f.attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors
        from fate f where f.reason is not null order by f.at
      ),
      delayed as (
        insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, errors)
        select %2$s, f.id, p_subscription_id, p_now + f.wait, f.created_at, f.next_attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors
        from fate f where f.reason is null and f.wait > '0' order by f.at
      ),
      again as (
        insert into trunq_log.%1$I (id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors)
        select f.id, p_subscription_id, f.created_at, f.next_attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors
        from fate f where f.reason is null and f.wait <= '0' order by f.at
      )
      select count(*) into v_found from fate;
      if v_found <> cardinality(p_ids) then
        raise exception 'trunq: %% of %% messages of a lease are not in the log of queue %%', cardinality(p_ids) - v_found, cardinality(p_ids), %1$L;
      end if;
    end $f$
  $q$, p_queue, p_queue_id);
end $$;
comment on function trunq._define_answer(integer, text) is
  'Generates answer_<queue_id> (returns how many, -1: the lease ended, -2: not all are of this lease) and give_back_<queue_id> (a message that did not succeed: again, later or dead).';
