-- A message that was given up is kept with every error until it is requeued (in the log again, for the subscription it
-- failed in, its attempts starting at one), purged, or older than its subscription keeps such (dead_retention).
--
-- A subscription may make a death known: by a WARNING in the server's log, a NOTIFY, or the message in another queue. A trigger on
-- trunq.dead does it, in the transaction of the death, whatever way it came; it is there since the first subscription wanted it. A message may
-- name the queue for it itself (its option dead_into), in the place of its subscription. None of it must
-- never fail an answer: what it cannot publish it warns of, and the message is in trunq.dead all the same.

create or replace function trunq.list_dead(
  p_queue text, p_subscription text default null, p_limit integer default 100, p_before bigint default null, p_brief boolean default false,
  p_kind text default null, p_key text default null, p_error text default null,
  p_older_than interval default null, p_newer_than interval default null, p_reason text default null, p_fingerprint text default null
) returns table (
  dead_id bigint, subscription text, id bigint, kind text, key text, payload jsonb, headers jsonb, attempts integer,
  reason text, errors jsonb, created_at timestamptz, died_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
begin
  perform trunq._check_limit(p_limit);
  return query
    select d.dead_id, d.name, d.id, d.kind, d.key, case when not p_brief then d.payload end, case when not p_brief then d.headers end,
      d.attempt::integer, d.reason, coalesce(case when p_brief then jsonb_path_query_array(d.errors, '$[last]') else d.errors end, '[]'),
      d.created_at, d.died_at
    from trunq._dead_ids(p_queue, p_subscription, null, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, p_reason, p_fingerprint, true) i(dead_id)
    cross join lateral (
      select d.*, s.name from trunq.dead d join trunq.subscription s on s.subscription_id = d.subscription_id
      where d.dead_id = i.dead_id offset 0) d
    order by d.dead_id desc;
end $$;
comment on function trunq.list_dead is
  'Dead messages, newest first, p_limit of them at most (100); p_before: the last dead_id of the page before. errors: one entry for each attempt. p_brief leaves out what is slow to read: payload and headers (null), and all errors but the last. Filters: p_kind, p_key, p_error (text that the last error contains, in upper or lower case), p_older_than and p_newer_than (how long it is dead), p_reason: rejected, max_attempts, lease_expired, expired or cancelled; p_fingerprint: those of one row of trunq.list_dead_groups.
Raises: TQ001, TQ002, TQ005.';

create or replace function trunq.count_dead(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null, p_reason text default null, p_fingerprint text default null
) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select count(*)
    from trunq._dead_ids(p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, p_reason, p_fingerprint, false));
end $$;
comment on function trunq.count_dead is
  'How many dead messages requeue or purge would take, given the same; with p_limit it stops counting there.
Returns: how many.
Raises: TQ001, TQ002; TQ005 for an unknown reason.';

create or replace function trunq.forget(p_queue text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_queue_id integer := v_queue.queue_id;
  v_now timestamptz := trunq.clock();
  v_count integer;
begin
  v_count := trunq._purge(v_queue_id, array(
    select o.dead_id from trunq.subscription s cross join lateral (
      select o.dead_id, o.died_at from trunq.dead o
      where o.queue_id = v_queue_id and o.subscription_id = s.subscription_id order by o.dead_id limit 1000) o
    where s.queue_id = v_queue_id and s.dead_retention is not null and o.died_at < v_now - s.dead_retention));
  perform trunq._forget_purged(v_queue);
  perform trunq._forget_unhandled(v_queue);
  return v_count + trunq._forget_cancelled(v_queue, v_now) + trunq._forget_progress(v_queue, v_now) + trunq._forget_keys(v_queue) + trunq._forget_replies(v_queue_id, v_now)
    + trunq._forget_captures(v_queue_id) + trunq._forget_forwarded(v_queue, v_now) + trunq._forget_ahead(v_queue) + trunq._forget_due(v_queue)
    + trunq._forget_tokens(v_queue_id, v_now) + trunq._forget_asks(v_queue, v_now);
end $$;
comment on function trunq.forget is
  'Deletes dead messages that are older than their subscription keeps them (dead_retention), and notes about cancellations, progress and leases by id of finished messages, at most 1,000 of each subscription; expired replies and tokens, at most 1,000 each; and forgets unique keys that nobody holds, captures of tables that were dropped, where messages were forwarded that are gone, and what leases asked for a day ago.
Returns: how many of all.
Raises: TQ001.
Locks: the rows it deletes.';

create or replace function trunq.requeue(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null, p_reason text default null, p_fingerprint text default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_count integer;
begin
  v_count := trunq._requeue(v_queue, array(select trunq._dead_ids(
    p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, p_reason, p_fingerprint, false)));
  perform trunq._audit('requeue', p_queue, jsonb_build_object('subscription', p_subscription, 'ids', p_ids[:20],
    'older_than', p_older_than, 'newer_than', p_newer_than, 'kind', p_kind, 'key', p_key, 'error', p_error, 'before', p_before, 'limit', p_limit, 'reason', p_reason, 'fingerprint', p_fingerprint), v_count);
  return v_count;
end $$;
comment on function trunq.requeue is
  'Hands dead messages out again, with all their attempts before them, their errors kept, even if they had expired (for max_age they are as old as this call): all of the queue or of one subscription, those named (p_ids), or those that the filters of list_dead find. p_limit: the oldest so many; p_before: only those with a smaller dead_id, so that calls in parts come to an end while messages die. A message whose unique key another holds stays dead, with a warning, and so does, silently, one that was deleted (trunq.delete).
Returns: how many.
Raises: TQ001, TQ002; TQ005 for an unknown reason.
Locks: the rows it requeues.';

create or replace function trunq._requeue(p_queue trunq.queue, p_dead_ids bigint[]) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C' as $$
declare
  v_dead_ids bigint[] := p_dead_ids;
  v_count integer;
begin
  -- Those that somebody deleted while they waited or ran died empty.
  if exists (select from trunq.deletion d where d.queue_id = p_queue.queue_id) then
    v_dead_ids := array(
      with named as materialized (select d.dead_id, d.id from trunq.dead d where d.dead_id = any (v_dead_ids))
      select n.dead_id from named n where n.id <> all (trunq._are_deleted(p_queue.queue_id, array(select n.id from named n))));
  end if;
  if p_queue.unique_policy is not null then
    execute format('select trunq_queue.%I($1)', p_queue.name || '_take_dead_keys') into v_dead_ids using v_dead_ids;
  end if;
  perform trunq._pass_gate(p_queue.name);
  execute format($q$
    with gone as (
      delete from trunq.dead d where d.dead_id = any ($1)
      returning d.*),
    wanted as (
      delete from trunq.cancelled c using gone g where c.subscription_id = g.subscription_id and c.id = g.id),
    again as (
      select g.id, g.subscription_id, g.created_at, 1::smallint as attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers,
        g.errors, null::smallint as expiries, case when s.max_age is null then nullif(g.options - 'expires_at', '{}')
          else trunq._note_due(g.options - 'expires_at', trunq.clock()) end as options, g.extra, g.dead_id as at
      from gone g left join trunq.subscription s on s.subscription_id = g.subscription_id),
    %s
    select count(*) from gone
  $q$, trunq._log(p_queue, 'again')) into v_count using v_dead_ids;
  perform trunq._pass_gate(null);
  return v_count;
end $$;
comment on function trunq._requeue is 'Hands dead messages out again, but those that were deleted and those whose unique key another holds. Returns: how many.';

create or replace function trunq.purge(
  p_queue text, p_subscription text default null, p_ids bigint[] default null,
  p_older_than interval default null, p_newer_than interval default null, p_kind text default null, p_key text default null,
  p_error text default null, p_before bigint default null, p_limit bigint default null, p_reason text default null, p_fingerprint text default null
) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_count integer;
begin
  v_count := trunq._purge((trunq._find_queue(p_queue)).queue_id, array(select trunq._dead_ids(
    p_queue, p_subscription, p_ids, p_older_than, p_newer_than, p_kind, p_key, p_error, p_before, p_limit, p_reason, p_fingerprint, false)));
  perform trunq._audit('purge', p_queue, jsonb_build_object('subscription', p_subscription, 'ids', p_ids[:20],
    'older_than', p_older_than, 'newer_than', p_newer_than, 'kind', p_kind, 'key', p_key, 'error', p_error, 'before', p_before, 'limit', p_limit, 'reason', p_reason, 'fingerprint', p_fingerprint), v_count);
  return v_count;
end $$;
comment on function trunq.purge is
  'Deletes dead messages for good: all of the queue or of one subscription, those named (p_ids), or those that the filters of list_dead find; p_before and p_limit as for requeue.
Returns: how many.
Raises: TQ001, TQ002; TQ005 for an unknown reason.
Locks: the rows it deletes.';

create or replace function trunq._purge(p_queue_id integer, p_dead_ids bigint[]) returns integer
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with gone as (
    delete from trunq.dead d where d.dead_id = any (p_dead_ids)
    returning d.subscription_id, d.id),
  unsaid as (
    delete from trunq.progress p using gone g where p.subscription_id = g.subscription_id and p.id = g.id),
  -- Its row in the log would tell of a death, and of no requeue: that may have gone with a later segment.
  noted as (
    insert into trunq.purged (queue_id, subscription_id, txid, ids)
    select p_queue_id, g.subscription_id, pg_current_xact_id(), array_agg(g.id order by g.id) from gone g group by g.subscription_id)
  select count(*)::integer from gone
$$;
comment on function trunq._purge is 'Deletes dead messages for good, and notes that it did. Returns: how many.';

create or replace function trunq._forget_purged(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_oldest xid8;
begin
  if exists (select from trunq.purged p where p.queue_id = p_queue.queue_id) then
    execute format('select g.txid from trunq_log.%I g order by g.txid, g.id limit 1', p_queue.log_table) into v_oldest;
    delete from trunq.purged p where p.queue_id = p_queue.queue_id and (p.txid <= v_oldest) is not false;
  end if;
end $$;
comment on function trunq._forget_purged is 'Forgets what was purged before the first row of the log: nothing of it is there any more.';

create or replace function trunq._warn_dead(p_queue trunq.queue)
returns table (queue text, subscription text, warning text, hint text, is_many boolean)
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select p_queue.name, n.reader,
    -- The same words until the next threshold: the leader logs each warning once.
    format('%s messages of subscription "%s" of queue "%s" have died within a day', case when n.number > 1000 then 'more than 1,000' else 'a hundred or more' end, n.reader, p_queue.name),
    format('see why, and requeue or purge them: trunq dead groups %s', p_queue.name), n.number > 1000
  from (
    select split_part(s.name, '#', 1) as reader, sum(d.number) as number
    from trunq.subscription s cross join lateral (
      -- They die in the order of their numbers, and those that are gone do not count.
      select count(*) filter (where w.died_at > trunq.clock() - interval '1 day' and w.reason not in ('expired', 'cancelled')) as number
      from (
        select d.died_at, d.reason from trunq.dead d
        where d.queue_id = p_queue.queue_id and d.subscription_id = s.subscription_id order by d.dead_id desc limit 1001) w) d
    where s.queue_id = p_queue.queue_id group by 1) n
  where n.number >= 100 order by n.reader
$$;
comment on function trunq._warn_dead is 'Subscriptions of which a hundred messages or more died within a day, of the newest 1,001, and are there still.';

create or replace function trunq.set_dead(
  p_queue text, p_subscription text default 'default', p_warn boolean default null, p_notify boolean default null, p_into text default null
) returns table (warns boolean, notifies boolean, into_queue text, channel text)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  -- Of a group by key, all its slots.
  v_ids integer[] := array(
    select s.subscription_id from trunq.subscription s left join trunq.subscription_group g on g.group_id = s.group_id
    where s.queue_id = v_queue.queue_id and p_subscription in (s.name, g.name) order by s.subscription_id);
  v_role text;
begin
  if v_ids = '{}' then
    perform trunq._subscription(p_queue, p_subscription);
  end if;
  if p_into = p_queue then
    perform trunq._fail('TQ005', format('what dies in queue "%s" cannot be published into the same queue', p_queue), 'requeue it, or name another queue');
  elsif p_into <> '' then
    perform trunq._find_queue(p_into);
  end if;
  if num_nonnulls(p_warn, p_notify, p_into) > 0 then
    insert into trunq.dead_policy (subscription_id) select unnest(v_ids) on conflict do nothing;
    update trunq.dead_policy p set warns = coalesce(p_warn, p.warns), notifies = coalesce(p_notify, p.notifies),
      into_queue = case when p_into is null then p.into_queue else nullif(p_into, '') end
    where p.subscription_id = any (v_ids);
    if not exists (select from pg_trigger t where t.tgrelid = 'trunq.dead'::regclass and t.tgname = 'tell') then
      v_role := trunq._become_owner();
      -- Nobody waits for what was not to be handled any more.
      create or replace trigger tell after insert on trunq.dead for each row when (new.reason not in ('expired', 'cancelled'))
        execute function trunq._tell_dead();
      perform set_config('role', v_role, true);
    end if;
  end if;
  return query
    select coalesce(p.warns, false), coalesce(p.notifies, false), p.into_queue, format('trunq_%s_dead', v_queue.queue_id)
    from (select) one left join trunq.dead_policy p on p.subscription_id = v_ids[1];
exception when lock_not_available then
  perform trunq._fail('TQ009', 'an open transaction has been giving messages up for 5 seconds',
    'end it (pg_stat_activity or pg_prepared_xacts shows it) and try again');
end $$;
comment on function trunq.set_dead is
  'Says how a subscription (left out: "default"), or a group, makes it known when a message of it dies, rejected or after its last attempt: p_warn: a WARNING in the log of the server; p_notify: a NOTIFY on channel, with the name of the subscription and the id; p_into: the message is published into that queue as well (empty: no more), its headers with trunq_dead: a list of where it died, and why. All of it happens in the transaction in which the message dies. Arguments that are left out keep their values.
Returns: how it is now, and the channel of the queue.
Raises: TQ001, TQ002, TQ005 for the queue itself; TQ009 while an open transaction gives messages up, the first time.
Locks: the dead messages of all queues, for a moment, the first time.';

create or replace function trunq._tell_dead() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_policy record;
  v_error text := new.errors #>> '{-1,error}';
begin
  select p.*, split_part(s.name, '#', 1) subscription, q.name queue into v_policy
  from trunq.dead_policy p join trunq.subscription s on s.subscription_id = p.subscription_id join trunq.queue q on q.queue_id = s.queue_id
  where p.subscription_id = new.subscription_id;
  if not found then
    return null;
  end if;
  if v_policy.warns then
    raise warning 'trunq: message % of queue "%" is dead for subscription "%" (%): %', new.id, v_policy.queue, v_policy.subscription, new.reason,
      left(split_part(v_error, E'\n', 1), 200);
  end if;
  -- A transaction that is to be prepared must not notify.
  if v_policy.notifies and current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify(format('trunq_%s_dead', new.queue_id), format('%s %s', v_policy.subscription, new.id));
  end if;
  -- A message that names a queue itself goes there: trunq._send_dead.
  if v_policy.into_queue is not null and new.options->>'dead_into' is null then
    perform trunq._publish_dead(new, v_policy.into_queue, v_policy.queue, v_policy.subscription);
  end if;
  return null;
end $$;
revoke execute on function trunq._tell_dead from public;
comment on function trunq._tell_dead is 'After a message died: makes it known as its subscription wants it (trunq.set_dead).';

create or replace function trunq._send_dead() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_into constant text := new.options->>'dead_into';
  v_queue text;
  v_subscription text;
begin
  select q.name, split_part(s.name, '#', 1) into v_queue, v_subscription
  from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id where s.subscription_id = new.subscription_id;
  -- A row by INSERT or COPY was asked nothing.
  if v_into = v_queue or not trunq._may_die_into(v_queue, v_into) then
    raise warning 'trunq: message % died and is not published into queue "%": its publishers may not publish there', new.id, v_into;
  elsif v_queue is not null then
    perform trunq._publish_dead(new, v_into, v_queue, v_subscription);
  end if;
  return null;
end $$;
revoke execute on function trunq._send_dead from public;
comment on function trunq._send_dead is 'After a message died that names a queue for it (its option dead_into): publishes it there.';

do $$
begin
  -- Where it is missing: to make a trigger locks the dead messages of all queues.
  if not exists (select from pg_trigger t where t.tgrelid = 'trunq.dead'::regclass and t.tgname = 'send') then
    create trigger send after insert on trunq.dead for each row when (new.options->>'dead_into' <> '' and new.reason not in ('expired', 'cancelled'))
      execute function trunq._send_dead();
  end if;
end $$;

create or replace function trunq._check_dead_into(p_queue text, p_into text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_into = p_queue then
    perform trunq._fail('TQ005', format('what dies in queue "%s" cannot be published into the same queue', p_queue), 'requeue it, or name another queue');
  end if;
  perform trunq._find_queue(p_into);
  if not trunq._may_die_into(p_queue, p_into) then
    perform trunq._fail('42501', format('publishers of queue "%s" may not publish into queue "%s", so no message of theirs can go there when it dies', p_queue, p_into),
      format('grant it to each of them: select trunq.grant_role(%L, ''publisher'', ...); or let the subscription say so: trunq.set_dead', p_into));
  end if;
end $$;
comment on function trunq._check_dead_into is 'Refuses (TQ001, TQ005, 42501) a queue that messages of another one cannot go to when they die.';

-- What dies is published with the owner's rights, and whoever published it named the queue. So nobody gets into a queue this way who could
-- not publish there himself: asked of the grants, since a death does not know whose message it is.
create or replace function trunq._may_die_into(p_queue text, p_into text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  with log as (
    select c.oid, c.relowner, c.relacl, q.name, trunq._has_tenants(q) has_tenants
    from trunq.queue q join pg_class c on c.relnamespace = 'trunq_log'::regnamespace and c.relname = q.log_table
    where q.name in (p_queue, p_into)),
  publisher as (
    select a.grantee from log l cross join lateral (
      select e.grantee from aclexplode(l.relacl) e where e.privilege_type = 'INSERT'
      union
      select e.grantee from pg_attribute t cross join lateral aclexplode(t.attacl) e
      where t.attrelid = l.oid and t.attacl is not null and e.privilege_type = 'INSERT'
      union
      select e.grantee from pg_proc p cross join lateral aclexplode(p.proacl) e
      where p.pronamespace = 'trunq_queue'::regnamespace and p.proname in (p_queue || '_publish_unique', p_queue || '_unique_many')
        and p.prosecdef and e.privilege_type = 'EXECUTE') a
    where l.name = p_queue and a.grantee <> l.relowner)
  select not exists (
    select from publisher p
    left join log i on i.name = p_into left join log l on l.name = p_queue
    where not coalesce(has_any_column_privilege(case p.grantee when 0 then 'public' else pg_get_userbyid(p.grantee) end, i.oid, 'insert')
      and (l.has_tenants or not i.has_tenants), true))
$$;
comment on function trunq._may_die_into is
  'Whether all who may publish into a queue may publish into another one, too, and there for no other tenant. True for a queue that is not there.';

create or replace function trunq._publish_dead(p_dead trunq.dead, p_into text, p_queue text, p_subscription text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_headers jsonb := case when jsonb_typeof(p_dead.headers) = 'object' then p_dead.headers else '{}' end;
  v_lineage jsonb := case when jsonb_typeof(v_headers->'trunq_dead') = 'array' then v_headers->'trunq_dead' else '[]' end;
  v_entry constant jsonb := jsonb_build_object('queue', p_queue, 'subscription', p_subscription, 'id', p_dead.id,
    'reason', p_dead.reason, 'attempts', p_dead.attempt, 'error', p_dead.errors #>> '{-1,error}', 'died_at', p_dead.died_at);
  v_inside text := current_setting('trunq.inside', true);
  v_timeout constant text := current_setting('lock_timeout');
  v_by_content constant boolean := exists (select from trunq.queue q where q.name = p_into and q.unique_on = 'content');
  v_own record;
begin
  -- Columns of the user's that both queues have.
  select string_agg(format(', %I', o.name), '' order by o.place) columns, string_agg(format(', e.%I', o.name), '' order by o.place) "values" into v_own
  from trunq.queue a cross join trunq.queue b cross join trunq._own_columns(b) o
  where p_dead.extra is not null and a.name = p_queue and b.name = p_into and o.is_given and p_dead.extra ? o.name
    and exists (select from trunq._own_columns(a) s where s.name = o.name and s.type = o.type);
  if not exists (select from trunq.queue q where q.name = p_into) then
    raise warning 'trunq: message % died and is not published into queue "%", which is gone', p_dead.id, p_into;
  elsif v_lineage @> jsonb_build_array(jsonb_build_object('queue', p_into)) then
    raise warning 'trunq: message % died and is not published into queue "%", where it died before', p_dead.id, p_into;
  else
    -- Whatever that queue refuses, a death is no time for it.
    perform trunq._pass_gate(p_into);
    p_dead.headers := v_headers || jsonb_build_object('trunq_dead', v_lineage || v_entry);
    if v_by_content then
      -- An answer, or the reaper, must not wait for whoever publishes the same in an open transaction.
      execute format('lock table trunq_log.%I in row exclusive mode', p_into);
      perform set_config('lock_timeout', '20ms', true);
    end if;
    execute format($q$
      insert into trunq_log.%1$I (kind, key, payload, body, headers
        %2$s)
      select d.kind, d.key, d.payload, d.body, d.headers
        %3$s from (select $1.*) d%4$s
    $q$, p_into, v_own.columns, v_own.values, case when v_own.columns is not null then format(' cross join jsonb_populate_record(null::trunq_log.%I, d.extra) e', p_into) end)
      using p_dead;
    perform trunq._pass_gate(nullif(v_inside, ''));
    if v_by_content then
      perform set_config('lock_timeout', v_timeout, true);
    end if;
  end if;
exception
  when lock_not_available then
    if not v_by_content then
      raise;
    end if;
    raise warning 'trunq: message % died and is not published into queue "%": another transaction publishes the same content', p_dead.id, p_into;
  when serialization_failure or deadlock_detected or insufficient_resources then
    raise;
  when others then
    raise warning 'trunq: message % died and cannot be published into queue "%": %', p_dead.id, p_into, sqlerrm;
end $$;
comment on function trunq._publish_dead is 'Publishes a message that died into another queue, with its lineage.';

create or replace function trunq._dead_ids(
  p_queue text, p_subscription text, p_ids bigint[], p_older_than interval, p_newer_than interval, p_kind text, p_key text,
  p_error text, p_before bigint, p_limit bigint, p_reason text, p_fingerprint text, p_newest boolean
) returns setof bigint
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue_id integer := (trunq._find_queue(p_queue)).queue_id;
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
begin
  perform trunq._check_word(p_reason, array(select distinct o.reason from trunq._outcomes() o where o.reason is not null order by 1), 'no message is dead by "%s"');
  perform trunq._check_ages(p_older_than, p_newer_than);
  if p_limit < 0 then
    perform trunq._fail('TQ005', format('p_limit must not be negative: %s', p_limit), 'leave it out for all');
  end if;
  -- Planned with what is given: a filter that is not asked for costs nothing. Ids are found by dead_message, all else is in the
  -- order of dead_newest.
  return query execute format($q$
    select o.dead_id
    from trunq.subscription s cross join lateral (
      select d.dead_id from trunq.dead d
      where d.queue_id = $1 and d.subscription_id = s.subscription_id
        and ($3 is null or d.id = any ($3))
        and %3$s
      order by d.dead_id %1$s %2$s limit $11) o
    where s.queue_id = $1 and ($2 is null or s.subscription_id = $2)
    order by o.dead_id %2$s limit $11
  $q$, case when p_ids is not null then '+ 0' end, case when p_newest then 'desc' end, trunq._dead_condition())
  using v_queue_id, v_subscription_id, p_ids, p_older_than, trunq.clock(), p_newer_than, p_kind, p_key, p_error, p_before, p_limit, p_reason, p_fingerprint;
end $$;
comment on function trunq._dead_ids is
  'The dead_ids that a list, a count, requeue and purge are about: the newest or the oldest p_limit that all filters given find.';

create or replace function trunq._dead_condition() returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  -- $5 is the time it is asked at.
  select $q$(($4 is null or d.died_at < $5 - $4) and ($6 is null or d.died_at >= $5 - $6)
    and ($7 is null or d.kind = $7) and ($8 is null or d.key = $8)
    and ($9 is null or strpos(lower(d.errors #>> '{-1,error}'), lower($9)) > 0)
    and ($10 is null or d.dead_id < $10) and ($12 is null or d.reason = $12)
    and ($13 is null or trunq._begins_alike(d.errors, $13) and trunq._fingerprint(d.errors, d.reason) = $13))$q$
$$;
comment on function trunq._dead_condition is 'What a dead message d has to be like, by $4 to $13: the filters of list_dead, in the order of _dead_ids.';

create or replace function trunq._subscription_id(p_queue text, p_subscription text) returns integer
language sql stable as $$
  select case when p_subscription is not null then (trunq._subscription(p_queue, p_subscription)).subscription_id end
$$;
comment on function trunq._subscription_id is 'The id of a subscription by name, or TQ001, TQ002; null for null.';
