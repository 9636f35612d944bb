-- Lease and receipts together are the history of a message: started, held until, attempts, finished, by whom, why not.
--
-- No index gives the rows of an id. Two ways lead to them, and both are complete:
--   BRIN on id   reads few pages where it is summarized (a duty), and all of those where it is not
--   by ticks     a tick notes where the ids stood: a later id was drawn after it, so its rows are not visible in the tick's
--                snapshot. They lie in the index on (txid, id) from that snapshot's xmin on, and the index knows the ids.
-- From a row to its lease by search, as positions grow with the leases. A list goes down the ids, as far as it must to fill a page.

create or replace function trunq.show_message(p_queue text, p_id bigint)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription;
  v_found boolean := false;
  v_message record;
begin
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id and s.mode = 'shared' order by s.name
  loop
    -- Most messages have one row, among those published about then.
    select m.* into v_message from trunq._message(v_sub, v_queue, array[p_id], false, true) m;
    if v_message.is_whole is not true then
      select m.* into v_message from trunq._message(v_sub, v_queue, array[p_id], false, false) m;
    end if;
    continue when v_message.id is null;
    v_found := true;
    return query select v_message.subscription, v_message.state, v_message.id, v_message.kind, v_message.key, v_message.payload,
      v_message.headers, v_message.attempt, v_message.attempts, v_message.published_at, v_message.due_at, v_message.worker,
      v_message.leased_at, v_message.expires_at, v_message.finished_at, v_message.error, v_message.result;
  end loop;
  if not v_found then
    perform trunq._fail('TQ013', format('queue "%s" has no message %s', p_queue, p_id),
      'it was never published, or its time (the retention) is over');
  end if;
end $$;
comment on function trunq.show_message(text, bigint) is
  'One message as each shared subscription sees it. state: scheduled, ready, leased, retrying, done or dead; attempts: every time it was leased.
Raises: TQ001, TQ013.';

create or replace function trunq.list_messages(
  p_queue text, p_subscription text default 'default', p_state text default null, p_limit integer default 100, p_before bigint default null,
  p_brief boolean default false
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
      select m.subscription, m.state, m.id, m.kind, m.key, m.payload, m.headers, m.attempt, m.attempts, m.published_at, m.due_at, m.worker,
        m.leased_at, m.expires_at, m.finished_at, m.error, m.result
      from trunq._message(v_sub, v_queue, v_ids, p_brief, false) m
      where p_state is null or m.state = p_state order by m.id desc;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    v_before := v_ids[cardinality(v_ids)];
  end loop;
end $$;
comment on function trunq.list_messages(text, text, text, integer, bigint, boolean) is
  'Messages of a shared subscription, newest first, in one state or any; p_before: the smallest id of the page before. p_brief leaves out (null) what a table does not show and is dear to read: payload, headers, attempts and result.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq._candidates(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
declare
  c_many constant integer := 10000;
  v_ids bigint[];
begin
  case
    when p_state in ('scheduled', 'retrying') then
      execute format($q$
        select array(
          select d.id from trunq.delayed d
          where d.queue_id = $1 and d.id < $2 and d.subscription_id %s
          order by d.id desc limit $3)
      $q$, case p_state when 'retrying' then '= ' || p_sub.subscription_id else 'is null' end)
      into v_ids using p_sub.queue_id, p_before, p_limit;
    when p_state = 'dead' then
      v_ids := array(
        select d.id from trunq.dead d
        where d.queue_id = p_sub.queue_id and d.subscription_id = p_sub.subscription_id and d.id < p_before
        order by d.id desc limit p_limit);
    when p_state = 'leased' then
      v_ids := trunq._leased_ids(p_sub, p_queue, p_limit, p_before);
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
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_rows record;
  v_ids bigint[] := '{}';
  v_high bigint := p_before;
  v_size bigint := 2 * p_limit;
  v_low bigint := p_before - v_size;
  v_open bigint[] := '{}';
  v_held bigint[] := '{}';
begin
  if p_state = 'done' then
    -- Behind a backlog: those read last, less those that are held.
    v_low := least(v_low, trunq._newest_read(p_queue, v) - v_size);
    v_open := trunq._held_leases(p_queue, p_sub.subscription_id);
  end if;
  -- No index gives ids in order: down by ranges, each twice as long.
  while cardinality(v_ids) < p_limit and v_high > 0 loop
    v_rows := trunq._rows_of(p_queue, v_low, v_high - 1, case p_state when 'ready' then pg_snapshot_xmin(v.lo) end,
      case p_state when 'done' then greatest(v.last_txid, pg_snapshot_xmax(v.lo)) end);
    if v_open <> '{}' then
      v_held := trunq._open_ids(p_queue, p_sub.subscription_id, v_open, v_low, v_high, null);
    end if;
    execute format($q$
      select $1 || array(
        select distinct g.id from %1$s g
        where (g.subscription_id = $2 or g.subscription_id is null and %2$s) and case $4
          when 'ready' then not %3$s
          when 'done' then %3$s and g.id <> all ($11)
            and not exists (select from trunq.dead d where d.queue_id = $9 and d.subscription_id = $2 and d.id = g.id)
            and not exists (select from trunq.delayed d where d.queue_id = $9 and d.subscription_id = $2 and d.id = g.id)
          else true end
        order by g.id desc limit $10)
    $q$, v_rows.query, trunq._is_for('g', '$3'), 'trunq._is_read_at(g.txid, g.id, $5, $6, $7, $8)') into v_ids
    using v_ids, p_sub.subscription_id, p_sub.start, p_state, v.lo, v.hi, v.last_txid, v.last_id,
      p_sub.queue_id, p_limit - cardinality(v_ids), v_held;
    v_high := v_low;
    v_size := 2 * v_size;
    v_low := v_high - v_size;
  end loop;
  return v_ids;
end $$;
comment on function trunq._logged_ids(trunq.subscription, trunq.queue, text, integer, bigint) is 'The newest ids in the log below p_before that may be in a state, newest first.';

create or replace function trunq._newest_read(p_queue trunq.queue, p_position record) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
declare
  v_id bigint;
begin
  execute format('select g.id from trunq_log.%I g where (g.txid, g.id) <= ($1, $2) order by g.txid desc, g.id desc limit 1', p_queue.log_table)
    into v_id using greatest(p_position.last_txid, pg_snapshot_xmax(p_position.lo)), p_position.last_id;
  return coalesce(v_id, 0);
end $$;
comment on function trunq._newest_read(trunq.queue, record) is 'The id of a row just before a position; 0 when there is none.';

create or replace function trunq._leased_ids(p_sub trunq.subscription, p_queue trunq.queue, p_limit integer, p_before bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_open bigint[] := trunq._held_leases(p_queue, p_sub.subscription_id);
  v_ids bigint[] := '{}';
  v_high bigint := p_before;
  v_size bigint := 2 * p_limit;
  v_low bigint := least(p_before, trunq._newest_read(p_queue, trunq._position(p_queue, p_sub.subscription_id))) - v_size;
begin
  while cardinality(v_ids) < p_limit and v_high > 0 and v_open <> '{}' loop
    v_ids := v_ids || trunq._open_ids(p_queue, p_sub.subscription_id, v_open, v_low, v_high, p_limit - cardinality(v_ids));
    v_high := v_low;
    v_size := 64 * v_size;
    v_low := v_high - v_size;
  end loop;
  return v_ids;
end $$;
comment on function trunq._leased_ids(trunq.subscription, trunq.queue, integer, bigint) is 'The newest ids below p_before that open leases hold, newest first.';

create or replace function trunq._held_leases(p_queue trunq.queue, p_subscription_id integer) returns bigint[]
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(o.lease_id), '{}') from trunq._leases(p_queue, p_subscription_id, null, null) o where o.unanswered > 0
$$;
comment on function trunq._held_leases(trunq.queue, integer) is 'Leases that hold messages without an answer.';

create or replace function trunq._open_ids(
  p_queue trunq.queue, p_subscription_id integer, p_leases bigint[], p_low bigint, p_high bigint, p_limit integer
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
declare
  v_ids bigint[];
begin
  -- Long arrays are dear to read: a lease of messages published before a tick has no id drawn after it.
  execute format($q$
    select array(
      select u.id from unnest($3) o(lease_id)
      cross join lateral (
        select l.ids from trunq_data.%I l where l.subscription_id = $2 and l.lease_id = o.lease_id and l.max_txid >= $4 offset 0) l
      cross join lateral unnest(trunq._unanswered($1, $2, o.lease_id, l.ids)) u(id)
      where u.id >= $5 and u.id < $6 order by u.id desc limit $7)
  $q$, p_queue.lease_table) into v_ids
  using p_queue, p_subscription_id, p_leases, coalesce((trunq._tick_before(p_queue.queue_id, p_low)).xmin, '0')::text::bigint, p_low, p_high, p_limit;
  return v_ids;
end $$;
comment on function trunq._open_ids(trunq.queue, integer, bigint[], bigint, bigint, integer) is
  'The ids from p_low to below p_high that are unanswered in some leases, newest first.';

create or replace function trunq._tick_before(p_queue_id integer, p_id bigint, out tick_id bigint, out last_message_id bigint, out xmin xid8)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select t.tick_id, t.last_message_id, pg_snapshot_xmin(t.snapshot) from trunq.tick t
  where t.queue_id = p_queue_id and t.last_message_id < p_id order by t.tick_id desc limit 1
$$;
comment on function trunq._tick_before(integer, bigint) is
  'The newest tick when an id was not drawn yet: rows with this id, and greater ones, have transactions from xmin on. Null: none.';

create or replace function trunq._rows_of(
  p_queue trunq.queue, p_low bigint, p_high bigint, p_from xid8 default null, p_to xid8 default null, p_near boolean default false,
  out query text, out is_by_brin boolean, out is_near boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_many constant bigint := 300000;
  v_before record;
  v_after trunq.tick;
begin
  select b.* into v_before from trunq._tick_before(p_queue.queue_id, p_low) b;
  select t.* into v_after from trunq.tick t
  where t.queue_id = p_queue.queue_id and t.tick_id > coalesce(v_before.tick_id, 0) + 1
    and case when p_to is null then p_near and t.last_message_id > p_high + 32 else pg_snapshot_xmin(t.snapshot) > p_to end
  order by t.tick_id limit 1;
  is_near := p_near and v_after.tick_id is not null;
  if is_near then
    p_to := pg_snapshot_xmax(v_after.snapshot);
  end if;
  is_by_brin := coalesce(v_after.last_message_id, trunq._last_message_id(p_queue)) - coalesce(v_before.last_message_id, 0) > c_many
    and exists (
      select from trunq.mark m
      where m.queue_id = p_queue.queue_id and m.duty = 'summarize' and trunq.clock() - m.at between '0' and '5 minutes');
  perform set_config('enable_bitmapscan', case when is_by_brin then 'on' else 'off' end, true);
  if is_by_brin then
    query := format('(select * from trunq_log.%I where id >= %s and id <= %s)', p_queue.log_table, p_low, p_high);
    return;
  end if;
  -- After trunq.rebase() every older row has a txid below 500, whatever its id.
  query := format($q$(
      select * from trunq_log.%1$I where id >= %2$s and id <= %3$s and txid >= %4$L %5$s
      union all
      select * from trunq_log.%1$I where id >= %2$s and id <= %3$s and txid < least(xid8 '500', %4$L))$q$,
    p_queue.log_table, p_low, p_high, coalesce(greatest(p_from, v_before.xmin), '0'), 'and txid <= ' || quote_literal(p_to));
end $$;
comment on function trunq._rows_of(trunq.queue, bigint, bigint, xid8, xid8, boolean) is
  'A subquery for all rows of the log with ids from p_low to p_high, by ticks or, where that would be long, by BRIN; p_from, p_to: transactions that bound what is looked for; p_near: only those of about the time when the ids were drawn (is_near: there may be others). It turns bitmap scans on or off in the calling function, which must set enable_bitmapscan.';

create or replace function trunq._is_for(p_row text, p_start text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- After trunq.rebase() every older row has a txid below 500.
  select format('(%1$s.txid < ''500'' or not pg_visible_in_snapshot(%1$s.txid, %2$s))', p_row, p_start)
$$;
comment on function trunq._is_for(text, text) is
  'The condition that a row of the log, for everyone, was not there before a subscription started.';

create or replace function trunq._holders(p_queue trunq.queue, p_subscription_id integer, p_txids xid8[], p_ids bigint[])
returns table (txid xid8, id bigint, lease_id bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
#variable_conflict use_column
declare
  v_probe text := format(
    'select lease_id, lo, hi, last_txid, last_id from trunq_data.%I where subscription_id = $1 and lease_id >= $2 order by lease_id limit 1',
    p_queue.lease_table);
  v_first bigint;
  v_newest bigint := (trunq._position(p_queue, p_subscription_id)).lease_id;
  v_low bigint;
  v_high bigint;
  v_step bigint;
  v_at record;
  v_found record;
  v_before record;
begin
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
comment on function trunq._holders(trunq.queue, integer, xid8[], bigint[]) is
  'For rows of the log the first lease whose position lies behind each: that one held it, if any did. Positions grow with the leases.';

create or replace function trunq._message(
  p_sub trunq.subscription, p_queue trunq.queue, p_ids bigint[], p_brief boolean, p_near boolean
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb, is_whole boolean
)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0 as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_ids bigint[] := p_ids;
  v_rows record;
begin
  if p_brief then
    -- What lies elsewhere needs no row of the log.
    v_ids := array(
      select u.id from unnest(p_ids) u(id)
      where not exists (select from trunq.delayed d where d.queue_id = p_sub.queue_id and d.id = u.id and d.subscription_id is null)
        and not exists (select from trunq.delayed d where d.queue_id = p_sub.queue_id and d.id = u.id and d.subscription_id = p_sub.subscription_id)
        and not exists (select from trunq.dead d where d.queue_id = p_sub.queue_id and d.id = u.id and d.subscription_id = p_sub.subscription_id));
  end if;
  select r.* into v_rows from (select coalesce(min(u.id), 1) low, coalesce(max(u.id), 0) high from unnest(v_ids) u(id)) u
  cross join lateral trunq._rows_of(p_queue, u.low, u.high, null, null, p_near) r;
  if v_rows.is_by_brin and (select max(u.id) - min(u.id) from unnest(v_ids) u(id)) > 20 * cardinality(v_ids) then
    v_rows.query := format('(select g.* from unnest($8) u(id) cross join lateral (select g.* from trunq_log.%I g where g.id = u.id offset 0) g)', p_queue.log_table);
  end if;
  return query execute format($q$
    -- Every row of these messages that this subscription gets: the first, and its retries.
    with logged as materialized (
      select g.id, g.txid, g.attempt, g.created_at, g.kind, g.key, %7$s payload, %8$s headers, g.errors
      from %1$s g
      where g.id = any ($8) and (g.subscription_id = $1 or g.subscription_id is null and %4$s)
    ),
    holder as materialized (
      select h.* from (select array_agg(g.txid order by g.txid, g.id) txids, array_agg(g.id order by g.txid, g.id) ids from logged g where g.txid >= '500' and %11$s) a
      cross join lateral trunq._holders($10, $1, a.txids, a.ids) h
    ),
    held as materialized (
      select g.id, g.txid, g.attempt, l.lease_id, l.worker, l.leased_at, l.expires_at,
        r.outcome, r.finished_at, r.errors[r.at] error, r.results[r.at] result, r.took[r.at] took
      from logged g
      cross join lateral (
        select l.* from (select h.lease_id from holder h where h.txid = g.txid and h.id = g.id offset 0) h
        cross join lateral (select l.* from trunq_data.%2$I l where l.subscription_id = $1 and l.lease_id = h.lease_id offset 0) l
        where g.id = any (l.ids)
        union all
        select l.* from trunq_data.%2$I l
        where g.txid < '500' and l.max_txid < 500 and l.subscription_id = $1 and l.txids[array_position(l.ids, g.id)] = g.txid
        offset 0) l
      left join lateral (
        select r.*, array_position(r.ids, g.id) at from trunq_data.%3$I r
        where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = $1 and g.id = any (r.ids)
        offset 0) r on true
    ),
    story as (
      select h.id, count(*) filter (where h.outcome in ('r', 'j', 'x')) failed, jsonb_agg(jsonb_build_object(
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
        select d.id, 1, null::xid8, d.attempt, d.created_at, d.due_at, d.kind, d.key, d.payload, d.headers, d.errors, d.place
        from unnest($3) u(id) cross join lateral (
          select d.*, 'scheduled' place from trunq.delayed d where d.queue_id = $2 and d.id = u.id and d.subscription_id is null
          union all
          select d.*, 'retrying' from trunq.delayed d where d.queue_id = $2 and d.id = u.id and d.subscription_id = $1
          offset 0) d
        union all
        select d.id, 2, null, d.attempt, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors, 'dead'
        from unnest($3) u(id) cross join lateral (
          select d.* from trunq.dead d where d.queue_id = $2 and d.subscription_id = $1 and d.id = u.id offset 0) d) p
      order by p.id, p.rank, p.txid desc
    ),
    told as (
      select p.*, n.worker, n.leased_at, n.expires_at, n.finished_at, n.error last_error, n.result, n.outcome, n.txid = p.txid is_held,
        coalesce(p.place, case
          when n.txid = p.txid and n.outcome is null then 'leased'
          when n.txid = p.txid and n.outcome = 'a' then 'done'
          when n.txid = p.txid then 'dead'  -- and purged: it is nowhere else
          when not %5$s then 'ready'
          else 'done' end) state  -- read, and its lease gone with its segment
      from place p left join newest n on n.id = p.id
    )
    select $9, t.state, t.id, t.kind::text, t.key::text, %6$s, t.attempt, %9$s, t.created_at, t.due_at,
      coalesce(t.worker, t.errors -> -1 ->> 'worker'), t.leased_at, t.expires_at,
      case when t.is_held or t.place is not null then coalesce(t.finished_at, case when t.place is not null then (t.errors -> -1 ->> 'at')::timestamptz end) end,
      case when t.state <> 'done' then coalesce(t.last_error, t.errors -> -1 ->> 'error') end, %10$s,
      not $11 or case t.state
        when 'ready' then t.outcome is null
        when 'leased' then true
        when 'scheduled' then true
        when 'done' then t.outcome = 'a'
        when 'dead' then s.failed = jsonb_array_length(t.errors) end
    from told t left join story s on s.id = t.id
  $q$, v_rows.query, p_queue.lease_table, p_queue.receipt_table,
    trunq._is_for('g', '$4'), 'trunq._is_read_at(p.txid, p.id, $5, $6, $7, $12)',
    case when p_brief then 'null::jsonb, null::jsonb' else 't.payload, t.headers' end,
    case when p_brief then 'null::jsonb' else 'g.payload' end, case when p_brief then 'null::jsonb' else 'g.headers' end,
    case when p_brief then 'null::jsonb' else 'coalesce(s.attempts, ''[]'')' end, case when p_brief then 'null::jsonb' else 't.result' end,
    'trunq._is_read_at(g.txid, g.id, $5, $6, $7, $12)')
  using p_sub.subscription_id, p_sub.queue_id, p_ids, p_sub.start, v.lo, v.hi, v.last_txid, v_ids, p_sub.name, p_queue, v_rows.is_near, v.last_id;
end $$;
comment on function trunq._message(trunq.subscription, trunq.queue, bigint[], boolean, boolean) is
  'The state and story of messages as one shared subscription sees them; no row for an id that is nowhere. p_near: by rows of about the time when the ids were drawn; is_whole tells whether there can be no others.';
