-- Leases of a subscription of which somebody asks for a part; functions/work/ask.sql has the essay. c is what a lease knows
-- (trunq.leasing).

create or replace function trunq_queue._specimen_lease_asked(
  p_subscription text, p_worker text, p_max_messages integer, p_lease_time interval, p_max_bytes bigint, p_asks jsonb
) returns table (
  lease_id bigint, token bigint, id bigint, attempt smallint, max_attempts integer, kind text, key text, payload jsonb,
  body bytea, headers jsonb, priority smallint, created_at timestamptz, expires_at timestamptz, options jsonb
)
language plpgsql volatile rows 100 set search_path = pg_catalog, pg_temp set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v_sub constant trunq.subscription := trunq._subscription('_specimen', p_subscription, 'shared');
  v_id constant integer := v_sub.subscription_id;
  v_asks constant jsonb := coalesce(p_asks, '{}');
  c trunq.leasing; v_ask trunq.ask; v_asking trunq.asking; v_looked bigint; v_step record; v_first bigint;
  v_is_found boolean := false; v_xmax xid8; v_buried integer := 0; v_began_at constant timestamptz := clock_timestamp();
begin
  perform trunq._check_asks(v_asks);
  perform trunq._check_asked_for(v_sub, '_specimen', p_asks);
  v_asking := trunq._read_asks(v_asks);
  c := trunq_queue._specimen_lock_cursor(v_id, p_subscription, p_lease_time, p_max_messages);
  v_ask := trunq._note_ask(v_id, '_specimen', p_subscription, v_asks, c.leased_at);
  v_looked := v_ask.looked;
  -- What is set aside comes first.
  while c.max_messages > 0 loop
    v_step := trunq_queue._specimen_take_aside(c, p_worker, p_max_bytes, v_asking, v_looked);
    v_looked := v_step.looked;
    exit when v_step.lease_id is null and not v_step.is_more;
    if v_step.lease_id is not null then
      return query select * from trunq_queue._specimen_sort_out(v_id, v_step.lease_id, c.leased_at);
      v_is_found := found;
      exit when v_is_found;
      v_buried := v_buried + v_step.taken;
      c := trunq_queue._specimen_lock_cursor(v_id, p_subscription, p_lease_time, p_max_messages);
    end if;
    if trunq._has_buried_long(0 /*queue_id*/, v_buried, v_began_at) then
      c.max_messages := 0;
    end if;
  end loop;
  if not v_is_found and c.max_messages > 0 then
    c.began_at := v_began_at; c.first_xmax := pg_snapshot_xmax(c.hi); v_xmax := c.first_xmax;
    c := trunq._find_range(c, null, null);
    while c.is_over is not true loop
      v_step := trunq_queue._specimen_read_asked(c, p_worker, p_max_bytes, v_asking);
      v_first := coalesce(v_first, v_step.first);
      if v_step.lease_id is null then
        c := trunq_queue._specimen_go_further(c, null, p_worker);
      elsif v_step.taken > 0 then
        return query select * from trunq_queue._specimen_sort_out(v_id, v_step.lease_id, c.leased_at);
        v_is_found := found;
        exit when v_is_found;
        v_buried := v_buried + v_step.taken;
        c := trunq_queue._specimen_lock_cursor(v_id, p_subscription, p_lease_time, p_max_messages);
        c.began_at := v_began_at; c.first_xmax := pg_snapshot_xmax(c.hi);
        c := trunq._find_range(c, null, null);
      else
        c.last_txid := v_step.last_txid; c.last_id := v_step.last_id;
        c := trunq._find_range(c, null, null);
      end if;
      exit when trunq._has_buried_long(0 /*queue_id*/, v_buried, v_began_at);
    end loop;
    if not v_is_found and c.ahead >= v_xmax and c.hi is not null then
      -- Behind what was taken ahead: or the log would be kept for it until something else comes.
      perform trunq_queue._specimen_lease_given(c, p_worker, null, null, null, null, null);
    end if;
    if v_first is not null then
      perform trunq._call_askers(0 /*queue_id*/, v_id, v_first);
    end if;
  end if;
  perform trunq._keep_ask(v_ask, v_looked, not v_is_found, c.leased_at);
end $$;
comment on function trunq_queue._specimen_lease_asked is
  'What lease does where somebody asks for a part of the subscription; p_asks null: for everything. What comes next and was not asked for is set aside.';

create or replace function trunq_queue._specimen_read_asked(
  c trunq.leasing, p_worker text, p_max_bytes bigint, p_asking trunq.asking,
  out lease_id bigint, out taken integer, out first bigint, out last_txid xid8, out last_id bigint
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
begin
  with batch as materialized (
    select b.*, row_number() over () at from (
      select u.txid, u.id, u.attempt, coalesce(u.expiries, 0) > 1 is_suspect, u.hold,
        u.options->>'awaited' is not null is_awaited,
        -- What is for nobody any more is taken too: it is sorted out.
        u.attempt > 0 and (trunq._is_asked(p_asking, u.kind, u.key,
          trunq_queue._specimen_sifted(u.headers, u.options)) or trunq._fate_of(
          u.options, u.created_at, c.leased_at, c.oldest, c.has_cancelled, c.subscription_id, u.id) is not null) is_asked,
        trunq._message_bytes(u.kind, u.key, u.payload, u.body, u.headers) size
      from trunq_queue._specimen_upcoming(c.subscription_id, c.late, c.last_txid, c.last_id,
        c.from_txid, c.from_id, c.hi) u
      where (u.subscription_id = c.subscription_id or u.subscription_id is null and (c.reads_all or trunq._passes(
        c.kinds, c.not_kinds, c.keys, c.not_keys, c.headers, c.not_headers, u.kind, u.key,
        trunq_queue._specimen_sifted(u.headers, u.options))))
        and (c.ahead is null or u.attempt = 0 or u.txid > c.ahead
          or not trunq._is_ahead(c.subscription_id, u.txid, u.id))
      -- A number, not a variable: Postgres would plan for a tenth of all that waits.
      limit 1000) b),
  counted as materialized (
    select b.*, count(*) filter (where b.is_asked) over w n, sum(b.size) filter (where b.is_asked) over w bytes,
      bool_or(b.is_asked and b.is_suspect) over w is_with_suspect
    from batch b window w as (order by b.at)),
  cut as (
    select count(*) seen, least(max(d.at), min(d.at) filter (where d.is_asked and d.n = c.max_messages),
      -- A suspect is leased alone.
      min(d.at) filter (where d.is_asked and d.n > 1 and (d.is_with_suspect
        or d.bytes > coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/))) - 1) upto
    from counted d)
  select max(t.seen) seen, max(t.upto) upto, bool_or(d.attempt = 0) is_ended,
    array_agg(d.id order by d.at desc) ids, array_agg(d.txid order by d.at desc) txids,
    array_agg(d.id order by d.at) filter (where d.is_asked) asked_ids,
    array_agg(d.txid order by d.at) filter (where d.is_asked) asked_txids,
    array_agg(d.id order by d.at) filter (where not d.is_asked and d.attempt > 0) other_ids,
    array_agg(d.txid order by d.at) filter (where not d.is_asked and d.attempt > 0) other_txids,
    array_agg(d.id) filter (where d.is_asked and d.is_awaited) awaited,
    array_agg(d.id) filter (where d.is_asked and (d.hold).is_keyed) keyed,
    array_agg(d.id) filter (where d.is_asked and (d.hold).is_freed) freed,
    nullif(bool_or(d.is_asked and d.is_suspect), false) is_suspect
  into v from counted d cross join cut t where d.at <= t.upto;
  if v.asked_ids is null and v.other_ids is null then
    return;
  end if;
  if v.upto < v.seen or v.seen = 1000 and not v.is_ended then
    last_txid := v.txids[1]; last_id := v.ids[1];
  elsif v.is_ended then
    last_txid := v.txids[1]; last_id := greatest(v.ids[1], case when v.txids[2] = v.txids[1] then v.ids[2] end);
  else
    last_txid := pg_snapshot_xmax(c.hi); last_id := 0;
  end if;
  taken := coalesce(cardinality(v.asked_ids), 0);
  c.last_txid := last_txid; c.last_id := last_id;
  lease_id := trunq_queue._specimen_lease_given(c, p_worker, v.asked_ids, v.asked_txids, v.is_suspect, v.awaited,
    trunq_queue._specimen_note_keys(v.keyed, v.freed));
  if v.other_ids is not null then
    -- Copied after the lease is written: trunq.delete, which locks leases, then waits for the copy, or the copy is of what it left.
    first := trunq_queue._specimen_set_aside(c.subscription_id, v.other_ids, v.other_txids, c.leased_at);
  end if;
end $$;
comment on function trunq_queue._specimen_read_asked is
  'The step of a lease that asks, at the position: leases what comes next and is asked for, and sets aside what is not, out of a thousand.
Returns: the lease (null: nothing came), how many it took, the first number of what was set aside, and the position.';

create or replace function trunq_queue._specimen_lease_given(
  c trunq.leasing, p_worker text, p_ids bigint[], p_txids xid8[], p_is_suspect boolean, p_awaited bigint[],
  p_keyed bigint[]
) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_lease_id constant bigint := nextval('trunq_data._specimen_lease_id');
  v_is_empty constant boolean := p_ids is null;
begin
  insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
    min_txid, max_txid, size, ids, txids, leased_at, expires_at, is_suspect, tokens, tokens_at, open_leases,
    awaited, keyed, ahead)
  values (v_lease_id, c.subscription_id, trunq._token(), p_worker, c.lo, c.hi, c.last_txid, c.last_id,
    p_txids[1]::text::bigint, p_txids[cardinality(p_txids)]::text::bigint, cardinality(p_ids), p_ids, p_txids,
    c.leased_at, case when not v_is_empty then c.expires_at end, p_is_suspect,
    c.tokens - coalesce(cardinality(p_ids), 0), c.tokens_at,
    case when v_is_empty then c.open_leases when c.open_leases is not null then c.open_leases || v_lease_id end,
    p_awaited, p_keyed, c.ahead);
  return v_lease_id;
end $$;
comment on function trunq_queue._specimen_lease_given is 'Writes a lease of some messages, or of none, which only moves the position.';

create or replace function trunq_queue._specimen_set_aside(
  p_subscription_id integer, p_ids bigint[], p_txids xid8[], p_now timestamptz
) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = nested
-- Columns of the user go through jsonb, as in trunq_queue._specimen_give_back.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
as $$
declare
  v_is_wider constant boolean := trunq._is_wider('trunq_log._specimen'::regclass);
  v_first bigint;
begin
  with set_aside as (
    insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt, priority, kind, key, payload, body, headers, errors, extra,
      expiries, options, aside, aside_at)
    select 0 /*queue_id*/, g.id, p_subscription_id, '9999-01-01 00:00:00+00', g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body,
      g.headers, g.errors, g.extra, g.expiries, g.options, nextval('trunq.aside_number'), p_now
    from (
      select g.* from unnest(p_ids, p_txids) with ordinality u(id, txid, at) cross join lateral (
        select g.id, g.created_at, g.attempt, g.priority, g.kind, g.key, g.payload, g.body, g.headers, g.errors, g.expiries, g.options,
          case when v_is_wider then trunq._extra(to_jsonb(g)) end extra
        from trunq_log._specimen g
        where trunq._is_row(g.txid, g.id, g.subscription_id, u.txid, u.id, p_subscription_id) offset 0) g
      order by u.at) g
    returning aside)
  select min(s.aside) into v_first from set_aside s;
  return v_first;
end $$;
comment on function trunq_queue._specimen_set_aside is
  'Copies rows of the log, which the position passes over, into trunq.delayed, until a lease asks for them. Returns: the first of their numbers.';

create or replace function trunq_queue._specimen_take_aside(
  c trunq.leasing, p_worker text, p_max_bytes bigint, p_asking trunq.asking, p_from bigint,
  out lease_id bigint, out taken integer, out looked bigint, out is_more boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = kept
as $$
#variable_conflict use_column
declare
  v record; v_rows tid[] := '{}'; v_bytes bigint := 0; v_is_full boolean := false;
begin
  looked := p_from; is_more := false; taken := 0;
  for v in
    select d.place, d.aside, coalesce(d.expiries, 0) > 1 is_suspect,
      trunq._message_bytes(d.kind, d.key, d.payload, d.body, d.headers) size
    from (
      select d.ctid place, d.* from trunq.delayed d
      where d.subscription_id = c.subscription_id and d.aside > p_from
      order by d.subscription_id, d.aside limit 10000) d
    where trunq._is_asked(p_asking, d.kind, d.key, trunq._sifted(d.headers, d.extra))
  loop
    v_is_full := v_rows <> '{}' and (v.is_suspect
      or v_bytes + v.size > coalesce(p_max_bytes, 16777216 /*limit lease_bytes*/));
    exit when v_is_full;
    v_rows := v_rows || v.place; v_bytes := v_bytes + v.size; looked := v.aside;
    v_is_full := cardinality(v_rows) >= c.max_messages or v.is_suspect;
    exit when v_is_full;
  end loop;
  if not v_is_full then
    -- It looked at all of them. More come under the lock of the subscription alone.
    select count(*) = 10000, coalesce(max(d.aside), p_from) into is_more, looked
    from (
      select d.aside from trunq.delayed d where d.subscription_id = c.subscription_id and d.aside > p_from
      order by d.subscription_id, d.aside limit 10000) d;
  end if;
  if v_rows = '{}' then
    return;
  end if;
  v := trunq_queue._specimen_put_back(v_rows);
  if cardinality(v.ids) is distinct from cardinality(v_rows) then
    -- Somebody has one just now, who may let it go.
    looked := p_from;
  end if;
  if v.ids = '{}' then
    -- The log refused them, and they are out of the way.
    is_more := true;
  elsif v.ids is not null then
    taken := cardinality(v.ids);
    lease_id := trunq_queue._specimen_lease_taken(c, p_worker, v.ids, v.awaited, v.is_suspect);
  end if;
end $$;
comment on function trunq_queue._specimen_take_aside is
  'The step of a lease that takes what is set aside from a number on, and is asked for: into the log, and leased there.
Returns: the lease (null: it took none), how many, how far it looked, and whether there is more to look at.';

create or replace function trunq_queue._specimen_put_back(
  p_rows tid[], out ids bigint[], out awaited bigint[], out is_suspect boolean
)
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = kept
-- Columns of the user go through jsonb, as in trunq_queue._specimen_give_back.
set DateStyle = 'ISO, YMD' set IntervalStyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
as $$
declare
  v_notify constant text := coalesce(current_setting('trunq.notify', true), '');
  v_statement constant text := format($q$
    with gone as (
      delete from trunq.delayed d using (
        select d.ctid from trunq.delayed d where d.ctid = any ($1) and d.aside is not null for update skip locked) x
      where d.ctid = x.ctid returning d.*, d.aside as at),
    %s
    select array_agg(g.id order by g.at) ids, array_agg(g.id) filter (where g.options->>'awaited' is not null) awaited,
      nullif(bool_or(coalesce(g.expiries, 0) > 1), false) is_suspect
    from gone g
  $q$, trunq._log(trunq._find_queue('_specimen'), 'gone'));
  v_row tid; v_one record; v_id bigint;
begin
  perform trunq._pass_gate('_specimen');
  -- They are leased at once: nobody need look for them.
  perform set_config('trunq.notify', 'off', true);
  begin
    execute v_statement into ids, awaited, is_suspect using p_rows;
  exception
    -- Of the lease, not of a message.
    when insufficient_resources or operator_intervention or object_not_in_prerequisite_state or transaction_rollback then
      raise;
    when others then
      -- A message that the log refuses must not hold up the others, as in trunq._promote_apart, which tries it again.
      ids := '{}';
      foreach v_row in array p_rows[1:100] loop
        begin
          execute v_statement into v_one using array[v_row];
          ids := ids || v_one.ids; awaited := awaited || v_one.awaited;
          is_suspect := coalesce(v_one.is_suspect, is_suspect);
        exception
          when insufficient_resources or operator_intervention or object_not_in_prerequisite_state or transaction_rollback then
            raise;
          when others then
            update trunq.delayed d set due_at = trunq.clock() + interval '1 minute', aside = null, aside_at = null
            where d.ctid = v_row returning d.id into v_id;
            raise warning 'trunq: message % cannot go into the log of queue %, and is tried again in a minute: %', v_id, '_specimen', sqlerrm;
        end;
      end loop;
  end;
  perform set_config('trunq.notify', v_notify, true);
  perform trunq._pass_gate(null);
end $$;
comment on function trunq_queue._specimen_put_back is
  'Puts rows of trunq.delayed that are set aside into the log again, under the lock of their subscription; what the log refuses is tried again in a minute, by promote. Returns: which; those that somebody else has just now are left out. Empty, not null: the log refused some, and took none.';

create or replace function trunq_queue._specimen_lease_taken(
  c trunq.leasing, p_worker text, p_ids bigint[], p_awaited bigint[], p_is_suspect boolean
) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set trunq.plan = kept as $$
declare
  v_txid constant xid8 := pg_current_xact_id();
  v_lease_id bigint; v_hold record;
begin
  select array_agg(h.id) filter (where (h.hold).is_keyed) keyed, array_agg(h.id) filter (where (h.hold).is_freed) freed
  into v_hold
  from (
    select g.id, g.hold from unnest(p_ids) u(id) cross join lateral (
      select g.id, trunq_queue._specimen_key_hold(g) hold from trunq_log._specimen g
      where trunq._is_row(g.txid, g.id, g.subscription_id, v_txid, u.id, c.subscription_id) offset 0) g) h;
  c.ahead := greatest(c.ahead, v_txid);
  v_lease_id := trunq_queue._specimen_lease_given(c, p_worker, p_ids, array_fill(v_txid, array[cardinality(p_ids)]),
    p_is_suspect, p_awaited, trunq_queue._specimen_note_keys(v_hold.keyed, v_hold.freed));
  insert into trunq.ahead (queue_id, subscription_id, id, txid, lease_id)
  select 0 /*queue_id*/, c.subscription_id, u.id, v_txid, v_lease_id from unnest(p_ids) u(id);
  return v_lease_id;
end $$;
comment on function trunq_queue._specimen_lease_taken is
  'Leases messages that this transaction has put into the log, ahead of the position.';
