-- The window of a queue (the essay is in functions/ground/window.sql), as far as an index on (txid, id) answers it.

create or replace function trunq_queue._specimen_window(p_lo pg_snapshot, p_hi pg_snapshot) returns setof trunq_log._specimen
-- No settings here: Postgres then puts the query in the place of its call, and the caller's order, limit and settings reach into it.
language sql stable as $$
  (select g.* from pg_catalog.pg_snapshot_xip(p_lo) late(txid) cross join lateral (
     select g.* from trunq_log._specimen g where g.txid operator(pg_catalog.=) late.txid order by g.id) g
   where pg_catalog.pg_visible_in_snapshot(late.txid, p_hi))
  union all
  (select g.* from trunq_log._specimen g
   where g.txid operator(pg_catalog.>=) pg_catalog.pg_snapshot_xmax(p_lo) and g.txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(p_hi) and pg_catalog.pg_visible_in_snapshot(g.txid, p_hi)
   order by g.txid, g.id)
$$;
comment on function trunq_queue._specimen_window is
  'The rows of the log that hi sees and lo does not, in (txid, id) order, retries of every subscription among them. Turn enable_seqscan and enable_bitmapscan off: the log has no statistics.';
