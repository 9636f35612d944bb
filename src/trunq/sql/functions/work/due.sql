-- What fell due, before what waits. A message that was delayed, or is retried, comes into the log when it is due: at its end, behind all
-- that waits. A subscription with due_first takes such rows ahead of its position, as a lease by id does (ahead.sql):
--   trunq.due        lists them, a row for each such subscription. promote writes it in the transaction that logs them
--   trunq.ahead.due  says how far in that list a lease has come. The newest of these is the position in it: no lease updates
--                    or deletes what it has taken, and none walks over it again, however old the oldest transaction is
-- Numbers of the list are drawn under a lock that is held to the commit ('due'). So they are committed in their order, and none can appear
-- below a position. promote has always waited there for another one of its queue: for the row of its mark.
--
-- The list decides about nothing but order. A lease looks at each row under the lock of the subscription: whether it still waits, was
-- not taken, passes the filter, is not over. What is not to be had, it takes off the list and leaves to the position, which comes to every row.
-- So a list that was lost, or tells too much, neither loses nor doubles a message.
--
-- Who has no such subscription pays nothing: promote asks, and a lease knows it by the row of its subscription, which it reads anyway.

create or replace function trunq._enter_due(p_queue trunq.queue) returns text
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  if p_queue.lanes is not null or not exists (
      select from trunq.subscription s where s.queue_id = p_queue.queue_id and s.due_first) then
    return '';
  end if;
  perform pg_advisory_xact_lock(trunq._lock_class('due'), p_queue.queue_id);
  return $q$
      listed as (
        insert into trunq.due (queue_id, subscription_id, id, txid)
        select $1, s.subscription_id, g.id, pg_current_xact_id()
        from gone g join trunq.subscription s on s.queue_id = $1 and s.due_first
          and (s.subscription_id = g.subscription_id or g.subscription_id is null)
        cross join lateral trunq._read_filter(s.filter) f
        where (g.subscription_id is not null or s.filter is null or trunq._passes(
            f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq._sifted(g.headers, g.extra)))
          and ((g.options->>'expires_at')::timestamptz <= $3) is not true
        order by g.at, g.id),
  $q$;
end $$;
comment on function trunq._enter_due is
  'The entry of the WITH list by which trunq.promote lists what fell due, for subscriptions that hand it out first; empty where none does.
Locks: the list, to the end of the transaction: numbers are committed in their order.';

create or replace function trunq._check_due_first(p_due_first boolean, p_queue_id integer, p_subscription text, p_mode text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue_id);
begin
  if p_due_first and p_mode = 'exclusive' then
    perform trunq._fail('TQ005', format('subscription "%s" is exclusive: its batches hand out everything in the order in which it was committed', p_subscription),
      'give due_first to a shared subscription, whose workers take message by message');
  elsif p_due_first and v_queue.lanes is not null then
    perform trunq._fail('TQ005', format('queue "%s" has lanes, which say what comes next: subscription "%s" cannot hand out first what fell due', v_queue.name, p_subscription),
      'publish what is to come first with another priority or key, or to a queue without lanes');
  elsif p_due_first and exists (
      select from trunq.subscription s where s.queue_id = p_queue_id and s.name = p_subscription and s.has_asks) then
    perform trunq._fail('TQ005', format('leases of subscription "%s" of queue "%s" ask for parts of it: it cannot hand out first what fell due', p_subscription, v_queue.name),
      'give each part a subscription with a filter (trunq.subscribe, p_filter), and due_first to those');
  end if;
end $$;
comment on function trunq._check_due_first is
  'Refuses (TQ005) due_first for a stream, in a queue with lanes, and where leases ask for parts.';

create or replace function trunq._require_none_due_first(p_queue trunq.queue) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_subscription text := (
    select min(s.name) from trunq.subscription s where s.queue_id = p_queue.queue_id and s.due_first);
begin
  if v_subscription is not null then
    perform trunq._fail('TQ005', format('subscription "%s" of queue "%s" hands out first what fell due, and lanes say what comes next', v_subscription, p_queue.name),
      format('take it back first: select trunq.subscribe(%L, %L, p_due_first => false)', p_queue.name, v_subscription));
  end if;
end $$;
comment on function trunq._require_none_due_first is 'Refuses (TQ005) lanes for a queue with a subscription that hands out first what fell due.';

create or replace function trunq._forget_due(p_queue trunq.queue) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_id integer := 0;
  v_to bigint;
  v_gone integer;
  v_count integer := 0;
begin
  -- From one to the next by the index, past however many messages of each.
  loop
    select d.subscription_id into v_id from trunq.due d
    where d.queue_id = p_queue.queue_id and d.subscription_id > v_id order by d.queue_id, d.subscription_id limit 1;
    exit when not found;
    -- All of one that has ended, or takes what comes.
    v_to := case when exists (select from trunq.subscription s where s.subscription_id = v_id and s.due_first) then
      (select max(a.due) from trunq.ahead a where a.subscription_id = v_id and a.due is not null) else 9223372036854775807 end;
    delete from trunq.due d using (
      select o.number from trunq.due o where o.subscription_id = v_id and o.number <= v_to
      order by o.subscription_id, o.number limit 1000 for update skip locked) o
    where d.subscription_id = v_id and d.number = o.number;
    get diagnostics v_gone = row_count;
    v_count := v_count + v_gone;
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_due is
  'Takes off the list of what fell due what was handed out, and all of who does not hand it out first any more; at most 1,000 of each subscription.';
