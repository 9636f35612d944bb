-- After a logical restore into another cluster the transaction ids of log and positions mean nothing. rebase() publishes again,
-- for each subscription, what it had not answered or read, and starts the positions afresh. The rows that were there get ids
-- below all that a cluster ever gives out, so that they count as read long ago, except by an "earliest" subscription yet to
-- come; those of one message different ones, in their order, so that its history stays apart.
--
-- Messages may have been published here before anybody noticed. Their ids are of this cluster, so positions of the other one
-- cannot tell them from old ones; but they were created after the position was taken.

create or replace function trunq.rebase() returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_total bigint := 0;
begin
  perform trunq._require_read_committed('rebase');
  perform trunq._audit('rebase', null);
  for v_queue in select q.* from trunq._queues_to_rebase() q loop
    v_total := v_total + trunq._rebase(v_queue);
  end loop;
  perform trunq._end_rebase();
  return v_total;
end $$;
comment on function trunq.rebase is
  'After a restore into another cluster, with all workers and publishers stopped: publishes again, for each subscription, what it had not answered, and starts the positions afresh. Messages come in the order of their ids, whoever published them. Ticks start anew: Spark queries need a new checkpoint. All in one transaction, which for many queues needs more locks than a server has: "call trunq.rebase_each_queue()" takes one transaction a queue.
Returns: how many messages.
Raises: TQ007.
Locks: every queue, exclusively.';

create or replace procedure trunq.rebase_each_queue()
language plpgsql as $$
declare
  v_done text;
begin
  loop
    commit;
    set transaction isolation level read committed;
    v_done := trunq._rebase_next();
    exit when v_done is null;
    raise notice '%', v_done;
  end loop;
  commit;
end $$;
comment on procedure trunq.rebase_each_queue is
  'As trunq.rebase(), each queue in a transaction of its own, with a notice for each; outside of a transaction. What was stopped goes on where it was when it is called again; until all are done, nobody works here (TQ010).
Locks: one queue at a time, exclusively.';

create or replace function trunq._rebase_next() returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_count bigint;
begin
  perform trunq._require_read_committed('rebase_each_queue');
  -- One at a time.
  perform pg_advisory_xact_lock(trunq._lock_class('install'), 0);
  select q.* into v_queue from trunq._queues_to_rebase() q limit 1;
  if v_queue.queue_id is null then
    perform trunq._end_rebase();
    return null;
  end if;
  v_count := trunq._rebase(v_queue);
  return format('queue "%s": %s messages published again, %s queues left', v_queue.name, v_count, (select count(*) from trunq._queues_to_rebase()));
end $$;
comment on function trunq._rebase_next is 'Rebases one queue of those that are left. Returns: what it did; null: none was left, and all is done.';

create or replace function trunq._queues_to_rebase() returns setof trunq.queue
language sql stable set search_path = pg_catalog, pg_temp as $$
  select q from trunq.queue q cross join pg_control_system() s
  where not exists (select from trunq.rebased r where r.queue_id = q.queue_id and r.system_identifier = s.system_identifier) order by q.queue_id
$$;
comment on function trunq._queues_to_rebase is 'The queues that a rebase has left to do.';

create or replace function trunq._end_rebase() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._pass_gate(null);
  delete from trunq.rebased;
  update trunq.cluster c set system_identifier = (select s.system_identifier from pg_control_system() s);
end $$;
comment on function trunq._end_rebase is 'Says that all positions are of this cluster.';

create or replace function trunq._rebase(p_queue trunq.queue) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sub record;
  v_tick trunq.tick;
  v_count bigint;
  v_total bigint := 0;
begin
  -- What is published again was let in before.
  perform trunq._pass_gate(p_queue.name);
  execute format('lock table trunq_log.%I, trunq_data.%I, trunq_data.%I in access exclusive mode', p_queue.log_table,
    p_queue.lease_table, p_queue.receipt_table);
  if p_queue.lanes is not null then
    execute 'truncate ' || substr(trunq._lane_tables(p_queue), 3);
  end if;
  perform set_config('trunq.rewrite', 'on', true);
  v_tick := trunq._cut_tick(p_queue);
  for v_sub in
    select s.subscription_id, s.filter, p.since, s.mode = 'shared' is_shared,
      case s.mode when 'exclusive' then trunq._read_floor(s) else s.start end as floor
    from trunq.subscription s cross join lateral (
      select coalesce(max(t.created_at), s.created_at) since from trunq.tick t
      where s.mode = 'exclusive' and t.queue_id = s.queue_id and t.tick_id = trunq._tick_position(s)) p
    where s.queue_id = p_queue.queue_id order by s.subscription_id
  loop
    -- Transaction id 2 marks what is published again, until the old rows are out of the way.
    execute format($q$
      with answered as (
        select u.txid, u.id, r.outcome from trunq_data.%2$I l
        cross join lateral unnest(l.txids, l.ids) u(txid, id)
        join trunq_data.%3$I r on r.lease_id = l.lease_id and r.subscription_id = l.subscription_id and u.id = any (r.ids)
        where l.subscription_id = $1),
      held as materialized (
        select u.txid, u.id from trunq_data.%2$I l cross join lateral unnest(l.txids, l.ids) u(txid, id) where l.subscription_id = $1),
      -- A row that a lease set aside, no lease held: it tells nothing of its message, which went on from elsewhere. Transaction ids tell no
      -- order here, as some rows may be of the new cluster.
      gone_on as materialized (
        select a.id from answered a where a.outcome in ('a', 'o', 'p')
        union select h.id from held h where not exists (select from answered a where a.txid = h.txid and a.id = h.id)
        union select d.id from trunq.delayed d where d.subscription_id = $1
        union select d.id from trunq.dead d where d.subscription_id = $1
        union select unnest(p.ids) from trunq.purged p where p.subscription_id = $1)
      insert into trunq_log.%1$I (id, txid, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors, options%4$s)
      select distinct on (g.id, case when not $4 then g.txid end) g.id, '2', $1, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors, g.options%5$s
      from trunq_log.%1$I g
      where g.txid <> '2' and (g.subscription_id is null and %6$s or g.subscription_id = $1)
        and not (pg_visible_in_snapshot(g.txid, $2) and (g.txid < '500' or g.created_at < $3))
        and not exists (select from answered a where a.txid = g.txid and a.id = g.id)
        and not ($4 and exists (select from gone_on o where o.id = g.id) and not exists (select from held h where h.txid = g.txid and h.id = g.id))
      order by g.id, case when not $4 then g.txid end, g.attempt desc, g.txid desc
    $q$, p_queue.log_table, p_queue.lease_table, p_queue.receipt_table, trunq._extra_columns(p_queue), trunq._extra_columns(p_queue, 'g.'),
      trunq._filter_condition(v_sub.filter))
    using v_sub.subscription_id, v_sub.floor, v_sub.since, v_sub.is_shared;
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
  end loop;
  execute format($q$
    with old as materialized (
      select distinct g.id, g.txid, (2 + least(dense_rank() over (partition by g.id order by g.txid), 400))::text::xid8 low
      from trunq_log.%1$I g where g.txid <> '2'),
    logged as (
      update trunq_log.%1$I g set txid = o.low from old o where o.id = g.id and o.txid = g.txid),
    held as (
      select l.lease_id, array_agg(coalesce(o.low, '3') order by u.at) filter (where u.at is not null) txids,
        min(coalesce(o.low, '3')::text::bigint) min_txid, max(coalesce(o.low, '3')::text::bigint) max_txid
      from trunq_data.%2$I l left join lateral unnest(l.ids, l.txids) with ordinality u(id, txid, at) on true
      left join old o on o.id = u.id and o.txid = u.txid
      group by l.lease_id)
    update trunq_data.%2$I l set txids = h.txids, min_txid = h.min_txid, max_txid = h.max_txid,
      lo = '3:3:', hi = '3:3:', last_txid = '3', last_id = 0, reaped_at = coalesce(l.reaped_at, trunq.clock())
    from held h where h.lease_id = l.lease_id
  $q$, p_queue.log_table, p_queue.lease_table);
  execute format($q$ update trunq_log.%I set txid = pg_current_xact_id() where txid = '2' $q$, p_queue.log_table);
  delete from trunq.tick t where t.queue_id = p_queue.queue_id and t.tick_id < v_tick.tick_id;
  update trunq.subscription s set start = v_tick.snapshot, start_tick_id = case s.mode when 'exclusive' then v_tick.tick_id end
  where s.queue_id = p_queue.queue_id;
  perform trunq._move_back(p_queue.queue_id);
  for v_sub in select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id and s.mode = 'shared' loop
    execute format($q$
      insert into trunq_data.%I (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id, leased_at%s)
      values (nextval('trunq_data.%I'), $1, trunq._token(), case when $3 then 'lost' else 'rebase' end, $2, $2, pg_snapshot_xmax($2), 0, trunq.clock()%s)
    $q$, p_queue.lease_table, case when p_queue.lanes is not null then ', epoch' end, p_queue.lease_sequence, case when p_queue.lanes is not null then ', 0' end) using v_sub.subscription_id, v_tick.snapshot, v_sub.lost_at is not null;
    if v_sub.in_order then
      perform trunq._hold_lanes(p_queue, v_sub.subscription_id, v_tick.snapshot);
    end if;
  end loop;
  execute format('delete from trunq_data.%I l using trunq.subscription s where s.subscription_id = l.subscription_id and s.mode = ''exclusive''',
    p_queue.lease_table);
  perform set_config('trunq.rewrite', 'off', true);
  delete from trunq.unhandled u where u.queue_id = p_queue.queue_id;
  -- Their leases are found by their rows, as those of all that was read.
  delete from trunq.ahead a where a.queue_id = p_queue.queue_id;
  delete from trunq.due d where d.queue_id = p_queue.queue_id;
  -- Above all that was there, below all that comes.
  update trunq.purged p set txid = '500' where p.queue_id = p_queue.queue_id;
  insert into trunq.rebased (queue_id, system_identifier) select p_queue.queue_id, s.system_identifier from pg_control_system() s
  on conflict (queue_id) do update set system_identifier = excluded.system_identifier;
  return v_total;
end $$;
comment on function trunq._rebase is 'Rebases one queue. Returns: how many messages were published again.';
