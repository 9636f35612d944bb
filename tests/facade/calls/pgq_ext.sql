select p.proname, pg_get_function_arguments(p.oid) arguments, pg_get_function_result(p.oid) result, p.proisstrict
from pg_proc p where p.pronamespace = 'pgq_ext'::regnamespace and p.proname !~ '^_' order by 1, 2

select a.attrelid::regclass::text as relation, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull, ', ' order by a.attnum) as columns
from pg_attribute a join pg_class c on c.oid = a.attrelid where a.attnum > 0 and c.relnamespace = 'pgq_ext'::regnamespace and c.relkind = 'r' group by 1 order by 1

select pgq_ext.upgrade_schema()

select pgq_ext.get_last_tick('c'), pgq_ext.get_last_tick('c', 's'), pgq_ext.get_last_tick(null)

select pgq_ext.set_last_tick('c', 5), pgq_ext.set_last_tick('c', 's', 6)

select pgq_ext.get_last_tick('c'), pgq_ext.get_last_tick('c', 's'), pgq_ext.get_last_tick('c', '')

select pgq_ext.set_last_tick('c', 4)

select pgq_ext.get_last_tick('c')

select pgq_ext.set_last_tick('c', null), pgq_ext.set_last_tick('c', null)

select pgq_ext.get_last_tick('c'), pgq_ext.get_last_tick('c', 's')

select pgq_ext.set_last_tick(null, 4)

select * from pgq_ext.completed_tick

select pgq_ext.is_batch_done('c', 1)

select pgq_ext.set_batch_done('c', 1)

select pgq_ext.is_batch_done('c', 1), pgq_ext.is_batch_done('c', 's', 1), pgq_ext.is_batch_done('c', 2)

select pgq_ext.set_batch_done('c', 1)

select pgq_ext.set_batch_done('c', 's', 3)

-- Only the last one is remembered.
select pgq_ext.set_batch_done('c', 2)

select pgq_ext.is_batch_done('c', 1)

select pgq_ext.set_batch_done('c', 1)

select pgq_ext.set_batch_done('c', 0)

select pgq_ext.set_batch_done('c', -1)

select pgq_ext.set_batch_done('c', null)

select pgq_ext.is_batch_done('c', null)

select pgq_ext.set_batch_done(null, 1)

select * from pgq_ext.completed_batch order by 1, 2

select pgq_ext.is_event_done('c', 3, 101)

select pgq_ext.set_event_done('c', 3, 101)

select pgq_ext.is_event_done('c', 3, 101), pgq_ext.is_event_done('c', 3, 102), pgq_ext.is_event_done('c', 's', 3, 101)

select pgq_ext.set_event_done('c', 3, 101)

select pgq_ext.set_event_done('c', 3, 102), pgq_ext.set_event_done('c', 's', 3, 101)

select * from pgq_ext.completed_event order by 1, 2, 3, 4

-- Another batch: the events of the one before are forgotten.
select pgq_ext.set_event_done('c', 4, 103)

select * from pgq_ext.completed_event order by 1, 2, 3, 4

select * from pgq_ext.partial_batch order by 1, 2

select pgq_ext.set_event_done('c', null, 103)

select pgq_ext.set_event_done('c', 4, null)

select p.oid::regprocedure::text as function, array(select r.rolname from unnest(array['pgq_reader', 'pgq_writer', 'pgq_admin']) r(rolname)
    where has_function_privilege(r.rolname, p.oid, 'execute')) as roles
from pg_proc p where p.pronamespace = 'pgq_ext'::regnamespace and p.proname !~ '^_' order by 1
