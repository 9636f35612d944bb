-- A message that was given up is kept with every error until it is requeued (in the log again, for the subscription it
-- failed in, its attempts starting at one), purged, or older than its subscription keeps such (dead_retention).

create or replace function trunq.list_dead(
  p_queue text, p_subscription text default null, p_limit integer default 100, p_before bigint default null, p_brief boolean default false,
  p_kind text default null, p_key text default null, p_error text default null,
  p_older_than interval default null, p_newer_than interval default null
) returns table (
  dead_id bigint, subscription text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempts integer,
  reason text, errors jsonb, created_at timestamptz, died_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  perform trunq._check_limit(p_limit);
  return query
    select d.dead_id, d.name, d.id, d.kind, d.key, case when not p_brief then d.payload end, case when not p_brief then d.headers end,
      d.attempt::integer, d.reason, coalesce(case when p_brief then jsonb_path_query_array(d.errors, '$[last]') else d.errors end, '[]'),
      d.created_at, d.died_at
    from trunq._dead_ids(p_queue, p_subscription, null, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, true) i(dead_id)
    cross join lateral (
      select d.*, s.name from trunq.dead d join trunq.subscription s on s.subscription_id = d.subscription_id
      where d.dead_id = i.dead_id offset 0) d
    order by d.dead_id desc;
end $$;
comment on function trunq.list_dead(text, text, integer, bigint, boolean, text, text, text, interval, interval) is
  'Dead messages, newest first; p_before: the last dead_id of the page before. errors: one entry an attempt. p_brief leaves out what is dear to read: payload and headers (null), and all errors but the last. Filters: p_kind, p_key, p_error (what the last error contains, in any case), p_older_than and p_newer_than (how long it is dead).
Raises: TQ001, TQ002, TQ005.';

create or replace function trunq.count_dead(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null
) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select count(*)
  from trunq._dead_ids(p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, false)
$$;
comment on function trunq.count_dead(text, text, bigint[], interval, interval, text, text, text, bigint, bigint) is
  'How many dead messages requeue or purge would take, given the same; with p_limit it stops counting there.
Returns: how many.
Raises: TQ001, TQ002.';

create or replace function trunq.forget(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_now timestamptz := trunq.clock();
  v_count integer;
begin
  delete from trunq.dead d using (
    select o.dead_id from trunq.subscription s cross join lateral (
      select o.dead_id, o.died_at from trunq.dead o
      where o.queue_id = v_queue_id and o.subscription_id = s.subscription_id order by o.dead_id limit 1000) o
    where s.queue_id = v_queue_id and s.dead_retention is not null and o.died_at < v_now - s.dead_retention) old
  where d.dead_id = old.dead_id;
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq.forget(text) is
  'Deletes dead messages that are older than their subscription keeps them (dead_retention), at most 1,000 of each subscription.
Returns: how many.
Raises: TQ001.
Locks: the rows it deletes.';

create or replace function trunq.requeue(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_dead_ids bigint[] := array(select trunq._dead_ids(
    p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, false));
  v_count integer;
begin
  perform trunq._go_inside(v_queue.name);
  execute format($q$
    with gone as (
      delete from trunq.dead d where d.dead_id = any ($1)
      returning d.*),
    again as (
      select g.id, g.subscription_id, g.created_at, 1::smallint as attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
        g.errors, null::smallint as expiries, nullif(g.options - 'expires_at', '{}') as options, g.extra, g.dead_id as at
      from gone g),
    %s
    select count(*) from gone
  $q$, trunq._log(v_queue, 'again')) into v_count using v_dead_ids;
  perform trunq._go_inside(null);
  return v_count;
end $$;
comment on function trunq.requeue(text, text, bigint[], interval, interval, text, text, text, bigint, bigint) is
  'Hands dead messages out again, from their first attempt on, their errors kept, whatever their expiry was: all, those named (p_ids), or those that the filters of list_dead find. p_limit: the oldest so many; p_before: only those with a smaller dead_id, so that calls in parts come to an end while messages die.
Returns: how many.
Raises: TQ001, TQ002.
Locks: the rows it requeues.';

create or replace function trunq.purge(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_dead_ids bigint[] := array(select trunq._dead_ids(
    p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, false));
  v_count integer;
begin
  delete from trunq.dead d where d.dead_id = any (v_dead_ids);
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq.purge(text, text, bigint[], interval, interval, text, text, text, bigint, bigint) is
  'Deletes dead messages for good: all, those named (p_ids), or those that the filters of list_dead find; p_before and p_limit as for requeue.
Returns: how many.
Raises: TQ001, TQ002.
Locks: the rows it deletes.';

create or replace function trunq._dead_ids(
  p_queue text, p_subscription text, p_ids bigint[], p_older_than interval, p_newer_than interval, p_kind text, p_key text,
  p_error text, p_before bigint, p_limit bigint, p_newest boolean
) returns setof bigint
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
begin
  -- Planned with what is given: a filter that is not asked for costs nothing. Ids are found by dead_message, all else is in the
  -- order of dead_newest.
  return query execute format($q$
    select o.dead_id
    from trunq.subscription s cross join lateral (
      select d.dead_id from trunq.dead d
      where d.queue_id = $1 and d.subscription_id = s.subscription_id
        and ($3 is null or d.id = any ($3))
        and ($4 is null or d.died_at < $5 - $4) and ($6 is null or d.died_at >= $5 - $6)
        and ($7 is null or d.kind = $7) and ($8 is null or d.key = $8)
        and ($9 is null or strpos(lower(d.errors #>> '{-1,error}'), lower($9)) > 0)
        and ($10 is null or d.dead_id < $10)
      order by d.dead_id %1$s %2$s limit $11) o
    where s.queue_id = $1 and ($2 is null or s.subscription_id = $2)
    order by o.dead_id %2$s limit $11
  $q$, case when p_ids is not null then '+ 0' end, case when p_newest then 'desc' end)
  using v_queue_id, v_subscription_id, p_ids, p_older_than, trunq.clock(), p_newer_than, p_kind, p_key, p_error, p_before, p_limit;
end $$;
comment on function trunq._dead_ids(text, text, bigint[], interval, interval, text, text, text, bigint, bigint, boolean) is
  'The dead_ids that a list, a count, requeue and purge are about: the newest or the oldest p_limit that all filters given find.';

create or replace function trunq._subscription_id(p_queue text, p_subscription text) returns integer
language sql stable as $$
  select case when p_subscription is not null then (trunq._subscription(p_queue, p_subscription)).subscription_id end
$$;
comment on function trunq._subscription_id(text, text) is 'The id of a subscription by name, or TQ001, TQ002; null for null.';
