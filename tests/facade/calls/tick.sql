select pgq.create_queue('q')

select * from pgq.tick

select pgq.ticker('nosuch')

select pgq.ticker(null)

-- As created, 500 events, but a minute.
update pgq.queue set queue_ticker_max_lag = '1 minute'

select pgq.ticker('q')

select pgq.insert_event('q', 't', '1')

select pgq.ticker('q')

select pgq.insert_event('q', 't', '2')

select pgq.ticker('q')

select pgq.ticker()

-- By count alone.
update pgq.queue set queue_ticker_max_count = 3, queue_ticker_max_lag = '1 hour', queue_ticker_idle_period = '2 hours'

select pgq.ticker('q')

select pgq.insert_event('q', 't', '3')

select pgq.ticker('q')

select pgq.insert_event('q', 't', '4'), pgq.insert_event('q', 't', '5'), pgq.insert_event('q', 't', '6')

select pgq.ticker('q')

select pgq.ticker('q')

-- By lag.
select pgq.insert_event('q', 't', '7')

select pgq.ticker('q')

update pgq.queue set queue_ticker_max_lag = '0'

select pgq.ticker('q')

-- Idle.
update pgq.queue set queue_ticker_idle_period = '0'

select pgq.ticker('q')

select pgq.ticker('q')

select tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq from pgq.tick order by tick_id

-- A number drawn for nothing counts as new.
begin

select pgq.insert_event('q', 't', 'rolled back')

rollback

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '1 hour', queue_ticker_idle_period = '1 hour'

select pgq.ticker('q')

select tick_id, tick_event_seq from pgq.tick order by tick_id desc limit 1

-- Forced.
select pgq.ticker('q')

select pgq.force_tick('q')

select pgq.seq_getval('pgq.event_1_id_seq')

select pgq.ticker('q')

select pgq.force_tick('nosuch')

select pgq.force_tick(null)

-- Paused.
select pgq.set_queue_config('q', 'ticker_paused', '1')

select pgq.ticker('q')

select pgq.ticker()

select pgq.force_tick('q')

select pgq.seq_getval('pgq.event_1_id_seq')

select pgq.set_queue_config('q', 'ticker_paused', '0')

-- From outside.
select pgq.ticker('q', 100, '2001-02-03 04:05:06+00', 5000)

select pgq.set_queue_config('q', 'external_ticker', 'true')

select pgq.ticker('q')

select pgq.ticker()

select pgq.force_tick('q')

select pgq.ticker('q', 100, '2001-02-03 04:05:06+00', 5000)

select pgq.ticker('q', 100, '2001-02-03 04:05:06+00', 5000)

select pgq.ticker('q', 99, '2001-02-03 04:05:05+00', 4000)

select pgq.ticker('nosuch', 1, now(), 1)

select pgq.ticker('q', null, now(), 1)

select pgq.seq_getval('pgq.event_1_id_seq'), pgq.seq_getval('pgq.event_1_tick_seq')

select tick_id, tick_time, tick_event_seq from pgq.tick where tick_id >= 99 order by tick_id

select pgq.set_queue_config('q', 'ticker_paused', '1')

select pgq.ticker('q', 101, '2001-02-03 04:05:06+00', 5000)

select pgq.set_queue_config('q', 'ticker_paused', '0'), pgq.set_queue_config('q', 'external_ticker', '0')

select pgq.insert_event('q', 't', 'after')

select pgq.ticker('q')

-- All queues.
select pgq.create_queue('r'), pgq.create_queue('a')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq.ticker()

select pgq.insert_event('a', 't', '1'), pgq.insert_event('r', 't', '1')

select pgq.ticker()

select q.queue_name, t.tick_id, t.tick_event_seq from pgq.tick t join pgq.queue q on q.queue_id = t.tick_queue where q.queue_name <> 'q' order by 1, 2

select queue_name, ticker_lag, ev_per_sec is null as no_rate, ev_new, last_tick_id from pgq.get_queue_info() order by 1

select * from pgq.find_tick_helper(1, 1, now(), 1, null, null)

select * from pgq.find_tick_helper(2, 1, '2001-01-01', 1, 1, null)

select * from pgq.find_tick_helper(1, 3, '2001-01-01', 6, 100, null)

-- A tick of a transaction that is taken back.
begin

select pgq.insert_event('a', 't', '2')

select pgq.ticker('a')

rollback

select pgq.ticker('a')

select tick_id from pgq.tick where tick_queue = 3 order by 1
