-- What workers said is found by worker, and what /metrics tells is kept: figures of pipelines, and totals of the statistics.
alter table trunq.worker_report add column process uuid;
update trunq.worker_report set process = md5(md5(subscription) || md5(worker) || md5(host) || pid::text)::uuid;
alter table trunq.worker_report alter column process set not null;
create index worker_report_process on trunq.worker_report (queue_id, process, at);
drop index trunq.worker_report_at;
comment on column trunq.worker_report.process is 'One value a worker process and subscription: the names themselves may be too long for an index.';

-- What each pipeline was like when the duty sample last looked (functions/pipeline/sampled.sql).
create table trunq.pipeline_sample (
  pipeline_id integer primary key references trunq.pipeline on delete cascade,
  looked_at timestamptz not null,
  fresh_at timestamptz,
  runs bigint not null,
  quarantined bigint not null,
  is_failing boolean not null,
  rows_in bigint,
  rows_out bigint
) with (fillfactor = 70);
create index pipeline_sample_fresh on trunq.pipeline_sample (fresh_at, pipeline_id);
comment on table trunq.pipeline_sample is 'What each pipeline was like when the duty sample last looked at it, with its instances.';
comment on column trunq.pipeline_sample.quarantined is 'Up to 10,000.';
comment on column trunq.pipeline_sample.rows_in is 'Of the newest run that ended; rows_out, too.';

-- What the statistics have brought since they began (functions/keep/total.sql).
create table trunq.statistic_total (
  queue_id integer not null references trunq.queue on delete cascade,
  subscription text not null,
  kind text not null,
  took bigint[] not null,
  waited bigint[] not null,
  took_sum double precision not null,
  waited_sum double precision not null,
  primary key (queue_id, subscription, kind)
) with (fillfactor = 70);
comment on table trunq.statistic_total is
  'How long messages that succeeded ran and waited, since the statistics began, of the first fifty kinds of a queue; no number here ever falls.';
comment on column trunq.statistic_total.took is
  'How many ran for how long, by the bounds of trunq._total_bounds, and the last beyond them. took_sum: seconds, of all. waited: from publishing to the first lease.';
