-- The pace at which one host is called with the same credentials: all runs that call it share a row (src/trunq/pipeline/pace.py makes its name).
-- A request takes the next moment that is free, and the row says from when on there is another: so nobody holds anything, and a runner that
-- dies before its moment costs the others that one. Each pipeline says how long its own requests take (per_second). An API that wants none for
-- a while (Retry-After) is left alone by all of them: held_until. The clock is that of the database: where it has gone back since, all of this is void.

create or replace function trunq._take_pace(p_name text, p_every double precision) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_every interval := make_interval(secs => p_every);
  v_pace trunq.pace;
  v_is_new boolean;
begin
  select p.* into v_pace from trunq.pace p where p.name = p_name;
  if v_pace.noted_at > trunq.clock() + interval '1 second' then
    delete from trunq.pace p where p.name = p_name and p.noted_at = v_pace.noted_at;
    v_pace := null;
  end if;
  if v_pace.held_until > trunq.clock() then
    return jsonb_build_object('seconds', extract(epoch from v_pace.held_until - trunq.clock()), 'is_ours', false);
  elsif p_every is null then
    return jsonb_build_object('seconds', 0, 'is_ours', true);
  end if;
  -- Whoever waits for the row takes its moment, and looks at the clock, behind it.
  insert into trunq.pace as p (name, next_at, noted_at) values (p_name, trunq.clock() + v_every, trunq.clock())
  on conflict (name) do update set next_at = greatest(p.next_at, trunq.clock()) + v_every, noted_at = trunq.clock()
  returning p.next_at - v_every, p.xmax = 0 into v_pace.next_at, v_is_new;
  if v_is_new then
    delete from trunq.pace p where p.ctid = any (array(select o.ctid from trunq.pace o
      where greatest(o.next_at, o.held_until) < trunq.clock() - interval '1 day' limit 100 for update skip locked));
  end if;
  return jsonb_build_object('seconds', greatest(0, extract(epoch from v_pace.next_at - trunq.clock())), 'is_ours', true);
end $$;
comment on function trunq._take_pace is 'Takes the next moment for a request (p_every: the seconds that it takes; null: as many as one wants): in how many seconds that is, and whether it is ours; it is not where the API wants none until then. Those that nobody has used for a day go.';

create or replace function trunq._is_pace_held(p_name text) returns boolean
language sql set search_path = pg_catalog, pg_temp as $$
  select exists (select from trunq.pace p where p.name = p_name and p.held_until > trunq.clock() and (p.noted_at > trunq.clock() + interval '1 second') is not true)
$$;
comment on function trunq._is_pace_held is 'Whether an API wants no request now.';

create or replace function trunq._hold_pace(p_name text, p_seconds double precision) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  -- Who waited for this takes its moments from then on, one behind the other.
  insert into trunq.pace as p (name, next_at, held_until, noted_at)
  select p_name, t.until, t.until, trunq.clock() from (select trunq.clock() + make_interval(secs => p_seconds) as until) t
  on conflict (name) do update set next_at = greatest(p.next_at, excluded.held_until), held_until = greatest(p.held_until, excluded.held_until), noted_at = excluded.noted_at
$$;
comment on function trunq._hold_pace is 'An API wants no request for so many seconds, from whoever calls it at this pace.';
