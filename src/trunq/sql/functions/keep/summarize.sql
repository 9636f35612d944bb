-- A message is found by its id, and receipts by their time, through BRIN indexes. Vacuum, which would summarize their new pages,
-- is off on segments, so the leader does. Each time it goes on where it stopped: a mark keeps how many ranges of which file were
-- done, and TRUNCATE gives a segment another file.
--
-- The last range of the segment that is written to has no summary: each row that comes into a range with one changes it, which is 216
-- bytes of the write-ahead log for a message and 72 for a receipt. Readers walk those pages, at most 32 and 16. An empty segment
-- is made with a summary of its first range, which goes.

create or replace function trunq.summarize(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_count integer := 0;
begin
  for v_segment in 0 .. v_queue.segments - 1 loop
    v_count := v_count + trunq._summarize_segment(v_queue, 'log', v_segment, 32) + trunq._summarize_segment(v_queue, 'receipt', v_segment, 16);
  end loop;
  -- History reads by BRIN only while it is up to date.
  insert into trunq.mark (queue_id, duty, at) values (v_queue.queue_id, 'summarize', trunq.clock())
  on conflict (queue_id, subscription_id, duty) do update set at = excluded.at;
  return v_count;
end $$;
comment on function trunq.summarize is
  'Summarizes the new pages of the queue''s BRIN indexes, which find a message by its id.
Returns: how many page ranges.
Raises: TQ001.
Locks: none that readers or publishers feel.';

create or replace function trunq._summarize_segment(p_queue trunq.queue, p_table text, p_segment integer, p_pages integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_name text := trunq._segment_name(p_queue, p_table, p_segment);
  v_duty text := format('summarize %s %s', p_table, p_segment);
  v_table regclass := format('trunq_data.%I', v_name)::regclass;
  v_pages bigint := pg_relation_size(v_table) / current_setting('block_size')::integer;
  v_ranges bigint := v_pages / p_pages;  -- full ones: the last is looked at again
  v_is_current boolean := p_segment = trunq._segment_at(p_queue, trunq.clock());
  v_file bigint := pg_relation_filenode(v_table)::bigint << 32;
  v_done bigint := 0;
  v_index regclass;
  v_count integer := 0;
begin
  if v_pages > 0 then
    select m.last_id - v_file into v_done from trunq.mark m
    where m.queue_id = p_queue.queue_id and m.subscription_id = 0 and m.duty = v_duty and m.last_id between v_file and v_file + v_ranges;
    v_done := coalesce(v_done, 0);
  end if;
  if v_pages <= v_done * p_pages then
    return 0;
  end if;
  select i.indexrelid into v_index from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
  where i.indrelid = v_table and a.amname = 'brin';
  for v_range in v_done .. case when v_is_current then v_ranges - 1 else (v_pages - 1) / p_pages end loop
    v_count := v_count + brin_summarize_range(v_index, v_range * p_pages);
  end loop;
  if v_ranges > v_done then
    insert into trunq.mark (queue_id, duty, at, last_id) values (p_queue.queue_id, v_duty, trunq.clock(), v_file + v_ranges)
    on conflict (queue_id, subscription_id, duty) do update set at = excluded.at, last_id = excluded.last_id;
  end if;
  return v_count;
end $$;
comment on function trunq._summarize_segment is 'Summarizes what is new in one segment; p_pages: the pages of a range.
Returns: how many page ranges.';

create or replace function trunq._unsummarize(p_table regclass) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  select brin_desummarize_range(i.indexrelid, 0)
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
  where i.indrelid = p_table and a.amname = 'brin'
$$;
comment on function trunq._unsummarize is 'Drops the summary that an empty segment has of its first range.';
