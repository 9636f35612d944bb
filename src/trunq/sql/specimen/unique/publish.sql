-- Publishing with a unique key; the essay is in unique.sql. With the owner's rights, as a publisher may not write what
-- these write: nobody else may execute them but whom trunq.grant_role names.

create or replace function trunq_queue._uniquespecimen_publish_unique(
  p_payload jsonb default null,
  p_unique_key text default null,
  p_kind text default null,
  p_key text default null,
  p_headers jsonb default null,
  p_body bytea default null,
  p_priority smallint default 0,
  p_delay interval default null,
  p_due_at timestamptz default null,
  p_options jsonb default null,
  p_max_age interval default null,
  p_unique_until text default 'done',
  p_unique_for interval default null,
  p_on_conflict text default null,
  out id bigint, out is_new boolean
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c_has_tenants constant boolean := false /*has_tenants*/;
  v record;
  v_until "char"; v_free_at timestamptz; v_due_at timestamptz; v_replace boolean;
  v_turn bigint; v_holder bigint;
begin
  -- One condition for all that is unusual: Postgres prepares each expression anew in every transaction.
  if c_has_tenants or num_nonnulls(p_delay, p_due_at, p_options, p_max_age, p_unique_for, p_on_conflict) > 0 or p_unique_key is null or p_unique_key = ''
      or p_priority is distinct from 0 or p_unique_until is distinct from 'done'
      or greatest(octet_length(p_kind), octet_length(p_key), octet_length(p_unique_key)) > 1000 /*limit label_bytes*/
      or greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)) > 16777216 /*limit message_bytes*/ then
    if c_has_tenants then
      perform trunq._check_tenant('_uniquespecimen', array[p_key]);
    end if;
    perform trunq._check_size('_uniquespecimen', greatest(pg_column_size(p_payload), pg_column_size(p_body), pg_column_size(p_headers)));
    perform trunq._check_label('_uniquespecimen', greatest(octet_length(p_kind), octet_length(p_key)));
    p_unique_key := coalesce(
      p_unique_key, trunq_queue._uniquespecimen_content_key(p_kind, p_key, p_payload, p_body));
    v := trunq._unique_terms('_uniquespecimen', array[p_unique_key], p_unique_until, p_unique_for, p_on_conflict, p_delay, p_due_at, p_options, p_max_age, array[p_priority]);
    v_until := v.until; v_free_at := v.free_at; v_due_at := v.due_at; v_replace := v.replace; p_options := v.options;
  end if;
  insert into trunq_data._uniquespecimen_unique (unique_key, turn, id, from_turn, until, free_at)
  values (p_unique_key, 1, nextval('trunq_data._uniquespecimen_message_id'), 1, coalesce(v_until, 'd'), v_free_at) on conflict do nothing
  returning _uniquespecimen_unique.id, true into id, is_new;
  if id is null then
    id := nextval('trunq_data._uniquespecimen_message_id');
    select t.turn, t.holder into v_turn, v_holder
    from trunq_queue._uniquespecimen_take_key_again(p_unique_key, id, coalesce(v_until, 'd'), v_free_at, coalesce(v_replace, 'refuse' /*unique_policy*/ = 'replace')) t;
    if v_holder is not null then
      id := v_holder;
      is_new := false;
      if p_on_conflict = 'raise' then
        perform trunq._fail_duplicate('_uniquespecimen', p_unique_key, id);
      end if;
      return;
    end if;
    is_new := true;
  end if;
  insert into trunq_log._uniquespecimen (id, priority, kind, key, payload, headers, body, options, due_at, unique_key, unique_turn, unique_until)
  values (id, p_priority, p_kind, p_key, p_payload, p_headers, p_body, p_options, v_due_at, p_unique_key, coalesce(v_turn, 1), coalesce(v_until, 'd'));
end $$;
revoke execute on function trunq_queue._uniquespecimen_publish_unique from public;
comment on function trunq_queue._uniquespecimen_publish_unique is
  'Publishes one message in the caller''s transaction, if no other holds its unique key, or in the place of that one.
Returns: its id and true; else the id of the message that holds the key, and false.
Raises: TQ005, TQ006; TQ015 where p_on_conflict is raise.
Locks: others who publish with this key, to the end of the transaction.';

create or replace function trunq_queue._uniquespecimen_unique_many(
  p_payloads jsonb[], p_unique_keys text[], p_kinds text[], p_keys text[], p_headers jsonb[], p_bodies bytea[], p_delay interval, p_due_at timestamptz,
  p_options jsonb, p_max_age interval, p_priorities smallint[], p_unique_until text, p_unique_for interval, p_on_conflict text,
  out ids bigint[], out is_new boolean[]
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set trunq.plan = generic as $$
declare
  c_has_tenants constant boolean := false /*has_tenants*/;
  v_count constant integer := greatest(coalesce(cardinality(p_payloads), 0), coalesce(cardinality(p_bodies), 0));
  v record;
  v_kind text; v_key text; v_payload jsonb; v_body bytea; v_headers jsonb; v_priority smallint := 0;
  v_turns bigint[]; v_left integer[]; v_doubles integer[]; v_first integer[]; v_are_new boolean := true;
  v_at integer; v_taken record;
begin
  ids := '{}'; is_new := '{}';
  if v_count = 0 then
    return;
  end if;
  if c_has_tenants then
    perform trunq._check_tenant('_uniquespecimen', coalesce(p_keys, array[null]));
  end if;
  perform trunq._check_arrays('_uniquespecimen', v_count, p_payloads, p_kinds, p_keys, p_headers, p_bodies);
  perform trunq._check_more_arrays('_uniquespecimen', v_count, p_unique_keys, p_priorities);
  -- An array of one stands for all.
  if v_count > 1 then
    if cardinality(p_kinds) = 1 then v_kind := p_kinds[1]; p_kinds := null; end if;
    if cardinality(p_keys) = 1 then v_key := p_keys[1]; p_keys := null; end if;
    if cardinality(p_payloads) = 1 then v_payload := p_payloads[1]; p_payloads := null; end if;
    if cardinality(p_bodies) = 1 then v_body := p_bodies[1]; p_bodies := null; end if;
    if cardinality(p_headers) = 1 then v_headers := p_headers[1]; p_headers := null; end if;
    if cardinality(p_priorities) = 1 then v_priority := p_priorities[1]; p_priorities := null; end if;
    if cardinality(p_unique_keys) = 1 then p_unique_keys := array_fill(p_unique_keys[1], array[v_count]); end if;
  end if;
  if p_unique_keys is null then
    select array_agg(trunq_queue._uniquespecimen_content_key(
      coalesce(u.kind, v_kind), coalesce(u.key, v_key), coalesce(u.payload, v_payload), coalesce(u.body, v_body)) order by u.at)
    into p_unique_keys
    from rows from (unnest(p_payloads), unnest(p_kinds), unnest(p_keys), unnest(p_bodies)) with ordinality u(payload, kind, key, body, at);
  end if;
  v := trunq._unique_terms('_uniquespecimen', p_unique_keys, p_unique_until, p_unique_for, p_on_conflict, p_delay, p_due_at, p_options, p_max_age,
    coalesce(p_priorities, array[v_priority]));
  ids := array(select nextval('trunq_data._uniquespecimen_message_id') from generate_series(1, v_count));
  -- All keys are new, as they nearly always are: half of what ON CONFLICT costs. In their order, here and below: two calls never wait
  -- for each other crosswise.
  begin
    insert into trunq_data._uniquespecimen_unique (unique_key, turn, id, from_turn, until, free_at)
    select u.k, 1, u.id, 1, v.until, v.free_at from unnest(p_unique_keys, ids) u(k, id) where u.k is not null order by u.k collate "C";
  exception when unique_violation then
    v_are_new := false;
  end;
  if v_are_new then
    is_new := array_fill(true, array[v_count]);
  else
    with given as materialized (
      select u.k collate "C" k, u.id, u.at::integer at from unnest(p_unique_keys, ids) with ordinality u(k, id, at)),
    -- Of one key given twice the first counts; where messages are replaced, the last.
    ranked as materialized (
      select g.*, first_value(g.at) over (partition by g.k order by case when v.replace then -g.at else g.at end) chosen from given g where g.k is not null),
    made as (
      insert into trunq_data._uniquespecimen_unique (unique_key, turn, id, from_turn, until, free_at)
      select r.k, 1, r.id, 1, v.until, v.free_at from ranked r where r.at = r.chosen order by r.k
      on conflict do nothing returning id)
    select array_agg(g.k is null or m.id is not null order by g.at), array_agg(g.at order by g.k) filter (where r.at = r.chosen and m.id is null),
      array_agg(g.at) filter (where r.at <> r.chosen), array_agg(r.chosen) filter (where r.at <> r.chosen)
    into is_new, v_left, v_doubles, v_first
    from given g left join ranked r on r.at = g.at left join made m on m.id = g.id;
    v_turns := array_fill(1::bigint, array[v_count]);
    foreach v_at in array coalesce(v_left, '{}') loop
      v_taken := trunq_queue._uniquespecimen_take_key_again(p_unique_keys[v_at], ids[v_at], v.until, v.free_at, v.replace);
      v_turns[v_at] := v_taken.turn; is_new[v_at] := v_taken.turn is not null; ids[v_at] := coalesce(v_taken.holder, ids[v_at]);
    end loop;
    for v_n in 1 .. coalesce(cardinality(v_doubles), 0) loop
      ids[v_doubles[v_n]] := ids[v_first[v_n]];
    end loop;
    v_at := array_position(is_new, false);
    if p_on_conflict = 'raise' and v_at is not null then
      perform trunq._fail_duplicate('_uniquespecimen', p_unique_keys[v_at], ids[v_at]);
    end if;
  end if;
  insert into trunq_log._uniquespecimen (id, priority, kind, key, payload, headers, body, options, due_at, unique_key, unique_turn, unique_until)
  select u.id, coalesce(u.priority, v_priority), coalesce(u.kind, v_kind), coalesce(u.key, v_key), coalesce(u.payload, v_payload), coalesce(u.headers, v_headers),
    coalesce(u.body, v_body), v.options, v.due_at, u.k, case when u.k is not null then coalesce(u.turn, 1) end, case when u.k is not null then v.until end
  from unnest(ids, p_payloads, p_kinds, p_keys, p_headers, p_bodies, p_priorities, p_unique_keys, v_turns, is_new)
    u(id, payload, kind, key, headers, body, priority, k, turn, is_new)
  where u.is_new;
end $$;
revoke execute on function trunq_queue._uniquespecimen_unique_many from public;
comment on function trunq_queue._uniquespecimen_unique_many is
  'What publish_many_unique does.';
