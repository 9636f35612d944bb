-- Archives that answers fill are filled by the leader again, from where it stands. What both have written, it would write twice: so it takes
-- what the answers wrote of leases that it has still to take back first.
do $$
declare
  v record;
begin
  for v in select q.* from trunq.taker t join trunq.queue q on q.queue_id = t.queue_id where t.name = '(archive)' and t.at_once is not null loop
    execute format('drop trigger if exists archive on trunq_data.%I', v.receipt_table);
    execute format('drop function if exists trunq_data.%I()', 'archive_' || v.queue_id);
    execute format($q$
      delete from trunq_archive.%1$I a
      where exists (select from trunq_data.%2$I l where l.subscription_id = a.subscription_id and l.lease_id = a.lease_id)
        and case
          when exists (
            select from trunq.taker_mark m where m.queue_id = $1 and m.taker = '(archive)' and m.subscription_id = a.subscription_id)
          then exists (
            select from trunq.taker_mark m where m.queue_id = $1 and m.taker = '(archive)' and m.subscription_id = a.subscription_id
              and (a.lease_id > m.lease_id or a.lease_id = any (m.open)))
          -- It has not begun with it; or has all of one that ended.
          else exists (select from trunq.subscription s where s.subscription_id = a.subscription_id) end
    $q$, v.name, v.lease_table) using v.queue_id;
  end loop;
end $$;
alter table trunq.taker drop column at_once;
drop function if exists trunq.create_archive(text, interval, boolean);
drop function if exists trunq.list_archives();
