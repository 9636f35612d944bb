-- Keys by which ids are made into public ones (functions/work/public_id.sql).
create table trunq.public_key (
  key_id integer generated always as identity primary key,
  key bytea not null
    constraint key_is_32_bytes check (octet_length(key) = 32),
  created_at timestamptz not null default clock_timestamp()
);
comment on table trunq.public_key is
  'Secret. The newest makes public ids (trunq.public_ids), the others still find theirs. Granted to nobody.';
insert into trunq.public_key (key)
select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

-- Which queues notify again what waits unread (functions/log/remind.sql).
create table trunq.reminder (
  queue_id integer primary key references trunq.queue on delete cascade,
  after interval not null
    constraint after_is_a_second_or_more check (after >= '1 second'),
  subscriptions text[],
  looked_at timestamptz,
  txid xid8,
  id bigint,
  due_at timestamptz,
  times integer not null default 0
) with (fillfactor = 50);
create index reminder_looked on trunq.reminder (looked_at nulls first);
comment on table trunq.reminder is 'Queues that announce again what waits unread. subscriptions null: for any shared one.';
comment on column trunq.reminder.id is 'The message that waits longest, with txid its row in the log; it is announced again at due_at, unless it is read before. times: how often it was.';
