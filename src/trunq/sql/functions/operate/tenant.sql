-- Tenants share a queue; the key of a message says whose it is, and the setting trunq.tenant whom a session works for. Where a queue asks
-- for it, Postgres compares the two (row-level security) for everybody but the owner: in plain INSERT and SELECT, and so in publish and
-- publish_many, which run with the caller's rights. What publishes with unique keys runs with the owner's: there the code under
-- the constant c_has_tenants asks trunq._check_tenant.
--
-- It is a guard against mistakes. Whoever may run SQL may change the setting, so it does not keep one tenant from another who writes
-- statements of its own: that takes a queue for each, and a role on it.

create or replace function trunq.set_tenancy(p_queue text, p_tenancy boolean default true) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
begin
  perform trunq._require_read_committed('set_tenancy');
  v_role := trunq._become_owner();
  perform trunq._audit('set_tenancy', p_queue, jsonb_build_object('tenancy', p_tenancy));
  perform trunq._try_for_locks(p_queue, format('select 0 from trunq._set_tenancy($1, %L)', coalesce(p_tenancy, true)));
  perform trunq._restore_role(v_role);
end $$;
comment on function trunq.set_tenancy is
  'Lets roles that are not the owner publish into a queue, and read its log, for one tenant at a time: the key of a message must be the setting trunq.tenant (in Python: client.for_tenant). p_tenancy false: no more. A guard against mistakes, as a session may change the setting. Postgres refuses COPY there (publish_many takes its place). Workers, readers and admins see all tenants.
Raises: TQ001, TQ007; TQ009 while an open transaction uses the queue.
Locks: its log, exclusively, waiting 200 ms at a time.';

create or replace function trunq._set_tenancy(p_queue trunq.queue, p_tenancy boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if trunq._has_tenants(p_queue) = p_tenancy then
    return;
  elsif p_tenancy then
    execute format($q$
      create policy tenant on trunq_log.%1$I
        using (key = nullif(current_setting('trunq.tenant', true), '')) with check (key = nullif(current_setting('trunq.tenant', true), ''));
      alter table trunq_log.%1$I enable row level security
    $q$, p_queue.log_table);
  else
    execute format('alter table trunq_log.%1$I disable row level security; drop policy tenant on trunq_log.%1$I', p_queue.log_table);
  end if;
  perform trunq._define_queue(p_queue);
end $$;
comment on function trunq._set_tenancy is 'One try of set_tenancy, under the lock of the queue.';

create or replace function trunq._has_tenants(p_queue trunq.queue) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (
    select from pg_policy p join pg_class c on c.oid = p.polrelid
    where p.polname = 'tenant' and c.relnamespace = 'trunq_log'::regnamespace and c.relname = p_queue.log_table)
$$;
comment on function trunq._has_tenants is 'Whether a queue lets others than the owner publish for one tenant at a time.';

create or replace function trunq._check_tenant(p_queue text, p_keys text[]) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_tenant constant text := nullif(current_setting('trunq.tenant', true), '');
  v_owner constant oid := (select n.nspowner from pg_namespace n where n.nspname = 'trunq');
  v_other text;
begin
  -- Who began the session, or the role it took: inside a function with the owner's rights nobody else is known. A guard may go by it.
  if pg_has_role(case when current_setting('role') = 'none' then session_user else current_setting('role')::name end, v_owner, 'usage') then
    return;
  end if;
  select coalesce(k, '(none)') into v_other from unnest(p_keys) k where (k = v_tenant) is not true limit 1;
  if found or p_keys is null then
    perform trunq._fail('42501', format('queue "%s" is shared by tenants: a session for tenant "%s" publishes no message with the key "%s"', p_queue,
        coalesce(v_tenant, '(none)'), left(coalesce(v_other, '(none)'), 100)),
      'set trunq.tenant, in the transaction, to the key of its messages; client.for_tenant(key) does');
  end if;
end $$;
comment on function trunq._check_tenant is 'Refuses (42501) messages for another tenant than the session works for, from others than the owner.';
