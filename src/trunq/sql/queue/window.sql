-- The window of a queue (the essay is in functions/window.sql), as far as an index on (txid, id) answers it.

create or replace function trunq_queue._specimen_window(p_lo pg_snapshot, p_hi pg_snapshot) returns setof trunq_log._specimen
-- No settings here: Postgres then puts the query in the place of its call, and the caller's order, limit and settings reach into it.
language sql stable as $$
  (select g.* from pg_catalog.pg_snapshot_xip(p_lo) late(txid) cross join lateral (
     select g.* from trunq_log._specimen g where g.txid = late.txid order by g.id) g
   where pg_catalog.pg_visible_in_snapshot(late.txid, p_hi))
  union all
  (select g.* from trunq_log._specimen g
   where g.txid >= pg_catalog.pg_snapshot_xmax(p_lo) and g.txid < pg_catalog.pg_snapshot_xmax(p_hi) and pg_catalog.pg_visible_in_snapshot(g.txid, p_hi)
   order by g.txid, g.id)
$$;
comment on function trunq_queue._specimen_window(pg_snapshot, pg_snapshot) is
  'The rows of the log that hi sees and lo does not, in (txid, id) order, retries of every subscription among them. Turn enable_seqscan and enable_bitmapscan off: the log has no statistics.';

create or replace function trunq_queue._specimen_unread(
  p_subscription_id integer, p_lo pg_snapshot, p_hi pg_snapshot, p_last_txid xid8, p_last_id bigint, p_limit integer
) returns table (txid xid8, id bigint, created_at timestamptz)
language sql stable
set search_path = pg_catalog, pg_temp
-- The log has no statistics: left alone, the planner would read all of it.
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
  select u.txid, u.id, u.created_at from (
    -- The rest of the window: late transactions, then the range.
    select g.* from pg_snapshot_xip(p_lo) late(txid) cross join lateral (
      select g.* from trunq_log._specimen g where g.txid = late.txid and (g.txid, g.id) > (p_last_txid, p_last_id) offset 0) g
    where p_last_txid < pg_snapshot_xmax(p_lo) and pg_visible_in_snapshot(late.txid, p_hi)
    union all
    select g.* from trunq_log._specimen g
    where (g.txid, g.id) > (greatest(p_last_txid, pg_snapshot_xmax(p_lo)), case when p_last_txid < pg_snapshot_xmax(p_lo) then 0 else p_last_id end)
      and g.txid < pg_snapshot_xmax(p_hi) and pg_visible_in_snapshot(g.txid, p_hi)
    union all
    -- Behind the window: late transactions of the next, then everything newer.
    select g.* from pg_snapshot_xip(p_hi) late(txid) cross join lateral (
      select g.* from trunq_log._specimen g where g.txid = late.txid offset 0) g
    union all
    select g.* from trunq_log._specimen g where g.txid >= pg_snapshot_xmax(p_hi)
  ) u
  where u.subscription_id is null or u.subscription_id = p_subscription_id
  limit p_limit
$$;
comment on function trunq_queue._specimen_unread(integer, pg_snapshot, pg_snapshot, xid8, bigint, integer) is
  'What a shared subscription has not leased from a position on, in about the order it will, up to p_limit rows.';
