-- Publishing is an INSERT in the caller's own transaction: commit publishes, rollback never happened. These functions add
-- ids in input order, delays, and clear refusals; plain INSERT and COPY into trunq_log.<queue> do the same work.
-- Publishers take no lock that another publisher, a reader or rotation would wait for.

create or replace function trunq._dispatch_publish() returns void
language plpgsql as $$
begin
  execute replace($q$
    create or replace function trunq.publish(
      p_queue text,
      p_payload jsonb default null,
      p_kind text default null,
      p_key text default null,
      p_headers jsonb default null,
      p_body bytea default null,
      p_priority smallint default 0,
      p_delay interval default null,
      p_due_at timestamptz default null
    ) returns bigint
    language plpgsql as $f$
    declare
      v_id bigint;
    begin
      -- One condition for all that is unusual.
      if p_priority is distinct from 0 or p_delay is not null or p_due_at is not null
          or greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)) > 16777216 then
        return trunq._publish_delayed(p_queue, p_payload, p_kind, p_key, p_headers, p_body, p_priority, p_delay, p_due_at);
      end if;
      {branches}
      perform trunq._queue_id(p_queue);
      execute format('insert into trunq_log.%I (kind, key, payload, headers, body) values ($1, $2, $3, $4, $5) returning id', p_queue)
        into v_id using p_kind, p_key, p_payload, p_headers, p_body;
      return v_id;
    end $f$
  $q$, '{branches}', trunq._branches('insert into trunq_log.%1$I (kind, key, payload, headers, body) '
    'values (p_kind, p_key, p_payload, p_headers, p_body) returning id into v_id; return v_id;'));
  comment on function trunq.publish(text, jsonb, text, text, jsonb, bytea, smallint, interval, timestamptz) is
    'Publishes one message in the caller''s transaction, now, after p_delay or at p_due_at. Returns: its id. Raises: TQ001; TQ005 for both a delay and a time, or a priority; TQ006 over 16 MB. Locks: none.';
end $$;
comment on function trunq._dispatch_publish() is 'Generates trunq.publish.';

create or replace function trunq._publish_delayed(
  p_queue text, p_payload jsonb, p_kind text, p_key text, p_headers jsonb, p_body bytea, p_priority smallint, p_delay interval,
  p_due_at timestamptz
) returns bigint
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
  v_size integer := greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers));
  v_id bigint;
begin
  if v_size > 16777216 then
    perform trunq._fail_too_large(p_queue, v_size);
  end if;
  if p_priority is distinct from 0 then
    perform trunq._fail('TQ005', format('queue "%s" is a plain queue: it has no priorities', p_queue),
      'publish with priority 0');
  end if;
  insert into trunq.delayed (queue_id, id, due_at, created_at, attempt, priority, kind, key, payload, body, headers)
  values (v_queue_id, nextval(format('trunq_data.%I', 'message_id_' || v_queue_id)::regclass),
    trunq._due_at(p_delay, p_due_at), clock_timestamp(), 1, p_priority, p_kind, p_key, p_payload, p_body, p_headers)
  returning id into v_id;
  return v_id;
end $$;
comment on function trunq._publish_delayed(text, jsonb, text, text, jsonb, bytea, smallint, interval, timestamptz) is
  'Publishes a message that is not for the log at once, or says why it cannot be.';

create or replace function trunq.publish_many(
  p_queue text,
  p_payloads jsonb[],
  p_kinds text[] default null,
  p_keys text[] default null,
  p_headers jsonb[] default null,
  p_bodies bytea[] default null,
  p_delay interval default null,
  p_due_at timestamptz default null
) returns bigint[]
language plpgsql as $$
declare
  v_queue_id integer := trunq._queue_id(p_queue);
  v_count integer := greatest(coalesce(cardinality(p_payloads), 0), coalesce(cardinality(p_bodies), 0));
  v_ids bigint[];
begin
  if v_count = 0 then
    return '{}';
  end if;
  if cardinality(p_payloads) not in (1, v_count) or cardinality(p_bodies) not in (1, v_count)
      or cardinality(p_kinds) not in (1, v_count) or cardinality(p_keys) not in (1, v_count)
      or cardinality(p_headers) not in (1, v_count) then
    perform trunq._fail('TQ005',
      format('the arrays given to publish_many for queue "%s" differ in length (%s messages)', p_queue, v_count),
      'give each array one element, for all, or as many as there are messages');
  end if;
  -- No element is larger than its array: most calls need no look at each.
  if greatest(pg_column_size(p_payloads), pg_column_size(p_bodies), pg_column_size(p_headers)) > 16777216 then
    perform trunq._fail_too_large(p_queue, s.size)
    from (select max(greatest(pg_column_size(u.payload), pg_column_size(u.body), pg_column_size(u.headers))) size
          from unnest(p_payloads, p_bodies, p_headers) u(payload, body, headers)) s
    where s.size > 16777216;
  end if;
  if p_delay is null and p_due_at is null then
    execute format('select trunq_data.%I($1, $2, $3, $4, $5, $6)', 'publish_many_' || v_queue_id)
      into v_ids using v_count, p_payloads, p_kinds, p_keys, p_headers, p_bodies;
    return v_ids;
  end if;
  with published as (
    insert into trunq.delayed (queue_id, id, due_at, created_at, attempt, kind, key, payload, body, headers)
    select v_queue_id, nextval(format('trunq_data.%I', 'message_id_' || v_queue_id)::regclass),
      trunq._due_at(p_delay, p_due_at), clock_timestamp(), 1,
      case when cardinality(p_kinds) = 1 then p_kinds[1] else u.kind end,
      case when cardinality(p_keys) = 1 then p_keys[1] else u.key end,
      case when cardinality(p_payloads) = 1 then p_payloads[1] else u.payload end,
      case when cardinality(p_bodies) = 1 then p_bodies[1] else u.body end,
      case when cardinality(p_headers) = 1 then p_headers[1] else u.headers end
    from unnest(p_payloads, p_kinds, p_keys, p_headers, p_bodies) u(payload, kind, key, headers, body)
    returning id)
  select array_agg(id) into v_ids from published;
  return v_ids;
end $$;
comment on function trunq.publish_many(text, jsonb[], text[], text[], jsonb[], bytea[], interval, timestamptz) is
  'Publishes many messages in the caller''s transaction; an array of one element stands for all. Returns: ids in input order. Raises: TQ001; TQ005 for arrays of different lengths; TQ006 over 16 MB. Locks: none.';

create or replace function trunq.draw_ids(p_queue text, p_count integer) returns bigint[]
language plpgsql as $$
declare
  v_sequence regclass;
begin
  if p_count is null or p_count < 0 then
    perform trunq._fail('TQ005', format('%s is no number of messages', coalesce(p_count::text, 'null')));
  end if;
  perform trunq._queue_id(p_queue);
  if not has_table_privilege(format('trunq_log.%I', p_queue), 'insert') then
    return null;
  end if;
  -- Who waits here for a drop may find another queue of that name after it, or hear that there is none.
  execute format('lock table only trunq_log.%I in row exclusive mode', p_queue);
  v_sequence := format('trunq_data.%I', 'message_id_' || trunq._queue_id(p_queue));
  return array(select nextval(v_sequence) from generate_series(1, p_count));
end $$;
comment on function trunq.draw_ids(text, integer) is
  'Draws ids for messages to be put into the log with them, by COPY: the quickest way to publish many and know their ids. Returns: null for a role that may not write ids (trunq.grant_publisher). Raises: TQ001, TQ005. Locks: none.';

create or replace function trunq._due_at(p_delay interval, p_due_at timestamptz) returns timestamptz
language plpgsql volatile as $$
begin
  if p_delay is not null and p_due_at is not null then
    perform trunq._fail('TQ005', 'a message has a delay or a time, not both', 'give p_delay or p_due_at');
  end if;
  -- Not in the past: promotion looks there only once a minute.
  return greatest(trunq.clock(), coalesce(p_due_at, trunq.clock() + p_delay));
end $$;

create or replace function trunq._fail_too_large(p_queue text, p_size integer) returns void
language plpgsql as $$
begin
  perform trunq._fail('TQ006', format('a message for queue "%s" is too large: %s bytes, at most 16777216', p_queue, p_size),
    'keep large content elsewhere and publish where it is');
end $$;

create or replace function trunq._define_publish(p_queue_id integer, p_queue text) returns void
language plpgsql as $$
begin
  execute format($q$
    create or replace function trunq_data.publish_many_%2$s(
      p_count integer, p_payloads jsonb[], p_kinds text[], p_keys text[], p_headers jsonb[], p_bodies bytea[])
    returns bigint[] language plpgsql volatile set plan_cache_mode = force_generic_plan as $f$
    declare
      v_ids bigint[];
      v_kind text; v_key text; v_payload jsonb; v_body bytea; v_headers jsonb;
      v_txid xid8 := pg_current_xact_id(); v_segment smallint := %3$s;
    begin
      -- An array of one stands for all: take it out, so that every row falls back to it.
      if p_count > 1 then
        if cardinality(p_kinds) = 1 then v_kind := p_kinds[1]; p_kinds := null; end if;
        if cardinality(p_keys) = 1 then v_key := p_keys[1]; p_keys := null; end if;
        if cardinality(p_payloads) = 1 then v_payload := p_payloads[1]; p_payloads := null; end if;
        if cardinality(p_bodies) = 1 then v_body := p_bodies[1]; p_bodies := null; end if;
        if cardinality(p_headers) = 1 then v_headers := p_headers[1]; p_headers := null; end if;
      end if;
      if cardinality(p_payloads) = p_count and p_keys is null and p_headers is null and p_bodies is null and p_kinds is null
          and has_table_privilege(%4$L, 'insert') then
        -- The common case. What is the same for all is worked out once, and ids are drawn before: 0.87 of the time. Not for a
        -- role that may write the payload columns alone.
        lock table only trunq_log.%1$I in row exclusive mode;
        v_ids := array(select nextval('trunq_data.message_id_%2$s') from generate_series(1, p_count));
        insert into trunq_log.%1$I (id, txid, created_at, segment, kind, key, payload, headers, body)
        select unnest(v_ids), v_txid, statement_timestamp(), v_segment, v_kind, v_key, unnest(p_payloads), v_headers, v_body;
      else
        with published as (
          insert into trunq_log.%1$I (kind, key, payload, headers, body)
          select coalesce(u.kind, v_kind), coalesce(u.key, v_key), coalesce(u.payload, v_payload),
            coalesce(u.headers, v_headers), coalesce(u.body, v_body)
          from unnest(p_payloads, p_kinds, p_keys, p_headers, p_bodies) u(payload, kind, key, headers, body)
          returning id)
        select array_agg(id) into v_ids from published;
      end if;
      return v_ids;
    end $f$
  $q$, p_queue, p_queue_id, (select trunq._segment(q.span, q.segments) from trunq.queue q where q.queue_id = p_queue_id),
    format('trunq_log.%I', p_queue));
end $$;
