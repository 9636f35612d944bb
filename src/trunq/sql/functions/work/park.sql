-- A message that waits for the outside (a payment, a batch job elsewhere, a person) is parked: its attempt ends without being counted,
-- nobody holds it, and it lies in trunq.delayed, with parked_at, until somebody resumes it by its token or its time (due_at) is over.
--   park      an answer (k): the receipt, the row in trunq.delayed and the token's row in trunq.parked commit together, in a handler's
--             transaction with what it wrote
--   resume    makes it due with a value, which the next attempt finds beside its checkpoint (trunq.progress): it stays through failures,
--             death and requeue, and goes when the message is done. The duty promote brings it back, as all that is due
--   time-out  due and still parked: promote fails the attempt by the policy, as trunq.time_out would
--
-- A token is given away before its message is parked, so who resumes may be first. Both insert the token's row, whose primary key knows no
-- snapshots: the second waits for the first to commit and finds it. A value that came first stays noted for a week, and park takes it:
-- the message runs again at once. A token that was used is remembered as long: a callback that is delivered twice
-- changes nothing, and no later message may take its token.
--
-- What leaves trunq.delayed, or is parked there no longer, frees its token by a trigger: cancel, delete, empty_queue, unsubscribe and the time-out
-- know nothing of tokens. All lock the row in trunq.delayed before the token's.
--
-- A token is a secret, as whoever knows it decides how the message goes on, so no table keeps it: a hash is enough to find it by. Neither those
-- who read the tables, a dump or a list, nor administrators learn from them what would resume a message.

create or replace function trunq.park(
  p_queue text,
  p_subscription text,
  p_lease_id bigint,
  p_token bigint,
  p_ids bigint[],
  p_tokens text[],
  p_delays interval[] default null,
  p_until timestamptz[] default null,
  p_took real[] default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
  v_now timestamptz := trunq.clock();
  v_answered integer;
begin
  perform trunq._check_park(p_ids, p_tokens, p_delays, p_until, v_now);
  p_delays := array(
    -- In trunq.delayed, whatever is left of the time.
    select greatest(coalesce(p_delays[u.at], p_until[u.at] - v_now), '1 microsecond')
    from unnest(p_ids) with ordinality u(id, at) order by u.at);
  v_answered := trunq._answer(p_queue, p_subscription, p_lease_id, p_token, p_ids, 'k', null, p_delays, null, p_took);
  if v_answered > 0 then
    perform trunq._take_tokens(v_sub, p_ids, p_tokens, v_now);
  end if;
  return v_answered;
end $$;
comment on function trunq.park is
  'Parks messages of a lease: each waits, without a worker and without an attempt, until somebody resumes it by its token (trunq.resume), for p_delays at the longest, or until p_until (one of the two, for each). Past that it fails as one that took too long, by the policy. p_tokens: a secret for each, up to 1,000 bytes, unique in the queue; one that somebody has resumed already is taken at once.
Returns: how many messages this call answered.
Raises: TQ001, TQ002, TQ003, TQ005, TQ011; TQ013 for a message of another lease; TQ015 when another message has, or had, the token.
Locks: the lease; the tokens.';

create or replace function trunq.resume(p_queue text, p_token text, p_value jsonb default null) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_word text;
begin
  execute format('select trunq_queue.%I($1, $2)', trunq._function(p_queue, 'resume')) into v_word using p_token, p_value;
  return v_word;
end $$;
comment on function trunq.resume is
  'Resumes the message of a queue that is parked under a token: it runs again as soon as a leader promotes it, and its next attempt gets p_value, up to 1 MB of JSON. For whoever may publish to the queue or work on it: the token is the secret that says which message.
Returns: resumed; noted: no message is parked under this token yet, and one that will be within a week goes on at once; repeated: it was resumed or noted before, and this call changed nothing.
Raises: TQ001; TQ005 for no token; TQ006 for a value over 1 MB; TQ007.
Locks: the message, and the token.';

create or replace function trunq.show_resumed(p_queue text, p_id bigint, p_subscription text default 'default') returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
begin
  return (
    select coalesce(p.resumed, 'null') from trunq.progress p
    where p.subscription_id = v_sub.subscription_id and p.id = p_id and p.resumed_at is not null);
end $$;
comment on function trunq.show_resumed is
  'What a message was last resumed with, which its next attempts get until it is done; JSON null: without a value; null: nobody resumed it. What a lease hands out with the option checkpoint has one, or a checkpoint.
Raises: TQ001, TQ002, TQ011.';

create or replace function trunq._token_hash(p_token text) returns bytea
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$ select sha256(convert_to(p_token, 'UTF8')) $$;
comment on function trunq._token_hash is 'How a token is kept.';

create or replace function trunq._check_park(
  p_ids bigint[], p_tokens text[], p_delays interval[], p_until timestamptz[], p_now timestamptz
) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if array_ndims(p_tokens) > 1 or cardinality(p_tokens) is distinct from cardinality(p_ids) or array_position(p_tokens, null) is not null
      or cardinality(p_delays) <> cardinality(p_ids) or cardinality(p_until) <> cardinality(p_ids)
      or array_lower(p_ids, 1) <> 1 or array_lower(p_tokens, 1) <> 1 or array_lower(p_delays, 1) <> 1 or array_lower(p_until, 1) <> 1 then
    perform trunq._fail('TQ005', 'park takes a token, and a time, for each message', 'give arrays of one length, without null, that begin at 1');
  elsif exists (select from unnest(p_tokens) t(token) where octet_length(t.token) not between 1 and 1000) then
    perform trunq._fail('TQ005', 'a token has 1 to 1,000 bytes', 'a random text that nobody guesses: 22 characters of base 64');
  elsif cardinality(p_tokens) > (select count(distinct t.token) from unnest(p_tokens) t(token)) then
    perform trunq._fail('TQ005', 'two messages cannot be parked under one token', 'give each a token of its own');
  elsif exists (
      select from unnest(p_ids, p_delays, p_until) u(id, delay, until)
      where num_nonnulls(u.delay, u.until) <> 1 or not isfinite(u.until) or u.until - p_now > '1000 years') then
    perform trunq._fail('TQ005', 'a message is parked for a time that ends, up to 1000 years', 'give a delay, or until when, and one of the two');
  end if;
end $$;
comment on function trunq._check_park is 'Refuses (TQ005) what cannot be parked.';

create or replace function trunq._take_tokens(p_sub trunq.subscription, p_ids bigint[], p_tokens text[], p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record;
  v_token trunq.parked;
begin
  for v in
    -- Those that this call parked: not what was answered before, nor what is dead because somebody cancelled it. In one order, or two calls
    -- could meet in a deadlock.
    select u.id, d.place, trunq._token_hash(u.token) hash from unnest(p_ids, p_tokens) u(id, token)
    cross join lateral trunq._parked_row(p_sub.queue_id, p_sub.subscription_id, u.id) d(place)
    where d.place is not null and not trunq._has_token(p_sub.subscription_id, u.id)
    order by 3
  loop
    loop
      insert into trunq.parked (queue_id, token, subscription_id, id) values (p_sub.queue_id, v.hash, p_sub.subscription_id, v.id)
      on conflict (queue_id, token) do nothing;
      exit when found;
      select t.* into v_token from trunq.parked t where t.queue_id = p_sub.queue_id and t.token = v.hash for update;
      continue when not found;  -- its message was over just now
      if v_token.id is not null then
        perform trunq._fail('TQ015', format('message %s of queue "%s" cannot be parked: message %s %s this token', v.id,
            (trunq._find_queue(p_sub.queue_id)).name, v_token.id, case when v_token.resumed_at is null then 'has' else 'was resumed by' end),
          'a token is for one message, and for once: park under a new one');
      end if;
      -- Somebody was faster.
      update trunq.parked t set subscription_id = p_sub.subscription_id, id = v.id, value = null
      where t.queue_id = p_sub.queue_id and t.token = v.hash;
      perform trunq._go_on(p_sub.queue_id, p_sub.subscription_id, v.id, v.place, v_token.value, p_now);
      exit;
    end loop;
  end loop;
end $$;
comment on function trunq._take_tokens is
  'Has messages that were parked just now wait under their tokens; those whose token came before run again at once. Refuses (TQ015) a token of another message.';

create or replace function trunq._parked_row(p_queue_id integer, p_subscription_id integer, p_id bigint) returns tid
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- Asked for its order too: without statistics all indexes look alike, and another one would read all that is delayed.
  select d.ctid from (
    select d.ctid, d.id from trunq.delayed d
    where d.queue_id = p_queue_id and d.subscription_id = p_subscription_id and d.id >= p_id and d.parked_at is not null
    order by d.queue_id, d.subscription_id, d.id limit 1) d
  where d.id = p_id
$$;
comment on function trunq._parked_row is 'Where a parked message lies in trunq.delayed; null: it is not parked.';

create or replace function trunq._go_on(
  p_queue_id integer, p_subscription_id integer, p_id bigint, p_row tid, p_value jsonb, p_now timestamptz
) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_has_age constant boolean := (select s.max_age is not null from trunq.subscription s where s.subscription_id = p_subscription_id);
begin
  perform trunq._use_progress(p_subscription_id);
  -- Where a subscription asks how old a message is, it is so old since now: it waited because it was to.
  update trunq.delayed d set parked_at = null, due_at = p_now,
    options = case when v_has_age then trunq._note_due(d.options, p_now) else coalesce(d.options, '{}') end || '{"checkpoint": true}'
  where d.ctid = p_row and d.id = p_id;
  insert into trunq.progress (queue_id, subscription_id, id, lease_id, reported_at, look_at, resumed, resumed_at)
  values (p_queue_id, p_subscription_id, p_id, 0, p_now, p_now + interval '1 minute', p_value, p_now)
  on conflict (subscription_id, id) do update set resumed = excluded.resumed, resumed_at = excluded.resumed_at;
end $$;
comment on function trunq._go_on is 'Has a message that is parked, whose row the caller has locked, run again with a value.';

create or replace function trunq._resume(p_queue_id integer, p_token text, p_value jsonb) returns text
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_hash constant bytea := trunq._token_hash(p_token);
  v_now timestamptz;
  v_token trunq.parked;
  v_row tid;
begin
  perform trunq._require_read_committed('resume');
  if coalesce(octet_length(p_token), 0) not between 1 and 1000 then
    perform trunq._fail('TQ005', 'a token has 1 to 1,000 bytes', 'give the one that the message was parked under');
  elsif octet_length(p_value::text) > trunq._limit('checkpoint_bytes') then
    perform trunq._fail('TQ006', format('a message is resumed with up to %s bytes (1 MB), not %s', trunq._limit('checkpoint_bytes'), octet_length(p_value::text)),
      'keep large content elsewhere, and resume with where it is');
  end if;
  loop
    v_now := trunq.clock();
    insert into trunq.parked (queue_id, token, value, resumed_at, expires_at)
    values (p_queue_id, v_hash, p_value, v_now, v_now + trunq._token_kept()) on conflict (queue_id, token) do nothing;
    if found then
      return 'noted';
    end if;
    select t.* into v_token from trunq.parked t where t.queue_id = p_queue_id and t.token = v_hash;
    if v_token.resumed_at is not null then
      return 'repeated';
    end if;
    -- The message before its token, as whoever deletes one. Not found: it is over, or another call has resumed it.
    v_row := trunq._parked_row(p_queue_id, v_token.subscription_id, v_token.id);
    perform from trunq.delayed d where d.ctid = v_row and d.id = v_token.id and d.parked_at is not null for update;
    if found then
      -- Before the message: its trigger leaves what was resumed.
      update trunq.parked t set resumed_at = v_now, expires_at = v_now + trunq._token_kept()
      where t.queue_id = p_queue_id and t.token = v_hash and t.resumed_at is null and t.id = v_token.id;
      if found then
        perform trunq._go_on(p_queue_id, v_token.subscription_id, v_token.id, v_row, p_value, v_now);
        return 'resumed';
      end if;
    end if;
  end loop;
end $$;
comment on function trunq._resume is 'As trunq.resume.';

create or replace function trunq._token_kept() returns interval
language sql immutable parallel safe as $$ select interval '7 days' $$;
comment on function trunq._token_kept is 'How long a token is remembered that was used, or that came before its message was parked.';

create or replace function trunq._time_out_parked(
  p_queue trunq.queue, p_from timestamptz, p_from_id bigint, p_now timestamptz, p_max integer
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
declare
  v record;
  v_count integer := 0;
begin
  for v in
    with due as materialized (
      select d.ctid, d.due_at from trunq.delayed d
      where d.queue_id = p_queue.queue_id and (d.due_at, d.id) > (p_from, p_from_id) and d.due_at <= p_now and d.parked_at is not null
      order by d.due_at, d.id limit p_max for update skip locked),
    late as materialized (
      select d.ctid as at, d.*, s.in_order, coalesce(trunq._own_backoff(s, d.options, d.attempt),
          trunq._backoff(s.backoff, s.backoff_base, s.backoff_cap, s.jitter, d.attempt)) wait,
        coalesce((d.options->>'max_attempts')::integer, s.max_attempts) most,
        trunq._add_error(d.errors, d.attempt, p_now, null,
          format('parked at %s, and nobody resumed it until %s', date_trunc('second', d.parked_at), date_trunc('second', d.due_at))) all_errors
      from due join trunq.delayed d on d.ctid = due.ctid
      join trunq.subscription s on s.subscription_id = d.subscription_id),
    -- One without an end of its attempts goes on.
    again as (
      update trunq.delayed d set parked_at = null, attempt = least(l.attempt + 1, 32767), errors = l.all_errors,
        due_at = p_now + greatest(l.wait, '0')
      from late l where d.ctid = l.at and (l.attempt >= l.most) is not true),
    gone as (
      delete from trunq.delayed d using late l where d.ctid = l.at and l.attempt >= l.most returning l.*),
    died as (
      insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, priority, kind, key, payload, body, headers, errors, extra, options)
      select g.queue_id, g.subscription_id, g.id, 'max_attempts', g.created_at, p_now, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
        g.all_errors, g.extra, g.options
      from gone g order by g.due_at, g.id)
    select l.subscription_id, l.in_order, count(*)::integer number, coalesce(array_agg(g.id) filter (where g.id is not null), '{}') ids,
      array_agg(g.priority) filter (where g.id is not null) priorities, array_agg(g.key) filter (where g.id is not null) keys
    from late l left join gone g on g.subscription_id = l.subscription_id and g.id = l.id group by l.subscription_id, l.in_order
  loop
    v_count := v_count + v.number;
    continue when v.ids = '{}';
    perform trunq._free_keys(p_queue, v.ids);
    perform trunq._reply_timed_out(v.subscription_id, v.ids);
    if v.in_order then
      -- Their lanes were held for them.
      execute format('select trunq_queue.%I($1, $2, $3, $4)', p_queue.name || '_let_go') using v.subscription_id, v.ids, v.priorities, v.keys;
    end if;
  end loop;
  return v_count;
end $$;
comment on function trunq._time_out_parked is
  'Fails messages that are due and that nobody resumed, by the policy: again after its delay, or dead. Those that somebody resumes just now are left out. Returns: how many.';

create or replace function trunq._unpark() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  delete from trunq.parked t
  where t.subscription_id = old.subscription_id and t.id = old.id and t.resumed_at is null;
  return null;
end $$;
revoke execute on function trunq._unpark from public;
comment on function trunq._unpark is 'After a message was parked, and is no longer: frees its token, unless it was resumed.';

do $$
begin
  -- Where they are missing: to make one locks the delayed messages of all queues.
  if not exists (select from pg_trigger t where t.tgrelid = 'trunq.delayed'::regclass and t.tgname = 'unpark_deleted') then
    create trigger unpark_deleted after delete on trunq.delayed for each row when (old.parked_at is not null) execute function trunq._unpark();
  end if;
  if not exists (select from pg_trigger t where t.tgrelid = 'trunq.delayed'::regclass and t.tgname = 'unpark_changed') then
    create trigger unpark_changed after update on trunq.delayed for each row when (old.parked_at is not null and new.parked_at is null)
      execute function trunq._unpark();
  end if;
end $$;

create or replace function trunq._forget_tokens(p_queue_id integer, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_count integer;
begin
  delete from trunq.parked t using (
    select o.queue_id, o.token from trunq.parked o where o.queue_id = p_queue_id and o.expires_at <= p_now
    order by o.expires_at limit 1000 for update skip locked) old
  where t.queue_id = old.queue_id and t.token = old.token;
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq._forget_tokens is 'Forgets tokens that were used, or that came before their message, a week ago; at most 1,000. Returns: how many.';

create or replace function trunq._warn_parked(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select q.name, s.name, format('%s parked for longer than a week in subscription "%s" of queue "%s"',
      case when o.number = 1 then '1 message is' when o.number > 1000 then 'more than 1,000 messages are' else o.number || ' messages are' end, s.name, q.name),
    format('whoever has their tokens may not come any more: see select * from trunq.list_messages(%L, %L, ''parked''), and resume or cancel them',
      q.name, s.name)
  from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
  cross join lateral (
    select count(*) number from (
      select from trunq.delayed d
      where d.subscription_id = s.subscription_id and d.parked_at < trunq.clock() - interval '7 days' order by d.parked_at limit 1001) d) o
  where (p_queue is null or q.name = p_queue) and s.mode = 'shared' and o.number > 0 order by q.name, s.name
$$;
comment on function trunq._warn_parked is 'Messages that nobody has resumed for more than a week.';

create or replace function trunq._parked_ids(p_sub trunq.subscription, p_ids bigint[]) returns bigint[]
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select coalesce(array_agg(u.id), '{}') from unnest(p_ids) u(id) where trunq._parked_row(p_sub.queue_id, p_sub.subscription_id, u.id) is not null
$$;
comment on function trunq._parked_ids is 'Those of some messages that are parked.';

create or replace function trunq._count_parked(p_sub trunq.subscription, out number bigint, out is_estimate boolean)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = unsorted as $$
begin
  -- In an order that one index has, and no other.
  select count(*) into number from (
    select from trunq.delayed d where d.subscription_id = p_sub.subscription_id and d.parked_at is not null
    order by d.subscription_id, d.parked_at limit 1001) d;
  is_estimate := number > 1000;
  if is_estimate then
    number := greatest(number, trunq._estimate('trunq.delayed', pg_relation_size('trunq.delayed') / current_setting('block_size')::integer, 0,
      format('subscription_id = %s and parked_at is not null', p_sub.subscription_id))::bigint);
  end if;
end $$;
comment on function trunq._count_parked is 'How many messages of a subscription are parked: exact up to 1,000, then an estimate.';

create or replace function trunq._has_token(p_subscription_id integer, p_id bigint) returns boolean
-- Not in SQL: put in the place of its call, it would read all tokens of the subscription.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  return exists (select from trunq.parked t where t.subscription_id = p_subscription_id and t.id = p_id and t.resumed_at is null);
end $$;
comment on function trunq._has_token is 'Whether a message waits under a token.';
