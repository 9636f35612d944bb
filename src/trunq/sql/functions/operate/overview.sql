-- What the samples tell: the newest of each, those of a time, and an overview, the worst first. Who asks reads what the duty wrote
-- (sample.sql). When nobody samples, the overview looks by itself, at a few queues.

create or replace function trunq.latest_samples(p_queue text default null)
returns table (
  queue text, subscription text, sampled_at timestamptz, mode text, published bigint, ready bigint, leased bigint, delayed bigint, dead bigint, parked bigint,
  workers integer, done_last_minute bigint, oldest_ready interval, oldest_dead interval, lag_messages bigint, lag interval, answered bigint, answers jsonb,
  estimated text[], paused boolean, paused_until timestamptz, lost_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
  v_last timestamptz;
  v_id integer;
begin
  -- Not above: what is declared runs before the door.
  v_last := trunq._last_sampled(v_now);
  if p_queue is not null then
    v_id := (trunq._find_queue(p_queue)).queue_id;
    perform trunq._require_visible(p_queue);
  end if;
  return query
    with newest as (
      select n.* from trunq._newest_samples(v_last) n where v_id is null
      union all
      select n.* from trunq._newest_samples_of(v_id, v_last) n where v_id is not null)
    select q.name, s.subscription, n.looked_at, n.mode, n.published, n.ready, n.leased, n.delayed, n.dead, n.parked, n.workers, n.done_last_minute,
      v_now - n.oldest_ready_at, v_now - n.oldest_dead_at, n.pending, v_now - n.pending_since, n.answered, n.answers,
      n.estimated, n.paused, n.paused_until, n.lost_at
    from newest n
    join trunq.queue q on q.queue_id = n.queue_id
    cross join lateral (select nullif(n.subscription, '') as subscription) s
    where s.subscription is null or exists (
      select from trunq.subscription u where u.queue_id = n.queue_id and split_part(u.name, '#', 1) = s.subscription)
    order by q.name, s.subscription nulls first;
end $$;
comment on function trunq.latest_samples is
  'The newest sample of each subscription, and of each queue (subscription null): as the duty sample wrote it, every 5 seconds. published: messages that the queue has taken since its first sample; answered: answers of its workers, and answers: how many of each outcome, since the subscription was first counted. These never fall, whatever is restarted or emptied. oldest_ready, oldest_dead and lag have grown up to now. lag_messages and lag: of an exclusive subscription, messages that it has not finished, and since when the first of them waits; null for others.
Returns: sampled_at: when the figures were looked up. A queue where nothing happens is looked at less often; that nobody samples, trunq.sampled_at() says. No row of a queue that has not been sampled.
Raises: TQ001.';

create or replace function trunq.sampled_at() returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return trunq._last_sampled(trunq.clock());
end $$;
comment on function trunq.sampled_at is
  'When the duty sample was last performed. More than 15 seconds ago, nobody performs it: start a worker, or trunq leader.
Returns: null when it never was.';

create or replace function trunq.list_samples(
  p_queue text, p_subscription text default null, p_since interval default '5 minutes', p_points integer default 300
)
returns table (
  at timestamptz, published bigint, ready bigint, leased bigint, delayed bigint, dead bigint, workers integer, oldest_ready interval,
  lag_messages bigint, lag interval, answered bigint, answers jsonb, estimated text[]
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_step interval;
begin
  perform trunq._require_visible(p_queue);
  perform trunq._check_interval('p_since, the time that samples are about,', p_since, '1 second');
  if (p_points between 1 and 1000) is not true then
    perform trunq._fail('TQ005', format('p_points, the number of samples, must be from 1 to 1000, not %s', coalesce(p_points::text, 'null')));
  end if;
  if p_subscription is not null and not exists (
      select from trunq.subscription s where s.queue_id = v_queue.queue_id and split_part(s.name, '#', 1) = p_subscription) then
    perform trunq._subscription(p_queue, p_subscription);
  end if;
  -- Never nearer than they were written. The newest of each step, by index: whatever else was written then.
  v_step := greatest(least(p_since, interval '30 hours') / p_points, interval '5 seconds');
  return query
    select n.at, n.published, n.ready, n.leased, n.delayed, n.dead, n.workers, n.at - n.oldest_ready_at,
      n.pending, n.at - n.pending_since, n.answered, n.answers, n.estimated
    from generate_series(0, ceil(extract(epoch from least(p_since, interval '30 hours')) / extract(epoch from v_step))::integer - 1) k
    cross join lateral (
      select s.* from trunq.sample s
      where s.queue_id = v_queue.queue_id and s.subscription = coalesce(p_subscription, '')
        and s.at > v_now - (k + 1) * v_step and s.at <= v_now - k * v_step
        and s.segment = any (array[trunq._sample_segment(v_now - (k + 1) * v_step), trunq._sample_segment(v_now - k * v_step)])
      order by s.at desc limit 1) n
    order by n.at;
end $$;
comment on function trunq.list_samples is
  'Samples of a subscription, or of the queue itself (p_subscription null: published alone), of the last p_since, up to a day: p_points steps of the same length, of each the newest sample.
Returns: one row a step that has a sample; published and answered never fall, so that their difference is what a step brought.
Raises: TQ001, TQ002, TQ005.';

create or replace function trunq.overview(p_limit integer default 100)
returns table (
  queue text, subscription text, mode text, sampled_at timestamptz, ready bigint, leased bigint, delayed bigint, dead bigint, parked bigint, workers integer,
  oldest_ready interval, lag_messages bigint, lag interval, published_per_second double precision, answered_per_second double precision,
  failed_share double precision, estimated text[], paused boolean, paused_until timestamptz, lost_at timestamptz, subscriptions bigint, recent bigint[]
)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_now timestamptz := trunq.clock();
  v_last timestamptz := trunq._last_sampled(v_now);
  v_queues integer[] := array(select q.queue_id from trunq._visible_queues() q);
  v_rows trunq.sample[];
begin
  perform trunq._check_limit(p_limit);
  select array_agg(n) into v_rows from trunq._newest_samples(v_last) n;
  if v_last is null or v_last < v_now - interval '15 seconds' then
    v_rows := trunq._look_again(v_rows, v_queues, v_now);
  end if;
  return query select o.* from trunq._worst(v_rows, v_queues, p_limit, v_last, v_now) o;
end $$;
comment on function trunq.overview is
  'What each subscription is like, the worst p_limit (100) of all: those that lost messages, then those whose messages wait longest, then what died, then paused ones in which messages wait, then the others. It reads the newest samples. When nobody has sampled for 15 seconds, it looks by itself at the twenty queues that were worst, and has the last samples of the others. A caller who does not own trunq has the queues of which it is reader, worker or admin.
Returns: sampled_at: when the figures were looked up, null when there is no sample yet, and no figures; published_per_second, answered_per_second and failed_share: within the last minute, null without samples from then; failed_share: of its answers, those that are not acks; subscriptions: how many there are; recent: ready in each ten seconds of the last five minutes, null where no sample is of that time.
Raises: TQ005.';

create or replace function trunq._visible_queues() returns setof trunq.queue
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- By the caches of the catalog: of a thousand queues no page is read. The policy of trunq.sample says the same.
  select q.* from trunq.queue q
  where trunq._owns() or exists (
    select from unnest('{work,read,administer}'::text[]) d
    where has_function_privilege(to_regprocedure(format('trunq_queue.%I(text,text[])', concat(q.name, '_', d))), 'execute'))
$$;
comment on function trunq._visible_queues is 'Queues whose figures the caller may see: the owner of trunq all of them, others those of which it is reader, worker or admin.';

create or replace function trunq._require_visible(p_queue text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  -- The policy of trunq.sample would show none, as if there were none.
  if not trunq._owns() then
    perform trunq._fail('42501', format('the role may not see the samples of queue "%s"', p_queue),
      'trunq.grant_role grants roles; select * from trunq.list_roles() shows who has which');
  end if;
end $$;
comment on function trunq._require_visible is 'Refuses (42501) who has come through no door of this queue, behind which the owner calls.';

create or replace function trunq._worst(p_rows trunq.sample[], p_queues integer[], p_limit integer, p_last timestamptz, p_now timestamptz)
returns table (
  queue text, subscription text, mode text, sampled_at timestamptz, ready bigint, leased bigint, delayed bigint, dead bigint, parked bigint, workers integer,
  oldest_ready interval, lag_messages bigint, lag interval, published_per_second double precision, answered_per_second double precision,
  failed_share double precision, estimated text[], paused boolean, paused_until timestamptz, lost_at timestamptz, subscriptions bigint, recent bigint[]
)
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = hash as $$
#variable_conflict use_column
begin
  return query
    with reader as (
      select distinct q.queue_id, q.name as queue, split_part(s.name, '#', 1) as subscription
      from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id where q.queue_id = any (p_queues)),
    worst as materialized (
      select r.queue, n.*, r.queue_id as id, r.subscription as reader, count(*) over () as subscriptions, k.class
      from reader r left join unnest(p_rows) n on n.queue_id = r.queue_id and n.subscription = r.subscription
      -- Lost messages; then what waits longest, and is not paused; then what died; then what waits for somebody to resume it; then the others.
      cross join lateral (select case when n.lost_at is not null then 0 when n.oldest_ready_at is not null and n.paused is not true then 1
        when n.dead > 0 and n.paused is not true then 2 when n.oldest_ready_at is not null or n.dead > 0 then 3 else 4 end as class) k
      order by k.class, n.oldest_ready_at nulls last, n.dead desc nulls last, r.queue, r.subscription limit p_limit),
    -- In the order of times, once for all of them.
    sampled as materialized (
      select s.queue_id, s.subscription, s.at, s.ready, s.published, s.answered, s.answers from trunq.sample s
      where s.at > p_last - interval '5 minutes' and s.at <= p_last and s.queue_id > 0
        and s.segment = any (array[trunq._sample_segment(p_last - interval '5 minutes'), trunq._sample_segment(p_last)])),
    newest as (
      select w.id, w.reader, w.at, w.published, w.answered, w.answers from worst w
      union all
      select p.queue_id, '', p.at, p.published, null, null from unnest(p_rows) p where p.subscription = '' and p.queue_id in (select w.id from worst w)),
    rate as materialized (
      select distinct on (n.id, n.reader) n.id, n.reader,
        (n.published - s.published) / extract(epoch from n.at - s.at)::double precision as published,
        (n.answered - s.answered) / extract(epoch from n.at - s.at)::double precision as answered,
        1 - (trunq._acked(n.answers) - trunq._acked(s.answers))::double precision / nullif(n.answered - s.answered, 0) as failed
      from newest n join sampled s on s.queue_id = n.id and s.subscription = n.reader and s.at between n.at - interval '2 minutes' and n.at - interval '55 seconds'
      order by n.id, n.reader, s.at desc),
    step as (
      select distinct on (s.queue_id, s.subscription, t.n) s.queue_id, s.subscription, t.n, s.ready
      from sampled s cross join lateral (select floor(extract(epoch from s.at - (p_now - interval '5 minutes')) / 10)::integer as n) t
      where t.n between 0 and 29 and (s.queue_id, s.subscription) in (select w.id, w.reader from worst w)
      order by s.queue_id, s.subscription, t.n, s.at desc),
    course as materialized (
      select t.queue_id, t.subscription, jsonb_object_agg(t.n, t.ready) as ready from step t group by t.queue_id, t.subscription)
    select w.queue, w.reader, w.mode, w.looked_at, w.ready, w.leased, w.delayed, w.dead, w.parked, w.workers,
      p_now - w.oldest_ready_at, w.pending, p_now - w.pending_since, p.published, a.answered, a.failed,
      w.estimated, w.paused, w.paused_until, w.lost_at, w.subscriptions,
      array(select (c.ready->>(g.n::text))::bigint from generate_series(0, 29) g(n) order by g.n)
    from worst w
    left join rate p on p.id = w.id and p.reader = ''
    left join rate a on a.id = w.id and a.reader = w.reader
    left join course c on c.queue_id = w.id and c.subscription = w.reader
    order by w.class, w.oldest_ready_at nulls last, w.dead desc nulls last, w.queue, w.reader;
end $$;
comment on function trunq._worst is 'The worst of these newest samples, with what the samples of five minutes say of each: one walk over these, however many subscriptions there are.';

create or replace function trunq._look_again(p_rows trunq.sample[], p_queues integer[], p_now timestamptz) returns trunq.sample[]
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
  v_rows trunq.sample[] := coalesce(p_rows, '{}');
  v_look trunq.sample[];
  v_queue trunq.queue;
begin
  for v_queue in
    select q.* from trunq.queue q
    left join (select r.queue_id, min(r.oldest_ready_at) as oldest from unnest(v_rows) r group by 1) o using (queue_id)
    where q.queue_id = any (p_queues)
    order by o.oldest nulls last, q.name limit 20
  loop
    begin
      v_look := array(select r from jsonb_populate_recordset(null::trunq.sample, trunq._look_at(v_queue.name)) r);
      raise exception using errcode = 'TQ900';  -- gives the locks back
    exception
      when sqlstate 'TQ900' then
        null;
      when query_canceled then
        raise;
      when others then
        continue;  -- in somebody's hands, dropped, or broken: it has its last sample
    end;
    v_rows := v_look || coalesce((select array_agg(r) from unnest(v_rows) r where r.queue_id <> v_queue.queue_id), '{}');
  end loop;
  return v_rows;
end $$;
comment on function trunq._look_again is 'Samples, with those of twenty of these queues looked up now: those whose messages waited longest.';

create or replace function trunq._look_at(p_queue text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  return (select jsonb_agg(l) from trunq._look(trunq._find_queue(p_queue), trunq.clock(), null) l);
end $$;
comment on function trunq._look_at is 'What a queue and its subscriptions are like now, as samples; for all who may see its figures.';

create or replace function trunq._acked(p_answers jsonb) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce((p_answers->>trunq._outcome('a'))::bigint, 0)
$$;
comment on function trunq._acked is 'How many of the answers are acks.';
