drop table trunq.statistic_total;
drop table trunq.pipeline_sample;
create index worker_report_at on trunq.worker_report (at);
drop index trunq.worker_report_process;
alter table trunq.worker_report drop column process;
