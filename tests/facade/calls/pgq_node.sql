-- A root, and a branch that says it follows it, in one database.
select pgq_node.register_location('root', 'n1', 'dbname=n1', false)

select pgq_node.register_location('root', 'n2', 'dbname=n2', false)

select pgq_node.register_location('root', 'n3', 'dbname=n3', false)

select * from pgq_node.get_queue_locations('root') order by 1

select * from pgq_node.create_node('root', 'root', 'n1', 'n1_worker', null, null, null)

select * from pgq_node.create_node('root', 'root', 'n1', 'n1_worker', null, null, null)

select * from pgq_node.create_node('none', 'root', 'n1', 'n1_worker', null, null, null)

select * from pgq_node.get_node_info('root')

select * from pgq_node.get_node_info('nosuch')

select pgq_node.is_root_node('root'), pgq_node.is_leaf_node('root')

select pgq_node.is_root_node('nosuch')

select queue_name, queue_external_ticker, queue_disable_insert from pgq.queue order by 1

select queue_name, consumer_name, last_tick from pgq.get_consumer_info() order by 1, 2

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select * from pgq_node.register_subscriber('root', 'n2', 'n2_worker', null)

select * from pgq_node.register_subscriber('root', 'n3', 'n3_worker', null)

select * from pgq_node.register_subscriber('root', 'nosuch', 'n4_worker', null)

select * from pgq_node.get_subscriber_info('root') order by 1

select queue_name, consumer_name, last_tick from pgq.get_consumer_info() order by 1, 2

select * from pgq_node.register_location('root', 'n4', 'dbname=n4', true)

select pgq.insert_event('root', 't', '1')

select pgq.ticker('root')

select pgq_node.maint_watermark('root')

select * from pgq_node.set_subscriber_watermark('root', 'n2', 3)

select * from pgq_node.set_subscriber_watermark('root', 'nosuch', 3)

select * from pgq_node.get_subscriber_info('root') order by 1

select * from pgq_node.set_global_watermark('root', null)

select ev_type, ev_extra1 from pgq.event_1 order by ev_id

-- A worker of the branch reads.
select pgq.next_batch('root', 'n2_worker')

select ev_type, ev_data from pgq.get_batch_events(1) order by ev_id

select pgq.finish_batch(1)

-- Consumers of a node.
select * from pgq_node.register_consumer('root', 'local', 'n1', 1)

select * from pgq_node.get_consumer_info('root') order by 1

select * from pgq_node.get_consumer_state('root', 'local')

select * from pgq_node.set_consumer_paused('root', 'local', true)

select * from pgq_node.set_consumer_uptodate('root', 'local', true)

select * from pgq_node.set_consumer_completed('root', 'local', 2)

select * from pgq_node.set_consumer_error('root', 'local', 'something broke')

select * from pgq_node.get_consumer_state('root', 'local')

select * from pgq_node.set_consumer_paused('root', 'local', false)

select * from pgq_node.set_consumer_paused('root', 'nosuch', false)

select * from pgq_node.change_consumer_provider('root', 'local', 'n2')

select * from pgq_node.unregister_consumer('root', 'local')

select * from pgq_node.get_worker_state('root')

-- A branch: another queue, as it stands in another database.
select pgq_node.register_location('branch', 'n1', 'dbname=n1', false), pgq_node.register_location('branch', 'n2', 'dbname=n2', false), pgq_node.register_location('branch', 'n5', 'dbname=n5', false)

select * from pgq_node.create_node('branch', 'branch', 'n2', 'n2_worker', 'n1', 5, null)

select * from pgq_node.get_node_info('branch')

select queue_name, queue_external_ticker, queue_disable_insert from pgq.queue order by 1

select pgq.insert_event('branch', 't', 'refused')

select pgq.ticker('branch', 7, '2001-01-01 00:00:00+00', 20)

select tick_id, tick_event_seq from pgq.tick t join pgq.queue q on q.queue_id = t.tick_queue where q.queue_name = 'branch' order by 1

select * from pgq_node.set_consumer_completed('branch', 'n2_worker', 7)

select * from pgq_node.get_worker_state('branch')

select * from pgq_node.register_subscriber('branch', 'n5', 'n5_worker', 7)

select * from pgq_node.get_subscriber_info('branch') order by 1

select * from pgq_node.set_node_attrs('branch', 'a=b')

select * from pgq_node.set_global_watermark('branch', 7)

select pgq_node.maint_watermark('branch')

-- A leaf: it keeps nothing.
select pgq_node.register_location('leaf', 'n1', 'dbname=n1', false), pgq_node.register_location('leaf', 'n6', 'dbname=n6', false)

select * from pgq_node.create_node('leaf', 'leaf', 'n6', 'n6_worker', 'n1', 5, null)

select * from pgq_node.get_node_info('leaf')

select * from pgq_node.register_subscriber('leaf', 'n1', 'n1_worker', null)

select count(*) from pgq.queue where queue_name = 'leaf'

-- The branch becomes the root.
select * from pgq_node.demote_root('root', 1, 'n2')

select * from pgq_node.demote_root('root', 2, 'n2')

select pgq.insert_event('root', 't', 'refused')

select * from pgq_node.demote_root('root', 3, 'n2')

select * from pgq_node.get_node_info('root')

select * from pgq_node.promote_branch('branch')

select * from pgq_node.get_node_info('branch')

select pgq.insert_event('branch', 't', 'taken') > 0 as taken

select pgq.ticker('branch') > 7 as ticked

-- Ended.
select * from pgq_node.unregister_subscriber('root', 'n3')

select * from pgq_node.unregister_subscriber('root', 'n3')

select * from pgq_node.drop_node('branch', 'n5')

select * from pgq_node.drop_node('branch', 'n2')

select * from pgq_node.drop_node('leaf', 'n6')

select * from pgq_node.unregister_location('root', 'n4')

select * from pgq_node.get_queue_locations('root') order by 1

select queue_name from pgq.queue order by 1

select co_name from pgq.consumer order by 1
