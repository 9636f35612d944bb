alter table trunq.pace drop column noted_at;
