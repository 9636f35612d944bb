-- Memos: small values that workers and programs keep about themselves, a queue or a tenant: how far an import came, when a partner was
-- last asked. A memo has a scope and a name; what a scope is, its users say. Each write gives it a version that never comes twice, not
-- even after a delete: so who names the version that he read (p_expected) overwrites nobody.

create or replace function trunq.set_memo(
  p_scope text, p_name text, p_value jsonb, p_expires interval default null, p_expected bigint default null
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_version bigint;
begin
  perform trunq._check_memo(p_scope, p_name);
  if p_value is null then
    perform trunq._fail('TQ005', format('memo "%s" of "%s" needs a value', p_name, p_scope), 'delete_memo takes it away; JSON has a null of its own');
  elsif octet_length(p_value::text) > trunq._limit('memo_bytes') then
    perform trunq._fail('TQ025',
      format('memo "%s" of "%s" is too large: %s bytes, at most %s', p_name, p_scope, octet_length(p_value::text), trunq._limit('memo_bytes')),
      'keep large data in a table of your own, and note where it is');
  end if;
  perform trunq._check_interval('the time of a memo', p_expires, '0');
  if p_expected > 0 then
    update trunq.memo m set value = p_value, version = nextval('trunq.memo_version'), updated_at = v_now, expires_at = v_now + p_expires
    where m.scope = p_scope and m.name = p_name and m.version = p_expected and (m.expires_at > v_now) is not false
    returning m.version into v_version;
  else
    insert into trunq.memo as m (scope, name, value, version, updated_at, expires_at)
    values (p_scope, p_name, p_value, nextval('trunq.memo_version'), v_now, v_now + p_expires)
    on conflict (scope, name) do update
      set value = excluded.value, version = excluded.version, updated_at = excluded.updated_at, expires_at = excluded.expires_at
      where p_expected is null or m.expires_at <= v_now
    returning m.version into v_version;
  end if;
  return v_version;
end $$;
comment on function trunq.set_memo is
  'Keeps a value under a scope and a name, until p_expires from now (null: for ever). p_expected: only if the memo still has this version, which the caller has read; 0: only if there is no memo.
Returns: its new version; null when the memo has another version than p_expected, and nothing was changed.
Raises: TQ005 for a scope or a name that is empty or over 200 bytes, no value, or a time that is over; TQ025 for a value over 65536 bytes.
Locks: the memo, against others who write it, to the end of the transaction.';

create or replace function trunq.get_memo(p_scope text, p_name text)
returns table (scope text, name text, value jsonb, version bigint, updated_at timestamptz, expires_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  perform trunq._check_memo(p_scope, p_name);
  return query
    select m.scope, m.name, m.value, m.version, m.updated_at, m.expires_at from trunq.memo m
    where m.scope = p_scope and m.name = p_name and (m.expires_at > trunq.clock()) is not false;
end $$;
comment on function trunq.get_memo is
  'A memo with its version, which set_memo and delete_memo take as p_expected.
Returns: no row when there is none.
Raises: TQ005.';

create or replace function trunq.delete_memo(p_scope text, p_name text, p_expected bigint default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_is_valid boolean;
begin
  perform trunq._check_memo(p_scope, p_name);
  delete from trunq.memo m where m.scope = p_scope and m.name = p_name and (p_expected is null or m.version = p_expected)
  returning (m.expires_at > trunq.clock()) is not false into v_is_valid;
  return coalesce(v_is_valid, false);
end $$;
comment on function trunq.delete_memo is
  'Deletes a memo; with p_expected, only that version.
Returns: false when there was none, or another version.
Raises: TQ005.
Locks: the memo.';

create or replace function trunq.list_memos(
  p_scope text default null, p_prefix text default null, p_limit integer default 1000, p_after_scope text default null, p_after text default null
) returns table (scope text, name text, value jsonb, version bigint, updated_at timestamptz, expires_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  perform trunq._check_limit(p_limit);
  return query
    select m.scope, m.name, m.value, m.version, m.updated_at, m.expires_at from trunq.memo m
    where (p_scope is null or m.scope = p_scope) and (p_prefix is null or starts_with(m.name, p_prefix))
      and (p_after is null or (m.scope, m.name) > (coalesce(p_after_scope, p_scope, ''), p_after))
      and (m.expires_at > trunq.clock()) is not false
    order by m.scope, m.name limit p_limit;
end $$;
comment on function trunq.list_memos is
  'Memos by scope and name, of one scope or all, p_limit of them at most (1,000); p_prefix: those whose names begin so; p_after_scope and p_after: scope and name of the last one of the page before.
Raises: TQ005.';

create or replace function trunq.forget_memos() returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_count integer;
begin
  delete from trunq.memo m using (
    select o.scope, o.name from trunq.memo o where o.expires_at <= trunq.clock() order by o.expires_at limit 1000 for update skip locked) old
  where m.scope = old.scope and m.name = old.name;
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq.forget_memos is
  'Deletes expired memos, at most 1,000; readers do not see them even before. A leader does so each minute.
Returns: how many.
Locks: the rows it deletes.';

create or replace function trunq._check_memo(p_scope text, p_name text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(p_scope, '') = '' or coalesce(p_name, '') = '' then
    perform trunq._fail('TQ005', 'a memo has a scope and a name', 'a scope is a text of yours: the name of a worker, a queue or a tenant');
  elsif greatest(octet_length(p_scope), octet_length(p_name)) > trunq._limit('memo_name_bytes') then
    perform trunq._fail('TQ005',
      format('the scope or the name of a memo is too long: %s bytes, at most %s', greatest(octet_length(p_scope), octet_length(p_name)), trunq._limit('memo_name_bytes')),
      'put what is long into the value');
  end if;
end $$;
comment on function trunq._check_memo is 'Refuses (TQ005) what cannot be the scope and the name of a memo.';

-- Whoever works for a queue, or administers it, keeps memos under its name: in the scope `orders`, or one that begins with `orders:`.

create or replace function trunq._memo_queue(p_scope text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$ select split_part(p_scope, ':', 1) $$;
comment on function trunq._memo_queue is 'The queue whose roles may use the memos of a scope.';

create or replace function trunq._check_scope(p_queue text, p_scope text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if trunq._memo_queue(p_scope) is distinct from p_queue then
    perform trunq._fail('42501', format('roles of queue "%s" keep their memos in its scope, not in "%s"', p_queue, p_scope),
      format('take the scope %s, or %s:something', p_queue, p_queue));
  end if;
end $$;
comment on function trunq._check_scope is 'Refuses (42501) a scope that is not of a queue.';
