-- What messages died of, by the fingerprint of their last error: its first line, in which quoted texts, numbers and long hexadecimal words are
-- masked. A thousand customers whose orders failed for one reason are one group.
--
-- A look goes down the dead messages, newest first, and reads so many rows at most: whether a queue has thirty, or all queues have thirty
-- million. Each row says how far the look came, and the next look goes on there.

create or replace function trunq._fingerprint(p_errors jsonb, p_reason text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  -- Postgres takes some microseconds for each text that it replaces, and a line of a thousand characters may have five hundred: ten thousand
  -- messages took longer than a page waits. What is cut off may have the other quotation mark.
  select coalesce(nullif(trim(left(
    regexp_replace(regexp_replace(
      split_part(left(p_errors #>> '{-1,error}', 250), E'\n', 1),
      -- The apostrophe of "can't" begins no quotation.
      '(?<![[:alnum:]])(''[^'']*(''|$)|"[^"]*("|$)|`[^`]*(`|$))', '''...''', 'g'),
      '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\m(?=[a-fA-F]*[0-9])[0-9a-fA-F]{6,}\M|[0-9]+', '#', 'g'), 200)), ''), p_reason)
$$;
comment on function trunq._fingerprint is
  'What groups a dead message with others: the first line of its last error, up to 250 characters of it, with quoted texts, numbers and long hexadecimal words masked, 200 characters at most; without an error, the reason.';

create or replace function trunq._begins_alike(p_errors jsonb, p_fingerprint text) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable parallel safe as $$
  select pg_catalog.starts_with(
    coalesce(nullif(pg_catalog.split_part(pg_catalog.ltrim(pg_catalog.left(p_errors operator(pg_catalog.#>>) '{-1,error}', 200)), E'\n', 1), ''),
      (pg_catalog.regexp_match(p_fingerprint, '^[^#'']*'))[1]),
    (pg_catalog.regexp_match(p_fingerprint, '^[^#'']*'))[1])
$$;
comment on function trunq._begins_alike is
  'Whether an error begins as a fingerprint does, up to what is masked there: without, it has another one, and a look at many need not make it.';

create or replace function trunq.list_dead_groups(
  p_queue text default null, p_subscription text default null, p_look integer default 10000, p_before bigint default null
) returns table (
  fingerprint text, queue text, messages bigint, subscriptions text[], kinds text[], first_died_at timestamptz, last_died_at timestamptz,
  id bigint, error text, looked bigint, looked_to bigint, looked_to_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_queue_id integer;
  v_subscription_id integer;
begin
  perform trunq._check_limit(p_look);
  if p_queue is null and p_subscription is not null then
    perform trunq._fail('TQ005', format('subscription "%s" is one of a queue', p_subscription), 'give p_queue, too');
  end if;
  if p_queue is not null then
    v_queue_id := (trunq._find_queue(p_queue)).queue_id;
    v_subscription_id := trunq._subscription_id(p_queue, p_subscription);
  end if;
  return query execute format($q$
    with seen as materialized (%s),
    looked as (select count(*) looked, min(s.dead_id) looked_to, (select s.died_at from seen s order by s.dead_id limit 1) looked_to_at from seen s),
    told as materialized (
      select s.dead_id, s.queue_id, s.subscription_id, s.id, s.kind, s.died_at, trunq._fingerprint(s.errors, s.reason) fingerprint from seen s),
    grouped as (
      select t.fingerprint, t.queue_id, count(*) messages, array_agg(distinct t.subscription_id) subscription_ids,
        (array_agg(distinct t.kind) filter (where t.kind is not null))[:10] kinds, min(t.died_at) first_died_at, max(t.died_at) last_died_at,
        max(t.dead_id) newest
      from told t group by t.fingerprint, t.queue_id)
    select g.fingerprint, q.name, g.messages,
      array(select n.name from trunq.subscription n where n.subscription_id = any (g.subscription_ids) order by n.name), coalesce(g.kinds, '{}'),
      g.first_died_at, g.last_died_at, e.id, left(e.errors #>> '{-1,error}', 1000), l.looked, case when l.looked = $3 then l.looked_to end, l.looked_to_at
    from grouped g join trunq.queue q on q.queue_id = g.queue_id cross join looked l
    join seen e on e.dead_id = g.newest
    order by g.messages desc, g.last_died_at desc, q.name
  $q$, case when v_queue_id is null then
    'select d.dead_id, d.queue_id, d.subscription_id, d.id, d.kind, d.died_at, d.errors, d.reason from trunq.dead d where ($4 is null or d.dead_id < $4) and $1 is null and $2 is null order by d.dead_id desc limit $3'
  else
    -- The newest of each subscription by its index, as trunq.list_dead reads them.
    -- No payloads: ten thousand would go through a file.
    'select d.dead_id, d.queue_id, d.subscription_id, d.id, d.kind, d.died_at, d.errors, d.reason from (select o.dead_id from trunq.subscription s cross join lateral (
       select d.dead_id from trunq.dead d where d.queue_id = $1 and d.subscription_id = s.subscription_id and ($4 is null or d.dead_id < $4)
       order by d.dead_id desc limit $3) o
     where s.queue_id = $1 and ($2 is null or s.subscription_id = $2) order by o.dead_id desc limit $3) i
     cross join lateral (select d.* from trunq.dead d where d.dead_id = i.dead_id offset 0) d'
  end) using v_queue_id, v_subscription_id, p_look, p_before;
end $$;
comment on function trunq.list_dead_groups is
  'What the newest dead messages died of, of a queue or of all, the largest group first: p_look of them are looked at (10,000), at most 100,000; p_before: looked_to of the look before. A fingerprint is the first line of an error in which quoted texts, numbers and long hexadecimal words are masked, so that one fault of a thousand customers is one group; without an error it is the reason. kinds: ten of them; id and error (up to 1,000 characters): of the newest message; looked: at how many, back to looked_to_at; looked_to: where the next look goes on, null when it saw all.
Returns: one row for each fingerprint and queue.
Raises: TQ001, TQ002; TQ005 for a subscription without its queue.';
