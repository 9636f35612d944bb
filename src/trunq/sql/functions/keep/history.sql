-- Lease and receipts together are the history of a message: started, held until, attempts, finished, by whom, why not.
-- How rows and their leases are found is in place.sql. A list goes down the ids, as far as it must to fill a page.
--
-- Everything here is stable: all statements of one look see what the statement of the caller sees. Were it volatile, each would see a
-- state of its own, and a message that is retried meanwhile would be found in one place and judged by another.

create or replace function trunq.show_message(p_queue text, p_id bigint)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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
    if v_message.id is null or v_message.state = 'done' then
      return query select f.* from trunq._forwarded_message(v_sub, p_id) f;
      v_found := v_found or found;
      continue when found;
    end if;
    continue when v_message.id is null;
    v_found := true;
    return query select v_message.subscription, v_message.state, v_message.id, v_message.kind, v_message.key, v_message.payload,
      v_message.headers, v_message.attempt, v_message.attempts, v_message.published_at, v_message.due_at, v_message.worker,
      v_message.leased_at, v_message.expires_at, v_message.finished_at, v_message.error, v_message.result;
  end loop;
  if v_found then
    return;
  end if;
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = v_queue.queue_id and s.mode = 'exclusive' and p_id is not null order by s.name
  loop
    return query select m.* from trunq._streamed_message(v_sub, v_queue, p_id) m;
    v_found := v_found or found;
  end loop;
  if not v_found then
    perform trunq._fail('TQ013', format('queue "%s" has no message %s', p_queue, p_id),
      'it was never published, its time (the retention) is over, or no subscription reads it');
  end if;
end $$;
comment on function trunq.show_message is
  'One message as each shared subscription sees it; one that none of them has, as streams do: leased in an open batch, done behind their position, no attempts. state: scheduled, ready, leased, retrying, parked (until somebody resumes it), done, outdated (passed over as older than its subscription takes), dead, replaced (another message of its unique key stands for it) or purged (it was dead); attempts: every time it was leased, with its outcome: success, failed, timed_out, rejected, released, parked, lease_expired, and expired, cancelled, outdated and replaced (never handed out); overdue (the lease ran out and nobody has reaped it yet), null while it runs. A message that was forwarded (trunq.forward) is shown where it is, subscription with that queue before it: "work/default".
Raises: TQ001, TQ013.';

create or replace function trunq.list_messages(
  p_queue text, p_subscription text default 'default', p_state text default null, p_limit integer default null, p_before bigint default null,
  p_brief boolean default false, p_kind text default null, p_key text default null, p_error text default null,
  p_older_than interval default null, p_newer_than interval default null, p_payload jsonb default null, p_headers jsonb default null,
  p_look integer default null
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
  v_limit integer := coalesce(p_limit, trunq._limit('list_rows'));
  v_count integer;
begin
  perform trunq._check_limit(v_limit);
  perform trunq._check_limit(coalesce(p_look, v_limit));
  perform trunq._check_ages(p_older_than, p_newer_than);
  perform trunq._check_word(p_state, array(select s.state from trunq._states() s), 'there is no state "%s"');
  perform set_config('trunq.looked_to', '', true);
  return query
    select m.*
    from trunq._pages(v_sub, v_queue, p_state, v_limit, p_before, p_brief, p_kind, p_key, p_error, p_older_than, p_newer_than, p_payload, p_headers, p_look) m
    order by m.published_at desc nulls last, m.id desc;
  get diagnostics v_count = row_count;
  if p_limit is null and v_count = v_limit then
    raise warning 'trunq: the list ends after % messages', v_limit using hint = 'ask for the next page with p_before';
  end if;
end $$;
comment on function trunq.list_messages is
  'Messages of a shared subscription, newest first by the time they were published, in one state or any; p_limit: at most 100,000, which is the default; p_before: the smallest id of the page before. Pages go by id, which sessions draw 32 at a time. p_state: one of scheduled, ready, leased, retrying, parked, done, outdated, dead, replaced and purged. p_brief leaves out (null) what a table does not show and is slow to read: payload, headers, attempts and result. Filters: p_kind, p_key, p_error (text that the last error contains, in upper or lower case), p_older_than and p_newer_than (how long ago it was published); p_payload and p_headers: what these contain, as a part of the JSON. With a filter, and for outdated, replaced and purged, a call looks at p_look messages at most (100,000), and a WARNING says where to go on; a program reads that p_before in the same transaction, as current_setting(''trunq.looked_to''), which is empty where all was looked at.
Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq._pages(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint, p_brief boolean,
  p_kind text, p_key text, p_error text, p_older_than interval, p_newer_than interval, p_payload jsonb, p_headers jsonb, p_look integer
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_page constant integer := 1000;
  c_now constant timestamptz := trunq.clock();
  -- What few messages have is not looked for without end.
  v_is_filtered constant boolean := num_nonnulls(p_kind, p_key, p_error, p_older_than, p_newer_than, p_payload, p_headers) > 0 or coalesce(p_state in ('outdated', 'replaced', 'purged'), false);
  v_is_brief constant boolean := p_brief and num_nonnulls(p_payload, p_headers) = 0;
  v_looked integer := 0;
  v_before bigint := greatest(0, coalesce(p_before, trunq._last_message_id(p_queue) + 1));
  v_left integer := p_limit;
  v_size integer;
  v_places record;
  v_count integer;
begin
  while v_left > 0 loop
    if v_looked >= coalesce(p_look, trunq._limit('list_rows')) then
      raise warning 'trunq: the list ends after a look at % messages', v_looked
        using hint = format('ask for the rest with p_before => %s', v_before);
      perform set_config('trunq.looked_to', v_before::text, true);
      exit;
    end if;
    v_size := case when v_is_filtered then c_page else least(v_left, c_page) end;
    v_places := trunq._candidate_ids(p_sub, p_queue, p_state, v_size, v_before);
    exit when v_places.ids = '{}';
    return query
      with known as materialized (
        select m.* from trunq._message(p_sub, p_queue, v_places.ids, v_is_brief, false, v_places.row_ids, v_places.row_txids, v_places.is_whole) m),
      found as (
        select k.* from known k where k.is_whole
        union all
        select m.* from (select array_agg(k.id) ids from known k where not k.is_whole) k
        cross join lateral trunq._message(p_sub, p_queue, k.ids, v_is_brief, false) m)
      select m.subscription, m.state, m.id, m.kind, m.key, case when not p_brief then m.payload end, case when not p_brief then m.headers end, m.attempt,
        case when not p_brief then m.attempts end, m.published_at, m.due_at, m.worker, m.leased_at, m.expires_at, m.finished_at, m.error,
        case when not p_brief then m.result end
      from found m
      where (p_state is null or m.state = p_state)
        and trunq._is_like(m.kind, m.key, m.error, m.payload, m.headers, m.published_at, p_kind, p_key, p_error, p_payload, p_headers,
          c_now - p_older_than, c_now - p_newer_than)
      order by m.id desc limit v_left;
    get diagnostics v_count = row_count;
    exit when cardinality(v_places.ids) < v_size;
    v_left := v_left - v_count;
    v_looked := v_looked + case when v_is_filtered then cardinality(v_places.ids) else 0 end;
    v_before := v_places.ids[cardinality(v_places.ids)];
  end loop;
end $$;
comment on function trunq._pages is
  'Messages of a shared subscription with ids below p_before, in one state or any, that all filters given find, in no order.';

create or replace function trunq._candidate_ids(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint,
  out ids bigint[], out row_ids bigint[], out row_txids xid8[], out is_whole boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_many constant integer := 10000;
begin
  is_whole := false;
  case
    when p_state in ('scheduled', 'retrying', 'parked', 'aside') then
      -- The order is that of the index.
      execute format($q$
        select array(
          select d.id from trunq.delayed d
          where d.queue_id = $1 and d.id < $2 and d.subscription_id %s
          order by d.subscription_id desc, d.id desc limit $3)
      $q$, case p_state
        when 'retrying' then format('= %s and d.parked_at is null and d.aside is null', p_sub.subscription_id)
        when 'aside' then format('= %s and d.aside is not null', p_sub.subscription_id)
        when 'parked' then format('= %s and d.parked_at is not null', p_sub.subscription_id) else 'is null' end)
      into ids using p_sub.queue_id, p_before, p_limit;
    when p_state = 'dead' then
      ids := array(
        select d.id from trunq.dead d
        where d.queue_id = p_sub.queue_id and d.subscription_id = p_sub.subscription_id and d.id < p_before
        order by d.id desc limit p_limit);
    when p_state = 'leased' then
      select array_agg(l.id order by l.id desc), array_agg(l.txid order by l.id desc) into ids, row_txids
      from trunq._leased_ids(p_sub, p_queue, p_limit, p_before) l;
      row_ids := ids;
    when p_state = 'ready' then
      -- They are where the position is, unless there are so many that the newest are elsewhere.
      select array_agg(u.id order by u.id desc), array_agg(u.txid order by u.id desc), count(*) < c_many into ids, row_txids, is_whole
      from trunq._unread(p_queue, p_sub.subscription_id, c_many) u;
      if is_whole then
        is_whole := false;
        select array_agg(u.id order by u.id desc), array_agg(u.txid order by u.id desc) into ids, row_txids
        from (select u.id, u.txid from unnest(ids, row_txids) u(id, txid) where u.id < p_before order by u.id desc limit p_limit) u;
        row_ids := ids;
      else
        select l.* into ids, row_ids, row_txids, is_whole from trunq._logged_ids(p_sub, p_queue, p_state, p_limit, p_before) l;
      end if;
    when p_state in ('done', 'outdated', 'replaced', 'purged') then
      select l.* into ids, row_ids, row_txids, is_whole from trunq._logged_ids(p_sub, p_queue, p_state, p_limit, p_before) l;
    else
      select l.* into ids, row_ids, row_txids, is_whole from trunq._logged_ids(p_sub, p_queue, null, p_limit, p_before) l;
      ids := array(
        select u.id from (
          select unnest((trunq._candidate_ids(p_sub, p_queue, s.state, p_limit, p_before)).ids) id
          from unnest(array['scheduled', 'retrying', 'parked', 'aside', 'dead']) s(state)
          union
          select unnest(ids)) u
        order by u.id desc limit p_limit);
  end case;
  ids := coalesce(ids, '{}');
  if p_state = 'ready' and p_sub.has_asks then
    ids := array(
      select u.id from (
        select unnest((trunq._candidate_ids(p_sub, p_queue, 'aside', p_limit, p_before)).ids) id
        union
        select unnest(ids)) u
      order by u.id desc limit p_limit);
  end if;
end $$;
comment on function trunq._candidate_ids is
  'The newest ids below p_before that may be in a state, none left out, newest first; _message tells what state they are in. row_ids, row_txids: rows of the log that are theirs, null when it did not look there; is_whole: all those rows.';

create or replace function trunq._logged_ids(
  p_sub trunq.subscription, p_queue trunq.queue, p_state text, p_limit integer, p_before bigint,
  out ids bigint[], out row_ids bigint[], out row_txids xid8[], out is_whole boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_rows record;
  v_found record;
  v_high bigint := p_before;
  v_size bigint := 2 * p_limit;
  v_low bigint := least(p_before, trunq._newest_id(p_queue)) - v_size;
  v_to xid8;
  v_newest bigint;
  v_last_lease bigint;
  v_filled constant smallint[] := trunq._filled_segments(p_queue, 'log');
  c_far constant bigint := 100000;
begin
  ids := '{}';
  row_ids := '{}';
  row_txids := '{}';
  is_whole := p_state is distinct from 'done';
  -- Unless some was leased by id, ahead of it.
  if p_state = 'done' and not trunq._has_ahead(p_queue.queue_id, p_sub.subscription_id) then
    -- Behind a backlog: those read last.
    -- To look for where they begin costs more than to read some thousand rows.
    v_size := v_size + 5000;
    v_to := greatest(v.last_txid, pg_snapshot_xmax(v.lo));
    v_newest := trunq._newest_id(p_queue, v_to, v.last_id);
    v_low := least(v_low, v_newest - v_size);
    v_to := case when v_newest < p_before then v_to end;
    v_last_lease := case when v_newest < p_before then v.lease_id end;
  end if;
  -- No index gives ids in order: down by ranges, each longer than the last.
  while cardinality(ids) < p_limit and v_high > 0 loop
    v_rows := trunq._rows_of(p_queue, v_low, v_high - 1, false, v_to);
    execute format($q$
      with logged as materialized (
        select g.id, g.txid, g.subscription_id is null is_first,
          row_number() over (partition by g.id order by g.txid desc) = 1 is_newest
        from %1$s g
        where (g.subscription_id = $1 or g.subscription_id is null and %2$s) and ($3 is distinct from 'done' or %3$s)),
      elsewhere as materialized (
        select d.id from trunq.delayed d
        where $3 = 'done' and d.queue_id = $8 and d.subscription_id = $1
          and d.id >= (select min(g.id) from logged g) and d.id <= (select max(g.id) from logged g)
        union all
        -- In order, or without statistics it takes another index, and all the dead.
        (select d.id from trunq.dead d
         where $3 = 'done' and d.queue_id = $8 and d.subscription_id = $1
           and d.id >= (select min(g.id) from logged g) and d.id <= (select max(g.id) from logged g) order by d.id)),
      -- Thousands may have been read and wait again: whatever the leases of about then held and did not ack.
      bound as (
        select (select h.lease_id from trunq._first_leases($10, $1, array[low.txid], array[low.id]) h) low,
          coalesce($11, (select h.lease_id from trunq._first_leases($10, $1, array[high.txid], array[high.id]) h)) high
        from (select g.txid, g.id from logged g where g.txid >= '500' order by g.txid, g.id limit 1) low
        cross join (select g.txid, g.id from logged g where g.is_first order by g.txid desc, g.id desc limit 1) high
        where $3 = 'done'),
      held as materialized (
        select u.id, u.txid from bound b cross join lateral (
          select l.* from trunq_data.%4$I l where l.subscription_id = $1 and l.lease_id >= b.low and l.lease_id <= b.high and l.size > 0 offset 0) l
        cross join lateral (select u.* from unnest(l.ids, l.txids) u(id, txid) where u.id >= $12 and u.id < $13) u),
      -- Or gave back, when what came back is gone with its segment.
      acked as materialized (
        select u.id from bound b cross join lateral (
          select r.* from trunq_data.%5$I r where r.lease_id >= b.low and r.lease_id <= b.high and r.subscription_id = $1 and (r.outcome = 'a' or r.outcome not in ('p', 'o')
            and (trunq._span_number($10, $14) - trunq._span_number($10, r.finished_at) >= ($10).segments
              or r.finished_at < ($10).reshaped_at is not true and trunq._segment_at($10, r.finished_at) <> all ($15))) offset 0) r
        cross join lateral (select u.* from unnest(r.ids) u(id) where u.id >= $12 and u.id < $13) u),
      chosen as materialized (
        select distinct g.id from logged g
        where case $3
          when 'ready' then not %3$s
          when 'done' then g.is_newest
            and (g.id in (select a.id from acked a) or (g.id, g.txid) not in (select h.id, h.txid from held h))
            and g.id not in (select e.id from elsewhere e)
          else true end
        order by g.id desc limit $9)
      select array(select c.id from chosen c order by c.id desc) ids,
        array_agg(g.id) row_ids, array_agg(g.txid) row_txids
      from logged g where g.id in (select c.id from chosen c)
    $q$, v_rows.query, trunq._is_after_start('g', '$2') || ' and ' || trunq._filter_condition(p_sub.filter), trunq._is_read(p_queue, 'g', 'trunq._is_read_at(g.txid, g.id, $4, $5, $6, $7)'), p_queue.lease_table, p_queue.receipt_table) into v_found
    using p_sub.subscription_id, p_sub.start, p_state, v.lo, v.hi, v.last_txid, v.last_id,
      p_sub.queue_id, p_limit - cardinality(ids), p_queue, v_last_lease, v_low, v_high, trunq.clock(), v_filled;
    if p_state is distinct from 'done' or v_low < v_newest - c_far then
      v_to := null;  -- long ranges are better read by BRIN
    end if;
    v_last_lease := null;
    ids := ids || v_found.ids;
    row_ids := row_ids || v_found.row_ids;
    row_txids := row_txids || v_found.row_txids;
    v_high := v_low;
    v_size := 4 * v_size;
    v_low := v_high - v_size;
  end loop;
end $$;
comment on function trunq._logged_ids is
  'The newest ids in the log below p_before that may be in a state, newest first, and all rows they have there; of what is done, those that are read.';

create or replace function trunq._leased_ids(p_sub trunq.subscription, p_queue trunq.queue, p_limit integer, p_before bigint)
returns table (id bigint, txid xid8)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_left integer := p_limit;
  v_count integer;
  v_high bigint := p_before;
  v_size bigint := 5000 + 2 * p_limit;
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_low bigint := least(p_before, trunq._newest_id(p_queue, greatest(v.last_txid, pg_snapshot_xmax(v.lo)), v.last_id)) - v_size;
  v_held bigint[] := array(select h.lease_id from trunq._held_leases(p_queue, p_sub.subscription_id) h);
begin
  while v_left > 0 and v_high > 0 and v_held <> '{}' loop
    return query select o.* from trunq._open_ids(p_queue, p_sub.subscription_id, v_held, v_low, v_high, v_left) o;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    v_high := v_low;
    v_size := 64 * v_size;
    v_low := v_high - v_size;
  end loop;
end $$;
comment on function trunq._leased_ids is
  'The newest ids below p_before that open leases hold, newest first.';

create or replace function trunq._held_leases(p_queue trunq.queue, p_subscription_id integer)
returns table (lease_id bigint, unanswered bigint)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select o.lease_id, o.unanswered from trunq._leases(p_queue, p_subscription_id, null, null) o where o.unanswered > 0
$$;
comment on function trunq._held_leases is 'Leases with messages that have no answer.';

create or replace function trunq._open_ids(
  p_queue trunq.queue, p_subscription_id integer, p_leases bigint[], p_low bigint, p_high bigint, p_limit integer
) returns table (id bigint, txid xid8)
language plpgsql stable set search_path = pg_catalog, pg_temp
set trunq.plan = hash as $$
begin
  -- Long arrays are dear to read: a lease of messages published before a tick has no id drawn after it.
  return query execute format($q$
    select u.id, u.txid from unnest($2) o(lease_id)
    cross join lateral (
      select l.lease_id, l.segment, l.ids, l.txids from trunq_data.%I l
      where l.subscription_id = $1 and l.lease_id = o.lease_id and l.max_txid >= $3 offset 0) l
    cross join lateral (
      select array(
        select unnest(r.ids) from trunq_data.%I r where r.lease_id = l.lease_id and r.segment = l.segment and r.subscription_id = $1) ids offset 0) r
    cross join lateral (
      select u.* from unnest(l.ids, l.txids) u(id, txid) left join unnest(r.ids) a(id) using (id)
      where u.id >= $4 and u.id < $5 and a.id is null offset 0) u
    order by u.id desc limit $6
  $q$, p_queue.lease_table, p_queue.receipt_table)
  using p_subscription_id, p_leases, coalesce((trunq._tick_before(p_queue.queue_id, p_low)).xmin, '0')::text::bigint, p_low, p_high, p_limit;
end $$;
comment on function trunq._open_ids is
  'The ids from p_low to below p_high that some open leases hold, newest first.';

create or replace function trunq._message(
  p_sub trunq.subscription, p_queue trunq.queue, p_ids bigint[], p_brief boolean, p_near boolean,
  p_row_ids bigint[] default null, p_row_txids xid8[] default null, p_is_whole boolean default null
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb, is_whole boolean
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v record := trunq._position(p_queue, p_sub.subscription_id);
  v_ids bigint[] := p_ids;
  v_rows record;
begin
  if p_ids is null then
    return;
  end if;
  if p_row_ids is not null then
    select format('(select g.* from unnest($13, $14) u(id, txid) cross join lateral (select g.* from trunq_log.%I g where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, $1) offset 0) g)',
      p_queue.log_table) query, not p_is_whole is_near into v_rows;
  else
    if p_brief then
      -- What lies elsewhere needs no row of the log.
      v_ids := array(select unnest(p_ids) except select e.id from trunq._delayed_or_dead(p_sub.queue_id, p_sub.subscription_id, p_ids) e);
    end if;
    select r.* into v_rows from (select coalesce(min(u.id), 1) low, coalesce(max(u.id), 0) high from unnest(v_ids) u(id)) u
    cross join lateral trunq._rows_of(p_queue, u.low, u.high, p_near) r;
    if v_rows.is_by_brin and (select max(u.id) - min(u.id) from unnest(v_ids) u(id)) > 20 * cardinality(v_ids) then
      v_rows.query := format('(select g.* from unnest($8) u(id) cross join lateral (select g.* from trunq_log.%I g where g.id = u.id offset 0) g)', p_queue.log_table);
    end if;
  end if;
  return query execute format($q$
    -- Every row of these messages that this subscription gets: the first, and its retries.
    with logged as materialized (
      select g.id, g.txid, g.attempt, g.created_at, g.kind, g.key, %7$s payload, %8$s headers, g.errors, g.subscription_id is null is_first
      from %1$s g
      where g.id = any ($8) and (g.subscription_id = $1 or g.subscription_id is null and %4$s)
    ),
    elsewhere as materialized (select e.* from trunq._delayed_or_dead($2, $1, $3) e),
    holder as materialized (
      select h.* from (select array_agg(g.txid order by g.txid, g.id) txids, array_agg(g.id order by g.txid, g.id) ids from logged g where g.txid >= '500' and %11$s) a
      cross join lateral trunq._first_leases($10, $1, a.txids, a.ids) h%12$s
    ),
    held as materialized (
      select g.id, g.txid, g.attempt, g.is_first, l.lease_id, l.worker, l.leased_at, l.expires_at,
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
      select h.id, count(*) filter (where h.outcome in ('r', 't', 'j', 'x')) failed, bool_or(h.is_first) has_first, jsonb_agg(jsonb_build_object(
          'attempt', h.attempt, 'worker', h.worker, 'leased_at', h.leased_at, 'expires_at', h.expires_at, 'finished_at', h.finished_at,
          'outcome', case
            when h.outcome is null and h.expires_at < $16 then 'overdue'
            else trunq._outcome(h.outcome) end,
          'error', h.error, 'took', h.took) order by h.lease_id) attempts
      from held h group by h.id
    ),
    newest as (select distinct on (h.id) h.* from held h order by h.id, h.lease_id desc),
    -- The newest row in the log, or what lies in delayed or dead.
    place as (
      select distinct on (p.id) p.* from (
        select g.id, 3 rank, g.txid, g.attempt::integer, g.created_at, null::timestamptz due_at, g.kind, g.key, g.payload, g.headers, g.errors, null place, g.is_first
        from logged g
        union all
        select e.id, case e.place when 'dead' then 2 else 1 end, null::xid8, e.attempt, e.created_at, e.due_at, e.kind, e.key, e.payload, e.headers,
          e.errors, e.place, false
        from elsewhere e) p
      order by p.id, p.rank, p.txid desc
    ),
    told as (
      select p.*, n.lease_id, n.worker, n.leased_at, n.expires_at, n.finished_at, n.error last_error, n.result, n.outcome, n.txid = p.txid is_held,
        coalesce(p.place, case
          when n.txid = p.txid and n.outcome is null then 'leased'
          when n.txid = p.txid and n.outcome = 'a' then 'done'
          when n.txid = p.txid and n.outcome = 'p' then 'replaced'
          when n.txid = p.txid and n.outcome = 'o' then 'outdated'
          when n.txid is distinct from p.txid and not %5$s then 'ready'
          when p.id in (select unnest(u.ids) from trunq.purged u where u.subscription_id = $1 and u.ids && $3) then 'purged'
          -- Its lease is gone with its segment. Or it came back, or died and was requeued, and that row is gone with its segment: the one
          -- of a row before may be held for longer.
          else 'done' end) state
      from place p left join newest n on n.id = p.id
    )
    select $9, t.state, t.id, t.kind::text, t.key::text, %6$s, t.attempt, %9$s, t.created_at, t.due_at,
      coalesce(t.worker, t.errors -> -1 ->> 'worker'), t.leased_at, t.expires_at,
      case when t.is_held or t.place is not null then coalesce(t.finished_at, case when t.place is not null then (t.errors -> -1 ->> 'at')::timestamptz end) end,
      case when t.state = 'leased' and t.expires_at < $16 then format('lease %%s of worker %%s ran out, and no leader has reaped it yet', t.lease_id, t.worker)
        when t.state <> 'done' then coalesce(t.last_error, t.errors -> -1 ->> 'error') end, %10$s,
      not $11 or case t.state
        when 'ready' then t.is_first or $15
        when 'leased' then t.is_first or $15
        when 'retrying' then $15
        when 'parked' then $15
        when 'scheduled' then true
        when 'done' then t.outcome = 'a' and (t.is_first or $15 or $13 is not null)
        when 'dead' then $15 or s.has_first and s.failed = jsonb_array_length(t.errors) end is true
    from told t left join story s on s.id = t.id
  $q$, v_rows.query, p_queue.lease_table, p_queue.receipt_table,
    trunq._is_after_start('g', '$4') || ' and ' || trunq._filter_condition(p_sub.filter), trunq._is_read(p_queue, 'p', 'trunq._is_read_at(p.txid, p.id, $5, $6, $7, $12)'),
    case when p_brief then 'null::jsonb, null::jsonb' else 't.payload, t.headers' end,
    case when p_brief then 'null::jsonb' else 'g.payload' end, case when p_brief then 'null::jsonb' else 'g.headers' end,
    case when p_brief then 'null::jsonb' else 'coalesce(s.attempts, ''[]'')' end, case when p_brief then 'null::jsonb' else 't.result' end,
    trunq._is_read(p_queue, 'g', 'trunq._is_read_at(g.txid, g.id, $5, $6, $7, $12)'),
    -- A row that was taken ahead of the position was not for the lease that went beyond it.
    case when trunq._has_ahead(p_sub.queue_id, p_sub.subscription_id) then ' where not trunq._is_ahead($1, h.txid, h.id) union all'
      || ' select g.txid, g.id, a.lease_id from logged g cross join lateral (select a.lease_id from trunq.ahead a where a.subscription_id = $1 and a.id = g.id and a.txid = g.txid offset 0) a' end)
  using p_sub.subscription_id, p_sub.queue_id, p_ids, p_sub.start, v.lo, v.hi, v.last_txid, v_ids, p_sub.name, p_queue, v_rows.is_near, v.last_id, p_row_ids, p_row_txids, p_brief, trunq.clock();
end $$;
comment on function trunq._message is
  'The state and story of messages as one shared subscription sees them; no row for an id that is nowhere. p_near: by rows of about the time when the ids were drawn; p_row_ids, p_row_txids: by these rows, all of them if p_is_whole. is_whole tells whether there can be no others.';
