-- A subscription may read only some of the messages: a filter is a JSON object of structured values, all of which must hold.
--   kinds, keys          one of these; a message without one does not match
--   not_kinds, not_keys  none of these; a message without one matches
--   headers              contained in the message's headers
--   not_headers          none of its members contained there; a message without headers matches
--   columns              contained in the columns that the user added to the log, as JSON (functions/log/column.sql)
--   not_columns          none of its members contained there
-- It counts for what is read from then on: what the subscription has had (a retry, what is requeued) comes again whatever the filter says,
-- and what it passed over does not come back. Positions go on over what does not match.
--
-- A condition on columns is one on headers: the columns of a message stand beside its headers as trunq_columns, where a queue has any
-- (trunq_queue.<queue>_sifted, trunq._sifted). So every reader of a filter asks of both at once, and a queue without such columns of neither.
--
-- That of a slot (functions/stream/slot.sql) also says which part of the keys: slot, slots. Nobody gives these.

create or replace function trunq._check_filter(p_filter jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  c_known constant text[] := '{kinds,not_kinds,keys,not_keys,headers,not_headers,columns,not_columns}';
  c_way_out constant text := 'a filter is like {"kinds": ["mail"], "not_keys": ["test"], "headers": {"country": "CZ"}}; {} reads every message';
  v record;
begin
  if jsonb_typeof(p_filter) <> 'object' then
    perform trunq._fail('TQ005', format('a filter is a JSON object, not %s', jsonb_typeof(p_filter)), c_way_out);
  end if;
  if pg_column_size(p_filter) > trunq._limit('filter_bytes') then
    perform trunq._fail('TQ005', format('a filter has at most %s bytes, not %s', trunq._limit('filter_bytes'), pg_column_size(p_filter)),
      'publish what it is about as one kind, or one header');
  end if;
  for v in select * from jsonb_each(p_filter) loop
    if v.key <> all (c_known) then
      perform trunq._fail('TQ005', format('a filter has no "%s"; it has %s', left(v.key, 100), array_to_string(c_known, ', ')), c_way_out);
    elsif v.key like '%headers' or v.key like '%columns' then
      if jsonb_typeof(v.value) <> 'object' then
        perform trunq._fail('TQ005', format('"%s" of a filter is an object of %s, not %s', v.key, substring(v.key from '[a-z]+$'), jsonb_typeof(v.value)), c_way_out);
      end if;
    elsif jsonb_typeof(v.value) <> 'array' or jsonb_path_exists(v.value, 'strict $[*] ? (@.type() != "string")') then
      perform trunq._fail('TQ005', format('"%s" of a filter is an array of texts, not %s', v.key, left(v.value::text, 100)), c_way_out);
    end if;
  end loop;
end $$;
comment on function trunq._check_filter is 'Refuses (TQ005) what is not a filter.';

create or replace function trunq._read_filter(
  p_filter jsonb, out kinds text[], out not_kinds text[], out keys text[], out not_keys text[], out headers jsonb, out not_headers jsonb[]
)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select trunq._texts(p_filter->'kinds'), trunq._texts(p_filter->'not_kinds'), trunq._texts(p_filter->'keys'), trunq._texts(p_filter->'not_keys'),
    case when p_filter ? 'columns' then coalesce(p_filter->'headers', '{}') || jsonb_build_object('trunq_columns', p_filter->'columns') else p_filter->'headers' end,
    case when p_filter ?| '{not_headers,not_columns}' then array(
      select jsonb_build_object(h.key, h.value) from jsonb_each(p_filter->'not_headers') h
      union all
      select jsonb_build_object('trunq_columns', jsonb_build_object(c.key, c.value)) from jsonb_each(p_filter->'not_columns') c) end
$$;
comment on function trunq._read_filter is 'What a filter says, as trunq._passes takes it; null: nothing.';

create or replace function trunq._texts(p_array jsonb) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_array is not null then array(select jsonb_array_elements_text(p_array)) end
$$;
comment on function trunq._texts is 'The texts of a JSON array; null for null.';

create or replace function trunq._passes(
  p_kinds text[], p_not_kinds text[], p_keys text[], p_not_keys text[], p_headers jsonb, p_not_headers jsonb[],
  p_kind text, p_key text, p_message_headers jsonb
) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable parallel safe as $$
  select (p_kinds is null or p_kind operator(pg_catalog.=) any (p_kinds)) and (p_not_kinds is null or (p_kind operator(pg_catalog.=) any (p_not_kinds)) is not true)
    and (p_keys is null or p_key operator(pg_catalog.=) any (p_keys)) and (p_not_keys is null or (p_key operator(pg_catalog.=) any (p_not_keys)) is not true)
    and (p_headers is null or p_message_headers operator(pg_catalog.@>) p_headers) and (p_not_headers is null or (p_message_headers operator(pg_catalog.@>) any (p_not_headers)) is not true)
$$;
comment on function trunq._passes is
  'Whether a message passes a filter. Null: as false.';

create or replace function trunq._lane_gets(
  p_reader integer, p_for integer, p_expiries smallint,
  p_kinds text[], p_not_kinds text[], p_keys text[], p_not_keys text[], p_headers jsonb, p_not_headers jsonb[],
  p_kind text, p_key text, p_message_headers jsonb
) returns boolean
-- In PL/pgSQL it stays a call: its place in each scan of a lease of lanes costs little where it is not needed.
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_for is not null then
    return p_for = p_reader and p_expiries is null;
  end if;
  return trunq._passes(p_kinds, p_not_kinds, p_keys, p_not_keys, p_headers, p_not_headers, p_kind, p_key, p_message_headers);
end $$;
comment on function trunq._lane_gets is
  'Whether a row of the log is one that a lane hands out in its order: it is for everyone and passes the filter, or for this reader and did not come back to one in order.';

create or replace function trunq._filter_condition(p_filter jsonb, p_row text default 'g') returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v record;
  v_slot text;
begin
  if p_filter is null then
    return 'true';
  end if;
  v_slot := case when p_filter ? 'slots' then format('trunq._slot(%1$s.key, %1$s.id, %2$s) = %3$s', p_row, p_filter->'slots', p_filter->'slot') end;
  if p_filter - '{slot,slots}'::text[] = '{}' then
    return coalesce(v_slot, 'true');
  end if;
  v := trunq._read_filter(p_filter);
  return concat(v_slot || ' and ', format('trunq._passes(%L::text[], %L::text[], %L::text[], %L::text[], %L::jsonb, %L::jsonb[], %7$s.kind, %7$s.key, %8$s)',
    v.kinds, v.not_kinds, v.keys, v.not_keys, v.headers, v.not_headers, p_row,
    format(case when p_filter ?| '{columns,not_columns}' then 'trunq._sifted(%1$s.headers, trunq._extra(to_jsonb(%1$s)))' else '%s.headers' end, p_row)));
end $$;
comment on function trunq._filter_condition is 'The condition that a row of the log passes a filter; its values are literals.';

create or replace function trunq._filter_of(p_subscription_id integer) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.filter from trunq.subscription s where s.subscription_id = p_subscription_id
$$;
comment on function trunq._filter_of is 'The filter of a subscription; null: it reads every message.';

create or replace function trunq._sifted(p_headers jsonb, p_columns jsonb) returns jsonb
language sql immutable parallel safe as $$
  select case when p_columns is null then p_headers
    else case when pg_catalog.jsonb_typeof(p_headers) operator(pg_catalog.=) 'object' then p_headers else '{}' end
      operator(pg_catalog.||) pg_catalog.jsonb_build_object('trunq_columns', p_columns) end
$$;
comment on function trunq._sifted is
  'What a filter is asked of as the headers of a message: with the columns that the user added to the log, as trunq_columns.';

create or replace function trunq._check_ages(p_older_than interval, p_newer_than interval) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  -- Postgres has no time so long ago.
  perform trunq._check_interval('p_older_than', p_older_than, '-1000 years');
  perform trunq._check_interval('p_newer_than', p_newer_than, '-1000 years');
end $$;
comment on function trunq._check_ages is 'Refuses (TQ005) ages of messages that lead beyond all times; null is none.';

create or replace function trunq._is_like(
  p_kind text, p_key text, p_error text, p_payload jsonb, p_headers jsonb, p_published_at timestamptz,
  p_wanted_kind text, p_wanted_key text, p_wanted_error text, p_wanted_payload jsonb, p_wanted_headers jsonb, p_older timestamptz, p_newer timestamptz
) returns boolean
-- No settings here: Postgres then puts the expression in the place of its call.
language sql immutable parallel safe as $$
  select (p_wanted_kind is null or p_kind operator(pg_catalog.=) p_wanted_kind) and (p_wanted_key is null or p_key operator(pg_catalog.=) p_wanted_key)
    and (p_wanted_error is null or pg_catalog.strpos(pg_catalog.lower(p_error), pg_catalog.lower(p_wanted_error)) operator(pg_catalog.>) 0)
    and (p_wanted_payload is null or p_payload operator(pg_catalog.@>) p_wanted_payload) and (p_wanted_headers is null or p_headers operator(pg_catalog.@>) p_wanted_headers)
    and (p_older is null or p_published_at operator(pg_catalog.<) p_older) and (p_newer is null or p_published_at operator(pg_catalog.>=) p_newer)
$$;
comment on function trunq._is_like is 'Whether a message is what a list, or a sweep, looks for; null of what is wanted: as it may be.';
