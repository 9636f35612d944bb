-- A queue is a table, trunq_log.<queue>, one row a message, only ever inserted into. Behind it, in trunq_data, lie its
-- leases and receipts. All three are partitioned by list over a small ring of segments; the segment of a row follows from
-- the clock, so nothing has to be looked up, switched or created while running. The functions of the hot path name these
-- tables, so they are generated for each queue (trunq._define_queue), with plans that are kept.

create or replace function trunq.create_queue(
  p_queue text,
  p_retention interval default '1 day',
  p_tick_max_count integer default 500,
  p_tick_max_lag interval default '3 seconds',
  p_tick_idle_period interval default '1 minute'
) returns boolean
language plpgsql as $$
declare
  v_queue_id integer;
  v_segments constant integer := 4;
  v_span interval;
begin
  perform trunq._check_name('queue', p_queue);
  if p_retention is null or p_retention <= '0' or p_retention > '1000 years' then
    perform trunq._fail('TQ005',
      format('the retention of queue "%s" must be positive and at most 1000 years, not %s', p_queue, coalesce(p_retention::text, 'null')),
      'give an interval such as ''1 day''');
  end if;
  if coalesce(p_tick_max_count, 0) < 1 or coalesce(p_tick_max_lag, '0') <= '0' or coalesce(p_tick_idle_period, '0') <= '0' then
    perform trunq._fail('TQ005', format('the tick thresholds of queue "%s" must be positive', p_queue));
  end if;
  -- A whole number of seconds, and the ring always longer than the retention.
  v_span := make_interval(secs => greatest(1, ceil(extract(epoch from p_retention) / (v_segments - 2)))::double precision);
  -- One that is being dropped is waited for; one that is there is enough.
  perform from trunq.queue q where q.name = p_queue for key share;
  if found then
    return false;
  end if;
  -- Two who create queues: the second waits here for the first, and may find its queue there.
  perform pg_advisory_xact_lock(1953656423, 0);
  insert into trunq.queue (name, retention, segments, span, tick_max_count, tick_max_lag, tick_idle_period)
  values (p_queue, p_retention, v_segments, v_span, p_tick_max_count, p_tick_max_lag, p_tick_idle_period)
  on conflict (name) do nothing
  returning queue_id into v_queue_id;
  if v_queue_id is null then
    return false;
  end if;
  perform trunq._create_tables(v_queue_id);
  perform trunq._define_queue(v_queue_id);
  perform trunq._define_dispatch();
  insert into trunq.tick (queue_id, tick_id, snapshot, last_message_id, created_at)
  values (v_queue_id, 1, trunq.snapshot(), 0, trunq.clock());
  -- Nothing published before the first worker is lost: this reader starts at the beginning of time.
  insert into trunq.subscription (queue_id, name, mode, start) values (v_queue_id, 'default', 'shared', '3:3:');
  return true;
end $$;
comment on function trunq.create_queue(text, interval, integer, interval, interval) is
  'Makes a queue and its shared subscription "default"; for the owner of trunq, or a member of that role. Returns: true when it was made, false when it was there. Raises: TQ004, TQ005. Locks: other creations and drops of queues, to the end of the transaction; none that a queue there is would feel.';

create or replace function trunq.drop_queue(p_queue text, p_force boolean default false) returns void
language plpgsql set lock_timeout = '200ms' as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
  v_by text := format('queue "%s" is in use by an open transaction', p_queue);
  v_tables text := format('trunq_log.%I, trunq_data.%I, trunq_data.%I', p_queue, 'lease_' || v_queue_id, 'receipt_' || v_queue_id);
begin
  perform trunq._require_read_committed('drop_queue');
  -- Behind one open publisher all others would queue up after the DROP: wait in short turns, letting them pass.
  for v_try in 1..10 loop
    begin
      perform pg_advisory_xact_lock(1953656420, v_queue_id);
      perform trunq._queue_id(p_queue);
      if not p_force then
        perform trunq._check_unused(v_queue_id, p_queue);
      end if;
      v_by := 'another transaction is creating or dropping a queue';
      perform pg_advisory_xact_lock(1953656423, 0);
      v_by := format('queue "%s" is in use by an open transaction', p_queue);
      execute format('lock table %s in access exclusive mode', v_tables);
      if not p_force then
        -- Again: whoever stood in the way may have published.
        perform trunq._check_unused(v_queue_id, p_queue);
      end if;
      exit;
    exception when lock_not_available then
      if v_try = 10 then
        perform trunq._fail('TQ009', v_by, 'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
      end if;
      perform pg_sleep(0.05);
    end;
  end loop;
  execute format('drop table %s', v_tables);
  execute format('drop sequence trunq_data.%I, trunq_data.%I', 'message_id_' || v_queue_id, 'lease_id_' || v_queue_id);
  perform trunq._drop_functions(v_queue_id);
  delete from trunq.queue q where q.queue_id = v_queue_id;
  perform trunq._define_dispatch();
end $$;
comment on function trunq.drop_queue(text, boolean) is
  'Drops a queue with all its messages. Raises: TQ001, TQ007; TQ009 while it has other subscriptions than "default" or unfinished messages, unless forced, or while an open transaction uses it. Locks: its tables, exclusively, waiting 200 ms at a time.';

create or replace function trunq._check_unused(p_queue_id integer, p_queue text) returns void
language plpgsql as $$
declare
  v_others text;
  v_count bigint;
begin
  select string_agg(format('"%s"', s.name), ', ' order by s.name) into v_others
  from trunq.subscription s where s.queue_id = p_queue_id and s.name <> 'default';
  if v_others is not null then
    perform trunq._fail('TQ009', format('queue "%s" is read by %s', p_queue, v_others),
      'unsubscribe them first, or force it');
  end if;
  select count(*) into v_count from trunq.delayed d where d.queue_id = p_queue_id;
  select v_count + coalesce(sum(t.ready + t.leased), 0) into v_count from trunq.status(p_queue) t;
  if v_count > 0 then
    perform trunq._fail('TQ009', format('queue "%s" holds unfinished messages (%s or more)', p_queue, v_count),
      'let workers finish them, or force it');
  end if;
end $$;

create or replace function trunq.list_queues()
returns table (queue text, queue_id integer, retention interval, span interval, subscriptions integer, created_at timestamptz)
language sql stable as $$
  select q.name, q.queue_id, q.retention, q.span,
    (select count(*)::integer from trunq.subscription s where s.queue_id = q.queue_id), q.created_at
  from trunq.queue q order by q.name
$$;
comment on function trunq.list_queues() is 'Every queue by name. span: how long one segment of its ring is written to.';

create or replace function trunq.grant_publisher(p_queue text, p_role text) returns void
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
begin
  execute format('grant usage on schema trunq, trunq_log, trunq_data to %I', p_role);
  -- Payload columns only: a forged txid would never be delivered.
  execute format('grant insert (priority, key, kind, payload, body, headers), select (id) on trunq_log.%I to %I', p_queue, p_role);
  execute format('grant usage on sequence trunq_data.%I to %I', 'message_id_' || v_queue_id, p_role);
  execute format('grant select on trunq.queue to %I', p_role);
end $$;
comment on function trunq.grant_publisher(text, text) is
  'Lets a role publish by INSERT, COPY, publish and publish_many (not with a delay), and nothing else. Raises: TQ001.';

create or replace function trunq._check_name(p_what text, p_name text) returns void
language plpgsql immutable as $$
begin
  if p_name is null or p_name !~ '^[a-z][a-z0-9_]{0,47}$' then
    perform trunq._fail('TQ004', case
        when coalesce(p_name, '') = '' then format('a %s needs a name', p_what)
        when length(p_name) > 48 then format('the %s name "%s..." is too long: %s characters', p_what, left(p_name, 48), length(p_name))
        else format('"%s" cannot be the name of a %s', p_name, p_what) end,
      'a name is a lower-case letter, then up to 47 lower-case letters, digits or underscores');
  end if;
end $$;

create or replace function trunq._queue_id(p_queue text) returns integer
language plpgsql stable as $$
declare
  v_queue_id integer;
begin
  select q.queue_id into v_queue_id from trunq.queue q where q.name = p_queue;
  if v_queue_id is null then
    perform trunq._fail('TQ001', format('there is no queue "%s"', coalesce(p_queue, '')),
      'create it: select trunq.create_queue(''name''); select * from trunq.list_queues() shows those there are');
  end if;
  return v_queue_id;
end $$;

create or replace function trunq._segment(p_span interval, p_segments integer) returns text
language sql immutable as $$
  select format('(floor(date_part(''epoch'', now()))::bigint / %s %% %s)::smallint', extract(epoch from p_span)::bigint, p_segments)
$$;
comment on function trunq._segment(interval, integer) is
  'The expression that tells the segment of a row: the number of the span its transaction began in, around the ring.';

create or replace function trunq._create_tables(p_queue_id integer) returns void
language plpgsql as $$
declare
  v_queue trunq.queue;
  v_segment text;
  v_kind text;
begin
  select * into v_queue from trunq.queue q where q.queue_id = p_queue_id;
  v_segment := trunq._segment(v_queue.span, v_queue.segments);
  execute format('create sequence trunq_data.%I cache 32', 'message_id_' || p_queue_id);
  execute format('create sequence trunq_data.%I', 'lease_id_' || p_queue_id);

  execute format($q$
    create table trunq_log.%1$I (
      id bigint not null default nextval('trunq_data.message_id_%2$s'),
      txid xid8 not null default pg_current_xact_id(),
      created_at timestamptz not null default statement_timestamp(),
      subscription_id integer,
      segment smallint not null default %3$s,
      attempt smallint not null default 1,
      priority trunq.no_priority not null default 0,
      kind text,
      key text,
      payload trunq.payload,
      body trunq.body,
      headers trunq.headers,
      errors jsonb
    ) partition by list (segment)
  $q$, v_queue.name, p_queue_id, v_segment);
  execute format('create index on trunq_log.%I (txid, id)', v_queue.name);
  -- A retry has its old id among new ones: plain minmax would widen every range it lands in.
  execute format('create index on trunq_log.%I using brin (id int8_minmax_multi_ops) with (pages_per_range = 32, autosummarize = on)', v_queue.name);

  execute format($q$
    create table trunq_data.%1$I (
      lease_id bigint not null,
      last_id bigint not null,
      last_txid xid8 not null,
      token bigint not null,
      leased_at timestamptz not null,
      expires_at timestamptz,
      reaped_at timestamptz,
      from_tick_id bigint,
      to_tick_id bigint,
      min_txid bigint,
      max_txid bigint,
      subscription_id integer not null,
      size integer,
      segment smallint not null default %2$s,
      worker text,
      lo pg_snapshot not null,
      hi pg_snapshot not null,
      ids bigint[],
      txids xid8[]
    ) partition by list (segment)
  $q$, 'lease_' || p_queue_id, v_segment);
  execute format('create index on trunq_data.%I (subscription_id, lease_id)', 'lease_' || p_queue_id);
  execute format('create index on trunq_data.%I (subscription_id, expires_at) where expires_at is not null', 'lease_' || p_queue_id);

  execute format($q$
    create table trunq_data.%1$I (
      lease_id bigint not null,
      finished_at timestamptz not null,
      subscription_id integer not null,
      size integer not null,
      segment smallint not null default %2$s,
      number smallint not null default 0,
      outcome "char" not null
        constraint outcome_is_known check (outcome in ('a', 'r', 'j', 'l', 'x', 'b')),
      ids bigint[] not null,
      took real[],
      errors text[],
      results jsonb[]
    ) partition by list (segment)
  $q$, 'receipt_' || p_queue_id, v_segment);
  -- The answers of a lease are numbered, and lie in its segment: one given under a snapshot that does not see the others fails here.
  execute format('create unique index on trunq_data.%I (lease_id, number, segment)', 'receipt_' || p_queue_id);
  execute format('create index on trunq_data.%I using brin (finished_at) with (pages_per_range = 16, autosummarize = on)', 'receipt_' || p_queue_id);

  -- Arrays of ids hardly shrink, and trying costs a fifth of a lease and two fifths of an ack of 1000.
  execute format('alter table trunq_data.%I alter ids set storage external', 'lease_' || p_queue_id);
  execute format('alter table trunq_data.%I alter ids set storage external', 'receipt_' || p_queue_id);
  execute format('alter table trunq_data.%I alter took set storage external', 'receipt_' || p_queue_id);

  for v_n in 0 .. v_queue.segments - 1 loop
    foreach v_kind in array array['log', 'lease', 'receipt'] loop
      -- Nothing is updated or deleted here; a segment is emptied by TRUNCATE, so vacuum has nothing to do.
      execute format('create table trunq_data.%I partition of %s for values in (%s) with (autovacuum_enabled = off, toast.autovacuum_enabled = off)',
        format('%s_%s_%s', v_kind, p_queue_id, v_n),
        case v_kind when 'log' then format('trunq_log.%I', v_queue.name) else format('trunq_data.%I', format('%s_%s', v_kind, p_queue_id)) end,
        v_n);
    end loop;
  end loop;
  execute format('comment on table trunq_log.%I is %L', v_queue.name,
    'Messages of the queue. Insert or copy into (priority, key, kind, payload, body, headers); the other columns are trunq''s.');
end $$;

create or replace function trunq._define_queue(p_queue_id integer) returns void
language plpgsql as $$
declare
  v_queue text;
begin
  select q.name into v_queue from trunq.queue q where q.queue_id = p_queue_id;
  perform trunq._define_publish(p_queue_id, v_queue);
  perform trunq._define_wake(p_queue_id, v_queue);
  perform trunq._define_lease(p_queue_id, v_queue);
  perform trunq._define_answer(p_queue_id, v_queue);
  perform trunq._define_unread(p_queue_id, v_queue);
end $$;
comment on function trunq._define_queue(integer) is
  'Generates the functions that name this queue''s tables: publish_many, wake, lease, answer, give_back, unread.';

create or replace function trunq._drop_functions(p_queue_id integer) returns void
language plpgsql as $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
    where p.pronamespace = 'trunq_data'::regnamespace and p.proname ~ format('^[a-z]+(_[a-z]+)*_%s$', p_queue_id)
  loop
    execute format('drop function %s', v_function);
  end loop;
end $$;

create or replace function trunq._refresh_queues() returns integer
language plpgsql as $$
declare
  v_queue_id integer;
  v_count integer := 0;
begin
  -- A queue that is being created is waited for: it must not be left with functions of before.
  perform pg_advisory_xact_lock(1953656423, 0);
  insert into trunq.cluster (system_identifier)
  select s.system_identifier from pg_control_system() s
  on conflict do nothing;
  for v_queue_id in select q.queue_id from trunq.queue q order by q.queue_id loop
    perform trunq._define_queue(v_queue_id);
    v_count := v_count + 1;
  end loop;
  perform trunq._define_dispatch();
  return v_count;
end $$;
comment on function trunq._refresh_queues() is 'Generates every queue''s functions again: the last step of install and upgrade.';
