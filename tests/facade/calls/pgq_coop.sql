select p.proname, pg_get_function_arguments(p.oid) arguments, pg_get_function_result(p.oid) result, p.proisstrict
from pg_proc p where p.pronamespace = 'pgq_coop'::regnamespace and p.proname !~ '^_' order by 1, 2

select pgq.create_queue('q')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq_coop.register_subconsumer('q', 'main', 'one')

select pgq_coop.register_subconsumer('q', 'main', 'one')

select pgq_coop.register_subconsumer('q', 'main', 'two')

select pgq_coop.register_subconsumer('nosuch', 'main', 'two')

select pgq_coop.register_subconsumer(null, 'main', 'two')

select pgq_coop.register_subconsumer('q', null, 'two')

select pgq_coop.register_subconsumer('q', 'main', null)

select co_id, co_name from pgq.consumer order by 1

select * from pgq.subscription order by sub_consumer

select * from pgq.get_consumer_info() order by 2

select pgq_coop.next_batch('q', 'main', 'one')

select pgq.insert_event('q', 't', '1'), pgq.insert_event('q', 't', '2')

select pgq.ticker('q')

select pgq_coop.next_batch('q', 'main', 'one')

select pgq_coop.next_batch('q', 'main', 'one')

select pgq_coop.next_batch('q', 'main', 'two')

select pgq.insert_event('q', 't', '3')

select pgq.ticker('q')

select pgq_coop.next_batch('q', 'main', 'two')

select ev_data from pgq.get_batch_events(1) order by ev_id

select ev_data from pgq.get_batch_events(2) order by ev_id

select * from pgq.get_batch_info(1)

select * from pgq.get_batch_info(2)

select * from pgq.subscription order by sub_consumer

select * from pgq.get_consumer_info() order by 2

-- The main one has no batch of its own meanwhile.
select pgq.next_batch('q', 'main')

-- In any order.
select pgq_coop.finish_batch(2)

select pgq_coop.finish_batch(2)

select pgq_coop.finish_batch(99)

select pgq_coop.finish_batch(null)

select ev_data from pgq.get_batch_events(1) order by ev_id

select pgq_coop.next_batch('q', 'main', 'one')

select * from pgq.subscription order by sub_consumer

select pgq_coop.finish_batch(1)

select pgq_coop.next_batch('q', 'main', 'one')

-- Sizes.
select pgq.insert_event('q', 't', '4')

select pgq.ticker('q')

select pgq_coop.next_batch_custom('q', 'main', 'one', '1 hour', null, null)

select pgq_coop.next_batch_custom('q', 'main', 'one', null, 100, null)

select pgq_coop.next_batch_custom('q', 'main', 'one', null, null, '1 day')

select pgq_coop.next_batch_custom('q', 'main', 'one', null, 1, null)

-- Taken over: the same number.
select pgq_coop.next_batch('q', 'main', 'two', '1 hour')

update pgq.subscription set sub_active = '2005-01-01' where sub_batch is not null

select consumer_name, current_batch from pgq.get_consumer_info() order by 1

select pgq_coop.next_batch('q', 'main', 'two', '1 hour')

select ev_data from pgq.get_batch_events(3)

select sub_consumer, sub_active, sub_batch, sub_last_tick, sub_next_tick from pgq.subscription order by 1

select * from pgq.get_batch_info(3)

-- The one that was taken for dead comes back: as a new member.
select pgq_coop.next_batch('q', 'main', 'one', '1 hour')

select pgq_coop.next_batch('q', 'main', 'one')

select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info() order by 1

-- An idle dead one goes too.
update pgq.subscription s set sub_active = '2005-01-01' from pgq.consumer c where c.co_id = s.sub_consumer and c.co_name = 'main.one'

select pgq_coop.next_batch('q', 'main', 'three', '1 hour')

select consumer_name, last_tick, current_batch, next_tick from pgq.get_consumer_info() order by 1

-- A retry comes to whoever is next.
select pgq.event_retry(3, 4, 0)

select pgq_coop.finish_batch(3)

select pgq.maint_retry_events()

select pgq.ticker('q')

select ev_id, ev_data, ev_retry from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'three'))

select pgq.batch_retry(4, 0)

-- Taken back.
begin

select pgq_coop.finish_batch(4)

rollback

select pgq_coop.next_batch('q', 'main', 'three')

select pgq_coop.finish_batch(4)

select pgq.maint_retry_events()

select pgq.ticker('q')

select ev_id, ev_data, ev_retry from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'two'))

-- Left.
select pgq_coop.unregister_subconsumer('q', 'main', 'two', 0)

select pgq_coop.unregister_subconsumer('q', 'main', 'two', null)

select pgq_coop.unregister_subconsumer('q', 'main', 'two', 1)

select pgq_coop.unregister_subconsumer('q', 'main', 'two', 0)

select pgq_coop.unregister_subconsumer('q', 'main', 'three', 0)

select pgq_coop.unregister_subconsumer('nosuch', 'main', 'three', 0)

select * from pgq.get_batch_events(5)

select consumer_name, last_tick, current_batch from pgq.get_consumer_info() order by 1

-- Taken over while others went on; the position stays where it is.
select pgq.insert_event('q', 't', 'older')

select pgq.ticker('q')

select ev_data from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'slow'))

select pgq.insert_event('q', 't', 'newer')

select pgq.ticker('q')

select ev_data from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'quick'))

select pgq.insert_event('q', 't', 'newest')

select pgq.ticker('q')

update pgq.subscription s set sub_active = '2005-01-01' from pgq.consumer c where c.co_id = s.sub_consumer and c.co_name = 'main.slow'

select pgq_coop.next_batch('q', 'main', 'helper', '1 hour')

select consumer_name, last_tick, current_batch, next_tick, pending_events from pgq.get_consumer_info() order by 1

select ev_data from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'another', '1 hour'))

select consumer_name, last_tick, current_batch, next_tick, pending_events from pgq.get_consumer_info() order by 1

select pgq_coop.finish_batch(b) from unnest(array[6, 7, 8]) b

select consumer_name, last_tick, current_batch, next_tick, pending_events from pgq.get_consumer_info() order by 1

select pgq_coop.next_batch('q', 'main', 'helper', '1 hour')

-- One that ends with a batch in hand, by PgQ's own call: what it had is over.
select pgq.insert_event('q', 't', 'given up')

select pgq.ticker('q')

select ev_data from pgq.get_batch_events(pgq_coop.next_batch('q', 'main', 'leaver'))

select pgq.unregister_consumer('q', 'main.leaver')

select ev_data from pgq.get_batch_events(9)

select pgq_coop.next_batch('q', 'main', 'helper')

select pgq_coop.unregister_subconsumer('q', 'main', m, 1) from unnest(array['quick', 'helper', 'another']) m

-- Nobody works on: the main one does it alone.
select pgq.insert_event('q', 't', 'for the main one')

select pgq.ticker('q')

select pgq.next_batch('q', 'main')

select pgq_coop.next_batch('q', 'main', 'one')

select pgq.finish_batch(10)

-- Made on the first call.
select pgq_coop.next_batch('q', 'new', 'first')

select pgq_coop.next_batch('q', 'new', 'second')

select pgq_coop.next_batch('nosuch', 'new', 'second')

select consumer_name, last_tick from pgq.get_consumer_info() order by 1

select pgq.unregister_consumer('q', 'new.second')

select pgq.unregister_consumer('q', 'new')

select consumer_name, last_tick from pgq.get_consumer_info() order by 1

select co_name from pgq.consumer order by 1

select pgq_coop.register_subconsumer('q', 'main', 'last'), pgq_coop.register_subconsumer('q', 'main', 'but one')

select pgq.drop_queue('q', true)

select count(*) from pgq.subscription

-- Names are joined by a dot.
select pgq.create_queue('q')

select pgq_coop.register_subconsumer('q', 'a.b', 'c')

select pgq_coop.register_subconsumer('q', 'a', 'b.c')

select consumer_name, last_tick from pgq.get_consumer_info() order by 1

select p.oid::regprocedure::text as function, array(select r.rolname from unnest(array['pgq_reader', 'pgq_writer', 'pgq_admin']) r(rolname)
    where has_function_privilege(r.rolname, p.oid, 'execute')) as roles
from pg_proc p where p.pronamespace = 'pgq_coop'::regnamespace and p.proname !~ '^_' order by 1
