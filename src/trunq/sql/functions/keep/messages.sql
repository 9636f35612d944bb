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
  v_own record := trunq._columns_of_view(p_queue);
  v_view text;
  v_readers oid[];
  v_is_keyed boolean := p_queue.unique_policy is not null;
  v_is_new boolean := to_regclass(format('trunq_queue.%I', p_queue.name || '_messages')) is null;
begin
  v_view := format($q$
    create or replace view trunq_queue.%5$I as
    with reader as materialized (
      select s.subscription_id, s.name, s.start, coalesce(l.lo, s.start) lo, coalesce(l.hi, s.start) hi,
        coalesce(l.last_txid, pg_snapshot_xmax(s.start)) last_txid, coalesce(l.last_id, 0) last_id, s.filter,
        -- As trunq._read_filter, which a reader of the view may have no right to call.
        case when s.filter ? 'kinds' then array(select jsonb_array_elements_text(s.filter->'kinds')) end kinds,
        case when s.filter ? 'not_kinds' then array(select jsonb_array_elements_text(s.filter->'not_kinds')) end not_kinds,
        case when s.filter ? 'keys' then array(select jsonb_array_elements_text(s.filter->'keys')) end keys,
        case when s.filter ? 'not_keys' then array(select jsonb_array_elements_text(s.filter->'not_keys')) end not_keys,
        case when s.filter ? 'columns' then coalesce(s.filter->'headers', '{}') || jsonb_build_object('trunq_columns', s.filter->'columns') else s.filter->'headers' end headers,
        case when s.filter ?| '{not_headers,not_columns}' then array(
          select jsonb_build_object(h.key, h.value) from jsonb_each(s.filter->'not_headers') h
          union all
          select jsonb_build_object('trunq_columns', jsonb_build_object(h.key, h.value)) from jsonb_each(s.filter->'not_columns') h) end not_headers%8$s
      from trunq.subscription s
      left join lateral (
        select l.* from trunq_data.%2$I l where l.subscription_id = s.subscription_id
        order by l.lease_id desc limit 1) l on true
      where s.queue_id = %4$s and s.mode = 'shared'),
    %7$s
    -- The newest row of each message.
    logged as materialized (
      select distinct on (r.subscription_id, g.id) r.subscription_id, g.id, g.txid, g.attempt, g.created_at, g.kind::text, g.key::text,
        g.payload::jsonb, g.headers::jsonb, g.errors, r.is_read%10$s%14$s
      from trunq_log.%1$I g
      cross join lateral (
        select r.subscription_id, %6$s is_read
        from reader r %9$s
        where g.subscription_id = r.subscription_id
          or g.subscription_id is null and (g.txid < '500' or not pg_visible_in_snapshot(g.txid, r.start))
            and (r.filter is null or trunq._passes(r.kinds, r.not_kinds, r.keys, r.not_keys, r.headers, r.not_headers, g.kind, g.key, %13$s))
        offset 0) r
      order by r.subscription_id, g.id, g.txid desc),
    elsewhere as materialized (
      select r.subscription_id, d.id, d.attempt, d.created_at, case when d.aside is null then d.due_at end due_at, d.kind, d.key, d.payload, d.headers, d.errors,
        case when d.subscription_id is null then 'scheduled' when d.parked_at is not null then 'parked'
          when d.aside is not null then 'ready' else 'retrying' end place%11$s%15$s
      from trunq.delayed d%16$s cross join lateral (
        select r.subscription_id from reader r where d.subscription_id is null or d.subscription_id = r.subscription_id offset 0) r
      where d.queue_id = %4$s
      union all
      select d.subscription_id, d.id, d.attempt, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors, 'dead'%11$s%15$s
      from trunq.dead d%16$s
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
      h.result, h.took%12$s%17$s
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
    case when v_is_keyed then ', coalesce(e.unique_key, l.unique_key) unique_key' end,
    v_own.headers, v_own.logged, v_own.elsewhere, v_own.aside, v_own.told);
  begin
    execute v_view;
  exception when invalid_table_definition then
    -- Its columns are others than before, as one of the user's was dropped or renamed.
    v_readers := trunq._drop_messages_view(p_queue);
    execute v_view;
    perform trunq._grant_messages(p_queue, v_readers);
  end;
  execute format('comment on view trunq_queue.%I is %L', p_queue.name || '_messages',
    'Each message of the queue with its state, for each shared subscription: scheduled, ready, leased, retrying, parked, done, outdated, dead, replaced or purged. It reads the tables of the queue once, whatever is asked.');
  if v_is_new then
    perform trunq._grant_messages(p_queue, array(
      select distinct a.grantee from pg_class c cross join lateral aclexplode(c.relacl) a
      where c.oid = format('trunq_log.%I', p_queue.log_table)::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner));
  end if;
end $$;
comment on function trunq._define_messages is
  'Makes the view of a queue''s messages. A new one may be read by whoever may read the log.';

create or replace function trunq._columns_of_view(
  p_queue trunq.queue, out headers text, out logged text, out elsewhere text, out aside text, out told text
)
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as $$
begin
  -- As o1, o2 ... inside, so that no name meets one of ours.
  select string_agg(format(', g.%I o%s', o.name, o.place), '' order by o.place), string_agg(format(', x.%I o%s', o.name, o.place), '' order by o.place),
    string_agg(format(', case when e.place is not null then e.o%1$s else l.o%1$s end as %2$I', o.place, o.name), '' order by o.place)
  into logged, elsewhere, told from trunq._own_columns(p_queue) o where o.name <> all (trunq._names_of_ours());
  headers := case when exists (select from trunq._own_columns(p_queue)) then format('trunq._sifted(g.headers, %s)', trunq._own_values(p_queue, 'g')) else 'g.headers' end;
  aside := case when told is not null then format(' left join lateral jsonb_populate_record(null::trunq_log.%I, d.extra) x on true', p_queue.log_table) end;
end $$;
comment on function trunq._columns_of_view is
  'What the view of messages says of the columns that the user added to the log: of its rows, of what lies elsewhere, and in the end; headers: what filters are asked of.';

create or replace function trunq._drop_messages_view(p_queue trunq.queue) returns oid[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_readers oid[] := array(
    select a.grantee from pg_class c cross join lateral aclexplode(c.relacl) a
    where c.oid = to_regclass(format('trunq_queue.%I', p_queue.name || '_messages')) and a.privilege_type = 'SELECT' and a.grantee <> c.relowner);
begin
  if to_regclass(format('trunq_queue.%I', p_queue.name || '_messages')) is not null then
    execute format('drop view trunq_queue.%I', p_queue.name || '_messages');
  end if;
  return v_readers;
end $$;
comment on function trunq._drop_messages_view is 'Drops the view of a queue''s messages. Returns: who might read all of it.';

create or replace function trunq._grant_messages(p_queue trunq.queue, p_readers oid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_reader oid;
begin
  foreach v_reader in array p_readers loop
    execute format('grant select on trunq_queue.%I to %s', p_queue.name || '_messages', case when v_reader = 0 then 'public' else v_reader::regrole::text end);
  end loop;
end $$;
comment on function trunq._grant_messages is 'Lets roles read the view of a queue''s messages.';

create or replace function trunq.count_messages(
  p_queue text, p_subscription text default 'default', p_state text default null, p_limit integer default null, p_before bigint default null,
  p_kind text default null, p_key text default null, p_error text default null, p_older_than interval default null, p_newer_than interval default null,
  p_payload jsonb default null, p_headers jsonb default null
) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select count(*) from trunq.list_messages(p_queue, p_subscription, p_state, coalesce(p_limit, trunq._limit('list_rows')), p_before, true, p_kind, p_key, p_error,
      p_older_than, p_newer_than, p_payload, p_headers));
end $$;
comment on function trunq.count_messages is
  'How many messages trunq.list_messages lists, given the same: up to p_limit, which is at most 100,000, the default.
Returns: how many.
Raises: TQ001, TQ002, TQ005, TQ011.';
