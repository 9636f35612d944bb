-- Work that waits, and of which nobody would hear: list_warnings names it, why it waits, and the command that helps.
--
--   a run cannot begin     three tries in a row failed before there was a run: a source that is not there, credentials that nobody has
--   nobody goes on         a run is open, and the message that asked for it is dead
--   a pause                somebody has asked since; without end, or for a rate of more than an hour
--   values that cannot be  the table of a trigger has them, and no run of theirs is asked for
--   what was left          no runner has removed yet what a pipeline that was dropped had staged
--
-- What fails again and again (_warn_pipelines), a quota of a day (_warn_put_off), and messages while no runner is there (_warn_unread) are named elsewhere.

create or replace function trunq._warn_pending(p_queue text) returns table (queue text, subscription text, warning text, hint text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'pipelines', null::text, w.warning, w.hint from (
    (select format('pipeline "%s" has begun no run since %s: %s', p.name, date_trunc('second', p.failing_since), split_part(p.error, E'\n', 1)) as warning,
      format('it failed %s times. After a mistake in its file: trunq pipeline create FILE; then: trunq pipeline run %s', p.failures, p.name) as hint
    from trunq.pipeline p where p.failures >= 3 order by p.failing_since limit 100)
    union all
    (select format('run %s of pipeline "%s" is open since %s, and nobody goes on with it: the message that asked for it is dead, or gone', r.number, p.name,
      date_trunc('second', r.begun_at)),
      case when r.backfill = 0 then format('to go on: trunq pipeline run %s; to give it up: trunq pipeline cancel %s', p.name, p.name)
        else format('to go on: trunq dead requeue pipelines %s; to give it up: trunq pipeline cancel %s --backfill %s', r.backfill, p.name, r.backfill) end
    from trunq.pipeline_run r join trunq.pipeline p on p.pipeline_id = r.pipeline_id
      cross join (
        select trunq._open_requests(array_agg(o.message_id)) as waiting from trunq.pipeline_run o
        where o.ended_at is null and not trunq._is_run_held(o)) a
    where r.ended_at is null and not trunq._is_run_held(r) and r.message_id <> all (a.waiting) order by r.run_id limit 100)
    union all
    (select format('pipeline "%s" is paused%s, and a run of it that was asked for waits', p.name, case when u.by = p.name then '' else format(' with pipeline "%s"', u.by) end),
      format('trunq pipeline resume %s', u.by)
    from trunq.pipeline p left join trunq.pipeline a on a.pipeline_id = p.parent_id,
      lateral (select case when p.paused_until > trunq.clock() then p.name when a.paused_until > trunq.clock() then a.name end as by) u
    where p.put_off_for = 'pause' and p.put_off_until > trunq.clock() and u.by is not null order by p.name limit 100)
    union all
    (select format('pipeline "%s" has used its limits.rate (%s): a run of it waits until %s', p.name, p.definition #>> '{limits,rate}', date_trunc('second', p.put_off_until)),
      'with another rate, within ten minutes: trunq pipeline create FILE'
    from trunq.pipeline p where p.put_off_for = 'rate' and p.put_off_until > trunq.clock() + interval '1 hour' order by p.name limit 100)
    union all
    (select format('pipeline "%s" asks for no run of %s that its trigger found: %s is not as its message is declared', p.name,
      case p.unfit->>'count' when '1' then 'a value' else format('%s values', p.unfit->>'count') end,
      (select string_agg(left(v, 60), ', ' order by at) from jsonb_array_elements_text(p.unfit->'values') with ordinality g(v, at))),
      format('correct them in %s, or give message a pattern: trunq pipeline create FILE; the next time of its trigger looks again',
        p.definition #>> '{trigger,for,table}')
    from trunq.pipeline p where p.unfit is not null order by p.name limit 100)
    union all
    (select format('pipeline "%s" was dropped at %s, and its sink may have what was staged for it', l.name, date_trunc('second', l.dropped_at)),
      'a runner removes that: trunq worker trunq.pipeline.runner:worker; if it failed: trunq dead requeue pipelines --all'
    from trunq.pipeline_left l where l.dropped_at < trunq.clock() - interval '5 minutes' order by l.dropped_at limit 100)
  ) w where coalesce(p_queue, 'pipelines') = 'pipelines'
$$;
comment on function trunq._warn_pending is 'What waits of pipelines, and why.';
