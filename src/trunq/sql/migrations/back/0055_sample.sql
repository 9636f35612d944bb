drop table trunq.audit;
drop table trunq.worker_report;
drop table trunq.sample;
