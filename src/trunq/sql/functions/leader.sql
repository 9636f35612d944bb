-- One process at a time performs the duties, elected by a lease row (not a session lock, so PgBouncer is fine). A new leader
-- is a new term. Two who both believe they lead do no harm: every duty takes its own locks and finds the work done.

create or replace function trunq.elect(p_name text, p_lease_time interval default '15 seconds') returns bigint
language plpgsql as $$
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
  'Makes p_name the leader for p_lease_time, or renews it. Returns: the term, null when another leads. Raises: TQ005, TQ010. Locks: the leader row.';

create or replace function trunq.resign(p_name text, p_term bigint) returns boolean
language plpgsql as $$
begin
  update trunq.leader l set name = null, expires_at = null where l.name = p_name and l.term = p_term;
  return found;
end $$;
comment on function trunq.resign(text, bigint) is
  'Gives leadership up at once. Returns: false when this name did not lead in this term. Locks: the leader row.';

create or replace function trunq.perform_duties() returns table (duty text, queue text, done bigint)
language plpgsql as $$
declare
  v_queue text;
begin
  for v_queue in select q.name from trunq.queue q order by q.name loop
    return query select 'promote', v_queue, trunq.promote(v_queue)::bigint;
    return query select 'reap', v_queue, trunq.reap(v_queue)::bigint;
    return query select 'tick', v_queue, (trunq.tick(v_queue) is not null)::integer::bigint;
    return query select 'summarize', v_queue, trunq.summarize(v_queue)::bigint;
  end loop;
  -- Last, and one: the lock on what was emptied lasts to the end of this transaction. Whose turn it is, is left to chance.
  for v_queue in select q.name from trunq.queue q order by random() loop
    duty := 'rotate'; queue := v_queue; done := trunq.rotate(v_queue);
    return next;
    exit when done > 0;
  end loop;
end $$;
comment on function trunq.perform_duties() is
  'Every duty of every queue once (of rotation one segment), for pg_cron or by hand; beside a leader it does no harm. Returns: one row a duty and queue, done: how many. Raises: TQ007, TQ010.';

create or replace function trunq.version() returns integer
language sql stable as $$ select max(m.number) from trunq.migration m $$;
comment on function trunq.version() is 'The number of the newest migration applied.';
