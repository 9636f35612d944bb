-- Who may what: everybody looks; pgq_reader reads batches, pgq_writer publishes, pgq_admin is both and does the rest. Functions run with the
-- rights of trunq's owner, so none of them needs rights on trunq's own schemas. A role of PgQ's may do so with all of PgQ's queues, and with
-- no others.

do $$
declare
  v record;
begin
  for v in
    select p.oid::regprocedure signature, p.proname as name, p.prorettype = 'trigger'::regtype is_trigger
    from pg_proc p where p.pronamespace in (select n.oid from pg_namespace n where n.nspname in ('pgq', 'pgq_coop'))
  loop
    execute format('revoke execute on function %s from public', v.signature);
    continue when v.name in ('adopt_queue') or v.is_trigger and v.name like '\_%';
    execute format('grant execute on function %s to %s', v.signature, case
      -- _open and _stand: to look at pgq.subscription. _refuse_replica: whoever inserts gets its error.
      when v.name in ('seq_getval', 'get_queue_info', 'get_consumer_info', 'quote_fqname', 'version', '_open', '_stand', '_refuse_replica') then 'public'
      when v.name in ('batch_event_sql', 'batch_event_tables', 'find_tick_helper', 'register_consumer', 'register_consumer_at', 'unregister_consumer',
        'next_batch_info', 'next_batch', 'next_batch_custom', 'get_batch_events', 'get_batch_info', 'get_batch_cursor', 'event_retry', 'batch_retry',
        'force_tick', 'finish_batch', 'register_subconsumer', 'unregister_subconsumer', '_require_batch') then 'pgq_reader, pgq_admin'
      when v.name in ('insert_event', 'current_event_table', 'jsontriga', 'logutriga', 'sqltriga') then 'pgq_writer, pgq_admin'
      when v.name not like '\_%' or v.name = '_grant_perms_from' then 'pgq_admin' else 'current_user' end);
  end loop;
end $$;
grant usage on schema pgq to public;
grant select on pgq.queue, pgq.tick, pgq.subscription, pgq.consumer to public;
grant select, insert, update, delete on pgq.queue, pgq.tick, pgq.subscription, pgq.consumer, pgq.retry_queue to pgq_admin;
grant select on pgq.event_template to pgq_reader;
grant select, insert, truncate on pgq.event_template to pgq_admin;
