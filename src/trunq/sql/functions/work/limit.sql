-- What a subscription may hand out: so many messages in an interval (rate, a bucket of tokens), and so many that run at the same time
-- (max_running). Both are exact for a whole fleet, because what they go by lies in the newest lease, and every lease is made under
-- the lock of its subscription:
--   tokens, tokens_at  what was left in the bucket, and when; a full bucket (burst) is there when nothing is known
--   open_leases        the leases that may hold messages without an answer; each lease asks those anew
-- A message counts against the rate when it is handed out, a retry again; it runs until its answer, or the reaper, has committed. A lease
-- that may hand out nothing writes nothing: its worker asks retry_after, and sleeps.

create or replace function trunq.retry_after(p_queue text, p_subscription text) returns interval
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
  v_now timestamptz := trunq.clock();
  v_newest record;
  v_tokens double precision;
begin
  if trunq._is_paused(v_sub, v_now) then
    return least(case when isfinite(trunq._paused_until(v_sub)) then trunq._paused_until(v_sub) - v_now end, interval '1 day');
  end if;
  if v_sub.rate is null then
    return null;
  end if;
  execute format('select tokens, tokens_at from trunq_data.%I where subscription_id = $1 order by lease_id desc limit 1',
    (trunq._find_queue(v_sub.queue_id)).lease_table) into v_newest using v_sub.subscription_id;
  v_tokens := trunq._tokens(v_sub, v_newest.tokens, v_newest.tokens_at, v_now);
  return case when trunq._whole_tokens(v_tokens) < 1 then make_interval(secs => least((1 - v_tokens) / trunq._rate_a_second(v_sub), 86400)) end;
end $$;
comment on function trunq.retry_after is
  'After a lease that gave nothing: how long a shared subscription hands out nothing, paused or at the end of its rate; at most a day, then ask again.
Returns: null when neither is the case: then only a new message, or the end of one that counts against a limit, can change that.
Raises: TQ001, TQ002, TQ011.';

create or replace function trunq._rate_a_second(p_sub trunq.subscription) returns double precision
language sql immutable set search_path = pg_catalog, pg_temp as $$ select p_sub.rate / extract(epoch from p_sub.rate_interval)::double precision $$;
comment on function trunq._rate_a_second is 'Messages a second that a subscription may hand out; null: as many as there are.';

create or replace function trunq._tokens(
  p_sub trunq.subscription, p_tokens double precision, p_at timestamptz, p_now timestamptz
) returns double precision
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- A clock that went back fills nothing.
  select least(b.burst, coalesce(p_tokens, b.burst) + trunq._rate_a_second(p_sub) * greatest(0, coalesce(extract(epoch from p_now - p_at), 0)::double precision))
  from (select coalesce(p_sub.burst, greatest(1, trunq._rate_a_second(p_sub)))::double precision burst) b
$$;
comment on function trunq._tokens is
  'How many tokens are in the bucket now, when so many were at a time (null: it is full).';

create or replace function trunq._whole_tokens(p_tokens double precision) returns integer
language sql immutable set search_path = pg_catalog, pg_temp as $$ select least(floor(p_tokens + 1e-6), 2000000000)::integer $$;
comment on function trunq._whole_tokens is 'Whole tokens; sums of parts end a little below one.';

create or replace function trunq._unanswered_leases(p_subscription_id integer) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := (select q from trunq.queue q join trunq.subscription s using (queue_id) where s.subscription_id = p_subscription_id);
  v_mark record := trunq._reap_mark(v_queue, p_subscription_id);
begin
  return trunq._open_leases(v_queue, p_subscription_id, v_mark.until, 'infinity', v_mark.newest, null, 1000000);
end $$;
comment on function trunq._unanswered_leases is 'All leases of a subscription that hold messages without an answer; it looks at those since the reaper''s mark.';

create or replace function trunq._check_limits(
  p_subscription text, p_rate double precision, p_rate_interval interval, p_burst integer, p_max_running integer
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_rate <> 0 and p_rate not between 0.000001 and 1000000 then
    perform trunq._fail('TQ005', format('the rate of subscription "%s" cannot be %s', p_subscription, p_rate),
      'a rate is 0.000001 to 1,000,000 messages an interval (rate_interval, one second unless you say so); 0: no limit');
  end if;
  perform trunq._check_interval(format('rate_interval of subscription "%s"', p_subscription), p_rate_interval);
  if p_burst not between 0 and 1000000 then
    perform trunq._fail('TQ005', format('the burst of subscription "%s" cannot be %s', p_subscription, p_burst),
      'a burst is 1 to 1,000,000 messages that may go out at once; 0: what the rate gives in a second, at least one');
  end if;
  if p_max_running not between 0 and trunq._limit('running') then
    perform trunq._fail('TQ005', format('max_running of subscription "%s" cannot be %s', p_subscription, p_max_running),
      format('1 to %s messages may run at the same time; 0: no limit', trunq._limit('running')));
  end if;
end $$;
comment on function trunq._check_limits is 'Refuses (TQ005) limits that no subscription can have.';

-- Why a message waits now. What keeps all from going out is told before what keeps some, and nothing that is merely set: a limit is named when it is reached.

create or replace function trunq.explain_wait(p_queue text, p_id bigint)
returns table (subscription text, reason text, explanation text, hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v record;
begin
  for v in
    select m.subscription as name, m.key::text, m.kind::text, s as sub from trunq.show_message(p_queue, p_id) m
    join trunq.subscription s on s.queue_id = v_queue.queue_id and s.name = m.subscription
    where m.state = 'ready'
  loop
    return query
      with lane as materialized (select l.* from trunq._wait_in_lane(v_queue, v.sub, v.key, v.kind, p_id) l)
      select v.name, w.reason, w.explanation, w.hint
      from (
        select p.*, 1 as place from trunq._wait_for_pause(v_queue, v.sub) p
        union all select l.*, 2 from lane l where l.reason = 'paused'
        union all select n.*, 3 from trunq._wait_for_workers(v_queue, v.sub) n
        union all select m.*, 4 from trunq._wait_for_limit(v_queue, v.sub) m
        union all select l.*, 5 from lane l where l.reason <> 'paused'
        union all select 'turn', 'others come before it, or a worker is about to take it', null, 6) w
      order by w.place limit 1;
  end loop;
end $$;
comment on function trunq.explain_wait is
  'Why a message that is ready has not been handed out yet. reason: paused (the subscription, its queue or the lane is), workers (nobody works there), limit (as many run as may), rate (as many went out as may), order (one of a key at a time) or turn (nothing holds it up); explanation says it in words; hint: what helps, null where waiting does.
Returns: one row for each shared subscription in which it is ready.
Raises: TQ001, TQ013.';

create or replace function trunq._wait_for_pause(p_queue trunq.queue, p_sub trunq.subscription)
returns table (reason text, explanation text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'paused', format('%s is paused until %s',
      case when w.is_queue then format('queue "%s"', p_queue.name) else format('subscription "%s"', p_sub.name) end,
      case when isfinite(w.until) then w.until::text else 'somebody resumes it' end),
    case when w.is_queue then format('select trunq.resume_queue(%L)', p_queue.name)
      else format('select trunq.resume_subscription(%L, %L)', p_queue.name, p_sub.name) end
  from (select trunq._paused_until(p_sub) as until, coalesce(p_sub.queue_paused_until > trunq.clock(), false) as is_queue) w
  where trunq._is_paused(p_sub, trunq.clock())
$$;
comment on function trunq._wait_for_pause is 'Of explain_wait: whether a subscription is paused.';

create or replace function trunq._wait_for_workers(p_queue trunq.queue, p_sub trunq.subscription)
returns table (reason text, explanation text, hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_now timestamptz := trunq.clock();
  v_leased_at timestamptz;
begin
  if exists (
      select from trunq._newest_reports(p_queue.queue_id, v_now) r
      where r.subscription = p_sub.name and r.last_word is null and r.at >= v_now - interval '30 seconds') then
    return;
  end if;
  -- Programs that lease by SQL tell nothing of themselves.
  execute format('select l.leased_at from trunq_data.%I l where l.subscription_id = $1 order by l.lease_id desc limit 1', p_queue.lease_table)
    into v_leased_at using p_sub.subscription_id;
  if (v_leased_at > v_now - interval '1 minute') is not true then
    reason := 'workers';
    explanation := format('nobody works on subscription "%s"%s', p_sub.name,
      coalesce(': the last lease was at ' || date_trunc('second', v_leased_at)::text, ': nobody has leased anything of it'));
    hint := 'start a worker of it: trunq worker shop:worker';
    return next;
  end if;
end $$;
comment on function trunq._wait_for_workers is 'Of explain_wait: whether no worker tells of itself and nobody leased within a minute.';

create or replace function trunq._wait_for_limit(p_queue trunq.queue, p_sub trunq.subscription)
returns table (reason text, explanation text, hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_newest record;
  v_running bigint;
begin
  if p_sub.max_running is not null then
    v_running := (select coalesce(sum(h.unanswered), 0) from trunq._held_leases(p_queue, p_sub.subscription_id) h);
    if v_running >= p_sub.max_running then
      reason := 'limit';
      explanation := format('subscription "%s" is at its limit: %s run, and at most %s may', p_sub.name, v_running, p_sub.max_running);
      return next;
    end if;
  end if;
  if p_sub.rate is not null then
    execute format('select l.tokens, l.tokens_at from trunq_data.%I l where l.subscription_id = $1 order by l.lease_id desc limit 1', p_queue.lease_table)
      into v_newest using p_sub.subscription_id;
    if trunq._whole_tokens(trunq._tokens(p_sub, v_newest.tokens, v_newest.tokens_at, trunq.clock())) < 1 then
      reason := 'rate';
      explanation := format('subscription "%s" is at the end of its rate: %s messages in %s may go out', p_sub.name, p_sub.rate, p_sub.rate_interval);
      return next;
    end if;
  end if;
end $$;
comment on function trunq._wait_for_limit is 'Of explain_wait: whether a limit of a subscription is reached.';

create or replace function trunq._wait_in_lane(p_queue trunq.queue, p_sub trunq.subscription, p_key text, p_kind text, p_id bigint)
returns table (reason text, explanation text, hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_lane text := case when p_queue.lanes like '%key' then coalesce(p_key, '') when p_queue.lanes like '%kind' then coalesce(p_kind, '') else '' end;
  v_priority smallint;
  v_name text;
  v record;
  v_running bigint;
  v_newest record;
begin
  if p_queue.lanes is null then
    return;
  end if;
  execute format('select g.priority from %s g where g.id = $1 and (g.subscription_id is null or g.subscription_id = $2) order by g.txid desc limit 1',
    (trunq._rows_of(p_queue, p_id, p_id)).query) into v_priority using p_id, p_sub.subscription_id;
  v_name := concat_ws(', ', case when p_queue.lanes <> 'priority' then format('lane "%s"', v_lane) end,
    case when p_queue.lanes like 'priority%' then format('priority %s', v_priority) end);
  select z.paused_until, coalesce(z.max_running, p.max_running) as max_running, coalesce(z.rate, p.rate) as rate into v
  from (select p_sub.subscription_id as id) s
  left join trunq.lane_policy p on p.subscription_id = s.id
  left join trunq.lane z on z.subscription_id = s.id and z.priority = v_priority and z.lane = v_lane collate "C";
  if v.paused_until > trunq.clock() then
    reason := 'paused';
    explanation := format('%s is paused until %s', v_name, case when isfinite(v.paused_until) then v.paused_until::text else 'somebody resumes it' end);
    hint := trunq._resumption_of(p_queue.name, p_sub.name, v_lane, v_priority);
    return next;
    return;
  end if;
  if v.max_running is not null or p_sub.in_order then
    execute format($q$
      select count(*) from trunq._open_ids($1, $2, array(select h.lease_id from trunq._held_leases($1, $2) h), 0, 9223372036854775807, 10000) o
      cross join lateral (select g.* from trunq_log.%I g where trunq._is_row(g.txid, g.id, g.subscription_id, o.txid, o.id, $2) offset 0) g
      where g.priority = $3 and %s = $4 collate "C"
    $q$, p_queue.log_table, trunq._lane_expression(p_queue.lanes)) into v_running using p_queue, p_sub.subscription_id, v_priority, v_lane;
    if v_running >= v.max_running then
      reason := 'limit';
      explanation := format('%s is at its limit: %s run, and at most %s may', v_name, v_running, v.max_running);
      return next;
    elsif p_sub.in_order and v_running > 0 then
      reason := 'order';
      explanation := format('one of %s is handled at a time, and one is', v_name);
      return next;
    end if;
  end if;
  if v.rate is null then
    return;
  end if;
  execute format($q$
    select t.tokens, t.tokens_at from trunq_data.%I t
    where t.subscription_id = $1 and t.priority = $2 and t.lane = $3 collate "C" order by t.seq desc limit 1
  $q$, p_queue.name || '_turn') into v_newest using p_sub.subscription_id, v_priority, v_lane;
  if v_newest.tokens + v.rate * greatest(0, extract(epoch from trunq.clock() - v_newest.tokens_at)) < 1 then
    reason := 'rate';
    explanation := format('%s is at the end of its rate: %s', v_name,
      case when v.rate >= 1 then trim_scale(round(v.rate::numeric, 1)) || ' messages a second may go out'
        else format('one message every %s seconds may go out', trim_scale(round(1 / v.rate::numeric, 1))) end);
    return next;
  end if;
end $$;
comment on function trunq._wait_in_lane is 'Of explain_wait: whether a lane is paused, or a limit of it is reached.';
