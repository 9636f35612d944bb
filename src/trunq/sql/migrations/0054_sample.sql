-- What each subscription was like at a time, every few seconds of a day (functions/operate/sample.sql).
create table trunq.sample (
  queue_id integer not null,
  subscription text not null,
  at timestamptz not null,
  segment smallint not null,
  looked_at timestamptz not null,
  inserted bigint,
  snapshot pg_snapshot,
  published bigint,
  last_id bigint,
  mode text,
  ready bigint,
  leased bigint,
  delayed bigint,
  dead bigint,
  parked bigint,
  workers integer,
  done_last_minute bigint,
  oldest_ready_at timestamptz,
  oldest_dead_at timestamptz,
  estimated text[],
  paused boolean,
  paused_until timestamptz,
  lost_at timestamptz,
  pending bigint,
  pending_since timestamptz,
  answered bigint,
  answers jsonb,
  counted jsonb,
  counted_to timestamptz,
  primary key (queue_id, subscription, at, segment)
) partition by list (segment);
create index sample_at on trunq.sample (at);
do $$
begin
  for n in 0 .. 5 loop
    execute format('create table trunq_data._sample_%s partition of trunq.sample for values in (%s)', n, n);
  end loop;
end $$;
comment on table trunq.sample is
  'What each subscription was like at a time; the row of a queue has an empty subscription, and that of the duty itself queue 0. Segments of six hours, which TRUNCATE empties.';
comment on column trunq.sample.looked_at is 'When its figures were looked up: a queue where nothing happens gets a row a minute that repeats them.';
comment on column trunq.sample.inserted is 'Of a queue: how many rows Postgres says were inserted into its segments of that time. Another number: something happened.';
comment on column trunq.sample.snapshot is 'Of a queue: published counts the messages that this sees.';
comment on column trunq.sample.answers is 'How many answers of each outcome there were since the subscription was first counted; answered is their sum. counted: those before counted_to.';
