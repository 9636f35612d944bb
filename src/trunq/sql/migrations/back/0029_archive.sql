-- An archive has its own policy and marks again, and is no taker.
create table trunq.archive_policy (
  queue_id integer primary key references trunq.queue on delete cascade,
  archive_for interval
    constraint archive_for_is_positive check (archive_for > '0')
);
comment on table trunq.archive_policy is 'Queues with an archive (functions/keep/archive.sql). archive_for null: for ever.';
create table trunq.archive_mark (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription_id integer not null,
  subscription text not null,
  lease_id bigint not null default 0,
  open bigint[] not null default '{}',
  primary key (queue_id, subscription_id)
) with (fillfactor = 50);
comment on table trunq.archive_mark is
  'How far the attempts of a subscription are archived: its leases up to lease_id, but for the open ones, which it passed. It outlives its subscription until all is archived.';

insert into trunq.archive_policy (queue_id, archive_for)
select t.queue_id, t.archive_for from trunq.taker t where t.name = '(archive)';
insert into trunq.archive_mark (queue_id, subscription_id, subscription, lease_id, open)
select m.queue_id, m.subscription_id, m.subscription, m.lease_id, m.open from trunq.taker_mark m where m.taker = '(archive)';
delete from trunq.taker t where t.name = '(archive)';

alter table trunq.taker
  drop column archive_for,
  drop constraint name_is_short_and_plain,
  add constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$');
comment on table trunq.taker is 'One row for each who takes the history of a queue elsewhere: a pipeline, by its name. Rotation waits for it.';
