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
