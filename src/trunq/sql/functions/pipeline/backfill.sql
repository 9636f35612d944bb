-- A backfill in shares: a long range, cut into shorter ones, each of which is a backfill of its own with a message, a run and a mark. So a share that
-- was killed goes on where it was, and is in the sink whole or not at all; what is done of a backfill stays done.
--
--   _begin_shares   the range is cut. The message of the first share names the backfill
--   _ask_shares     asks for as many shares as may be under way at once
--   _end_share      a run has ended (_finish_run, _give_up_run, accept_pipeline): the next share is asked for, in the same transaction
--   _fail_share     a runner gives a share up, after three attempts, or one if the reason lies in the pipeline: the others go on, until three in a
--                   row have failed. Then something is wrong with all of them, and it stops
--   rerun_shares    shares again: those that failed or never came to their turn, or one of them
--
-- The messages wait in the queue "pipelines" behind those that were there before, so that the usual runs get their turn between two shares; where
-- that queue has priorities, shares come after all that was published with 0.
--
-- Locks: whoever changes a backfill holds the row of its pipeline.

create or replace function trunq._begin_shares(p_pipeline trunq.pipeline, p_range jsonb, p_every text, p_at_once integer) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_at_once constant integer := 32;
  v_what constant text := format('pipeline "%s"', p_pipeline.name);
  v_bounds text[];
  v_id bigint;
begin
  if p_pipeline.definition->'source'->>'format' in ('queue', 'history', 'csv', 'json', 'parquet') then
    perform trunq._fail('TQ031', format('%s reads from %s: its ranges cannot be cut into shares', v_what, p_pipeline.definition->'source'->>'format'), 'ask for one range, without p_every');
  elsif jsonb_typeof(p_range->'from') is distinct from 'string' or jsonb_typeof(p_range->'to') is distinct from 'string' then
    perform trunq._fail('TQ031', format('%s: a range that is cut into shares has from and to, as texts, and is not %s', v_what, left(p_range::text, 100)),
      '{"column": "day", "from": "2030-01-01", "to": "2031-01-01"}');
  elsif p_at_once is null or p_at_once not between 1 and c_at_once then
    perform trunq._fail('TQ005', format('%s: at_once is %s', v_what, coalesce(p_at_once::text, 'null')), format('1 to %s', c_at_once));
  end if;
  v_bounds := trunq._cut_range(v_what, p_range->>'from', p_range->>'to', p_every);
  delete from trunq.pipeline_backfill b where b.pipeline_id = p_pipeline.pipeline_id and b.ended_at is not null
    and b.backfill <= (select o.backfill from trunq.pipeline_backfill o where o.pipeline_id = p_pipeline.pipeline_id order by o.backfill desc offset 99 limit 1);
  v_id := trunq._publish_range(p_pipeline.name, p_range || jsonb_build_object('from', v_bounds[1], 'to', v_bounds[2]), true);
  insert into trunq.pipeline_backfill (pipeline_id, backfill, range, every, at_once, shares, created_at)
  values (p_pipeline.pipeline_id, v_id, p_range, p_every, p_at_once, cardinality(v_bounds) - 1, trunq.clock());
  insert into trunq.pipeline_share (pipeline_id, backfill, share, range, message_id, asked_at)
  select p_pipeline.pipeline_id, v_id, i, p_range || jsonb_build_object('from', v_bounds[i], 'to', v_bounds[i + 1]),
    case when i = 1 then v_id end, case when i = 1 then trunq.clock() end
  from generate_series(1, cardinality(v_bounds) - 1) i;
  perform trunq._ask_shares(p_pipeline, v_id);
  return v_id;
end $$;
comment on function trunq._begin_shares is 'Cuts a range into shares and asks for the first ones. Returns: the id of the message of the first, which names the backfill.';

create or replace function trunq._cut_range(p_what text, p_from text, p_to text, p_every text) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres' as $$
declare
  c_most constant integer := 10000;
  c_number constant text := '^-?[0-9]+(\.[0-9]+)?$';
  v_are_numbers constant boolean := p_from ~ c_number and p_to ~ c_number;
  v_has_zone constant boolean := p_from || ' ' || p_to ~* '[0-9](z|[+-][0-9]{2}(:?[0-9]{2})?)( |$)' and p_from || ' ' || p_to ~ ':';
  v_form text := case when v_has_zone then 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"' else 'YYYY-MM-DD HH24:MI:SS.US' end;
  v_bounds text[];
begin
  begin
    if v_are_numbers then
      select array_agg((p_from::numeric + i * p_every::numeric)::text order by i) into v_bounds from generate_series(0, c_most) i
      where p_from::numeric + i * p_every::numeric < p_to::numeric;
    elsif p_every ~ c_number then
      perform trunq._fail('TQ031', format('%s: a share of %s is not a length of time', p_what, p_every), 'as "1 month", or "6 hours"; numbers go with numbers in from and to');
    else
      if not v_has_zone and p_from::timestamp = p_from::date and p_to::timestamp = p_to::date and extract(hour from p_every::interval) = 0
        and extract(minute from p_every::interval) = 0 and extract(second from p_every::interval) = 0 then
        v_form := 'YYYY-MM-DD';
      end if;
      select array_agg(case when v_has_zone then to_char(p_from::timestamptz + i * p_every::interval, v_form) else to_char(p_from::timestamp + i * p_every::interval, v_form) end order by i)
      into v_bounds from generate_series(0, c_most) i
      where case when v_has_zone then p_from::timestamptz + i * p_every::interval < p_to::timestamptz and isfinite(p_from::timestamptz) and isfinite(p_to::timestamptz)
        else p_from::timestamp + i * p_every::interval < p_to::timestamp and isfinite(p_from::timestamp) and isfinite(p_to::timestamp) end;
    end if;
  exception when data_exception then
    perform trunq._fail('TQ031', format('%s: from %s to %s every %s cannot be cut into shares: %s', p_what, left(p_from, 50), left(p_to, 50), left(coalesce(p_every, 'null'), 50), sqlerrm),
      'from and to are days, times or numbers; every is as "1 month", or a number');
  end;
  if v_bounds is null then
    perform trunq._fail('TQ031', format('%s: there is nothing from %s to %s', p_what, left(p_from, 50), left(p_to, 50)), 'from is less than to, and to is not in it; neither is infinite');
  elsif cardinality(v_bounds) > c_most then
    perform trunq._fail('TQ031', format('%s: from %s to %s are more than %s shares of %s', p_what, left(p_from, 50), left(p_to, 50), c_most, left(p_every, 50)),
      'every is more than nothing; give longer shares, or fill one part after the other');
  end if;
  v_bounds[1] := p_from;
  return v_bounds || p_to;
end $$;
comment on function trunq._cut_range is
  'The bounds of the shares of a range, in order: days, where all of them are, times or numbers. Each is counted from the first: months keep their day. Raises TQ031.';

create or replace function trunq._publish_range(p_pipeline text, p_range jsonb, p_is_share boolean) returns bigint
language sql set search_path = pg_catalog, pg_temp as $$
  select trunq.publish('pipelines', p_range, p_pipeline, nullif(split_part(p_pipeline, '/', 2), ''), p_headers => '{"backfill": true}',
    p_priority => (p_is_share and exists (select from trunq.queue q where q.name = 'pipelines' and q.lanes like 'priority%'))::integer::smallint)
$$;
comment on function trunq._publish_range is 'Asks for a run of a range; that of a share comes behind the usual runs, where the queue has priorities.';

create or replace function trunq._ask_shares(p_pipeline trunq.pipeline, p_backfill bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_in_a_row constant integer := 3;
  v_backfill trunq.pipeline_backfill;
  v_asked integer;
  v_next trunq.pipeline_share;
begin
  select b.* into v_backfill from trunq.pipeline_backfill b where b.pipeline_id = p_pipeline.pipeline_id and b.backfill = p_backfill;
  if v_backfill.outcome is not null then
    return;
  end if;
  select count(*) into v_asked from trunq.pipeline_share s
  where s.pipeline_id = p_pipeline.pipeline_id and s.backfill = p_backfill and s.outcome is null and s.message_id is not null;
  begin
    -- Its sink may be another one by now, which doubles rows.
    perform trunq._check_backfill(p_pipeline, v_backfill.range);
    while v_asked < v_backfill.at_once and v_backfill.failures < c_in_a_row loop
      select s.* into v_next from trunq.pipeline_share s
      where s.pipeline_id = p_pipeline.pipeline_id and s.backfill = p_backfill and s.outcome is null and s.message_id is null order by s.share limit 1;
      exit when not found;
      update trunq.pipeline_share s set message_id = trunq._publish_range(p_pipeline.name, s.range, true), asked_at = trunq.clock(), rows_out = null, error = null, ended_at = null
      where s.pipeline_id = p_pipeline.pipeline_id and s.backfill = p_backfill and s.share = v_next.share;
      v_asked := v_asked + 1;
    end loop;
  exception when others then
    -- Whoever ends a run here is not to fail by it.
    if sqlstate not like 'TQ%' then
      raise;
    end if;
    update trunq.pipeline_backfill b set error = sqlerrm, failures = c_in_a_row where b.pipeline_id = p_pipeline.pipeline_id and b.backfill = p_backfill;
    v_backfill.failures := c_in_a_row;
  end;
  if v_asked = 0 then
    update trunq.pipeline_backfill b set ended_at = trunq.clock(),
      outcome = case when b.failed > 0 or v_backfill.failures >= c_in_a_row then 'failed' when b.cancelled > 0 then 'cancelled' else 'done' end
    where b.pipeline_id = p_pipeline.pipeline_id and b.backfill = p_backfill;
  end if;
end $$;
comment on function trunq._ask_shares is 'Asks for the next shares of a backfill, or ends it, when none is left or three in a row have failed. The pipeline is locked.';

create or replace function trunq._end_share(p_run trunq.pipeline_run, p_outcome text, p_rows bigint, p_error text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_share trunq.pipeline_share;
begin
  if p_run.backfill = 0 then
    return;
  end if;
  update trunq.pipeline_share s set outcome = p_outcome, ended_at = trunq.clock(), rows_out = p_rows, error = left(p_error, trunq._limit('error_characters'))
  where s.pipeline_id = p_run.pipeline_id and s.message_id = p_run.message_id and s.outcome is null returning s.* into v_share;
  if not found then
    return;
  end if;
  update trunq.pipeline_backfill b set done = b.done + (p_outcome = 'done')::integer, failed = b.failed + (p_outcome = 'failed')::integer,
    cancelled = b.cancelled + (p_outcome = 'cancelled')::integer, took = b.took + (v_share.ended_at - v_share.asked_at),
    failures = case p_outcome when 'done' then 0 when 'failed' then b.failures + 1 else b.failures end,
    error = case when p_outcome = 'failed' then v_share.error else b.error end
  where b.pipeline_id = v_share.pipeline_id and b.backfill = v_share.backfill;
  perform trunq._ask_shares(p, v_share.backfill) from trunq.pipeline p where p.pipeline_id = v_share.pipeline_id;
end $$;
comment on function trunq._end_share is 'The run of a share, if it is one, has ended: notes that, and asks for the next. The pipeline is locked.';

create or replace function trunq._fail_share(p_pipeline text, p_message_id bigint, p_error text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
  v_run trunq.pipeline_run;
begin
  if not exists (select from trunq.pipeline_share s where s.pipeline_id = v_pipeline.pipeline_id and s.message_id = p_message_id and s.outcome is null) then
    return false;
  end if;
  select r.* into v_run from trunq.pipeline_run r where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = p_message_id and r.ended_at is null;
  if found and trunq._is_run_held(v_run) and v_run.holder is distinct from p_message_id then
    return false;
  end if;
  v_run.pipeline_id := v_pipeline.pipeline_id;
  v_run.backfill := p_message_id;
  v_run.message_id := p_message_id;
  perform trunq._end_share(v_run, 'failed', null, p_error);
  if v_run.run_id is not null then
    perform trunq._give_up_run(v_run, 'cancelled');
  end if;
  return true;
end $$;
comment on function trunq._fail_share is
  'A runner gives up a share: its open run, if there is one, ends here, and the next share is asked for.
Returns: false when the message is of no share that is under way.';

create or replace function trunq._is_share_over(p_pipeline_id integer, p_message_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (select from trunq.pipeline_share s where s.pipeline_id = p_pipeline_id and s.message_id = p_message_id and s.outcome is not null)
$$;
comment on function trunq._is_share_over is 'Whether a message asks for a share that was given up, or cancelled before it began.';

create or replace function trunq._cancel_shares(p_pipeline trunq.pipeline, p_backfill bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_share trunq.pipeline_share;
begin
  update trunq.pipeline_backfill b set outcome = 'cancelled', ended_at = coalesce(b.ended_at, trunq.clock())
  where b.pipeline_id = p_pipeline.pipeline_id and b.backfill = p_backfill and (b.outcome is null or b.outcome = 'failed');
  if not found then
    return false;
  end if;
  for v_share in
    select s.* from trunq.pipeline_share s
    where s.pipeline_id = p_pipeline.pipeline_id and s.backfill = p_backfill and s.outcome is null and s.message_id is not null order by s.share
  loop
    if not trunq.cancel_pipeline(p_pipeline.name, v_share.message_id) then
      update trunq.pipeline_share s set outcome = 'cancelled', ended_at = trunq.clock()
      where s.pipeline_id = p_pipeline.pipeline_id and s.backfill = p_backfill and s.share = v_share.share and s.outcome is null;
      update trunq.pipeline_backfill b set cancelled = b.cancelled + 1 where b.pipeline_id = p_pipeline.pipeline_id and b.backfill = p_backfill;
    end if;
  end loop;
  return true;
end $$;
comment on function trunq._cancel_shares is 'Ends a backfill in shares: none is asked for any more, and those under way are cancelled. Returns: false when there is none that goes on, or failed.';

create or replace function trunq.rerun_shares(p_pipeline text, p_backfill bigint default null, p_share integer default null) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._hold_pipeline(p_pipeline);
  v_backfill trunq.pipeline_backfill := trunq._find_backfill(v_pipeline, p_backfill);
  v_share trunq.pipeline_share;
  v_count integer := 0;
begin
  perform trunq._check_backfill(v_pipeline, v_backfill.range);
  perform trunq._audit('rerun_shares', null, jsonb_build_object('pipeline', p_pipeline, 'backfill', p_backfill, 'share', p_share));
  if p_share is not null and not exists (select from trunq.pipeline_share s where s.pipeline_id = v_pipeline.pipeline_id and s.backfill = v_backfill.backfill and s.share = p_share) then
    perform trunq._fail('TQ031', format('backfill %s of pipeline "%s" has no share %s', v_backfill.backfill, p_pipeline, p_share), format('it has 1 to %s', v_backfill.shares));
  end if;
  for v_share in
    select s.* from trunq.pipeline_share s where s.pipeline_id = v_pipeline.pipeline_id and s.backfill = v_backfill.backfill
      and case when p_share is not null then s.share = p_share else s.outcome in ('failed', 'cancelled') or s.outcome is null end order by s.share
  loop
    if v_share.outcome is null and v_share.message_id is not null and cardinality(trunq._open_requests(array[v_share.message_id])) > 0 then
      continue when p_share is null;
      perform trunq._fail('TQ031', format('share %s of backfill %s of pipeline "%s" is under way', p_share, v_backfill.backfill, p_pipeline),
        format('trunq pipeline cancel %s --backfill %s ends it', p_pipeline, v_share.message_id));
    end if;
    update trunq.pipeline_share s set message_id = null, outcome = null, ended_at = null, error = null, rows_out = null
    where s.pipeline_id = v_pipeline.pipeline_id and s.backfill = v_backfill.backfill and s.share = v_share.share;
    update trunq.pipeline_backfill b set done = b.done - coalesce(v_share.outcome = 'done', false)::integer, failed = b.failed - coalesce(v_share.outcome = 'failed', false)::integer,
      cancelled = b.cancelled - coalesce(v_share.outcome = 'cancelled', false)::integer
    where b.pipeline_id = v_pipeline.pipeline_id and b.backfill = v_backfill.backfill;
    perform trunq._give_up_run(r, 'cancelled') from trunq.pipeline_run r
    where r.pipeline_id = v_pipeline.pipeline_id and r.backfill = v_share.message_id and r.ended_at is null;
    v_count := v_count + 1;
  end loop;
  if v_count > 0 then
    update trunq.pipeline_backfill b set outcome = null, ended_at = null, failures = 0, error = null
    where b.pipeline_id = v_pipeline.pipeline_id and b.backfill = v_backfill.backfill;
    perform trunq._ask_shares(v_pipeline, v_backfill.backfill);
  end if;
  return v_count;
end $$;
comment on function trunq.rerun_shares is
  'Runs shares of a backfill again (of the newest one, without p_backfill): those that failed, were cancelled, have not come to their turn, or whose message is gone; with p_share that one, also when it was done. They come one after the other, as before.
Returns: how many shares that are.
Raises: TQ030; TQ031 for a backfill or a share that there is not, one that is under way, and a pipeline that takes no backfill any more.
Locks: the pipeline.';

create or replace function trunq.list_backfills(p_pipeline text default null, p_limit integer default 100)
returns table (
  pipeline text, backfill bigint, range jsonb, every text, at_once integer, shares integer, done integer, failed integer, cancelled integer, running integer,
  outcome text, error text, created_at timestamptz, ended_at timestamptz, remaining interval
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_pipeline is not null then
    perform trunq._find_pipeline(p_pipeline);
  end if;
  perform trunq._check_limit(p_limit);
  return query
    select p.name, b.backfill, b.range, b.every, b.at_once, b.shares, b.done, b.failed, b.cancelled, r.running, b.outcome, b.error, b.created_at, b.ended_at,
      case when b.outcome is null and o.ended > 0 then date_trunc('second', b.took / o.ended * (b.shares - o.ended) / b.at_once) end
    from trunq.pipeline_backfill b join trunq.pipeline p on p.pipeline_id = b.pipeline_id
    cross join lateral (select b.done + b.failed + b.cancelled as ended) o
    cross join lateral (
      select count(*)::integer as running from trunq.pipeline_share s
      where s.pipeline_id = b.pipeline_id and s.backfill = b.backfill and s.outcome is null and s.message_id is not null
    ) r
    where p_pipeline is null or p.name = p_pipeline
    order by b.created_at desc, b.backfill desc limit p_limit;
end $$;
comment on function trunq.list_backfills is
  'Backfills in shares, newest first, p_limit of them at most (100): of a pipeline, or all. shares: how many there are; done, failed, cancelled: how many ended so; running: how many are asked for; outcome null: it goes on; error: of the newest share that failed, or why it stopped; remaining: about how long the rest takes, by what those that ended took.
Raises: TQ005, TQ030.';

create or replace function trunq.list_shares(p_pipeline text, p_backfill bigint default null, p_limit integer default 100)
returns table (
  share integer, range jsonb, state text, message_id bigint, asked_at timestamptz, ended_at timestamptz, rows_out bigint, error text
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_pipeline trunq.pipeline := trunq._find_pipeline(p_pipeline);
  v_backfill trunq.pipeline_backfill := trunq._find_backfill(v_pipeline, p_backfill);
begin
  perform trunq._check_limit(p_limit);
  return query
    select s.share, s.range, coalesce(s.outcome, case when s.message_id is not null then 'running' when v_backfill.outcome = 'cancelled' then 'cancelled' else 'waiting' end),
      s.message_id, s.asked_at, s.ended_at, s.rows_out, s.error
    from trunq.pipeline_share s where s.pipeline_id = v_pipeline.pipeline_id and s.backfill = v_backfill.backfill
    order by s.outcome is distinct from 'failed', s.share limit p_limit;
end $$;
comment on function trunq.list_shares is
  'The shares of a backfill (of the newest one, without p_backfill), p_limit of them at most (100): first those that failed, then in their order. state: waiting, running, done, failed or cancelled; running: its message was published; message_id: by which trunq.cancel_pipeline cancels that share alone, and, of share 1 as it was first asked for, all of the backfill, which has the same id.
Raises: TQ005, TQ030; TQ031 for a backfill that there is not.';

create or replace function trunq._find_backfill(p_pipeline trunq.pipeline, p_backfill bigint) returns trunq.pipeline_backfill
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_backfill trunq.pipeline_backfill;
begin
  select b.* into v_backfill from trunq.pipeline_backfill b
  where b.pipeline_id = p_pipeline.pipeline_id and (p_backfill is null or b.backfill = p_backfill) order by b.created_at desc, b.backfill desc limit 1;
  if not found then
    perform trunq._fail('TQ031', format('pipeline "%s" has no backfill %s in shares', p_pipeline.name, coalesce(p_backfill::text, '')), 'select * from trunq.list_backfills() shows those there are');
  end if;
  return v_backfill;
end $$;
comment on function trunq._find_backfill is 'A backfill in shares, or the newest one, or TQ031.';

create or replace function trunq._warn_backfills(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'pipelines', null::text, format('backfill %s of pipeline "%s" has failed: %s of %s shares are done: %s', b.backfill, p.name, b.done, b.shares,
      coalesce(f.said, split_part(b.error, E'\n', 1))),
    format('those that are not done again: trunq pipeline shares %1$s %2$s --rerun; to leave it so: trunq pipeline cancel %1$s --backfill %2$s', p.name, b.backfill)
  from trunq.pipeline_backfill b join trunq.pipeline p on p.pipeline_id = b.pipeline_id
  left join lateral (
    select format('share %s (%s to %s): %s', s.share, s.range->>'from', s.range->>'to', split_part(s.error, E'\n', 1)) as said from trunq.pipeline_share s
    where s.pipeline_id = b.pipeline_id and s.backfill = b.backfill and s.outcome = 'failed' order by s.share limit 1
  ) f on true
  where b.outcome = 'failed' and coalesce(p_queue, 'pipelines') = 'pipelines'
  union all
  select 'pipelines', null, format('share %s of backfill %s of pipeline "%s" waits for a message that is gone, or dead', s.share, s.backfill, p.name),
    format('again: trunq pipeline shares %s %s --rerun', p.name, s.backfill)
  from trunq.pipeline_share s join trunq.pipeline p on p.pipeline_id = s.pipeline_id
    cross join (
      select trunq._open_requests(array_agg(o.message_id)) as waiting from trunq.pipeline_share o
      where o.outcome is null and o.message_id is not null and o.asked_at < trunq.clock() - interval '5 minutes') a
  where s.outcome is null and s.message_id is not null and s.asked_at < trunq.clock() - interval '5 minutes' and coalesce(p_queue, 'pipelines') = 'pipelines'
    and s.message_id <> all (a.waiting)
  order by 3 limit 100
$$;
comment on function trunq._warn_backfills is 'Backfills that failed, and those whose message of a share was cancelled, purged or died.';
