-- What tests/hostile.py plants.
do $plant$
declare
  c_body constant text := $$
    language plpgsql as 'begin raise exception ''a function of somebody else was run''; end' $$;
  c_elements constant text[] := array['text', 'integer', 'bigint', 'jsonb', 'oid', 'boolean', 'name'];
  c_operators constant text[] := array['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '&', '|', '||', '->', '->>', '?', '@>', '<@', '~', '!~'];
  v record;
  v_operator text;
begin
  perform set_config('search_path', 'pg_catalog', true);
  -- Of pairs of types: those that Postgres's own operators take by a coercion, or as any element and any array.
  for v in
    select distinct p.l, p.r from (
      select e || '[]' l, e || '[]' r from unnest(c_elements) e
      union all select e, e || '[]' from unnest(c_elements) e
      union all select e || '[]', e from unnest(c_elements) e
      union all select l, r from unnest(array['smallint', 'integer', 'bigint', 'numeric', 'real', 'double precision']) l,
        unnest(array['smallint', 'integer', 'bigint', 'numeric', 'real', 'double precision']) r
      union all values ('text', 'name'), ('name', 'text'), ('"char"', 'text'), ('text', '"char"'), ('oid', 'regclass'), ('regclass', 'oid'), ('oid', 'integer'),
        ('integer', 'oid'), ('regtype', 'regtype'), ('interval', 'integer'), ('interval', 'bigint'), ('interval', 'real'), ('bigint', 'interval'),
        ('real', 'interval'), ('integer', 'interval'), ('text', 'integer'), ('text', 'bigint'), ('text', 'jsonb'), ('jsonb', 'bigint'), ('varchar', 'text')
      union all select t, t from unnest(array['text', 'name', '"char"', 'boolean', 'jsonb', 'xid8', 'timestamptz', 'interval', 'oid']) t where current_setting('hostile.exact')::boolean) p(l, r)
    order by 1, 2
  loop
    execute format('create function public.hostile(%s, %s) returns boolean %s', v.l, v.r, c_body);
    foreach v_operator in array c_operators loop
      if current_setting('hostile.exact')::boolean or not exists (
          select from pg_operator o
          where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprname = v_operator and o.oprleft = v.l::regtype and o.oprright = v.r::regtype) then
        execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.hostile)', v_operator, v.l, v.r);
      end if;
    end loop;
  end loop;
  -- Of every function whose name is called in what we made: with each of these types for any element, and elements of them for any array.
  for v in
    select distinct p.proname as name, a.arguments
    from (
      select distinct m[1] as name from pg_proc f cross join regexp_matches(f.prosrc, '\m([a-z_][a-z0-9_]*)\(', 'g') m
      where f.pronamespace in (select n.oid from pg_namespace n where n.nspname ~ '^(trunq|pgq)')) called
    join pg_proc p on p.proname = called.name and p.pronamespace = 'pg_catalog'::regnamespace and p.pronargs > 0
    cross join unnest(c_elements) e(element)
    cross join lateral (
      select string_agg(case
        when t.type in ('anyelement', 'anynonarray', 'anycompatible', 'anycompatiblenonarray') then e.element
        when t.type in ('anyarray', 'anycompatiblearray') then e.element || '[]'
        when t.type = 'any' then e.element
        else format_type(t.oid, null) end, ', ' order by t.n) arguments, bool_or(t.type ~ '^any') is_polymorphic,
        bool_or(t.type in ('internal', 'cstring', 'anyenum', 'anyrange', 'anymultirange', 'anycompatiblerange', 'anycompatiblemultirange', 'record', 'trigger')) is_odd
      from (select y.oid, y.typname::text type, u.n from unnest(p.proargtypes::oid[]) with ordinality u(oid, n) join pg_type y on y.oid = u.oid) t) a
    where not a.is_odd and (a.is_polymorphic or current_setting('hostile.exact')::boolean)
    order by 1, 2
  loop
    execute format('create function public.%I(%s) returns boolean %s', v.name, v.arguments, c_body);
  end loop;
end $plant$
