-- Where the rows of a message are, and which lease held a row.
--
-- No index gives the rows of an id. Two ways lead to them, and both are complete:
--   BRIN on id   reads few pages where it is summarized (a duty), and all of those where it is not
--   by ticks     a tick notes where the ids stood: a later id was drawn after it, so its rows are not visible in the tick's
--                snapshot. They lie in the index on (txid, id) from that snapshot's xmin on, and the index knows the ids.
-- From a row to its lease by search, as positions grow with the leases.
--
-- A row of the log is a transaction, an id, and for whom it is. The first row of a message is for everyone; a retry is for one subscription, and
-- of a message that two of them retry, one promotion inserts two rows with one transaction and one id.

create or replace function trunq._is_row(
  p_row_txid xid8, p_row_id bigint, p_row_for integer, p_txid xid8, p_id bigint, p_subscription_id integer
) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call, and looks into the index on (txid, id).
language sql immutable parallel safe as $$
  select p_row_txid operator(pg_catalog.=) p_txid and p_row_id operator(pg_catalog.=) p_id
    and (p_row_for is null or p_row_for operator(pg_catalog.=) p_subscription_id)
$$;
comment on function trunq._is_row is
  'Whether a row of the log (its txid, id and subscription_id) is the one at a place that a subscription gets. Every look-up of a row by its place goes through here.';

create or replace function trunq._rows_of(
  p_queue trunq.queue, p_low bigint, p_high bigint, p_near boolean default false, p_to xid8 default null, out query text, out is_by_brin boolean, out is_near boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_many constant bigint := 50000;
  v_before record;
  v_after trunq.tick;
begin
  select b.* into v_before from trunq._tick_before(p_queue.queue_id, p_low) b;
  if p_near then
    select t.* into v_after from trunq.tick t
    where t.queue_id = p_queue.queue_id and t.tick_id > coalesce(v_before.tick_id, 0) + 1 and t.last_message_id > p_high + 32
    order by t.tick_id limit 1;
  end if;
  is_near := p_near and v_after.tick_id is not null;
  if is_near then
    p_to := pg_snapshot_xmax(v_after.snapshot);
  end if;
  is_by_brin := (is_near or p_to is null) and coalesce(v_after.last_message_id, trunq._last_message_id(p_queue)) - coalesce(v_before.last_message_id, 0) > c_many
    and exists (
      select from trunq.mark m
      where m.queue_id = p_queue.queue_id and m.duty = 'summarize' and trunq.clock() - m.at between '0' and '5 minutes');
  perform set_config('enable_bitmapscan', case when is_by_brin then 'on' else 'off' end, true);
  -- Postgres 18 would skip through the other index, which it takes for short: it has no statistics.
  perform set_config('cpu_index_tuple_cost', case when is_by_brin then '1000' else '0.005' end, true);
  if is_by_brin then
    query := format('(select * from trunq_log.%I where id >= %s and id <= %s)', p_queue.log_table, p_low, p_high);
    return;
  end if;
  -- A comparison of rows, or Postgres 18 would search for each transaction by itself. After trunq.rebase() every older row has a txid
  -- below 500, whatever its id.
  query := format($q$(
      select * from trunq_log.%1$I where id >= %2$s and id <= %3$s and (txid, id) >= (%4$L, 0) %5$s
      union all
      select * from trunq_log.%1$I where id >= %2$s and id <= %3$s and (txid, id) < (least(xid8 '500', %4$L), 0))$q$,
    p_queue.log_table, p_low, p_high, coalesce(v_before.xmin, '0'), 'and txid <= ' || quote_literal(p_to));
end $$;
comment on function trunq._rows_of is
  'A subquery for all rows of the log with ids from p_low to p_high, by ticks or, where that would be long, by BRIN; p_near: only those of about the time when the ids were drawn (is_near: there may be others); p_to: no more than those up to a transaction, where ids go on far beyond it, and by ticks. It sets enable_bitmapscan and cpu_index_tuple_cost for the calling function, which must set them too, to have them back.';

create or replace function trunq._tick_before(p_queue_id integer, p_id bigint, out tick_id bigint, out last_message_id bigint, out xmin xid8)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select t.tick_id, t.last_message_id, pg_snapshot_xmin(t.snapshot) from trunq.tick t
  where t.queue_id = p_queue_id and t.last_message_id < p_id order by t.tick_id desc limit 1
$$;
comment on function trunq._tick_before is
  'The newest tick when an id was not drawn yet: rows with this id, and greater ones, have transactions from xmin on. Null: none.';

create or replace function trunq._newest_id(p_queue trunq.queue, p_txid xid8 default null, p_id bigint default null) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_id bigint;
begin
  -- The last rows may be retries, or delayed ones, with ids of long ago.
  execute format($q$
    select max(g.id) from (
      select g.id from (
        select g.id, g.subscription_id from trunq_log.%I g %s order by g.txid desc, g.id desc limit 20000) g
      where g.subscription_id is null limit 2000) g
  $q$, p_queue.log_table, case when p_txid is not null then 'where (g.txid, g.id) <= ($1, $2)' end) into v_id using p_txid, p_id;
  return coalesce(v_id, 9223372036854775807);
end $$;
comment on function trunq._newest_id is
  'About the newest id in the log, or before a place in it: where a look for the newest may begin. Ids that were drawn for delayed messages may be far above.';

create or replace function trunq._is_after_start(p_row text, p_start text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- After trunq.rebase() every older row has a txid below 500.
  select format('(%1$s.txid < ''500'' or not pg_visible_in_snapshot(%1$s.txid, %2$s))', p_row, p_start)
$$;
comment on function trunq._is_after_start is
  'The condition that a row of the log, for everyone, was not there before a subscription started.';

create or replace function trunq._first_leases(p_queue trunq.queue, p_subscription_id integer, p_txids xid8[], p_ids bigint[])
returns table (txid xid8, id bigint, lease_id bigint)
-- Stable: it sees what the statement that calls it sees.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_probe text := format(
    'select lease_id, lo, hi, last_txid, last_id from trunq_data.%I where subscription_id = $1 and lease_id >= $2 and segment = any (%L) order by lease_id limit 1',
    p_queue.lease_table, trunq._filled_segments(p_queue, 'lease'));
  v_first bigint;
  v_newest bigint := (trunq._position(p_queue, p_subscription_id)).lease_id;
  v_low bigint;
  v_high bigint;
  v_step bigint;
  v_at record;
  v_found record;
  v_before record;
begin
  if p_queue.lanes is not null then
    return query execute format('select * from trunq_queue.%I($1, $2, $3)', p_queue.name || '_holders') using p_subscription_id, p_txids, p_ids;
    return;
  end if;
  execute format('select min(lease_id) from trunq_data.%I where subscription_id = $1', p_queue.lease_table) into v_first using p_subscription_id;
  for v_n in 1 .. coalesce(cardinality(p_ids), 0) loop
    txid := p_txids[v_n];
    id := p_ids[v_n];
    v_low := v_first;
    v_high := v_newest;
    v_step := null;
    -- Its neighbour's lease, most often, or one nearby.
    if v_found is not null then
      if trunq._is_read_at(txid, id, v_found.lo, v_found.hi, v_found.last_txid, v_found.last_id) then
        v_high := v_found.lease_id - 1;
        if v_before is null then
          v_low := v_high + 1;  -- it is the first lease of all
        elsif not trunq._is_read_at(txid, id, v_before.lo, v_before.hi, v_before.last_txid, v_before.last_id) then
          v_low := v_high + 1;
        end if;
      else
        v_low := v_found.lease_id + 1;
        v_before := v_found;
        v_found := null;
        v_step := 1;
      end if;
    end if;
    while v_low <= v_high loop
      execute v_probe into v_at using p_subscription_id, case when v_step is null then (v_low + v_high) / 2 else least(v_low + v_step - 1, v_high) end;
      exit when v_at.lease_id is null;
      if trunq._is_read_at(txid, id, v_at.lo, v_at.hi, v_at.last_txid, v_at.last_id) then
        v_high := case when v_step is null then (v_low + v_high) / 2 else least(v_low + v_step - 1, v_high) end - 1;
        v_found := v_at;
        v_step := null;
      else
        v_low := v_at.lease_id + 1;
        v_before := v_at;
        v_step := 4 * v_step;
      end if;
    end loop;
    if v_found is not null then
      lease_id := v_found.lease_id;
      return next;
    end if;
  end loop;
end $$;
comment on function trunq._first_leases is
  'For rows of the log the first lease whose position lies behind each: that one held it, if any did. Positions grow with the leases.';

create or replace function trunq._delayed_or_dead(p_queue_id integer, p_subscription_id integer, p_ids bigint[])
returns table (
  id bigint, place text, attempt integer, created_at timestamptz, due_at timestamptz, kind text, key text, payload jsonb, headers jsonb, errors jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp
set trunq.plan = index as $$
begin
  -- Asked for their order too: without statistics, all indexes look alike, and only the one on ids gives it.
  return query
    select d.id, case when d.subscription_id is null then 'scheduled' when d.parked_at is not null then 'parked' when d.aside is not null then 'ready' else 'retrying' end,
      d.attempt::integer, d.created_at, case when d.aside is null then d.due_at end, d.kind, d.key,
      d.payload, d.headers, d.errors
    from unnest(p_ids) u(id) cross join lateral (
      (select d.* from trunq.delayed d where d.queue_id = p_queue_id and d.subscription_id is null and d.id >= u.id
       order by d.queue_id, d.subscription_id, d.id limit 1)
      union all
      (select d.* from trunq.delayed d where d.queue_id = p_queue_id and d.subscription_id = p_subscription_id and d.id >= u.id
       order by d.queue_id, d.subscription_id, d.id limit 1)) d
    where d.id = u.id
    union all
    select d.id, 'dead', d.attempt::integer, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors
    from unnest(p_ids) u(id) cross join lateral (
      select d.* from trunq.dead d where d.queue_id = p_queue_id and d.subscription_id = p_subscription_id and d.id >= u.id
      order by d.queue_id, d.subscription_id, d.id limit 1) d
    where d.id = u.id;
end $$;
comment on function trunq._delayed_or_dead is 'Those of some messages that are put off or dead, as a subscription sees them.';
