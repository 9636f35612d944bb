-- Totals: how long messages that succeeded ran and waited, since the statistics began, for histograms that never fall (/metrics). Minutes are
-- folded and deleted; what a minute brought is added here when it is computed, and what it brings besides when it is computed once more.
--
-- A label per kind is for ever, so the first fifty kinds of a queue have one, and the others are one together.

create or replace function trunq._total_bounds() returns double precision[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select '{0.005,0.01,0.025,0.05,0.1,0.25,0.5,1,2.5,5,10,30,60,300,900,3600,21600,86400}'::double precision[]
$$;
comment on function trunq._total_bounds is 'Seconds up to which each bucket of a total reaches; one more has what is beyond.';

create or replace function trunq._total(p_histogram integer[], p_share double precision) returns bigint[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  -- A bucket of the statistics lies where its middle does: right within 9 %, as percentiles are.
  select array_agg(coalesce(c.number, 0) order by b) from generate_series(0, cardinality(trunq._total_bounds())) b
  left join (
    select width_bucket(power(2::double precision, (u.place - 0.5) / 4) / 1e6, trunq._total_bounds()) as bucket,
      round(sum(u.number) / coalesce(p_share, 1))::bigint as number
    from unnest(p_histogram) with ordinality u(number, place) where u.number > 0 group by 1) c on c.bucket = b
$$;
comment on function trunq._total is 'A histogram of the statistics in the buckets of a total; p_share: of the messages that it was made of, null for all.';

create or replace function trunq._add_more(p_total bigint[], p_now bigint[], p_before bigint[]) returns bigint[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select array_agg(coalesce(p_total[b], 0) + greatest(0, p_now[b] - coalesce(p_before[b], 0)) order by b)
  from generate_series(1, cardinality(trunq._total_bounds()) + 1) b
$$;
comment on function trunq._add_more is 'A total, and what there is now more than before.';

create or replace function trunq._total_of(p_queue_id integer, p_minute timestamptz)
returns table (subscription text, kind text, took bigint[], waited bigint[], took_sum double precision, waited_sum double precision)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- Of how many a sampled minute was made, _roll_up says.
  select s.subscription, s.kind, trunq._total(s.took, h.share), trunq._total(s.waited, h.share),
    coalesce(s.took_sum, 0) / coalesce(h.share, 1), coalesce(s.waited_sum, 0) / coalesce(h.share, 1)
  from trunq.statistic s
  cross join (
    select case when bool_or(t.is_sampled) then least(1, trunq._limit('sampled_messages')::double precision / nullif(sum(t.count), 0)) end as share
    from trunq.statistic t where t.queue_id = p_queue_id and not t.is_hour and t.at = p_minute) h
  where s.queue_id = p_queue_id and not s.is_hour and s.at = p_minute and s.outcome = 'a'
$$;
comment on function trunq._total_of is 'What a minute brought, in the buckets of totals.';

create or replace function trunq._add_totals(p_queue_id integer, p_minute timestamptz, p_before jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_kinds constant integer := 50;
  v record;
  v_kind text;
begin
  for v in
    select n.*, b.took as took_before, b.waited as waited_before, coalesce(b.took_sum, 0) as took_sum_before, coalesce(b.waited_sum, 0) as waited_sum_before
    from trunq._total_of(p_queue_id, p_minute) n
    left join jsonb_to_recordset(p_before) b(subscription text, kind text, took bigint[], waited bigint[], took_sum double precision, waited_sum double precision)
      on b.subscription = n.subscription and b.kind = n.kind
    order by n.subscription, n.kind
  loop
    v_kind := v.kind;
    if not exists (select from trunq.statistic_total t where t.queue_id = p_queue_id and t.kind = v_kind)
        and (select count(distinct t.kind) from trunq.statistic_total t where t.queue_id = p_queue_id and t.kind <> '(others)') >= c_kinds then
      v_kind := '(others)';
    end if;
    insert into trunq.statistic_total as t (queue_id, subscription, kind, took, waited, took_sum, waited_sum)
    values (p_queue_id, v.subscription, v_kind, trunq._add_more(null, v.took, v.took_before), trunq._add_more(null, v.waited, v.waited_before),
      greatest(0, v.took_sum - v.took_sum_before), greatest(0, v.waited_sum - v.waited_sum_before))
    on conflict (queue_id, subscription, kind) do update set
      took = trunq._add_more(t.took, v.took, v.took_before), waited = trunq._add_more(t.waited, v.waited, v.waited_before),
      took_sum = t.took_sum + excluded.took_sum, waited_sum = t.waited_sum + excluded.waited_sum;
  end loop;
end $$;
comment on function trunq._add_totals is 'Adds to the totals what a minute brought that it had not brought before (p_before, rows of _total_of).';

create or replace function trunq._forget_totals(p_queue_id integer) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- One that comes again under its name within ninety days goes on counting.
  delete from trunq.statistic_total t
  where t.queue_id = p_queue_id
    and not exists (select from trunq.subscription s where s.queue_id = t.queue_id and s.name = t.subscription)
    and not exists (select from trunq.statistic s where s.queue_id = t.queue_id and s.subscription = t.subscription)
$$;
comment on function trunq._forget_totals is 'Deletes totals of subscriptions that are gone, as are their statistics.';
