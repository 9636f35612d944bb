-- What autovacuum does not do is another matter: a test's server may be without.
select pgq.create_queue('q')

update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'

select * from pgq.maint_operations() where func_name <> 'vacuum'

select pgq.maint_rotate_tables_step1('q')

select pgq.maint_rotate_tables_step1('nosuch')

select pgq.maint_rotate_tables_step2()

select queue_cur_table, queue_switch_step2 is not null as done from pgq.queue

update pgq.queue set queue_rotation_period = '0'

select * from pgq.maint_operations() where func_name <> 'vacuum'

-- Nobody reads: it rotates.
-- quiet
select pgq.insert_event('q', 't', '1')

-- quiet
select pgq.ticker('q')

-- quiet
select pgq.maint_rotate_tables_step1('q')

select queue_cur_table, queue_switch_step2 is not null as done from pgq.queue

select * from pgq.maint_operations() where func_name <> 'vacuum'

select pgq.maint_rotate_tables_step1('q')

select queue_cur_table from pgq.queue

select pgq.maint_rotate_tables_step2()

select queue_cur_table, queue_switch_step2 is not null as done, queue_switch_step1 < queue_switch_step2 as later from pgq.queue

select pgq.current_event_table('q')

select pgq.insert_event('q', 't', '2')

select ev_data from pgq.event_1 order by 1

select ev_data from (select * from pgq.event_1_0 union all select * from pgq.event_1_1 union all select * from pgq.event_1_2) u order by 1

-- A reader that stands behind holds it up.
-- quiet
select pgq.register_consumer('q', 'c')

-- quiet
select pgq.ticker('q')

-- quiet
select pgq.maint_rotate_tables_step1('q')

select queue_cur_table from pgq.queue

-- quiet
select pgq.next_batch('q', 'c')

select pgq.batch_event_tables(1)

select ev_data from pgq.get_batch_events(1)

select pgq.finish_batch(1)

-- quiet
select pgq.maint_rotate_tables_step1('q')

select queue_cur_table, queue_switch_step2 is not null as done from pgq.queue

-- quiet
select pgq.maint_rotate_tables_step2()

-- quiet
select pgq.insert_event('q', 't', '3')

-- quiet
select pgq.ticker('q')

-- quiet
select pgq.next_batch('q', 'c')

-- Over both sides of the switch.
select pgq.batch_event_tables(2)

select ev_data from pgq.get_batch_events(2)

-- quiet
select pgq.maint_rotate_tables_step1('q')

select queue_cur_table from pgq.queue

select pgq.finish_batch(2)

-- An empty one since, then a batch of the new table alone.
-- quiet
select pgq.ticker('q')

-- quiet
select pgq.next_batch('q', 'c')

select pgq.batch_event_tables(3)

select pgq.finish_batch(3)

-- quiet
select pgq.maint_rotate_tables_step1('q')

select queue_cur_table from pgq.queue

select pgq.batch_event_tables(3)

select pgq.batch_event_tables(99)

select pgq.batch_event_tables(null)

-- quiet
select pgq.maint_rotate_tables_step2()

-- quiet
select pgq.insert_event('q', 't', '4')

select ev_data from pgq.event_1 where ev_data = '4'

select pgq.current_event_table('q')

-- What else is to be done.
create function public.mine(text) returns integer language sql as 'select 1'

update pgq.queue set queue_extra_maint = array['public.mine', 'public.other'], queue_rotation_period = '1 hour'

select * from pgq.maint_operations() where func_name <> 'vacuum'

select pgq.create_queue('a')

update pgq.queue set queue_rotation_period = '0'

select * from pgq.maint_operations() where func_name <> 'vacuum'

-- In one transaction step two is not done before step one.
begin

select pgq.maint_rotate_tables_step1('a')

select pgq.maint_rotate_tables_step2()

rollback

select pgq.maint_rotate_tables_step1(null)
