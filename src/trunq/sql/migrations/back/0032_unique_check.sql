-- Queues that were made meanwhile do without: nobody but functions writes these rows.
alter table trunq_data._uniquespecimen_unique add constraint until_is_known check (until in ('l', 'd', 't', 'q'));
