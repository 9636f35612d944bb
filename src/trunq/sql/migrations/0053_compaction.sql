-- What became of the last compaction of a pipeline's Delta table (functions/pipeline/compaction.sql).
create table trunq.pipeline_compaction (
  pipeline_id integer primary key references trunq.pipeline on delete cascade,
  done bigint not null default 0,
  holder uuid,
  held_until timestamptz,
  began_at timestamptz,
  ended_at timestamptz,
  files_merged bigint,
  files_made bigint,
  files_deleted bigint,
  failures integer not null default 0,
  error text,
  retry_at timestamptz
);
comment on table trunq.pipeline_compaction is 'The last compaction of each Delta table that a pipeline writes, and who is at one.';
comment on column trunq.pipeline_compaction.done is 'How many runs had ended at the last one that succeeded: so many have written since.';
comment on column trunq.pipeline_compaction.holder is 'Who is at one, up to held_until: another begins none. Two at once lose nothing, but one of them works in vain.';
comment on column trunq.pipeline_compaction.failures is 'How many in a row failed, up to the last one; the next is not begun before retry_at.';
