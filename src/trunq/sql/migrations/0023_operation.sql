-- What an operator does to a whole system: upgrades and restores, a queue at a time, and erasing messages for good.

create table trunq.outdated (
  queue_id integer primary key references trunq.queue on delete cascade,
  changes jsonb not null
);
comment on table trunq.outdated is
  'Queues whose own functions, tables and triggers an upgrade has yet to bring up to date; mostly there are none. changes: what was changed by hand about their functions (trunq._find_changes).';

create table trunq.rebased (
  queue_id integer primary key references trunq.queue on delete cascade,
  system_identifier bigint not null
);
comment on table trunq.rebased is 'Queues that a rebase of all of them has done already, in the cluster with this identifier.';

-- No foreign key: it outlives its queue.
create table trunq.deletion (
  deletion_id bigint generated always as identity primary key,
  queue_id integer not null,
  queue text not null,
  deleted_at timestamptz not null,
  deleted_by text not null,
  messages integer not null,
  running integer not null,
  ids bigint[] not null
);
create index on trunq.deletion (queue_id, deletion_id);
comment on table trunq.deletion is 'Who erased which messages (trunq.delete). messages: of how many something was there; running: how many of them a worker held then.';

do $$
begin
  -- A queue at a time now.
  if to_regprocedure('trunq._refresh_queues()') is not null then
    execute 'drop function trunq._refresh_queues()';
  end if;
end $$;
