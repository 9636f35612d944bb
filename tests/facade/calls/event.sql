select pgq.create_queue('q')

select pgq.insert_event('q', 't', 'd')

select pgq.insert_event('q', 't', 'd', 'x1', 'x2', 'x3', 'x4')

select pgq.insert_event('q', null, null)

select pgq.insert_event('q', '', '', '', '', '', '')

select pgq.insert_event('q', 't', '{"a": 1}'), pgq.insert_event('q', 't', 'ünï "q" \ ' || chr(10) || chr(9) || 'z'), pgq.insert_event('q', 't', 'null'), pgq.insert_event('q', 't', '""')

select pgq.insert_event('nosuch', 't', 'd')

select pgq.insert_event(null, 't', 'd')

select pgq.insert_event('q', 't', null, null, 'only2', null, null)

select pgq.insert_event_raw('q', null, null, null, null, 't', 'raw', null, null, null, null)

-- A number given is kept, and one is drawn all the same.
select pgq.insert_event_raw('q', 3, '2001-02-03 04:05:06+00', 7, 2, 't', 'given', '1', '2', '3', '4')

select pgq.insert_event_raw('q', 1000, '2001-02-03 04:05:06+00', null, 5, 't', 'retry without owner', null, null, null, null)

select pgq.insert_event('q', 't', 'next')

select pgq.insert_event_raw('nosuch', null, now(), null, null, 't', 'd', null, null, null, null)

select ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from pgq.event_1 order by ev_id, ev_data

select ev_id, ev_data from pgq.event_1_0 order by 1, 2

select count(*) from pgq.event_1_1

select count(*) from (select ev_id from pgq.event_1_0 union all select ev_id from pgq.event_1_1 union all select ev_id from pgq.event_1_2) u

-- ev_time is the time of the transaction, ev_txid its number.
begin

select pgq.insert_event('q', 'in', 'transaction')

select ev_time = now() as same_time, ev_txid = txid_current() as same_transaction from pgq.event_1 where ev_type = 'in'

rollback

select pgq.insert_event('q', 'after', 'a number was used up')

-- Into the current table.
select pgq.current_event_table('q')

select pgq.current_event_table('nosuch')

select pgq.current_event_table(null)

insert into pgq.event_1_0 (ev_id, ev_time, ev_type, ev_data) values (nextval('pgq.event_1_id_seq'), now(), 'direct', 'insert')

insert into pgq.event_1_0 (ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) values (now(), 'direct', 'own number', 'a', 'b', 'c', 'd')

copy pgq.event_1_0 (ev_id, ev_time, ev_type, ev_data, ev_extra1) from stdin (delimiter '|')
501|2001-01-01 00:00:00+00|copy|first|one
502|2001-01-01 00:00:00+00|copy|\N|\N

copy pgq.event_1_0 (ev_time, ev_type, ev_data) from stdin (delimiter '|')
2001-01-01 00:00:00+00|copy|numbered

copy pgq.event_1_0 (ev_time, ev_type, nosuch) from stdin (delimiter '|')
2001-01-01 00:00:00+00|copy|numbered

select ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data, ev_extra1, ev_extra4 from pgq.event_1 where ev_type in ('copy', 'direct', 'after') order by 1

-- Writing refused.
update pgq.queue set queue_disable_insert = true

select pgq.insert_event('q', 't', 'refused')

select pgq.current_event_table('q')

set session_replication_role = replica

select pgq.insert_event('q', 't', 'taken')

-- Its name says nothing here.
select starts_with(pgq.current_event_table('q'), 'pgq.event_1_')

reset session_replication_role

update pgq.queue set queue_disable_insert = false

select pgq.insert_event('q', 't', 'taken again')

-- So many a transaction.
update pgq.queue set queue_per_tx_limit = 2

select pgq.insert_event('q', 'limit', '1'), pgq.insert_event('q', 'limit', '2')

select pgq.insert_event('q', 'limit', '1'), pgq.insert_event('q', 'limit', '2'), pgq.insert_event('q', 'limit', '3')

begin

select pgq.insert_event('q', 'limit', '1')

select pgq.insert_event('q', 'limit', '2')

select pgq.insert_event('q', 'limit', '3')

rollback

update pgq.queue set queue_per_tx_limit = 0

select pgq.insert_event('q', 'limit', 'none')

update pgq.queue set queue_per_tx_limit = null

select pgq.insert_event('q', 'limit', i::text) is not null as ok from generate_series(1, 5) i

select ev_type, ev_data, ev_id from pgq.event_1 where ev_type = 'limit' order by ev_id

select pgq.seq_getval('pgq.event_1_id_seq')

-- Two queues in one transaction, two sessions in one queue.
select pgq.create_queue('r')

select pgq.insert_event('r', 'a', 'b'), pgq.insert_event('q', 'both', 'c')

-- in b
select pgq.insert_event('r', 'b', 'b')

-- in c
select pgq.insert_event('r', 'c', 'b')

select pgq.insert_event('r', 'd', 'b')

select ev_id, ev_type from pgq.event_2 order by 1

-- A large one.
select pgq.insert_event('r', 'large', repeat('ä', 1000000))

select ev_id, length(ev_data), md5(ev_data) from pgq.event_2 where ev_type = 'large'

-- Not through the function that is refused to others.
select pgq.drop_queue('r')

select pgq.insert_event('r', 'a', 'b')

select * from pgq.event_2
