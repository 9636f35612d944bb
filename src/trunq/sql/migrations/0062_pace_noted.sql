-- Moments that were taken of a clock that has gone back since are none (functions/pipeline/pace.sql).
alter table trunq.pace add column noted_at timestamptz;
comment on column trunq.pace.noted_at is 'When this was written; null: by an older release. A time to come: the clock has gone back since.';
