select pgq.create_queue('q')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq.register_consumer('q', 'c'), pgq.register_consumer('q', 'd')

select pgq.next_batch('q', 'nosuch')

select pgq.next_batch('nosuch', 'c')

select pgq.next_batch(null, 'c')

select pgq.next_batch('q', null)

-- Nothing there.
select pgq.next_batch('q', 'c')

select * from pgq.next_batch_info('q', 'c')

select * from pgq.next_batch_custom('q', 'c', null, null, null)

select pgq.insert_event('q', 't', '1', 'x1', 'x2', 'x3', 'x4'), pgq.insert_event('q', 't', '2'), pgq.insert_event('q', null, null)

select pgq.next_batch('q', 'c')

select pgq.ticker('q')

select pgq.next_batch('q', 'c')

select pgq.next_batch('q', 'c')

select * from pgq.next_batch_info('q', 'c')

select * from pgq.next_batch_custom('q', 'c', '1 day', 1000, '1 day')

-- in b
select pgq.next_batch('q', 'c')

select pgq.next_batch('q', 'd')

select * from pgq.get_batch_events(1)

select * from pgq.get_batch_events(99)

select * from pgq.get_batch_events(null)

select * from pgq.get_batch_info(1)

select * from pgq.get_batch_info(99)

select * from pgq.get_batch_info(null)

select sub_queue, sub_consumer, sub_last_tick, sub_batch, sub_next_tick from pgq.subscription order by 2

-- By a cursor.
select * from pgq.get_batch_cursor(1, 'outside', 1)

begin

select * from pgq.get_batch_cursor(1, 'ev', 2)

fetch 10 from ev

fetch 10 from ev

close ev

select * from pgq.get_batch_cursor(1, 'ev "odd"', 0)

fetch all from "ev ""odd"""

select ev_id, ev_data from pgq.get_batch_cursor(1, 'filtered', 10, 'ev_data = ''2''')

select ev_id, ev_data from pgq.get_batch_cursor(1, 'filtered2', 10, 'ev_type is null or ev_extra1 = ''x1''')

select ev_id from pgq.get_batch_cursor(1, 'unfiltered', 10, null)

select ev_id from pgq.get_batch_cursor(1, 'negative', -1)

commit

begin

select * from pgq.get_batch_cursor(1, null, 1)

select * from pgq.get_batch_cursor(null, 'n', 1)

select * from pgq.get_batch_cursor(1, 'n', null)

select * from pgq.get_batch_cursor(99, 'n', 1)

rollback

begin

select * from pgq.get_batch_cursor(1, 'n', 1, 'nosuch = 1')

rollback

begin

select * from pgq.get_batch_cursor(1, null, 1, 'true')

rollback

-- Finished.
select pgq.finish_batch(1)

select pgq.finish_batch(1)

select pgq.finish_batch(99)

select pgq.finish_batch(null)

select * from pgq.get_batch_events(1)

select pgq.next_batch('q', 'c')

select sub_last_tick, sub_batch, sub_next_tick from pgq.subscription order by sub_consumer

-- In one's own transaction.
begin

select pgq.finish_batch(2)

rollback

select pgq.next_batch('q', 'd')

begin

select pgq.finish_batch(2)

commit

select pgq.next_batch('q', 'd')

-- An empty batch.
select pgq.ticker('q')

select pgq.next_batch('q', 'c')

select * from pgq.get_batch_events(3)

select pgq.finish_batch(3)

-- Batches of a size: four ticks of one, two, three, four events.
select pgq.insert_event('q', 't', '1')

select pgq.ticker('q')

select pgq.insert_event('q', 't', '2' || i) is not null from generate_series(1, 2) i

select pgq.ticker('q')

select pgq.insert_event('q', 't', '3' || i) is not null from generate_series(1, 3) i

select pgq.ticker('q')

select pgq.insert_event('q', 't', '4' || i) is not null from generate_series(1, 4) i

select pgq.ticker('q')

select tick_id, tick_event_seq from pgq.tick order by 1

select batch_id, cur_tick_id, prev_tick_id, cur_tick_event_seq, prev_tick_event_seq from pgq.next_batch_custom('q', 'c', null, 100, null)

select batch_id, cur_tick_id, prev_tick_id, cur_tick_event_seq, prev_tick_event_seq from pgq.next_batch_custom('q', 'c', '1 hour', null, null)

select batch_id, cur_tick_id, prev_tick_id, cur_tick_event_seq, prev_tick_event_seq from pgq.next_batch_custom('q', 'c', null, null, '1 hour')

select batch_id, cur_tick_id, prev_tick_id, cur_tick_event_seq, prev_tick_event_seq from pgq.next_batch_custom('q', 'c', null, 3, null)

select count(*) from pgq.get_batch_events(4)

select pgq.finish_batch(4)

select batch_id, cur_tick_id, prev_tick_id, cur_tick_event_seq, prev_tick_event_seq from pgq.next_batch_custom('q', 'c', null, 6, null)

select count(*) from pgq.get_batch_events(5)

select pgq.finish_batch(5)

select batch_id, cur_tick_id, prev_tick_id from pgq.next_batch_custom('q', 'd', '0', 2, '1 hour')

select pgq.finish_batch(6)

select batch_id, cur_tick_id, prev_tick_id from pgq.next_batch_custom('q', 'd', '0', null, '0')

select pgq.finish_batch(7)

select batch_id, cur_tick_id, prev_tick_id from pgq.next_batch_custom('q', 'd', null, 0, null)

-- Whoever is not committed at the tick comes in a later batch.
select pgq.create_queue('open')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select pgq.register_consumer('open', 'c')

-- in b
begin

-- in b
select pgq.insert_event('open', 'late', '1')

select pgq.insert_event('open', 'early', '2')

select pgq.ticker('open')

select ev_id, ev_type from pgq.get_batch_events(pgq.next_batch('open', 'c'))

select pgq.finish_batch(9)

-- in b
select pgq.insert_event('open', 'late', '3')

-- in b
commit

select pgq.ticker('open')

select ev_id, ev_type from pgq.get_batch_events(pgq.next_batch('open', 'c'))

-- One rolled back is in no batch.
-- in b
begin

-- in b
select pgq.insert_event('open', 'rolled back', '4')

select pgq.ticker('open')

-- in b
rollback

select pgq.ticker('open')

select pgq.finish_batch(10)

select ev_id, ev_type from pgq.get_batch_events(pgq.next_batch('open', 'c'))

select pgq.finish_batch(11)

select ev_id, ev_type from pgq.get_batch_events(pgq.next_batch('open', 'c'))

-- Savepoints.
begin

select pgq.insert_event('open', 'kept', 'a')

savepoint s

select pgq.insert_event('open', 'gone', 'b')

rollback to s

savepoint t

select pgq.insert_event('open', 'kept', 'c')

release t

commit

select pgq.ticker('open')

select pgq.finish_batch(12)

select ev_id, ev_type, ev_data from pgq.get_batch_events(pgq.next_batch('open', 'c'))

select length(pgq.batch_event_sql(13)) > 0 as there

select pgq.batch_event_sql(99)

select pgq.batch_event_sql(null)
