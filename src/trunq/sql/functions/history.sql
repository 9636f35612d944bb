-- Lease and receipts together are the history of a message: started, held until, attempts, finished, by whom, why not.
--
-- From an id to its rows in the log by BRIN; from a row to its lease by its txid, which grows with the position, so that a BRIN
-- over each lease's smallest and largest txid finds it, retries too. Nothing scans the log.

create or replace function trunq.show_message(p_queue text, p_id bigint)
returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
begin
  return query
    select m.* from trunq.subscription s
    cross join lateral trunq._message(v_queue_id, p_queue, s.subscription_id, s.name, array[p_id]) m
    where s.queue_id = v_queue_id and s.mode = 'shared' order by s.name;
  if not found then
    perform trunq._fail('TQ013', format('queue "%s" has no message %s', p_queue, p_id),
      'it was never published, or its time (the retention) is over');
  end if;
end $$;
comment on function trunq.show_message(text, bigint) is
  'One message as each shared subscription sees it. state: scheduled, ready, leased, retrying, done or dead; attempts: every time it was leased. Raises: TQ001, TQ013.';

create or replace function trunq.list_messages(
  p_queue text, p_subscription text default 'default', p_state text default null, p_limit integer default 100, p_before bigint default null
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
begin
  if p_state not in ('scheduled', 'ready', 'leased', 'retrying', 'done', 'dead') then
    perform trunq._fail('TQ005', format('there is no state "%s"', p_state), 'scheduled, ready, leased, retrying, done or dead');
  end if;
  return query
    select m.* from trunq._message(v_sub.queue_id, p_queue, v_sub.subscription_id, v_sub.name,
      trunq._candidates(v_sub, p_queue, p_state, p_limit, p_before)) m
    where p_state is null or m.state = p_state order by m.id desc limit p_limit;
end $$;
comment on function trunq.list_messages(text, text, text, integer, bigint) is
  'Messages of a shared subscription, newest first, in one state or any; p_before: the smallest id of the page before. Raises: TQ001, TQ002, TQ005, TQ011.';

create or replace function trunq._candidates(
  p_sub trunq.subscription, p_queue text, p_state text, p_limit integer, p_before bigint
) returns bigint[]
language plpgsql set jit = off as $$
declare
  v_ids bigint[];
  v_mark timestamptz;
  v_before bigint := coalesce(p_before, 9223372036854775807);
begin
  case coalesce(p_state, '')
    when 'scheduled', 'retrying' then
      select array_agg(d.id) into v_ids from (
        select d.id from trunq.delayed d
        where d.queue_id = p_sub.queue_id and d.subscription_id is not distinct from
          case p_state when 'retrying' then p_sub.subscription_id end and d.id < v_before
        order by d.id desc limit p_limit) d;
    when 'dead' then
      select array_agg(d.id) into v_ids from (
        select d.id from trunq.dead d
        where d.queue_id = p_sub.queue_id and d.subscription_id = p_sub.subscription_id and d.id < v_before
        order by d.id desc limit p_limit) d;
    when 'ready' then
      select array_agg(u.id) into v_ids from (
        select u.id from trunq._unread(p_sub.queue_id, p_sub.subscription_id, 100000) u
        where u.id < v_before order by u.id desc limit p_limit) u;
    when 'leased' then
      select m.at into v_mark from trunq.mark m
      where m.queue_id = p_sub.queue_id and m.subscription_id = p_sub.subscription_id and m.duty = 'reap';
      execute format($q$
        select array_agg(o.id) from (
          select u.id from trunq_data.%I l
          cross join lateral unnest(trunq._unanswered($1, $2, l.lease_id, l.ids)) u(id)
          where l.subscription_id = $2 and l.lease_id = any ($3) and u.id < $4
          order by u.id desc limit $5) o
      $q$, 'lease_' || p_sub.queue_id) into v_ids
      using p_sub.queue_id, p_sub.subscription_id,
        trunq._open_leases(p_sub.queue_id, p_sub.subscription_id, coalesce(v_mark, 'epoch'), 'infinity', null, 10000), v_before, p_limit;
    when 'done' then
      execute format($q$
        select array_agg(o.id) from (
          select u.id from (
            select l.lease_id from trunq_data.%1$I l
            where l.subscription_id = $1 and l.size > 0 and ($2 = 9223372036854775807 or l.min_txid <= coalesce((
              select min(g.txid::text::bigint) from trunq_log.%3$I g where g.id = $2), 9223372036854775807))
            order by l.lease_id desc limit $3) l
          join trunq_data.%2$I r on r.lease_id = l.lease_id and r.subscription_id = $1 and r.outcome = 'a'
          cross join lateral unnest(r.ids) u(id)
          where u.id < $2 order by u.id desc limit $3) o
      $q$, 'lease_' || p_sub.queue_id, 'receipt_' || p_sub.queue_id, p_queue) into v_ids using p_sub.subscription_id, v_before, p_limit;
    else
      execute format($q$
        select array_agg(o.id) from (
          (select d.id from trunq.delayed d
           where d.queue_id = $1 and (d.subscription_id is null or d.subscription_id = $2) and d.id < $3 order by d.id desc limit $4)
          union
          select g.id from (
            select g.id from trunq_log.%I g
            where (g.subscription_id is null or g.subscription_id = $2) and g.id < $3
            order by g.txid desc, g.id desc limit 2 * $4) g
          order by 1 desc limit $4) o
      $q$, p_queue) into v_ids using p_sub.queue_id, p_sub.subscription_id, v_before, p_limit;
  end case;
  return coalesce(v_ids, '{}');
end $$;
comment on function trunq._candidates(trunq.subscription, text, text, integer, bigint) is
  'Ids of messages likely in a state, newest first; _message tells what state they are in.';

create or replace function trunq._message(
  p_queue_id integer, p_queue text, p_subscription_id integer, p_subscription text, p_ids bigint[]
) returns table (
  subscription text, state text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempt integer, attempts jsonb,
  published_at timestamptz, due_at timestamptz, worker text, leased_at timestamptz, expires_at timestamptz,
  finished_at timestamptz, error text, result jsonb
)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  v record := trunq._position(p_queue_id, p_subscription_id);
begin
  return query execute format($q$
    with wanted as (select distinct u.id from unnest($3) u(id)),
    -- Every row of these messages that this subscription gets: the first, and its retries.
    logged as materialized (
      select g.id, g.txid, g.attempt, g.created_at, g.kind, g.key, g.payload, g.headers, g.errors
      from wanted w cross join lateral (select g.* from trunq_log.%1$I g where g.id = w.id offset 0) g
      where g.subscription_id is null or g.subscription_id = $1
    ),
    held as materialized (
      select g.id, g.txid, g.attempt, l.lease_id, l.worker, l.leased_at, l.expires_at, l.reaped_at,
        r.outcome, r.finished_at, r.errors[r.at] error, r.results[r.at] result, r.took[r.at] took
      from logged g
      cross join lateral (
        select l.* from trunq_data.%2$I l
        where l.min_txid <= g.txid::text::bigint and l.max_txid >= g.txid::text::bigint and l.subscription_id = $1 and g.id = any (l.ids)
        offset 0) l
      left join lateral (
        select r.*, array_position(r.ids, g.id) at from trunq_data.%3$I r
        where r.lease_id = l.lease_id and r.subscription_id = $1 and g.id = any (r.ids)
        offset 0) r on true
    ),
    story as (
      select h.id, jsonb_agg(jsonb_build_object(
          'attempt', h.attempt, 'worker', h.worker, 'leased_at', h.leased_at, 'expires_at', h.expires_at, 'finished_at', h.finished_at,
          'outcome', case h.outcome when 'a' then 'ack' when 'r' then 'retry' when 'j' then 'reject' when 'l' then 'release' when 'x' then 'expired' end,
          'error', h.error, 'took', h.took) order by h.leased_at, h.lease_id) attempts
      from held h group by h.id
    ),
    newest as (select distinct on (h.id) h.* from held h order by h.id, h.leased_at desc, h.lease_id desc),
    -- The newest row in the log, or what lies in delayed or dead.
    place as (
      select distinct on (p.id) p.* from (
        select g.id, 3 rank, g.txid, g.attempt::integer, g.created_at, null::timestamptz due_at, g.kind, g.key, g.payload, g.headers, g.errors, null place
        from logged g
        union all
        select d.id, 1, null::xid8, d.attempt, d.created_at, d.due_at, d.kind, d.key, d.payload, d.headers, d.errors,
          case when d.subscription_id is null then 'scheduled' else 'retrying' end
        from trunq.delayed d where d.queue_id = $2 and d.id = any ($3) and (d.subscription_id is null or d.subscription_id = $1)
        union all
        select d.id, 2, null, d.attempt, d.created_at, null, d.kind, d.key, d.payload, d.headers, d.errors, 'dead'
        from trunq.dead d where d.queue_id = $2 and d.subscription_id = $1 and d.id = any ($3)) p
      order by p.id, p.rank, p.txid desc
    )
    select $4, coalesce(p.place, case
        when n.txid = p.txid and n.outcome = 'a' then 'done'
        when n.txid = p.txid and n.outcome is null and n.lease_id is not null then 'leased'
        when n.txid is distinct from p.txid and not (
          pg_visible_in_snapshot(p.txid, $5) or pg_visible_in_snapshot(p.txid, $6) and (p.txid, p.id) <= ($7, $8)) then 'ready'
        -- Read, and its lease gone with its segment.
        else 'done' end),
      p.id, p.kind, p.key, p.payload, p.headers, p.attempt, coalesce(s.attempts, '[]'), p.created_at, p.due_at,
      n.worker, n.leased_at, n.expires_at, case when n.txid = p.txid or p.place is not null then n.finished_at end,
      coalesce(n.error, p.errors -> -1 ->> 'error'), n.result
    from place p left join newest n on n.id = p.id left join story s on s.id = p.id
  $q$, p_queue, 'lease_' || p_queue_id, 'receipt_' || p_queue_id)
  using p_subscription_id, p_queue_id, p_ids, p_subscription, v.lo, v.hi, v.last_txid, v.last_id;
end $$;
comment on function trunq._message(integer, text, integer, text, bigint[]) is
  'The state and story of messages as one shared subscription sees them; no row for an id that is nowhere.';
