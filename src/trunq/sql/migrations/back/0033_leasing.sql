alter table trunq_data._lanespecimen_lease drop column keyed;
alter table trunq_data._specimen_lease drop column keyed;
drop table trunq_log._uniquespecimen;
drop type trunq.leasing;
drop type trunq.key_hold;
