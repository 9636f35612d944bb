-- A message that was given up is kept with every error until it is requeued (in the log again, for the subscription it
-- failed in, its attempts starting at one), purged, or older than its subscription keeps such (dead_retention).

create or replace function trunq.list_dead(
  p_queue text, p_subscription text default null, p_limit integer default 100, p_before bigint default null, p_brief boolean default false
) returns table (
  dead_id bigint, subscription text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempts integer,
  reason text, errors jsonb, created_at timestamptz, died_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
begin
  perform trunq._check_limit(p_limit);
  return query
    select d.dead_id, s.name, d.id, d.kind, d.key, case when not p_brief then d.payload end, case when not p_brief then d.headers end,
      d.attempt::integer, d.reason, coalesce(case when p_brief then jsonb_path_query_array(d.errors, '$[last]') else d.errors end, '[]'),
      d.created_at, d.died_at
    from trunq.subscription s cross join lateral (
      select d.* from trunq.dead d
      where d.queue_id = v_queue_id and d.subscription_id = s.subscription_id and (p_before is null or d.dead_id < p_before)
      order by d.dead_id desc limit p_limit) d
    where s.queue_id = v_queue_id and (v_subscription_id is null or s.subscription_id = v_subscription_id)
    order by d.dead_id desc limit p_limit;
end $$;
comment on function trunq.list_dead(text, text, integer, bigint, boolean) is
  'Dead messages, newest first; p_before: the last dead_id of the page before. errors: one entry an attempt. p_brief leaves out what is dear to read: payload and headers (null), and all errors but the last.
Raises: TQ001, TQ002, TQ005.';

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

create or replace function trunq.requeue(p_queue text, p_subscription text default null, p_ids bigint[] default null) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C' as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
  v_count integer;
begin
  perform trunq._go_inside(v_queue.name);
  execute format($q$
    with gone as (
      delete from trunq.dead d
      where d.queue_id = $1 and ($2 is null or d.subscription_id = $2) and ($3 is null or d.id = any ($3))
      returning d.*),
    again as (
      select g.id, g.subscription_id, g.created_at, 1::smallint as attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
        g.errors, null::smallint as expiries, g.extra, g.dead_id as at
      from gone g),
    %s
    select count(*) from gone
  $q$, trunq._log(v_queue, 'again')) into v_count using v_queue.queue_id, v_subscription_id, p_ids;
  perform trunq._go_inside(null);
  return v_count;
end $$;
comment on function trunq.requeue(text, text, bigint[]) is
  'Hands dead messages out again, all or those named, from their first attempt on, their errors kept.
Returns: how many.
Raises: TQ001, TQ002.
Locks: the rows it requeues.';

create or replace function trunq.purge(
  p_queue text, p_subscription text default null, p_ids bigint[] default null, p_older_than interval default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
  v_count integer;
begin
  delete from trunq.dead d
  where d.queue_id = v_queue_id and (v_subscription_id is null or d.subscription_id = v_subscription_id)
    and (p_ids is null or d.id = any (p_ids))
    and (p_older_than is null or d.died_at < trunq.clock() - p_older_than);
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq.purge(text, text, bigint[], interval) is
  'Deletes dead messages for good: all, those named, or those dead for longer than p_older_than.
Returns: how many.
Raises: TQ001, TQ002.';

create or replace function trunq._subscription_id(p_queue text, p_subscription text) returns integer
language sql stable as $$
  select case when p_subscription is not null then (trunq._subscription(p_queue, p_subscription)).subscription_id end
$$;
comment on function trunq._subscription_id(text, text) is 'The id of a subscription by name, or TQ001, TQ002; null for null.';
