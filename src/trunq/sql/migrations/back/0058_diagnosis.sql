alter table trunq.leader drop column ahead;
alter table trunq.worker_report drop column ahead;
alter table trunq.sample drop column bytes;
alter table trunq.function drop column body;
