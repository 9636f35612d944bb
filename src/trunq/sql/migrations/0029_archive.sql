-- An archive is a taker (functions/keep/archive.sql), with the marks of one, and goes on where it was.
alter table trunq.taker
  drop constraint name_is_short_and_plain,
  add constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$' or name = '(archive)'),
  add column archive_for interval
    constraint archive_for_is_positive check (archive_for > '0');
comment on table trunq.taker is
  'One row for each who takes the history of a queue elsewhere: a pipeline, by its name, or the queue''s archive, by the name (archive). Rotation waits for it.';
comment on column trunq.taker.archive_for is 'How long the archive keeps a row; null: for ever.';

insert into trunq.taker (queue_id, name, created_at, archive_for)
select a.queue_id, '(archive)', now(), a.archive_for from trunq.archive_policy a;
insert into trunq.taker_mark (queue_id, taker, subscription_id, subscription, reader, lease_id, open)
select m.queue_id, '(archive)', m.subscription_id, m.subscription,
  format('%s/%s', m.subscription_id, (extract(epoch from s.created_at) * 1000000)::bigint), m.lease_id, m.open
from trunq.archive_mark m join trunq.archive_policy a using (queue_id) left join trunq.subscription s using (subscription_id);

-- Functions that take other arguments now, some of them rows of the tables that go.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('_archive', '_walk', '_write_archive')
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
drop table trunq.archive_mark, trunq.archive_policy;
