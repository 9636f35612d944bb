-- A column of a sink may be gone, since it was renamed (functions/pipeline/schema.sql).
alter table trunq.pipeline_column alter column type drop not null;
comment on column trunq.pipeline_column.type is 'null: the sink has it no longer, since it was renamed.';
