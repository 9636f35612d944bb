-- Publishing is an INSERT in the caller's own transaction: commit publishes, rollback never happened. These functions return ids,
-- put off, and refuse clearly; plain INSERT and COPY into trunq_log.<queue> do the same work. Publishers take no lock that
-- another publisher, a reader or rotation would wait for.

create or replace function trunq_queue._specimen_publish(
  p_payload jsonb default null,
  p_kind text default null,
  p_key text default null,
  p_headers jsonb default null,
  p_body bytea default null,
  p_priority smallint default 0,
  p_delay interval default null,
  p_due_at timestamptz default null,
  p_options jsonb default null,
  p_max_age interval default null
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_id bigint;
begin
  -- One condition for all that is unusual: Postgres prepares each condition anew in every transaction.
  if p_priority is distinct from 0 or p_delay is not null or p_due_at is not null
      or p_options is not null or p_max_age is not null
      or greatest(octet_length(p_kind), octet_length(p_key)) > 1000 /*limit label_bytes*/
      or greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)) > 16777216 /*limit message_bytes*/ then
    return trunq._publish_delayed('_specimen', p_payload, p_kind, p_key, p_headers, p_body, p_priority, p_delay, p_due_at, p_options, p_max_age);
  end if;
  insert into trunq_log._specimen (kind, key, payload, headers, body) values (p_kind, p_key, p_payload, p_headers, p_body)
  returning id into v_id;
  return v_id;
end $$;
comment on function trunq_queue._specimen_publish is
  'Publishes one message in the caller''s transaction: now, after p_delay, or at p_due_at. p_options: max_attempts, time_out (seconds that a handler may take), and expires_at (UTC, as 2030-01-31T10:00:00Z) or p_max_age, after which no lease hands it out.
Returns: its id.
Raises: TQ005 for both a delay and a time, one beyond the year 9999, a priority, or options that cannot be read; TQ006 over 16 MB, or 1,000 bytes of kind or key.
Locks: none.';

create or replace function trunq_queue._specimen_publish_many(
  p_payloads jsonb[],
  p_kinds text[] default null,
  p_keys text[] default null,
  p_headers jsonb[] default null,
  p_bodies bytea[] default null,
  p_delay interval default null,
  p_due_at timestamptz default null,
  p_options jsonb default null,
  p_max_age interval default null
) returns bigint[]
-- One plan for arrays of every length.
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = generic as $$
declare
  v_count integer := greatest(coalesce(cardinality(p_payloads), 0), coalesce(cardinality(p_bodies), 0));
  v_ids bigint[];
  v_kind text; v_key text; v_payload jsonb; v_body bytea; v_headers jsonb;
  v_txid xid8;
  v_segment smallint := 0 /*segment*/;
begin
  if v_count = 0 then
    return '{}';
  end if;
  if cardinality(p_payloads) not in (1, v_count) or cardinality(p_bodies) not in (1, v_count)
      or cardinality(p_kinds) not in (1, v_count) or cardinality(p_keys) not in (1, v_count)
      or cardinality(p_headers) not in (1, v_count)
      or array_lower(p_payloads, 1) <> 1 or array_lower(p_bodies, 1) <> 1 or array_lower(p_kinds, 1) <> 1
      or array_lower(p_keys, 1) <> 1 or array_lower(p_headers, 1) <> 1
      -- No element is larger than its array: most calls need no look at each.
      or greatest(pg_column_size(p_kinds), pg_column_size(p_keys)) > 1000 /*limit label_bytes*/
      or greatest(pg_column_size(p_payloads), pg_column_size(p_bodies), pg_column_size(p_headers)) > 16777216 /*limit message_bytes*/ then
    perform trunq._check_arrays('_specimen', v_count, p_payloads, p_kinds, p_keys, p_headers, p_bodies);
  end if;
  if p_options is not null or p_max_age is not null then
    p_options := trunq._options_for('_specimen', p_options, p_max_age, case when p_delay is not null or p_due_at is not null then trunq._due_at(p_delay, p_due_at) end);
  end if;
  if p_delay is not null or p_due_at is not null then
    return trunq._publish_many_delayed('_specimen', p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_delay, p_due_at, p_options);
  end if;
  -- An array of one stands for all: take it out, so that every row falls back to it.
  if v_count > 1 then
    if cardinality(p_kinds) = 1 then v_kind := p_kinds[1]; p_kinds := null; end if;
    if cardinality(p_keys) = 1 then v_key := p_keys[1]; p_keys := null; end if;
    if cardinality(p_payloads) = 1 then v_payload := p_payloads[1]; p_payloads := null; end if;
    if cardinality(p_bodies) = 1 then v_body := p_bodies[1]; p_bodies := null; end if;
    if cardinality(p_headers) = 1 then v_headers := p_headers[1]; p_headers := null; end if;
  end if;
  if cardinality(p_payloads) = v_count and p_keys is null and p_headers is null and p_bodies is null and p_kinds is null
      and has_table_privilege('trunq_log._specimen', 'insert') then
    -- The common case: what all rows share is computed once, and ids are drawn first, which takes 0.87 of the time. A role
    -- that may write the payload columns alone takes the other way.
    lock table only trunq_log._specimen in row exclusive mode;
    v_txid := pg_current_xact_id();
    v_ids := array(select nextval('trunq_data._specimen_message_id') from generate_series(1, v_count));
    insert into trunq_log._specimen (id, txid, created_at, segment, kind, key, payload, headers, body, options)
    select unnest(v_ids), v_txid, statement_timestamp(), v_segment, v_kind, v_key, unnest(p_payloads), v_headers, v_body, p_options;
  else
    with published as (
      insert into trunq_log._specimen (kind, key, payload, headers, body, options)
      select coalesce(u.kind, v_kind), coalesce(u.key, v_key), coalesce(u.payload, v_payload),
        coalesce(u.headers, v_headers), coalesce(u.body, v_body), p_options
      from unnest(p_payloads, p_kinds, p_keys, p_headers, p_bodies) u(payload, kind, key, headers, body)
      returning id)
    select array_agg(id) into v_ids from published;
  end if;
  return v_ids;
end $$;
comment on function trunq_queue._specimen_publish_many is
  'Publishes many messages in the caller''s transaction; an array of one element stands for all; p_options and p_max_age are for all.
Returns: ids in input order.
Raises: TQ005 for arrays of different lengths, or options that cannot be read; TQ006 over 16 MB, or 1,000 bytes of kind or key.
Locks: none.';
