-- Taking and freeing unique keys; the essay is in functions/log/unique.sql. Made for a queue with unique keys only.

create or replace function trunq_queue._uniquespecimen_take_key(
  p_key text, p_id bigint, p_until "char", p_free_at timestamptz, p_replace boolean, out turn bigint, out holder bigint
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  -- A key that is new, as most are: without a look. It waits for whoever takes the same key in an open transaction, and for nobody else.
  insert into trunq_data._uniquespecimen_unique (unique_key, turn, id, from_turn, until, free_at)
  values (p_key, 1, p_id, 1, p_until, p_free_at) on conflict do nothing;
  if found then
    turn := 1;
  else
    select t.turn, t.holder into turn, holder from trunq_queue._uniquespecimen_take_key_again(p_key, p_id, p_until, p_free_at, p_replace) t;
  end if;
end $$;
comment on function trunq_queue._uniquespecimen_take_key is
  'Takes a unique key for a message. p_replace: also from a message that holds it.
Returns: its turn of the key; else the message that holds it.
Locks: others who take this key, to the end of the transaction.';

create or replace function trunq_queue._uniquespecimen_take_key_again(
  p_key text, p_id bigint, p_until "char", p_free_at timestamptz, p_replace boolean, out turn bigint, out holder bigint
)
-- A plan made while the tables are empty must not read them whole when they are large.
language plpgsql volatile set search_path = pg_catalog, pg_temp
set trunq.plan = kept as $$
declare
  v_newest record;
  v_from bigint;
begin
  for v_try in 1..1000 loop
    -- Against the duty that forgets keys, not against each other: the first row stays as long as the key is known.
    perform from trunq_data._uniquespecimen_unique x where x.unique_key = p_key and x.turn = 1 for key share;
    if not found then
      turn := 1; v_from := 1; v_newest := null;
    else
      -- By a later statement than the lock: it sees what others did before.
      select x.turn, x.id, x.from_turn, x.until, x.free_at into v_newest
      from trunq_data._uniquespecimen_unique x where x.unique_key = p_key order by x.turn desc limit 1;
      turn := v_newest.turn + 1;
      if v_newest.until = 't' and v_newest.free_at <= trunq.clock()
          or v_newest.until <> 't' and exists (select from trunq_data._uniquespecimen_freed f where f.id = v_newest.id) then
        v_from := turn;
      elsif p_replace then
        v_from := v_newest.from_turn;
      else
        turn := null; holder := v_newest.id;
        return;
      end if;
    end if;
    insert into trunq_data._uniquespecimen_unique (unique_key, turn, id, from_turn, until, free_at)
    values (p_key, turn, p_id, v_from, p_until, p_free_at) on conflict do nothing;
    if found then
      if v_from = turn and turn > 1 then
        -- What nobody can ask for any more; the first row stays. From the start of the chain: below it lie dead rows. A message that was
        -- replaced and waits, or runs and may come back, must find the newer one: its row stays until it ended.
        with gone as (
          delete from trunq_data._uniquespecimen_unique x
          where x.unique_key = p_key and x.turn >= greatest(2, v_newest.from_turn - 1) and x.turn < v_newest.turn
            and ('refuse' /*unique_policy*/ = 'refuse' or exists (select from trunq_data._uniquespecimen_freed f where f.id = x.id))
          returning x.id)
        delete from trunq_data._uniquespecimen_freed f using gone where f.id = gone.id;
      end if;
      return;
    end if;
  end loop;
  raise exception using errcode = 'serialization_failure', message = format('others take the unique key "%s" again and again', left(p_key, 100));
end $$;
comment on function trunq_queue._uniquespecimen_take_key_again is
  'Takes a key that was taken before, if it is free or p_replace.';

create or replace function trunq_queue._uniquespecimen_take_row_key() returns trigger
-- For publishers, who may write to the log and nothing else.
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_taken record;
  -- The trigger calls it for such a row where the queue is unique on content.
  v_is_content constant boolean := new.unique_key is null;
begin
  if v_is_content then
    new.unique_key := trunq_queue._uniquespecimen_content_key(new.kind, new.key, new.payload, new.body);
  end if;
  v_taken := trunq_queue._uniquespecimen_take_key(new.unique_key, new.id, 'd', null, 'refuse' /*unique_policy*/ = 'replace');
  if v_taken.turn is null then
    if v_is_content then
      perform trunq._fail_same_content('_uniquespecimen', new.kind, new.payload, new.body, v_taken.holder);
    end if;
    return null;
  end if;
  new.unique_turn := v_taken.turn;
  new.unique_until := 'd';
  return new;
end $$;
revoke execute on function trunq_queue._uniquespecimen_take_row_key from public;
comment on function trunq_queue._uniquespecimen_take_row_key is
  'Before an INSERT or COPY of a message with a unique key: takes it, or leaves the message out. Of one that has its content as its key, because the queue says so: TQ015.';

create or replace function trunq_queue._uniquespecimen_content_key(p_kind text, p_key text, p_payload jsonb, p_body bytea)
returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Of tenants who share a queue none may learn what another published.
  select trunq._content_key(p_kind, p_payload, p_body) || case
    when 'none' /*unique_on*/ = 'content' and false /*has_tenants*/ then
      encode(sha256(convert_to(coalesce(p_key, ''), 'UTF8')), 'hex') else '' end
$$;
comment on function trunq_queue._uniquespecimen_content_key is
  'The unique key of a message that has none given: a hash of kind and content; for tenants of a queue that is unique on content also of whose it is.';

create or replace function trunq_queue._uniquespecimen_free_keys(p_ids bigint[]) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  insert into trunq_data._uniquespecimen_freed (id) select unnest(p_ids)
$$;
comment on function trunq_queue._uniquespecimen_free_keys is
  'Says that messages hold their unique keys no longer, but for those that hold them for a time. It waits for nobody.';

-- What leases ask (specimen/queue/leasing.sql). Those without settings Postgres puts in the place of their calls.

create or replace function trunq_queue._uniquespecimen_replaces() returns boolean
language sql stable as $$ select 'refuse' /*unique_policy*/ operator(pg_catalog.=) 'replace' $$;
comment on function trunq_queue._uniquespecimen_replaces is 'Whether a message of this queue may stand for another one.';

create or replace function trunq_queue._uniquespecimen_key_hold(p_row trunq_log._uniquespecimen) returns trunq.key_hold
language sql stable as $$
  select case when p_row.unique_until is not null then row(
    p_row.unique_key, p_row.unique_turn, p_row.unique_until operator(pg_catalog.=) 'd'
      or p_row.unique_until operator(pg_catalog.=) 't' and trunq_queue._uniquespecimen_replaces(),
    p_row.unique_until operator(pg_catalog.=) 'l' and p_row.attempt operator(pg_catalog.=) 1)::trunq.key_hold end
$$;
comment on function trunq_queue._uniquespecimen_key_hold is 'How a message, a row of the log, holds its unique key.';

create or replace function trunq_queue._uniquespecimen_note_key(p_hold trunq.key_hold, p_id bigint) returns bigint[]
language sql volatile as $$
  select case when (p_hold).is_freed then trunq_queue._uniquespecimen_note_keys(null, array[p_id])
    when (p_hold).is_keyed then array[p_id] end
$$;
comment on function trunq_queue._uniquespecimen_note_key is
  'Frees the unique key of a message that is leased, if it holds it until then. Returns: the message, if it holds it until it is done.';

create or replace function trunq_queue._uniquespecimen_note_keys(p_keyed bigint[], p_freed bigint[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_freed is not null then
    insert into trunq_data._uniquespecimen_freed (id) select unnest(p_freed);
  end if;
  return p_keyed;
end $$;
comment on function trunq_queue._uniquespecimen_note_keys is
  'Frees the unique keys of messages that are leased and hold them until then (p_freed). Returns: p_keyed.';

create or replace function trunq_queue._uniquespecimen_replaced_by(p_hold trunq.key_hold, p_attempt integer)
returns table (by bigint)
language sql stable as $$
  select n.id from (
    select x.turn, x.id, x.from_turn, x.until from trunq_data._uniquespecimen_unique x
    where x.unique_key operator(pg_catalog.=) (p_hold).unique_key order by x.turn desc limit 1) n
  -- A message that was not tried yet is replaced also by one that came when another subscription had freed the key; not
  -- by one that was requeued, and which only the subscription has in which it had died.
  where trunq_queue._uniquespecimen_replaces()
    and n.turn operator(pg_catalog.>) (p_hold).turn and (n.from_turn operator(pg_catalog.<=) (p_hold).turn
    or p_attempt operator(pg_catalog.=) 1 and n.until operator(pg_catalog.<>) 't'
      and n.until operator(pg_catalog.<>) 'q')
$$;
comment on function trunq_queue._uniquespecimen_replaced_by is 'The message that stands for one, if another does.';

create or replace function trunq_queue._uniquespecimen_is_replaced(p_hold trunq.key_hold, p_attempt integer)
returns boolean
language sql stable as $$
  select trunq_queue._uniquespecimen_replaces() and trunq_queue._uniquespecimen_has_newer(p_hold, p_attempt)
$$;
comment on function trunq_queue._uniquespecimen_is_replaced is 'Whether another message stands for one.';

create or replace function trunq_queue._uniquespecimen_has_newer(p_hold trunq.key_hold, p_attempt integer)
returns boolean
-- Planned under the settings of the lease that calls it.
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return exists (select from trunq_queue._uniquespecimen_replaced_by(p_hold, p_attempt));
end $$;
comment on function trunq_queue._uniquespecimen_has_newer is 'The same, of a queue where one may.';

create or replace function trunq_queue._uniquespecimen_pass_over(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_by bigint[], p_now timestamptz
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_lease record;
begin
  select l.segment, l.tokens, l.awaited into v_lease
  from trunq_data._specimen_lease l where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  if v_lease.awaited is not null then
    perform trunq._reply(0 /*queue_id*/, p_subscription_id, array_agg(u.id), 'replaced', array_agg(format('replaced by message %s', u.by)), p_now)
    from unnest(p_ids, p_by) u(id, by) where u.id = any (v_lease.awaited) having count(*) > 0;
  end if;
  insert into trunq_data._specimen_receipt (lease_id, number, segment, subscription_id, outcome, size, ids, finished_at, errors)
  select p_lease_id, coalesce(max(r.number) + 1, 0), v_lease.segment, p_subscription_id, 'p', cardinality(p_ids), p_ids, p_now,
    array(select format('replaced by message %s', b) from unnest(p_by) b)
  from trunq_data._specimen_receipt r where r.lease_id = p_lease_id and r.segment = v_lease.segment and r.subscription_id = p_subscription_id;
  insert into trunq_data._uniquespecimen_freed (id) select unnest(p_ids);
  if v_lease.tokens is not null then
    update trunq_data._specimen_lease l set tokens = l.tokens + cardinality(p_ids)
    where l.subscription_id = p_subscription_id and l.lease_id = p_lease_id;
  end if;
end $$;
comment on function trunq_queue._uniquespecimen_pass_over is
  'Answers messages of a lease that others (p_by) stand for, in its own transaction: nobody handles them.';

create or replace function trunq_queue._uniquespecimen_take_dead_keys(p_dead_ids bigint[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_dead record;
  v_taken record;
  v_turn bigint;
  v_ids bigint[] := '{}';
begin
  for v_dead in
    select d.dead_id, d.id, d.extra->>'unique_key' unique_key, (d.extra->>'unique_until')::"char" unique_until,
      (d.extra->>'unique_turn')::bigint unique_turn
    from trunq.dead d where d.dead_id = any (p_dead_ids) order by d.extra->>'unique_key' collate "C", d.dead_id
  loop
    if v_dead.unique_key is not null then
      v_taken := trunq_queue._uniquespecimen_take_key(v_dead.unique_key, v_dead.id, 'q', null, false);
      if v_taken.turn is null and v_taken.holder <> v_dead.id then
        raise warning 'trunq: message % stays dead, because message % holds its unique key', v_dead.id, v_taken.holder;
        continue;
      end if;
      v_turn := v_taken.turn;
      if v_turn is not null then
        -- Its death had freed the key.
        delete from trunq_data._uniquespecimen_freed f where f.id = v_dead.id;
      else
        -- It holds the key for a time, or since it was requeued for another subscription.
        select max(x.turn) into v_turn from trunq_data._uniquespecimen_unique x where x.unique_key = v_dead.unique_key and x.id = v_dead.id;
      end if;
      if v_taken.turn is not null or v_turn <> v_dead.unique_turn then
        update trunq.dead d set extra = d.extra || jsonb_build_object('unique_turn', v_turn,
          'unique_until', case v_dead.unique_until when 't' then 'd' else v_dead.unique_until end)
        where d.dead_id = v_dead.dead_id;
      end if;
    end if;
    v_ids := v_ids || v_dead.dead_id;
  end loop;
  return v_ids;
end $$;
comment on function trunq_queue._uniquespecimen_take_dead_keys is
  'Takes the unique keys of dead messages that are about to be requeued.
Returns: those that may be: a key that another message holds leaves them dead.';

create or replace function trunq_queue._uniquespecimen_forget_keys(p_from bigint, p_blocks integer, p_is_checked boolean) returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
set trunq.plan = index as $$
declare
  c_replaces constant boolean := 'refuse' /*unique_policy*/ = 'replace';
  v_now timestamptz := trunq.clock();
  v_known record;
  v_keys text[];
  v_count integer;
  v_all integer;
begin
  -- By a slice of the table: keys that are free, turns that are over, and the messages of those that are not.
  select array_agg(s.unique_key) filter (where s.turn = 1 and s.is_free) keys,
    array_agg(s.place) filter (where s.turn > 1 and s.turn < s.newest and (s.is_freed or not c_replaces)) places,
    array_agg(s.id) filter (where not s.is_freed and (s.until <> 't' or s.turn < s.newest)) ids into v_known
  from (
    select x.ctid place, x.unique_key, x.turn, x.id, x.until, n.turn newest,
      exists (select from trunq_data._uniquespecimen_freed r where r.id = x.id) is_freed,
      case when n.until = 't' then n.free_at <= v_now else exists (select from trunq_data._uniquespecimen_freed r where r.id = n.id) end is_free
    from trunq_data._uniquespecimen_unique x cross join lateral (
      select y.* from trunq_data._uniquespecimen_unique y where y.unique_key = x.unique_key order by y.turn desc limit 1) n
    where x.ctid >= format('(%s,0)', p_from)::tid and x.ctid < format('(%s,0)', p_from + p_blocks)::tid) s;
  if p_is_checked and v_known.ids is not null then
    insert into trunq_data._uniquespecimen_freed (id)
    select unnest(trunq._nobody_handles(trunq._find_queue('_uniquespecimen'), v_known.ids[1:1000]));
  end if;
  with over as materialized (
    select x.ctid place from unnest(v_known.places) p(place) cross join lateral (
      select x.ctid from trunq_data._uniquespecimen_unique x where x.ctid = p.place for update skip locked) x),
  gone as (delete from trunq_data._uniquespecimen_unique d using over where d.ctid = over.place returning d.id),
  forgotten as (delete from trunq_data._uniquespecimen_freed r using gone where r.id = gone.id)
  select count(*) into v_count from gone;
  -- Publishers of these keys hold their first rows: they are left for the next time.
  v_keys := array(
    select x.unique_key from unnest(v_known.keys) k(k) cross join lateral (
      select x.unique_key from trunq_data._uniquespecimen_unique x where x.unique_key = k.k and x.turn = 1 for update skip locked) x);
  -- Under the locks, by a later statement.
  with free as materialized (
    select k.k from unnest(v_keys) k(k) cross join lateral (
      select x.turn, x.id, x.until, x.free_at from trunq_data._uniquespecimen_unique x where x.unique_key = k.k order by x.turn desc limit 1) n
    where case when n.until = 't' then n.free_at <= v_now else exists (select from trunq_data._uniquespecimen_freed r where r.id = n.id) end
      and (not c_replaces or not exists (
        select from trunq_data._uniquespecimen_unique x
        where x.unique_key = k.k and x.turn < n.turn and not exists (select from trunq_data._uniquespecimen_freed r where r.id = x.id)))),
  gone as (delete from trunq_data._uniquespecimen_unique d using free where d.unique_key = free.k returning d.id),
  forgotten as (delete from trunq_data._uniquespecimen_freed r using gone where r.id = gone.id)
  select count(*) into v_all from gone;
  return v_count + v_all;
end $$;
comment on function trunq_queue._uniquespecimen_forget_keys is
  'Forgets free keys of p_blocks pages from p_from on; p_is_checked: and frees those whose messages nobody is to handle. It waits for nobody.
Returns: how many turns it forgot.';
