-- Erasing messages for good, and keeping those of a log from being changed by hand.
--
-- A message may have left copies in many places: each of its rows in the log, trunq.delayed and trunq.dead, the archive, the results and errors
-- of its receipts, a reply, a checkpoint, the error of a batch. delete() empties them all. What is left says that there was a message: id, times,
-- kind, key, unique key. They are labels, by which messages are found, ordered and counted.
--
-- A message that is not over is cancelled first. Its row in the log stays, empty: positions, turns and leases point there.
--
-- No copy escapes. What writes one that we cannot see yet, an answer or the end of a lease that takes a message out of the log, also writes
-- a receipt or a lease, and the archive's duty writes the archive: so these tables are locked, whoever is there already is waited for, and
-- who comes later reads an empty row. One who comes later with a snapshot from before fails at the lease it answers (_fence_leases). What deletes
-- a row to write another (promote, requeue) meets us at the row it deletes: what is dead is deleted before we look which messages are
-- over, and the log, where these write to, is emptied last. Publishers and readers wait for nothing.

create or replace function trunq.delete(p_queue text, p_ids bigint[]) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[] := array(select distinct u.id from unnest(p_ids) u(id) order by u.id);
  v_count bigint;
begin
  perform trunq._find_queue(p_queue);
  perform trunq._require_read_committed('delete');
  if p_ids is null or array_position(v_ids, null) is not null then
    perform trunq._fail('TQ005', 'delete names messages by id, not null', format('select trunq.delete(''%s'', array[42])', p_queue));
  elsif cardinality(v_ids) > trunq._limit('cancelled_messages') then
    perform trunq._fail('TQ005', format('delete takes up to %s messages, not %s', trunq._limit('cancelled_messages'), cardinality(v_ids)),
      'delete them in parts');
  end if;
  v_count := trunq._try_for_locks(p_queue, format('select trunq._delete($1, %L)', v_ids));
  perform trunq._audit('delete', p_queue, jsonb_build_object('ids', v_ids[:20]), v_count);
  return v_count;
end $$;
comment on function trunq.delete is
  'Erases payload, body, headers, your own columns, errors, results, replies and checkpoints of messages, up to 10,000, for good, wherever they are: log, delayed, dead, archive. Unfinished messages are cancelled and never handed out again, not even to a later shared subscription that starts at the earliest; dead ones are purged; a worker that holds a message keeps what it has, and may still write an error or a result: delete it again when it is over. A stream that has yet to read one reads it empty. Kind, key and unique key stay. trunq.list_deletions tells who deleted what. What left the queue (lakes, movers, backups, other queues) is not reached.
Returns: of how many of them something was there.
Raises: TQ001, TQ005, TQ007; TQ009 while an open transaction has leased or answered messages of the queue.
Locks: the queue, and its leases and receipts against leases and answers, waiting 200 ms at a time.';

create or replace function trunq._delete(p_queue trunq.queue, p_ids bigint[]) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_archive constant text := format('trunq_archive.%I', p_queue.name);
  v_running integer;
  v_logged bigint[];
  v_found bigint[];
begin
  execute format('lock table trunq_data.%I, trunq_data.%I in share row exclusive mode', p_queue.lease_table, p_queue.receipt_table);
  -- Who requeues one of them is waited for, so that it is cancelled below; who comes later finds none.
  v_found := trunq._delete_dead(p_queue.queue_id, p_ids);
  v_running := (select count(distinct c.id) from trunq._cancel(p_queue, null, p_ids) c where c.state = 'leased');
  perform trunq._fence_leases(p_queue, p_ids);
  v_found := v_found || trunq._delete_dead(p_queue.queue_id, p_ids) || trunq._delete_elsewhere(p_queue.queue_id, p_ids);
  if to_regclass(v_archive) is not null then
    execute format('lock table %s in share row exclusive mode', v_archive);
    v_found := v_found || trunq._delete_archived(v_archive, p_ids);
  end if;
  v_found := v_found || trunq._delete_receipts(p_queue, p_ids);
  perform trunq._erase_runs(p_ids) where p_queue.name = 'pipelines';
  v_logged := trunq._delete_logged(p_queue, p_ids);
  v_found := v_found || v_logged;
  -- Of an id that is nowhere nothing stays noted, here or in trunq.deletion: a message may get it yet.
  delete from trunq.cancelled c where c.queue_id = p_queue.queue_id and c.id = any (p_ids) and c.id <> all (v_logged);
  v_found := array(select distinct u.id from unnest(v_found) u(id) order by u.id);
  insert into trunq.deletion (queue_id, queue, deleted_at, deleted_by, messages, running, ids)
  values (p_queue.queue_id, p_queue.name, trunq.clock(), session_user, cardinality(v_found), v_running, v_found);
  return cardinality(v_found);
end $$;
comment on function trunq._delete is 'One try of delete, under the lock of the queue.';

create or replace function trunq._delete_dead(p_queue_id integer, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_dead_ids bigint[];
  v_found bigint[];
begin
  select array_agg(d.dead_id), coalesce(array_agg(d.id), '{}') into v_dead_ids, v_found
  from trunq.dead d where d.queue_id = p_queue_id and d.id = any (p_ids);
  perform trunq._purge(p_queue_id, v_dead_ids) where v_dead_ids is not null;
  return v_found;
end $$;
comment on function trunq._delete_dead is 'Purges messages that are dead, for any subscription; whoever requeues one is waited for. Returns: which there were.';

create or replace function trunq._erase_runs(p_ids bigint[]) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- Not SQL's null: that is what a message without a payload has, and a run of one is never its run.
  update trunq.pipeline_run r set payload = case when r.payload is not null then 'null'::jsonb end, error = null,
    slice = case when r.ended_at is not null and r.is_settled then r.slice - 'message' else r.slice end
  where r.message_id = any (p_ids)
$$;
comment on function trunq._erase_runs is 'Erases what runs of pipelines noted of the messages that asked for them. One that is open goes on with the fields that its slice was fixed with.';

create or replace function trunq._fence_leases(p_queue trunq.queue, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = nested as $$
begin
  execute format($q$
    update trunq_data.%I l set expires_at = l.expires_at
    from trunq.subscription s cross join lateral trunq._held_leases($1, s.subscription_id) h
    where s.queue_id = $2 and s.mode = 'shared' and l.subscription_id = s.subscription_id and l.lease_id = h.lease_id and l.ids && $3
  $q$, p_queue.lease_table) using p_queue, p_queue.queue_id, p_ids;
end $$;
comment on function trunq._fence_leases is
  'Writes the open leases of messages again, as they are: an answer under an older snapshot, which still reads what they held, fails there (40001).';

create or replace function trunq._skip_deleted(p_queue trunq.queue, p_subscription_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from trunq.deletion d where d.queue_id = p_queue.queue_id) then
    execute format($q$
      insert into trunq.cancelled (queue_id, subscription_id, id, cancelled_at, look_at)
      select distinct $1, $2, g.id, $3, $3 from trunq_log.%I g
      where g.subscription_id is null and g.id in (select u.id from trunq.deletion d cross join unnest(d.ids) u(id) where d.queue_id = $1)
    $q$, p_queue.log_table) using p_queue.queue_id, p_subscription_id, trunq.clock();
    update trunq.subscription s set has_cancelled = true
    where s.subscription_id = p_subscription_id and exists (select from trunq.cancelled c where c.subscription_id = p_subscription_id);
  end if;
end $$;
comment on function trunq._skip_deleted is
  'Cancels what was deleted for a shared subscription that begins to read what is kept: the log has empty rows of it. The caller holds the queue''s lock.';

create or replace function trunq._delete_elsewhere(p_queue_id integer, p_ids bigint[]) returns bigint[]
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with delayed as (delete from trunq.delayed d where d.queue_id = p_queue_id and d.id = any (p_ids) returning d.id),
  said as (delete from trunq.progress p where p.queue_id = p_queue_id and p.id = any (p_ids) returning p.id),
  -- Whoever waits for it hears how it ended.
  replied as (update trunq.reply r set result = null, error = null where r.queue_id = p_queue_id and r.id = any (p_ids) returning r.id)
  select coalesce(array_agg(g.id), '{}')
  from (select d.id from delayed d union all select s.id from said s union all select r.id from replied r) g
$$;
comment on function trunq._delete_elsewhere is 'Deletes messages that are delayed, and what was reported and replied of them. Returns: which there were.';

create or replace function trunq._delete_archived(p_archive text, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_found bigint[];
begin
  execute format($q$
    with gone as (
      update %s a set payload = null, body = null, headers = null, error = null, result = null, options = null,
        extra = nullif(jsonb_strip_nulls(jsonb_build_object('unique_key', a.extra->'unique_key')), '{}')
      where a.id = any ($1) returning a.id)
    select coalesce(array_agg(distinct g.id), '{}') from gone g
  $q$, p_archive) into v_found using p_ids;
  return v_found;
end $$;
comment on function trunq._delete_archived is 'Empties the attempts at messages in an archive. Returns: which there were.';

create or replace function trunq._delete_receipts(p_queue trunq.queue, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_found bigint[];
begin
  execute format($q$
    with gone as (
      update trunq_data.%I r set
        errors = case when r.errors is not null then array(
          select case when r.ids[e.at] <> all ($1) then e.error end from unnest(r.errors) with ordinality e(error, at) order by e.at) end,
        results = case when r.results is not null then array(
          select case when r.ids[e.at] <> all ($1) then e.result end from unnest(r.results) with ordinality e(result, at) order by e.at) end
      where r.ids && $1 and num_nonnulls(r.errors, r.results) > 0 returning r.ids)
    select coalesce(array_agg(distinct u.id), '{}') from gone g cross join unnest(g.ids) u(id) where u.id = any ($1)
  $q$, p_queue.receipt_table) into v_found using p_ids;
  -- A batch that failed has one error for all its messages.
  execute format($q$
    update trunq_data.%1$I l set error = null
    where l.error is not null and exists (
      select from trunq_log.%2$I g where g.id = any ($1) and pg_visible_in_snapshot(g.txid, l.hi) and not pg_visible_in_snapshot(g.txid, l.lo))
  $q$, p_queue.lease_table, p_queue.log_table) using p_ids;
  return v_found;
end $$;
comment on function trunq._delete_receipts is 'Empties the errors and results of messages. Returns: which had any.';

create or replace function trunq._delete_logged(p_queue trunq.queue, p_ids bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_own text;
  v_without text;
  v_found bigint[];
begin
  select coalesce(string_agg(format(', %I = %s', a.attname, case when a.attnotnull then 'default' else 'null' end), '' order by a.attnum), ''),
    min(a.attname) filter (where a.attnotnull and not a.atthasdef) into v_own, v_without
  from pg_attribute a
  where a.attrelid = format('trunq_log.%I', p_queue.log_table)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity = ''
    and a.attname not in ('unique_key', 'unique_turn', 'unique_until')
    and not exists (select from pg_attribute s where s.attrelid = 'trunq_log._specimen'::regclass and s.attname = a.attname);
  if v_without is not null then
    perform trunq._fail('TQ005', format('column "%s" of trunq_log.%s is not null and has no default, so what it holds cannot be erased', v_without, p_queue.log_table),
      format('give it one, for example: alter table trunq_log.%I alter column %I set default ''deleted''', p_queue.log_table, v_without));
  end if;
  perform set_config('trunq.rewrite', 'on', true);
  execute format($q$
    with gone as (
      update trunq_log.%I g set payload = null, body = null, headers = null, errors = null%s where g.id = any ($1) returning g.id)
    select coalesce(array_agg(distinct g.id), '{}') from gone g
  $q$, p_queue.log_table, v_own) into v_found using p_ids;
  perform set_config('trunq.rewrite', 'off', true);
  return v_found;
end $$;
comment on function trunq._delete_logged is 'Empties every row of messages in the log, the user''s columns too; those that cannot be null have their defaults. Returns: which there were.';

create or replace function trunq._are_deleted(p_queue_id integer, p_ids bigint[]) returns bigint[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select array(
    select distinct u.id from trunq.deletion d cross join unnest(d.ids) u(id)
    where d.queue_id = p_queue_id and d.ids && p_ids and u.id = any (p_ids))
$$;
comment on function trunq._are_deleted is 'Which of these messages somebody has deleted.';

create or replace function trunq.list_deletions(p_queue text default null, p_limit integer default 100, p_before bigint default null)
returns table (deletion_id bigint, queue text, deleted_at timestamptz, deleted_by text, messages integer, running integer, ids bigint[])
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue_id integer;
begin
  if p_queue is not null then
    v_queue_id := (trunq._find_queue(p_queue)).queue_id;
  end if;
  perform trunq._check_limit(p_limit);
  return query
    select d.deletion_id, d.queue, d.deleted_at, d.deleted_by, d.messages, d.running, d.ids
    from trunq.deletion d
    where (v_queue_id is null or d.queue_id = v_queue_id) and (p_before is null or d.deletion_id < p_before)
    order by d.deletion_id desc limit p_limit;
end $$;
comment on function trunq.list_deletions is
  'Who deleted which messages, the newest first, p_limit of them at most (100); without p_queue for the owner alone, with those of queues that are gone. p_before: the last deletion_id of the page before. ids: those of which something was there; messages: how many; running: how many of these a worker held: delete them again when they are over.
Raises: TQ001, TQ005.';

create or replace function trunq._refuse_rewrite() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = 'TQ020',
    message = format('messages in %I.%I are neither changed nor deleted: their readers would miss them', tg_table_schema, tg_table_name),
    hint = format('all of them at once: select trunq.empty_queue(%1$L); so that some do not run: select * from trunq.cancel(%1$L, array[42]); what they hold, for good: select trunq.delete(%1$L, array[42])',
      tg_table_name);
end $$;
comment on function trunq._refuse_rewrite is 'Before an update or delete of a log: refuses it (TQ020), unless the setting trunq.rewrite is on, which our own functions turn on for a statement. (Not by a clause SET of theirs: only a superuser may make a function with one for a setting that no library defines.)';
