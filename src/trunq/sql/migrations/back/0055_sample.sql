drop table trunq.audit;
