-- Streams: what a batch of an exclusive subscription notes (batch.sql), and queues that write nothing while nothing happens.

-- Null: a queue with nothing new gets no ticks.
alter table trunq.queue alter column tick_idle_period drop not null;
alter table trunq.queue alter column tick_idle_period drop default;

-- The sequence of a queue's ids, as it is named in SQL: another system's API over the same log may bring its own.
alter table trunq.queue add column id_sequence text;
update trunq.queue set id_sequence = 'trunq_data.' || message_sequence;
alter table trunq.queue alter column id_sequence set not null;
alter table trunq.queue drop column message_sequence;
comment on column trunq.queue.id_sequence is 'The sequence that gives its messages their ids, with its schema, quoted where it must be.';

do $$
declare
  v_table text;
  v_function regprocedure;
begin
  foreach v_table in array array['_specimen_lease', '_lanespecimen_lease'] loop
    execute format('alter table trunq_data.%I add column after_txid xid8, add column after_id bigint, add column failures smallint, add column error text',
      v_table);
  end loop;
  -- Functions that take more now, or return more: made anew.
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.proname in ('next_batch', 'read_batch', 'finish_batch', 'subscribe', '_put_batch', '_newest_batch', '_start',
        '_start_tick', '_check_start')
      or p.pronamespace = 'trunq_queue'::regnamespace and p.prokind = 'f' and p.proname ~ '^_(lane|unique)?specimen_(next_batch|finish_batch|newest_batch)$'
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;
comment on column trunq_data._specimen_lease.open_leases is
  'Of a shared subscription with a limit: the leases that were open. Of an exclusive one: the batches that were open before this one; null: none.';
comment on column trunq_data._specimen_lease.after_txid is
  'With after_id, of a batch that is a part of its window: it begins behind this message, and ends with (last_txid, last_id). Null: it begins with the window.';
comment on column trunq_data._specimen_lease.failures is 'How many hand-outs of these messages failed before, in this batch or in larger ones; null: none.';
comment on column trunq_data._specimen_lease.error is 'What the last of them failed with.';
