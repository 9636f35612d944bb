-- Pipelines of many tables (functions/pipeline/table.sql), and backfills in shares (functions/pipeline/backfill.sql).
alter table trunq.pipeline
  add column tables_of integer references trunq.pipeline on delete cascade;
create index pipeline_tables_of on trunq.pipeline (tables_of) where tables_of is not null;
comment on column trunq.pipeline.tables_of is 'The pipeline of many tables that made it, for one of them.';

create table trunq.pipeline_table (
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  schema_name text not null,
  table_name text not null,
  primary key (pipeline_id, schema_name, table_name),
  child_id integer unique references trunq.pipeline on delete set null,
  look bigint not null,
  is_gone boolean not null default false,
  refused text,
  hint text,
  noted_at timestamptz not null
);
create index pipeline_table_amiss on trunq.pipeline_table (pipeline_id) where is_gone or refused is not null;
comment on table trunq.pipeline_table is 'One row a table that has matched what a pipeline of many tables names.';
comment on column trunq.pipeline_table.child_id is 'The pipeline that was made for it.';
comment on column trunq.pipeline_table.look is 'The newest look that has found it.';
comment on column trunq.pipeline_table.refused is 'Why it is stepped over.';
comment on column trunq.pipeline_table.noted_at is 'Since when is_gone and refused say what they say.';

create table trunq.pipeline_backfill (
  pipeline_id integer not null references trunq.pipeline on delete cascade,
  backfill bigint not null,
  primary key (pipeline_id, backfill),
  range jsonb not null,
  every text not null,
  at_once integer not null,
  shares integer not null,
  done integer not null default 0,
  failed integer not null default 0,
  cancelled integer not null default 0,
  failures integer not null default 0,
  took interval not null default '0',
  error text,
  created_at timestamptz not null,
  ended_at timestamptz,
  outcome text
    constraint outcome_is_known check (outcome in ('done', 'failed', 'cancelled')),
  constraint ended_with_an_outcome check ((ended_at is null) = (outcome is null))
);
comment on table trunq.pipeline_backfill is 'One row a backfill in shares. backfill: the message that asked for its first share. The newest 100 of each pipeline stay.';
comment on column trunq.pipeline_backfill.failures is 'How many shares failed since one was done: after three it stops.';
comment on column trunq.pipeline_backfill.took is 'How long the shares that ended took, each from its message on.';
comment on column trunq.pipeline_backfill.error is 'Of the newest share that failed, or why no more of them are asked for.';

create table trunq.pipeline_share (
  pipeline_id integer not null,
  backfill bigint not null,
  share integer not null,
  primary key (pipeline_id, backfill, share),
  foreign key (pipeline_id, backfill) references trunq.pipeline_backfill on delete cascade,
  range jsonb not null,
  message_id bigint,
  asked_at timestamptz,
  ended_at timestamptz,
  outcome text
    constraint outcome_is_known check (outcome in ('done', 'failed', 'cancelled')),
  rows_out bigint,
  error text
);
create index pipeline_share_message on trunq.pipeline_share (pipeline_id, message_id) where message_id is not null;
create index pipeline_share_waiting on trunq.pipeline_share (pipeline_id, backfill, share) where outcome is null and message_id is null;
create index pipeline_share_asked on trunq.pipeline_share (pipeline_id, backfill) where outcome is null and message_id is not null;
comment on table trunq.pipeline_share is 'One row a share of a backfill: a range, run by a message of its own. message_id null: it waits for its turn.';

-- Postgres does not replace a function that has more parameters.
do $$
begin
  if to_regprocedure('trunq.backfill_pipeline(text, jsonb)') is not null then
    drop function trunq.backfill_pipeline(text, jsonb);
  end if;
end $$;
