-- What is waiting, running, put off and given up, by subscription. Looking costs the same whatever there is: every number is counted up to
-- a bound, then estimated, and the row says which are. Segments that are empty are not opened, and what was opened for one
-- subscription is let go before the next: a look at a thousand queues holds the locks of one.

create or replace function trunq.status(p_queue text default null)
returns table (
  queue text, subscription text, mode text, ready bigint, leased bigint, delayed bigint, dead bigint,
  oldest_ready interval, workers integer, done_last_minute bigint, oldest_dead interval, estimated text[], led boolean,
  paused boolean, paused_until timestamptz, held_for interval, held_bytes bigint, lost_at timestamptz, ticks_paused boolean,
  parked bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  -- Of a group by key one row. A member that works on several slots is one worker.
  return query
    select * from (
      select o.* from trunq._statuses(p_queue, false) o
      union all
      select o.queue, o.subscription, max(o.mode), sum(o.ready)::bigint, sum(o.leased)::bigint, sum(o.delayed)::bigint, sum(o.dead)::bigint,
        max(o.oldest_ready), (
          select count(*)::integer from trunq._members(trunq._group(o.queue, o.subscription), trunq.clock()) m where m.opened_at > trunq.clock() - interval '1 minute'
            or m.expires_at > trunq.clock()),
        0::bigint, max(o.oldest_dead), array(
          select distinct e.name from string_to_array(string_agg(array_to_string(o.estimated, ','), ','), ',') a, unnest(a) e(name) where e.name <> ''),
        bool_or(o.led), bool_or(o.paused), max(o.paused_until), max(o.held_for), max(o.held_bytes), min(o.lost_at), bool_or(o.ticks_paused), sum(o.parked)::bigint
      from trunq._statuses(p_queue, true) o group by o.queue, o.subscription) n
    order by n.queue, n.subscription;
end $$;
comment on function trunq.status is
  'One row for each subscription, and one for each group. ready: waiting now; leased: held; delayed: put off; dead: given up, and kept; oldest_ready: of the first that wait; workers: that hold or held a lease within a minute; oldest_dead: since when the first of the dead is kept; estimated: which of the numbers are estimates. Those are exact up to 1,000; leased is at least so many; led: whether somebody performs the duties (without, nothing delayed runs, no lease that ran out is reaped and no segment emptied); paused: by itself or with its queue; paused_until null: until it is resumed; held_for: how long ago the segment was last written to that holds its oldest message, and held_bytes: the log from there on, both for set_queue''s hold_at_most and hold_size; lost_at: when it lost messages, and nobody has accepted that; ticks_paused: nobody cuts ticks of its queue; parked: those among the delayed that wait until somebody resumes them.
Raises: TQ001.';

create or replace function trunq._statuses(p_queue text, p_slots boolean)
returns table (
  queue text, subscription text, mode text, ready bigint, leased bigint, delayed bigint, dead bigint,
  oldest_ready interval, workers integer, done_last_minute bigint, oldest_dead interval, estimated text[], led boolean,
  paused boolean, paused_until timestamptz, held_for interval, held_bytes bigint, lost_at timestamptz, ticks_paused boolean,
  parked bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
  v_now timestamptz := trunq.clock();
  v_is_led boolean;
begin
  v_is_led := trunq._is_led();
  for v in
    select q as row, s.slot, q.queue_id, q.name as queue, s.subscription_id, s.name as subscription, s.mode, s as sub
    from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where (p_queue is null or q.name = p_queue) and (s.slot is not null) = p_slots order by q.name, s.name
  loop
    queue := v.queue; subscription := split_part(v.subscription, '#', 1); mode := v.mode; estimated := '{}'; led := v_is_led;
    lost_at := (v.sub).lost_at; ticks_paused := (v.row).tick_paused; held_for := null; held_bytes := null;
    select p.paused, p.paused_until into paused, paused_until from trunq._pause(v.sub, v_now) p;
    begin
      select w.ready, v_now - w.oldest, estimated || case when w.is_estimate then '{ready}'::text[] end
      into ready, oldest_ready, estimated from trunq._count_waiting(v.row, v.subscription_id) w;
      if oldest_ready is not null then
        select h.held_for, h.held_bytes into held_for, held_bytes from trunq._held_space(v.row, v.subscription_id) h;
      end if;
      select o.leased, o.workers, estimated || case when o.is_estimate then '{leased}'::text[] end
      into leased, workers, estimated from trunq._count_leased(v.row, v.sub, v_now) o;
      select sum(o.number), estimated || case when bool_or(o.is_estimate) then '{delayed}'::text[] end into delayed, estimated
      -- What waits for all of a group counts once.
      from unnest(case when v.slot > 0 then array['= ' || v.subscription_id] else array['is null', '= ' || v.subscription_id] end) whose
      cross join lateral trunq._count_rows('trunq.delayed', format('queue_id = %s and subscription_id %s', v.queue_id, whose)) o;
      if (v.sub).has_asks then
        -- What is set aside is ready.
        delayed := greatest(0, delayed - (trunq._count_aside(v.subscription_id)).number);
      end if;
      select o.number, estimated || case when o.is_estimate then '{parked}'::text[] end into parked, estimated
      from trunq._count_parked(v.sub) o;
      select o.number, estimated || case when o.is_estimate then '{dead}'::text[] end into dead, estimated
      from trunq._count_rows('trunq.dead', format('queue_id = %s and subscription_id = %s', v.queue_id, v.subscription_id)) o;
      oldest_dead := v_now - trunq._oldest_dead(v.queue_id, v.subscription_id);
      done_last_minute := 0;
      if v.mode = 'shared' then  -- a batch is finished as a whole, whatever lies in it
        select o.done, estimated || case when o.is_estimate then '{done_last_minute}'::text[] end into done_last_minute, estimated
        from trunq._count_done(v.row, v.subscription_id, v_now, interval '1 minute') o;
      end if;
      raise exception using errcode = 'TQ000';  -- gives the locks back
    exception when sqlstate 'TQ000' then
    end;
    return next;
  end loop;
end $$;
comment on function trunq._statuses is 'As trunq.status, without the slots of groups, or one row for each of these.';

create or replace function trunq._is_led() returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
begin
  return exists (select from trunq.leader l where trunq._leads(l, v_now))
    -- Called by pg_cron, the duties leave no other trace: this one is performed once a minute.
    or to_regclass('cron.job') is not null and exists (
      select from trunq.mark m where m.duty = 'summarize' and v_now - m.at between '0' and '3 minutes');
end $$;
comment on function trunq._is_led is 'Whether somebody performs the duties: a leader, or pg_cron.';

create or replace function trunq._filled_segments(p_queue trunq.queue, p_table text) returns smallint[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(n::smallint), '{}') from generate_series(0, p_queue.segments - 1) n
  where pg_relation_size(to_regclass(format('trunq_data.%I', trunq._segment_name(p_queue, p_table, n)))) > 0
$$;
comment on function trunq._filled_segments is
  'The segments of a table (log, lease or receipt) that hold anything. In a query as a literal, it keeps Postgres from opening the others.';

create or replace function trunq._page_count(p_queue trunq.queue, p_table text, p_segment smallint) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select pg_relation_size(to_regclass(format('trunq_data.%I', trunq._segment_name(p_queue, p_table, p_segment)))) / current_setting('block_size')::integer
$$;
comment on function trunq._page_count is
  'How many pages a segment has. Whoever looks reads it through its queue''s table, which he may have rights on; nobody is granted segments.';

create or replace function trunq._count_waiting(
  p_queue trunq.queue, p_subscription_id integer, out ready bigint, out oldest timestamptz, out is_estimate boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_look constant integer := 2000;
  v_log regclass := format('trunq_log.%I', p_queue.log_table);
  v_segments smallint[] := trunq._filled_segments(p_queue, 'log');
  v_frontier pg_snapshot := trunq._frontier(p_queue, p_subscription_id);
  v record;
begin
  if v_frontier is null then
    select count(*) filter (where u.is_own), min(u.created_at) filter (where u.is_own), count(*) >= c_look into ready, oldest, is_estimate
    from trunq._unread(p_queue, p_subscription_id, c_look, v_segments, true) u;
  else
    -- Behind the first open batch of a group others may have finished theirs.
    select count(*) filter (where u.is_own), min(u.created_at) filter (where u.is_own), count(*) >= c_look into ready, oldest, is_estimate
    from trunq._unread(p_queue, p_subscription_id, c_look, v_segments, true) u
    where not pg_visible_in_snapshot(u.txid, v_frontier) or exists (
      select from trunq._open_batches(p_queue, p_subscription_id) o
      where trunq._in_window(u.txid, o.lo, o.hi) and (u.txid, u.id) > (coalesce(o.after_txid, '0'), coalesce(o.after_id, 0))
        and (u.txid, u.id) <= (o.last_txid, o.last_id));
  end if;
  if is_estimate then
    v := trunq._read_position(p_queue, p_subscription_id);
    select greatest(ready, coalesce(sum(trunq._estimate(v_log, trunq._page_count(p_queue, 'log', s.n), s.from_page, format(
      'g.segment = %8$s and (g.subscription_id = %1$s or g.subscription_id is null and %7$s) and not '
        || case when p_queue.lanes is null and not trunq._has_ahead(p_queue.queue_id, p_subscription_id) then 'trunq._is_read_at(g.txid, g.id, %2$L, %3$L, %4$L, %5$s)'
          when p_queue.lanes is null then '(trunq._is_read_at(g.txid, g.id, %2$L, %3$L, %4$L, %5$s) or trunq._is_ahead(%1$s, g.txid, g.id))' else 'trunq_queue.%6$I(%1$s, g.txid, g.id)' end,
      p_subscription_id, v.lo, v.hi, v.last_txid, v.last_id, p_queue.name || '_is_read',
      trunq._filter_condition(trunq._filter_of(p_subscription_id)), s.n))), 0)::bigint) into ready
    from (select n, trunq._first_page(v_log, n, v.last_txid, v.last_id) as from_page from unnest(v_segments) n) s
    where s.from_page is not null;
  end if;
  if exists (select from trunq.subscription s where s.subscription_id = p_subscription_id and s.has_asks) then
    select ready + a.number, least(_count_waiting.oldest, a.oldest), _count_waiting.is_estimate or a.is_estimate into ready, oldest, is_estimate
    from trunq._count_aside(p_subscription_id) a;
  end if;
end $$;
comment on function trunq._count_waiting is
  'How many messages a subscription has not read yet, exact as long as the next 2,000 rows of the log are all there are; and since when the first of them wait; with what is set aside.';

create or replace function trunq._first_page(p_log regclass, p_segment smallint, p_txid xid8, p_id bigint) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_page bigint;
begin
  execute format('select (g.ctid::text::point)[0]::bigint from %s g where g.segment = %s and (g.txid, g.id) > ($1, $2) order by g.txid, g.id limit 1', p_log, p_segment)
    into v_page using p_txid, p_id;
  return v_page;
end $$;
comment on function trunq._first_page is 'The page of a segment of the log that has the first row behind a place; null when there is none.';

create or replace function trunq._estimate(p_table regclass, p_pages bigint, p_from_page bigint, p_condition text) returns numeric
language plpgsql set search_path = pg_catalog, pg_temp
-- Nothing but a look at pages by their address.
set trunq.plan = tid as $$
declare
  c_pages constant integer := 64;
  v_number numeric;
begin
  -- Rows lie in the order they came: pages at equal distances, each by its address.
  execute format($q$
    select coalesce(avg(n.number), 0) * $1
    from generate_series(0, least($1, $3) - 1) k
    cross join lateral (select $2 + k * $1 / least($1, $3) page) p
    cross join lateral (
      select count(*) number from %s g
      where g.ctid >= format('(%%s,0)', p.page)::tid and g.ctid < format('(%%s,0)', p.page + 1)::tid and %s
      offset 0) n
  $q$, p_table, p_condition) into v_number using p_pages - p_from_page, p_from_page, c_pages;
  return v_number;
end $$;
comment on function trunq._estimate is
  'About how many rows of a table (g) of so many pages (those of a segment, which the condition names), from a page on, meet a condition: by what 64 of its pages hold. There are no statistics to ask.';

create or replace function trunq._count_rows(p_table regclass, p_condition text, out number bigint, out is_estimate boolean)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_exact constant integer := 1000;
begin
  execute format('select count(*) from (select from %s where %s limit %s) n', p_table, p_condition, c_exact + 1) into number;
  is_estimate := number > c_exact;
  if is_estimate then
    number := greatest(number, trunq._estimate(p_table, pg_relation_size(p_table) / current_setting('block_size')::integer, 0, p_condition)::bigint);
  end if;
end $$;
comment on function trunq._count_rows is 'How many rows of a table meet a condition: exact up to 1,000, then an estimate.';

create or replace function trunq._oldest_dead(p_queue_id integer, p_subscription_id integer) returns timestamptz
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select d.died_at from trunq.dead d where d.queue_id = p_queue_id and d.subscription_id = p_subscription_id order by d.dead_id limit 1
$$;
comment on function trunq._oldest_dead is 'When the first of the dead messages of a subscription died.';

create or replace function trunq._count_leased(
  p_queue trunq.queue, p_sub trunq.subscription, p_now timestamptz, out leased bigint, out workers integer, out is_estimate boolean
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_pages constant integer := 1800;
  v_rows numeric;
  v_most integer;
  v_has_others boolean;
begin
  if p_sub.mode = 'exclusive' then
    -- Its leases are batches: the newest says which are open, and the reaper leaves no mark below which all are over.
    leased := 0;
    is_estimate := false;
    execute format($q$
      select count(*) filter (where l.worker is not null
          and (l.leased_at > $2 - interval '1 minute' or l.expires_at > $2 and not (trunq._newest_batch($3, $1)).finished)),
        bool_or(l.open_leases is not null)
      from (select l.* from trunq_data.%I l where l.subscription_id = $1 order by l.lease_id desc limit 1) l
    $q$, p_queue.lease_table) into workers, v_has_others using p_sub.subscription_id, p_now, p_queue;
    if v_has_others then
      workers := greatest(workers, (
        select count(distinct o.worker) from trunq._open_batches(p_queue, p_sub.subscription_id) o
        where o.worker is not null and (o.expires_at > p_now or o.leased_at > p_now - interval '1 minute')));
    end if;
    return;
  end if;
  -- As many leases as lie on so many pages: one of a hundred messages is twenty times as long as one of one.
  select sum(trunq._estimate(format('trunq_data.%I', p_queue.lease_table)::regclass, s.pages, 0, 'segment = ' || s.n)) / nullif(sum(s.pages), 0)
  into v_rows
  from (select n, trunq._page_count(p_queue, 'lease', n) as pages from unnest(trunq._filled_segments(p_queue, 'lease')) n) s;
  v_most := c_pages * greatest(1, coalesce(v_rows, 1));
  select coalesce(sum(l.unanswered), 0), count(*) >= v_most,
    count(distinct l.worker) filter (where l.leased_at > p_now - interval '1 minute' or l.expires_at > p_now and not l.is_reaped)
  into leased, is_estimate, workers
  from trunq._leases(p_queue, p_sub.subscription_id, p_now - interval '1 minute', v_most) l;
end $$;
comment on function trunq._count_leased is
  'How many messages are under open leases, and how many workers hold or held one within a minute; at least so many, when there are too many leases to look at.';

create or replace function trunq._leases(
  p_queue trunq.queue, p_subscription_id integer, p_since timestamptz, p_limit integer
)
returns table (lease_id bigint, segment smallint, worker text, leased_at timestamptz, expires_at timestamptz, is_reaped boolean, unanswered bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
-- Each page once, in its order: leases of several workers, and their receipts, lie in no order of theirs. Without statistics it expects
-- one lease, and would look through the receipts of all for each.
set trunq.plan = bitmap as $$
declare
  v_mark record := trunq._reap_mark(p_queue, p_subscription_id);
  v_newest bigint := greatest(v_mark.newest, (trunq._position(p_queue, p_subscription_id)).lease_id - p_limit);
  v_leases smallint[] := trunq._filled_segments(p_queue, 'lease');
  v_receipts smallint[] := trunq._filled_segments(p_queue, 'receipt');
begin
  if v_leases = '{}' then
    return;
  end if;
  return query execute format($q$
    with newest as materialized (
      select l.lease_id, l.segment, l.size, l.worker, l.leased_at, l.expires_at, l.reaped_at is not null is_reaped,
         l.reaped_at is null and (l.expires_at > $2 or l.lease_id > $3) may_be_open
       from trunq_data.%1$I l
       where l.subscription_id = $1 and l.lease_id > $5 and l.size > 0 and l.segment = any (%3$L)
    ),
    found as materialized (
      select * from newest
      union all
      (select l.lease_id, l.segment, l.size, l.worker, l.leased_at, l.expires_at, l.reaped_at is not null,
         l.reaped_at is null and l.expires_at > $2
       from trunq_data.%1$I l
       where l.subscription_id = $1 and l.expires_at > least($2, $4) and l.lease_id <= $5 and l.size > 0 and l.segment = any (%3$L)
       limit $6 - least($6, (select count(*) from newest)))
    ),
    -- A receipt lies in the segment of its lease. Neighbours are asked for at once, a lease by itself does not make a long range.
    asked as materialized (
      select f.segment, f.lease_id >> 13, min(f.lease_id) low, max(f.lease_id) high from found f where f.may_be_open group by 1, 2
    ),
    answered as (
      select r.lease_id, sum(r.size) size
      from asked a cross join lateral (
        select r.lease_id, r.size from trunq_data.%2$I r
        where r.lease_id >= a.low and r.lease_id <= a.high and r.segment = a.segment and r.subscription_id = $1 and r.segment = any (%4$L)
        offset 0) r
      group by r.lease_id
    )
    select f.lease_id, f.segment, f.worker, f.leased_at, f.expires_at, f.is_reaped,
      case when f.may_be_open then greatest(0, f.size - coalesce(r.size, 0)) else 0 end
    from found f left join answered r using (lease_id)
  $q$, p_queue.lease_table, p_queue.receipt_table, v_leases, v_receipts)
  using p_subscription_id, v_mark.until, v_mark.newest, coalesce(p_since, 'infinity'), v_newest, p_limit;
end $$;
comment on function trunq._leases is
  'Leases of a subscription that may be open (the reaper''s mark tells), and those that ended since a time, with the number of their messages that have no answer. With a limit: the newest so many, and as many of those that expire late.';

create or replace function trunq._count_done(
  p_queue trunq.queue, p_subscription_id integer, p_now timestamptz, p_within interval, out done bigint, out is_estimate boolean
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = tid as $$
declare
  c_pages constant integer := 1000;
  v_left integer := c_pages;
  v_step integer;
  v_segment smallint;
  v_from bigint;
  v_to bigint;
  v record;
  v_oldest timestamptz;
begin
  done := 0;
  is_estimate := false;
  -- Receipts lie in the order they came: from the end of each segment back, until none is of that time.
  foreach v_segment in array trunq._filled_segments(p_queue, 'receipt') loop
    v_to := trunq._page_count(p_queue, 'receipt', v_segment);
    v_step := 8;  -- more than positions that rotation carried would fill
    while v_to > 0 loop
      v_from := greatest(0, v_to - v_step);
      execute format($q$
        select count(*) n, coalesce(sum(r.size) filter (where r.finished_at > $1 and r.subscription_id = $2 and r.outcome = 'a'), 0) size,
          min(r.finished_at) filter (where r.finished_at > $1) oldest
        from trunq_data.%I r where r.segment = %s and r.ctid >= format('(%%s,0)', $3)::tid and r.ctid < format('(%%s,0)', $4)::tid
      $q$, p_queue.receipt_table, v_segment) into v using p_now - p_within, p_subscription_id, v_from, v_to;
      done := done + v.size;
      exit when v.n > 0 and v.oldest is null;
      v_oldest := least(v_oldest, v.oldest);
      v_left := v_left - v_step;
      is_estimate := is_estimate or v_left <= 0;
      exit when v_left <= 0;
      v_to := v_from;
      v_step := least(2 * v_step, 32);
    end loop;
  end loop;
  if is_estimate then
    done := done * extract(epoch from p_within) / greatest(0.001, extract(epoch from p_now - v_oldest));
  end if;
end $$;
comment on function trunq._count_done is
  'How many messages were acked within a time; when more than a thousand pages tell of it, as many as at the pace of the newest.';
