-- Who did what to how many. The functions of what people do by hand note it in the same transaction, so it is there exactly if it was
-- done: from a page, the shell, a client or psql. A program that acts for somebody says for whom: set_config('trunq.who', 'ada', true).

create or replace function trunq._audit(p_did text, p_queue text, p_arguments jsonb default '{}', p_messages bigint default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- Nothing was found.
  if p_messages = 0 then
    return;
  end if;
  insert into trunq.audit (at, who, login, application, address, did, queue, arguments, messages)
  select a.at, a.who, a.login, a.application, a.address, p_did, left(p_queue, 200), trunq._short(jsonb_strip_nulls(p_arguments)), p_messages
  from trunq._actor() a;
end $$;
comment on function trunq._audit is 'Notes that somebody did something.';

create or replace function trunq._audit_policy(p_queue text, p_before trunq.subscription) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_changed jsonb := (
    select jsonb_object_agg(a.key, case when a.key = 'filter' then nullif(nullif(a.value, 'null') - '{slot,slots}'::text[], '{}') else a.value end)
    from trunq.subscription s cross join lateral jsonb_each(to_jsonb(s)) a
    where s.subscription_id = p_before.subscription_id and a.value is distinct from to_jsonb(p_before)->a.key);
begin
  -- Programs say their policy each time they start.
  if v_changed is not null then
    insert into trunq.audit (at, who, login, application, address, did, queue, arguments)
    select a.at, a.who, a.login, a.application, a.address, 'subscribe', p_queue,
      trunq._short(jsonb_build_object('subscription', split_part(p_before.name, '#', 1)) || v_changed)
    from trunq._actor() a;
  end if;
end $$;
comment on function trunq._audit_policy is 'Notes what somebody changed of the policy of a subscription, or of a group by one of its slots; null: it has no such limit any more.';

create or replace function trunq._actor(out at timestamptz, out who text, out login text, out application text, out address text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select trunq.clock(), left(coalesce(nullif(current_setting('trunq.who', true), ''), session_user), 200), session_user::text,
    left(current_setting('application_name'), 200), host(inet_client_addr())
$$;
comment on function trunq._actor is 'Who acts, and from where.';

create or replace function trunq._short(p_arguments jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_object_agg(a.key, case when length(a.value::text) > 1000 then to_jsonb(left(a.value::text, 1000)) else a.value end), '{}')
  from jsonb_each(p_arguments) a
$$;
comment on function trunq._short is 'Arguments as the audit keeps them: each cut at 1,000 characters.';

create or replace function trunq.list_audit(
  p_queue text default null, p_limit integer default 100, p_before bigint default null, p_who text default null, p_did text default null
)
returns table (
  audit_id bigint, at timestamptz, who text, login text, application text, address text, did text, queue text, arguments jsonb, messages bigint
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  c_look constant integer := trunq._limit('list_rows');
  v_before bigint := coalesce(p_before, 9223372036854775807);
  v_found integer;
  v_to bigint;
begin
  perform trunq._check_limit(p_limit);
  perform set_config('trunq.looked_to', '', true);
  -- Each branch has an index in whose order it walks. A queue that was dropped has its rows too.
  if p_queue is null then
    return query
      select a.* from (select a.* from trunq.audit a where a.audit_id < v_before order by a.audit_id desc limit c_look) a
      where (p_who is null or a.who = p_who) and (p_did is null or a.did = p_did)
      order by a.audit_id desc limit p_limit;
    get diagnostics v_found = row_count;
    if v_found < p_limit then
      v_to := (select a.audit_id from trunq.audit a where a.audit_id < v_before order by a.audit_id desc offset c_look - 1 limit 1);
    end if;
  else
    return query
      select a.* from (select a.* from trunq.audit a where a.queue = p_queue and a.audit_id < v_before order by a.audit_id desc limit c_look) a
      where (p_who is null or a.who = p_who) and (p_did is null or a.did = p_did)
      order by a.audit_id desc limit p_limit;
    get diagnostics v_found = row_count;
    if v_found < p_limit then
      v_to := (select a.audit_id from trunq.audit a where a.queue = p_queue and a.audit_id < v_before order by a.audit_id desc offset c_look - 1 limit 1);
    end if;
  end if;
  if v_to is not null then
    perform set_config('trunq.looked_to', v_to::text, true);
    raise warning 'trunq: the list ends after a look at % records', c_look using hint = format('ask for the rest with p_before => %s', v_to);
  end if;
end $$;
comment on function trunq.list_audit is
  'Who did what, newest first, p_limit at most (100); p_before: the last audit_id of the page before; p_queue: of one queue, also of one that was dropped; p_who and p_did: of one person, of one function. did: the function that was called, arguments: what it was given (of lists of ids the first twenty), messages: how many it was done to, null where it is not about messages. who: for whom the program acted (its setting trunq.who), else login, the role that opened the session. With p_who or p_did a call looks at 100,000 records at most, and a WARNING says where to go on; a program reads that p_before in the same transaction, as current_setting(''trunq.looked_to''), which is empty where all was looked at.
Returns: one row for each call that was committed. Kept for 90 days, or as long as the setting trunq.audit_retention of the leader says.
Raises: TQ005.';

create or replace function trunq.forget_audit() returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_retention interval := coalesce(nullif(current_setting('trunq.audit_retention', true), ''), '90 days')::interval;
  v_count integer;
begin
  perform trunq._check_interval('the setting trunq.audit_retention', v_retention);
  delete from trunq.audit a
  where a.audit_id in (
    select o.audit_id from (select o.audit_id, o.at from trunq.audit o order by o.audit_id limit 1000 for update skip locked) o
    where o.at < trunq.clock() - v_retention);
  get diagnostics v_count = row_count;
  delete from trunq.sweep s where s.ended_at < trunq.clock() - v_retention;
  return v_count;
end $$;
comment on function trunq.forget_audit is
  'Deletes what trunq.list_audit shows and sweeps that ended, when they are older than 90 days, or than the setting trunq.audit_retention: alter database shop set trunq.audit_retention = ''1 year''. The leader does so every hour, with the setting of its own connection. A call looks at the 1,000 oldest rows.
Returns: how many it deleted.
Raises: TQ005.
Locks: the rows it deletes.';
