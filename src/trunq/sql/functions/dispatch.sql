-- trunq.publish, trunq.lease and trunq._answer (ack, retry, reject, release) work on the tables of the queue they are given. A
-- statement put together while running is parsed and planned at each call: as much work as all the rest of a publish, a sixth of a
-- lease. So they are generated, with a statement for each of the first 64 queues written out, and found by halving: each condition is
-- made ready again in each transaction. Creating and dropping queues make them anew. For other queues they put one together.

create or replace function trunq._define_dispatch() returns void
language plpgsql as $$
begin
  -- Of two who create queues, each must write out the other's too.
  perform pg_advisory_xact_lock(1953656423, 0);
  perform trunq._dispatch_publish();
  perform trunq._dispatch_lease();
  perform trunq._dispatch_answer();
end $$;
comment on function trunq._define_dispatch() is
  'Generates the functions that find the queue they are given. Locks: other creations and drops of queues, to the end of the transaction.';

create or replace function trunq._branches(p_statement text) returns text
language sql as $$
  select trunq._halve(coalesce(array_agg(f.name order by f.name collate "C"), '{}'),
    coalesce(array_agg(format(p_statement, f.name, f.queue_id) order by f.name collate "C"), '{}'))
  from (select q.name, q.queue_id from trunq.queue q
        -- Under an older snapshot a queue may be seen that was dropped, and another have its name.
        where to_regclass(format('trunq_log.%I', q.name)) is not null and to_regclass('trunq_data.lease_' || q.queue_id) is not null
        order by q.queue_id limit 64) f
$$;
comment on function trunq._branches(text) is
  'PL/pgSQL that does this statement for the queue p_queue: %1$I stands for its name, %2$s for its number.';

create or replace function trunq._halve(p_names text[], p_statements text[]) returns text
language plpgsql immutable as $$
declare
  v_half integer := cardinality(p_names) / 2;
begin
  if cardinality(p_names) = 0 then
    return '';
  elsif cardinality(p_names) = 1 then
    return format('if p_queue = %L then %s end if;', p_names[1], p_statements[1]);
  end if;
  return format(E'if p_queue collate "C" < %L then\n%s\nelse\n%s\nend if;', p_names[v_half + 1],
    trunq._halve(p_names[:v_half], p_statements[:v_half]), trunq._halve(p_names[v_half + 1:], p_statements[v_half + 1:]));
end $$;
