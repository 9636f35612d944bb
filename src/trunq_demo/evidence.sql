-- What a run left behind, counted: temporary tables and views that collect.py reads.
--
-- trunq.list_messages() returns pages; these numbers need all messages at once, so the queries read leases and receipts. Do not
-- copy this into an application: the layout of trunq_data is private and may change with any version.

create temporary table published as
select id, created_at from trunq_log.flights where subscription_id is null;

-- One row for each answer: which message, when, its outcome, how long its handler ran.
create temporary table answer as
select u.id, l.leased_at, r.finished_at, r.outcome, r.took[u.place] as took, r.results[u.place] as result
from trunq_data.{receipt} r
join trunq_data.{lease} l on l.lease_id = r.lease_id and l.subscription_id = r.subscription_id
cross join lateral unnest(r.ids) with ordinality u(id, place)
where r.outcome <> 'l' and r.subscription_id = (
  select s.subscription_id from trunq.list_subscriptions({queue}) s where s.subscription = 'default');

-- A handler's start is the time of its answer minus the time it ran. The time that the answer waited to be sent counts as
-- waiting, so the true figures are a little lower.
create temporary table first_answer as
select distinct on (a.id) a.id, p.created_at,
  1000 * (extract(epoch from a.finished_at - p.created_at) - a.took)::double precision as waited
from answer a join published p on p.id = a.id
order by a.id, a.finished_at;

create temporary view tally as
select (select count(*) from published) as published,
  count(distinct a.id) as answered,
  count(distinct a.id) filter (where a.outcome = 'r') as retried,
  count(*) filter (where a.outcome = 'r') as failures
from answer a;

create temporary view outcome as
select result ->> 'outcome' as outcome, count(*) from answer where outcome = 'a' group by 1;

create temporary view dead as
select reason, count(*) from trunq.list_dead({queue}, p_limit => 100000, p_brief => true) group by 1;

create temporary view booking as
select count(*) as bookings, count(distinct message_id) as booked, coalesce(sum(euros), 0)::integer as euros
from demo.compensation;

create temporary view latency as
select percentile_cont(0.5) within group (order by waited) as median,
  percentile_cont(0.99) within group (order by waited) as p99,
  max(waited) as longest
from first_answer;

-- Seconds since the first message; waiting times by the second of publication.
create temporary view timeline as
with start as (select min(created_at) as at from published),
sent as (
  select floor(extract(epoch from p.created_at - start.at))::integer as second, count(*) as published
  from published p, start group by 1),
answered as (
  select floor(extract(epoch from a.finished_at - start.at))::integer as second, count(*) as answered
  from answer a, start group by 1),
waited as (
  select floor(extract(epoch from f.created_at - start.at))::integer as second,
    percentile_cont(0.5) within group (order by f.waited) as median,
    percentile_cont(0.99) within group (order by f.waited) as p99
  from first_answer f, start group by 1)
select s.second, coalesce(sent.published, 0) as published, coalesce(answered.answered, 0) as answered,
  waited.median, waited.p99
from generate_series(0, (select max(second) from answered)) s(second)
left join sent using (second) left join answered using (second) left join waited using (second)
order by s.second;

create temporary view cell as
select carrier, hour, flights, cancellations, mean_delay, p90_delay from demo.punctuality order by carrier, hour;

create temporary view office as
select (select count(*) from trunq_log.office where headers ->> 'schedule' = {schedule} and subscription_id is null) as fired,
  (select count(distinct message_id) from demo.count) as counted,
  (select max(unanswered) from demo.count) as most_unanswered;
