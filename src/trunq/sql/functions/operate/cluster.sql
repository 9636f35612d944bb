-- Positions are made of transaction ids, which mean something in one cluster only. A dump restored into another cluster carries ids of
-- the old one: where ids are lower, every new publish would look as if it had been read long ago and go undelivered in silence. So
-- positions are used only in the cluster they were made in, checked once a session.
--
-- Two ways lead on. After pg_upgrade, or from a physical copy that got another identifier, ids continue where they were: trunq.adopt()
-- makes sure of that and keeps everything. After a logical restore trunq.rebase() or trunq.rebase_each_queue() starts the positions afresh.

create or replace function trunq.adopt() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now pg_snapshot;
  v_is_ours boolean;
  v_queue trunq.queue;
  v_ahead text;
begin
  perform trunq._require_read_committed('adopt');
  perform trunq._audit('adopt', null);
  -- One at a time, and nobody makes or drops a queue meanwhile.
  perform pg_advisory_xact_lock(trunq._lock_class('queues'), 0);
  v_now := trunq.snapshot();
  v_is_ours := (select c.system_identifier from trunq.cluster c) = (select s.system_identifier from pg_control_system() s);
  for v_queue in select q.* from trunq.queue q order by q.queue_id loop
    begin
      v_ahead := trunq._find_ahead(v_queue, case when v_is_ours then pg_snapshot_xmax(v_now) else pg_snapshot_xmin(v_now) end, pg_snapshot_xmax(v_now));
      -- It only read. What is rolled back gives back its locks: of many queues, the server has not enough.
      raise exception using errcode = 'TQ900';
    exception when sqlstate 'TQ900' then
      null;
    end;
    if v_ahead is not null then
      perform trunq._fail('TQ010', format('transaction ids of this cluster (%s) do not continue those of queue "%s": %s', v_now, v_queue.name, v_ahead),
        'if a transaction is open since before this cluster took over, end it and try again; after a logical restore, stop all workers and run "call trunq.rebase_each_queue()"');
    end if;
  end loop;
  if v_is_ours then
    return false;
  end if;
  delete from trunq.cluster;
  insert into trunq.cluster (system_identifier) select s.system_identifier from pg_control_system() s;
  return true;
end $$;
comment on function trunq.adopt is
  'After pg_upgrade, or from a physical copy with another identifier: checks every position and tick against this cluster''s transaction ids and goes on from them; Spark checkpoints stay valid.
Returns: true when this cluster was new to trunq.
Raises: TQ007; TQ010 when the ids here do not continue those of the positions, and nothing is changed: then trunq.rebase.
Locks: creating and dropping queues.';

create or replace function trunq._other_cluster(out finding text, out hint text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if (select c.system_identifier from trunq.cluster c)
      is distinct from (select s.system_identifier from pg_control_system() s) then
    finding := 'the positions of this database were made in another Postgres cluster';
    hint := 'after pg_upgrade or from a physical copy, run "select trunq.adopt()" once: transaction ids continue, and so does everything; after a logical restore (pg_restore), stop all workers and run "call trunq.rebase_each_queue()" once: it publishes again what was not answered and starts the positions afresh';
  end if;
end $$;
comment on function trunq._other_cluster is 'That the positions were made in another cluster than this one, and what helps; null: they were made here.';

create or replace function trunq._check_cluster() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_other record;
begin
  if current_setting('trunq.cluster_checked', true) = 'yes' then
    return;
  end if;
  v_other := trunq._other_cluster();
  if v_other.finding is not null then
    perform trunq._fail('TQ010', v_other.finding, v_other.hint);
  end if;
  perform set_config('trunq.cluster_checked', 'yes', false);
end $$;
comment on function trunq._check_cluster is 'Refuses (TQ010) to work in another cluster than the positions were made in; looks once a session.';

create or replace function trunq._check_position(p_hi pg_snapshot, p_now pg_snapshot) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if pg_snapshot_xmax(p_hi) > pg_snapshot_xmax(p_now) then
    perform trunq._fail('TQ010',
      format('a position lies ahead of this cluster''s transaction ids (%s, now %s): the database was restored from another cluster',
        pg_snapshot_xmax(p_hi), pg_snapshot_xmax(p_now)),
      'stop all workers and run "call trunq.rebase_each_queue()" once: it publishes again what was not answered and starts the positions afresh (trunq.adopt() is for ids that continue)');
  end if;
end $$;
comment on function trunq._check_position is 'Refuses (TQ010) a position ahead of the transaction ids of this cluster.';

create or replace function trunq._find_ahead(p_queue trunq.queue, p_position_limit xid8, p_row_limit xid8) returns text
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_tick record;
  v_hi pg_snapshot;
  v_last_txid xid8;
  v_id bigint;
  v_txid xid8;
begin
  -- A publisher whose id lies below a position would not be heard: so no position may lie above the oldest transaction still open.
  select t.tick_id, t.snapshot into v_tick from trunq.tick t
  where t.queue_id = p_queue.queue_id and pg_snapshot_xmax(t.snapshot) > p_position_limit order by t.tick_id limit 1;
  if found then
    return format('tick %s (%s) lies ahead of them', v_tick.tick_id, v_tick.snapshot);
  end if;
  for v_sub in select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id order by s.subscription_id loop
    execute format('select hi, last_txid from trunq_queue.%I($1)', p_queue.name || '_position') into v_hi, v_last_txid using v_sub.subscription_id;
    if greatest(pg_snapshot_xmax(v_sub.start), pg_snapshot_xmax(v_hi), v_last_txid) > p_position_limit then
      return format('the position of subscription "%s" (%s) lies ahead of them', v_sub.name, v_hi);
    end if;
  end loop;
  execute format('select g.id, g.txid from trunq_log.%I g where g.txid >= $1 order by g.txid desc, g.id desc limit 1', p_queue.log_table)
    into v_id, v_txid using p_row_limit;
  if v_id is not null then
    return format('message %s (%s) lies ahead of them', v_id, v_txid);
  end if;
  select b.id, b.txid into v_id, v_txid from trunq._find_behind(p_queue) b;
  if found then
    return format('message %s (%s) was published behind them', v_id, v_txid);
  end if;
  return null;
end $$;
comment on function trunq._find_ahead is
  'What says that transaction ids here do not continue those of a queue: a position above p_position_limit, a message from p_row_limit on, or one published behind a tick; null: nothing.';

create or replace function trunq._find_behind(p_queue trunq.queue) returns table (id bigint, txid xid8)
-- By the index on id, which knows where the newest messages lie: not by (txid, id), all of which would have to be read.
language plpgsql set search_path = pg_catalog, pg_temp
set trunq.plan = bitmap as $$
#variable_conflict use_column
declare
  v_tick trunq.tick;
begin
  select t.* into v_tick from trunq.tick t where t.queue_id = p_queue.queue_id order by t.tick_id desc limit 1;
  -- Ids below 500 are those rebase gives: no cluster does.
  return query execute format('select g.id, g.txid from trunq_log.%I g where g.id > $1 and g.txid::text::bigint between 500 and $2 - 1 limit 1', p_queue.log_table)
    using v_tick.last_message_id, pg_snapshot_xmin(v_tick.snapshot)::text::bigint;
end $$;
comment on function trunq._find_behind is
  'A message whose id was drawn after the newest tick, yet by a transaction that had finished before it: published in another cluster than the tick was cut in.';
