-- How many messages a lease may hand out; the rules are in functions/operate/pause.sql and functions/work/limit.sql.

create or replace function trunq_queue._specimen_allowance(
  p_subscription_id integer, p_max_messages integer, p_now timestamptz,
  out allowed integer, out tokens double precision, out tokens_at timestamptz, out open_leases bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set trunq.plan = kept
as $$
declare
  v_sub trunq.subscription;
  v_running bigint;
begin
  select * into v_sub from trunq.subscription s where s.subscription_id = p_subscription_id;
  allowed := case when trunq._is_paused(v_sub, p_now) then 0 else p_max_messages end;
  if allowed = 0 or num_nonnulls(v_sub.rate, v_sub.max_running) = 0 then
    return;
  end if;
  select l.tokens, l.tokens_at, l.open_leases into tokens, tokens_at, open_leases
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id order by l.lease_id desc limit 1;
  if v_sub.rate is not null then
    tokens := trunq._tokens(v_sub, tokens, tokens_at, p_now);
    tokens_at := p_now;
    allowed := least(allowed, trunq._whole_tokens(tokens));
  else
    tokens := null; tokens_at := null;
  end if;
  if v_sub.max_running is not null then
    -- Null: the newest lease was made when there was no limit, or is a position that rotation carried.
    select coalesce(array_agg(o.lease_id), '{}'), coalesce(sum(o.size), 0) into open_leases, v_running
    from (
      select l.lease_id, l.size - coalesce(r.size, 0) size
      from unnest(coalesce(open_leases, trunq._unanswered_leases(p_subscription_id))) e(lease_id)
      cross join lateral (
        select l.lease_id, l.size, l.segment from trunq_data._specimen_lease l
        where l.subscription_id = p_subscription_id and l.lease_id = e.lease_id and l.reaped_at is null offset 0) l
      cross join lateral (
        select sum(r.size) size from trunq_data._specimen_receipt r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = p_subscription_id) r) o
    where o.size > 0;
    allowed := greatest(0, least(allowed, v_sub.max_running - v_running));
  else
    open_leases := null;
  end if;
end $$;
comment on function trunq_queue._specimen_allowance is
  'How many messages a subscription that is limited may hand out now, at most p_max_messages; the tokens it has, and the leases that hold messages, for the next lease''s row. The caller holds the subscription''s lock.';
