drop table trunq.worker_report;
