-- Unique keys: of the messages with one key, one at a time holds it. A queue is made for them, with a policy:
--   refuse    a message whose key another holds is left out; the caller hears which message that is
--   replace   it is published, and stands for the one that waits; one that runs goes on, and the new one comes after it
-- A queue without has none of this: no tables, no columns in its log. What leases and answers ask about keys are
-- functions of their own: queue/leasing.sql has those that know of no key, and a queue with keys gets those of the same
-- name in sql/specimen/unique instead (trunq._is_original).
--
-- The newest turn of a key is the key, as the newest lease is the cursor. A publisher inserts the next turn, and waits for whoever takes
-- the same key in an open transaction. A message frees its key by a row in another table, where readers and answers insert and no
-- publisher does: no reader waits for a publisher.
--   until it is leased   the first lease that hands it out frees the key
--   until it is done     what ends it does: an ack, or whatever makes it dead. A retry, a release and a lease that ran out do not
--   for a time           nothing does: the turn says when it is free
-- With several shared subscriptions, the first that leases or ends a message frees its key: a slow reader does not hold up publishers. Batches
-- free nothing. What no shared subscription is to handle (filters, an unsubscribed reader) is found by a duty, and its key freed.
--
-- A queue that refuses may do so for all that is published into it (unique_on content): then a row that no function gave a key gets that of its
-- kind and content, by the trigger that takes keys of rows, and a double is an error that says which content that is: who inserts or copies
-- hears of nothing else. What is published for later passes the log too, as for a gate, and holds its key from then on.
--
-- Replacing: the turn of the new message says from which turn on it stands for others. It is a row of its own in the log: committed before
-- the other is reached, it stands for it; committed after, it comes next. So nothing is lost. A lease answers those it passes over in its
-- own transaction (outcome p), as it does with what expired. A message that was replaced may come much later (a delay, a retry), so its turn,
-- and with it the key, stays known until it ended.
--
-- The columns of the log (unique_key, unique_turn, unique_until) go through delay, retry and death as columns of the user's do
-- (functions/log/column.sql).

create or replace function trunq.publish_unique(
  p_queue text,
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
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._check_unique(p_queue);
  execute format('select * from trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)', p_queue || '_publish_unique')
    into id, is_new using p_payload, p_unique_key, p_kind, p_key, p_headers, p_body, p_priority, p_delay, p_due_at, p_options, p_max_age,
      p_unique_until, p_unique_for, p_on_conflict;
end $$;
comment on function trunq.publish_unique is
  'Publishes one message in the caller''s transaction, if no other holds its unique key, or in the place of that one, by the policy of the queue. p_unique_key: without one, the key is made of kind and content. It holds its key until it is done, until it is leased (p_unique_until => ''leased''), or for p_unique_for, whatever becomes of it. p_on_conflict: refuse, replace (where the queue may) or raise. The rest is as for publish.
Returns: its id and true; else the id of the message that holds the key, and false.
Raises: TQ001; TQ005 for a queue without unique keys, an empty key, and as publish does; TQ006 also over 1,000 bytes of unique key; TQ015 when another holds the key and p_on_conflict is raise.
Locks: others who publish with this key, to the end of the transaction.';

create or replace function trunq.publish_many_unique(
  p_queue text,
  p_payloads jsonb[],
  p_unique_keys text[] default null,
  p_kinds text[] default null,
  p_keys text[] default null,
  p_headers jsonb[] default null,
  p_bodies bytea[] default null,
  p_delay interval default null,
  p_due_at timestamptz default null,
  p_options jsonb default null,
  p_max_age interval default null,
  p_priorities smallint[] default null,
  p_unique_until text default 'done',
  p_unique_for interval default null,
  p_on_conflict text default null
) returns table (id bigint, is_new boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  perform trunq._check_unique(p_queue);
  execute format('select * from trunq_queue.%I($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)', p_queue || '_unique_many')
    into v using p_payloads, p_unique_keys, p_kinds, p_keys, p_headers, p_bodies, p_delay, p_due_at, p_options, p_max_age, p_priorities,
      p_unique_until, p_unique_for, p_on_conflict;
  return query select u.id, u.is_new from unnest(v.ids, v.is_new) u(id, is_new);
end $$;
comment on function trunq.publish_many_unique is
  'publish_unique of many messages: those whose keys others hold are left out (or replace them), the others are published. An array of one element stands for all. p_unique_keys: a message with null has no key; without the array, keys are made of kind and content. Of one key given twice the first message counts, and where it replaces, the last.
Returns: a row for each message, in input order, as publish_unique does.
Raises: TQ001, TQ005, TQ006, TQ015.
Locks: others who publish with these keys, to the end of the transaction. It takes keys in their order, so two calls do not wait for each other; two calls in one transaction may.';

create or replace function trunq._check_unique(p_queue text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if (trunq._find_queue(p_queue)).unique_policy is null then
    perform trunq._fail('TQ005', format('queue "%s" has no unique keys', p_queue),
      format('they are chosen when a queue is made, or later: select trunq.convert_queue(''%s'', p_unique => ''refuse'')', p_queue));
  end if;
end $$;
comment on function trunq._check_unique is 'Refuses (TQ005) a queue without unique keys.';

create or replace function trunq._check_unique_policy(p_queue text, p_unique text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_policy text;
begin
  if p_unique <> all (trunq._words('unique_policy')) then
    perform trunq._fail('TQ005', format('queue "%s" cannot have unique keys by the policy "%s"', p_queue, left(p_unique, 100)),
      'the policy is ' || trunq._list_choices(trunq._words('unique_policy')));
  end if;
  select q.unique_policy into v_policy from trunq.queue q where q.name = p_queue;
  if found and p_unique is not null and v_policy is distinct from p_unique then
    perform trunq._fail('TQ005',
      format('queue "%s" is there and %s', p_queue, case when v_policy is null then 'has no unique keys' else format('its unique keys %s, they do not %s', v_policy, p_unique) end),
      case when v_policy is null then format('give it unique keys: select trunq.convert_queue(''%s'', p_unique => ''%s'')', p_queue, p_unique)
        else 'its policy stays: make another queue, and have its messages published there' end);
  end if;
end $$;
comment on function trunq._check_unique_policy is 'Refuses (TQ005) an unknown policy, and for an existing queue any but its own.';

create or replace function trunq._check_unique_on(p_queue text, p_unique text, p_unique_on text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
begin
  if p_unique_on <> all (trunq._words('unique_on')) then
    perform trunq._fail('TQ005', format('queue "%s" cannot be unique on "%s"', p_queue, left(p_unique_on, 100)),
      'it may be unique on content, or (null) on the keys that publishers give');
  elsif p_unique_on is not null and p_unique is distinct from 'refuse' then
    perform trunq._fail('TQ005', format('queue "%s" cannot be unique on content: it does not refuse doubles', p_queue),
      'make it with p_unique => ''refuse'' too');
  end if;
  select q.* into v_queue from trunq.queue q where q.name = p_queue;
  if found and p_unique_on is not null and v_queue.unique_on is distinct from p_unique_on then
    perform trunq._fail('TQ005', format('queue "%s" is there and not unique on content', p_queue),
      'that is chosen when a queue is made: make another one, and have its messages published there');
  end if;
end $$;
comment on function trunq._check_unique_on is 'Refuses (TQ005) what no queue is unique on, or not with this policy, and for an existing queue any but its own.';

create or replace function trunq._fail_same_content(p_queue text, p_kind text, p_payload jsonb, p_body bytea, p_holder bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ015', format('message %s of queue "%s" has the same kind (%s) and content: %s', p_holder, p_queue,
      coalesce(quote_ident(p_kind), 'null'), left(coalesce(p_payload::text, encode(p_body, 'hex'), 'null'), 200)),
    'publish it when that one is done, or by trunq.publish_unique, which leaves it out');
end $$;
comment on function trunq._fail_same_content is 'Says that another message of a queue that is unique on content has this one (TQ015).';

create or replace function trunq._unique_terms(
  p_queue text, p_unique_keys text[], p_unique_until text, p_unique_for interval, p_on_conflict text,
  p_delay interval, p_due_at timestamptz, p_options jsonb, p_max_age interval, p_priorities smallint[],
  out until "char", out free_at timestamptz, out replace boolean, out due_at timestamptz, out options jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_longest integer := (select max(octet_length(k)) from unnest(p_unique_keys) k);
begin
  if array_ndims(p_unique_keys) > 1 then
    perform trunq._fail('TQ005', format('unique keys for queue "%s" are an array of one dimension', p_queue), 'give one key for each message');
  elsif array_position(p_unique_keys, '') is not null then
    perform trunq._fail('TQ005', format('a unique key of queue "%s" is empty', p_queue), 'a message without a unique key has null, not an empty text');
  elsif v_longest > trunq._limit('label_bytes') then
    perform trunq._fail('TQ006', format('a unique key for queue "%s" is too long: %s bytes, at most %s', p_queue, v_longest, trunq._limit('label_bytes')),
      'make it of a hash of what is long');
  elsif p_on_conflict not in ('refuse', 'replace', 'raise') then
    perform trunq._fail('TQ005', format('a message whose unique key another holds cannot "%s"', left(p_on_conflict, 100)), 'p_on_conflict is refuse, replace or raise');
  elsif p_on_conflict = 'replace' and v_queue.unique_policy = 'refuse' then
    perform trunq._fail('TQ005', format('queue "%s" was made to refuse, and cannot replace a message', p_queue),
      'a queue made with p_unique => ''replace'' can do both');
  elsif p_unique_until is null or p_unique_until not in ('leased', 'done') then
    perform trunq._fail('TQ005', format('a message cannot hold its unique key until "%s"', left(coalesce(p_unique_until, 'null'), 100)),
      'p_unique_until is leased or done; p_unique_for is a time');
  elsif p_unique_for is not null and p_unique_until <> 'done' then
    perform trunq._fail('TQ005', 'a message holds its unique key for a time or until it is leased, not both', 'give p_unique_until or p_unique_for');
  end if;
  perform trunq._check_interval('p_unique_for', p_unique_for);
  if p_priorities <> array[0::smallint] is not false and p_priorities is not null then
    perform trunq._check_priorities(v_queue, p_priorities);
  end if;
  due_at := case when p_delay is not null or p_due_at is not null then trunq._due_at(p_delay, p_due_at) end;
  options := trunq._options_for(p_queue, p_options, p_max_age, due_at);
  until := case when p_unique_for is not null then 't' else left(p_unique_until, 1) end;
  free_at := trunq.clock() + p_unique_for;
  replace := coalesce(p_on_conflict, v_queue.unique_policy) = 'replace';
end $$;
comment on function trunq._unique_terms is
  'On what terms messages take their unique keys; TQ005 or TQ006 for what is not possible.';

create or replace function trunq._check_more_arrays(p_queue text, p_count integer, p_unique_keys text[], p_priorities smallint[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if cardinality(p_unique_keys) not in (1, p_count) or array_lower(p_unique_keys, 1) <> 1
      or cardinality(p_priorities) not in (1, p_count) or array_lower(p_priorities, 1) <> 1 then
    perform trunq._fail('TQ005',
      format('the unique keys or priorities given to publish_many_unique for queue "%s" are not as many as the messages (%s)', p_queue, p_count),
      'give one for each message, or one for all');
  end if;
end $$;
comment on function trunq._check_more_arrays is 'Refuses (TQ005) arrays of unique keys and priorities of another length.';

create or replace function trunq._fail_duplicate(p_queue text, p_unique_key text, p_holder bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._fail('TQ015', format('message %s of queue "%s" holds the unique key "%s"', p_holder, p_queue, left(p_unique_key, 100)),
    'publish it when that one has freed the key, or leave p_on_conflict to the queue and look at is_new');
end $$;
comment on function trunq._fail_duplicate is 'Says that another message holds a key (TQ015).';

create or replace function trunq._content_key(p_kind text, p_payload jsonb, p_body bytea) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- The text of jsonb is the same for the same document, however it was written.
  select encode(sha256(convert_to(jsonb_build_array(p_kind, p_payload, encode(sha256(p_body), 'hex'))::text, 'UTF8')), 'hex')
$$;
comment on function trunq._content_key is 'The unique key of a message that has none given: a hash of kind, payload and body.';

create or replace function trunq._free_keys(p_queue trunq.queue, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue.unique_policy is not null and cardinality(p_ids) > 0 then
    execute format('select trunq_queue.%I($1)', p_queue.name || '_free_keys') using p_ids;
  end if;
end $$;
comment on function trunq._free_keys is
  'Frees the unique keys of messages that ended in another way than by an answer; nothing for a queue without unique keys.';

create or replace function trunq._create_unique(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('create table trunq_data.%I (like trunq_data._uniquespecimen_unique including all)', p_queue.name || '_unique');
  execute format('create table trunq_data.%I (like trunq_data._uniquespecimen_freed including all)', p_queue.name || '_freed');
  execute format('alter table trunq_data.%I replica identity full', p_queue.name || '_freed');
  -- Told again by _restore_rows.
  execute format('comment on table trunq_data.%I is %L', p_queue.name || '_unique',
    obj_description('trunq_data._uniquespecimen_unique'::regclass, 'pg_class') || case when p_queue.unique_on is not null then format(' On %s.', p_queue.unique_on) else '' end || ' Policy: ' || p_queue.unique_policy || '.');
end $$;
comment on function trunq._create_unique is 'Makes the tables that a queue with unique keys has besides.';

create or replace function trunq._add_unique_columns(p_queue trunq.queue, p_type text default 'trunq.unique_key') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('alter table trunq_log.%I add column unique_key %s, add column unique_turn bigint, add column unique_until "char"', p_queue.log_table, p_type);
end $$;
comment on function trunq._add_unique_columns is 'Gives the log of a queue the columns by which its messages hold unique keys.';

create or replace function trunq._unique_tables(p_queue trunq.queue) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_queue.unique_policy is not null then format(', trunq_data.%I, trunq_data.%I', p_queue.name || '_unique', p_queue.name || '_freed') else '' end
$$;
comment on function trunq._unique_tables is 'The tables of its unique keys, to be put behind a list of tables: ", a, b", or nothing.';

create or replace function trunq._forget_keys(p_queue trunq.queue) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_blocks constant integer := 100;
  v_from bigint;
  v_size bigint;
  v_done integer;
  v_count integer := 0;
begin
  if p_queue.unique_policy is null then
    return 0;
  end if;
  select m.last_id into v_from from trunq.mark m where m.queue_id = p_queue.queue_id and m.subscription_id = 0 and m.duty = 'forget_keys';
  v_from := coalesce(v_from, 0);
  v_size := pg_relation_size(format('trunq_data.%I', p_queue.name || '_unique')::regclass) / current_setting('block_size')::integer;
  for v_slice in 1..10 loop
    if v_from >= v_size then
      v_from := 0;
    end if;
    execute format('select trunq_queue.%I($1, $2, $3)', p_queue.name || '_forget_keys') into v_done using v_from, c_blocks, v_slice = 1;
    v_from := v_from + c_blocks;
    v_count := v_count + v_done;
    exit when v_count >= 1000 or v_from >= v_size;
  end loop;
  -- A second subscription that ends a message frees a key that was forgotten: nobody asks for such rows.
  if pg_relation_size(format('trunq_data.%I', p_queue.name || '_freed')::regclass) > 1048576 + v_size * current_setting('block_size')::integer then
    execute format('delete from trunq_data.%1$I f where not exists (select from trunq_data.%2$I u where u.id = f.id)',
      p_queue.name || '_freed', p_queue.name || '_unique');
  end if;
  if v_size > c_blocks then
    insert into trunq.mark (queue_id, duty, at, last_id) values (p_queue.queue_id, 'forget_keys', trunq.clock(), v_from)
    on conflict (queue_id, subscription_id, duty) do update set at = excluded.at, last_id = excluded.last_id;
  end if;
  return v_count;
end $$;
comment on function trunq._forget_keys is
  'Forgets unique keys that nobody holds, going through the table in slices, and frees those whose messages nobody is to handle, looking at 1,000 at most.
Returns: how many turns of keys it forgot.';

create or replace function trunq._nobody_handles(p_queue trunq.queue, p_ids bigint[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  c_open constant text[] := array(select s.state from trunq._states() s where s.is_open);
  v_sub trunq.subscription;
  v_ids bigint[] := p_ids;
begin
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id and s.mode = 'shared' order by s.subscription_id
  loop
    exit when v_ids = '{}';
    -- Most wait where they were published; the others have gone elsewhere, or are nowhere.
    v_ids := array(select unnest(v_ids) except select m.id from trunq._message(v_sub, p_queue, v_ids, true, true) m where m.state = any (c_open));
    continue when v_ids = '{}';
    v_ids := array(select unnest(v_ids) except select m.id from trunq._message(v_sub, p_queue, v_ids, true, false) m where m.state = any (c_open));
  end loop;
  return v_ids;
end $$;
comment on function trunq._nobody_handles is 'Those of some messages that no shared subscription is to handle.';
