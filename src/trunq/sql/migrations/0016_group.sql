-- Groups: members who share one exclusive subscription, or its messages by key over slots (functions/stream/group.sql).
create table trunq.subscription_group (
  group_id integer generated always as identity primary key,
  queue_id integer not null references trunq.queue on delete cascade,
  name text not null
    constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$'),
  -- Null: whole batches of one subscription, which has the group's name.
  slots integer
    constraint slots_are_a_power_of_two check (slots between 1 and 1024 and slots & (slots - 1) = 0),
  created_at timestamptz not null default clock_timestamp(),
  unique (queue_id, name)
);
comment on table trunq.subscription_group is 'One row for each group of readers. Its subscriptions: one, or one for each slot.';

create table trunq.member (
  group_id integer not null references trunq.subscription_group on delete cascade,
  name text not null,
  joined_at timestamptz not null,
  seen_at timestamptz not null,
  primary key (group_id, name)
) with (fillfactor = 50);
comment on table trunq.member is 'Who reads in a group. What a member has in hand, leases tell.';
comment on column trunq.member.seen_at is 'When it last asked for a batch, within ten seconds.';

alter table trunq.subscription
  add column group_id integer references trunq.subscription_group on delete cascade,
  add column slot smallint constraint only_groups_have_slots check (slot is null or group_id is not null),
  drop constraint name_is_short_and_plain,
  -- A slot is named after its group: no name that anybody gives.
  add constraint name_is_short_and_plain check (name ~ case when slot is null then '^[a-z][a-z0-9_]{0,47}$' else '^[a-z][a-z0-9_]{0,47}#[0-9]+$' end);
create unique index on trunq.subscription (group_id, slot) where group_id is not null;
comment on column trunq.subscription.slot is 'Of a group by key: which part of the keys. Null: all messages.';

do $$
declare
  v_table text;
  c_put_batch constant text := 'trunq._put_batch(trunq.queue, integer, text, pg_snapshot, pg_snapshot, bigint, bigint, smallint, bigint[])';
begin
  foreach v_table in array array['_specimen_lease', '_lanespecimen_lease'] loop
    execute format('alter table trunq_data.%I add column frontier_tick_id bigint, add column frontier pg_snapshot', v_table);
  end loop;
  if to_regprocedure(c_put_batch) is not null then
    execute 'drop function ' || c_put_batch;
  end if;
end $$;
comment on column trunq_data._specimen_lease.frontier_tick_id is
  'With frontier, of a batch behind which others were handed out already: up to where. Null: up to its own end.';
