-- A message that must run later lies in trunq.delayed: published with a delay, or retried with back-off. When due it is
-- inserted into the log (again), same id, its attempt already counted. This is an old-style table that is deleted from, so
-- each promotion starts at the last due time promoted: under a pinned horizon it would otherwise walk its dead rows.

create or replace function trunq.promote(p_queue text, p_max integer default 1000) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
  v_now timestamptz := trunq.clock();
  v_mark record;
  v_from timestamptz := '-infinity';
  v_last timestamptz;
  v_count integer := 0;
  v_full boolean;
begin
  -- A row that committed late, or was put off less far, lies below the mark: a full look once a minute finds it.
  select m.at, f.at as full_at into v_mark from trunq.mark m
  left join trunq.mark f on f.queue_id = m.queue_id and f.subscription_id = 0 and f.duty = 'promote_all'
  where m.queue_id = v_queue_id and m.subscription_id = 0 and m.duty = 'promote';
  v_full := v_mark.full_at is null or v_now - v_mark.full_at not between '0' and '1 minute';
  if not v_full then
    v_from := least(v_mark.at, v_now);
  end if;
  -- Asked first: an insert of no rows rings the bell all the same, and every idle worker would look twice a second.
  if exists (
    select from trunq.delayed d where d.queue_id = v_queue_id and d.due_at >= v_from and d.due_at <= v_now
  ) then
    execute format($q$
      with due as materialized (
        select d.ctid, d.due_at from trunq.delayed d
        where d.queue_id = $1 and d.due_at >= $2 and d.due_at <= $3
        order by d.due_at, d.id limit $4 for update skip locked),
      gone as (
        delete from trunq.delayed d using due where d.ctid = due.ctid
        returning d.*),
      promoted as (
        insert into trunq_log.%I (id, subscription_id, created_at, attempt, priority, kind, key, payload, body, headers, errors)
        select g.id, g.subscription_id, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors
        from gone g order by g.due_at, g.id)
      select count(*), max(g.due_at) from gone g
    $q$, p_queue) into v_count, v_last using v_queue_id, v_from, v_now, p_max;
  end if;
  -- As many as asked for: there may be more, go on behind the last. Less: nothing due is left, but a due time is given by the
  -- clock before its row commits, so look a little behind the next time.
  v_mark.at := case when v_count < p_max then v_now - interval '5 seconds' else v_last end;
  if v_full or v_count > 0 or v_mark.at > v_from + interval '5 seconds' then
    insert into trunq.mark (queue_id, duty, at)
    select v_queue_id, d.duty, d.at
    from (values ('promote', v_mark.at), ('promote_all', case when v_full then v_now end)) d(duty, at)
    where d.at is not null
    on conflict (queue_id, subscription_id, duty) do update set at = excluded.at;
  end if;
  return v_count;
end $$;
comment on function trunq.promote(text, integer) is
  'Inserts messages that are due into the log, at most p_max. Returns: how many. Raises: TQ001. Locks: the rows it promotes; rows locked by another are left to it.';
