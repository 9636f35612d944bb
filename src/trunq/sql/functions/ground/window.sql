-- The window: what a reader is to read.
--
-- Postgres hands out transaction ids (and message ids) before commit, so "id > last" loses what commits late. A reader keeps two
-- snapshots instead, lo and hi. Its window is the set of rows that hi sees and lo does not; when it has read them, hi becomes lo
-- and the current snapshot becomes hi. No row is in two windows, none is in no window, and nobody waits for a publisher.
--
-- trunq._in_window says it in the plainest form. It cannot be indexed. Every other form is the same set, split in two parts that an
-- index on (txid, id) answers:
--
--   late    the transactions that were in progress in lo and are visible in hi. Their rows lie below xmax(lo). Each is one probe.
--   range   txid from xmax(lo) up to, and without, xmax(hi), less the transactions still in progress in hi.
--
-- Late rows come before the range in (txid, id) order, so one position (last_txid, last_id) inside the window covers both. A window that
-- is used up has last_txid = xmax(hi). trunq.snapshot() makes every snapshot: it counts the caller's own transaction as in progress.
--
-- Why there are several forms. One function could not serve all: lease stops after some messages and walks a bounded number of
-- rows, rotation probes a single segment, the history tests a row it already has, Spark splits the range over tasks.
--   trunq_queue.<queue>_window (sql/specimen/queue/window.sql)   the whole window: read_batch, trunq._has_new
--   trunq._unread              (here)                   the rest of the window from a position, and all behind it
--   trunq_queue.<queue>_lease  (sql/specimen/queue/lease.sql)    the next messages from a position, bounded
--   trunq._subscriptions_needing             (rotate.sql)             the readers for which one segment holds a row of the rest
--   trunq._is_read_at          (here)                   whether a row lies before a position
--   range.py                   (spark/source)           the window in parts that tasks read at once
-- tests/sql/ground/test_window.py draws random snapshots and asks all of them for the same rows.

create or replace function trunq._in_window(p_txid xid8, p_lo pg_snapshot, p_hi pg_snapshot) returns boolean
language sql immutable parallel safe as $$
  select pg_catalog.pg_visible_in_snapshot(p_txid, p_hi) and not pg_catalog.pg_visible_in_snapshot(p_txid, p_lo)
$$;
comment on function trunq._in_window is 'Whether rows of a transaction lie in the window from lo to hi.';

create or replace function trunq._is_read_at(
  p_txid xid8, p_id bigint, p_lo pg_snapshot, p_hi pg_snapshot, p_last_txid xid8, p_last_id bigint
) returns boolean
language sql immutable parallel safe as $$
  select pg_catalog.pg_visible_in_snapshot(p_txid, p_lo)
    or pg_catalog.pg_visible_in_snapshot(p_txid, p_hi) and (p_txid, p_id) operator(pg_catalog.<=) (p_last_txid, p_last_id)
$$;
comment on function trunq._is_read_at is
  'Whether a row of the log lies before a position.';

create or replace function trunq._unread(
  p_queue trunq.queue, p_subscription_id integer, p_limit integer, p_segments smallint[] default null, p_any boolean default false
) returns table (txid xid8, id bigint, created_at timestamptz, is_own boolean)
language plpgsql stable
set search_path = pg_catalog, pg_temp
-- The log has no statistics: left alone, the planner would read all of it.
set trunq.plan = index as $$
declare
  v record := trunq._read_position(p_queue, p_subscription_id);
begin
  if p_segments = '{}' then
    return;
  end if;
  if p_queue.lanes is not null then
    return query execute format('select * from trunq_queue.%I($1, $2)', p_queue.name || '_unread') using p_subscription_id, p_limit;
    return;
  end if;
  return query execute format($q$
    select u.txid, u.id, u.created_at, u.is_own
    from (
      -- The rest of the window: late transactions, then the range.
      select g.txid, g.id, g.created_at, g.is_own from pg_snapshot_xip($2) late(txid) cross join lateral (
        select g.txid, g.id, g.created_at, %3$s is_own from trunq_log.%1$I g
        where g.txid = late.txid and (g.txid, g.id) > ($4, $5) and %2$s order by g.id offset 0) g
      where $4 < pg_snapshot_xmax($2) and pg_visible_in_snapshot(late.txid, $3)
      union all
      (select g.txid, g.id, g.created_at, %3$s from trunq_log.%1$I g
       where (g.txid, g.id) > (greatest($4, pg_snapshot_xmax($2)), case when $4 < pg_snapshot_xmax($2) then 0 else $5 end)
         and g.txid < pg_snapshot_xmax($3) and pg_visible_in_snapshot(g.txid, $3) and %2$s
       order by g.txid, g.id)
      union all
      -- Behind the window: late transactions of the next, then everything newer.
      select g.txid, g.id, g.created_at, g.is_own from pg_snapshot_xip($3) late(txid) cross join lateral (
        select g.txid, g.id, g.created_at, %3$s is_own from trunq_log.%1$I g where g.txid = late.txid and %2$s order by g.id offset 0) g
      union all
      (select g.txid, g.id, g.created_at, %3$s from trunq_log.%1$I g
       where g.txid >= pg_snapshot_xmax($3) and %2$s
       order by g.txid, g.id)
    ) u
    where u.is_own or $7
    limit $6
  $q$, p_queue.log_table, case when p_segments is null then 'true' else format('g.segment = any (%L)', p_segments) end,
    format('(g.subscription_id = $1 or g.subscription_id is null and %s)', trunq._filter_condition(trunq._filter_of(p_subscription_id)))
      || case when trunq._has_ahead(p_queue.queue_id, p_subscription_id) then ' and not trunq._is_ahead($1, g.txid, g.id)' else '' end)
  using p_subscription_id, v.lo, v.hi, v.last_txid, v.last_id, p_limit, p_any;
end $$;
comment on function trunq._unread is
  'What a subscription has not read yet, in the order it will, up to p_limit rows, of all segments or some; with p_any also the retries of others, and what its filter leaves out, that it will walk over.';

create or replace function trunq._has_new(p_queue text, p_snapshot pg_snapshot) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set trunq.plan = index as $$
declare
  v_new boolean;
begin
  execute format('select exists (select from trunq_queue.%I($1, $2))', p_queue || '_window')
    into v_new using p_snapshot, trunq.snapshot();
  return v_new;
end $$;
comment on function trunq._has_new is 'Whether anything was committed since a snapshot.';
