-- A message that nobody needs any more is cancelled, wherever it is. What is delayed is dead at once, reason cancelled. What waits or
-- runs is noted in trunq.cancelled, and the flag has_cancelled of its subscription makes others look there:
--   lease           does not hand it out, but answers it in its own transaction (trunq_queue.<queue>_bury, as what expired)
--   retry, release, time_out, the end of a lease     it is dead, and does not come back (trunq_queue.<queue>_give_back)
--   extend          tells the worker, which stops the handler; a NOTIFY has it ask at once
--   ack             looks at nothing: a handler that ends well has won
-- So a receipt decides, and no message is both done and cancelled. What is noted is forgotten (trunq.forget) when its message is over.
--
-- Who cancels shares the row of the subscription, against trunq.forget, which takes the flag away: it goes by what it finds under
-- the lock. A retry whose transaction had looked before the note was there is found by trunq.forget, or by the next lease.

create or replace function trunq.cancel(p_queue text, p_ids bigint[], p_subscription text default null)
returns table (subscription text, id bigint, state text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_ids bigint[] := array(select distinct u.id from unnest(p_ids) u(id) order by u.id);
  v_over constant text[] := array(select s.state from trunq._states() s where not s.is_open);
  v_open bigint[] := '{}';
begin
  perform trunq._check_cancel(p_queue, p_subscription, p_ids);
  for subscription, id, state in select c.* from trunq._cancel_found(v_queue, p_subscription, v_ids) c loop
    if state <> all (v_over) then
      v_open := v_open || id;
    end if;
    return next;
  end loop;
  perform trunq._audit('cancel', p_queue, jsonb_build_object('ids', v_ids[:20], 'subscription', p_subscription), (select count(distinct u.id) from unnest(v_open) u(id)));
end $$;
comment on function trunq.cancel is
  'Cancels messages, up to 10,000, for one shared subscription or (null) for all. A scheduled, retrying or parked message is dead at once, with the reason cancelled; a ready one as soon as a lease reaches it. The worker of a leased one is told: if its handler succeeds all the same, the message is done, else dead. trunq.requeue hands dead ones out again. Streams read what was published, cancelled or not.
Returns: one row for each message and subscription, with the state it was in; done, outdated, dead, replaced and purged are final, and stay. subscription null: the message is scheduled, and no shared subscription reads it. Of one that was forwarded (trunq.forward) also the rows of the queue where it is, subscription with that queue before it: "work/default".
Raises: TQ001, TQ002, TQ005, TQ007, TQ011; TQ013 when one of them does not exist: then none is cancelled.
Locks: the delayed messages that it deletes; against unsubscribe, the subscriptions.';

create or replace function trunq._cancel_found(p_queue trunq.queue, p_subscription text, p_ids bigint[])
returns table (subscription text, id bigint, state text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_found bigint[] := '{}';
begin
  perform trunq._require_read_committed('cancel');
  for subscription, id, state in select c.* from trunq._cancel(p_queue, p_subscription, p_ids) c loop
    v_found := v_found || id;
    return next;
  end loop;
  -- By a later statement: while this transaction has the subscriptions, nobody forwards from here.
  for subscription, id, state in select c.* from trunq._cancel_forwarded(p_queue, p_subscription, p_ids) c loop
    v_found := v_found || id;
    return next;
  end loop;
  perform trunq._check_found(p_queue.name, p_subscription, array(select unnest(p_ids) except select unnest(v_found)));
end $$;
comment on function trunq._cancel_found is 'Cancels messages, here and where they were forwarded to; TQ013 when one of them is nowhere. Returns: as cancel.';

create or replace function trunq._cancel(p_queue trunq.queue, p_subscription text, p_ids bigint[])
returns table (subscription text, id bigint, state text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
  v_sub trunq.subscription;
  v_scheduled bigint[] := '{}';
  v_over bigint[];
  v_leased bigint[] := '{}';
  v_parked bigint[];
  v_aside bigint[];
begin
  perform trunq._note_cancel(p_queue, p_subscription, p_ids, v_now);
  -- By later statements than the notes: whoever did not see them is seen here, or has to come back.
  if p_subscription is null then
    for subscription, id, state in select c.* from trunq._cancel_scheduled(p_queue.queue_id, p_ids, v_now) c loop
      v_scheduled := v_scheduled || id;
      return next;
    end loop;
  end if;
  perform trunq._free_keys(p_queue, v_scheduled);
  for v_sub in select s.* from trunq._cancelling(p_queue.queue_id, p_subscription) s loop
    subscription := v_sub.name;
    v_over := v_scheduled;
    v_parked := trunq._parked_ids(v_sub, p_ids);
    v_aside := trunq._aside_ids(v_sub, p_ids);
    foreach id in array trunq._cancel_retrying(p_queue, v_sub, p_ids, v_now) loop
      v_over := v_over || id;
      state := case when id = any (v_parked) then 'parked' when id = any (v_aside) then 'ready' else 'retrying' end;
      return next;
    end loop;
    for id, state in
      select m.id, m.state from trunq._message(v_sub, p_queue, array(select unnest(p_ids) except select unnest(v_over)), true, false) m order by m.id
    loop
      if state = 'leased' then
        v_leased := v_leased || id;
      elsif state not in ('ready', 'scheduled') then
        v_over := v_over || id;
      end if;
      return next;
    end loop;
    delete from trunq.cancelled c where c.subscription_id = v_sub.subscription_id and c.id = any (v_over);
  end loop;
  perform trunq._tell_cancelled(p_queue.queue_id, v_leased);
end $$;
comment on function trunq._cancel is 'Cancels messages, also those that are nowhere. Returns: as cancel, one row for each that is somewhere.';

create or replace function trunq._check_cancel(p_queue text, p_subscription text, p_ids bigint[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_ids is null or array_position(array(select unnest(p_ids)), null) is not null then
    perform trunq._fail('TQ005', 'cancel names messages by id, not null', format('select * from trunq.cancel(''%s'', array[42])', p_queue));
  elsif cardinality(p_ids) > trunq._limit('cancelled_messages') then
    perform trunq._fail('TQ005', format('cancel takes up to %s messages, not %s', trunq._limit('cancelled_messages'), cardinality(p_ids)),
      'cancel them in parts');
  end if;
  if p_subscription is not null then
    perform trunq._subscription(p_queue, p_subscription, 'shared');
  end if;
end $$;
comment on function trunq._check_cancel is 'Refuses (TQ002, TQ005, TQ011) what cannot be cancelled.';

create or replace function trunq._cancelling(p_queue_id integer, p_subscription text) returns setof trunq.subscription
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s from trunq.subscription s
  where s.queue_id = p_queue_id and s.mode = 'shared' and (p_subscription is null or s.name = p_subscription) order by s.subscription_id
$$;
comment on function trunq._cancelling is 'The subscriptions for which messages are cancelled: one by name, or (null) all shared ones.';

create or replace function trunq._note_cancel(p_queue trunq.queue, p_subscription text, p_ids bigint[], p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription;
begin
  for v_sub in select s.* from trunq._cancelling(p_queue.queue_id, p_subscription) s loop
    perform from trunq.subscription s where s.subscription_id = v_sub.subscription_id for key share;
    update trunq.subscription s set has_cancelled = true where s.subscription_id = v_sub.subscription_id and not s.has_cancelled;
    insert into trunq.cancelled (queue_id, subscription_id, id, cancelled_at, look_at)
    select p_queue.queue_id, v_sub.subscription_id, u.id, p_now, p_now from unnest(p_ids) u(id) order by u.id
    on conflict (subscription_id, id) do nothing;
  end loop;
end $$;
comment on function trunq._note_cancel is 'Notes messages as cancelled, wherever they are.';

create or replace function trunq._cancel_scheduled(p_queue_id integer, p_ids bigint[], p_now timestamptz)
returns table (subscription text, id bigint, state text)
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  with gone as (
    delete from trunq.delayed d where d.queue_id = p_queue_id and d.subscription_id is null and d.id = any (p_ids)
    returning d.*),
  died as (
    insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, payload, body, headers, errors, extra, options)
    select g.queue_id, s.subscription_id, g.id, 'cancelled', g.created_at, p_now, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
      g.errors, g.extra, g.options
    from gone g cross join trunq._cancelling(p_queue_id, null) s cross join trunq._read_filter(s.filter) f
    where s.filter is null or trunq._passes(f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers, g.kind, g.key, trunq._sifted(g.headers, g.extra))
    returning subscription_id, id)
  select s.name, g.id, 'scheduled' from gone g
  left join died d on d.id = g.id left join trunq.subscription s on s.subscription_id = d.subscription_id
  order by g.id, s.subscription_id
$$;
comment on function trunq._cancel_scheduled is
  'Deletes messages that are published later, and makes them dead for every shared subscription that would read them. Returns: as cancel.';

create or replace function trunq._cancel_retrying(p_queue trunq.queue, p_sub trunq.subscription, p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_gone record;
begin
  with gone as (
    delete from trunq.delayed d where d.queue_id = p_queue.queue_id and d.subscription_id = p_sub.subscription_id and d.id = any (p_ids)
    returning d.*),
  died as (
    insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, payload, body, headers, errors, extra, options)
    select g.queue_id, g.subscription_id, g.id, 'cancelled', g.created_at, p_now, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
      g.errors, g.extra, g.options
    from gone g)
  select coalesce(array_agg(g.id order by g.id), '{}') ids, array_agg(g.priority order by g.id) priorities, array_agg(g.key::text order by g.id) keys
  into v_gone from gone g;
  perform trunq._free_keys(p_queue, v_gone.ids);
  if p_sub.in_order and v_gone.ids <> '{}' then
    -- Their lanes were held for them.
    execute format('select trunq_queue.%I($1, $2, $3, $4)', p_queue.name || '_let_go') using p_sub.subscription_id, v_gone.ids, v_gone.priorities, v_gone.keys;
  end if;
  return v_gone.ids;
end $$;
comment on function trunq._cancel_retrying is
  'Deletes messages that wait for a subscription''s next attempt, and makes them dead. What they held, unique keys and lanes in order, is free. Returns: which.';

create or replace function trunq._check_found(p_queue text, p_subscription text, p_missing bigint[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_missing <> '{}' then
    perform trunq._fail('TQ013', format('queue "%s" has no message %s%s', p_queue, (select min(m) from unnest(p_missing) m),
        case when p_subscription is not null then format(' for subscription "%s"', p_subscription) end),
      'nothing was cancelled; it was never published, its time (the retention) is over, or no shared subscription reads it');
  end if;
end $$;
comment on function trunq._check_found is 'Refuses (TQ013) to cancel what is nowhere.';

create or replace function trunq._tell_cancelled(p_queue_id integer, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[] := array(select distinct u.id from unnest(p_ids) u(id) order by u.id);
begin
  if v_ids <> '{}' and current_setting('trunq.notify', true) is distinct from 'off' then
    -- Of many it names none: every worker asks then.
    perform pg_notify('trunq_' || p_queue_id, concat_ws(' ', 'cancel', case when cardinality(v_ids) <= 100 then array_to_string(v_ids, ' ') end));
  end if;
end $$;
comment on function trunq._tell_cancelled is 'Tells the workers of a queue that messages which run were cancelled.';

create or replace function trunq._is_cancelled(p_subscription_id integer, p_id bigint) returns boolean
-- Not in SQL: Postgres would put it in the place of its call, and open the table where nobody asks.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = probe as $$
begin
  return exists (select from trunq.cancelled c where c.subscription_id = p_subscription_id and c.id = p_id);
end $$;
comment on function trunq._is_cancelled is 'Whether somebody cancelled a message of a subscription while it waited or ran.';

create or replace function trunq._forget_cancelled(p_queue trunq.queue, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_ids bigint[];
  v_open bigint[];
  v_gone integer;
  v_count integer := 0;
begin
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id and s.has_cancelled order by s.subscription_id for update skip locked
  loop
    v_ids := array(
      select c.id from trunq.cancelled c where c.subscription_id = v_sub.subscription_id and c.look_at <= p_now order by c.look_at, c.id limit 1000);
    -- Retries that came between.
    perform trunq._cancel_retrying(p_queue, v_sub, v_ids, p_now);
    v_open := array(
      select m.id from trunq._message(v_sub, p_queue, array(
        select u.id from unnest(v_ids) u(id) where not exists (
          select from trunq.dead d where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id = u.id)), true, false) m
      where trunq._is_open(m.state));
    delete from trunq.cancelled c where c.subscription_id = v_sub.subscription_id and c.id = any (v_ids) and c.id <> all (v_open);
    get diagnostics v_gone = row_count;
    v_count := v_count + v_gone;
    -- What waits for long is looked at ever less often.
    update trunq.cancelled c set look_at = p_now + least(greatest(p_now - c.cancelled_at, '1 minute'), '1 hour')
    where c.subscription_id = v_sub.subscription_id and c.id = any (v_open);
    update trunq.subscription s set has_cancelled = false
    where s.subscription_id = v_sub.subscription_id and not exists (select from trunq.cancelled c where c.subscription_id = v_sub.subscription_id);
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_cancelled is
  'Forgets that messages were cancelled, when they are over; at most 1,000 of each subscription are looked at. Leaves out a subscription for which somebody cancels just now.';
