-- Consumers: any text. A consumer of a queue is an exclusive subscription, under the same name where trunq allows it, else under pgq_ and its
-- number. It may fail as often as it likes, and what it has open never runs out: both are PgQ's way.

create or replace function pgq.register_consumer(x_queue_name text, x_consumer_id text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return pgq.register_consumer_at(x_queue_name, x_consumer_id, null);
end $$;

create or replace function pgq.register_consumer_at(x_queue_name text, x_consumer_name text, x_tick_pos bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue record;
  v_consumer_id integer;
  v_sub record;
  v_tick_id bigint := x_tick_pos;
  v_name text;
begin
  -- Before the consumer: so does drop_queue.
  select f.queue_id, q.name into v_queue from pgq._queue f join trunq.queue q on q.queue_id = f.queue_id where f.queue_name = x_queue_name
  for key share of f;
  if not found then
    raise exception 'Event queue not created yet';
  end if;
  if x_tick_pos is not null and not exists (select from trunq.tick t where t.queue_id = v_queue.queue_id and t.tick_id = x_tick_pos) then
    raise exception 'cannot reposition, tick not found: %', x_tick_pos;
  end if;
  -- Before its row is locked, and behind that: whoever has the subscription's lock may end it, and the row, just now.
  for i in 1 .. 2 loop
    select t.subscription_id, s.name into v_sub
    from pgq._subscription t join trunq.subscription s on s.subscription_id = t.subscription_id join pgq.consumer c on c.co_id = t.sub_consumer
    where t.sub_queue = v_queue.queue_id and c.co_name = x_consumer_name;
    exit when found or i = 2;
    v_consumer_id := pgq._consumer(x_consumer_name);
  end loop;
  if v_sub.subscription_id is not null then
    if x_tick_pos is not null then
      perform trunq.seek(v_queue.name, v_sub.name, p_tick_id => x_tick_pos);
      delete from pgq._batch b where b.subscription_id = v_sub.subscription_id;
    end if;
    return 0;
  end if;
  if v_tick_id is null then
    -- The last one there is: what came after it and before this call is read.
    select max(t.tick_id) into v_tick_id from trunq.tick t where t.queue_id = v_queue.queue_id;
    if v_tick_id is null then
      raise exception 'No ticks for this queue.  Please run ticker on database.';
    end if;
  end if;
  select n.name into v_name from unnest(array[x_consumer_name, 'pgq_' || v_consumer_id, 'pgq_consumer_' || v_consumer_id]) with ordinality n(name, at)
  where n.name ~ '^[a-z][a-z0-9_]{0,47}$' and not exists (
    select from trunq.subscription s where s.queue_id = v_queue.queue_id and s.name = n.name) order by n.at limit 1;
  perform trunq.subscribe(v_queue.name, v_name, 'exclusive', p_tick_id => v_tick_id, p_max_attempts => 0, p_lease_time => '100 years');
  insert into pgq._subscription (sub_queue, sub_consumer, subscription_id)
  select s.queue_id, v_consumer_id, s.subscription_id from trunq.subscription s where s.queue_id = v_queue.queue_id and s.name = v_name;
  return 1;
end $$;

create or replace function pgq.unregister_consumer(x_queue_name text, x_consumer_name text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_sub pgq._subscription := pgq._find(x_queue_name, x_consumer_name);
  v record;
  v_count integer;
begin
  -- Before its rows: whoever hands out a batch of a group updates those under this lock.
  if v_sub.sub_queue is not null then
    perform trunq._lock_subscription(v_sub.subscription_id, x_queue_name, x_consumer_name);
  end if;
  select t.*, q.name queue, s.name subscription into v
  from pgq._subscription t join pgq._queue f on f.queue_id = t.sub_queue join pgq.consumer c on c.co_id = t.sub_consumer
  join trunq.queue q on q.queue_id = t.sub_queue join trunq.subscription s on s.subscription_id = t.subscription_id
  where f.queue_name = x_queue_name and c.co_name = x_consumer_name for update of t, c;
  if not found then
    return 0;
  end if;
  if v.is_member then
    -- What it has in hand is over with it: nobody else could finish that, and its messages would be kept for ever.
    perform pgq._finish(o.batch_id) from pgq._open(v.sub_queue, v.subscription_id) o where o.sub_consumer = v.sub_consumer;
    delete from pgq._subscription t where t.sub_queue = v.sub_queue and t.sub_consumer = v.sub_consumer;
    return 1;
  end if;
  delete from pgq._subscription t where t.subscription_id = v.subscription_id;
  get diagnostics v_count = row_count;
  delete from pgq._batch b where b.subscription_id = v.subscription_id;
  perform trunq.unsubscribe(v.queue, v.subscription);
  delete from pgq.consumer c where c.co_id = v.sub_consumer and not exists (select from pgq._subscription t where t.sub_consumer = c.co_id);
  return v_count;
end $$;

create or replace function pgq._consumer(p_name text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_id integer;
begin
  loop
    select c.co_id into v_id from pgq.consumer c where c.co_name = p_name for update;
    exit when found;
    -- Of two at once, the second waits here and finds the first's; its last queue may take the name with it before it is locked.
    insert into pgq.consumer (co_name) values (p_name) on conflict (co_name) do nothing;
  end loop;
  return v_id;
end $$;
comment on function pgq._consumer is 'The number of a consumer''s name, which it makes where it is missing. Locks its row.';

create or replace function pgq._find(p_queue text, p_consumer text) returns pgq._subscription
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sub pgq._subscription;
begin
  select t.* into v_sub from pgq._subscription t join pgq._queue f on f.queue_id = t.sub_queue join pgq.consumer c on c.co_id = t.sub_consumer
  where f.queue_name = p_queue and c.co_name = p_consumer;
  return v_sub;
end $$;
comment on function pgq._find is 'The registration of a consumer; null: there is none.';

create or replace function pgq._stand(p_queue_id integer, p_subscription_id integer, out tick_id bigint, out seen_at timestamptz)
-- With the owner's rights: everybody may look at pgq.subscription. Of PgQ's queues alone.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue;
  v_newest record;
begin
  select q.* into v_queue from trunq.queue q join pgq._queue f on f.queue_id = q.queue_id where q.queue_id = p_queue_id;
  if not found then
    return;
  end if;
  execute format($q$
    select coalesce(l.frontier_tick_id, l.to_tick_id) to_tick_id, greatest(l.leased_at, (
      select max(r.finished_at) from trunq_data.%2$I r where r.lease_id = l.lease_id and r.segment = l.segment)) seen_at
    from trunq_data.%1$I l where l.subscription_id = $1 order by l.lease_id desc limit 1
  $q$, v_queue.lease_table, v_queue.receipt_table) into v_newest using p_subscription_id;
  tick_id := v_newest.to_tick_id; seen_at := v_newest.seen_at;
  if tick_id is null then
    select s.start_tick_id, s.created_at into tick_id, seen_at from trunq.subscription s where s.subscription_id = p_subscription_id;
  end if;
end $$;
comment on function pgq._stand is 'The end of the last batch that was handed out of a subscription, or its start, and when.';

create or replace function pgq._update_subscription() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if (old.sub_id, old.sub_queue, old.sub_consumer, old.sub_last_tick, old.sub_batch, old.sub_next_tick)
      is distinct from (new.sub_id, new.sub_queue, new.sub_consumer, new.sub_last_tick, new.sub_batch, new.sub_next_tick) then
    raise feature_not_supported using message = 'of pgq.subscription, sub_active alone can be updated',
      hint = 'pgq.register_consumer_at moves a consumer to a tick, pgq.finish_batch ends its batch';
  end if;
  update pgq._subscription t set active_at = new.sub_active where t.sub_queue = old.sub_queue and t.sub_consumer = old.sub_consumer;
  execute format('update trunq_data.%I set leased_at = $1 where subscription_id = $2 and lease_id = (select b.lease_id from pgq._batch b where b.batch_id = $3)',
    (trunq._find_queue(old.sub_queue)).lease_table) using new.sub_active, old.sub_id, old.sub_batch;
  return new;
end $$;
comment on function pgq._update_subscription is 'An update of the view pgq.subscription: when a consumer was last seen, by which its group knows that it is dead.';
