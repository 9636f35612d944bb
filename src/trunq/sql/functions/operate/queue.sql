-- A queue is a table, trunq_log.<queue>, one row a message, only ever inserted into. Behind it, in trunq_data, lie its
-- leases and receipts. All three are partitioned by list over a small ring of segments; the segment of a row follows from
-- the clock, so nothing has to be looked up, switched or created while running.
--
-- The functions of the hot path name these tables, so that Postgres keeps their plans: each queue has its own,
-- trunq_queue.<queue>_<verb>. They are written once, in sql/specimen/queue, over the tables of a specimen; trunq._define_queue (specimen.sql) copies
-- them with the names replaced.

create or replace function trunq.create_queue(
  p_queue text,
  p_retention interval default '1 day',
  p_tick_max_count integer default 500,
  p_tick_max_lag interval default '3 seconds',
  p_tick_idle_period interval default null,
  p_default_subscription boolean default true,
  p_kinds text[] default null,
  p_lanes text default null,
  p_unique text default null,
  p_hold_at_most interval default null,
  p_hold_size bigint default null,
  p_retain_size bigint default null,
  p_unique_on text default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_role text;
  v_is_made boolean;
begin
  perform trunq._check_name('queue', p_queue);
  perform trunq._check_interval(format('the retention of queue "%s"', p_queue), coalesce(p_retention, '0'));
  if p_tick_max_lag is null or p_tick_max_count is null then
    perform trunq._fail('TQ005', format('tick_max_count and tick_max_lag of queue "%s" cannot be null', p_queue), 'leave them out, or give 0 for a tick at every look');
  end if;
  perform trunq._check_queue(p_queue, p_retention, p_tick_max_count, p_tick_max_lag, p_tick_idle_period, p_hold_at_most, p_hold_size, p_retain_size);
  v_role := trunq._become_owner();
  perform trunq._check_lanes(p_queue, p_lanes);
  perform trunq._check_unique_policy(p_queue, p_unique);
  perform trunq._check_unique_on(p_queue, p_unique, p_unique_on);
  begin
    v_is_made := trunq._create_queue(p_queue, p_retention, p_tick_max_count, p_tick_max_lag, p_tick_idle_period, p_default_subscription, p_lanes, p_unique,
      nullif(p_hold_at_most, '0'), nullif(p_hold_size, 0), nullif(p_retain_size, 0), p_unique_on);
  exception when duplicate_table or duplicate_object or unique_violation then
    perform trunq._fail('TQ004', format('"%s" cannot be the name of a queue: a table, index, sequence or type behind it would have the name of one that is there', p_queue),
      'choose another name; \d trunq_log.* and \d trunq_data.* in psql show those taken, such as the indexes <queue>_id_idx');
  when lock_not_available then
    perform trunq._fail('TQ009',
      format('an open transaction has been creating or dropping queue "%s", or upgrading trunq, for %s', p_queue, current_setting('lock_timeout')),
      'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again; create queues in short transactions');
  end;
  if v_is_made and p_kinds is not null then
    perform trunq.set_publishing(p_queue, p_kinds);
  end if;
  perform trunq._restore_role(v_role);
  return v_is_made;
end $$;
comment on function trunq.create_queue is
  'Makes a queue and, unless told otherwise, its shared subscription "default", which keeps every message until a worker reads it: with p_default_subscription false, a queue that only streams read does without. For the owner of trunq, whom all of it will belong to, or a member of that role (with NOINHERIT: SET ROLE first). p_kinds: it takes only these. p_lanes: priority, key, kind, "priority,key" or "priority,kind"; messages are handed out by turns of it (trunq.set_lanes); a plain queue has none. p_retention: how long messages are kept (1 day), and longer while a subscription needs them. A tick is due after p_tick_max_count messages (500), and p_tick_max_lag after the first of them (3 s); p_tick_idle_period: where nothing is new, ever fewer ticks, one in this time at least; null: none. p_unique: messages may have unique keys; one whose key another holds is left out (refuse) or stands for that one (replace). p_unique_on content, with refuse: a message that is given none has its kind and content as its key, also that of a plain INSERT or COPY, which fails (TQ015) where another holds it. p_hold_at_most and p_hold_size: how long, and up to how many bytes, the log is held for subscriptions that have not read it; what is behind they lose (trunq.list_losses); p_retain_size: what all have read is kept up to so many bytes, however long the retention; null: for ever, no limit.
Returns: true when it was made, false when it was there.
Raises: TQ004, also when the name is that of an index of another queue; TQ005, also for other lanes or other unique keys than a queue has that is there; TQ009 when an open transaction creates or drops a queue of this name, or upgrades trunq, for 5 seconds.
Locks: others who create a queue of this name, to the end of the transaction.';

create or replace function trunq._create_queue(
  p_queue text, p_retention interval, p_tick_max_count integer, p_tick_max_lag interval, p_tick_idle_period interval,
  p_default_subscription boolean, p_lanes text, p_unique text, p_hold_at_most interval, p_hold_size bigint, p_retain_size bigint,
  p_unique_on text
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue_id integer;
  -- A whole number of seconds, and the ring always longer than the retention, and than what is held. Each segment costs every statement that
  -- reads the queue a little, so a time that is much longer makes them longer.
  v_seconds constant numeric := greatest(1, ceil(extract(epoch from p_retention) / 2), ceil(extract(epoch from p_hold_at_most) / 8));
  v_span constant interval := make_interval(secs => v_seconds::double precision);
  v_segments constant integer := 2 + greatest(2, ceil(extract(epoch from p_hold_at_most) / v_seconds));
begin
  -- An upgrade that is about to make all functions again waits for this one, and this one for it.
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queues'), 0);
  -- One that is being dropped is waited for; one that is there is enough.
  perform from trunq.queue q where q.name = p_queue for key share;
  if found then
    return false;
  end if;
  insert into trunq.queue (name, id_sequence, retention, segments, span, tick_max_count, tick_max_lag, tick_idle_period, lanes, unique_policy,
    hold_at_most, hold_size, retain_size, unique_on)
  values (p_queue, format('trunq_data.%I', p_queue || '_message_id'), p_retention, v_segments, v_span, p_tick_max_count, p_tick_max_lag,
    nullif(p_tick_idle_period, '0'), p_lanes, p_unique, p_hold_at_most, p_hold_size, p_retain_size, p_unique_on)
  on conflict (name) do nothing
  returning queue_id into v_queue_id;
  if v_queue_id is null then
    return false;
  end if;
  perform trunq._create_tables(trunq._find_queue(v_queue_id));
  perform trunq._define_queue(trunq._find_queue(v_queue_id));
  perform trunq._start_queue(v_queue_id, p_default_subscription);
  return true;
end $$;
comment on function trunq._create_queue is 'create_queue, when all that is given is possible and the owner asks.';

create or replace function trunq._start_queue(p_queue_id integer, p_default_subscription boolean default true) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into trunq.tick (queue_id, tick_id, snapshot, last_message_id, created_at)
  values (p_queue_id, 1, trunq.snapshot(), 0, trunq.clock());
  -- Nothing published before the first worker is lost: this reader starts at the beginning of time.
  insert into trunq.subscription (queue_id, name, mode, start)
  select p_queue_id, 'default', 'shared', '3:3:' where p_default_subscription is not false;
$$;
comment on function trunq._start_queue is 'Gives a new queue its first tick and, unless told otherwise, its subscription "default".';

create or replace function trunq.set_queue(
  p_queue text, p_retention interval default null, p_tick_max_count integer default null, p_tick_max_lag interval default null,
  p_tick_idle_period interval default null, p_hold_at_most interval default null, p_hold_size bigint default null, p_retain_size bigint default null,
  p_tick_external boolean default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_longest constant interval := (v_queue.segments - 2) * v_queue.span;
  v_hold constant interval := nullif(coalesce(p_hold_at_most, v_queue.hold_at_most), '0');
begin
  perform trunq._audit('set_queue', p_queue, jsonb_build_object('retention', p_retention, 'tick_max_count', p_tick_max_count,
    'tick_max_lag', p_tick_max_lag, 'tick_idle_period', p_tick_idle_period, 'hold_at_most', p_hold_at_most, 'hold_size', p_hold_size,
    'retain_size', p_retain_size, 'tick_external', p_tick_external));
  perform trunq._check_queue(p_queue, coalesce(p_retention, v_queue.retention), p_tick_max_count, p_tick_max_lag, p_tick_idle_period, v_hold, p_hold_size, p_retain_size);
  -- The segment of every row follows from the span: trunq.convert_queue changes it.
  if p_retention > v_longest then
    perform trunq._fail('TQ005', format('queue "%s" was made for a retention of at most %s, not %s', p_queue, v_longest, p_retention),
      'trunq.convert_queue gives it a longer one, in place');
  end if;
  if v_hold > v_longest then
    perform trunq._fail('TQ005', format('queue "%s" was made to hold messages for at most %s, not %s', p_queue, v_longest, v_hold),
      'trunq.convert_queue gives it a longer time, in place');
  end if;
  update trunq.queue q set
    retention = coalesce(p_retention, q.retention),
    hold_at_most = case when p_hold_at_most is null then q.hold_at_most else nullif(p_hold_at_most, '0') end,
    hold_size = case when p_hold_size is null then q.hold_size else nullif(p_hold_size, 0) end,
    retain_size = case when p_retain_size is null then q.retain_size else nullif(p_retain_size, 0) end,
    tick_external = coalesce(p_tick_external, q.tick_external),
    tick_max_count = coalesce(p_tick_max_count, q.tick_max_count),
    tick_max_lag = coalesce(p_tick_max_lag, q.tick_max_lag),
    tick_idle_period = case when p_tick_idle_period is null then q.tick_idle_period else nullif(p_tick_idle_period, '0') end
  where q.queue_id = v_queue.queue_id;
end $$;
comment on function trunq.set_queue is
  'Changes what is given of a queue; for the rest see trunq.create_queue. p_tick_max_count and p_tick_max_lag 0: a tick at every look; p_tick_idle_period 0: no ticks where nothing is new; p_hold_at_most, p_hold_size and p_retain_size 0: for ever, no limit; p_tick_external: ticks are cut by trunq.cut_tick alone. The retention and p_hold_at_most can become shorter, and longer again up to what the queue was made with; trunq.convert_queue goes beyond.
Raises: TQ001, TQ005.';

create or replace function trunq._check_queue(
  p_queue text, p_retention interval, p_tick_max_count integer, p_tick_max_lag interval, p_tick_idle_period interval, p_hold_at_most interval,
  p_hold_size bigint, p_retain_size bigint
) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._check_interval(format('the retention of queue "%s"', p_queue), p_retention);
  perform trunq._check_interval(format('tick_max_lag of queue "%s"', p_queue), p_tick_max_lag, '0');
  perform trunq._check_interval(format('tick_idle_period of queue "%s"', p_queue), p_tick_idle_period, '0');
  perform trunq._check_interval(format('hold_at_most of queue "%s"', p_queue), p_hold_at_most, '0');
  if p_tick_max_count < 0 then
    perform trunq._fail('TQ005', format('tick_max_count of queue "%s" cannot be %s', p_queue, p_tick_max_count), 'give a number of messages, or 0 for a tick at every look');
  elsif p_hold_size < 0 or p_retain_size < 0 then
    perform trunq._fail('TQ005', format('%s of queue "%s" cannot be %s', case when p_hold_size < 0 then 'hold_size' else 'retain_size' end, p_queue,
      case when p_hold_size < 0 then p_hold_size else p_retain_size end), 'give a number of bytes, or 0 for no limit');
  elsif p_hold_at_most > '0' and p_hold_at_most < p_retention then
    perform trunq._fail('TQ005', format('queue "%s" cannot hold messages for at most %s: it retains them for %s', p_queue, p_hold_at_most, p_retention),
      'give at least its retention, which holds for what everybody has read too, or shorten that');
  end if;
end $$;
comment on function trunq._check_queue is 'Refuses (TQ005) settings that no queue can have; null says nothing.';

create or replace function trunq.drop_queue(p_queue text, p_force boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('drop_queue', p_queue, jsonb_build_object('force', p_force));
  perform trunq._require_read_committed('drop_queue');
  perform trunq._try_for_locks(p_queue, format('select 0 from trunq._drop_queue($1, %L)', p_force));
end $$;
comment on function trunq.drop_queue is
  'Drops a queue with all its messages. Its archive stays, with all attempts that are over, until trunq.drop_archive. p_force: also one that is in use.
Raises: TQ001, TQ007; TQ009 while it has other subscriptions than "default", schedules, captures, unfinished messages or history that a taker has not taken, unless forced, or while an open transaction uses it.
Locks: its tables, exclusively, waiting 200 ms at a time.';

create or replace function trunq._drop_queue(p_queue trunq.queue, p_force boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_tables text := format('trunq_log.%I, trunq_data.%I, trunq_data.%I', p_queue.log_table, p_queue.lease_table, p_queue.receipt_table)
    || trunq._lane_tables(p_queue) || trunq._unique_tables(p_queue);
begin
  perform pg_advisory_xact_lock_shared(trunq._lock_class('queues'), 0);
  if not p_force then
    perform trunq._check_unused(p_queue);
  end if;
  -- Before the log, as who changes a captured table locks them.
  perform trunq._drop_captures(p_queue);
  -- In the order of the duty `fire`, which holds a schedule when it publishes; rows that have to wait do so with no table locked.
  if p_force then
    delete from trunq.schedule s where s.queue_id = p_queue.queue_id;
  end if;
  execute format('lock table %s in access exclusive mode', v_tables);
  if not p_force then
    -- Again: whoever stood in the way may have published.
    perform trunq._check_unused(p_queue);
  end if;
  perform trunq._archive_rest(p_queue);
  perform trunq._end_roles(p_queue);
  perform trunq._drop_functions(p_queue);
  if to_regprocedure('pgq._forget_queue(integer)') is not null then
    execute 'select pgq._forget_queue($1)' using p_queue.queue_id;  -- PgQ's names for it (trunq_pgq)
  end if;
  execute format('drop table %s', v_tables);
  execute format('drop function if exists trunq_data.%I()', 'archive_' || p_queue.queue_id);
  -- A delayed publish holds its sequence to the end of its transaction.
  execute format('drop sequence %s, trunq_data.%I', p_queue.id_sequence::regclass, p_queue.lease_sequence);
  execute format('drop sequence if exists trunq_data.%I', p_queue.name || '_turn_id');
  delete from trunq.delayed d where d.queue_id = p_queue.queue_id;
  delete from trunq.dead d where d.queue_id = p_queue.queue_id;
  delete from trunq.cancelled c where c.queue_id = p_queue.queue_id;
  delete from trunq.ahead a where a.queue_id = p_queue.queue_id;
  delete from trunq.due d where d.queue_id = p_queue.queue_id;
  delete from trunq.progress p where p.queue_id = p_queue.queue_id;
  delete from trunq.reply r where r.queue_id = p_queue.queue_id;
  -- With all that is known elsewhere of messages that are here: trunq.forget asks the queue where a message is.
  delete from trunq.forwarded f using trunq.forwarded h
  where h.queue_id = p_queue.queue_id and h.is_here and f.origin_subscription_id = h.origin_subscription_id and f.origin_id = h.origin_id;
  delete from trunq.forwarded f where f.queue_id = p_queue.queue_id;
  delete from trunq.parked p where p.queue_id = p_queue.queue_id;
  delete from trunq.duty_failure f where f.queue = p_queue.name;
  delete from trunq.queue q where q.queue_id = p_queue.queue_id;
end $$;
comment on function trunq._drop_queue is 'One try of drop_queue, under the lock of the queue.';

create or replace function trunq._try_for_locks(p_queue text, p_statement text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  v_queue trunq.queue;
  v_done bigint;
begin
  -- Behind one open transaction all others would queue up: wait in short tries, letting them pass.
  for v_try in 1..10 loop
    v_queue := trunq._find_queue(p_queue);
    begin
      perform pg_advisory_xact_lock(trunq._lock_class('queue'), v_queue.queue_id);
      -- It may have been dropped, and made again, meanwhile.
      if (trunq._find_queue(p_queue)).queue_id = v_queue.queue_id then
        execute p_statement into v_done using v_queue;
        return v_done;
      end if;
    exception when lock_not_available then
      perform pg_sleep(0.05);
    end;
  end loop;
  perform trunq._fail('TQ009', format('queue "%s" is in use by an open transaction', p_queue),
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq._try_for_locks is
  'Runs what needs a queue ($1) for itself, and gives every lock back when it would have to wait longer than 200 ms for one of them.
Returns: what the statement does; TQ009 when ten tries were not enough.';

create or replace function trunq._check_unused(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_others text;
  v_count bigint;
begin
  select string_agg(format('"%s"', s.name), ', ' order by s.name) into v_others
  from trunq.subscription s where s.queue_id = p_queue.queue_id and s.name <> 'default';
  if v_others is not null then
    perform trunq._fail('TQ009', format('queue "%s" is read by %s', p_queue.name, v_others),
      'unsubscribe them first, or force it');
  end if;
  select count(*) into v_count from trunq.delayed d where d.queue_id = p_queue.queue_id;
  select string_agg(format('"%s"', s.name), ', ' order by s.name) into v_others from trunq.schedule s where s.queue_id = p_queue.queue_id;
  if v_others is not null then
    perform trunq._fail('TQ009', format('queue "%s" has schedules: %s', p_queue.name, v_others), 'delete them first (trunq.delete_schedule), or force it');
  end if;
  select string_agg(format('"%s"', c.name), ', ' order by c.name) into v_others from trunq.capture c where c.queue_id = p_queue.queue_id;
  if v_others is not null then
    perform trunq._fail('TQ009', format('changes of tables are published into queue "%s": %s', p_queue.name, v_others), 'end that first (trunq.uncapture), or force it');
  end if;
  select v_count + coalesce(sum(t.ready + greatest(t.leased, (select sum(h.unanswered) from trunq._held_leases(p_queue, s.subscription_id) h))), 0) into v_count
  from trunq.status(p_queue.name) t join trunq.subscription s on s.queue_id = p_queue.queue_id and s.name = t.subscription;
  if v_count > 0 then
    perform trunq._fail('TQ009', format('queue "%s" holds unfinished messages (%s or more)', p_queue.name, v_count),
      'let workers finish them, or force it');
  end if;
  perform trunq._require_taken(p_queue);
end $$;
comment on function trunq._check_unused is 'Refuses (TQ009) a queue with other subscriptions than "default", with schedules, captures, unfinished messages or history that a taker has not taken.';

create or replace function trunq.list_queues()
returns table (
  queue text, queue_id integer, retention interval, span interval, tick_max_count integer, tick_max_lag interval, tick_idle_period interval,
  kinds text[], unique_policy text, max_waiting bigint, max_per_transaction integer, lanes text, announces boolean, is_closed boolean, subscriptions integer, paused boolean, paused_until timestamptz,
  created_at timestamptz, hold_at_most interval, hold_size bigint, retain_size bigint, tick_paused boolean, tick_external boolean, unique_on text
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q.name, q.queue_id, q.retention, q.span, q.tick_max_count, q.tick_max_lag, q.tick_idle_period,
    q.kinds, q.unique_policy, q.max_waiting, q.max_per_transaction, q.lanes, q.announces, q.is_closed,
    -- A group by key is one, however many slots it has.
    (select count(distinct case when s.slot is null then s.subscription_id else -s.group_id end)::integer from trunq.subscription s where s.queue_id = q.queue_id),
    coalesce(q.paused_until > trunq.clock(), false), case when q.paused_until > trunq.clock() then nullif(q.paused_until, 'infinity') end, q.created_at,
    q.hold_at_most, q.hold_size, q.retain_size, q.tick_paused, q.tick_external, q.unique_on
  from trunq.queue q order by q.name
$$;
comment on function trunq.list_queues is 'Every queue by name. span: how long one segment of its ring is written to; paused_until null: until it is resumed; hold_at_most, hold_size and retain_size null: no limit; tick_paused and tick_external: the leader and readers cut no ticks.';

create or replace function trunq._check_name(p_what text, p_name text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_name is null or p_name !~ '^[a-z][a-z0-9_]{0,47}$' then
    perform trunq._fail('TQ004', case
        when coalesce(p_name, '') = '' then format('a %s needs a name', p_what)
        when length(p_name) > 48 then format('the %s name "%s..." is too long: %s characters', p_what, left(p_name, 48), length(p_name))
        else format('"%s" cannot be the name of a %s', p_name, p_what) end,
      'a name is a lower-case letter, then up to 47 lower-case letters, digits or underscores');
  end if;
end $$;
comment on function trunq._check_name is 'Refuses (TQ004) what cannot be the name of a queue or subscription.';

-- Not _queue: that is the name of the array type of trunq.queue, and a call with a literal would be taken for a cast.
create or replace function trunq._find_queue(p_queue text) returns trunq.queue
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
begin
  select * into v_queue from trunq.queue q where q.name = p_queue;
  if not found then
    perform trunq._fail('TQ001', format('there is no queue "%s"', coalesce(p_queue, '')),
      'create it: select trunq.create_queue(''name''); select * from trunq.list_queues() shows those there are');
  end if;
  return v_queue;
end $$;
comment on function trunq._find_queue(text) is 'A queue by its name, or TQ001.';

create or replace function trunq._find_queue(p_queue_id integer) returns trunq.queue
language sql stable as $$ select q from trunq.queue q where q.queue_id operator(pg_catalog.=) p_queue_id $$;
comment on function trunq._find_queue(integer) is 'A queue by its id.';

create or replace function trunq._function(p_queue text, p_verb text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  -- One look, and not the whole row: this stands on the way of every trunq.publish.
  if not exists (select from trunq.queue q where q.name = p_queue) then
    perform trunq._find_queue(p_queue);
  end if;
  return concat(p_queue, '_', p_verb);
end $$;
comment on function trunq._function is 'The name of a queue''s own function for a verb, in the schema trunq_queue; TQ001 when there is no such queue.';

create or replace function trunq._segment(p_queue trunq.queue) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(floor(date_part(''epoch'', now()))::bigint / %s %% %s)::smallint', extract(epoch from p_queue.span)::bigint, p_queue.segments)
$$;
comment on function trunq._segment is
  'The expression for the segment of a row: the number of the span its transaction began in, around the ring.';

create or replace function trunq._create_tables(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('create sequence %s cache 32', p_queue.id_sequence);
  execute format('create sequence trunq_data.%I', p_queue.lease_sequence);
  perform trunq._create_table(p_queue, 'log', 'trunq_log', p_queue.log_table, '_specimen');
  if p_queue.unique_policy is not null then
    perform trunq._create_unique(p_queue);
    perform trunq._add_unique_columns(p_queue);
  end if;
  perform trunq._create_table(p_queue, 'lease', 'trunq_data', p_queue.lease_table, case when p_queue.lanes is null then '_specimen_lease' else '_lanespecimen_lease' end);
  perform trunq._create_table(p_queue, 'receipt', 'trunq_data', p_queue.receipt_table, '_specimen_receipt');
  if p_queue.lanes is not null then
    perform trunq._create_lanes(p_queue);
    perform trunq._index_lanes(p_queue);
  end if;
end $$;
comment on function trunq._create_tables is 'Makes the sequences of a queue, and its tables and their segments like those of the specimen.';

create or replace function trunq._create_table(p_queue trunq.queue, p_kind text, p_schema text, p_name text, p_specimen text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('create table %1$I.%2$I (like %1$I.%3$I including all) partition by list (segment)', p_schema, p_name, p_specimen);
  execute format('alter table %I.%I alter segment set default %s', p_schema, p_name, trunq._segment(p_queue));
  execute format('comment on table %I.%I is %L', p_schema, p_name, obj_description(format('%I.%I', p_schema, p_specimen)::regclass, 'pg_class'));
  if p_kind = 'log' then
    execute format('alter table trunq_log.%I alter id set default nextval(%L)', p_name, p_queue.id_sequence);
    if p_queue.lanes like 'priority%' then
      execute format('alter table trunq_log.%I alter priority type smallint', p_name);
    end if;
  end if;
  for v_n in 0 .. p_queue.segments - 1 loop
    -- Nothing is updated or deleted here; a segment is emptied by TRUNCATE, so vacuum has nothing to do.
    execute format('create table trunq_data.%I partition of %I.%I for values in (%s) with (autovacuum_enabled = off, toast.autovacuum_enabled = off)',
      trunq._segment_name(p_queue, p_kind, v_n), p_schema, p_name, v_n);
    -- A publication for all tables refuses updates (of a lease) without one. It costs nothing where nothing is replicated.
    execute format('alter table trunq_data.%I replica identity full', trunq._segment_name(p_queue, p_kind, v_n));
    perform trunq._unsummarize(format('trunq_data.%I', trunq._segment_name(p_queue, p_kind, v_n))::regclass);
  end loop;
end $$;
comment on function trunq._create_table is 'Makes one table of a queue and its segments, like that of a specimen; p_kind: as in trunq._segment_name.';

create or replace function trunq._segment_name(p_queue trunq.queue, p_table text, p_segment integer) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$ select format('%s_%s_%s', p_queue.name, p_table, p_segment) $$;
comment on function trunq._segment_name is 'The table of one segment, in trunq_data; p_table: log, lease, receipt, turn or wake.';
