-- pgq_coop: consumers who share one subscription. A member is a consumer "main.member"; each has a batch of its own, all of them leases of the
-- main consumer's subscription, which is a group of trunq's (group.sql) from its first member on. The position is where the windows
-- that were handed out end.
--
-- A member that was not heard of for longer than the caller says is dead: its window is opened again under a new lease, and the number of its
-- batch stands for that one from then on. So the caller gets the number that PgQ's would, and what the dead one holds is fenced: its token is
-- that of a lease which is over. PgQ's own finish_batch has no token and cannot be.
--
-- All of it happens under the subscription's lock. When a member was heard of is in its row of pgq._subscription; a group is small.

do $$
begin
  if to_regnamespace('pgq_coop') is null then
    create schema pgq_coop;
  end if;
end $$;
grant usage on schema pgq_coop to public;

create or replace function pgq_coop.version() returns text
language sql stable as $$ select '3.4' $$;

create or replace function pgq_coop.register_subconsumer(i_queue_name text, i_consumer_name text, i_subconsumer_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c_name constant text := i_consumer_name || '.' || i_subconsumer_name;
  v_main pgq._subscription;
  v_consumer_id integer;
begin
  loop
    perform pgq.register_consumer(i_queue_name, i_consumer_name);
    v_main := pgq._find(i_queue_name, i_consumer_name);
    -- It may have been unregistered meanwhile; not from here on, as that takes this lock before any row.
    continue when v_main.sub_queue is null;
    perform pg_advisory_xact_lock_shared(trunq._lock_class('queue'), v_main.sub_queue);
    perform trunq._lock_subscription(v_main.subscription_id, i_queue_name, i_consumer_name);
    exit when (pgq._find(i_queue_name, i_consumer_name)).subscription_id = v_main.subscription_id;
  end loop;
  if (pgq._find(i_queue_name, c_name)).sub_queue is not null then
    return 0;
  end if;
  perform trunq.create_group(q.name, s.name)
  from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where s.subscription_id = v_main.subscription_id and s.group_id is null;
  v_consumer_id := pgq._consumer(c_name);
  if (pgq._find(i_queue_name, c_name)).sub_queue is not null then
    return 0;  -- by another session, just now
  end if;
  insert into pgq._subscription (sub_queue, sub_consumer, subscription_id, is_member, active_at)
  values (v_main.sub_queue, v_consumer_id, v_main.subscription_id, true, trunq.clock());
  return 1;
end $$;

create or replace function pgq_coop._take_over(p_member pgq._subscription, p_dead pgq._subscription) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_member.sub_queue);
  v record;
  v_open bigint[];
  v_lease_id bigint;
  v_batch_id bigint;
begin
  select b.batch_id, o.* into v
  from trunq._open_batches(v_queue, p_dead.subscription_id) o
  join pgq._batch b on b.subscription_id = p_dead.subscription_id and b.lease_id = o.lease_id and b.sub_consumer = p_dead.sub_consumer
  order by b.batch_id limit 1;
  delete from pgq._subscription t where t.sub_queue = p_dead.sub_queue and t.sub_consumer = p_dead.sub_consumer;
  if v.batch_id is null then
    return null;
  end if;
  v_open := array(select o.lease_id from trunq._open_batches(v_queue, p_dead.subscription_id) o where o.lease_id <> v.lease_id order by o.lease_id);
  execute format('select o.lease_id from trunq_queue.%I($1, ''pgq'', $2, $3, $4, $5, $6, $7, nullif($8, ''{}''), $9, $10, $11, $12, $13, $14) o',
    v_queue.name || '_open_batch')
    into v_lease_id using p_dead.subscription_id, v.lo, v.hi, v.from_tick_id, v.to_tick_id, trunq.clock(),
      trunq.clock() + (v.expires_at - v.leased_at), v_open, v.after_txid, v.after_id, v.last_txid, v.last_id, v.failures::integer, v.error;
  update pgq._batch b set lease_id = v_lease_id, sub_consumer = p_member.sub_consumer where b.batch_id = v.batch_id
  returning b.batch_id into v_batch_id;
  return v_batch_id;
end $$;
comment on function pgq_coop._take_over is
  'Ends a member, and opens the window that it had for another, under the same number. Returns: that number; null: it had none. The caller holds the subscription''s lock.';

create or replace function pgq_coop._register_and_lock(i_queue_name text, i_consumer_name text, i_subconsumer_name text, out main pgq._subscription, out member pgq._subscription)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Twice: before the lock there may be no subscription; and whoever had the lock may have taken this member for dead.
  for i in 1 .. 2 loop
    perform pgq_coop.register_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name)
    where (pgq._find(i_queue_name, i_consumer_name || '.' || i_subconsumer_name)).sub_queue is null
      or (pgq._find(i_queue_name, i_consumer_name)).sub_queue is null;
    main := pgq._find(i_queue_name, i_consumer_name);
    perform trunq._lock_subscription(main.subscription_id, i_queue_name, i_consumer_name);
  end loop;
  main := pgq._find(i_queue_name, i_consumer_name);
  member := pgq._find(i_queue_name, i_consumer_name || '.' || i_subconsumer_name);
end $$;
comment on function pgq_coop._register_and_lock is 'The registrations of a consumer and of a member, made where they are missing, under the subscription''s lock.';

create or replace function pgq_coop.next_batch_custom(
  i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_min_lag interval, i_min_count integer, i_min_interval interval, i_dead_interval interval
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v record;
  v_main pgq._subscription;
  v_member pgq._subscription;
  v_dead pgq._subscription;
  v_batch_id bigint;
begin
  perform trunq._require_read_committed('next_batch');
  v := pgq_coop._register_and_lock(i_queue_name, i_consumer_name, i_subconsumer_name);
  v_main := v.main;
  v_member := v.member;
  if exists (
      select from pgq._open(v_main.sub_queue, v_main.subscription_id) o where o.sub_consumer = v_main.sub_consumer) then
    raise exception 'main consumer has batch open?';
  end if;
  select o.batch_id into v_batch_id
  from pgq._open(v_member.sub_queue, v_member.subscription_id) o where o.sub_consumer = v_member.sub_consumer order by o.batch_id limit 1;
  if v_batch_id is null and i_dead_interval is not null then
    select t.* into v_dead
    from pgq._subscription t
    where t.subscription_id = v_main.subscription_id and t.is_member and t.sub_consumer <> v_member.sub_consumer
      and t.active_at < trunq.clock() - i_dead_interval
    order by not exists (
        select from pgq._open(v_main.sub_queue, v_main.subscription_id) o where o.sub_consumer = t.sub_consumer), t.sub_consumer limit 1;
    if found then
      v_batch_id := pgq_coop._take_over(v_member, v_dead);
    end if;
  end if;
  if v_batch_id is null then
    select h.batch_id into v_batch_id from pgq._hand_out(v_member, i_min_lag, i_min_count, i_min_interval) h;
    if v_batch_id is null then
      return null;
    end if;
    update pgq._subscription t set active_at = trunq.clock() where t.sub_queue = v_main.sub_queue and t.sub_consumer = v_main.sub_consumer;
  end if;
  update pgq._subscription t set active_at = trunq.clock() where t.sub_queue = v_member.sub_queue and t.sub_consumer = v_member.sub_consumer;
  return v_batch_id;
end $$;

create or replace function pgq_coop.next_batch_custom(
  i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_min_lag interval, i_min_count integer, i_min_interval interval
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, i_min_lag, i_min_count, i_min_interval, null);
end $$;

create or replace function pgq_coop.next_batch(i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, null, null, null, i_dead_interval);
end $$;

create or replace function pgq_coop.next_batch(i_queue_name text, i_consumer_name text, i_subconsumer_name text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name, null, null, null, null);
end $$;

create or replace function pgq_coop.finish_batch(i_batch_id bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_batch pgq._batch;
begin
  select b.* into v_batch from pgq._batch b where b.batch_id = i_batch_id;
  if not pgq._finish(i_batch_id) then
    raise warning 'coop_finish_batch: batch % not found', i_batch_id;
    return 0;
  end if;
  update pgq._subscription t set active_at = trunq.clock() where t.sub_queue = v_batch.queue_id and t.sub_consumer = v_batch.sub_consumer;
  return 1;
end $$;

create or replace function pgq_coop.unregister_subconsumer(i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_handling integer)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c_name constant text := i_consumer_name || '.' || i_subconsumer_name;
  v_member pgq._subscription := pgq._find(i_queue_name, c_name);
begin
  perform trunq._require_read_committed('unregister_subconsumer');
  if v_member.sub_queue is null then
    return 0;
  end if;
  perform trunq._lock_subscription(v_member.subscription_id, i_queue_name, c_name);
  if i_batch_handling is distinct from 1 and exists (
      select from pgq._open(v_member.sub_queue, v_member.subscription_id) o where o.sub_consumer = v_member.sub_consumer) then
    raise exception 'subconsumer has active batch';
  end if;
  return pgq.unregister_consumer(i_queue_name, c_name);
end $$;
