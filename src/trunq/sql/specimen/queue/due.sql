-- A lease of what fell due, before what waits; functions/work/due.sql has the essay. c is what a lease knows (trunq.leasing).

create or replace function trunq_queue._specimen_lease_due(c trunq.leasing, p_worker text, p_max_bytes bigint)
returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  c_rounds constant integer := 10;    -- of entries none of which is to be had: then what waits has its turn
  v_count integer := c.max_messages;
  v_last bigint; v_found record; v_size integer; v_lease_id bigint; v_token bigint; v_ids bigint[];
begin
  select coalesce(max(a.due), 0) into v_last
  from trunq.ahead a where a.subscription_id = c.subscription_id and a.due is not null;
  for v_round in 1 .. c_rounds loop
    with entry as materialized (
      select d.number, d.id, d.txid from trunq.due d
      where d.subscription_id = c.subscription_id and d.number > v_last
      order by d.subscription_id, d.number limit v_count),
    judged as materialized (
      select e.number, e.id, e.txid, m.size, m.expiries
      from entry e left join lateral (
        select trunq._message_bytes(g.kind, g.key, g.payload, g.body, g.headers) size, g.expiries
        from (
          select g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb, g.subscription_id,
            g.attempt, g.expiries, g.created_at, trunq_queue._specimen_told_options(g) options,
            trunq_queue._specimen_key_hold(g) hold
          from trunq_log._specimen g
          where trunq._is_row(g.txid, g.id, g.subscription_id, e.txid, e.id, c.subscription_id) offset 0) g
        where not trunq._is_read_at(e.txid, e.id, c.lo, c.hi, c.last_txid, c.last_id)
          and not trunq._is_ahead(c.subscription_id, e.txid, e.id)
          and (g.subscription_id is not null or c.reads_all or trunq._passes(
            c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers, g.kind, g.key,
            trunq_queue._specimen_sifted(g.headers, g.options)))
          and trunq._fate_of(
            g.options, g.created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id, e.id) is null
          and not (trunq_queue._specimen_replaces() and exists (
            select from trunq_queue._specimen_replaced_by(g.hold, g.attempt)))) m on true)
    select max(j.number) last, count(*) n, array_agg(j.number) filter (where j.size is null) gone,
      array_agg(j.number order by j.number) filter (where j.size is not null) numbers,
      array_agg(j.id order by j.number) filter (where j.size is not null) ids,
      array_agg(j.txid order by j.number) filter (where j.size is not null) txids,
      array_agg(j.size order by j.number) filter (where j.size is not null) sizes,
      array_agg(j.expiries order by j.number) filter (where j.size is not null) expiries
    into v_found from judged j;
    exit when v_found.n = 0;
    if v_found.gone is not null then
      delete from trunq.due d where d.subscription_id = c.subscription_id and d.number = any (v_found.gone);
    end if;
    if v_found.ids is not null then
      v_size := least(c.max_messages, trunq._cut(cardinality(v_found.ids),
        least(p_max_bytes, 16777216 /*limit lease_bytes*/), c.max_messages, v_found.expiries, v_found.sizes, null));
      c.due := v_found.numbers[v_size];
      select a.lease_id, a.token, a.ids into v_lease_id, v_token, v_ids
      from trunq_queue._specimen_lease_ahead(c, p_worker, v_found.ids[1:v_size], v_found.txids[1:v_size]) a;
      exit when v_lease_id is not null;
    end if;
    v_last := v_found.last; v_count := greatest(c.max_messages, 100);
  end loop;
  if v_lease_id is null then
    return;
  end if;
  return query
    select v_lease_id, v_token, g.id, g.attempt,
      coalesce((g.options->>'max_attempts')::integer, c.max_attempts), g.kind, g.key, g.payload, g.body, g.headers,
      g.priority, g.created_at, c.expires_at, g.options
    from unnest(v_found.ids, v_found.txids) with ordinality u(id, txid, at) cross join lateral (
      select g.id, g.attempt, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea, g.headers::jsonb,
        g.priority::smallint, g.created_at, trunq_queue._specimen_told_options(g) options
      from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, c.subscription_id) offset 0) g
    where u.id = any (v_ids) order by u.at;
end $$;
comment on function trunq_queue._specimen_lease_due is
  'The step of a lease under the lock that hands out what fell due, oldest first, before the position goes on. What is on the list and not to be had, it takes off.
Returns: as lease does; none when nothing fell due that is to be had.';
