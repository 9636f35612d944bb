-- A message that must run later lies in trunq.delayed: published with a delay, or retried with back-off. When due it is
-- inserted into the log (again), same id, its attempt already counted. This is an old-style table that is deleted from, so
-- each promotion starts at the last due time promoted: under a pinned horizon it would otherwise walk its dead rows.

create or replace function trunq.promote(p_queue text, p_max integer default 1000) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = nested set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
-- One plan: planning again would probe the index at its end, through all its dead entries.
as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_now timestamptz := trunq.clock();
  v_mark record;
  v_from timestamptz := '-infinity';
  v_from_id bigint := 0;
  v_last timestamptz;
  v_last_id bigint := 0;
  v_count integer := 0;
  v_parked integer := 0;
  v_full boolean;
  v_has_age boolean;
  v_statement text;
begin
  -- A row that committed late, or was put off less far, lies below the mark: a full look once a minute finds it.
  select m.at, m.last_id, f.at as full_at into v_mark from trunq.mark m
  left join trunq.mark f on f.queue_id = m.queue_id and f.subscription_id = 0 and f.duty = 'promote_all'
  where m.queue_id = v_queue.queue_id and m.subscription_id = 0 and m.duty = 'promote';
  v_full := v_mark.full_at is null or v_now - v_mark.full_at not between '0' and '1 minute';
  if not v_full then
    v_from := least(v_mark.at, v_now);
    v_from_id := case when v_from = v_mark.at then v_mark.last_id else 0 end;
  else
    -- Retries and dead messages that an answer wrote while its subscription ended.
    delete from trunq.delayed d
    where d.queue_id = v_queue.queue_id and d.subscription_id = any (trunq._ended_readers(v_queue.queue_id));
    delete from trunq.dead d
    where d.queue_id = v_queue.queue_id and not exists (select from trunq.subscription s where s.subscription_id = d.subscription_id);
  end if;
  -- Asked first: an insert of no rows rings the bell all the same, and every idle worker would look twice a second.
  if exists (
    select from trunq.delayed d where d.queue_id = v_queue.queue_id and (d.due_at, d.id) > (v_from, v_from_id) and d.due_at <= v_now
  ) then
    v_parked := trunq._time_out_parked(v_queue, v_from, v_from_id, v_now, p_max);
    v_statement := format($q$
      with due as materialized (
        select d.ctid, d.due_at from trunq.delayed d
        where d.queue_id = $1 and (d.due_at, d.id) > ($2, $5) and d.due_at <= $3 and ($6 is null or d.ctid = $6) and d.parked_at is null
        order by d.due_at, d.id limit $4 for update skip locked),
      gone as (
        delete from trunq.delayed d using due where d.ctid = due.ctid
        returning d.*, d.due_at as at),
      -- Where a subscription asks how old a message is, one that was published for later is so old since then. A retry stays so old.
      ready as not materialized (
        select g.id, g.subscription_id, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors, g.expiries,
          case when $7 and g.subscription_id is null then trunq._note_due(g.options, g.due_at) else g.options end options, g.extra, g.at
        from gone g),
      -- So that warnings go on naming them (trunq._unhandled_ready).
      unhandled as (
        insert into trunq.unhandled (queue_id, subscription_id, kind, txid, ids)
        select $1, g.subscription_id, g.kind, pg_current_xact_id(), array_agg(g.id) from gone g
        where g.errors -> -1 ? 'times' and g.subscription_id is not null group by g.subscription_id, g.kind),
      %s %s
      select count(*), max(g.due_at), max(g.id) filter (where g.due_at = l.due_at)
      from gone g cross join (select max(due_at) due_at from gone) l
    $q$, trunq._enter_due(v_queue), trunq._log(v_queue, 'ready'));
    v_has_age := exists (select from trunq.subscription s where s.queue_id = v_queue.queue_id and s.max_age is not null);
    perform trunq._pass_gate(v_queue.name);
    begin
      execute v_statement into v_count, v_last, v_last_id using v_queue.queue_id, v_from, v_now, p_max, v_from_id, null::tid, v_has_age;
    exception when insufficient_resources then
      raise;  -- a full disk refuses no message: all of them again, not each in a minute
    when others then
      -- A message that the log refuses (a constraint or trigger of the user's) must not hold up the others.
      p_max := least(p_max, 100);
      select a.count, a.last, a.last_id into v_count, v_last, v_last_id
      from trunq._promote_apart(v_queue, v_statement, v_from, v_from_id, v_now, p_max, v_has_age) a;
    end;
    perform trunq._pass_gate(null);
  end if;
  -- As many as asked for: there may be more, go on behind the last. Less: nothing due is left, but a due time is given by the
  -- clock before its row commits, so look a little behind the next time.
  if v_parked >= p_max then
    v_last := v_from;
    v_last_id := v_from_id;
  elsif v_count < p_max then
    v_last := v_now - interval '5 seconds';
    v_last_id := 0;
  end if;
  if v_full or v_count > 0 or v_last > v_from + interval '5 seconds' then
    insert into trunq.mark (queue_id, duty, at, last_id)
    select v_queue.queue_id, d.duty, d.at, d.last_id
    from (values ('promote', v_last, v_last_id), ('promote_all', case when v_full then v_now end, 0)) d(duty, at, last_id)
    where d.at is not null
    on conflict (queue_id, subscription_id, duty) do update set at = excluded.at, last_id = excluded.last_id;
  end if;
  return v_count + v_parked;
end $$;
comment on function trunq.promote is
  'Inserts messages that are due into the log, at most p_max (1,000), and fails those that are due and parked, as many.
Returns: how many.
Raises: TQ001.
Locks: the rows it promotes; rows locked by another are left to it. Where a subscription hands out first what fell due, another promotion of the queue.';

create or replace function trunq._note_due(p_options jsonb, p_due_at timestamptz) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case when isfinite(p_due_at) then
    coalesce(p_options, '{}') || jsonb_build_object('due_at', to_char(p_due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) else p_options end
$$;
comment on function trunq._note_due is
  'The options of a message that fell due at some time: it is as old as that, for a subscription with max_age. A time that never was (-infinity) is not noted.';

create or replace function trunq._ended_readers(p_queue_id integer) returns integer[]
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_ended integer[] := '{}';
  v_id integer := 0;
begin
  -- From one to the next by the index, past however many messages of each.
  loop
    select d.subscription_id into v_id from trunq.delayed d
    where d.queue_id = p_queue_id and d.subscription_id > v_id order by d.queue_id, d.subscription_id limit 1;
    exit when not found;
    if not exists (select from trunq.subscription s where s.subscription_id = v_id) then
      v_ended := v_ended || v_id;
    end if;
  end loop;
  return v_ended;
end $$;
comment on function trunq._ended_readers is 'Subscriptions that are gone, and of which messages are delayed.';

create or replace function trunq._has_delayed(p_queue text, p_subscription text, p_kinds text[] default null, p_asks jsonb default null)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
  v_asking constant trunq.asking := trunq._read_asks(p_asks);
begin
  return exists (
    select from trunq.delayed d
    where d.queue_id = v_sub.queue_id and (d.subscription_id is null or d.subscription_id = v_sub.subscription_id)
      and d.parked_at is null and d.aside is null and (p_asks is null or trunq._is_asked(v_asking, d.kind, d.key, trunq._sifted(d.headers, d.extra)))
      and (p_kinds is null or (d.errors -> -1 ? 'times') is not true or d.kind = any (p_kinds)));
end $$;
comment on function trunq._has_delayed is 'Whether a delayed message of a subscription waits for its time, or for a worker that has a handler for one of these kinds (null: for any), and p_asks asks for it; what is parked, or set aside, waits for neither.';

create or replace function trunq._count_unhandled(p_queue text, p_subscription text, p_kinds text[]) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription);
begin
  return (
    select count(*) from trunq.delayed d
    where d.queue_id = v_sub.queue_id and (d.subscription_id is null or d.subscription_id = v_sub.subscription_id)
      and d.errors -> -1 ? 'times' and (d.kind = any (p_kinds)) is not true);
end $$;
comment on function trunq._count_unhandled is 'How many delayed messages of a subscription wait for a worker that has a handler, but not for one that has one for these kinds.';

create or replace function trunq._promote_apart(
  p_queue trunq.queue, p_statement text, p_from timestamptz, p_from_id bigint, p_now timestamptz, p_max integer,
  p_has_age boolean, out count integer, out last timestamptz, out last_id bigint
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_row record;
begin
  count := 0;
  for v_row in
    select d.ctid, d.due_at, d.id from trunq.delayed d
    where d.queue_id = p_queue.queue_id and (d.due_at, d.id) > (p_from, p_from_id) and d.due_at <= p_now and d.parked_at is null
    order by d.due_at, d.id limit p_max for update skip locked
  loop
    begin
      execute p_statement using p_queue.queue_id, p_from, p_now, 1, p_from_id, v_row.ctid, p_has_age;
    exception when insufficient_resources then
      raise;
    when others then
      raise warning 'trunq: message % cannot go into the log of queue %, and is tried again in a minute: %', v_row.id, p_queue.name, sqlerrm;
      update trunq.delayed d set due_at = p_now + interval '1 minute' where d.ctid = v_row.ctid;
    end;
    count := count + 1; last := v_row.due_at; last_id := v_row.id;
  end loop;
end $$;
comment on function trunq._promote_apart is
  'Promotes messages one by one; one that the log refuses is put off for a minute, with a warning. Returns: how many it looked at, and the last of them.';
