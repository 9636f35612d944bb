-- A lease may ask for a part of its subscription: a filter (ground/filter.sql), or a prefix of keys. Leases of one subscription ask for different
-- parts, which may overlap, and each message goes to one of them. The position is one for all, so a lease that comes upon a message which it
-- did not ask for sets it aside, in the same transaction: from then on it lies in trunq.delayed as a retry does, with a number (aside)
-- in the place of a time, and no attempt counted. Cancel, delete, history and all the rest treat it as what is delayed; status counts it
-- as ready. The log need not keep it.
--
-- Every lease of such a subscription first takes what is set aside for it, oldest first: it goes into the log again and is leased in the same
-- transaction, ahead of the position (work/ahead.sql). Retries and delays come through the log, and are looked at as any message.
--
-- Numbers are drawn under the lock of the subscription, so they are committed in their order, and an ask walks over each message once: up to
-- trunq.ask.looked there is nothing for it. How much is set aside for others costs a lease nothing. That mark is written only now and
-- then, as an update under a pinned horizon leaves a dead row.
--
-- Who sets something aside calls the workers, if an ask whose last lease got nothing asks for it.
--
-- A subscription of which no lease ever asked (has_asks) has none of this. One that asks for everything belongs to those who ask, too:
-- what it takes is not set aside.

create or replace function trunq._check_asks(p_asks jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_prefix constant jsonb := case when jsonb_typeof(p_asks) = 'object' then p_asks->'key_prefix' end;
begin
  if jsonb_typeof(p_asks) <> 'object' then
    perform trunq._fail('TQ005', format('a lease asks by a JSON object, not %s', jsonb_typeof(p_asks)),
      'ask as in {"kinds": ["mail"], "key_prefix": "eu-", "headers": {"country": "CZ"}}; {} asks for everything');
  elsif jsonb_typeof(v_prefix) <> 'string' or octet_length(p_asks->>'key_prefix') not between 1 and 1000 then
    perform trunq._fail('TQ005', format('"key_prefix" is a text of 1 to 1,000 bytes, not %s', left(v_prefix::text, 100)),
      'ask as in {"key_prefix": "eu-"}, or leave it out');
  end if;
  perform trunq._check_filter(p_asks - 'key_prefix');
end $$;
comment on function trunq._check_asks is 'Refuses (TQ005) what a lease cannot ask for.';

create or replace function trunq._read_asks(p_asks jsonb) returns trunq.asking
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v trunq.asking;
begin
  select f.kinds, f.not_kinds, f.keys, f.not_keys, f.headers, f.not_headers into v from trunq._read_filter(p_asks) f;
  v.key_prefix := p_asks->>'key_prefix';
  return v;
end $$;
comment on function trunq._read_asks is 'What a lease asks for, as trunq._is_asked takes it.';

create or replace function trunq._is_asked(p_asking trunq.asking, p_kind text, p_key text, p_headers jsonb) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable as $$
  select (trunq._passes((p_asking).kinds, (p_asking).not_kinds, (p_asking).keys, (p_asking).not_keys, (p_asking).headers, (p_asking).not_headers,
      p_kind, p_key, p_headers)
    and ((p_asking).key_prefix is null or pg_catalog.starts_with(p_key, (p_asking).key_prefix))) is true
$$;
comment on function trunq._is_asked is 'Whether a lease asks for a message.';

create or replace function trunq._refuse_asks(p_queue text, p_asks jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_asks is not null then
    perform trunq._check_asks(p_asks);
    perform trunq._fail('TQ005', format('queue "%s" has lanes, which say what comes next: its leases ask for no part', p_queue),
      'give each part a subscription with a filter (trunq.subscribe, p_filter), or publish into a queue without lanes');
  end if;
end $$;
comment on function trunq._refuse_asks is 'Refuses (TQ005) to lease a part of what lanes hand out.';

create or replace function trunq._check_asked_for(p_sub trunq.subscription, p_queue text, p_asks jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_sub.due_first and p_asks is not null then
    perform trunq._fail('TQ005', format('subscription "%s" of queue "%s" hands out first what fell due: its leases ask for no part', p_sub.name, p_queue),
      format('give each part a subscription with a filter (trunq.subscribe, p_filter), or take it back: select trunq.subscribe(%L, %L, p_due_first => false)', p_queue, p_sub.name));
  end if;
end $$;
comment on function trunq._check_asked_for is 'Refuses (TQ005) to lease a part of a subscription that hands out first what fell due.';

create or replace function trunq._note_ask(p_subscription_id integer, p_queue text, p_subscription text, p_asks jsonb, p_now timestamptz) returns trunq.ask
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_most constant integer := 100;
  v_key constant text := md5(p_asks::text);
  v_ask trunq.ask;
begin
  select a.* into v_ask from trunq.ask a where a.subscription_id = p_subscription_id and a.ask_key = v_key;
  if found then
    return v_ask;
  end if;
  perform trunq._check_filter_columns(p_queue, p_asks);
  if p_asks <> '{}' and (
      select count(*) from trunq.ask a where a.subscription_id = p_subscription_id and a.asked_at > p_now - interval '1 hour') >= c_most then
    perform trunq._fail('TQ005', format('leases of subscription "%s" of queue "%s" have asked for %s different parts within an hour, and may for so many',
        p_subscription, p_queue, c_most),
      'have several workers ask for the same kinds, key prefix and headers, or ask for everything');
  end if;
  insert into trunq.ask (subscription_id, ask_key, asks, asked_at) values (p_subscription_id, v_key, p_asks, p_now) returning * into v_ask;
  if p_asks <> '{}' then
    update trunq.subscription s set has_asks = true where s.subscription_id = p_subscription_id and not s.has_asks;
    if found then
      -- Those that sleep tell what they ask for, too.
      perform trunq._call_workers((trunq._find_queue(p_queue)).queue_id);
    end if;
  end if;
  return v_ask;
end $$;
comment on function trunq._note_ask is
  'What is known of an ask, under the lock of its subscription; refuses (TQ005) more than 100 different ones within an hour.';

create or replace function trunq._keep_ask(p_ask trunq.ask, p_looked bigint, p_is_waiting boolean, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  if p_looked - p_ask.looked >= 500 or p_is_waiting and not p_ask.is_waiting
      or p_now not between p_ask.asked_at and p_ask.asked_at + interval '10 seconds' then
    update trunq.ask a set looked = p_looked, is_waiting = p_is_waiting or a.is_waiting, asked_at = p_now
    where a.subscription_id = p_ask.subscription_id and a.ask_key = p_ask.ask_key;
  end if;
end $$;
comment on function trunq._keep_ask is
  'Notes how far an ask has looked, that it waits, and when it last asked, where one of them has changed enough.';

create or replace function trunq._call_askers(p_queue_id integer, p_subscription_id integer, p_from bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  update trunq.ask a set is_waiting = false
  from (select o.ask_key, trunq._read_asks(o.asks) asking from trunq.ask o where o.subscription_id = p_subscription_id and o.is_waiting offset 0) o
  where a.subscription_id = p_subscription_id and a.ask_key = o.ask_key and exists (
    select from trunq.delayed d where d.subscription_id = p_subscription_id and d.aside >= p_from
      and trunq._is_asked(o.asking, d.kind, d.key, trunq._sifted(d.headers, d.extra)));
  if found then
    perform trunq._call_workers(p_queue_id);
  end if;
end $$;
comment on function trunq._call_askers is
  'Has the workers look, if something that was set aside, from this number on, is for an ask that waits.';

create or replace function trunq._end_asks(p_queue_id integer) returns void
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  update trunq.delayed d set due_at = trunq.clock(), aside = null, aside_at = null
  from trunq.subscription s
  where s.queue_id = p_queue_id and s.has_asks and d.subscription_id = s.subscription_id and d.aside is not null;
  update trunq.subscription s set has_asks = false where s.queue_id = p_queue_id and s.has_asks;
  delete from trunq.ask a using trunq.subscription s where s.queue_id = p_queue_id and a.subscription_id = s.subscription_id;
$$;
comment on function trunq._end_asks is 'Has what is set aside in a queue come back at once, for whoever leases it: lanes know of no asks.';

create or replace function trunq._count_aside(p_subscription_id integer, out number bigint, out oldest timestamptz, out is_estimate boolean)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  select count(*), min(d.created_at) into number, oldest from (
    select d.created_at from trunq.delayed d where d.subscription_id = p_subscription_id and d.aside is not null
    order by d.subscription_id, d.aside limit 1001) d;
  is_estimate := number > 1000;
  if is_estimate then
    number := greatest(number, trunq._estimate('trunq.delayed', pg_relation_size('trunq.delayed') / current_setting('block_size')::integer, 0,
      format('subscription_id = %s and aside is not null', p_subscription_id))::bigint);
  end if;
end $$;
comment on function trunq._count_aside is 'How many messages of a subscription are set aside: exact up to 1,000, then an estimate; and of when the first of them are.';

create or replace function trunq._aside_ids(p_sub trunq.subscription, p_ids bigint[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  if not p_sub.has_asks then
    return '{}';
  end if;
  return (
    select coalesce(array_agg(u.id), '{}') from unnest(p_ids) u(id) cross join lateral (
      select d.id, d.aside from trunq.delayed d where d.queue_id = p_sub.queue_id and d.subscription_id = p_sub.subscription_id and d.id >= u.id
      order by d.queue_id, d.subscription_id, d.id limit 1) d
    where d.id = u.id and d.aside is not null);
end $$;
comment on function trunq._aside_ids is 'Those of some messages that are set aside.';

create or replace function trunq._left_asked(p_queue text, p_subscription text, p_asks jsonb) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_queue trunq.queue;
  v_asking trunq.asking;
  v_count bigint;
begin
  v_sub := trunq._subscription(p_queue, p_subscription, 'shared');
  perform trunq._check_asks(p_asks);
  v_queue := trunq._find_queue(v_sub.queue_id);
  v_asking := trunq._read_asks(p_asks);
  -- What nobody has looked at may be for it.
  v_count := (select count(*) from trunq._unread(v_queue, v_sub.subscription_id, 1000) u)
    + (select count(*) from (
        select from trunq.delayed d
        where d.subscription_id = v_sub.subscription_id and trunq._is_asked(v_asking, d.kind, d.key, trunq._sifted(d.headers, d.extra))
          and d.aside > coalesce((select a.looked from trunq.ask a where a.subscription_id = v_sub.subscription_id and a.ask_key = md5(p_asks::text)), 0)
        order by d.subscription_id, d.aside limit 1000) d);
  if v_count > 0 then
    return v_count;
  end if;
  execute format($q$
    select count(*) from trunq._held_leases($1, $2) h
    cross join lateral (
      select l.ids, l.txids, l.segment from trunq_data.%1$I l where l.subscription_id = $2 and l.lease_id = h.lease_id offset 0) l
    cross join lateral unnest(l.ids, l.txids) u(id, txid)
    cross join lateral (
      select g.kind, g.key, trunq._sifted(g.headers, trunq._extra(to_jsonb(g))) headers from trunq_log.%2$I g where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, $2) offset 0) g
    where trunq._is_asked($3, g.kind, g.key, g.headers) and not exists (
      select from trunq_data.%3$I r where r.lease_id = h.lease_id and r.segment = l.segment and r.subscription_id = $2 and u.id = any (r.ids))
  $q$, v_queue.lease_table, v_queue.log_table, v_queue.receipt_table) into v_count using v_queue, v_sub.subscription_id, v_asking;
  return v_count;
end $$;
comment on function trunq._left_asked is
  'How many messages are left that a worker asks for: set aside, held, or not looked at by anybody yet; at least so many.';

create or replace function trunq._warn_unasked(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_look constant integer := 10000;
  v_now timestamptz := trunq.clock();
  v record;
  v_asks trunq.asking[];
  v_found record;
begin
  for v in
    select q.name, s.name subscription, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and s.has_asks order by q.name, s.name
  loop
    v_asks := array(
      select trunq._read_asks(a.asks) from trunq.ask a
      where a.subscription_id = v.subscription_id and a.asked_at > v_now - interval '10 minutes');
    -- The oldest: what somebody asks for does not stay among them.
    select count(*) number, (array_agg(d.kind order by d.aside))[1] kind, (array_agg(d.key order by d.aside))[1] as key, min(d.aside_at) since into v_found
    from (
      select d.kind, d.key, trunq._sifted(d.headers, d.extra) headers, d.aside, d.aside_at from trunq.delayed d
      where d.subscription_id = v.subscription_id and d.aside is not null order by d.subscription_id, d.aside limit c_look) d
    where d.aside_at < v_now - interval '1 minute'
      and not exists (select from unnest(v_asks) a where trunq._is_asked(a, d.kind, d.key, d.headers));
    continue when v_found.number = 0;
    queue := v.name; subscription := v.subscription;
    warning := format('no worker asks for %s of subscription "%s" of queue "%s", set aside since %s: %s',
      case when v_found.number = 1 then '1 message' when v_found.number >= c_look then to_char(v_found.number, 'FM999,999') || ' messages or more'
        else to_char(v_found.number, 'FM999,999') || ' messages' end, v.subscription, v.name,
      date_trunc('second', v_found.since), concat_ws(', ', coalesce('kind ' || v_found.kind, 'no kind'), 'key ' || v_found.key));
    hint := format('start a worker that asks for everything, trunq worker MODULE:APP --queue %s --subscription %s%s, or lease: select * from trunq.lease(%L, %L, ''me'')',
      v.name, v.subscription, case when v_found.kind is not null then ', or for these, --kind ''' || replace(v_found.kind, '''', '''\''''') || '''' else '' end, v.name, v.subscription);
    return next;
  end loop;
end $$;
comment on function trunq._warn_unasked is
  'Messages that have been set aside for a minute and that no lease has asked for within ten, among the first 10,000 of each subscription.';

create or replace function trunq._forget_asks(p_queue trunq.queue, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_id integer;
  v_gone integer;
  v_count integer := 0;
begin
  for v_id in select s.subscription_id from trunq.subscription s where s.queue_id = p_queue.queue_id and s.has_asks order by 1 loop
    -- Leases read and write asks under this lock.
    continue when not pg_try_advisory_xact_lock(trunq._lock_class('subscription'), v_id);
    delete from trunq.ask a where a.subscription_id = v_id and a.asked_at < p_now - interval '1 day';
    get diagnostics v_gone = row_count;
    v_count := v_count + v_gone;
    if not exists (select from trunq.ask a where a.subscription_id = v_id and a.asks <> '{}')
        and not exists (select from trunq.delayed d where d.subscription_id = v_id and d.aside is not null order by d.subscription_id, d.aside limit 1) then
      delete from trunq.ask a where a.subscription_id = v_id;
      update trunq.subscription s set has_asks = false where s.subscription_id = v_id;
    end if;
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_asks is
  'Forgets asks of a day ago. A subscription of which no lease asks for a part any more, and nothing is set aside, is one that knows of no asks.';
