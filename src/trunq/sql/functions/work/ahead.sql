-- A lease of messages by their ids: of whoever heard of one by NOTIFY, or was told its id, and wants that one. It is a lease as any other, whose
-- position stays where it was: its messages lie ahead of it. So that the position hands none of them out again when it comes there,
--   trunq.ahead    says which rows of the log were taken, and by which lease
--   lease.ahead    of the newest lease says up to which transaction there may be such rows. Leases read the newest one under the
--                  lock of the subscription anyway, so none can miss it, and where it is null none looks for anything
-- What becomes of a message then goes the ways of any lease: an answer finds its row by its place, a retry is a new row, and what
-- rotation keeps, it keeps for every open lease. The lease names the snapshot from which on all of those rows are read: none is
-- noted beyond it. A row of trunq.ahead goes when its lease has gone with its segment (trunq.forget).
--
-- A message of a transaction that is not visible yet is nowhere: it is not taken, and comes by itself later. What is taken is found before the lock,
-- and looked at again under it, by its place.
--
-- A reader that takes by ids alone would leave its position behind for ever. So each such lease moves it on over what comes next and was taken.

create or replace function trunq.lease_ids(
  p_queue text, p_subscription text, p_worker text, p_ids bigint[], p_lease_time interval default null
) returns table (
  id bigint, state text, reason text, worker text, due_at timestamptz, lease_id bigint, token bigint, attempt smallint, max_attempts integer,
  kind text, key text, payload jsonb, body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile set search_path = pg_catalog, pg_temp rows 100 as $$
begin
  return query execute format('select * from trunq_queue.%I($1, $2, $3, $4)', trunq._function(p_queue, 'lease_ids'))
    using p_subscription, p_worker, p_ids, p_lease_time;
end $$;
comment on function trunq.lease_ids is
  'Leases messages by their ids, up to 10,000, whatever waits before them, to a worker that heard of them. Nobody else gets what it took: no plain lease, and no other that names it.
Returns: one row for each id. With a lease_id: it is the worker''s, all under one lease, as those of trunq.lease. Without: it was not taken, and state says what it is: leased (by worker, until expires_at), done, dead, replaced, purged, scheduled or retrying (until due_at); ready when it waits on, as reason says: paused, limit, bytes (of one lease), alone (it may have killed its worker: name it by itself), expired or cancelled (dead as soon as a lease comes there); null: no such message is there for this subscription, or not yet.
Raises: TQ001, TQ002; TQ005 for a queue with lanes too; TQ007, TQ010, TQ011; TQ008 when an open transaction holds the subscription for 5 seconds; TQ026 when it lost messages and nobody accepted that.
Locks: the subscription, to the end of the transaction: lease in a short one of its own.';

create or replace function trunq._is_ahead(p_subscription_id integer, p_txid xid8, p_id bigint) returns boolean
-- Not in SQL: Postgres would put it in the place of its call, and open the table where nobody asks.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = probe as $$
begin
  return exists (select from trunq.ahead a where a.subscription_id = p_subscription_id and a.id = p_id and a.txid = p_txid);
end $$;
comment on function trunq._is_ahead is 'Whether a row of the log was leased by its id, ahead of the position of a subscription.';

create or replace function trunq._has_ahead(p_queue_id integer, p_subscription_id integer default null) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select exists (
    select from trunq.ahead a
    where a.queue_id = p_queue_id and (p_subscription_id is null or a.subscription_id = p_subscription_id))
$$;
comment on function trunq._has_ahead is 'Whether anything of a queue, or of one of its subscriptions, was leased by its id.';

create or replace function trunq._check_ids(p_ids bigint[], p_lease_time interval) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._require_read_committed('lease_ids');
  if p_ids is null or array_position(array(select unnest(p_ids)), null) is not null then
    perform trunq._fail('TQ005', 'lease_ids names messages by id, not null', 'select * from trunq.lease_ids(''queue'', ''default'', ''worker'', array[42])');
  elsif cardinality(p_ids) > trunq._limit('lease_messages') then
    perform trunq._fail('TQ005', format('lease_ids takes up to %s messages, not %s', trunq._limit('lease_messages'), cardinality(p_ids)), 'lease them in parts');
  end if;
  perform trunq._check_interval('the time of a lease', p_lease_time);
  perform trunq._check_cluster();
end $$;
comment on function trunq._check_ids is 'Refuses (TQ005, TQ007, TQ010) what cannot be leased by id.';

create or replace function trunq._unread_rows(
  p_queue trunq.queue, p_subscription_id integer, p_ids bigint[], p_near boolean
) returns table (id bigint, txid xid8)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record := trunq._position(p_queue, p_subscription_id);
  v_part record;
begin
  -- Those that were drawn together are looked for together.
  for v_part in
    select array_agg(k.id) ids, min(k.id) low, max(k.id) high
    from (
      select n.id, count(*) filter (where n.gap > 1000) over (order by n.id) part
      from (select u.id, u.id - lag(u.id) over (order by u.id) gap from unnest(p_ids) u(id)) n) k
    group by k.part order by min(k.id)
  loop
    return query execute format($q$
      select distinct on (g.id) g.id, g.txid from %s g
      where g.id = any ($2) and (g.subscription_id = $1 or g.subscription_id is null and %s) and not %s
      order by g.id, g.txid desc
    $q$, (trunq._rows_of(p_queue, v_part.low, v_part.high, p_near)).query, trunq._filter_condition(trunq._filter_of(p_subscription_id)),
      trunq._is_read(p_queue, 'g', 'trunq._is_read_at(g.txid, g.id, $3, $4, $5, $6)'))
    using p_subscription_id, v_part.ids, v.lo, v.hi, v.last_txid, v.last_id;
  end loop;
end $$;
comment on function trunq._unread_rows is
  'The rows of the log by which messages wait for a subscription, and nobody has them. p_near: looked for only at about the time when their ids were drawn.';

create or replace function trunq._tell_ids(p_queue trunq.queue, p_subscription_id integer, p_ids bigint[])
returns table (id bigint, state text, reason text, worker text, due_at timestamptz, expires_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription := (select s from trunq.subscription s where s.subscription_id = p_subscription_id);
begin
  return query
    with near as materialized (
      select m.* from trunq._message(v_sub, p_queue, p_ids, true, true) m),
    known as (
      select n.* from near n where n.is_whole
      union all
      select m.* from (
        select array_agg(u.id) ids from unnest(p_ids) u(id) where not exists (select from near n where n.id = u.id and n.is_whole)) r
      cross join lateral trunq._message(v_sub, p_queue, r.ids, true, false) m)
    select k.id, k.state, case when k.state = 'dead' then (
        select d.reason from trunq.dead d
        where d.queue_id = v_sub.queue_id and d.subscription_id = p_subscription_id and d.id = k.id order by d.dead_id desc limit 1) end,
      case when k.state = 'leased' then k.worker end, k.due_at, case when k.state = 'leased' then k.expires_at end
    from known k;
end $$;
comment on function trunq._tell_ids is 'What messages are that are not to be had, for trunq.lease_ids; no row for one that is nowhere.';

create or replace function trunq._forget_ahead(p_queue trunq.queue) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_id integer;
  v_oldest bigint;
  v record;
  v_gone integer;
  v_count integer := 0;
begin
  for v_id in select s.subscription_id from trunq.subscription s where s.queue_id = p_queue.queue_id and s.mode = 'shared' order by 1 loop
    continue when not trunq._has_ahead(p_queue.queue_id, v_id);
    -- Leases of one subscription are numbered and committed in one order.
    execute format('select min(l.lease_id) from trunq_data.%I l where l.subscription_id = $1', p_queue.lease_table) into v_oldest using v_id;
    v := trunq._position(p_queue, v_id);
    delete from trunq.ahead a using (
      select a.id, a.txid from trunq.ahead a
      where a.queue_id = p_queue.queue_id and a.subscription_id = v_id and a.lease_id < v_oldest
        and trunq._is_read_at(a.txid, a.id, v.lo, v.hi, v.last_txid, v.last_id)
      order by a.queue_id, a.subscription_id, a.lease_id limit 1000 for update skip locked) o
    where a.subscription_id = v_id and a.id = o.id and a.txid = o.txid;
    get diagnostics v_gone = row_count;
    v_count := v_count + v_gone;
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_ahead is
  'Forgets what was leased ahead of a position that is behind it by now, once the lease is gone with its segment; at most 1,000 of each subscription.';
