-- Archives that are written at once. The function of the trigger names the tables of its queue, so that sessions keep its plan, and lies in trunq_data,
-- as those of captures do: trunq_data.archive_<queue_id>. It runs where receipts are inserted, which is done with the owner's rights alone:
-- no role gets a right on an archive by it. It reads lease and message, which an ack by itself does not.
--
-- An answer must not fail for want of a partition. The duty makes the month that comes; where no leader did, the first answer of a month does. What
-- it cannot make it leaves: the duty finds such attempts missing.

create or replace function trunq._define_at_once(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
declare
  v_function constant text := format('trunq_data.%I()', 'archive_' || p_queue.queue_id);
  v_is_there constant boolean := exists (
    select from pg_trigger t where t.tgrelid = format('trunq_data.%I', p_queue.receipt_table)::regclass and t.tgname = 'archive');
begin
  if not exists (select from trunq.taker t where t.queue_id = p_queue.queue_id and t.name = '(archive)' and t.at_once) then
    if v_is_there then
      execute format('drop trigger archive on trunq_data.%I', p_queue.receipt_table);
    end if;
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', v_function);
    end if;
    return;
  end if;
  execute trunq._at_once_function(p_queue, v_function);
  execute format('revoke execute on function %s from public', v_function);
  execute format('comment on function %s is %L', v_function, format('trunq: after a receipt, writes its attempts into the archive of queue "%s".', p_queue.name));
  if not v_is_there then
    execute format('create trigger archive after insert on trunq_data.%I for each row when (new.size > 0 and new.outcome <> ''b'') execute function %s',
      p_queue.receipt_table, v_function);
  end if;
end $$;
comment on function trunq._define_at_once is
  'Makes the trigger of a queue whose archive is written at once, and its function anew; of another queue, drops them. The caller holds the lock of the queue.';

create or replace function trunq._at_once_function(p_queue trunq.queue, p_function text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($f$
create or replace function %1$s returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
-- As trunq._write_archive.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
set trunq.plan = hash as $at_once$
declare
  v_is_wider constant boolean := trunq._is_wider(%3$L);
begin
  if not exists (
      select from pg_inherits i
      where i.inhrelid = to_regclass(format('trunq_data.%%I', concat(%2$L, '_archive_', to_char(new.finished_at at time zone 'UTC', 'YYYYMM'))))) then
    if not trunq._make_month(%2$L, new.finished_at) then
      return null;
    end if;
  end if;
  with place as materialized (
    select p.id, p.txid, l.worker, l.leased_at, s.name
    from trunq.subscription s join %4$s l on l.subscription_id = s.subscription_id
    cross join lateral unnest(l.ids, l.txids) p(id, txid)
    where s.subscription_id = new.subscription_id and s.mode = 'shared' and l.lease_id = new.lease_id and l.segment = new.segment)
  insert into trunq_archive.%2$I (id, subscription, attempt, outcome, error, result, worker, published_at, leased_at, finished_at, took,
    priority, kind, key, payload, body, headers, options, extra, subscription_id, lease_id)
  select a.id, p.name, g.attempt, trunq._outcome(new.outcome), a.error, a.result, p.worker, g.created_at, p.leased_at, new.finished_at, a.took,
    g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.options, g.extra, new.subscription_id, new.lease_id
  from unnest(new.ids, new.took, new.errors, new.results) a(id, took, error, result)
  join place p on p.id = a.id
  left join lateral (
    select g.*, case when v_is_wider then trunq._extra(to_jsonb(g)) end extra
    from %3$s g where trunq._is_row(g.txid, g.id, g.subscription_id, p.txid, p.id, new.subscription_id) limit 1) g on true;
  return null;
end $at_once$
$f$, p_function, p_queue.name, format('trunq_log.%I', p_queue.log_table), format('trunq_data.%I', p_queue.lease_table))
$$;
comment on function trunq._at_once_function is 'The function of the trigger by which answers write an archive.';
