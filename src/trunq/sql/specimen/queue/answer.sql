-- The answers to the messages of a lease. The rules, and how receipts are numbered, are in answer.sql: under the lock of the
-- lease, checked by a later statement, each answer one inserted receipt.

create or replace function trunq_queue._specimen_answer(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_outcome "char",
  p_errors text[], p_delays interval[], p_results jsonb[], p_took real[], p_policy trunq.policy default null
) returns integer
language plpgsql security definer volatile set search_path = pg_catalog, pg_temp
-- Leases and receipts are found by index; what joins are left match arrays of ids, by hash.
set trunq.plan = answer
as $$
declare
  v_sub record; v_now timestamptz;
  v_is_one boolean := cardinality(p_ids) = 1 and current_setting('transaction_isolation') = 'read committed';
  v_token bigint; v_is_whole boolean; v_reaped_at timestamptz; v_segment smallint; v_number smallint;
  v_awaited bigint[]; v_keyed bigint[]; v_given integer := cardinality(p_ids);
begin
  -- One condition for all that is unusual.
  if coalesce(v_given, 0) = 0 or array_ndims(p_ids) > 1 or array_position(p_ids, null) is not null
      or array_lower(p_ids, 1) <> 1 or array_lower(p_errors, 1) <> 1 or array_lower(p_delays, 1) <> 1
      or array_lower(p_results, 1) <> 1 or array_lower(p_took, 1) <> 1
      or cardinality(p_errors) <> v_given or cardinality(p_delays) <> v_given
      or cardinality(p_results) <> v_given or cardinality(p_took) <> v_given or '1000 years' < any (p_delays)
      or p_outcome is null or p_outcome not in ('a', 'r', 't', 'j', 'l', 'k') then
    perform trunq._check_interval('a delay', (select max(d) from unnest(p_delays) d), '-1000 years');
    perform trunq._check_answer(p_ids, p_outcome);
    return 0;
  end if;
  if not (p_policy is null) then
    perform trunq._check_policy('these messages', p_policy);
  end if;
  select s.subscription_id, s.mode, s.keep_results, s.max_running, s.has_progress into v_sub
  from trunq.subscription s where s.queue_id = 0 /*queue_id*/ and s.name = p_subscription;
  if v_sub.mode is distinct from 'shared' then
    perform trunq._subscription('_specimen', p_subscription, 'shared');
    -- It did not say what is missing: the subscription was made just now.
    return trunq_queue._specimen_answer(
      p_subscription, p_lease_id, p_token, p_ids, p_outcome, p_errors, p_delays, p_results, p_took, p_policy);
  end if;
  -- Postgres starts its executor for a PERFORM, but not for an IF. The lock's void is not null; null comes of a lease
  -- that is null.
  if v_is_one then
    -- Answers to one message wait for each other: ON CONFLICT would see to that too, and write 48 bytes more.
    if pg_advisory_xact_lock_shared(1953656419 /*lock lease*/, trunq._lease_lock(0 /*queue_id*/, p_lease_id)) is null
        or pg_advisory_xact_lock(1953656436 /*lock answer*/,
          trunq._lease_lock(0 /*queue_id*/, p_lease_id # (p_ids[1] << 24))) is null then
      perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
    end if;
  elsif pg_advisory_xact_lock(1953656419 /*lock lease*/, trunq._lease_lock(0 /*queue_id*/, p_lease_id)) is null then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  v_now := trunq.clock();
  if not v_is_one and current_setting('transaction_isolation') <> 'read committed' then
    return trunq_queue._specimen_in_snapshot(v_sub.subscription_id, p_subscription, p_lease_id, p_token, p_ids,
      p_outcome, p_errors, p_delays, p_results, p_took, p_policy, v_now);
  end if;
  -- By a later statement than the lock: it sees what the one before did.
  select l.token, v_is_one or l.ids = p_ids,
    case when v_is_one then 10000 /*limit lease_messages*/ + array_position(l.ids, p_ids[1]) else 0 end,
    l.reaped_at, l.segment, l.awaited, l.keyed
  into v_token, v_is_whole, v_number, v_reaped_at, v_segment, v_awaited, v_keyed
  from trunq_data._specimen_lease l
  -- Most leases are young, and of the segment that is written to: Postgres opens that one alone.
  where l.subscription_id = v_sub.subscription_id and l.lease_id = p_lease_id and l.segment = 0 /*segment*/;
  if v_token is null then
    select l.token, v_is_one or l.ids = p_ids,
      case when v_is_one then 10000 /*limit lease_messages*/ + array_position(l.ids, p_ids[1]) else 0 end,
      l.reaped_at, l.segment, l.awaited, l.keyed
    into v_token, v_is_whole, v_number, v_reaped_at, v_segment, v_awaited, v_keyed
    from trunq_data._specimen_lease l
    where l.subscription_id = v_sub.subscription_id and l.lease_id = p_lease_id;
  end if;
  if (v_token = p_token) is not true then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  -- The receipts of a lease lie in its segment: Postgres opens that one alone.
  if v_is_one then
    if v_number is null then
      perform trunq._fail_not_of_lease('_specimen', p_subscription, p_lease_id);
    elsif v_reaped_at is not null then
      return trunq_queue._specimen_after_reaper(v_sub.subscription_id, p_subscription, p_lease_id, v_segment, p_ids);
    end if;
    -- An earlier answer to this message has the same number, or is one of those to several. The lock waited for the former.
    insert into trunq_data._specimen_receipt (
      lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, took, errors, results)
    select p_lease_id, v_number, v_segment, v_sub.subscription_id, p_outcome, 1, p_ids, v_now, p_took, p_errors,
      case when v_sub.keep_results then p_results end
    where not exists (select from trunq_data._specimen_receipt r where r.lease_id = p_lease_id and r.number >= 0
        and r.number < 10000 /*limit lease_messages*/ and r.segment = v_segment
        and r.subscription_id = v_sub.subscription_id and p_ids[1] = any (r.ids))
      and not exists (select from trunq_data._specimen_receipt r
        where r.lease_id = p_lease_id and r.number = v_number and r.segment = v_segment);
    if not found then
      return 0;
    end if;
  else
    -- Most answers are the first, for a whole lease.
    if not v_is_whole or exists (
        select from trunq_data._specimen_receipt r where r.lease_id = p_lease_id and r.number >= 0
          and r.segment = v_segment and r.subscription_id = v_sub.subscription_id) then
      select l.ids, l.errors, l.delays, l.results, l.took, l.number
      into p_ids, p_errors, p_delays, p_results, p_took, v_number
      from trunq_queue._specimen_unanswered(v_sub.subscription_id, p_subscription, p_lease_id, v_segment,
        p_ids, p_errors, p_delays, p_results, p_took) l;
      if p_ids is null then
        return 0;
      end if;
    end if;
    if v_reaped_at is not null then
      perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
    end if;
    insert into trunq_data._specimen_receipt (
      lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, took, errors, results)
    values (p_lease_id, v_number, v_segment, v_sub.subscription_id, p_outcome, cardinality(p_ids), p_ids, v_now, p_took,
      p_errors, case when v_sub.keep_results then p_results end);
  end if;
  if p_outcome <> 'a' or v_sub.max_running is not null or v_sub.has_progress
      or v_awaited is not null or v_keyed is not null then
    perform trunq_queue._specimen_answer_effects(v_sub.subscription_id, p_lease_id, p_ids, p_outcome, p_errors,
      p_delays, p_results, p_policy, v_now, v_awaited, v_keyed);
  end if;
  return cardinality(p_ids);
end $$;
revoke execute on function trunq_queue._specimen_answer from public;
comment on function trunq_queue._specimen_answer is
  'What ack, retry, reject, release and park do, by outcome.
Returns: how many messages this call answered.';

create or replace function trunq_queue._specimen_after_reaper(
  p_subscription_id integer, p_subscription text, p_lease_id bigint, p_segment smallint, p_ids bigint[]
) returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if not exists (
      select from trunq_data._specimen_receipt r
      where r.lease_id = p_lease_id and r.number >= 0 and r.segment = p_segment
        and r.subscription_id = p_subscription_id and p_ids[1] = any (r.ids)) then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  return 0;
end $$;
comment on function trunq_queue._specimen_after_reaper is
  'An answer to one message of a lease that was reaped: nothing, if the message was answered before; else TQ003. Planned under the settings of answer.';

create or replace function trunq_queue._specimen_unanswered(
  p_subscription_id integer, p_subscription text, p_lease_id bigint, p_segment smallint, p_ids bigint[],
  p_errors text[], p_delays interval[], p_results jsonb[], p_took real[],
  out ids bigint[], out errors text[], out delays interval[], out results jsonb[], out took real[],
  out number smallint
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_earlier bigint[]; v_kept integer[]; v_unknown integer;
begin
  select coalesce(array_agg(e.id), '{}'),
    coalesce(max(e.number) filter (where e.number < 10000 /*limit lease_messages*/) + 1, 0) into v_earlier, number
  from (select r.number, unnest(r.ids) id from trunq_data._specimen_receipt r
        where r.lease_id = p_lease_id and r.number >= 0 and r.segment = p_segment
          and r.subscription_id = p_subscription_id) e;
  select array_agg(k.at order by k.at) filter (where k.earlier is null),
    count(*) filter (where k.mine is null)
  into v_kept, v_unknown
  from (
    select given.at, mine.id mine, earlier.id earlier
    from (select g.id, min(g.at)::integer at from unnest(p_ids) with ordinality g(id, at) group by g.id) given
    left join (
      select unnest(l.ids) id from trunq_data._specimen_lease l
      where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id) mine on mine.id = given.id
    left join (select unnest(v_earlier) id) earlier on earlier.id = given.id) k;
  if v_unknown > 0 then
    perform trunq._fail_not_of_lease('_specimen', p_subscription, p_lease_id);
  elsif cardinality(v_kept) < cardinality(p_ids) then
    -- Subscripts walk the array: fine here, where an answer came twice.
    ids := array(select p_ids[k] from unnest(v_kept) k);
    if p_errors is not null then errors := array(select p_errors[k] from unnest(v_kept) k); end if;
    if p_delays is not null then delays := array(select p_delays[k] from unnest(v_kept) k); end if;
    if p_results is not null then results := array(select p_results[k] from unnest(v_kept) k); end if;
    if p_took is not null then took := array(select p_took[k] from unnest(v_kept) k); end if;
  elsif v_kept is not null then
    ids := p_ids; errors := p_errors; delays := p_delays; results := p_results; took := p_took;
  end if;
end $$;
comment on function trunq_queue._specimen_unanswered is
  'What of an answer to several messages of a lease was not answered before, ids null: nothing; and the number of its receipt. Raises TQ013 for a message of another lease. Planned under the settings of answer.';

create or replace function trunq_queue._specimen_in_snapshot(
  p_subscription_id integer, p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_outcome "char",
  p_errors text[], p_delays interval[], p_results jsonb[], p_took real[], p_policy trunq.policy, p_now timestamptz
) returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_lease record; v_number smallint;
begin
  -- A stale snapshot must fail here: the reaper updates the row it reaps.
  select l.token, l.reaped_at, l.segment, l.awaited, l.keyed into v_lease from trunq_data._specimen_lease l
  where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id for share;
  if (v_lease.token = p_token) is not true then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  select l.ids, l.errors, l.delays, l.results, l.took, l.number
  into p_ids, p_errors, p_delays, p_results, p_took, v_number
  from trunq_queue._specimen_unanswered(p_subscription_id, p_subscription, p_lease_id, v_lease.segment,
    p_ids, p_errors, p_delays, p_results, p_took) l;
  if p_ids is null then
    return 0;
  elsif v_lease.reaped_at is not null then
    perform trunq._fail_lease_lost('_specimen', p_subscription, p_lease_id);
  end if;
  v_number := trunq_queue._specimen_require_seen(p_subscription_id, p_lease_id, v_lease.segment, p_ids, v_number);
  -- An answer that the snapshot does not see has this number: 40001, as for the reaper.
  insert into trunq_data._specimen_receipt (
    lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, took, errors, results)
  select p_lease_id, v_number, v_lease.segment, p_subscription_id, p_outcome, cardinality(p_ids), p_ids, p_now, p_took,
    p_errors, case when s.keep_results then p_results end
  from trunq.subscription s where s.subscription_id = p_subscription_id
  on conflict do nothing;
  perform trunq_queue._specimen_answer_effects(p_subscription_id, p_lease_id, p_ids, p_outcome, p_errors, p_delays,
    p_results, p_policy, p_now, v_lease.awaited, v_lease.keyed);
  return cardinality(p_ids);
end $$;
comment on function trunq_queue._specimen_in_snapshot is
  'An answer in a transaction that sees what its snapshot sees (REPEATABLE READ): it fails (40001) where others answered or reaped since. Planned under the settings of answer.
Returns: how many messages this call answered.';

create or replace function trunq_queue._specimen_answer_effects(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_outcome "char", p_errors text[], p_delays interval[],
  p_results jsonb[], p_policy trunq.policy, p_now timestamptz, p_awaited bigint[], p_keyed bigint[]
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_sub record; v_lease record;
begin
  if p_outcome = 'a' and p_keyed is not null then
    -- Most often those of the answer are all that hold keys.
    if p_keyed <> p_ids then
      p_keyed := array(select k.id from unnest(p_ids) i(id) join (select unnest(p_keyed) id) k on k.id = i.id);
    end if;
    p_keyed := trunq_queue._specimen_note_keys(null, p_keyed);
  end if;
  if p_outcome = 'a' and p_awaited is not null then
    perform trunq_queue._specimen_reply(p_subscription_id, p_lease_id, p_awaited, p_ids, p_results, p_now);
  end if;
  select s.max_running, s.has_progress into v_sub from trunq.subscription s
  where s.subscription_id = p_subscription_id;
  if v_sub.max_running is not null then
    -- Others may run now: rung for as publishers ring (trunq_queue.<queue>_wake).
    perform trunq._ring_bell(0 /*queue_id*/);
  end if;
  if p_outcome = 'a' and v_sub.has_progress then
    perform trunq._drop_progress(p_subscription_id, p_ids);
  elsif p_outcome <> 'a' then
    select l.worker, l.ids, l.txids into v_lease
    from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
    perform trunq_queue._specimen_give_back(p_subscription_id, v_lease.worker, p_ids, v_lease.ids, v_lease.txids,
      p_outcome, p_errors, p_delays, p_now, p_policy => p_policy);
    if p_outcome = 't' and p_awaited is not null then
      perform trunq._reply_timed_out(p_subscription_id, p_ids);
    end if;
  end if;
end $$;
comment on function trunq_queue._specimen_answer_effects is
  'What follows from an answer: replies and keys, room for others, what handlers reported, and messages given back. Planned under the settings of answer.';

create or replace function trunq_queue._specimen_require_seen(
  p_subscription_id integer, p_lease_id bigint, p_segment smallint, p_ids bigint[], p_number smallint
) returns smallint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_numbers constant smallint[] := array(
    select 10000 /*limit lease_messages*/ + u.place
    from trunq_data._specimen_lease l cross join unnest(l.ids) with ordinality u(id, place)
    where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id and u.id = any (p_ids));
begin
  begin
    insert into trunq_data._specimen_receipt (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
    select p_lease_id, n, p_segment, p_subscription_id, 'b', 0, '{}', trunq.clock() from unnest(v_numbers || p_number) n
    on conflict do nothing;
    -- Gives the numbers back.
    raise exception using errcode = 'TQ000';
  exception when sqlstate 'TQ000' then
  end;
  return case when cardinality(v_numbers) = 1 then v_numbers[1] else p_number end;
end $$;
comment on function trunq_queue._specimen_require_seen is
  'Fails (40001) when one of these messages was answered, by itself or with others, and the snapshot is older: takes the numbers of such receipts that it does not see, and gives them back. p_number: the next answer to several.
Returns: the number of the receipt for these messages.';

create or replace function trunq_queue._specimen_give_back(
  p_subscription_id integer, p_worker text, p_ids bigint[], p_lease_ids bigint[], p_lease_txids xid8[], p_outcome "char",
  p_errors text[], p_delays interval[], p_now timestamptz, p_blame text default null, p_scatter interval default '0',
  p_policy trunq.policy default null
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
-- Columns of the user go through jsonb, ranges among them as text: the session that reads it may write dates, numbers and money otherwise.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
-- Each message is one probe of the log's index; arrays of ids are matched by hash.
set trunq.plan = hash
as $$
declare
  v_sub trunq.subscription;
  -- A log with columns that the user added: they go by way of trunq.delayed, which keeps them.
  v_is_wider boolean := trunq._is_wider('trunq_log._specimen'::regclass);
  -- A snapshot from before the lock may not see what was reported.
  v_is_above boolean := current_setting('transaction_isolation') <> 'read committed';
  v_found integer; v_back bigint[]; v_keyed bigint[];
begin
  select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  if not found then
    perform trunq._fail('TQ002', format('a subscription of queue "%s" has just ended, and its messages with it', '_specimen'));
  end if;
  if not (p_policy is null) then
    v_sub.max_attempts := case when p_policy.max_attempts is null then v_sub.max_attempts else nullif(p_policy.max_attempts, 0) end;
    v_sub.backoff := coalesce(p_policy.backoff, v_sub.backoff);
    v_sub.backoff_base := coalesce(p_policy.backoff_base, v_sub.backoff_base);
    v_sub.backoff_cap := coalesce(p_policy.backoff_cap, v_sub.backoff_cap);
    v_sub.jitter := coalesce(p_policy.jitter, v_sub.jitter);
  end if;
  perform trunq._pass_gate('_specimen');
  with given as materialized (
    select g.id, g.error, g.delay, g.at from unnest(p_ids, p_errors, p_delays) with ordinality g(id, error, delay, at)
  ),
  place as materialized (
    select l.id, l.txid from unnest(p_lease_ids, p_lease_txids) l(id, txid)
  ),
  message as materialized (
    select m.*, given.delay,
      case when p_outcome = 'l' and given.error is not null then trunq._add_put_off(m.errors, m.attempt, p_now, p_worker, given.error)
        when p_outcome in ('l', 'e', 'c') or p_blame = 'spared' then m.errors
        -- A worker had a handler for it.
        when p_outcome = 'k' then case when m.errors -> -1 ? 'times' then nullif(m.errors - -1, '[]') else m.errors end
        else trunq._add_error(m.errors, m.attempt, p_now, p_worker, given.error) end all_errors,
      case when p_outcome = 'j' then 'rejected'
        when p_outcome = 'e' then 'expired'
        when p_outcome = 'c' or v_sub.has_cancelled and trunq._is_cancelled(p_subscription_id, m.id) then 'cancelled'
        when p_outcome in ('r', 't') and m.attempt >= m.max_attempts then 'max_attempts'
        when p_outcome = 'x' and m.attempt >= m.max_attempts and (p_blame = 'sole' or m.max_attempts = 1
          or p_blame = 'likely' and coalesce(m.expiries, 0) > m.max_attempts) then 'lease_expired' end reason,
      coalesce(case p_outcome when 'x' then least(coalesce(m.expiries, 0) + 1, 32767)::smallint when 'l' then m.expiries end,
        case when v_sub.in_order then 0::smallint end) next_expiries,
      p_outcome = 'l' and given.error is not null is_put_off, given.at
    from given join place on place.id = given.id
    cross join lateral (
      select g.id, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors, g.expiries,
        case when (v_sub.has_progress or v_is_above) and trunq._has_checkpoint(p_subscription_id, g.id) then coalesce(g.options, '{}') || '{"checkpoint": true}' else g.options end options,
        coalesce((g.options->>'max_attempts')::integer, v_sub.max_attempts) max_attempts,
        case when v_is_wider then trunq._extra(to_jsonb(g)) end extra,
        -- is_own: put into the log by this transaction, it would get the same place again, which was taken (ahead.sql).
        (trunq_queue._specimen_key_hold(g)).unique_key, g.txid = pg_current_xact_id() is_own
      from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, place.txid, place.id, p_subscription_id)
      offset 0) m
  ),
  -- Where each suspect stands in line.
  line as materialized (
    select m.id, row_number() over (order by m.at) place from message m where p_outcome = 'x' and m.next_expiries > 1 and m.reason is null
  ),
  fate as materialized (
    select m.*, case
        when m.reason is not null then '0'
        when p_outcome in ('r', 't') then coalesce(m.delay, own.wait,
          trunq._backoff(v_sub.backoff, v_sub.backoff_base, v_sub.backoff_cap, v_sub.jitter, m.attempt))
        when p_outcome in ('l', 'k') and m.delay is not null then m.delay
        when m.is_put_off then trunq._put_off(m.all_errors)
        when line.place is not null then greatest(own.wait, trunq._suspect_delay(p_subscription_id, p_now, line.place))
        when p_outcome = 'x' then greatest(own.wait, p_scatter * (0.1 + 0.9 * random()))
        else '0' end wait,
      case when p_outcome in ('l', 'k') or p_blame = 'spared' then m.attempt
        when p_blame in ('shared', 'likely') then least(m.attempt + 1, coalesce(m.max_attempts, 32767))::smallint
        else least(m.attempt + 1, 32767)::smallint end next_attempt
    from message m left join line on line.id = m.id
    -- Of an attempt that counts.
    left join lateral (select trunq._own_backoff(v_sub, m.options, m.attempt) wait offset 0) own
      on m.options is not null and p_outcome in ('r', 't', 'x') and p_blame is distinct from 'spared'
  ),
  died as (
    insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, payload, body, headers, errors, extra, options)
    select v_sub.queue_id, p_subscription_id, f.id, f.reason, f.created_at, p_now, f.attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors, f.extra, f.options
    from fate f where f.reason is not null order by f.at
  ),
  delayed as (
    insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, errors, extra, expiries, options, parked_at)
    select v_sub.queue_id, f.id, p_subscription_id, p_now + greatest(f.wait, '0'), f.created_at, f.next_attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors, f.extra, f.next_expiries, f.options, case when p_outcome = 'k' then p_now end
    from fate f where f.reason is null and (f.wait > '0' or f.extra is not null or f.is_own) order by f.at
  ),
  again as (
    insert into trunq_log._specimen (id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors, expiries, options)
    select f.id, p_subscription_id, f.created_at, f.next_attempt, f.priority, f.kind, f.key, f.payload, f.body, f.headers, f.all_errors, f.next_expiries, f.options
    from fate f where f.reason is null and f.wait <= '0' and f.extra is null and not f.is_own order by f.at
  )
  select count(*), array_agg(f.id) filter (where f.reason is null),
    array_agg(f.id) filter (where f.reason is not null and f.unique_key is not null)
  into v_found, v_back, v_keyed from fate f;
  if v_keyed is not null then
    -- Given up for good: whatever holds its key for a time goes on holding it.
    v_keyed := trunq_queue._specimen_note_keys(null, v_keyed);
  end if;
  perform trunq._pass_gate(null);
  if v_sub.in_order then
    perform trunq_queue._lanespecimen_go_on(p_subscription_id,
      array(select u.id from unnest(p_ids) u(id) where u.id = any (v_back) is not true), p_lease_ids, p_lease_txids);
  end if;
  if v_found < cardinality(p_ids) then
    -- Somebody deleted them by hand, or emptied the log: what is gone is gone, and the others go on.
    raise warning 'trunq: % of % messages of a lease are no longer in the log of queue %', cardinality(p_ids) - v_found, cardinality(p_ids), '_specimen';
  end if;
end $$;
comment on function trunq_queue._specimen_give_back is
  'Messages that did not succeed: in the log again, in trunq.delayed until they are due, or in trunq.dead. Of a lease that ran out, p_blame says whom it counts for (trunq._blame). p_policy goes before the subscription''s, and a message''s own option before both.';

-- The five below are replaced by the call of answer where they are called.

create or replace function trunq_queue._specimen_ack(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_results jsonb[] default null, p_took real[] default null
) returns integer
language sql volatile as $$
  select trunq_queue._specimen_answer(p_subscription, p_lease_id, p_token, p_ids, 'a', null, null, p_results, p_took)
$$;
comment on function trunq_queue._specimen_ack is
  'Says that messages of a lease are done, with a result each where the subscription keeps results; p_took: seconds each ran.
Returns: how many messages this call answered; those answered before do not count.
Raises: TQ002, TQ003 when the lease ended, TQ005, TQ011, TQ013 for a message of another lease.
Locks: the lease.';

create or replace function trunq_queue._specimen_retry(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_errors text[] default null, p_delays interval[] default null,
  p_took real[] default null, p_max_attempts integer default null, p_backoff text default null, p_backoff_base interval default null,
  p_backoff_cap interval default null, p_jitter real default null
) returns integer
language sql volatile as $$
  select trunq_queue._specimen_answer(p_subscription, p_lease_id, p_token, p_ids, 'r', p_errors, p_delays, null, p_took,
    row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy)
$$;
comment on function trunq_queue._specimen_retry is
  'Hands messages of a lease out again, to this subscription only, after a delay each (null: by the policy); dead when their attempts are used up. What is given of a policy (as in subscribe) goes before the subscription''s, a message''s own option before both.
Returns: how many messages this call answered.
Raises: TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq_queue._specimen_time_out(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_errors text[] default null, p_took real[] default null,
  p_max_attempts integer default null, p_backoff text default null, p_backoff_base interval default null,
  p_backoff_cap interval default null, p_jitter real default null
) returns integer
language sql volatile as $$
  select trunq_queue._specimen_answer(p_subscription, p_lease_id, p_token, p_ids, 't', p_errors, null, null, p_took,
    row(p_max_attempts, p_backoff, p_backoff_base, p_backoff_cap, p_jitter)::trunq.policy)
$$;
comment on function trunq_queue._specimen_time_out is
  'Says that messages of a lease took longer than they may: handed out again by the policy, of which something may be given, like a retry; in their history timed_out.
Returns: how many messages this call answered.
Raises: TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq_queue._specimen_reject(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_errors text[] default null, p_took real[] default null
) returns integer
language sql volatile as $$
  select trunq_queue._specimen_answer(p_subscription, p_lease_id, p_token, p_ids, 'j', p_errors, null, null, p_took)
$$;
comment on function trunq_queue._specimen_reject is
  'Gives messages of a lease up at once: dead, reason rejected.
Returns: how many messages this call answered.
Raises: TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';

create or replace function trunq_queue._specimen_release(
  p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_errors text[] default null, p_delays interval[] default null
) returns integer
language sql volatile as $$
  select trunq_queue._specimen_answer(p_subscription, p_lease_id, p_token, p_ids, 'l', p_errors, p_delays, null, null)
$$;
comment on function trunq_queue._specimen_release is
  'Gives back messages of a lease that were not started, the attempt not counted: handed out again after a delay each, or at once; with an error (no handler for this kind, say) and no delay, after one that grows from time to time, up to 5 minutes.
Returns: how many messages this call answered.
Raises: TQ002, TQ003, TQ005, TQ011, TQ013.
Locks: the lease.';
