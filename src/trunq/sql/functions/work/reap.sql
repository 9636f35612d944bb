-- A lease that ran out with messages unanswered is reaped: those messages go back, the attempt counted, or die as
-- lease_expired. A worker that died takes all it held with it, and nobody but the last line of its core dump knows which message
-- killed it. So that only that one dies:
--   once      the messages come back scattered over some seconds, not as the same group
--   twice     a message is a suspect: it comes back in line, one a second, and is leased alone
--   blame     a lease that ran out counts for its suspect; for the others beside it, and for a group, it is no cause of death
-- docs/decisions has the figures. A message that is published, leased and acked pays nothing for it.
--
-- The reaper goes by expiry, from its mark on. No lease with an earlier expiry may be in flight when it reads the clock: so it
-- gets the subscription's lock first, for that moment only. The mark never passes a lease it could not lock. A clock that went
-- back makes leases that end before the mark: so those made since the last look are looked at whatever their expiry.
-- At most 100 leases a transaction, since each keeps a lock to its end, and no further one after 1,000 messages. A lease that
-- cannot be ended (a trigger of the user's on the log, say) is put off for a minute and leaves the others their turn.

create or replace function trunq.reap(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub record;
  v_look record;
  v_from timestamptz;
  v_mark timestamptz;
  v_newest bigint;
  v_is_busy boolean;
  v_due bigint[];
  v_ended record;
  v_total integer := 0;
  v_messages integer := 0;
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
    exit when v_total >= 100 or v_messages >= trunq._limit('reaped_messages');
    v_look := trunq._reap_horizon(v_queue, v_sub.subscription_id);
    continue when v_look.at is null;  -- somebody leases just now: next time
    v_from := least(coalesce(v_sub.at, 'epoch'), v_look.at);
    v_is_busy := v_look.newest > v_sub.newest or trunq._has_leases_after(v_queue, v_sub.subscription_id, v_from);
    -- Of many queues most are idle: this asks half of what the look below does.
    continue when not v_is_busy and v_from = coalesce(v_sub.at, 'epoch');
    v_due := trunq._open_leases(v_queue, v_sub.subscription_id, v_from, v_look.at, v_sub.newest, null, 101 - v_total);
    v_ended := trunq._end_leases(v_queue, v_sub.subscription_id, v_due[1:100 - v_total], v_look.at, v_look.at,
      trunq._limit('reaped_messages') - v_messages);
    v_mark := v_from;
    v_newest := v_sub.newest;
    if cardinality(v_due) <= 100 - v_total and not v_ended.is_cut then
      v_mark := least(v_look.at, v_ended.skipped - interval '1 microsecond');
      v_newest := v_look.newest;
    end if;
    v_total := v_total + v_ended.reaped;
    v_messages := v_messages + v_ended.messages;
    -- Written seldom, and not at all where nobody leases; a mark too early only costs another look.
    if v_mark < v_sub.at or v_mark > v_from + interval '2 seconds' and v_is_busy then
      perform trunq._note_reaped(v_queue.queue_id, v_sub.subscription_id, v_sub.at, v_mark, v_newest);
    end if;
  end loop;
  return v_total;
end $$;
comment on function trunq.reap is
  'Ends leases whose time ran out, at most 100 a call, and no further one after 1,000 messages: their messages go back, or die as lease_expired. Warns of a lease that it could not end.
Returns: how many.
Raises: TQ001, TQ007.
Locks: each lease it ends, and the mark of its subscription; a subscription for the moment in which it reads the clock. It waits for none of them.';

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
  v_mark := trunq._reap_mark(v_queue, v_sub.subscription_id);
  select e.reaped into v_ended from trunq._end_leases(v_queue, v_sub.subscription_id,
    trunq._open_leases(v_queue, v_sub.subscription_id, v_mark.until, 'infinity', v_mark.newest, p_worker, 1000),
    'infinity', v_now, null) e;
  return v_ended;
end $$;
comment on function trunq.reclaim is
  'Ends all open leases of a worker by that name (up to 1000), for one that starts again: its messages go back as after an expiry, without waiting for it; the attempt counts, and answers of its former self are refused.
Returns: how many leases.
Raises: TQ001, TQ002, TQ005, TQ007, TQ011.
Locks: each lease it ends.';

create or replace function trunq._reap_horizon(p_queue trunq.queue, p_subscription_id integer, out at timestamptz, out newest bigint)
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
comment on function trunq._reap_horizon is
  'The time, and the newest lease, when no lease of the subscription was in flight; null when one was.';

create or replace function trunq._reap_mark(p_queue trunq.queue, p_subscription_id integer, out until timestamptz, out newest bigint)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(max(m.at), 'epoch'), coalesce(max(m.last_id), 0) from trunq.mark m
  where m.queue_id = p_queue.queue_id and m.subscription_id = p_subscription_id and m.duty = 'reap'
$$;
comment on function trunq._reap_mark is
  'How far the reaper looked: what expires later, or is newer, may still be held.';

create or replace function trunq._note_reaped(
  p_queue_id integer, p_subscription_id integer, p_before timestamptz, p_mark timestamptz, p_newest bigint
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms' as $$
begin
  insert into trunq.mark (queue_id, subscription_id, duty, at, last_id)
  values (p_queue_id, p_subscription_id, 'reap', p_mark, p_newest)
  on conflict (queue_id, subscription_id, duty) do update set last_id = excluded.last_id,
    -- Set back meanwhile, by extend: it stays so.
    at = case when mark.at is distinct from p_before then least(mark.at, excluded.at) else excluded.at end;
exception when lock_not_available then
  null;  -- an open transaction made a lease shorter, and may wait for a lease that ends here
end $$;
comment on function trunq._note_reaped is
  'Moves the mark of the reaper, unless somebody holds it: a mark too early only costs another look.';

create or replace function trunq._open_leases(
  p_queue trunq.queue, p_subscription_id integer, p_from timestamptz, p_to timestamptz, p_newest bigint, p_worker text, p_limit integer
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
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
comment on function trunq._open_leases is
  'Leases that expire in (from, to], or are newer than p_newest and expire before, and hold messages without an answer, the first to expire first.';

create or replace function trunq._end_leases(
  p_queue trunq.queue, p_subscription_id integer, p_leases bigint[], p_until timestamptz, p_now timestamptz, p_messages integer,
  out reaped integer, out messages integer, out skipped timestamptz, out is_cut boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_lease_id bigint;
  v_count integer;
begin
  reaped := 0; messages := 0; is_cut := false;
  foreach v_lease_id in array coalesce(p_leases, '{}') loop
    if messages >= p_messages then
      is_cut := true;
      return;
    end if;
    begin
      v_count := trunq._end_lease(p_queue, p_subscription_id, v_lease_id, p_until, p_now);
      if v_count is null then
        -- An answer is on its way (or was prepared): come back for it.
        skipped := least(skipped, (trunq._lease(p_queue, p_subscription_id, v_lease_id)).expires_at);
      elsif v_count > 0 then
        reaped := reaped + 1;
        messages := messages + v_count;
      end if;
    exception
      when serialization_failure or deadlock_detected or lock_not_available or insufficient_resources then
        raise;  -- of the whole call: again
      when others then
        raise warning 'trunq: lease % of queue % cannot be ended, tried again in a minute: %', v_lease_id, p_queue.name, sqlerrm;
        execute format('update trunq_data.%I set expires_at = $3 where subscription_id = $1 and lease_id = $2', p_queue.lease_table)
          using p_subscription_id, v_lease_id, p_now + interval '1 minute';
    end;
  end loop;
end $$;
comment on function trunq._end_leases is 'Ends leases: those whose time ran out before p_until, if messages of them are unanswered; none after p_messages messages (is_cut).
Returns: how many it ended, of how many messages, and the earliest expiry among those whose lock another held.';

create or replace function trunq._end_lease(
  p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_until timestamptz, p_now timestamptz
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_lease record;
  v_ids bigint[];
  v_blame record;
begin
  if not pg_try_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(p_queue.queue_id, p_lease_id)) then
    return null;
  end if;
  -- Under the lock, by later statements: it may have been answered or extended meanwhile.
  v_lease := trunq._lease(p_queue, p_subscription_id, p_lease_id);
  if v_lease.reaped_at is not null or v_lease.expires_at > p_until then
    return 0;
  end if;
  v_ids := trunq._unanswered_messages(p_queue, p_subscription_id, p_lease_id, v_lease.ids);
  if cardinality(v_ids) = 0 then
    return 0;
  end if;
  v_blame := trunq._blame(p_queue, p_subscription_id, p_lease_id, cardinality(v_ids));
  execute format($q$
    with ended as (update trunq_data.%I set reaped_at = $4 where subscription_id = $2 and lease_id = $1 returning segment)
    insert into trunq_data.%I (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at)
    select $1, -1, e.segment, $2, 'x', cardinality($3), $3, $4 from ended e
  $q$, p_queue.lease_table, p_queue.receipt_table) using p_lease_id, p_subscription_id, v_ids, p_now;
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, ''x'', $6, null, $7, $8, $9)', p_queue.name || '_give_back')
    using p_subscription_id, v_lease.worker, v_ids, v_lease.ids, v_lease.txids,
      array_fill(format('lease %s of worker %s expired', p_lease_id, v_lease.worker), array[cardinality(v_ids)]), p_now,
      v_blame.blame, v_blame.scatter;
  if exists (select from trunq.subscription s where s.subscription_id = p_subscription_id and s.max_running is not null) then
    perform trunq._ring_bell(p_queue.queue_id);
  end if;
  if p_until < 'infinity' then
    perform trunq._note_expiry(p_queue.queue_id, p_subscription_id, v_lease.worker, cardinality(v_ids), p_now);
  end if;
  return cardinality(v_ids);
end $$;
comment on function trunq._end_lease is 'Ends one lease, if its time ran out before p_until and messages of it are unanswered.
Returns: how many messages; null when another holds its lock.';

create or replace function trunq._note_expiry(p_queue_id integer, p_subscription_id integer, p_worker text, p_messages integer, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  -- One at a time reaps a queue: nobody waits for these rows.
  delete from trunq.expiry e where e.queue_id = p_queue_id and e.expired_at not between p_now - interval '1 hour' and p_now + interval '1 hour';
  insert into trunq.expiry as e (queue_id, subscription_id, worker, leases, messages, expired_at)
  values (p_queue_id, p_subscription_id, coalesce(p_worker, ''), 1, p_messages, p_now)
  on conflict (subscription_id, worker) do update set leases = e.leases + 1, messages = e.messages + excluded.messages, expired_at = excluded.expired_at;
end $$;
comment on function trunq._note_expiry is 'Notes that a lease of a worker ran out, and forgets those of more than an hour ago.';

-- Who may have killed the worker? It held other leases too, and they end one after the other; their expiries lie within a lease
-- time, since it extended each of them thrice in that time. Looked for among 20,000 leases on either side: a busy fleet answers many
-- in that time. Whoever is not found there costs an innocent an attempt, no more.
create or replace function trunq._blame(
  p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_count integer, out blame text, out scatter interval
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_look constant integer := 20000;
  v_lease_time interval := (select s.lease_time from trunq.subscription s where s.subscription_id = p_subscription_id);
  v_is_suspect boolean;
  v_siblings integer;
  v_suspects integer;
  v_younger integer;
begin
  execute format($q$
    with this as materialized (
      select l.* from trunq_data.%1$I l where l.subscription_id = $1 and l.lease_id = $2),
    near as (
      (select l.* from this t cross join lateral (
        select n.* from trunq_data.%1$I n
        where n.subscription_id = $1 and n.expires_at >= t.expires_at and n.expires_at <= t.expires_at + $3
        order by n.expires_at limit $4) l)
      union all
      (select l.* from this t cross join lateral (
        select n.* from trunq_data.%1$I n
        where n.subscription_id = $1 and n.expires_at < t.expires_at and n.expires_at >= t.expires_at - $3
        order by n.expires_at desc limit $4) l)),
    sibling as (
      select n.lease_id, coalesce(n.is_suspect, false) is_suspect from near n join this t on n.worker = t.worker
      where n.lease_id <> t.lease_id and (n.reaped_at is null or n.reaped_at > t.leased_at)
        and not n.ids && t.ids  -- the same message: one was over before the other began, whatever the clock said
        and n.size > coalesce((
          select sum(r.size) from trunq_data.%2$I r
          where r.lease_id = n.lease_id and r.subscription_id = $1 and r.outcome <> 'x'), 0))
    select coalesce(t.is_suspect, false), s.siblings, s.suspects, s.younger
    from this t cross join (
      select count(*) siblings, count(*) filter (where is_suspect) suspects, count(*) filter (where is_suspect and lease_id > $2) younger
      from sibling) s
  $q$, p_queue.lease_table, p_queue.receipt_table) into v_is_suspect, v_siblings, v_suspects, v_younger
  using p_subscription_id, p_lease_id, v_lease_time, c_look;
  blame := case
    -- Suspects come one after the other: the newest was probably the last straw. But a killer may strike while its worker's next
    -- lease is on its way, and a new killer is no suspect yet: in company nobody dies of it at once.
    when v_is_suspect then case when v_younger > 0 then 'spared' when v_siblings > 0 then 'likely' else 'sole' end
    when v_suspects > 0 then 'spared'
    when v_siblings + p_count > 1 then 'shared'
    else 'sole' end;
  -- Nothing to be kept apart from, nothing to wait for.
  scatter := case when v_siblings + p_count > 1
    then least(interval '10 seconds', v_lease_time, (v_siblings + p_count) * interval '1 second') else '0' end;
end $$;
comment on function trunq._blame is
  'For whom the end of a lease by expiry counts. sole: its messages, and they may die of it. shared: an attempt, but no death, as others expired too. likely: an attempt, and they may die of it when more leases in a row ran out than it has attempts. spared: no attempt, as a suspect was beside them. A message with one attempt dies of it all the same.
Returns: that, and over how long its messages are to be scattered.';

create or replace function trunq._suspect_delay(p_subscription_id integer, p_now timestamptz, p_place bigint) returns interval
language sql volatile set search_path = pg_catalog, pg_temp as $$
  -- About one a second behind the last in line; when the line is ten minutes long, somewhere in it.
  select case when w.wait > interval '10 minutes' then random() * interval '10 minutes' else w.wait end
  from (
    select greatest(coalesce(max(d.due_at), p_now) - p_now, '0') + (p_place - 0.5 + random()) * interval '1 second' wait
    from (
      select d.due_at from trunq.delayed d
      -- Nobody waits behind one that no worker has a handler for, or that waits by a policy of its own.
      where d.subscription_id = p_subscription_id and d.expiries > 1 and (d.errors -> -1 ? 'times') is not true
        and (d.options ?| '{backoff,backoff_base,backoff_cap,jitter}') is not true and d.aside is null
      order by d.due_at desc limit 1) d) w
$$;
comment on function trunq._suspect_delay is 'How long the next suspect but p_place - 1 waits.';

create or replace function trunq._unanswered_messages(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_ids bigint[]) returns bigint[]
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
comment on function trunq._unanswered_messages is 'The messages of a lease that have no receipt, in their order.';

create or replace function trunq._has_leases_after(p_queue trunq.queue, p_subscription_id integer, p_from timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_found boolean;
begin
  execute format('select exists (select from trunq_data.%I where subscription_id = $1 and expires_at > $2)', p_queue.lease_table)
    into v_found using p_subscription_id, p_from;
  return v_found;
end $$;
comment on function trunq._has_leases_after is 'Whether any lease of the subscription expires after a time.';
