-- Every function: its name, arguments and result.
select p.proname, pg_get_function_arguments(p.oid) arguments, pg_get_function_result(p.oid) result, p.proisstrict
from pg_proc p where p.pronamespace = 'pgq'::regnamespace
  and p.proname in ('batch_event_sql', 'batch_event_tables', 'batch_retry', 'create_queue', 'current_event_table', 'drop_queue', 'event_retry',
    'event_retry_raw', 'find_tick_helper', 'finish_batch', 'force_tick', 'get_batch_cursor', 'get_batch_events', 'get_batch_info', 'get_consumer_info',
    'get_queue_info', 'grant_perms', 'insert_event', 'insert_event_raw', 'jsontriga', 'logutriga', 'maint_operations', 'maint_retry_events',
    'maint_rotate_tables_step1', 'maint_rotate_tables_step2', 'maint_tables_to_vacuum', 'next_batch', 'next_batch_custom', 'next_batch_info',
    'quote_fqname', 'register_consumer', 'register_consumer_at', 'seq_getval', 'seq_setval', 'set_queue_config', 'sqltriga', 'ticker', 'tune_storage',
    'unregister_consumer', 'upgrade_schema', 'version')
order by 1, 2

-- Every relation, its columns and their types.
select a.attrelid::regclass::text as relation, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum) as columns
from pg_attribute a where a.attnum > 0 and not a.attisdropped and a.attrelid in ('pgq.queue'::regclass, 'pgq.consumer'::regclass,
  'pgq.tick'::regclass, 'pgq.subscription'::regclass, 'pgq.retry_queue'::regclass, 'pgq.event_template'::regclass) group by 1 order by 1

select pgq.create_queue('shape')

select a.attrelid::regclass::text as relation, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum) as columns
from pg_attribute a where a.attnum > 0 and not a.attisdropped
  and a.attrelid in ('pgq.event_1'::regclass, 'pgq.event_1_0'::regclass, 'pgq.event_1_1'::regclass, 'pgq.event_1_2'::regclass) group by 1 order by 1

select c.relname from pg_class c where c.relnamespace = 'pgq'::regnamespace and c.relkind = 'S' and c.relname ~ '^(batch_id|event_)' order by 1

-- Who may call what.
select p.oid::regprocedure::text as function, array(select r.rolname from unnest(array['pgq_reader', 'pgq_writer', 'pgq_admin']) r(rolname)
    where has_function_privilege(r.rolname, p.oid, 'execute')) as roles
from pg_proc p where p.pronamespace = 'pgq'::regnamespace
  and p.oid::regprocedure::text !~ '^pgq\.(_|adopt_queue)' order by 1

select c.relname, r.rolname, array(select v from unnest(array['select', 'insert', 'update', 'delete', 'truncate']) v where has_table_privilege(r.rolname, c.oid, v)) as privileges
from pg_class c, (values ('pgq_reader'), ('pgq_writer'), ('pgq_admin'), ('public')) r(rolname)
where c.relnamespace = 'pgq'::regnamespace and c.relname in ('queue', 'consumer', 'tick', 'subscription', 'retry_queue', 'event_template', 'event_1', 'event_1_0')
order by 1, 2

select c.relname, r.rolname, array(select v from unnest(array['usage', 'select', 'update']) v where has_sequence_privilege(r.rolname, c.oid, v)) as privileges
from pg_class c, (values ('pgq_reader'), ('pgq_writer'), ('pgq_admin'), ('public')) r(rolname)
where c.relnamespace = 'pgq'::regnamespace and c.relname in ('batch_id_seq', 'event_1_id_seq', 'event_1_tick_seq') order by 1, 2

select r.rolname, r.rolcanlogin, pg_has_role('pgq_admin', r.rolname, 'member') as admin_is_member from pg_roles r where r.rolname ~ '^pgq_(reader|writer|admin)$' order by 1

select pgq.version()

select pgq.upgrade_schema()

select pgq.quote_fqname('a'), pgq.quote_fqname('a.b'), pgq.quote_fqname('a.b.c'), pgq.quote_fqname('A b.C"d'), pgq.quote_fqname(''), pgq.quote_fqname(null)
