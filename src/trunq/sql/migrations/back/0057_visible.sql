do $$
declare
  v_function text;
begin
  foreach v_function in array '{"trunq.overview(integer)","trunq._look_again(trunq.sample[], integer[], timestamptz)"}'::text[]
  loop
    if to_regprocedure(v_function) is not null then
      execute format('drop function %s', to_regprocedure(v_function));
    end if;
  end loop;
end $$;
drop policy role_of_queue on trunq.sample;
alter table trunq.sample disable row level security;
do $$
declare
  v_role text;
begin
  for v_role in select r.rolname from pg_class c cross join lateral aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
    where c.oid = 'trunq.sample'::regclass and a.grantee <> c.relowner and a.privilege_type = 'SELECT' loop
    execute format('revoke select on trunq.sample from %I', v_role);
  end loop;
end $$;
