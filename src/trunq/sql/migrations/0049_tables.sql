-- Pipelines of many tables (functions/pipeline/look.sql), and backfills in shares (functions/pipeline/backfill.sql).
alter table trunq.pipeline
  add column refused text,
  add column hint text,
  add column refused_at timestamptz,
  add constraint refused_since_a_time check ((refused is null) = (refused_at is null));
create index pipeline_refused on trunq.pipeline (refused_at) where refused is not null;
comment on column trunq.pipeline.refused is 'Of the instance of a table why nobody asks for runs of it: it is gone, say. hint: the way out.';

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

-- Postgres does not replace a function that has more parameters, or returns another row.
do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.backfill_pipeline(text, jsonb)","trunq.list_instances(text, integer)"}'::text[] loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
