-- One row an answer of the queue's workers: which message, when, how it was answered, how long its handler ran.
--
-- trunq.list_messages() is for pages; this counts a whole run, so it goes over leases and receipts once. Only for numbers to
-- show: nothing here is an interface, and the layout of trunq_data may change with any version.
create temporary table answer as
select u.id, l.worker, l.leased_at, r.finished_at, r.outcome, r.took[u.place] as took, r.errors[u.place] as error,
  r.results[u.place] as result
from trunq_data.{receipt} r
join trunq_data.{lease} l on l.lease_id = r.lease_id and l.subscription_id = r.subscription_id
cross join lateral unnest(r.ids) with ordinality u(id, place)
where r.subscription_id = (
  select s.subscription_id from trunq.list_subscriptions({queue}) s where s.subscription = 'default');
