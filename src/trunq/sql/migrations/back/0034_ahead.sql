-- What was taken ahead and the position has not come to yet would be handed out again: let it pass first.
alter type trunq.leasing drop attribute ahead;
alter table trunq_data._specimen_lease drop column ahead;
drop table trunq.ahead;
