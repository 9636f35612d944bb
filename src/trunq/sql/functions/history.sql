-- Lease and receipts together are the history of a message: started, held until, attempts, finished, by whom, why not.
--
-- From an id to its rows in the log by BRIN; from a row to its lease by binary search, as positions grow with the leases. Nothing
-- scans the log to find one message. A list goes down the ids, as far as it must to fill a page.

create or replace function trunq.show_message(p_queue text, p_id bigint)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  return query
    select m.* from trunq.subscription s
    cross join lateral trunq._message(s, v_queue, array[p_id]) m
    where s.queue_id = v_queue.queue_id and s.mode = 'shared' order by s.name;
  if not found then
    perform trunq._fail('TQ013', format('queue "%s" has no message %s', p_queue, p_id),
      'it was never published, or its time (the retention) is over');
  end if;
end $$;
comment on function trunq.show_message(text, bigint) is
  'One message as each shared subscription sees it. state: scheduled, ready, leased, retrying, done or dead; attempts: every time it was leased.
Raises: TQ001, TQ013.';

create or replace function trunq.list_messages(
  p_queue text, p_subscription text default 'default', p_state text default null, p_limit integer default 100, p_before bigint default null
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
  v_before bigint := coalesce(p_before, trunq._last_message_id(v_queue) + 1);
  v_left integer := p_limit;
  v_ids bigint[];
  v_count integer;
begin
  perform trunq._check_limit(p_limit);
  if p_state not in ('scheduled', 'ready', 'leased', 'retrying', 'done', 'dead') then
    perform trunq._fail('TQ005', format('there is no state "%s"', p_state), 'scheduled, ready, leased, retrying, done or dead');
  end if;
  while v_left > 0 loop
    v_ids := trunq._candidates(v_sub, v_queue, p_state, v_left, v_before);
    exit when v_ids = '{}';
    return query
      select m.* from trunq._message(v_sub, v_queue, v_ids) m
      where p_state is null or m.state = p_state order by m.id desc;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    v_before := v_ids[cardinality(v_ids)];
  end loop;
end $$;
comment on function trunq.list_messages(text, text, text, integer, bigint) is
  'Messages of a shared subscription, newest first, in one state or any; p_before: the smallest id of the page before.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq._candidates(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  c_many constant integer := 100000;
  v_mark record;
  v_ids bigint[];
begin
  case
    when p_state in ('scheduled', 'retrying') then
      v_ids := array(
        select d.id from trunq.delayed d
        where d.queue_id = p_sub.queue_id and d.id < p_before
          and d.subscription_id is not distinct from case p_state when 'retrying' then p_sub.subscription_id end
        order by d.id desc limit p_limit);
    when p_state = 'dead' then
      v_ids := array(
        select d.id from trunq.dead d
        where d.queue_id = p_sub.queue_id and d.subscription_id = p_sub.subscription_id and d.id < p_before
        order by d.id desc limit p_limit);
    when p_state = 'leased' then
      v_mark := trunq._reaped(p_queue, p_sub.subscription_id);
      execute format($q$
        select array(
          select u.id from trunq_data.%1$I l cross join lateral unnest(l.ids) u(id)
          where l.subscription_id = $1 and (l.expires_at > $2 or l.lease_id > $5) and l.reaped_at is null and u.id < $3
            and not exists (
              select from trunq_data.%2$I r where r.lease_id = l.lease_id and r.subscription_id = $1 and u.id = any (r.ids))
          order by u.id desc limit $4)
      $q$, p_queue.lease_table, p_queue.receipt_table) into v_ids
      using p_sub.subscription_id, v_mark.until, p_before, p_limit, v_mark.newest;
    when p_state = 'ready' then
      -- They are where the position is, unless there are so many that the newest are elsewhere.
      v_ids := array(select u.id from trunq._unread(p_queue, p_sub.subscription_id, c_many) u);
      if cardinality(v_ids) < c_many then
        v_ids := array(select distinct u.id from unnest(v_ids) u(id) where u.id < p_before order by u.id desc limit p_limit);
      else
        v_ids := trunq._logged_ids(p_sub, p_queue, p_state, p_limit, p_before);
      end if;
    when p_state = 'done' then
      v_ids := trunq._logged_ids(p_sub, p_queue, p_state, p_limit, p_before);
    else
      v_ids := array(
        select u.id from (
          select unnest(trunq._candidates(p_sub, p_queue, s.state, p_limit, p_before)) id
          from unnest(array['scheduled', 'retrying', 'dead']) s(state)
          union
          select unnest(trunq._logged_ids(p_sub, p_queue, null, p_limit, p_before))) u
        order by u.id desc limit p_limit);
  end case;
  return v_ids;
end $$;
comment on function trunq._candidates(trunq.subscription, trunq.queue, text, integer, bigint) is
  'The newest ids below p_before that may be in a state, none left out, newest first; _message tells what state they are in.';

create or replace function trunq._logged_ids(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_ids bigint[] := '{}';
  v_high bigint := p_before;
  v_size bigint := 2 * p_limit;
begin
  -- No index gives ids in order, but BRIN gives a range of them: down by ranges, each twice as long.
  while cardinality(v_ids) < p_limit and v_high > 0 loop
    execute format($q$
      select $1 || array(
        select distinct g.id from trunq_log.%1$I g
        where g.id < $2 and g.id >= $3 and (g.subscription_id = $4 or g.subscription_id is null and %2$s) and case $6
          when 'ready' then not %3$s
          when 'done' then %3$s
            and not exists (select from trunq.dead d where d.queue_id = $11 and d.subscription_id = $4 and d.id = g.id)
            and not exists (select from trunq.delayed d where d.queue_id = $11 and d.subscription_id = $4 and d.id = g.id)
          else true end
        order by g.id desc limit $12)
    $q$, p_queue.log_table, trunq._is_for('g', '$5'), 'trunq._is_read_at(g.txid, g.id, $7, $8, $9, $10)') into v_ids
    using v_ids, v_high, v_high - v_size, p_sub.subscription_id, p_sub.start, p_state, v.lo, v.hi, v.last_txid, v.last_id,
      p_sub.queue_id, p_limit - cardinality(v_ids);
    v_high := v_high - v_size;
    v_size := 2 * v_size;
  end loop;
  return v_ids;
end $$;
comment on function trunq._logged_ids(trunq.subscription, trunq.queue, text, integer, bigint) is 'The newest ids in the log below p_before that may be in a state, newest first.';

create or replace function trunq._is_for(p_row text, p_start text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- After trunq.rebase() every older row has a txid below 500.
  select format('(%1$s.txid < ''500'' or not pg_visible_in_snapshot(%1$s.txid, %2$s))', p_row, p_start)
$$;
comment on function trunq._is_for(text, text) is
  'The condition that a row of the log, for everyone, was not there before a subscription started.';

create or replace function trunq._message(p_sub trunq.subscription, p_queue trunq.queue, p_ids bigint[]) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_low bigint;
  v_high bigint;
  v_near boolean;
  v_first bigint;
begin
  execute format('select min(lease_id) from trunq_data.%I where subscription_id = $1', p_queue.lease_table)
    into v_first using p_sub.subscription_id;
  select min(u.id), max(u.id) into v_low, v_high from unnest(p_ids) u(id);
  v_near := v_high - v_low < 20 * cardinality(p_ids);
  return query execute format($q$
    with wanted as materialized (select distinct u.id from unnest($3) u(id)),
    -- Every row of these messages that this subscription gets: the first, and its retries.
    logged as materialized (
      select g.id, g.txid, g.attempt, g.created_at, g.kind, g.key, g.payload, g.headers, g.errors
      from wanted w %4$s
      where g.subscription_id = $1 or g.subscription_id is null and %5$s
    ),
    held as materialized (
      select g.id, g.txid, g.attempt, l.lease_id, l.worker, l.leased_at, l.expires_at,
        r.outcome, r.finished_at, r.errors[r.at] error, r.results[r.at] result, r.took[r.at] took
      from logged g
      cross join lateral (
        -- Positions grow with the leases: the first one behind the row holds it, found by binary search.
        with recursive half as (
          select $12::bigint low, $13::bigint high, null::bigint found
          union all
          select case when p.is_behind then h.low else p.lease_id + 1 end,
            case when p.is_behind then (h.low + h.high) / 2 - 1 else h.high end,
            case when p.is_behind then p.lease_id else h.found end
          from half h cross join lateral (
            select l.lease_id, %7$s is_behind from trunq_data.%2$I l
            where l.subscription_id = $1 and l.lease_id >= (h.low + h.high) / 2 order by l.lease_id limit 1) p
          where h.low <= h.high
        )
        select l.* from half h join trunq_data.%2$I l on l.subscription_id = $1 and l.lease_id = h.found
        where h.low > h.high and g.id = any (l.ids) and g.txid >= '500'
        union all
        select l.* from trunq_data.%2$I l
        where g.txid < '500' and l.max_txid < 500 and l.subscription_id = $1 and l.txids[array_position(l.ids, g.id)] = g.txid
        offset 0) l
      left join lateral (
        select r.*, array_position(r.ids, g.id) at from trunq_data.%3$I r
        where r.lease_id = l.lease_id and r.subscription_id = $1 and g.id = any (r.ids)
        offset 0) r on true
    ),
    story as (
      select h.id, jsonb_agg(jsonb_build_object(
          'attempt', h.attempt, 'worker', h.worker, 'leased_at', h.leased_at, 'expires_at', h.expires_at, 'finished_at', h.finished_at,
          'outcome', trunq._outcome(h.outcome),
          'error', h.error, 'took', h.took) order by h.lease_id) attempts
      from held h group by h.id
    ),
    newest as (select distinct on (h.id) h.* from held h order by h.id, h.lease_id desc),
    -- The newest row in the log, or what lies in delayed or dead.
    place as (
      select distinct on (p.id) p.* from (
        select g.id, 3 rank, g.txid, g.attempt::integer, g.created_at, null::timestamptz due_at, g.kind, g.key, g.payload, g.headers, g.errors, null place
        from logged g
        union all
        select d.id, 1, null::xid8, d.attempt, d.created_at, d.due_at, d.kind, d.key, d.payload, d.headers, d.errors,
          case when d.subscription_id is null then 'scheduled' else 'retrying' end
        from trunq.delayed d where d.queue_id = $2 and d.id = any ($3) and (d.subscription_id is null or d.subscription_id = $1)
        union all
        select d.id, 2, null, d.attempt, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors, 'dead'
        from trunq.dead d where d.queue_id = $2 and d.subscription_id = $1 and d.id = any ($3)) p
      order by p.id, p.rank, p.txid desc
    ),
    told as (
      select p.*, n.worker, n.leased_at, n.expires_at, n.finished_at, n.error last_error, n.result, n.txid = p.txid is_held,
        coalesce(p.place, case
          when n.txid = p.txid and n.outcome is null then 'leased'
          when n.txid = p.txid and n.outcome = 'a' then 'done'
          when n.txid = p.txid then 'dead'  -- and purged: it is nowhere else
          when not %6$s then 'ready'
          else 'done' end) state  -- read, and its lease gone with its segment
      from place p left join newest n on n.id = p.id
    )
    select $11, t.state, t.id, t.kind::text, t.key::text, t.payload, t.headers, t.attempt, coalesce(s.attempts, '[]'), t.created_at, t.due_at,
      t.worker, t.leased_at, t.expires_at, case when t.is_held or t.place is not null then t.finished_at end,
      case when t.state <> 'done' then coalesce(t.last_error, t.errors -> -1 ->> 'error') end, t.result
    from told t left join story s on s.id = t.id
  $q$, p_queue.log_table, p_queue.lease_table, p_queue.receipt_table,
    format(case when v_near
        then 'join (select g.* from trunq_log.%I g where g.id >= $9 and g.id <= $10 offset 0) g on g.id = w.id'
        else 'cross join lateral (select g.* from trunq_log.%I g where g.id = w.id offset 0) g' end, p_queue.log_table),
    trunq._is_for('g', '$4'), 'trunq._is_read_at(p.txid, p.id, $5, $6, $7, $8)',
    'trunq._is_read_at(g.txid, g.id, l.lo, l.hi, l.last_txid, l.last_id)')
  using p_sub.subscription_id, p_sub.queue_id, p_ids, p_sub.start, v.lo, v.hi, v.last_txid, v.last_id, v_low, v_high, p_sub.name,
    v_first, v.lease_id;
end $$;
comment on function trunq._message(trunq.subscription, trunq.queue, bigint[]) is
  'The state and story of messages as one shared subscription sees them; no row for an id that is nowhere.';
