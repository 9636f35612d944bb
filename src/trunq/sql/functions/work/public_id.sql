-- What strangers are shown in the place of an id: a UUID that tells nothing, neither how many messages there are nor which came before which, and
-- from which the database alone finds queue and id again. It is a permutation under a secret key, so nothing is stored with a message,
-- and no index is needed; publishing pays nothing. (A UUIDv7 would tell the time, cost 16 bytes and an index a message, and name no message of before.)
--
-- 122 bits, what a UUID of version 8 leaves free: the queue (31 bits), the id (63), and 28 that are zero, by which a UUID of somebody else's is
-- told apart. They go through eight rounds of a Feistel network over two halves of 61 bits; a round is a SHA-256 of key, round and half.
--
-- The key lies in a table that is granted to nobody, and only functions with the owner's rights read it. It comes along in a dump.
-- After trunq.renew_public_key the same message is shown under another UUID; the former one is found while its key is kept.
--
-- What it does not do: it is no password. Whoever has a public id may have been given it by another, so ask who he is. A superuser, a
-- reader of all tables and a dump have the key.

create or replace function trunq.public_ids(p_queue text, p_ids bigint[]) returns uuid[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_ids uuid[];
begin
  execute format('select trunq_queue.%I($1)', trunq._function(p_queue, 'public_ids')) into v_ids using p_ids;
  return v_ids;
end $$;
comment on function trunq.public_ids is
  'The public ids of messages, in the order of their ids: what strangers may be shown. It looks at no message. trunq.find_public_id finds them again. For whoever has a role of the queue.
Returns: null for null.
Raises: TQ001; TQ005 for an id that no message can have.';

create or replace function trunq.public_id(p_queue text, p_id bigint) returns uuid
language sql volatile as $$ select (trunq.public_ids(p_queue, array[p_id]))[1] $$;
comment on function trunq.public_id is
  'The public id of a message: what strangers may be shown. It tells them neither how many messages there are nor when this one came. trunq.find_public_id finds the message again.
Raises: TQ001; TQ005 for an id that no message can have.';

create or replace function trunq.find_public_id(p_public_id uuid, p_queue text default null) returns table (queue text, id bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  return query
    select q.name, r.id from trunq.public_key k cross join lateral trunq._read_public_id(k.key, p_public_id) r
    join trunq.queue q on q.queue_id = r.queue_id and q.name = coalesce(p_queue, q.name)
    order by k.key_id desc limit 1;
end $$;
comment on function trunq.find_public_id is
  'Which message a public id stands for, in one queue or any. Whether it is still there, trunq.show_message tells.
Returns: no row for what trunq did not make, whose key is forgotten, or whose queue is gone.
Raises: TQ001.';

create or replace function trunq.renew_public_key(p_forget boolean default false) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('renew_public_key', null, jsonb_build_object('forget', p_forget));
  if p_forget then
    delete from trunq.public_key;
  end if;
  insert into trunq.public_key (key)
  select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
  return (select count(*) from trunq.public_key);
end $$;
comment on function trunq.renew_public_key is
  'Makes a new secret, under which each message has another public id from now on. The former ones are found as before; with p_forget, after a secret became known, no more.
Returns: how many secrets there are.
Locks: with p_forget, the former secrets.';

create or replace function trunq._public_id(p_queue_id integer, p_id bigint) returns uuid
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_left bigint := (p_queue_id::bigint << 2) | (p_id >> 61);
  v_right bigint := p_id & 2305843009213693951;
  v_bits text;
begin
  select s.high, s.low into v_left, v_right
  from (select k.key from trunq.public_key k order by k.key_id desc limit 1) k cross join lateral trunq._scramble(k.key, v_left, v_right, '{0,1,2,3,4,5,6,7}') s;
  v_bits := substr(v_left::bit(64)::text, 4) || substr(v_right::bit(64)::text, 4);
  v_bits := concat(left(v_bits, 48), '1000', substr(v_bits, 49, 12), '10', substr(v_bits, 61));
  return concat(lpad(to_hex(left(v_bits, 64)::bit(64)::bigint), 16, '0'), lpad(to_hex(substr(v_bits, 65)::bit(64)::bigint), 16, '0'))::uuid;
end $$;
comment on function trunq._public_id is 'The public id of a message under the newest key.';

create or replace function trunq._read_public_id(p_key bytea, p_public_id uuid) returns table (queue_id integer, id bigint)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_hex constant text := replace(p_public_id::text, '-', '');
  v_bits text := concat(('x' || left(v_hex, 16))::bit(64)::text, ('x' || substr(v_hex, 17))::bit(64)::text);
  v_halves record;
begin
  if (substr(v_bits, 49, 4) = '1000' and substr(v_bits, 65, 2) = '10') is not true then
    return;
  end if;
  v_bits := concat(left(v_bits, 48), substr(v_bits, 53, 12), substr(v_bits, 67));
  -- Backwards, with the halves the other way round.
  v_halves := trunq._scramble(p_key, concat('000', substr(v_bits, 62))::bit(64)::bigint, concat('000', left(v_bits, 61))::bit(64)::bigint, '{7,6,5,4,3,2,1,0}');
  if v_halves.low >> 33 = 0 then
    return query select (v_halves.low >> 2)::integer, ((v_halves.low & 3) << 61) | v_halves.high;
  end if;
end $$;
comment on function trunq._read_public_id is 'Queue and id of a public id that was made with a key; no row: it was not.';

create or replace function trunq._scramble(p_key bytea, p_high bigint, p_low bigint, p_rounds integer[], out high bigint, out low bigint)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_round integer;
  v_next bigint;
begin
  high := p_high; low := p_low;
  foreach v_round in array p_rounds loop
    v_next := high # (('x' || left(encode(sha256(p_key || int4send(v_round) || int8send(low)), 'hex'), 16))::bit(64)::bigint & 2305843009213693951);
    high := low; low := v_next;
  end loop;
end $$;
comment on function trunq._scramble is 'A Feistel network over two halves of 61 bits.';
