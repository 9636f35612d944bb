-- One process at a time performs the duties, elected by a lease row (not a session lock, so PgBouncer is fine). A new leader
-- is a new term. Two who both believe they lead do no harm: every duty takes its own locks and finds the work done.

create or replace function trunq.elect(p_name text, p_lease_time interval default '15 seconds') returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_term bigint;
begin
  if coalesce(p_name, '') = '' then
    perform trunq._fail('TQ005', 'a leader needs a name');
  end if;
  perform trunq._check_cluster();
  -- A look first: those who do not lead only read.
  perform from trunq.leader l where l.name is distinct from p_name and l.expires_at > v_now;
  if found then
    return null;
  end if;
  update trunq.leader l set
    term = case when l.name = p_name and l.expires_at > v_now then l.term else l.term + 1 end,
    name = p_name, expires_at = v_now + p_lease_time
  where l.name is null or l.name = p_name or l.expires_at <= v_now
  returning l.term into v_term;
  return v_term;
end $$;
comment on function trunq.elect(text, interval) is
  'Makes p_name the leader for p_lease_time, or renews it.
Returns: the term, null when another leads.
Raises: TQ005, TQ010.
Locks: the leader row.';

create or replace function trunq.resign(p_name text, p_term bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  update trunq.leader l set name = null, expires_at = null where l.name = p_name and l.term = p_term;
  return found;
end $$;
comment on function trunq.resign(text, bigint) is
  'Gives leadership up at once.
Returns: false when this name did not lead in this term.
Locks: the leader row.';

create or replace function trunq.list_duties()
returns table (duty text, per_queue boolean, every interval, again_from integer, times_a_span integer, again_after interval)
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select * from (values
    ('promote', true, interval '0.5 seconds', 1000, null, null),  -- delayed messages that fell due go into the log
    ('reap', true, '1 second', 1, null, null),                    -- leases that ran out: their messages go back, or die
    ('tick', true, '1 second', null, null, null),                 -- a tick is cut when the queue's thresholds say so
    ('summarize', true, '60 seconds', null, null, null),          -- messages stay findable by id
    ('rotate', true, '30 seconds', 1, 4, interval '1 second')     -- segments that nobody needs are emptied
  ) d(duty, per_queue, every, again_from, times_a_span, again_after)
$$;
comment on function trunq.list_duties() is
  'What the leader does: each duty is the function trunq.<duty>, of a queue where per_queue. every: how often; again_from: the number done from which on it is called again at once; times_a_span: at least so often in each span of the queue; again_after: how soon when it returned null, because somebody was in the way.';

create or replace function trunq.perform_duties() returns table (duty text, queue text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_duty text;
  v_queue text;
  v_done bigint;
begin
  for v_duty, v_queue in
    select d.duty, q.name from trunq.list_duties() d left join trunq.queue q on d.per_queue
    where d.duty <> 'rotate' and (q.name is not null or not d.per_queue) order by q.name
  loop
    return query select v_duty, v_queue, trunq._perform(v_duty, v_queue);
  end loop;
  -- Last, and one: the lock on what was emptied lasts to the end of this transaction. Chance chooses the queue.
  for v_queue in select q.name from trunq.queue q order by random() loop
    v_done := trunq._perform('rotate', v_queue);
    return query select 'rotate', v_queue, v_done;
    exit when v_done > 0;
  end loop;
end $$;
comment on function trunq.perform_duties() is
  'Every duty of every queue once (of rotation one segment), for pg_cron or by hand; beside a leader it does no harm.
Returns: one row a duty and queue, done: how many.
Raises: TQ007, TQ010.';

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
  return case when p_duty = 'tick' then (v_done is not null)::integer else coalesce(v_done, 0) end;
end $$;
comment on function trunq._perform(text, text) is 'Performs one duty once, of one queue or of none.
Returns: how much was done.';

create or replace function trunq.version() returns integer
language sql stable set search_path = pg_catalog, pg_temp as $$ select max(m.number) from trunq.migration m $$;
comment on function trunq.version() is 'The number of the newest migration applied.';
