-- Logical replication copies the columns it is told to. The recipe of replication.md leaves out txid and id, so that each row gets those
-- of the cluster it arrives in. A row that brings its own txid lies behind all positions, or ahead of them for a long time, in silence.

create or replace function trunq._warn_unreachable(p_queue trunq.queue) returns table (warning text, hint text)
-- Log rows by index, or by their place at the end of a segment.
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_pages constant integer := 100;
  v_row record;
  v_found record;
  v_tick trunq.tick;
  v_segment regclass;
begin
  execute format('select g.id, g.txid from trunq_log.%I g order by g.txid desc limit 1', p_queue.log_table) into v_row;
  -- By a later statement: whoever had published that row has finished.
  if v_row.txid >= pg_snapshot_xmax(trunq.snapshot()) and v_row.txid is distinct from pg_current_xact_id_if_assigned() then
    v_found := v_row;
  end if;
  -- Made after a tick was cut, yet counted as finished before it. Only the newest rows of each segment are looked at.
  for v_tick in
    (select t.* from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id limit 1)
    union all
    (select t.* from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1)
  loop
    for v_n in 0 .. p_queue.segments - 1 loop
      exit when v_found is not null;
      v_segment := format('trunq_data.%I', trunq._segment_name(p_queue, 'log', v_n))::regclass;
      execute format($q$
        select g.id, g.txid from %s g
        where g.ctid >= $1 and g.txid < $2 and g.txid >= '500' and g.created_at > $3 limit 1
      $q$, v_segment)
      into v_row using format('(%s,0)', greatest(0, pg_relation_size(v_segment) / 8192 - c_pages))::tid, pg_snapshot_xmin(v_tick.snapshot), v_tick.created_at;
      v_found := v_row;
    end loop;
  end loop;
  if v_found is not null then
    warning := format('rows lie in trunq_log.%I that nobody will lease: message %s came with transaction id %s, which is not of this cluster (now %s)',
      p_queue.log_table, v_found.id, v_found.txid, pg_snapshot_xmax(trunq.snapshot()));
    hint := 'insert, copy or replicate only kind, key, payload, body and headers, as docs/operate/replication.md shows; then publish those rows again';
    return next;
  end if;
end $$;
comment on function trunq._warn_unreachable is 'Says when rows lie in a log that no position will reach, because they brought their own transaction ids.';
