-- A message may go on into another queue, as the message it is: kind, key, payload, body, headers, columns of the user's, options,
-- created_at, attempt and errors go along, and whoever published it follows it by the id that he knows (trunq.show_message,
-- trunq.cancel, trunq.list_replies). So a scheduler of one's own can stand between two queues, and a retry can return to it.
--
-- In the first queue it is given back for a time that never comes, by the rules of every answer (the fence, lanes, what somebody cancelled),
-- and taken from trunq.delayed by a second step, in the same transaction. The steps go through the doors of their queues: a
-- worker of both may forward. What the second may take, the first wrote into trunq.forwarded, with its transaction.
--
-- Each queue draws its own ids, so a message has another one in the next queue. trunq.forwarded keeps all that it has: it returns to a queue under the
-- id that it had there, as a retry of the subscription that forwarded it, and into its former place in streams it does not return.
-- What arrives for the first time is news, and meets the gate. A message that two subscriptions forward is two from then on.
--
-- Who cancels shares the row of the subscription, and who forwards takes it for himself: one comes after the other.
-- A reply is written where the message ended, and copied to where it came from (trunq._tell_replies).

create or replace function trunq.forward(
  p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[], p_into text, p_delay interval default null
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[];
begin
  perform trunq._check_forward(p_queue, p_subscription, p_into, p_delay);
  v_ids := trunq._forward_out(p_queue, p_subscription, p_lease_id, p_token, p_ids);
  return trunq._forward_in(p_into, p_queue, p_subscription, v_ids, p_ids, p_delay);
end $$;
comment on function trunq.forward is
  'Moves messages of a lease into another queue, at once or after a delay: this subscription is done with them, and the other queue has them when the transaction commits, with all that they had but progress. Each has an id of that queue, or the one it had there before; trunq.show_message, trunq.cancel and trunq.list_replies follow the id of the first queue. What was cancelled is dead instead. The caller works on both queues.
Returns: the ids there, in the order of p_ids; null for a message that was answered before, or is dead.
Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005 for the queue itself, or a kind that the other does not take, TQ007, TQ011, TQ013 for a message of another lease; TQ014, TQ018 and TQ019 as for publishing into the other; TQ015 when another message has the unique key there.
Locks: the lease; against others who forward or cancel, the subscription, to the end of the transaction.';

create or replace function trunq.forward_retries(
  p_queue text, p_subscription text, p_into text, p_max integer default 1000
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[];
begin
  perform trunq._check_forward(p_queue, p_subscription, p_into, null);
  if (p_max between 1 and trunq._limit('lease_messages')) is not true then
    perform trunq._fail('TQ005', format('forward_retries moves 1 to %s messages, not %s', trunq._limit('lease_messages'), coalesce(p_max::text, 'null')));
  end if;
  v_ids := trunq._retries_out(p_queue, p_subscription, p_max);
  perform trunq._forward_in(p_into, p_queue, p_subscription, v_ids, v_ids, null);
  return cardinality(v_ids);
end $$;
comment on function trunq.forward_retries is
  'Moves messages that wait for another attempt of a subscription into another queue, as trunq.forward does; the oldest first, at most p_max (1,000). They are due there when they would have been here. What may have killed its worker, and what no worker has a handler for, stays. A retry without a delay does not wait, so give the subscription a back-off.
Returns: how many.
Raises: TQ001, TQ002, TQ005, TQ007, TQ011; TQ014 and TQ018 as for publishing into the other; TQ015.
Locks: the rows it moves; those that another has are left. Against others who forward or cancel, the subscription.';

create or replace function trunq._check_forward(p_queue text, p_subscription text, p_into text, p_delay interval) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._require_read_committed('forward');
  perform trunq._subscription(p_queue, p_subscription, 'shared');
  perform trunq._find_queue(p_into);
  if p_into = p_queue then
    perform trunq._fail('TQ005', format('queue "%s" cannot forward into itself', p_queue), 'retry or release the message, or name another queue');
  end if;
  perform trunq._check_interval('a delay', p_delay, '0');
  perform trunq._due_at(p_delay, null);
end $$;
comment on function trunq._check_forward is 'Refuses (TQ001, TQ002, TQ005, TQ007, TQ011) what cannot be forwarded.';

create or replace function trunq._forward_out(
  p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_ids bigint[]
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue;
  v_sub trunq.subscription;
begin
  v_queue := trunq._find_queue(p_queue);
  v_sub := trunq._subscription(p_queue, p_subscription, 'shared');
  perform from trunq.subscription s where s.subscription_id = v_sub.subscription_id for no key update;
  -- No delay of a user's is as long, but for one of so many years.
  perform trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'l', null,
    case when cardinality(p_ids) > 0 then array_fill(interval '999 years', array[cardinality(p_ids)]) end, null, null);
  return trunq._note_forward(v_queue, v_sub, array(
    select d.id from trunq.delayed d
    where d.queue_id = v_queue.queue_id and d.subscription_id = v_sub.subscription_id and d.id = any (p_ids)
      and d.due_at > trunq.clock() + interval '998 years' and d.parked_at is null and d.aside is null order by d.id));
end $$;
comment on function trunq._forward_out is
  'The first step of trunq.forward: gives messages back for a time that never comes. Returns: those that the second may take.';

create or replace function trunq._retries_out(p_queue text, p_subscription text, p_max integer) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue;
  v_sub trunq.subscription;
begin
  v_queue := trunq._find_queue(p_queue);
  v_sub := trunq._subscription(p_queue, p_subscription, 'shared');
  perform from trunq.subscription s where s.subscription_id = v_sub.subscription_id for no key update;
  -- Locked to the end: the leader promotes none of them meanwhile.
  return trunq._note_forward(v_queue, v_sub, array(
    select d.id from trunq.delayed d
    where d.queue_id = v_queue.queue_id and d.subscription_id = v_sub.subscription_id
      and coalesce(d.expiries, 0) <= 1 and (d.errors -> -1 ? 'times') is not true and d.parked_at is null and d.aside is null
    order by d.queue_id, d.subscription_id, d.id limit p_max for update skip locked));
end $$;
comment on function trunq._retries_out is 'The first step of trunq.forward_retries. Returns: those that the second may take.';

create or replace function trunq._note_forward(p_queue trunq.queue, p_sub trunq.subscription, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_xid constant xid8 := pg_current_xact_id();
  v_gone record;
begin
  if p_ids = '{}' then
    return p_ids;
  end if;
  with known as (
    update trunq.forwarded f set is_here = false, subscription_id = p_sub.subscription_id, xid = v_xid
    where f.queue_id = p_queue.queue_id and f.id = any (p_ids) and f.is_here and coalesce(f.subscription_id, p_sub.subscription_id) = p_sub.subscription_id
    returning f.id)
  insert into trunq.forwarded as f (origin_subscription_id, origin_id, queue_id, id, subscription_id, is_here, look_at, xid)
  select p_sub.subscription_id, u.id, p_queue.queue_id, u.id, p_sub.subscription_id, false, trunq.clock() + p_queue.retention, v_xid
  from unnest(p_ids) u(id) where u.id not in (select k.id from known k)
  on conflict (origin_subscription_id, origin_id, queue_id) do update set is_here = false, xid = excluded.xid;
  -- What they held here is free: unique keys, lanes in order; and what their handlers reported is of no use elsewhere.
  select array_agg(d.id order by d.id) ids, array_agg(d.priority order by d.id) priorities, array_agg(d.key::text order by d.id) keys into v_gone
  from trunq.delayed d where d.queue_id = p_queue.queue_id and d.subscription_id = p_sub.subscription_id and d.id = any (p_ids);
  perform trunq._free_keys(p_queue, p_ids);
  if p_sub.in_order then
    execute format('select trunq_queue.%I($1, $2, $3, $4)', p_queue.name || '_let_go')
      using p_sub.subscription_id, v_gone.ids, v_gone.priorities, v_gone.keys;
  end if;
  perform trunq._drop_progress(p_sub.subscription_id, p_ids);
  return p_ids;
end $$;
comment on function trunq._note_forward is 'Notes that this transaction forwards delayed messages of a subscription. Returns: their ids.';

create or replace function trunq._forward_in(
  p_queue text, p_from text, p_subscription text, p_ids bigint[], p_asked bigint[], p_delay interval
) returns bigint[]
-- Tables by index, and what was found joined by hash.
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = hash
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C' as $$
declare
  v_queue trunq.queue;
  v_from trunq.subscription;
  v_due_at timestamptz;
  v_left text[] := '{unique_turn,unique_until}';
  v_rows trunq.delayed[];
  v_moved bigint[];
  v_ids bigint[];
begin
  v_queue := trunq._find_queue(p_queue);
  v_from := trunq._subscription(p_from, p_subscription, 'shared');
  v_due_at := case when p_delay > '0' then trunq._due_at(p_delay, null) end;
  -- A queue without unique keys has no turn for one: left with a message that is due later, it would be another's once the queue gets them.
  v_left := v_left || case when v_queue.unique_policy is null and (trunq._find_queue(p_from)).unique_policy is not null then 'unique_key' end;
  with gone as (
    delete from trunq.delayed d using trunq.forwarded f
    where d.queue_id = v_from.queue_id and d.subscription_id = v_from.subscription_id and d.id = any (p_ids)
      and f.queue_id = v_from.queue_id and f.id = any (p_ids) and f.id = d.id and f.subscription_id = d.subscription_id and f.xid = pg_current_xact_id()
    returning d.*, f.origin_subscription_id, f.origin_id),
  place as (
    insert into trunq.forwarded as f (origin_subscription_id, origin_id, queue_id, id, is_here, look_at)
    select g.origin_subscription_id, g.origin_id, v_queue.queue_id, nextval(v_queue.id_sequence::regclass), true, trunq.clock() + v_queue.retention
    from gone g join (select a.id, min(a.at) at from unnest(p_asked) with ordinality a(id, at) group by a.id) a on a.id = g.id order by a.at
    on conflict (origin_subscription_id, origin_id, queue_id) do update set is_here = true, look_at = excluded.look_at
    returning f.*)
  select array_agg(row(v_queue.queue_id, p.id, s.subscription_id,
        coalesce(v_due_at, case when g.due_at < trunq.clock() + interval '998 years' then g.due_at end),
        g.created_at, g.attempt, case when v_queue.lanes like 'priority%' then g.priority else 0 end, g.kind, g.key, g.payload, g.body, g.headers,
        g.errors, nullif(g.extra - v_left, '{}'), null, nullif(g.options - 'checkpoint', '{}'), null, null, null)::trunq.delayed
      order by g.id),
    array_agg(g.id order by g.id), array_agg(p.id order by g.id)
  into v_rows, v_moved, v_ids
  from gone g join place p using (origin_subscription_id, origin_id)
  left join trunq.subscription s on s.subscription_id = p.subscription_id;
  update trunq.forwarded f set xid = null where f.queue_id = v_from.queue_id and f.id = any (v_moved) and f.xid = pg_current_xact_id();
  if v_rows is not null then
    perform trunq._arrive(v_queue, v_rows);
  end if;
  return array(select m.id from unnest(p_asked) with ordinality a(id, at) left join unnest(v_moved, v_ids) m(was, id) on m.was = a.id order by a.at);
end $$;
comment on function trunq._forward_in is
  'The second step of trunq.forward: takes messages that this transaction gave back in another queue. Returns: the ids here of p_asked.';

create or replace function trunq._arrive(p_queue trunq.queue, p_rows trunq.delayed[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_return boolean;
  v_rows trunq.delayed[];
  v_deleted bigint[];
begin
  if trunq._has_tenants(p_queue) then
    perform trunq._check_tenant(p_queue.name, array(select r.key from unnest(p_rows) r));
  end if;
  -- What somebody deleted here while it was away returns empty, and dead.
  if exists (select from trunq.deletion d where d.queue_id = p_queue.queue_id) then
    v_deleted := trunq._are_deleted(p_queue.queue_id, array(select r.id from unnest(p_rows) r where r.subscription_id is not null));
    insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, options)
    select r.queue_id, r.subscription_id, r.id, 'cancelled', r.created_at, trunq.clock(), r.attempt, r.priority, r.kind, r.key, r.options
    from unnest(p_rows) r where r.subscription_id is not null and r.id = any (v_deleted);
    p_rows := array(select r::trunq.delayed from unnest(p_rows) r where r.subscription_id is null or r.id <> all (v_deleted));
  end if;
  p_rows := trunq._take_forwarded_keys(p_queue, p_rows);
  foreach v_is_return in array '{t,f}'::boolean[] loop
    v_rows := array(select r::trunq.delayed from unnest(p_rows) r where (r.subscription_id is not null) = v_is_return order by r.id);
    continue when v_rows = '{}';
    if v_is_return then
      perform trunq._pass_gate(p_queue.name);
    elsif exists (select from unnest(v_rows) r where r.due_at is not null) then
      perform trunq._check_open(p_queue);
      if p_queue.kinds is not null and exists (select from unnest(v_rows) r where (r.kind = any (p_queue.kinds)) is not true) then
        perform trunq._fail('TQ005', format('queue "%s" takes no message of another kind than: %s', p_queue.name, left(array_to_string(p_queue.kinds, ', '), 1000)),
          'trunq.set_publishing changes that');
      end if;
    end if;
    insert into trunq.delayed select r.* from unnest(v_rows) r where r.due_at is not null;
    if exists (select from unnest(v_rows) r where r.due_at is null) then
      execute format($q$
        with again as (select r.*, r.ordinality at from unnest($1) with ordinality r where r.due_at is null),
        %s
        select
      $q$, trunq._log(p_queue, 'again')) using v_rows;
    end if;
    perform trunq._pass_gate(null);
  end loop;
end $$;
comment on function trunq._arrive is
  'Puts forwarded messages into a queue: those with a subscription as its retries, the others as they are published.';

create or replace function trunq._take_forwarded_keys(p_queue trunq.queue, p_rows trunq.delayed[]) returns trunq.delayed[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_row trunq.delayed;
  v_rows trunq.delayed[] := '{}';
  v_taken record;
  v_key text;
  v_by_content bigint[] := '{}';
begin
  if p_queue.unique_policy is null or p_queue.unique_on is null and not exists (select from unnest(p_rows) r where r.extra ? 'unique_key') then
    return p_rows;
  end if;
  if p_queue.unique_on = 'content' then
    -- As the log would have it: of what arrives for later too, which does not come to it yet.
    foreach v_row in array p_rows loop
      if v_row.subscription_id is null and v_row.extra->>'unique_key' is null then
        execute format('select trunq_queue.%I($1, $2, $3, $4)', p_queue.name || '_content_key') into v_key
          using v_row.kind, v_row.key, v_row.payload, v_row.body;
        v_row.extra := coalesce(v_row.extra, '{}') || jsonb_build_object('unique_key', v_key);
        v_by_content := v_by_content || v_row.id;
      end if;
      v_rows := v_rows || v_row;
    end loop;
    p_rows := v_rows;
    v_rows := '{}';
  end if;
  -- In their order: two who forward never wait for each other crosswise.
  for v_row in select r.* from unnest(p_rows) r order by r.extra->>'unique_key' collate "C", r.id loop
    if v_row.extra->>'unique_key' is not null then
      execute format('select * from trunq_queue.%I($1, $2, $3, null, $4)', p_queue.name || '_take_key') into v_taken
        using v_row.extra->>'unique_key', v_row.id, case when v_row.subscription_id is null then 'd' else 'q' end::"char",
          p_queue.unique_policy = 'replace' and v_row.subscription_id is null;
      if v_taken.turn is not null then
        v_row.extra := v_row.extra || jsonb_build_object('unique_turn', v_taken.turn, 'unique_until', 'd');
      elsif v_row.id = any (v_by_content) then
        perform trunq._fail_same_content(p_queue.name, v_row.kind, v_row.payload, v_row.body, v_taken.holder);
      elsif v_row.subscription_id is null then
        perform trunq._fail_duplicate(p_queue.name, v_row.extra->>'unique_key', v_taken.holder);
      else
        -- It was here before the one that has the key.
        v_row.extra := nullif(v_row.extra - 'unique_key', '{}');
      end if;
    end if;
    v_rows := v_rows || v_row;
  end loop;
  return v_rows;
end $$;
comment on function trunq._take_forwarded_keys is
  'Takes the unique keys of forwarded messages in the queue where they arrive; TQ015 when another holds one. What returns does without.';

-- Where forwarded messages are.

create or replace function trunq._forwarded_places(p_sub trunq.subscription, p_ids bigint[])
returns table (id bigint, queue_id integer, place_id bigint)
-- Not in SQL, as trunq._is_cancelled.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  return query
    select f.id, h.queue_id, h.id from trunq.forwarded f
    join trunq.forwarded h on h.origin_subscription_id = f.origin_subscription_id and h.origin_id = f.origin_id and h.is_here
    where f.queue_id = p_sub.queue_id and f.id = any (p_ids) and f.subscription_id = p_sub.subscription_id and not f.is_here;
end $$;
comment on function trunq._forwarded_places is
  'Of messages that a subscription forwarded, and that have not returned: in which queue each is, and under which id.';

create or replace function trunq._forwarded_message(p_sub trunq.subscription, p_id bigint, p_brief boolean default false)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_place record;
  v_queue trunq.queue;
  v_sub trunq.subscription;
begin
  for v_place in select p.* from trunq._forwarded_places(p_sub, array[p_id]) p loop
    v_queue := trunq._find_queue(v_place.queue_id);
    for v_sub in select s.* from trunq.subscription s where s.queue_id = v_place.queue_id and s.mode = 'shared' order by s.name loop
      return query select concat(v_queue.name, '/', m.subscription), m.state, m.id, m.kind, m.key, m.payload, m.headers, m.attempt, m.attempts,
        m.published_at, m.due_at, m.worker, m.leased_at, m.expires_at, m.finished_at, m.error, m.result
      from trunq._message(v_sub, v_queue, array[v_place.place_id], p_brief, false) m;
    end loop;
  end loop;
end $$;
comment on function trunq._forwarded_message is
  'A message that a subscription forwarded, as the subscriptions of the queue see it where it is; subscription: with the queue before it.';

create or replace function trunq._cancel_forwarded(p_queue trunq.queue, p_subscription text, p_ids bigint[])
returns table (subscription text, id bigint, state text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription;
  v_place record;
  v_queue trunq.queue;
  v_found record;
  v_at record;
begin
  for v_sub in select s.* from trunq._cancelling(p_queue.queue_id, p_subscription) s loop
    for v_place in select p.* from trunq._forwarded_places(v_sub, p_ids) p order by p.id loop
      for v_try in 1..10 loop
        v_queue := trunq._find_queue(v_place.queue_id);
        v_found := null;
        select array_agg(c.subscription order by c.subscription) subscriptions, array_agg(c.state order by c.subscription) states into v_found
        from trunq._cancel(v_queue, null, array[v_place.place_id]) c;
        -- It went on before: from now on nobody forwards it from there.
        select p.* into v_at from trunq._forwarded_places(v_sub, array[v_place.id]) p;
        exit when v_at.place_id is null or v_at.place_id = v_place.place_id and v_at.queue_id = v_place.queue_id;
        v_place := v_at;
      end loop;
      return query select concat(v_queue.name, '/', u.subscription), v_place.id, u.state
        from unnest(v_found.subscriptions, v_found.states) u(subscription, state);
    end loop;
  end loop;
end $$;
comment on function trunq._cancel_forwarded is 'Cancels messages that were forwarded where they are. Returns: as cancel, by the ids that they had here.';

create or replace function trunq._copy_replies(p_queue_id integer, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_origin record;
begin
  for v_origin in
    with copied as (
      insert into trunq.reply as r (queue_id, subscription_id, id, outcome, result, error, replied_at, expires_at)
      select distinct on (f.origin_subscription_id, f.origin_id)
        s.queue_id, f.origin_subscription_id, f.origin_id, w.outcome, w.result, w.error, w.replied_at, w.expires_at
      from trunq.forwarded f
      join trunq.subscription s on s.subscription_id = f.origin_subscription_id
      join trunq.subscription t on t.queue_id = f.queue_id
      join trunq.reply w on w.subscription_id = t.subscription_id and w.id = f.id
      where f.queue_id = p_queue_id and f.id = any (p_ids) and f.is_here and s.queue_id <> p_queue_id
      order by f.origin_subscription_id, f.origin_id, w.replied_at desc
      on conflict (subscription_id, id) do update
        set outcome = excluded.outcome, result = excluded.result, error = excluded.error, replied_at = excluded.replied_at, expires_at = excluded.expires_at
      returning r.queue_id, r.id)
    select c.queue_id, array_agg(c.id order by c.id) ids from copied c group by c.queue_id
  loop
    perform trunq._notify_replies(v_origin.queue_id, v_origin.ids);
  end loop;
end $$;
comment on function trunq._copy_replies is 'Copies the replies to messages that were forwarded to where they were published, and notifies those who wait there.';

create or replace function trunq._forget_forwarded(p_queue trunq.queue, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_old record;
  v_sub trunq.subscription;
  v_known bigint[] := '{}';
  v_count integer;
begin
  select array_agg(o.id order by o.id) ids, array_agg(o.origin_subscription_id order by o.id) subscriptions, array_agg(o.origin_id order by o.id) origins into v_old
  from (
    select f.* from trunq.forwarded f where f.queue_id = p_queue.queue_id and f.is_here and f.look_at <= p_now
    order by f.look_at limit 1000 for update skip locked) o;
  if v_old.ids is null then
    return 0;
  end if;
  for v_sub in select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id and s.mode = 'shared' loop
    v_known := v_known || array(select m.id from trunq._message(v_sub, p_queue, v_old.ids, true, false) m);
  end loop;
  update trunq.forwarded f set look_at = p_now + p_queue.retention / 2
  where f.queue_id = p_queue.queue_id and f.is_here and f.id = any (v_old.ids) and f.id = any (v_known);
  delete from trunq.forwarded f using unnest(v_old.ids, v_old.subscriptions, v_old.origins) o(id, subscription_id, origin_id)
  where f.origin_subscription_id = o.subscription_id and f.origin_id = o.origin_id and o.id <> all (v_known);
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq._forget_forwarded is
  'Forgets the ids of forwarded messages that are gone where they went, at most 1,000 messages. Returns: how many ids.';
