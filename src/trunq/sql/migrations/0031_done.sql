-- What a member found of its group (stream/slot.sql), so that an empty poll looks at what is new and not at every slot.
alter table trunq.subscription_group add column moves integer not null default 0;
comment on column trunq.subscription_group.moves is 'How often somebody moved a slot, perhaps back.';

alter table trunq.member
  add column done pg_snapshot,
  add column done_tick_id bigint,
  add column done_moves integer,
  add column done_at timestamptz;
comment on column trunq.member.done is
  'In every slot all that this snapshot sees was done, and no batch open, when this member found nothing at done_at; the slot furthest behind stood at done_tick_id. Holds while moves of the group is done_moves.';

-- It takes another argument. The specimen's goes here, those of queues when each is brought up to date.
do $$
begin
  if to_regprocedure('trunq_queue._specimen_slots(integer, text, timestamptz)') is not null then
    drop function trunq_queue._specimen_slots(integer, text, timestamptz);
  end if;
end $$;
