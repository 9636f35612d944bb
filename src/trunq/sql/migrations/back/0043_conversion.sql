drop table trunq.seam;
alter table trunq.queue drop column reshaped_at;
