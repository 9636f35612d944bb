select pgq.create_queue('q')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq.register_consumer('q', 'c'), pgq.register_consumer('q', 'd')

select pgq.insert_event('q', 't', '1', 'x1', 'x2', 'x3', 'x4'), pgq.insert_event('q', 't', '2'), pgq.insert_event('q', null, null), pgq.insert_event('q', 't', '4')

select pgq.ticker('q')

select pgq.next_batch('q', 'c'), pgq.next_batch('q', 'd')

select pgq.event_retry(1, 1, 0)

select pgq.event_retry(1, 1, 0)

select pgq.event_retry(1, 1, now())

select pgq.event_retry(1, 99, 0)

select pgq.event_retry(99, 1, 0)

select pgq.event_retry(null, 1, 0)

select pgq.event_retry(1, null, 0)

select pgq.event_retry(1, 3, null::int)

select pgq.event_retry(1, 3, '2001-01-01'::timestamptz)

-- The same event, of the other consumer.
select pgq.event_retry(2, 1, 3600)

select * from pgq.retry_queue order by ev_owner, ev_id

select ev_retry_after > now() + '59 minutes' as in_an_hour from pgq.retry_queue where ev_owner = 2

select pgq.maint_retry_events()

select ev_id, ev_owner from pgq.retry_queue order by 1

select pgq.finish_batch(1), pgq.finish_batch(2)

select pgq.ticker('q')

select pgq.next_batch('q', 'c'), pgq.next_batch('q', 'd')

select * from pgq.get_batch_events(3)

select * from pgq.get_batch_events(4)

-- Again: the count goes on.
select pgq.event_retry(3, 1, 0)

select pgq.maint_retry_events()

select pgq.maint_retry_events()

select pgq.finish_batch(3)

select pgq.ticker('q')

select ev_id, ev_retry, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgq.get_batch_events(pgq.next_batch('q', 'c'))

select ev_id, ev_owner, ev_retry from pgq.event_1 order by 1, 3 nulls first

-- A whole batch.
select pgq.batch_retry(5, 0)

select pgq.batch_retry(5, 0)

select pgq.batch_retry(99, 0)

select pgq.batch_retry(null, 0)

select pgq.batch_retry(5, null)

select ev_id, ev_owner, ev_retry from pgq.retry_queue order by ev_owner, ev_id

select pgq.finish_batch(5)

select pgq.batch_retry(5, 0)

select pgq.event_retry(5, 1, 0)

select pgq.maint_retry_events()

select pgq.seq_getval('pgq.event_1_id_seq')

-- In a transaction that is taken back.
select pgq.ticker('q')

begin

select pgq.event_retry(pgq.next_batch('q', 'c'), 1, 0)

rollback

select pgq.next_batch('q', 'c')

select count(*) from pgq.retry_queue where ev_owner = 1

-- Raw.
select pgq.event_retry_raw('q', 'c', '2001-01-01', 77, '2001-02-03 04:05:06+00', 4, 't', 'raw', '1', '2', '3', '4')

select pgq.event_retry_raw('q', 'c', '2001-01-01', null, '2001-02-03 04:05:06+00', null, 't', 'numbered', null, null, null, null)

select pgq.event_retry_raw('q', 'nosuch', '2001-01-01', 77, '2001-02-03 04:05:06+00', 4, 't', 'raw', null, null, null, null)

select pgq.event_retry_raw('nosuch', 'c', '2001-01-01', 77, '2001-02-03 04:05:06+00', 4, 't', 'raw', null, null, null, null)

select ev_retry_after, ev_queue, ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgq.retry_queue where ev_owner = 1 order by ev_id

select pgq.maint_retry_events()

select ev_id, ev_time, ev_owner, ev_retry, ev_data from pgq.event_1 where ev_data in ('raw', 'numbered') order by 1

-- Ten a call.
select pgq.event_retry_raw('q', 'd', '2001-01-01', 1000 + i, '2001-01-01', 0, 't', i::text, null, null, null, null) from generate_series(1, 23) i

select pgq.maint_retry_events()

select pgq.maint_retry_events()

select pgq.maint_retry_events()

select pgq.maint_retry_events()

-- Whoever is unregistered, retries nothing.
select pgq.event_retry_raw('q', 'd', '2001-01-01', 2000, '2001-01-01', 0, 't', 'of d', null, null, null, null)

select pgq.unregister_consumer('q', 'd')

select count(*) from pgq.retry_queue where ev_owner = 2

select pgq.maint_retry_events()

select pgq.ticker('q')

select pgq.finish_batch(6)

select ev_id, ev_retry, ev_data from pgq.get_batch_events(pgq.next_batch('q', 'c')) order by 1

-- Of a queue where writing is refused.
select pgq.event_retry(pgq.next_batch('q', 'c'), 77, 0)

update pgq.queue set queue_disable_insert = true

select pgq.maint_retry_events()

update pgq.queue set queue_disable_insert = false

select pgq.maint_retry_events()
