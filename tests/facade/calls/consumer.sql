select pgq.register_consumer('q', 'c')

select pgq.create_queue('q')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq.insert_event('q', 't', 'before the registration, after the last tick')

select pgq.register_consumer('q', 'c')

select pgq.register_consumer('q', 'c')

select pgq.register_consumer('q', null)

select pgq.register_consumer(null, 'c')

select pgq.register_consumer('nosuch', 'c')

select pgq.register_consumer('q', 'Odd "name" %s'), pgq.register_consumer('q', ''), pgq.register_consumer('q', 'select'), pgq.register_consumer('q', 'default')

select co_id, co_name from pgq.consumer order by 1

select * from pgq.subscription order by sub_consumer

select * from pgq.get_consumer_info() order by 1, 2

select * from pgq.get_consumer_info('q') order by 1, 2

select * from pgq.get_consumer_info('q', 'c')

select * from pgq.get_consumer_info('q', 'nosuch')

select * from pgq.get_consumer_info('nosuch')

select consumer_name from pgq.get_consumer_info(null, 'c')

select pgq.ticker('q')

select pgq.next_batch('q', 'c')

select ev_id, ev_data from pgq.get_batch_events(1)

select * from pgq.get_consumer_info('q', 'c')

select * from pgq.get_batch_info(1)

-- At a tick.
select pgq.insert_event('q', 't', 'second')

select pgq.ticker('q')

select pgq.insert_event('q', 't', 'third')

select pgq.ticker('q')

select pgq.register_consumer_at('q', 'at2', 2)

select pgq.register_consumer_at('q', 'at99', 99)

select pgq.register_consumer_at('q', 'atnull', null)

select pgq.register_consumer_at('nosuch', 'c', 1)

select consumer_name, last_tick, pending_events from pgq.get_consumer_info() where consumer_name ~ '^at' order by 1

select * from pgq.next_batch_info('q', 'at2')

select ev_data from pgq.get_batch_events(2) order by 1

-- Moved, its open batch forgotten.
select pgq.register_consumer_at('q', 'at2', 1)

select pgq.finish_batch(2)

select * from pgq.get_batch_events(2)

select sub_last_tick, sub_batch, sub_next_tick from pgq.subscription s join pgq.consumer c on c.co_id = s.sub_consumer where co_name = 'at2'

select pgq.next_batch('q', 'at2')

select ev_data from pgq.get_batch_events(3) order by 1

select pgq.register_consumer_at('q', 'at2', 99)

select pgq.register_consumer_at('q', 'at2', null)

select pgq.next_batch('q', 'at2')

select pgq.register_consumer_at('q', 'at2', 4)

select pgq.next_batch('q', 'at2')

select last_tick, current_batch, next_tick, pending_events from pgq.get_consumer_info('q', 'at2')

-- Gone.
select pgq.unregister_consumer('q', 'nosuch')

select pgq.unregister_consumer('nosuch', 'c')

select pgq.unregister_consumer('q', 'c')

select pgq.unregister_consumer('q', 'c')

select pgq.finish_batch(1)

select pgq.next_batch('q', 'c')

select pgq.get_batch_events(1)

select * from pgq.get_batch_info(1)

select co_name from pgq.consumer order by 1

select pgq.register_consumer('q', 'c')

select co_id > 1 as another from pgq.consumer where co_name = 'c'

-- One name in two queues.
select pgq.create_queue('r')

select pgq.register_consumer('r', 'c')

select pgq.unregister_consumer('q', 'c')

select count(*) from pgq.consumer where co_name = 'c'

select queue_name, consumer_name, last_tick from pgq.get_consumer_info() order by 1, 2
