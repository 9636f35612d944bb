-- Samples: what each subscription was like, every five seconds of a day. The leader looks once, and whoever shows figures (pages, metrics,
-- scaling) reads what it wrote, so ten that look cost what one costs.
--
-- A queue is looked at when something happened in it: Postgres counts what is inserted into its segments, and says so without reading a page (what an
-- idle session did within ten seconds). Where nothing happened the last figures are repeated once a minute; a dozen such queues are looked at
-- all the same, those first that were not for longest, because what people do (purge, pause) inserts nothing there. So a few queues have figures
-- that are five seconds old, and of a thousand the cost is in proportion to those in which something happens. A call
-- looks at a hundred and a dozen at most, and begins no look after a second: the others come first in the next one, and meanwhile their last figures are
-- repeated once a minute, too.
--
-- Rows are inserted and never changed. Six segments of six hours each: the one after that of now is emptied, as soon as nobody reads it.
--
-- Counters never fall. published counts the rows of the log that the snapshot of the row before does not see. Answers have no transaction id: those of
-- minutes that the statistics know are taken from there, later ones are counted in receipts, from the end back; the last six
-- minutes are summed each time, as the statistics compute a minute once more after five. What was committed later than that is not counted.

create or replace function trunq.sample() returns integer
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set trunq.plan = index as $$
declare
  c_looks constant integer := 100;
  c_idle constant integer := 12;
  v_now timestamptz := trunq.clock();
  v_begun timestamptz;
  v_last timestamptz;
  v record;
  v_rows trunq.sample[];
  v_count integer := 0;
begin
  perform trunq._require_read_committed('sample');
  if not pg_try_advisory_xact_lock(trunq._lock_class('sample'), 0) then
    return null;
  end if;
  v_last := trunq._last_sampled(v_now);
  -- pg_cron calls every second.
  if v_last > v_now - interval '4 seconds' then
    return 0;
  end if;
  -- What was told of a counter must not be lost in a crash.
  perform trunq._wait_for_disk();
  if exists (select from trunq.sample s where s.at > v_now) then
    -- The clock went back: what it wrote of a time to come would be the newest again then. Counters go on from there.
    insert into trunq.sample
    select (jsonb_populate_record(n.newest, jsonb_build_object('at', v_now, 'segment', trunq._sample_segment(v_now), 'looked_at', least((n.newest).looked_at, v_now)))).*
    from (
      select distinct on (s.queue_id, s.subscription) s as newest from trunq.sample s where s.at > v_now order by s.queue_id, s.subscription, s.at desc) n;
    delete from trunq.sample s where s.at > v_now;
    return 0;
  end if;
  if v_last < v_now - interval '24 hours' then
    -- The segment that is emptied next may have the last figures, from which counters go on.
    perform trunq._repeat_samples(q, v_now) from trunq.queue q;
    insert into trunq.sample (queue_id, subscription, at, segment, looked_at) values (0, '', v_now, trunq._sample_segment(v_now), v_now);
    return 0;
  end if;
  -- A statement knows what other sessions inserted up to the first time that this transaction asked.
  perform pg_stat_clear_snapshot();
  for v in
    with known as materialized (
      select n.* from trunq._newest_samples(v_last) n where n.subscription = ''),
    queue as (
      select q as row, q.name, k.at, k.looked_at, k.queue_id is not null and i.inserted = k.inserted as is_idle, i.inserted
      from trunq.queue q cross join lateral (select trunq._inserted(q, v_now) as inserted) i left join known k on k.queue_id = q.queue_id),
    ranked as (
      select u.*, row_number() over (partition by u.is_idle order by u.looked_at nulls first, u.name) as place,
        count(*) over (partition by u.is_idle) > c_idle as take_turns
      from queue u)
    select r.*, r.place <= case when r.is_idle then c_idle else c_looks end as looks from ranked r
    where r.place <= case when r.is_idle then c_idle else c_looks end or r.at <= v_now - interval '55 seconds'
    order by r.is_idle, r.place
  loop
    v_begun := coalesce(v_begun, clock_timestamp());
    v_rows := '{}';
    if v.looks and clock_timestamp() <= v_begun + interval '1 second' then
      v_rows := trunq._look_or_note(v.row, v_now, v.inserted);
      v_count := v_count + 1;
    end if;
    -- The same again says nothing new within a minute, but that it was looked at: so that the others have their turn.
    if cardinality(v_rows) = 0 then
      if v.at <= v_now - interval '55 seconds' then
        perform trunq._repeat_samples(v.row, v_now);
      end if;
    elsif not v.is_idle or v.take_turns or v.at <= v_now - interval '55 seconds' or trunq._differ(v_rows, v.row, v_now) then
      insert into trunq.sample select r.* from unnest(v_rows) r;
    end if;
  end loop;
  perform trunq._sample_pipelines(v_now);
  insert into trunq.sample (queue_id, subscription, at, segment, looked_at, bytes)
  values (0, '', v_now, trunq._sample_segment(v_now), v_now, trunq._measure(v_now));
  -- Last of all: a segment that is emptied is locked until the transaction ends.
  perform trunq._empty_next_segment('_sample', trunq._sample_segment(v_now));
  perform trunq._empty_next_segment('_worker_report', trunq._report_segment(v_now));
  return v_count;
end $$;
comment on function trunq.sample is
  'Writes what each subscription is like, into trunq.sample: of queues in which something happened, and of a dozen others, those first that were not looked at for longest; and what twenty pipelines are like. The leader does so every 5 seconds; called again within 4, it does nothing.
Returns: how many queues it looked at; null when another is doing it.
Raises: TQ007.
Locks: a lock of its own; for a moment those of a look at one queue.';

create or replace function trunq._measure(p_now timestamptz) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- It asks for the size of each file: every ten minutes, for the forecast of a day (operate/diagnosis.sql).
  select pg_database_size(current_database()) where not exists (
    select from trunq.sample s
    where s.queue_id = 0 and s.subscription = '' and s.at > p_now - interval '10 minutes' and s.at <= p_now and s.bytes is not null)
$$;
comment on function trunq._measure is 'How large the database is; null: that was noted within ten minutes.';

create or replace function trunq._sample_segment(p_at timestamptz) returns smallint
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select (floor(extract(epoch from p_at) / 21600)::bigint % 6)::smallint
$$;
comment on function trunq._sample_segment is 'The segment of a sample: six of six hours.';

create or replace function trunq._empty_next_segment(p_table text, p_segment integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '5ms' as $$
declare
  -- It is empty when its time comes, and the four before that of now are kept.
  v_segment text := format('trunq_data.%I', concat(p_table, '_', (p_segment + 1) % 6));
begin
  if pg_relation_size(v_segment::regclass) > 0 then
    execute format('truncate %s', v_segment);
  end if;
exception when lock_not_available then
  null;  -- somebody reads; the next call tries again, as long as this segment lasts
end $$;
comment on function trunq._empty_next_segment is 'Empties the segment that comes next, of samples or of what workers say.
Locks: that segment, for 5 ms at most.';

create or replace function trunq._last_sampled(p_now timestamptz) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select s.at from trunq.sample s where s.queue_id = 0 and s.subscription = '' and s.at <= p_now order by s.at desc limit 1
$$;
comment on function trunq._last_sampled is 'When the duty last sampled; null: never.';

create or replace function trunq._newest_samples(p_last timestamptz) returns setof trunq.sample
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- Each queue has a row a minute. From the index of times: as many rows as were written in three minutes, however long the history.
  select distinct on (s.queue_id, s.subscription) s.* from trunq.sample s
  where s.at > p_last - interval '3 minutes' and s.at <= p_last and s.queue_id > 0
    and s.segment = any (array[trunq._sample_segment(p_last - interval '3 minutes'), trunq._sample_segment(p_last)])
  order by s.queue_id, s.subscription, s.at desc
$$;
comment on function trunq._newest_samples is 'The newest sample of each queue and subscription at the time of the last call of the duty.';

create or replace function trunq._newest_samples_of(p_queue_id integer, p_last timestamptz) returns setof trunq.sample
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  -- One by one: whoever asks for each of a thousand queues must not read the rows of all of them each time.
  select n.* from (
    select '' union select split_part(u.name, '#', 1) from trunq.subscription u where u.queue_id = p_queue_id) r(name)
  cross join lateral (
    select s.* from trunq.sample s
    where s.queue_id = p_queue_id and s.subscription = r.name and s.at > p_last - interval '3 minutes' and s.at <= p_last
      and s.segment = any (array[trunq._sample_segment(p_last - interval '3 minutes'), trunq._sample_segment(p_last)])
    order by s.at desc limit 1) n
$$;
comment on function trunq._newest_samples_of is '_newest_samples, of one queue.';

create or replace function trunq._last_sample(p_queue_id integer, p_subscription text, p_now timestamptz) returns trunq.sample
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select s from trunq.sample s where s.queue_id = p_queue_id and s.subscription = p_subscription and s.at <= p_now order by s.at desc limit 1
$$;
comment on function trunq._last_sample is 'The newest sample of a subscription, however old.';

create or replace function trunq._inserted(p_queue trunq.queue, p_now timestamptz) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Of this span and the one before: names are looked up in a cache, and counters in shared memory.
  select sum(pg_stat_get_tuples_inserted(to_regclass(format('trunq_data.%I', trunq._segment_name(p_queue, t, n)))))::bigint
  from unnest('{log,lease,receipt}'::text[]) t
  cross join (
    select distinct mod(floor(extract(epoch from p_now - b * p_queue.span) / extract(epoch from p_queue.span))::bigint, p_queue.segments)::integer
    from generate_series(0, 1) b) s(n)
$$;
comment on function trunq._inserted is 'How many rows were inserted into the newest segments of a queue, as Postgres counts them; another number after another span.';

create or replace function trunq._repeat_samples(p_queue trunq.queue, p_now timestamptz) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into trunq.sample
  select (jsonb_populate_record(l, jsonb_build_object('at', p_now, 'segment', trunq._sample_segment(p_now)))).*
  from (
    select '' union all select distinct split_part(s.name, '#', 1) from trunq.subscription s where s.queue_id = p_queue.queue_id) n(name)
  cross join lateral trunq._last_sample(p_queue.queue_id, n.name, p_now) l
  where l.queue_id is not null
$$;
comment on function trunq._repeat_samples is 'Writes the last figures of a queue once more, where nothing happened.';

create or replace function trunq._differ(p_rows trunq.sample[], p_queue trunq.queue, p_now timestamptz) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select exists (
    select from unnest(p_rows) r cross join lateral trunq._last_sample(p_queue.queue_id, r.subscription, p_now) l
    where (r.published, r.ready, r.leased, r.delayed, r.dead, r.parked, r.workers, r.done_last_minute, r.oldest_ready_at, r.paused, r.paused_until, r.lost_at,
        r.pending, r.answered, r.inserted)
      is distinct from (l.published, l.ready, l.leased, l.delayed, l.dead, l.parked, l.workers, l.done_last_minute, l.oldest_ready_at, l.paused, l.paused_until,
        l.lost_at, l.pending, l.answered, l.inserted))
$$;
comment on function trunq._differ is 'Whether figures are others than the last ones.';

create or replace function trunq._look_or_note(p_queue trunq.queue, p_now timestamptz, p_inserted bigint) returns trunq.sample[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_rows trunq.sample[];
  v_error text;
begin
  begin
    select array_agg(l) into v_rows from trunq._look(p_queue, p_now, p_inserted) l;
    raise exception using errcode = 'TQ900';  -- gives the locks back
  exception
    when sqlstate 'TQ900' then
      delete from trunq.duty_failure f where f.duty = 'sample' and f.queue = p_queue.name;
      return v_rows;
    when lock_not_available then
      return '{}';  -- rotated, or dropped
    when query_canceled then
      raise;
    when others then
      v_error := sqlerrm;
  end;
  -- The others have their turn.
  if exists (select from trunq.queue q where q.queue_id = p_queue.queue_id) then
    insert into trunq.duty_failure (duty, queue, failed_at, error)
    values ('sample', p_queue.name, trunq.clock(), left(v_error, trunq._limit('error_characters')))
    on conflict on constraint duty_failure_pkey do update set failed_at = excluded.failed_at, error = excluded.error;
  end if;
  return '{}';
end $$;
comment on function trunq._look_or_note is 'A look at one queue, whose locks are given back; what fails is noted in trunq.duty_failure.';

create or replace function trunq._look(p_queue trunq.queue, p_now timestamptz, p_inserted bigint) returns setof trunq.sample
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_sample trunq.sample;
  v_last trunq.sample;
  v_to timestamptz;
  v record;
begin
  v_sample.queue_id := p_queue.queue_id; v_sample.at := p_now; v_sample.looked_at := p_now; v_sample.segment := trunq._sample_segment(p_now);
  v_last := trunq._last_sample(p_queue.queue_id, '', p_now);
  v_sample.subscription := ''; v_sample.inserted := p_inserted;
  select c.published, c.snapshot, c.last_id into v_sample.published, v_sample.snapshot, v_sample.last_id from trunq._count_taken(p_queue, v_last) c;
  return next v_sample;
  v_sample.inserted := null; v_sample.snapshot := null; v_sample.published := null; v_sample.last_id := null;
  v_to := coalesce((select m.at from trunq.mark m where m.queue_id = p_queue.queue_id and m.subscription_id = 0 and m.duty = 'roll_up'),
    date_trunc('minute', p_queue.created_at));
  for v in
    with receipt as materialized (
      select split_part(s.name, '#', 1) as name, jsonb_object_agg(a.outcome, a.number) as late
      from (
        select c.subscription_id, trunq._outcome(c.outcome) as outcome, sum(c.number) as number
        from trunq._count_answers(p_queue, v_to) c group by 1, 2) a
      join trunq.subscription s on s.subscription_id = a.subscription_id where s.slot is null group by 1)
    select t.*, r.late, l.pending, l.is_estimate, p_now - l.lag as pending_since
    from trunq.status(p_queue.name) t
    left join receipt r on r.name = t.subscription
    left join trunq.list_streams(p_queue.name) l on l.subscription = t.subscription
  loop
    v_last := trunq._last_sample(p_queue.queue_id, v.subscription, p_now);
    v_sample.subscription := v.subscription; v_sample.mode := v.mode; v_sample.ready := v.ready; v_sample.leased := v.leased;
    v_sample.delayed := v.delayed; v_sample.dead := v.dead; v_sample.parked := v.parked; v_sample.workers := v.workers;
    v_sample.done_last_minute := v.done_last_minute; v_sample.oldest_ready_at := p_now - v.oldest_ready; v_sample.oldest_dead_at := p_now - v.oldest_dead;
    v_sample.estimated := v.estimated || case when v.is_estimate then '{pending}'::text[] end;
    v_sample.paused := v.paused; v_sample.paused_until := v.paused_until; v_sample.lost_at := v.lost_at;
    v_sample.pending := v.pending; v_sample.pending_since := v.pending_since;
    select c.counted, c.counted_to, c.answers into v_sample.counted, v_sample.counted_to, v_sample.answers
    from trunq._count_answered(p_queue, v.subscription, v_last, v_to, v.late) c;
    v_sample.answered := (select coalesce(sum(a.value::bigint), 0) from jsonb_each_text(v_sample.answers) a);
    return next v_sample;
  end loop;
end $$;
comment on function trunq._look is 'What a queue and its subscriptions are like: a row of the queue, and one of each subscription.';

create or replace function trunq._count_taken(p_queue trunq.queue, p_last trunq.sample, out published bigint, out snapshot pg_snapshot, out last_id bigint)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  c_most constant integer := 100000;
  v_last pg_snapshot := p_last.snapshot;
  v_number bigint := 0;
begin
  execute format('select s.last_value from %s s', p_queue.id_sequence) into last_id;
  snapshot := trunq.snapshot();
  -- Not of another cluster, before its rebase.
  if pg_snapshot_xmax(v_last) <= pg_snapshot_xmax(snapshot) then
    execute format($q$
      select count(*) from (
        -- Of those that were open then, each by its id: between them may lie all that came since the oldest began.
        select from pg_snapshot_xip($1) late(txid) cross join lateral (
          select from trunq_log.%1$I g where g.txid = late.txid and g.subscription_id is null and g.segment = any (%2$L) offset 0) g
        where pg_visible_in_snapshot(late.txid, $2)
        union all
        select from trunq_log.%1$I g
        where g.txid >= pg_snapshot_xmax($1) and g.txid < pg_snapshot_xmax($2) and pg_visible_in_snapshot(g.txid, $2)
          and g.subscription_id is null and g.segment = any (%2$L)
        limit %3$s) n
    $q$, p_queue.log_table, trunq._filled_segments(p_queue, 'log'), c_most + 1) into v_number using v_last, snapshot;
    if v_number > c_most then
      v_number := greatest(v_number, last_id - p_last.last_id);
    end if;
  end if;
  published := coalesce(p_last.published, 0) + v_number;
end $$;
comment on function trunq._count_taken is
  'How many messages a queue has taken since its first sample: what the snapshot of the last one does not see is added. A message with a delay counts when it comes into the log. More than 100,000 since the last one are as many as ids were drawn.';

create or replace function trunq._count_answers(p_queue trunq.queue, p_since timestamptz) returns table (subscription_id integer, outcome "char", number bigint)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = tid as $$
#variable_conflict use_column
declare
  v_left integer := 1000;
  v_step integer;
  v_segment smallint;
  v_to bigint;
  v_is_over boolean;
begin
  -- As trunq._count_done: from the end of each segment back, until none is of that time.
  foreach v_segment in array trunq._filled_segments(p_queue, 'receipt') loop
    v_to := trunq._page_count(p_queue, 'receipt', v_segment);
    v_step := 8;
    v_is_over := false;
    while v_to > 0 and v_left > 0 and not v_is_over loop
      execute format($q$
        select count(*) > 0 and bool_and(r.finished_at < $1)
        from trunq_data.%I r where r.segment = %s and r.ctid >= format('(%%s,0)', $2)::tid and r.ctid < format('(%%s,0)', $3)::tid
      $q$, p_queue.receipt_table, v_segment) into v_is_over using p_since, greatest(0, v_to - v_step), v_to;
      if not v_is_over then
        return query execute format($q$
          select r.subscription_id, r.outcome, sum(r.size)::bigint
          from trunq_data.%I r where r.segment = %s and r.ctid >= format('(%%s,0)', $2)::tid and r.ctid < format('(%%s,0)', $3)::tid
            and r.finished_at >= $1 and r.outcome <> 'b' and r.size > 0
          group by 1, 2
        $q$, p_queue.receipt_table, v_segment) using p_since, greatest(0, v_to - v_step), v_to;
      end if;
      v_left := v_left - v_step;
      v_to := v_to - v_step;
      v_step := least(2 * v_step, 32);
    end loop;
  end loop;
end $$;
comment on function trunq._count_answers is
  'How many answers of each outcome receipts tell of since a time; of the newest thousand pages, where there are more.';

create or replace function trunq._count_answered(
  p_queue trunq.queue, p_subscription text, p_last trunq.sample, p_to timestamptz, p_late jsonb,
  out counted jsonb, out counted_to timestamptz, out answers jsonb
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  counted_to := greatest(p_last.counted_to, p_to - interval '6 minutes');
  counted := trunq._add_counts(p_last.counted,
    trunq._sum_statistics(p_queue, p_subscription, coalesce(p_last.counted_to, '-infinity'), counted_to), false);
  answers := trunq._add_counts(trunq._add_counts(counted, trunq._sum_statistics(p_queue, p_subscription, counted_to, p_to), false), p_late, false);
  -- Where only the newest pages were read, it may be less than before.
  answers := trunq._add_counts(answers, p_last.answers, true);
end $$;
comment on function trunq._count_answered is
  'How many answers there were: those counted before, what the statistics of later minutes say, and what came after these (p_late).';

create or replace function trunq._sum_statistics(p_queue trunq.queue, p_subscription text, p_from timestamptz, p_to timestamptz) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select coalesce(jsonb_object_agg(n.outcome, n.number), '{}') from (
    select trunq._outcome(t.outcome) as outcome, sum(t.count) as number from trunq.statistic t
    where t.queue_id = p_queue.queue_id and t.is_hour = any (case when p_from = '-infinity' then '{t,f}' else '{f}' end::boolean[])
      and t.at >= p_from and t.at < p_to and t.subscription = p_subscription
    group by 1) n
$$;
comment on function trunq._sum_statistics is 'How many answers of each outcome the statistics know of a time.';

create or replace function trunq._add_counts(p_counts jsonb, p_more jsonb, p_greatest boolean) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(jsonb_object_agg(n.key, n.value), '{}') from (
    select u.key, case when p_greatest then max(u.value::bigint) else sum(u.value::bigint) end as value
    from (
      select * from jsonb_each_text(coalesce(p_counts, '{}')) union all select * from jsonb_each_text(coalesce(p_more, '{}'))) u group by 1) n
$$;
comment on function trunq._add_counts is 'Counts by name, added or the greatest of each.';
