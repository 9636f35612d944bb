-- Who works: what workers tell of themselves (trunq.worker), and what is held in their names (leases). A worker whose machine is gone tells nothing,
-- and holds what it had until its leases end, or until somebody who knows frees it. One of that name that is alive loses its leases too: they
-- are fenced, so its answers are refused and its transactions rolled back, and it leases anew.

create or replace function trunq.list_workers(p_queue text default null)
returns table (
  worker text, queue text, subscription text, slots integer, leases bigint, held bigint, since timestamptz, until timestamptz, seen_at timestamptz,
  connections integer
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue;
  v_held jsonb := '[]';
begin
  if p_queue is not null then
    perform trunq._find_queue(p_queue);
  end if;
  for v_queue in select q.* from trunq.queue q where p_queue is null or q.name = p_queue loop
    begin
      v_held := v_held || coalesce((
        select jsonb_agg(to_jsonb(h)) from (
          select s.subscription_id, l.worker, count(*) leases, sum(l.unanswered)::bigint held, min(l.leased_at) since, max(l.expires_at) until
          from trunq.subscription s cross join lateral trunq._leases(v_queue, s.subscription_id, null, null) l
          where s.queue_id = v_queue.queue_id and s.mode = 'shared' and l.unanswered > 0 group by s.subscription_id, l.worker) h), '[]');
      raise exception using errcode = 'TQ900';  -- gives the locks back: of many queues, those of one are held
    exception
      when sqlstate 'TQ900' then
        null;
      when undefined_table then
        if exists (select from trunq.queue q where q.queue_id = v_queue.queue_id) then
          raise;
        end if;  -- dropped meanwhile
    end;
  end loop;
  return query
    with sub as (
      select s.subscription_id, q.name queue, s.name subscription from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
      where s.mode = 'shared' and (p_queue is null or q.name = p_queue)),
    held as (
      select h.* from jsonb_to_recordset(v_held)
        h(subscription_id integer, worker text, leases bigint, held bigint, since timestamptz, until timestamptz))
    select coalesce(w.name, h.worker, ''), s.queue, s.subscription, w.slots, coalesce(h.leases, 0), coalesce(h.held, 0), h.since, h.until, w.seen_at,
      (select count(*)::integer from pg_stat_activity a
       where a.datname = current_database() and a.application_name = left('trunq worker ' || coalesce(w.name, h.worker), 63))
    from sub s
    join (
      (select w.subscription_id, w.name, w.slots, w.seen_at from trunq.worker w) w
      full join held h on h.subscription_id = w.subscription_id and h.worker = w.name) on coalesce(w.subscription_id, h.subscription_id) = s.subscription_id
    order by 1, 2, 3;
end $$;
comment on function trunq.list_workers is
  'Who works on the shared subscriptions of a queue, or of all: workers that told of themselves within an hour, and whoever holds leases. slots: how many messages it handles at a time; null: it does not say. leases and held: how many leases with unanswered messages it has, and of how many messages; since: when the first of them was made; until: when the last of them ends. seen_at: when it last told of itself, as it does every few seconds; null: never, or it has stopped. connections: how many sessions of this database a worker of trunq by that name has now; a long name counts for those that begin as it does.
Returns: one row for each worker and subscription; worker empty: leases without a name.
Raises: TQ001.';

create or replace function trunq.free_worker(p_worker text) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c_leases constant integer := 100;
  v_now timestamptz := trunq.clock();
  v record;
  v_mark record;
  v_ended record;
  v_total integer := 0;
  v_messages integer := 0;
begin
  perform trunq._require_read_committed('free_worker');
  if coalesce(p_worker, '') = '' then
    perform trunq._fail('TQ005', 'a worker is freed by its name, and none was given', 'select * from trunq.list_workers() shows who holds what');
  end if;
  delete from trunq.worker w where w.name = p_worker;
  for v in
    select q, s.subscription_id from trunq.queue q join trunq.subscription s on s.queue_id = q.queue_id
    where s.mode = 'shared' order by q.queue_id, s.subscription_id
  loop
    exit when v_total >= c_leases or v_messages >= trunq._limit('reaped_messages');
    begin
      v_mark := trunq._reap_mark(v.q, v.subscription_id);
      v_ended := trunq._end_leases(v.q, v.subscription_id,
        trunq._open_leases(v.q, v.subscription_id, v_mark.until, 'infinity', v_mark.newest, p_worker, c_leases - v_total),
        'infinity', v_now, trunq._limit('reaped_messages') - v_messages);
      if v_ended.reaped = 0 and v_ended.skipped is null then
        raise exception using errcode = 'TQ900';  -- gives the locks back: of a thousand queues there would be too many
      end if;
    exception
      when sqlstate 'TQ900' then
        continue;
      when undefined_table then
        continue when not exists (select from trunq.queue q where q.queue_id = (v.q).queue_id);  -- dropped meanwhile
        raise;
    end;
    v_total := v_total + v_ended.reaped;
    v_messages := v_messages + v_ended.messages;
  end loop;
  perform trunq._audit('free_worker', null, jsonb_build_object('worker', p_worker), v_messages);
  return v_total;
end $$;
comment on function trunq.free_worker is
  'Ends what a worker of this name holds, in all queues: for one whose machine is gone. Its messages go back as after an expiry, without waiting for it; the attempt counts. At most 100 leases a call, and no further one after 1,000 messages: call it until it returns 0. A worker of that name which is alive loses its leases: its answers are refused (TQ003), and what its handlers wrote in their transactions is rolled back. A lease whose answer is under way is left out. For the owner of trunq.
Returns: how many leases.
Raises: TQ005, TQ007.
Locks: each lease it ends.';
