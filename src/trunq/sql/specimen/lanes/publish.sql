-- Publishing into a queue with lanes: as into a plain one (publish.sql), with a priority where the queue has them.

create or replace function trunq_queue._lanespecimen_publish(
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
  if p_priority is null or p_priority <> 0 and not true /*priorities*/ or p_delay is not null or p_due_at is not null
      or p_options is not null or p_max_age is not null
      or greatest(octet_length(p_kind), octet_length(p_key)) > 1000 /*limit label_bytes*/
      or greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)) > 16777216 /*limit message_bytes*/ then
    return trunq._publish_delayed('_lanespecimen', p_payload, p_kind, p_key, p_headers, p_body, p_priority, p_delay, p_due_at, p_options, p_max_age);
  end if;
  insert into trunq_log._specimen (priority, kind, key, payload, headers, body) values (p_priority, p_kind, p_key, p_payload, p_headers, p_body)
  returning id into v_id;
  return v_id;
end $$;
comment on function trunq_queue._lanespecimen_publish is
  'Publishes one message in the caller''s transaction: now, after p_delay, or at p_due_at. p_options: max_attempts, and expires_at (UTC, as 2030-01-31T10:00:00Z) or p_max_age, after which no lease hands it out.
Returns: its id.
Raises: TQ005 for both a delay and a time, one beyond the year 9999, a priority that the queue does not have, or options that cannot be read; TQ006 over 16 MB, or 1,000 bytes of kind or key.
Locks: none.';
