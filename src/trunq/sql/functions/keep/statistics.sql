-- Statistics: what each minute brought, by subscription, kind and outcome: how many, how long they ran, how long they had waited. A
-- duty computes a whole minute from its receipts ten seconds after its end, and once more five minutes later, when more were committed
-- since. Nobody who publishes, leases or answers does anything for it.
--
-- Receipts know neither kind nor waiting time: those come from the log. Up to 10,000 messages a minute all are looked at; above, whole
-- receipts chosen by a hash, until they hold about 3,000, and the row says is_sampled. So the cost of a minute is bounded. The counts of
-- a subscription and outcome are sums over all receipts all the same: exact.
--
-- Times go into buckets 2^(1/4) wide. They add up over minutes and hours, and a percentile read from them is right within 9 %.
-- Minutes are kept for two days, hours for ninety. A minute is computed within a day, and from what is kept of it: a retention of less
-- than six minutes is too short for what was committed late.

create or replace function trunq.statistics(
  p_queue text default null, p_subscription text default null, p_kind text default null, p_last interval default '1 hour',
  p_per interval default null, p_by_kind boolean default true
) returns table (
  at timestamptz, queue text, subscription text, kind text, outcome text, messages bigint, is_sampled boolean,
  took_mean double precision, took_median double precision, took_p90 double precision, took_p99 double precision,
  waited_mean double precision, waited_median double precision, waited_p90 double precision, waited_p99 double precision
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  perform trunq._check_interval('p_last, the time that statistics are about,', coalesce(p_last, '0'));
  perform trunq._check_interval('p_per, the interval of statistics,', p_per, '1 minute');
  if trunq._months(p_per) <> 0 then
    perform trunq._fail('TQ005', format('p_per, the interval of statistics, must not have months or years, which differ in length: %s', p_per),
      'give days, such as ''30 days''');
  end if;
  return query
    select s.at, s.name, s.subscription, s.kind, trunq._outcome(s.outcome), s.count, s.is_sampled,
      s.took_sum / trunq._sum_histogram(s.took), trunq._percentile(s.took, 0.5), trunq._percentile(s.took, 0.9), trunq._percentile(s.took, 0.99),
      s.waited_sum / trunq._sum_histogram(s.waited), trunq._percentile(s.waited, 0.5), trunq._percentile(s.waited, 0.9), trunq._percentile(s.waited, 0.99)
    from (
      select case when p_per is not null then date_bin(p_per, t.at, '2000-01-01 00:00+00') end at, q.name, t.subscription,
        case when p_by_kind then nullif(t.kind, '') end kind, t.outcome, sum(t.count)::bigint count, bool_or(t.is_sampled) is_sampled,
        sum(t.took_sum) took_sum, sum(t.waited_sum) waited_sum, trunq._merge_histograms(array_agg(t.took) filter (where t.took is not null)) took, trunq._merge_histograms(array_agg(t.waited) filter (where t.waited is not null)) waited
      -- From the beginning of the time on, of each queue: whatever was before costs nothing.
      from trunq.queue q cross join unnest('{f,t}'::boolean[]) h(is_hour)
      cross join lateral (
        select s.* from trunq.statistic s where s.queue_id = q.queue_id and s.is_hour = h.is_hour and s.at >= v_now - p_last offset 0) t
      where (p_queue is null or q.name = p_queue) and (p_subscription is null or t.subscription = p_subscription)
        and (p_kind is null or t.kind = p_kind)
      group by 1, 2, 3, 4, 5) s
    order by s.at, s.name, s.subscription, s.count desc, s.kind, s.outcome;
end $$;
comment on function trunq.statistics is
  'What the last p_last (1 hour) brought, by queue, subscription, kind and outcome: how many messages, and in seconds how long they ran (took) and how long they had waited from publishing to their first lease, a delay included. p_per: for each such interval, a minute or more, without months or years, in at; null: all together. p_by_kind false: kinds together. is_sampled: kinds and times come from a part of the messages, as there were more than 10,000 in a minute. The last minute comes 10 seconds after its end; minutes are kept for 2 days, hours for 90.
Returns: kind null: without one; (others): beyond the fifty most frequent of a minute. Times null: no worker reported them.
Raises: TQ001, TQ005.';

create or replace function trunq.roll_up(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC' set lock_timeout = '200ms' as $$
declare
  c_minute constant interval := '1 minute';
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_now timestamptz := trunq.clock();
  v_next timestamptz;
  v_count integer := 0;
begin
  insert into trunq.mark (queue_id, duty, at)
  values (v_queue.queue_id, 'roll_up', date_trunc('minute', greatest(v_queue.created_at, v_now - interval '1 day')))
  on conflict do nothing;
  select m.at into v_next from trunq.mark m
  where m.queue_id = v_queue.queue_id and m.subscription_id = 0 and m.duty = 'roll_up' for update skip locked;
  if not found then
    return null;
  end if;
  -- After a clock that went back; and when no leader ran for days, as there would be thousands of minutes.
  v_next := greatest(least(v_next, date_trunc('minute', v_now)), date_trunc('minute', v_now - interval '1 day'));
  while v_count < 60 and v_next + c_minute + interval '10 seconds' <= v_now loop
    perform trunq._roll_up(v_queue, v_next - 5 * c_minute);
    perform trunq._roll_up(v_queue, v_next);
    v_next := v_next + c_minute;
    v_count := v_count + 1;
  end loop;
  if v_count > 0 then
    -- What was told of a total must not be lost in a crash.
    perform trunq._wait_for_disk();
    update trunq.mark m set at = v_next where m.queue_id = v_queue.queue_id and m.subscription_id = 0 and m.duty = 'roll_up';
    perform trunq._fold_minutes(v_queue, date_trunc('hour', least(v_now - interval '2 days', v_next - 6 * c_minute)));
    delete from trunq.statistic s where s.queue_id = v_queue.queue_id and s.is_hour and s.at < v_now - interval '90 days';
    if extract(minute from v_next) = 0 then
      perform trunq._forget_totals(v_queue.queue_id);
    end if;
  end if;
  return v_count;
exception when lock_not_available then
  return null;
end $$;
comment on function trunq.roll_up is
  'Computes the statistics of the minutes that are over, at most 60. A leader does so every 10 seconds.
Returns: how many minutes; null when another is doing it.
Raises: TQ001.
Locks: its mark.';

create or replace function trunq._roll_up(p_queue trunq.queue, p_minute timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
-- Receipts are found by BRIN, their leases and messages by index.
set trunq.plan = brin as $$
declare
  v_total bigint;
  v_share double precision;
  v_before jsonb;
begin
  execute format($q$
    select coalesce(sum(r.size), 0) from trunq_data.%I r where r.finished_at >= $1 and r.finished_at < $1 + interval '1 minute' and r.outcome <> 'b'
  $q$, p_queue.receipt_table) into v_total using p_minute;
  -- Nothing new; or a part is gone with its segment.
  if v_total <= (select coalesce(sum(s.count), 0) from trunq.statistic s where s.queue_id = p_queue.queue_id and not s.is_hour and s.at = p_minute) then
    return;
  end if;
  v_share := case when v_total > trunq._limit('counted_messages') then trunq._limit('sampled_messages')::double precision / v_total end;
  v_before := (select jsonb_agg(to_jsonb(b)) from trunq._total_of(p_queue.queue_id, p_minute) b);
  delete from trunq.statistic s where s.queue_id = p_queue.queue_id and not s.is_hour and s.at = p_minute;
  execute format($q$
    insert into trunq.statistic (queue_id, at, subscription, kind, outcome, count, is_sampled, took_sum, waited_sum, took, waited)
    with receipt as materialized (
      select s.name, r.* from trunq_data.%1$I r join trunq.subscription s on s.subscription_id = r.subscription_id
      where r.finished_at >= $2 and r.finished_at < $2 + interval '1 minute' and r.outcome <> 'b' and r.size > 0),
    whole as (select r.name, r.outcome, sum(r.size) n from receipt r group by 1, 2),
    -- Whole receipts, spread over the minute.
    part as materialized (
      select r.name, r.subscription_id, r.outcome, r.lease_id, r.ids, r.took, l.leased_at, l.ids lease_ids, l.txids, l.ids = r.ids is_whole
      from receipt r cross join lateral (
        select l.* from trunq_data.%2$I l where l.subscription_id = r.subscription_id and l.lease_id = r.lease_id offset 0) l
      where $3 is null or hashint8(r.lease_id * 7 + r.number) & 65535 < 65536 * $3),
    place as (
      select l.lease_id, u.id, u.txid from (select distinct on (p.lease_id) p.* from part p where not p.is_whole) l
      cross join lateral unnest(l.lease_ids, l.txids) u(id, txid)),
    answer as (
      select p.name, p.subscription_id, p.outcome, p.leased_at, u.* from part p cross join lateral unnest(p.ids, p.txids, p.took) u(id, txid, took) where p.is_whole
      union all
      select p.name, p.subscription_id, p.outcome, p.leased_at, u.id, x.txid, u.took from part p cross join lateral unnest(p.ids, p.took) u(id, took)
      join place x on x.lease_id = p.lease_id and x.id = u.id where not p.is_whole),
    message as materialized (
      -- What is no time (NaN, infinity), as a worker in any language may say, must not stop the minute.
      select a.name, a.outcome, coalesce(g.kind, '') kind, case when a.took between 0 and 1e9 then a.took::double precision end took,
        -- A retry waited for its time.
        case when g.subscription_id is null and isfinite(g.created_at) then extract(epoch from a.leased_at - g.created_at)::double precision end waited
      from answer a cross join lateral (
        select g.kind, g.created_at, g.subscription_id from trunq_log.%3$I g
        where trunq._is_row(g.txid, g.id, g.subscription_id, a.txid, a.id, a.subscription_id) limit 1) g),
    frequent as (
      select m.kind from message m group by 1 order by count(*) desc, 1 limit 50),
    by_kind as (
      select m.name, m.outcome, case when m.kind in (select f.kind from frequent f) then m.kind else '(others)' end kind, count(*) n,
        sum(m.took) took_sum, sum(m.waited) waited_sum,
        trunq._histogram(array_agg(trunq._time_bucket(m.took))) took, trunq._histogram(array_agg(trunq._time_bucket(m.waited))) waited
      from message m group by 1, 2, 3),
    -- What is counted in a part is scaled up, so that the kinds together are the whole.
    share as (
      select k.*, sum(k.n) over of_all::double precision / sum(k.n) over (partition by k.name, k.outcome) up_to,
        (sum(k.n) over of_all - k.n)::double precision / sum(k.n) over (partition by k.name, k.outcome) since
      from by_kind k window of_all as (partition by k.name, k.outcome order by k.n desc, k.kind))
    select $1, $2, w.name, coalesce(s.kind, '(others)'), w.outcome,
      case when s.kind is null then w.n else round(w.n * s.up_to) - round(w.n * s.since) end, $3 is not null, s.took_sum, s.waited_sum, s.took, s.waited
    from whole w left join share s on s.name = w.name and s.outcome = w.outcome
  $q$, p_queue.receipt_table, p_queue.lease_table, p_queue.log_table) using p_queue.queue_id, p_minute, v_share;
  perform trunq._add_totals(p_queue.queue_id, p_minute, v_before);
end $$;
comment on function trunq._roll_up is 'Computes the statistics of one minute, unless they know as much already, and adds what is new to the totals.';

create or replace function trunq._fold_minutes(p_queue trunq.queue, p_before timestamptz) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with gone as (
    delete from trunq.statistic s where s.queue_id = p_queue.queue_id and not s.is_hour and s.at < p_before returning s.*)
  insert into trunq.statistic (queue_id, is_hour, at, subscription, kind, outcome, count, is_sampled, took_sum, waited_sum, took, waited)
  select g.queue_id, true, date_trunc('hour', g.at, 'UTC'), g.subscription, g.kind, g.outcome, sum(g.count), bool_or(g.is_sampled),
    sum(g.took_sum), sum(g.waited_sum), trunq._merge_histograms(array_agg(g.took) filter (where g.took is not null)), trunq._merge_histograms(array_agg(g.waited) filter (where g.waited is not null))
  from gone g group by 1, 3, 4, 5, 6
$$;
comment on function trunq._fold_minutes is 'Makes hours of the minutes before a full hour.';

create or replace function trunq._time_bucket(p_seconds double precision) returns integer
language sql immutable parallel safe as $$
  -- 160 of them reach to twelve days.
  -- A CASE, which Postgres writes into the query; ln(2) / 4.
  select case when p_seconds is not null then
    greatest(1, least(160, 1 operator(pg_catalog.+) pg_catalog.floor(pg_catalog.ln(greatest(p_seconds, 1e-6::double precision) operator(pg_catalog.*) 1e6::double precision) operator(pg_catalog./) 0.17328679513998632::double precision)::integer)) end
$$;
comment on function trunq._time_bucket is 'The bucket of a time, null for null.';

create or replace function trunq._histogram(p_buckets integer[]) returns integer[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select array_agg(coalesce(c.n, 0) order by b) from generate_series(1, 160) b
  left join (select u.x, count(*)::integer n from unnest(p_buckets) u(x) where u.x is not null group by u.x) c on c.x = b
  having count(c.x) > 0
$$;
comment on function trunq._histogram is 'How many of these buckets there are of each; null for none.';

create or replace function trunq._sum_histogram(p_histogram integer[]) returns bigint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$ select sum(n) from unnest(p_histogram) n $$;
comment on function trunq._sum_histogram is 'How many a histogram holds; null for none.';

create or replace function trunq._merge_histograms(p_histograms integer[]) returns integer[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select array_agg(h.n order by h.b) from (
    select (u.place - 1) % 160 b, sum(u.n)::integer n from unnest(p_histograms) with ordinality u(n, place) group by 1) h
$$;
comment on function trunq._merge_histograms is 'An array of histograms as one; null for none.';

create or replace function trunq._percentile(p_histogram integer[], p_share double precision) returns double precision
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select power(2::double precision, (h.b - 0.5) / 4) / 1e6 from (
    select u.b, sum(u.n) over (order by u.b) up_to, sum(u.n) over () total
    from unnest(p_histogram) with ordinality u(n, b)) h
  where h.up_to >= p_share * h.total and h.total > 0 order by h.b limit 1
$$;
comment on function trunq._percentile is 'The time that a share of a histogram stays under, in seconds.';
