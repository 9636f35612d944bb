select pgq.create_queue('first')

select pgq.create_queue('first')

select pgq.create_queue(null)

select * from pgq.queue

select * from pgq.tick

select * from pgq.get_queue_info('first')

select * from pgq.get_queue_info()

select * from pgq.get_queue_info(null)

select * from pgq.get_queue_info('nosuch')

-- Names have no rules.
select pgq.create_queue('Mein Queue'), pgq.create_queue('a"b''c'), pgq.create_queue(''), pgq.create_queue('ünïcode.%s')

select pgq.create_queue('a' || repeat('b', 200)), pgq.create_queue('trunq'), pgq.create_queue('select'), pgq.create_queue('first ')

select queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_tick_seq from pgq.queue order by 1

select pgq.insert_event('Mein Queue', 'a', 'b'), pgq.insert_event('a"b''c', 'a', 'b'), pgq.insert_event('', 'a', 'b'), pgq.insert_event('ünïcode.%s', 'a', 'b')

select ev_id, ev_type from pgq.event_2

select pgq.current_event_table('Mein Queue'), pgq.current_event_table('a"b''c')

-- A number of a queue that was dropped does not come again.
select pgq.drop_queue('select')

select pgq.drop_queue('select')

select pgq.drop_queue(null)

select pgq.drop_queue('select', true)

select pgq.create_queue('select')

select queue_id from pgq.queue where queue_name = 'select'

select pgq.register_consumer('select', 'c')

select pgq.drop_queue('select')

select pgq.drop_queue('select', false)

select pgq.drop_queue('select', null)

select pgq.create_queue('held'), pgq.register_consumer('held', 'c'), pgq.register_consumer('held', 'd')

select pgq.drop_queue('held', true)

select * from pgq.consumer order by 1

select count(*) from pgq.subscription s join pgq.queue q on q.queue_id = s.sub_queue where q.queue_name = 'held'

-- Settings.
select pgq.set_queue_config('first', 'ticker_max_count', '7')

select pgq.set_queue_config('first', 'ticker_max_lag', '7 seconds'), pgq.set_queue_config('first', 'ticker_idle_period', '77 seconds')

select pgq.set_queue_config('first', 'ticker_paused', 'true'), pgq.set_queue_config('first', 'external_ticker', 'true'), pgq.set_queue_config('first', 'rotation_period', '3 hours')

select * from pgq.queue where queue_name = 'first'

select pgq.set_queue_config('first', 'ticker_paused', 'false'), pgq.set_queue_config('first', 'external_ticker', 'no')

select pgq.set_queue_config('first', 'ticker_max_count', 'many')

select pgq.set_queue_config('first', 'ticker_max_lag', 'soon')

select pgq.set_queue_config('first', 'ntables', '4')

select pgq.set_queue_config('first', 'disable_insert', 'true')

select pgq.set_queue_config('first', 'queue_ticker_max_count', '4')

select pgq.set_queue_config('first', 'x; drop table y', '4')

select pgq.set_queue_config('nosuch', 'ticker_max_count', '4')

select pgq.set_queue_config(null, 'ticker_max_count', '4')

select pgq.set_queue_config('first', null, '4')

select pgq.set_queue_config('first', 'ticker_max_count', null)

select pgq.set_queue_config('first', 'ticker_max_lag', '0'), pgq.set_queue_config('first', 'ticker_idle_period', '0')

select queue_ticker_max_count, queue_ticker_max_lag, queue_ticker_idle_period from pgq.queue where queue_name = 'first'

-- People set them by hand too.
update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '1 minute', queue_ticker_idle_period = '1 hour'

update pgq.queue set queue_rotation_period = '1 day', queue_disable_insert = true, queue_per_tx_limit = 3, queue_extra_maint = array['public.mine'], queue_external_ticker = true, queue_ticker_paused = true where queue_name = 'first'

select * from pgq.queue where queue_id <= 2 order by 1

update pgq.queue set queue_disable_insert = false, queue_per_tx_limit = null, queue_extra_maint = null where queue_name = 'first'

select queue_disable_insert, queue_per_tx_limit, queue_extra_maint from pgq.queue where queue_id = 1

select pgq.tune_storage('first')

select pgq.grant_perms('first')

select pgq.grant_perms('nosuch')

select pgq.seq_getval('pgq.event_1_id_seq'), pgq.seq_getval('pgq.event_1_tick_seq')

select pgq.seq_setval('pgq.event_1_id_seq', 10), pgq.seq_setval('pgq.event_1_id_seq', 5), pgq.seq_getval('pgq.event_1_id_seq')

select pgq.seq_getval('pgq.nosuch')

select pgq.insert_event('first', 'after', 'ten')
