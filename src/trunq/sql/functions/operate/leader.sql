-- One process at a time performs the duties, elected by a lease row (not a session lock, so PgBouncer is fine). A new leader
-- is a new term. Two processes that both believe they lead do no harm: every duty takes its own locks and finds the work done.

create or replace function trunq.elect(p_name text, p_lease_time interval default '15 seconds') returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_term bigint;
begin
  if coalesce(p_name, '') = '' then
    perform trunq._fail('TQ005', 'a leader needs a name');
  end if;
  perform trunq._check_interval('the time of a leader', p_lease_time);
  perform trunq._check_cluster();
  if (p_lease_time > '0') is not true then
    perform trunq._fail('TQ005', format('the lease time of a leader must be positive, not %s', coalesce(p_lease_time::text, 'null')));
  end if;
  -- A look first: processes that do not lead only read.
  perform from trunq.leader l where l.name is distinct from p_name and trunq._leads(l, v_now);
  if found then
    return null;
  end if;
  update trunq.leader l set
    term = case when l.name = p_name and trunq._leads(l, v_now) then l.term else l.term + 1 end,
    name = p_name, expires_at = v_now + p_lease_time, lease_time = p_lease_time, ahead = case when l.name = p_name then l.ahead end
  where l.name is null or l.name = p_name or not trunq._leads(l, v_now)
  returning l.term into v_term;
  return v_term;
end $$;
comment on function trunq.elect is
  'Makes p_name the leader for p_lease_time (15 s), or renews it.
Returns: the term, null when another leads.
Raises: TQ005, TQ010.
Locks: the leader row.';

create or replace function trunq.resign(p_name text, p_term bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  update trunq.leader l set name = null, expires_at = null, lease_time = null where l.name = p_name and l.term = p_term;
  return found;
end $$;
comment on function trunq.resign is
  'Gives leadership up at once.
Returns: false when this name did not lead in this term.
Locks: the leader row.';

create or replace function trunq._leads(p_leader trunq.leader, p_now timestamptz) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- An end further ahead than its election can justify was given by a clock that has gone back since: a failover, or NTP. Twice
  -- the lease time, as a clock that goes back a little is no reason to change the leader.
  select coalesce(p_leader.expires_at > p_now and p_leader.expires_at <= p_now + 2 * p_leader.lease_time, false)
$$;
comment on function trunq._leads is 'Whether somebody leads at that time.';

create or replace function trunq.list_duties()
returns table (duty text, per_queue boolean, every interval, again_from integer, times_a_span integer, again_after interval, line text)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select * from (values
    ('promote', true, interval '0.5 seconds', 1000, null, null, 'quick'),  -- delayed messages that fell due go into the log
    ('reap', true, '1 second', 1, null, null, 'quick'),                    -- leases that ran out: their messages go back, or die
    ('tick', true, '1 second', null, null, null, 'quick'),                 -- a tick is cut when the queue's thresholds say so
    ('forget', true, '60 seconds', 1000, null, null, 'slow'),              -- dead messages that are too old are deleted, unused keys forgotten
    ('summarize', true, '60 seconds', null, null, null, 'slow'),           -- messages stay findable by id
    ('roll_up', true, '10 seconds', 60, null, null, 'slow'),               -- the statistics of each minute that is over
    ('archive', true, '30 seconds', 1000, 4, '1 second', 'slow'),          -- attempts that are over go into the archive, if there is one
    -- A segment is old for one span in each round of the ring: called once a span, rotation would miss some.
    ('rotate', true, '30 seconds', 1, 4, interval '1 second', 'slow'),     -- segments that nobody needs are emptied
    ('fire', false, '1 second', 1, null, null, 'quick'),                   -- schedules publish what is due
    ('sample', false, '5 seconds', null, null, null, 'look'),              -- what each subscription is like is written down
    ('remind', false, '10 seconds', 100, null, null, 'slow'),              -- what waits unread is announced again, where a queue asks for it
    ('sweep', false, '1 second', 1, null, null, 'slow'),                   -- acts on all that match are carried on, a part a call
    ('forget_audit', false, '1 hour', 1000, null, null, 'slow'),           -- what people did long ago is deleted
    ('forget_memos', false, '60 seconds', 1000, null, null, 'slow')        -- memos whose time is over are deleted
  ) d(duty, per_queue, every, again_from, times_a_span, again_after, line)
$$;
comment on function trunq.list_duties is
  'What the leader does: each duty is the function trunq.<duty>, of a queue where per_queue. every: how often; again_from: the number done from which on it is called again at once; times_a_span: at least so often in each span of the queue; again_after: how soon when it returned null, because somebody was in the way; line: those of one line never wait for one of another (quick: what messages wait for; slow: what disk space and lists wait for; look: what figures wait for).';

create or replace function trunq.list_performed()
returns table (duty text, every interval, done_at timestamptz, queue text, failed_at timestamptz, error text, leader text, term bigint)
language sql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  select d.duty, d.every, n.done_at, coalesce(f.queue, nullif(n.queue, '')), f.failed_at, f.error, l.name, l.term
  from trunq.list_duties() with ordinality d(duty, per_queue, every, again_from, times_a_span, again_after, line, place)
  left join trunq.duty_done n on n.duty = d.duty
  left join lateral (
    select nullif(x.queue, '') as queue, x.failed_at, x.error from trunq.duty_failure x where x.duty = d.duty order by x.failed_at desc limit 1) f on true
  left join trunq.leader l on trunq._leads(l, trunq.clock())
  order by d.place
$$;
comment on function trunq.list_performed is
  'Who leads now, in which term (null: nobody), and when each duty was last done: of a duty of each queue, of that queue for which it is longest ago. failed_at, error: its newest failure that no success has followed, of that queue.';

create or replace function trunq.perform_duty(p_duty text, p_queue text default null)
returns table (duty text, queue text, done bigint, error text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if not exists (select from trunq.list_duties() d where d.duty = p_duty and d.per_queue = (p_queue is not null)) then
    perform trunq._fail('TQ005',
      format('there is no duty "%s" of %s', coalesce(p_duty, ''), case when p_queue is null then 'no queue' else 'a queue' end),
      'select * from trunq.list_duties() shows those there are');
  end if;
  duty := p_duty; queue := p_queue;
  begin
    done := trunq._perform(p_duty, p_queue);
    delete from trunq.duty_failure f where f.duty = p_duty and f.queue = coalesce(p_queue, '');
    return next;
    return;
  exception
    when query_canceled then
      if not trunq._has_timed_out() then
        raise;
      end if;
      error := sqlerrm;
    when others then
      error := sqlerrm;
  end;
  if p_queue is not null and not exists (select from trunq.queue q where q.name = p_queue) then
    -- Dropped since somebody listed it: nothing to do.
    done := 0; error := null;
    delete from trunq.duty_failure f where f.queue = p_queue;
    return next;
    return;
  end if;
  done := null;
  raise warning 'trunq: duty % of queue % failed: %', p_duty, coalesce(p_queue, '(none)'), error;
  insert into trunq.duty_failure (duty, queue, failed_at, error)
  values (p_duty, coalesce(p_queue, ''), trunq.clock(), left(error, trunq._limit('error_characters')))
  on conflict on constraint duty_failure_pkey do update set failed_at = excluded.failed_at, error = excluded.error;
  return next;
end $$;
comment on function trunq.perform_duty is
  'Performs one duty once. When it fails, or runs into a time-out, it changes nothing, and trunq.duty_failure keeps why until it succeeds.
Returns: one row, done: how many, or error: why not.
Raises: TQ005.
Locks: what the duty locks.';

create or replace function trunq._has_timed_out() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_limit interval := current_setting('statement_timeout')::interval;
  v_is_over boolean := v_limit > '0' and clock_timestamp() - statement_timestamp() >= v_limit;
begin
  -- Postgres stops a statement once for its time; from then on it is somebody who cancels.
  if v_is_over and current_setting('trunq.timed_out', true) is distinct from statement_timestamp()::text then
    perform set_config('trunq.timed_out', statement_timestamp()::text, false);
    return true;
  end if;
  return false;
end $$;
comment on function trunq._has_timed_out is 'Whether a statement was stopped for its time, and not by somebody.';

create or replace function trunq.perform_duties() returns table (duty text, queue text, done bigint, error text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v record;
begin
  for v in select e.duty, e.queue from trunq._each_duty() e where e.duty <> 'rotate' loop
    return query select * from trunq.perform_duty(v.duty, v.queue);
  end loop;
  -- Last, and one: the lock on what was emptied lasts to the end of this transaction. Chance chooses the queue.
  for v in select e.duty, e.queue from trunq._each_duty() e where e.duty = 'rotate' order by random() loop
    select p.* into duty, queue, done, error from trunq.perform_duty(v.duty, v.queue) p;
    return next;
    exit when done > 0;
  end loop;
end $$;
comment on function trunq.perform_duties is
  'Every duty of every queue once (of rotation one segment), in one transaction, by hand; beside a leader it does no harm. pg_cron calls trunq.perform_each_duty().
Returns: one row for each duty and queue, done: how many, or error: why not.';

-- A procedure that commits can set nothing, search_path neither: so it only calls. Its transactions are read committed whatever the default is:
-- pg_cron has that of the database.
create or replace procedure trunq.perform_each_duty()
language plpgsql as $$
declare
  v_each record;
  v_is_left boolean;
  v_begun timestamptz := trunq.clock();
begin
  for v_each in select e.duty, e.queue from trunq._each_duty() e loop
    for v_try in 1..50 loop
      commit;
      set transaction isolation level read committed;
      v_is_left := trunq._perform_or_note(v_each.duty, v_each.queue);
      exit when not v_is_left;
    end loop;
  end loop;
  commit;
  set transaction isolation level read committed;
  perform trunq._note_all_duties(v_begun);
  commit;
end $$;
comment on procedure trunq.perform_each_duty is
  'Every duty of every queue, each in a transaction of its own, until nothing is left to do, for pg_cron: cron.schedule(''trunq'', ''1 second'', ''call trunq.perform_each_duty()''). Beside a leader it does no harm. A duty that fails leaves the others their turn; trunq.duty_failure tells.
Locks: never more than those of one duty.';

create or replace function trunq._each_duty() returns table (duty text, queue text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  -- Those of the quick line of all queues first: they wait for no other of the call. Then looks, which are bounded.
  select d.duty, q.name
  from trunq.list_duties() with ordinality d(duty, per_queue, every, again_from, times_a_span, again_after, line, place)
  left join trunq.queue q on d.per_queue
  where q.name is not null or not d.per_queue order by array_position('{quick,look,slow}', d.line), q.name, d.place
$$;
comment on function trunq._each_duty is 'Every duty of every queue, those of the quick line first.';

create or replace function trunq._note_duties(p_duties text[], p_queues text[], p_seconds integer[], p_clock double precision default null) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update trunq.leader l set ahead = trunq._ahead(p_clock) where p_clock is not null;
  -- How long ago, not when: clocks differ.
  insert into trunq.duty_done (duty, queue, done_at)
  select d.duty, d.queue, trunq.clock() - d.seconds * interval '1 second' from unnest(p_duties, p_queues, p_seconds) d(duty, queue, seconds)
  on conflict (duty) do update set queue = excluded.queue, done_at = excluded.done_at
$$;
comment on function trunq._note_duties is
  'Notes how many seconds ago each duty was last done of the queue for which that is longest ago: ten rows every ten seconds, however many queues there are; and what the leader''s clock shows.
Locks: the leader row; the rows of these duties.';

create or replace function trunq._note_all_duties(p_begun timestamptz) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into trunq.duty_done as n (duty, done_at) select d.duty, p_begun from trunq.list_duties() d
  where not exists (select from trunq.duty_failure f where f.duty = d.duty)
  on conflict (duty) do update set queue = '', done_at = excluded.done_at where excluded.done_at not between n.done_at and n.done_at + interval '10 seconds'
$$;
comment on function trunq._note_all_duties is 'Notes that every duty was done of every queue, but those that failed; at most every ten seconds.
Locks: the rows of these duties.';

create or replace function trunq._perform_or_note(p_duty text, p_queue text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_done bigint := (select p.done from trunq.perform_duty(p_duty, p_queue) p);
begin
  return coalesce(v_done >= (select d.again_from from trunq.list_duties() d where d.duty = p_duty), false);
end $$;
comment on function trunq._perform_or_note is 'Performs one duty once.
Returns: whether there may be more to do.';

create or replace function trunq._perform(p_duty text, p_queue text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_done bigint;
begin
  if p_queue is null then
    execute format('select trunq.%I()', p_duty) into v_done;
  else
    execute format('select trunq.%I($1)', p_duty) into v_done using p_queue;
  end if;
  return case when p_duty = 'tick' then (v_done is not null)::integer else v_done end;
end $$;
comment on function trunq._perform is 'Performs one duty once, of one queue or of none.
Returns: how much was done; null: somebody was in the way.';

create or replace function trunq.version() returns integer
language sql stable set search_path = pg_catalog, pg_temp as $$ select max(m.number) from trunq.migration m $$;
comment on function trunq.version is 'The number of the newest migration applied.';
