-- Publishing by the name of the queue, for people and for code that learns the name while it runs. Each call looks the queue up and
-- plans the call of its own function, trunq_queue.<queue>_publish (publish.sql), which a program calls directly: about
-- twice as fast. A plain INSERT or COPY into trunq_log.<queue> publishes as well.
--
-- In a WITH list, Postgres runs a SELECT only if something reads its result: `with p as (select trunq.publish(...)) select 1`
-- publishes nothing, without an error. Call publish in the main SELECT, or read from p there.

create or replace function trunq.publish(
  p_queue text,
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
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)', trunq._function(p_queue, 'publish'))
    into v_id using p_payload, p_kind, p_key, p_headers, p_body, p_priority, p_delay, p_due_at, p_options, p_max_age;
  return v_id;
end $$;
comment on function trunq.publish is
  'Publishes one message in the caller''s transaction: now, after p_delay, or at p_due_at. p_options: max_attempts, time_out (seconds that a handler may take), and expires_at (UTC, as 2030-01-31T10:00:00Z) or p_max_age, after which no lease hands it out; its own policy of retries: backoff, backoff_base and backoff_cap (seconds) and jitter, as in trunq.subscribe; dead_into: the queue that it is published into when it dies, as by trunq.set_dead (empty: none); columns: an object of those that you added to the log (trunq.add_column). In a WITH list, Postgres runs it only if something reads its result.
Returns: its id.
Raises: TQ001, also for the queue that dead_into names, 42501 where its publishers may not publish into that; TQ005 for both a delay and a time, one beyond the year 9999, a priority, options that cannot be read, or columns that the log has not; TQ006 over 16 MB, or 1,000 bytes of kind or key; TQ015 in a queue that is unique on content, where another message has it.
Locks: none; in a queue that is unique on content, others who publish the same, to the end of the transaction.';

create or replace function trunq.publish_many(
  p_queue text,
  p_payloads jsonb[],
  p_kinds text[] default null,
  p_keys text[] default null,
  p_headers jsonb[] default null,
  p_bodies bytea[] default null,
  p_delay interval default null,
  p_due_at timestamptz default null,
  p_options jsonb default null,
  p_max_age interval default null,
  p_priorities smallint[] default null
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids bigint[];
begin
  if p_priorities is not null then
    return trunq._publish_many_prioritized(p_queue, p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_delay, p_due_at, p_options, p_max_age, p_priorities);
  end if;
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8, $9)', trunq._function(p_queue, 'publish_many'))
    into v_ids using p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_delay, p_due_at, p_options, p_max_age;
  return v_ids;
end $$;
comment on function trunq.publish_many is
  'Publishes many messages in the caller''s transaction; an array of one element stands for all; p_options and p_max_age are for all. p_priorities: for a queue with lanes by priority. In a WITH list, Postgres runs it only if something reads its result.
Returns: ids in input order.
Raises: TQ001; TQ005 for arrays of different lengths, options that cannot be read, or priorities that the queue does not have; TQ006 over 16 MB, or 1,000 bytes of kind or key; TQ015 in a queue that is unique on content, where another message has that of one.
Locks: none.';

create or replace function trunq.draw_ids(p_queue text, p_count integer) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
begin
  if p_count is null or p_count < 0 then
    perform trunq._fail('TQ005', format('%s is not a number of messages', coalesce(p_count::text, 'null')));
  elsif p_count > trunq._limit('drawn_ids') then
    perform trunq._fail('TQ005', format('draw_ids draws up to %s ids, not %s', trunq._limit('drawn_ids'), p_count), 'draw them in parts');
  end if;
  v_queue := trunq._find_queue(p_queue);
  if not has_table_privilege(format('trunq_log.%I', v_queue.log_table), 'insert') then
    return null;
  end if;
  -- A call that waits here for a drop may find another queue of that name after it, or hear that there is none.
  execute format('lock table only trunq_log.%I in row exclusive mode', v_queue.log_table);
  v_queue := trunq._find_queue(p_queue);
  return array(select nextval(v_queue.id_sequence::regclass) from generate_series(1, p_count));
end $$;
comment on function trunq.draw_ids is
  'Draws ids for messages that the caller then puts into the log with them, by COPY: the fastest way to publish many and know their ids.
Returns: the ids; null for a role that may not write ids (trunq.grant_role).
Raises: TQ001, TQ005.
Locks: none that a publisher or reader would feel.';

create or replace function trunq._publish_delayed(
  p_queue text, p_payload jsonb, p_kind text, p_key text, p_headers jsonb, p_body bytea, p_priority smallint, p_delay interval,
  p_due_at timestamptz, p_options jsonb, p_max_age interval
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_id bigint;
  v_due_at timestamptz;
  v_columns jsonb;
  v_names text;
begin
  perform trunq._check_size(p_queue, greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)));
  perform trunq._check_label(p_queue, greatest(octet_length(p_kind), octet_length(p_key)));
  if p_priority is null or p_priority <> 0 then
    perform trunq._check_priorities(v_queue, array[p_priority]);
  end if;
  v_due_at := case when p_delay is not null or p_due_at is not null then trunq._due_at(p_delay, p_due_at) end;
  if p_options ? 'columns' and jsonb_typeof(p_options) = 'object' then
    v_columns := nullif(p_options->'columns', 'null');
    p_options := p_options - 'columns';
  end if;
  p_options := trunq._options_for(p_queue, p_options, p_max_age, v_due_at);
  if v_columns is not null then
    perform trunq._check_given_columns(v_queue, v_columns);
    select string_agg(format(', %I', k.name), '' order by k.name) into v_names from jsonb_object_keys(v_columns) k(name);
    -- Those that are not given have their defaults.
    execute format('insert into trunq_log.%1$I (priority, kind, key, payload, body, headers, options, due_at%2$s) select $1, $2, $3, $4, $5, $6, $7, $8%3$s from jsonb_populate_record(null::trunq_log.%1$I, $9) e returning id',
      v_queue.log_table, v_names, (select string_agg(format(', e.%I', k.name), '' order by k.name) from jsonb_object_keys(v_columns) k(name)))
      into v_id using p_priority, p_kind, p_key, p_payload, p_body, p_headers, p_options, v_due_at, v_columns;
    return v_id;
  end if;
  if v_due_at is null or trunq._has_gate(v_queue) or not has_table_privilege('trunq.delayed', 'insert') then
    -- The log has the gate, and its trigger puts off for one of trunq.grant_role.
    execute format('insert into trunq_log.%I (priority, kind, key, payload, body, headers, options, due_at) values ($1, $2, $3, $4, $5, $6, $7, $8) returning id', v_queue.log_table)
      into v_id using p_priority, p_kind, p_key, p_payload, p_body, p_headers, p_options, v_due_at;
    return v_id;
  end if;
  insert into trunq.delayed (queue_id, id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, options)
  values (v_queue.queue_id, nextval(v_queue.id_sequence::regclass),
    v_due_at, clock_timestamp(), 1, p_priority, p_kind, p_key, p_payload, p_body, p_headers, p_options)
  returning id into v_id;
  return v_id;
end $$;
comment on function trunq._publish_delayed is
  'Publishes a message that is put off or has options, or says why it cannot.';

create or replace function trunq._publish_many_delayed(
  p_queue text, p_payloads jsonb[], p_kinds text[], p_keys text[], p_headers jsonb[], p_bodies bytea[], p_delay interval,
  p_due_at timestamptz, p_options jsonb default null, p_priorities smallint[] default null
) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_due_at timestamptz := trunq._due_at(p_delay, p_due_at);
  v_ids bigint[];
begin
  -- The log would refuse it when it is due, and whatever is due behind it.
  perform trunq._check_label(p_queue, (
    select max(greatest(octet_length(u.kind), octet_length(u.key))) from unnest(p_kinds, p_keys) u(kind, key)));
  if trunq._has_gate(v_queue) or not has_table_privilege('trunq.delayed', 'insert') then
    -- As in _publish_delayed.
    execute format($q$
      with published as (
        insert into trunq_log.%I (priority, options, kind, key, payload, body, headers, due_at)
        select case when cardinality($7) = 1 then $7[1] else coalesce(u.priority, 0) end, $8, case when cardinality($1) = 1 then $1[1] else u.kind end, case when cardinality($2) = 1 then $2[1] else u.key end,
          case when cardinality($3) = 1 then $3[1] else u.payload end, case when cardinality($4) = 1 then $4[1] else u.body end,
          case when cardinality($5) = 1 then $5[1] else u.headers end, $6
        from unnest($1, $2, $3, $4, $5, $7) u(kind, key, payload, body, headers, priority)
        returning id)
      select array_agg(id) from published
    $q$, v_queue.log_table) into v_ids using p_kinds, p_keys, p_payloads, p_bodies, p_headers, v_due_at, p_priorities, p_options;
    return v_ids;
  end if;
  with published as (
    insert into trunq.delayed (queue_id, id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, options)
    select v_queue.queue_id, nextval(v_queue.id_sequence::regclass), v_due_at, clock_timestamp(), 1,
      case when cardinality(p_priorities) = 1 then p_priorities[1] else coalesce(u.priority, 0) end,
      case when cardinality(p_kinds) = 1 then p_kinds[1] else u.kind end,
      case when cardinality(p_keys) = 1 then p_keys[1] else u.key end,
      case when cardinality(p_payloads) = 1 then p_payloads[1] else u.payload end,
      case when cardinality(p_bodies) = 1 then p_bodies[1] else u.body end,
      case when cardinality(p_headers) = 1 then p_headers[1] else u.headers end,
      p_options
    from unnest(p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_priorities) u(payload, kind, key, headers, body, priority)
    returning id)
  select array_agg(id) into v_ids from published;
  return v_ids;
end $$;
comment on function trunq._publish_many_delayed is
  'publish_many with a delay or a time.';

create or replace function trunq._due_at(p_delay interval, p_due_at timestamptz) returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_delay is not null and p_due_at is not null then
    perform trunq._fail('TQ005', 'a message has a delay or a time, not both', 'give p_delay or p_due_at');
  end if;
  if p_delay not between '0' and '1000 years' or not isfinite(p_due_at) or p_due_at >= '10000-01-01 00:00:00+00' then
    perform trunq._fail('TQ005', format('a message cannot be due at %s', coalesce(p_due_at::text, 'now + ' || case
        -- Python's -1 second is -1 days +23:59:59.
        when p_delay < '0' and p_delay > '-1000 years' then make_interval(secs => extract(epoch from p_delay)::double precision) else p_delay end)),
      'give a time before the year 10000, or a delay of 0 to 1000 years');
  end if;
  -- Not in the past: promotion looks there only once a minute.
  return greatest(trunq.clock(), coalesce(p_due_at, trunq.clock() + p_delay));
end $$;
comment on function trunq._due_at is 'When a message with this delay, or for this time, is due: now at the earliest.';

create or replace function trunq._refuse_row(p_created_at timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_created_at between '0001-01-02 00:00:00+00' and '9999-12-31 00:00:00+00' then
    perform trunq._fail('TQ005', 'a message has no option "checkpoint"', 'trunq.set_progress sets the checkpoint of a message that runs');
  end if;
  perform trunq._fail('TQ005', format('a message cannot have been created at %s', p_created_at), 'leave created_at out: it is the time of the statement');
end $$;
comment on function trunq._refuse_row(timestamptz) is 'Says (TQ005) why a row cannot be a message: when it was created, or an option that a handler alone may give.';

create or replace function trunq._check_arrays(
  p_queue text, p_count integer, p_payloads jsonb[], p_kinds text[], p_keys text[], p_headers jsonb[], p_bodies bytea[]
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if cardinality(p_payloads) not in (1, p_count) or cardinality(p_bodies) not in (1, p_count)
      or cardinality(p_kinds) not in (1, p_count) or cardinality(p_keys) not in (1, p_count)
      or cardinality(p_headers) not in (1, p_count)
      or array_lower(p_payloads, 1) <> 1 or array_lower(p_bodies, 1) <> 1 or array_lower(p_kinds, 1) <> 1
      or array_lower(p_keys, 1) <> 1 or array_lower(p_headers, 1) <> 1 then
    perform trunq._fail('TQ005',
      format('the arrays given to publish_many for queue "%s" differ in length (%s messages), or do not begin at 1', p_queue, p_count),
      'give each array one element, for all, or as many as there are messages');
  end if;
  perform trunq._check_size(p_queue, (
    select max(greatest(pg_column_size(u.payload), pg_column_size(u.body), pg_column_size(u.headers)))
    from unnest(p_payloads, p_bodies, p_headers) u(payload, body, headers)));
  perform trunq._check_label(p_queue, (
    select max(greatest(octet_length(u.kind), octet_length(u.key))) from unnest(p_kinds, p_keys) u(kind, key)));
end $$;
comment on function trunq._check_arrays is
  'Refuses arrays of different lengths (TQ005), and a message that is too large (TQ006).';

create or replace function trunq._check_label(p_queue text, p_size integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_size > trunq._limit('label_bytes') then
    perform trunq._fail('TQ006',
      format('the kind or key of a message for queue "%s" is too long: %s bytes, at most %s', p_queue, p_size, trunq._limit('label_bytes')),
      'put what is long into the payload');
  end if;
end $$;
comment on function trunq._check_label is 'Refuses a kind or key that is too long (TQ006).';

create or replace function trunq._check_size(p_queue text, p_size integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_size > trunq._limit('message_bytes') then
    perform trunq._fail('TQ006',
      format('a message for queue "%s" is too large: %s bytes, at most %s', p_queue, p_size, trunq._limit('message_bytes')),
      'keep large content elsewhere and publish where it is');
  end if;
end $$;
comment on function trunq._check_size is 'Refuses a message that is too large (TQ006).';

create or replace function trunq._options(p_options jsonb, p_max_age interval, p_due_at timestamptz default null) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_way_out constant text := 'options are like {"max_attempts": 3, "time_out": 30, "expires_at": "2030-01-31T10:00:00Z", "awaited": true}';
  c_policy constant text := 'a policy is like {"backoff": "linear", "backoff_base": 10, "backoff_cap": 3600, "jitter": 0.1, "dead_into": "failures"}';
  v_unknown text;
begin
  if p_max_age is not null then
    perform trunq._check_interval('max_age', p_max_age);
    if p_options->>'expires_at' is not null then
      perform trunq._fail('TQ005', 'a message has max_age or expires_at, not both', 'give one of them');
    elsif trunq.clock() + p_max_age <= p_due_at then
      perform trunq._fail('TQ005', format('a message with max_age %s expires before it is due, at %s', p_max_age, p_due_at),
        'the age counts from now: give a longer max_age than the delay');
    end if;
    p_options := coalesce(p_options, '{}') || jsonb_build_object('expires_at',
      to_char((trunq.clock() + p_max_age) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
  end if;
  if p_options is null then
    return null;
  elsif jsonb_typeof(p_options) <> 'object' then
    perform trunq._fail('TQ005', format('the options of a message are a JSON object, not %s', jsonb_typeof(p_options)), c_way_out);
  end if;
  select o.key into v_unknown from jsonb_object_keys(p_options) o(key)
  where o.key not in ('max_attempts', 'time_out', 'expires_at', 'awaited', 'backoff', 'backoff_base', 'backoff_cap', 'jitter', 'dead_into') limit 1;
  if found then
    perform trunq._fail('TQ005', format('a message has no option "%s"%s', left(v_unknown, 100), case when v_unknown = 'columns' then ' here' end),
      case when v_unknown = 'columns' then 'trunq.publish takes columns of your own; for many, insert or copy into the log, where they are columns'
        else c_way_out || '; ' || c_policy end);
  end if;
  begin
    perform p_options::trunq.options;
  exception when check_violation or datetime_field_overflow or invalid_datetime_format then
    perform trunq._fail('TQ005', format('the options of a message cannot be read: %s', left(p_options::text, 200)),
      case when p_options ?| '{backoff,backoff_base,backoff_cap,jitter,dead_into}'
        then format('%s: backoff is %s, backoff_base and backoff_cap are seconds, up to 999999999, jitter is from 0 to 1, dead_into a queue or empty; and %s',
          c_policy, trunq._list_choices(trunq._words('backoff')), c_way_out)
        else c_way_out || ': max_attempts from 1 to 9999, time_out in seconds, up to 9999999, expires_at in UTC, awaited true or seconds' end);
  end;
  return nullif(p_options, '{}');
end $$;
comment on function trunq._options is
  'The options of a message, its age among them, as the log keeps them; TQ005 when they cannot be read, or it would expire before it is due.';

create or replace function trunq._options_for(p_queue text, p_options jsonb, p_max_age interval, p_due_at timestamptz default null) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  p_options := trunq._options(p_options, p_max_age, p_due_at);
  if p_options->>'dead_into' <> '' then
    perform trunq._check_dead_into(p_queue, p_options->>'dead_into');
  end if;
  return p_options;
end $$;
comment on function trunq._options_for is
  'The options of a message for a queue (trunq._options), which may name the queue that it goes to when it dies (trunq._check_dead_into).';
