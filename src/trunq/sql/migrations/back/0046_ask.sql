-- What is set aside comes back with the next look at what is delayed, and goes to whoever leases it.
update trunq.delayed d set due_at = clock_timestamp(), aside = null, aside_at = null where d.aside is not null;
alter table trunq.delayed drop column aside, drop column aside_at;
drop table trunq.ask;
drop sequence trunq.aside_number;
drop type trunq.asking;
alter table trunq.subscription drop column has_asks;
