-- An error has two readers: who runs the system reads what went wrong, and whoever waits for the result may see no more than a public text and
-- a reference. Both stand in the last line of the error, which alone is read:
--
--   ValueError: no such card: 4711
--     shop.py:12 in charge: raise ValueError(...)
--   reference 4JZ7K7M2Q9, public "Your card was declined."
--
-- So nothing that an error quotes in the lines above can pass for it; a public text is a JSON string, which has no line break. There is no
-- column and no index: what succeeds pays nothing, what fails some bytes.
--
-- A reference begins with the time when it was made: four characters for a stretch of five minutes (they come again after ten years), then six of
-- chance; letters and digits as Crockford's base 32 has them. So whoever looks for one need not read all errors: receipts and the archive are found
-- by their time, by BRIN and by month. Workers make references by their own clocks, and an answer may be late: the first look is at half an
-- hour, the second and last at two days.

create or replace function trunq.add_reference(p_error text, p_public text default null) returns text
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case when p_error is null or p_error = '' then l.line
    else left(p_error, trunq._limit('error_characters') - length(l.line) - 1) || E'\n' || l.line end
  from (
    select 'reference ' || trunq._new_reference() || case when p_public is null then '' else ', public '
      || to_json(left(p_public, trunq._limit('public_characters')))::text end line) l
$$;
comment on function trunq.add_reference is
  'Makes an error text for retry, time_out or reject: the internal text, cut to 8,000 characters, with a new reference below it and the text that users of your application may see (p_public, at most 1,000 characters). For those who lease and answer themselves: workers add references by themselves.
Returns: the text.';

create or replace function trunq.find_reference(p_reference text, p_queue text default null)
returns table (
  reference text, queue text, subscription text, id bigint, kind text, attempt integer, failed_at timestamptz, worker text, error text, public text
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_reference text;
  v_made_at timestamptz;
  v_reach interval;
  v_name text;
  v_found jsonb;
  v_is_found boolean := false;
begin
  if p_queue is not null and to_regclass(format('trunq_archive.%I', p_queue)) is null then
    perform trunq._find_queue(p_queue);
  end if;
  v_reference := trunq._read_reference(p_reference);
  v_made_at := trunq._reference_time(v_reference);
  foreach v_reach in array array['15 minutes', '1 day']::interval[] loop
    for v_name in
      select q.name from trunq.queue q where q.name = coalesce(p_queue, q.name)
      union
      -- Archives outlive their queues.
      select c.relname::text from pg_class c
      where c.relnamespace = 'trunq_archive'::regnamespace and c.relkind = 'p' and c.relname = coalesce(p_queue, c.relname)
      order by 1
    loop
      v_found := null;
      begin
        select jsonb_agg(f) into v_found
        from trunq._find_referred(v_name, v_reference, v_made_at - v_reach, v_made_at + v_reach + interval '5 minutes') f;
        raise exception using errcode = 'TQ000';  -- gives the locks back: a look at a thousand queues holds those of one
      exception when sqlstate 'TQ000' then
      end;
      continue when v_found is null;
      v_is_found := true;
      return query
        select v_reference, v_name, max(f.subscription), f.id, max(f.kind), max(f.attempt), f.failed_at, max(f.worker), max(f.error),
          trunq._public_of(max(f.error))
        from jsonb_to_recordset(v_found) f(
          subscription_id integer, subscription text, id bigint, kind text, attempt integer, failed_at timestamptz, worker text, error text)
        group by f.subscription_id, f.id, f.failed_at order by f.failed_at, f.id;
    end loop;
    exit when v_is_found;
  end loop;
end $$;
comment on function trunq.find_reference is
  'The attempts whose error has a reference: mostly one. It is read as people write it: small letters, spaces and hyphens, O for 0, I or L for 1. It looks in one queue or all, for what ended within 15 minutes of the time in the reference, and when nothing did within a day: in the receipts, which stay as long as the queue keeps messages, in the archive, and among the messages that are dead or wait for a retry. attempt, kind and worker are null where the log has gone.
Raises: TQ001; TQ005 for what cannot be a reference.';

create or replace function trunq.show_public(p_queue text, p_id bigint)
returns table (subscription text, state text, reference text, public text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return query
  select m.subscription, m.state, trunq._reference_of(m.error),
    -- One that was requeued, and cancelled, has the errors of its former life.
    case when m.state in ('dead', 'purged') and not exists (
        select from trunq.subscription s join trunq.queue q on q.queue_id = s.queue_id
        join trunq.dead d on d.queue_id = s.queue_id and d.subscription_id = s.subscription_id
        where q.name = p_queue and s.name = m.subscription and d.id = p_id and d.reason in ('cancelled', 'expired'))
      then trunq._public_of(m.error) end
  from trunq.show_message(p_queue, p_id) m;
end $$;
comment on function trunq.show_public is
  'What the users of your application may see of a message, a row a shared subscription: its state as in show_message, the reference of its last error unless it is done, and, of one that is dead, the public text it was rejected with. Never what the error says besides. Whether the message is theirs, your application must check.
Raises: TQ001, TQ013.';

create or replace function trunq._find_referred(p_name text, p_reference text, p_from timestamptz, p_to timestamptz)
returns table (subscription_id integer, subscription text, id bigint, kind text, attempt integer, failed_at timestamptz, worker text, error text)
language plpgsql stable set search_path = pg_catalog, pg_temp
-- Receipts and archive by their BRIN on finished_at, leases and log by their indexes, whatever the statistics say.
set trunq.plan = brin as $$
declare
  v_queue trunq.queue;
begin
  select q.* into v_queue from trunq.queue q where q.name = p_name;
  if found then
    return query execute format($q$
      select r.subscription_id, s.name, e.id, g.kind::text, g.attempt::integer, r.finished_at, l.worker, e.error
      from (select r.* from trunq_data.%1$I r where r.finished_at >= $2 and r.finished_at < $3 and r.errors is not null offset 0) r
      cross join lateral (
        select r.ids[u.at] id, u.error from unnest(r.errors) with ordinality u(error, at)
        where strpos(u.error, $1) > 0 and trunq._reference_of(u.error) = $1 offset 0) e
      left join lateral (
        select l.worker, l.txids[array_position(l.ids, e.id)] txid from trunq_data.%2$I l
        where l.subscription_id = r.subscription_id and l.lease_id = r.lease_id limit 1) l on true
      left join lateral (
        select g.kind, g.attempt from trunq_log.%3$I g where trunq._is_row(g.txid, g.id, g.subscription_id, l.txid, e.id, r.subscription_id) limit 1) g on true
      left join trunq.subscription s on s.subscription_id = r.subscription_id
    $q$, v_queue.receipt_table, v_queue.lease_table, v_queue.log_table) using p_reference, p_from, p_to;
    return query
      select k.subscription_id, s.name, k.id, k.kind, (e.entry ->> 'attempt')::integer, (e.entry ->> 'at')::timestamptz, e.entry ->> 'worker', e.entry ->> 'error'
      from (
        select d.subscription_id, d.id, d.kind, d.errors from trunq.dead d
        where d.queue_id = v_queue.queue_id and d.died_at >= p_from and d.created_at < p_to and strpos(d.errors::text, p_reference) > 0
        union all
        select d.subscription_id, d.id, d.kind, d.errors from trunq.delayed d
        where d.queue_id = v_queue.queue_id and d.subscription_id is not null and d.due_at >= p_from and d.created_at < p_to
          and strpos(d.errors::text, p_reference) > 0
        offset 0) k
      cross join lateral jsonb_array_elements(k.errors) e(entry)
      left join trunq.subscription s on s.subscription_id = k.subscription_id
      where trunq._reference_of(e.entry ->> 'error') = p_reference;
  end if;
  if to_regclass(format('trunq_archive.%I', p_name)) is not null then
    return query execute format($q$
      select a.subscription_id, a.subscription, a.id, a.kind, a.attempt::integer, a.finished_at, a.worker, a.error
      from trunq_archive.%I a
      where a.finished_at >= $2 and a.finished_at < $3 and strpos(a.error, $1) > 0 and trunq._reference_of(a.error) = $1
    $q$, p_name) using p_reference, p_from, p_to;
  end if;
end $$;
comment on function trunq._find_referred is
  'The attempts of one queue, or of the archive it left, that ended within a time with a reference; one may come several times, of several places.';

create or replace function trunq._new_reference() returns text
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', n.digit + 1, 1), '' order by n.at)
  from (
    select s.at, (((floor(extract(epoch from trunq.clock()))::bigint / 300) >> (15 - 5 * s.at)) & 31)::integer digit from generate_series(0, 3) s(at)
    union all
    select 4 + s.at, get_byte(u.bytes, s.at) & 31 from (select uuid_send(gen_random_uuid()) bytes) u cross join generate_series(0, 5) s(at)) n
$$;
comment on function trunq._new_reference is 'A new reference, as workers make them too: when, to five minutes, and thirty bits of chance.';

create or replace function trunq._read_reference(p_text text) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_reference text := translate(upper(left(p_text, 100)), 'OIL -', '011');
begin
  if (v_reference ~ '^[0-9A-HJKMNP-TV-Z]{10}$') is not true then
    perform trunq._fail('TQ005', format('"%s" is no reference', left(p_text, 40)),
      'a reference is ten letters and digits; it stands at the end of an error, and of the line in the worker''s log');
  end if;
  return v_reference;
end $$;
comment on function trunq._read_reference is 'A reference as somebody wrote it down, or TQ005.';

create or replace function trunq._reference_time(p_reference text) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- The newest such stretch, a day of tomorrow included: clocks differ.
  select to_timestamp(300 * (l.stretch - ((l.stretch - m.stretch) & 1048575)))
  from (select floor(extract(epoch from trunq.clock() + interval '1 day'))::bigint / 300 stretch) l
  cross join (
    select sum((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(p_reference, s.at + 1, 1)) - 1)::bigint << (15 - 5 * s.at))::bigint stretch
    from generate_series(0, 3) s(at)) m
$$;
comment on function trunq._reference_time is 'When a reference was made: the beginning of the five minutes.';

create or replace function trunq._reference_of(p_error text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select substring(split_part(p_error, E'\n', -1) from '^reference ([0-9A-HJKMNP-TV-Z]{10})(?:, public ".*")?$')
$$;
comment on function trunq._reference_of is 'The reference of an error: of its last line, and no other.';

create or replace function trunq._public_of(p_error text) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  return substring(split_part(p_error, E'\n', -1) from '^reference [0-9A-HJKMNP-TV-Z]{10}, public (".*")$')::jsonb #>> '{}';
exception when data_exception then
  return null;  -- somebody wrote that line by hand
end $$;
comment on function trunq._public_of is 'The public text of an error.';

create or replace function trunq._above_reference(p_error text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select case when trunq._reference_of(p_error) is null then p_error
    else nullif(left(p_error, -length(split_part(p_error, E'\n', -1)) - 1), '') end
$$;
comment on function trunq._above_reference is 'An error without the line of its reference.';

create or replace function trunq._brief(p_error text) returns text
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  -- What follows the first line is for those who mend the handler.
  select split_part(p_error, E'\n', 1)
    || case when trunq._reference_of(p_error) is null or strpos(p_error, E'\n') = 0 then '' else E'\n' || split_part(p_error, E'\n', -1) end
$$;
comment on function trunq._brief is 'The first line of an error, and the line of its reference.';
