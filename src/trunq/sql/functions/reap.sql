-- A lease that ran out with messages unanswered is reaped: those messages go back, the attempt counted (a message that
-- kills its worker does not loop for ever), or die as lease_expired.
--
-- The reaper goes by expiry, from its mark on. No lease with an earlier expiry may be in flight when it reads the clock: so it
-- gets the subscription's lock first, for that moment only. The mark never passes a lease it could not lock. A clock that went
-- back makes leases that end before the mark: so those made since the last look are looked at whatever their expiry.
-- At most 100 leases a transaction: each keeps a lock to its end.

create or replace function trunq.reap(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub record;
  v_look record;
  v_from timestamptz;
  v_mark timestamptz;
  v_newest bigint;
  v_due bigint[];
  v_ended record;
  v_total integer := 0;
begin
  perform trunq._require_read_committed('reap');
  if not pg_try_advisory_xact_lock(trunq._lock_class('reap'), v_queue.queue_id) then
    return 0;  -- another reaps
  end if;
  for v_sub in
    select s.subscription_id, m.at, coalesce(m.last_id, 0) as newest from trunq.subscription s
    left join trunq.mark m on m.queue_id = s.queue_id and m.subscription_id = s.subscription_id and m.duty = 'reap'
    where s.queue_id = v_queue.queue_id and s.mode = 'shared' order by s.subscription_id
  loop
    exit when v_total >= 100;
    v_look := trunq._look(v_queue, v_sub.subscription_id);
    continue when v_look.at is null;  -- somebody leases just now: next time
    v_from := least(coalesce(v_sub.at, 'epoch'), v_look.at);
    v_due := trunq._open_leases(v_queue, v_sub.subscription_id, v_from, v_look.at, v_sub.newest, null, 101 - v_total);
    v_ended := trunq._end_leases(v_queue, v_sub.subscription_id, v_due[1:100 - v_total], v_look.at, v_look.at);
    v_mark := v_from;
    v_newest := v_sub.newest;
    if cardinality(v_due) <= 100 - v_total then
      v_mark := least(v_look.at, v_ended.skipped - interval '1 microsecond');
      v_newest := v_look.newest;
    end if;
    v_total := v_total + v_ended.reaped;
    -- Written seldom, and not at all where nobody leases; a mark too early only costs another look.
    if v_mark < v_sub.at or v_mark > v_from + interval '2 seconds'
        and (v_newest > v_sub.newest or trunq._has_leases_after(v_queue, v_sub.subscription_id, v_from)) then
      insert into trunq.mark (queue_id, subscription_id, duty, at, last_id)
      values (v_queue.queue_id, v_sub.subscription_id, 'reap', v_mark, v_newest)
      on conflict (queue_id, subscription_id, duty) do update set last_id = excluded.last_id,
        -- Set back meanwhile, by extend: it stays so.
        at = case when mark.at is distinct from v_sub.at then least(mark.at, excluded.at) else excluded.at end;
    end if;
  end loop;
  return v_total;
end $$;
comment on function trunq.reap(text) is
  'Ends leases whose time ran out, at most 100 a call.
Returns: how many.
Raises: TQ001, TQ007.
Locks: each lease it ends; a subscription for the moment in which it reads the clock.';

create or replace function trunq.reclaim(p_queue text, p_subscription text, p_worker text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_now timestamptz := trunq.clock();
  v_mark record;
  v_ended integer;
begin
  perform trunq._require_read_committed('reclaim');
  if coalesce(p_worker, '') = '' then
    perform trunq._fail('TQ005', 'a worker reclaims under its name, and gave none');
  end if;
  v_sub := trunq._subscription(p_queue, p_subscription, 'shared');
  v_mark := trunq._reaped(v_queue, v_sub.subscription_id);
  select e.reaped into v_ended from trunq._end_leases(v_queue, v_sub.subscription_id,
    trunq._open_leases(v_queue, v_sub.subscription_id, v_mark.until, 'infinity', v_mark.newest, p_worker, 1000),
    'infinity', v_now) e;
  return v_ended;
end $$;
comment on function trunq.reclaim(text, text, text) is
  'Ends all open leases of a worker by that name (up to 1000), for one that starts again: its messages go back at once, the attempt counted; answers of its former self are refused.
Returns: how many leases.
Raises: TQ001, TQ002, TQ005, TQ007, TQ011.
Locks: each lease it ends.';

create or replace function trunq._look(p_queue trunq.queue, p_subscription_id integer, out at timestamptz, out newest bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if pg_try_advisory_xact_lock(trunq._lock_class('subscription'), p_subscription_id) then
    at := trunq.clock();
    newest := (trunq._position(p_queue, p_subscription_id)).lease_id;
  end if;
  -- Gives the lock back at once, whatever happens.
  raise exception using errcode = 'TQ000';
exception when sqlstate 'TQ000' then
end $$;
comment on function trunq._look(trunq.queue, integer) is
  'The time, and the newest lease, when no lease of the subscription was in flight; null when one was.';

create or replace function trunq._reaped(p_queue trunq.queue, p_subscription_id integer, out until timestamptz, out newest bigint)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(max(m.at), 'epoch'), coalesce(max(m.last_id), 0) from trunq.mark m
  where m.queue_id = p_queue.queue_id and m.subscription_id = p_subscription_id and m.duty = 'reap'
$$;
comment on function trunq._reaped(trunq.queue, integer) is
  'How far the reaper looked: what expires later, or is newer, may still be held.';

create or replace function trunq._open_leases(
  p_queue trunq.queue, p_subscription_id integer, p_from timestamptz, p_to timestamptz, p_newest bigint, p_worker text, p_limit integer
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v_leases bigint[];
begin
  execute format($q$
    select array_agg(o.lease_id order by o.expires_at, o.lease_id) from (
      select l.lease_id, l.expires_at from (
        (select l.* from trunq_data.%1$I l
         where l.subscription_id = $1 and l.lease_id > $4 and l.expires_at <= least($2, $3))
        union all
        (select l.* from trunq_data.%1$I l
         where l.subscription_id = $1 and l.expires_at > $2 and l.expires_at <= $3 order by l.expires_at)) l
      where l.reaped_at is null and ($5 is null or l.worker = $5)
        and l.size > coalesce((
          select sum(r.size) from trunq_data.%2$I r where r.lease_id = l.lease_id and r.subscription_id = $1), 0)
      limit $6) o
  $q$, p_queue.lease_table, p_queue.receipt_table)
  into v_leases using p_subscription_id, p_from, p_to, p_newest, p_worker, p_limit;
  return coalesce(v_leases, '{}');
end $$;
comment on function trunq._open_leases(trunq.queue, integer, timestamptz, timestamptz, bigint, text, integer) is
  'Leases that expire in (from, to], or are newer than p_newest and expire before, and hold messages without an answer, the first to expire first.';

create or replace function trunq._end_leases(
  p_queue trunq.queue, p_subscription_id integer, p_leases bigint[], p_until timestamptz, p_now timestamptz,
  out reaped integer, out skipped timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_lease_id bigint;
  v_lease record;
  v_ids bigint[];
begin
  reaped := 0;
  foreach v_lease_id in array coalesce(p_leases, '{}') loop
    if not pg_try_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(p_queue.queue_id, v_lease_id)) then
      -- An answer is on its way (or was prepared): come back for it.
      v_lease := trunq._lease(p_queue, p_subscription_id, v_lease_id);
      skipped := least(skipped, v_lease.expires_at);
      continue;
    end if;
    -- Under the lock, by later statements: it may have been answered or extended meanwhile.
    v_lease := trunq._lease(p_queue, p_subscription_id, v_lease_id);
    if v_lease.reaped_at is not null or v_lease.expires_at > p_until then
      continue;
    end if;
    v_ids := trunq._unanswered(p_queue, p_subscription_id, v_lease_id, v_lease.ids);
    if cardinality(v_ids) = 0 then
      continue;
    end if;
    execute format($q$
      with ended as (update trunq_data.%I set reaped_at = $4 where subscription_id = $2 and lease_id = $1 returning segment)
      insert into trunq_data.%I (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
      select $1, -1, e.segment, $2, 'x', cardinality($3), $3, $4 from ended e
    $q$, p_queue.lease_table, p_queue.receipt_table) using v_lease_id, p_subscription_id, v_ids, p_now;
    execute format('select trunq_queue.%I($1, $2, $3, $4, $5, ''x'', $6, null, $7)', p_queue.name || '_give_back')
      using p_subscription_id, v_lease.worker, v_ids, v_lease.ids, v_lease.txids,
        array_fill(format('lease %s of worker %s expired', v_lease_id, v_lease.worker), array[cardinality(v_ids)]), p_now;
    reaped := reaped + 1;
  end loop;
end $$;
comment on function trunq._end_leases(trunq.queue, integer, bigint[], timestamptz, timestamptz) is 'Ends leases: those whose time ran out before p_until, if messages of them are unanswered.
Returns: how many it ended, and the earliest expiry among those whose lock another held.';

create or replace function trunq._unanswered(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[];
begin
  execute format($q$
    select array(
      select u.id from unnest($1) with ordinality u(id, at)
      where u.id not in (
        select unnest(r.ids) from trunq_data.%I r where r.lease_id = $2 and r.subscription_id = $3)
      order by u.at)
  $q$, p_queue.receipt_table) into v_ids using p_ids, p_lease_id, p_subscription_id;
  return v_ids;
end $$;
comment on function trunq._unanswered(trunq.queue, integer, bigint, bigint[]) is 'The messages of a lease that have no receipt, in their order.';

create or replace function trunq._has_leases_after(p_queue trunq.queue, p_subscription_id integer, p_from timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_found boolean;
begin
  execute format('select exists (select from trunq_data.%I where subscription_id = $1 and expires_at > $2)', p_queue.lease_table)
    into v_found using p_subscription_id, p_from;
  return v_found;
end $$;
comment on function trunq._has_leases_after(trunq.queue, integer, timestamptz) is 'Whether any lease of the subscription expires after a time.';
