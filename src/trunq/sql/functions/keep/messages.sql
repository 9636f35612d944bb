-- One view a queue, trunq_queue.<queue>_messages: each message in its state, for each shared subscription. It is plain SQL over the
-- queue's tables, so that people filter, group and join. Each table of the queue is read once, whatever is asked: for a look at a few
-- messages there are show_message and list_messages, for numbers status.
--
-- It reads with the rights of the owner: whoever may read the view needs no right to what is behind it.

create or replace function trunq._define_messages(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_by_position constant text :=
    '(pg_visible_in_snapshot(g.txid, %1$s.lo) or pg_visible_in_snapshot(g.txid, %1$s.hi) and (g.txid, g.id) <= (%1$s.last_txid, %1$s.last_id))';
  v_role record;
  v_is_keyed boolean := p_queue.unique_policy is not null;
  v_is_new boolean := to_regclass(format('trunq_queue.%I', p_queue.name || '_messages')) is null;
begin
  execute format($q$
    create or replace view trunq_queue.%5$I as
    with reader as materialized (
      select s.subscription_id, s.name, s.start, coalesce(l.lo, s.start) lo, coalesce(l.hi, s.start) hi,
        coalesce(l.last_txid, pg_snapshot_xmax(s.start)) last_txid, coalesce(l.last_id, 0) last_id, s.filter,
        -- As trunq._read_filter, which a reader of the view may have no right to call.
        case when s.filter ? 'kinds' then array(select jsonb_array_elements_text(s.filter->'kinds')) end kinds,
        case when s.filter ? 'not_kinds' then array(select jsonb_array_elements_text(s.filter->'not_kinds')) end not_kinds,
        case when s.filter ? 'keys' then array(select jsonb_array_elements_text(s.filter->'keys')) end keys,
        case when s.filter ? 'not_keys' then array(select jsonb_array_elements_text(s.filter->'not_keys')) end not_keys,
        s.filter->'headers' headers,
        case when s.filter ? 'not_headers' then array(select jsonb_build_object(h.key, h.value) from jsonb_each(s.filter->'not_headers') h) end not_headers%8$s
      from trunq.subscription s
      left join lateral (
        select l.* from trunq_data.%2$I l where l.subscription_id = s.subscription_id
        order by l.lease_id desc limit 1) l on true
      where s.queue_id = %4$s and s.mode = 'shared'),
    %7$s
    -- The newest row of each message.
    logged as materialized (
      select distinct on (r.subscription_id, g.id) r.subscription_id, g.id, g.txid, g.attempt, g.created_at, g.kind::text, g.key::text,
        g.payload::jsonb, g.headers::jsonb, g.errors, r.is_read%10$s
      from trunq_log.%1$I g
      cross join lateral (
        select r.subscription_id, %6$s is_read
        from reader r %9$s
        where g.subscription_id = r.subscription_id
          or g.subscription_id is null and (g.txid < '500' or not pg_visible_in_snapshot(g.txid, r.start))
            and (r.filter is null or trunq._passes(r.kinds, r.not_kinds, r.keys, r.not_keys, r.headers, r.not_headers, g.kind, g.key, g.headers))
        offset 0) r
      order by r.subscription_id, g.id, g.txid desc),
    elsewhere as materialized (
      select r.subscription_id, d.id, d.attempt, d.created_at, case when d.aside is null then d.due_at end due_at, d.kind, d.key, d.payload, d.headers, d.errors,
        case when d.subscription_id is null then 'scheduled' when d.parked_at is not null then 'parked'
          when d.aside is not null then 'ready' else 'retrying' end place%11$s
      from trunq.delayed d cross join lateral (
        select r.subscription_id from reader r where d.subscription_id is null or d.subscription_id = r.subscription_id offset 0) r
      where d.queue_id = %4$s
      union all
      select d.subscription_id, d.id, d.attempt, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors, 'dead'%11$s
      from trunq.dead d
      where d.queue_id = %4$s and d.subscription_id in (select r.subscription_id from reader r)),
    -- The newest lease of each message, and what became of it there.
    held as materialized (
      select distinct on (h.subscription_id, h.id) h.*, a.outcome, a.finished_at, a.took, a.error, a.result
      from (
        select l.subscription_id, l.lease_id, l.segment, l.worker, l.leased_at, l.expires_at, u.id, u.txid
        from trunq_data.%2$I l cross join lateral unnest(l.ids, l.txids) u(id, txid) where l.size > 0) h
      left join (
        select r.lease_id, r.segment, r.outcome, r.finished_at, u.id, u.took, u.error, u.result
        from trunq_data.%3$I r cross join lateral unnest(r.ids, r.took, r.errors, r.results) u(id, took, error, result)
        where r.size > 0) a on a.lease_id = h.lease_id and a.segment = h.segment and a.id = h.id
      order by h.subscription_id, h.id, h.lease_id desc)
    select r.name as subscription,
      case
        when e.place is not null then e.place
        when h.txid = l.txid and h.outcome is null then 'leased'
        when h.txid = l.txid and h.outcome = 'a' then 'done'
        when h.txid = l.txid and h.outcome = 'p' then 'replaced'
        when h.txid = l.txid and h.outcome = 'o' then 'outdated'
        when h.txid is distinct from l.txid and not l.is_read then 'ready'
        when (subscription_id, id) in (select p.subscription_id, unnest(p.ids) from trunq.purged p where p.queue_id = %4$s) then 'purged'
        else 'done' end as state,  -- its lease, or what came back, is gone with its segment
      id, coalesce(e.kind, l.kind) as kind, coalesce(e.key, l.key) as key, coalesce(e.payload, l.payload) as payload,
      coalesce(e.headers, l.headers) as headers, coalesce(e.attempt, l.attempt)::integer as attempt,
      coalesce(e.created_at, l.created_at) as published_at, e.due_at,
      coalesce(h.worker, coalesce(e.errors, l.errors) -> -1 ->> 'worker') as worker, h.leased_at, h.expires_at,
      case when e.place is not null then coalesce(h.finished_at, (e.errors -> -1 ->> 'at')::timestamptz)
        when h.txid = l.txid then h.finished_at end as finished_at,
      case when h.outcome is distinct from 'a' and (h.txid = l.txid or not coalesce(l.is_read, false) or e.place is not null)
        then coalesce(h.error, coalesce(e.errors, l.errors) -> -1 ->> 'error') end as error,
      h.result, h.took%12$s
    from logged l full join elsewhere e using (subscription_id, id)
    join reader r using (subscription_id)
    left join held h using (subscription_id, id)
  $q$, p_queue.log_table, p_queue.lease_table, p_queue.receipt_table, p_queue.queue_id, p_queue.name || '_messages',
    case when p_queue.lanes is null then format(c_by_position, 'r') else format(
      -- As trunq_queue.<queue>_is_read.
      'case when r.in_order and g.subscription_id is not null and g.expiries is not null then %1$s and (t.again_txids[array_position(t.again_ids, g.id)] = g.txid) is not true when t.seq is null or t.state = ''i'' then %1$s or coalesce(t.epoch = r.epoch and pg_visible_in_snapshot(g.txid, r.hi), false) else %2$s end',
      format(c_by_position, 'r'), format(c_by_position, 't')) end,
    case when p_queue.lanes is not null then format(
      'lane as materialized (select distinct on (t.subscription_id, t.priority, t.lane) t.* from trunq_data.%I t order by t.subscription_id, t.priority, t.lane, t.seq desc),',
      p_queue.name || '_turn') end,
    case when p_queue.lanes is not null then ', l.epoch, s.in_order' end,
    case when p_queue.lanes is not null then trunq._for_queue(p_queue,
      'left join lane t on t.subscription_id = r.subscription_id and t.priority = g.priority and t.lane = coalesce(g.key, '''') /*lane*/ collate "C"') end,
    case when v_is_keyed then ', g.unique_key::text' end, case when v_is_keyed then ', d.extra->>''unique_key'' unique_key' end,
    case when v_is_keyed then ', coalesce(e.unique_key, l.unique_key) unique_key' end);
  execute format('comment on view trunq_queue.%I is %L', p_queue.name || '_messages',
    'Each message of the queue with its state, for each shared subscription: scheduled, ready, leased, retrying, parked, done, outdated, dead, replaced or purged. It reads the tables of the queue once, whatever is asked.');
  if v_is_new then
    for v_role in
      select distinct a.grantee from pg_class c cross join lateral aclexplode(c.relacl) a
      where c.oid = format('trunq_log.%I', p_queue.log_table)::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner
    loop
      execute format('grant select on trunq_queue.%I to %s', p_queue.name || '_messages',
        case when v_role.grantee = 0 then 'public' else v_role.grantee::regrole::text end);
    end loop;
  end if;
end $$;
comment on function trunq._define_messages is
  'Makes the view of a queue''s messages. A new one may be read by whoever may read the log.';
