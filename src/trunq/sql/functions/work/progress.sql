-- How far a handler is, and from where the next attempt goes on. While a message runs, its worker may report a share, a note and a
-- checkpoint (JSON): one row a message and subscription in trunq.progress, updated, and fenced as an answer is: under the lock of
-- the lease, checked by a later statement. It is told on a connection of its own, and so stands whatever becomes of the handler's transaction.
--
-- Who does not report pays nothing: leases look at nothing. Where the flag has_progress of a subscription is set,
--   ack         deletes the rows of what is done
--   give_back   (retry, reject, the end of a lease, ...) adds {"checkpoint": true} to the options of a message that has one. They go
--               with it through delay, death and requeue; whoever leases it then asks for the checkpoint (show_checkpoint)
--   forget      deletes what else is over, and takes the flag away when nothing is left. It holds the subscription then; a first
--               report shares it, and so never finds the flag set that is just being taken
-- A row that is there keeps the flag: an update of one needs no look at it.

create or replace function trunq.set_progress(
  p_queue text, p_subscription text, p_lease_id bigint, p_token bigint, p_id bigint,
  p_percent double precision default null, p_note text default null, p_checkpoint jsonb default null
) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_said boolean;
begin
  execute format('select trunq_queue.%I($1, $2, $3, $4, $5, $6, $7)', trunq._function(p_queue, 'set_progress'))
    into v_said using p_subscription, p_lease_id, p_token, p_id, p_percent, p_note, p_checkpoint;
  return v_said;
end $$;
comment on function trunq.set_progress is
  'Says how far a message of a lease is: p_percent (0 to 100), p_note (up to 500 characters), and p_checkpoint, up to 1 MB of JSON that the next attempt is given, whatever ends this one (JSON null removes it). Arguments that are null keep what this attempt reported before. Call it in a transaction of its own, not in the handler''s: then others see it at once, and it stays even if the handler''s transaction is rolled back.
Returns: false when the message was answered already, and nothing was changed.
Raises: TQ001, TQ002, TQ003 when the lease ended, TQ005, TQ006 for a checkpoint over 1 MB, TQ007, TQ011, TQ013 for a message of another lease.
Locks: the lease.';

create or replace function trunq.show_checkpoint(p_queue text, p_id bigint, p_subscription text default 'default') returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
begin
  return (select p.checkpoint from trunq.progress p where p.subscription_id = v_sub.subscription_id and p.id = p_id);
end $$;
comment on function trunq.show_checkpoint is
  'The checkpoint of a message that runs, waits for its next attempt or is dead; null: it has none, or is done. What a lease hands out with the option checkpoint has one.
Raises: TQ001, TQ002, TQ011.';

create or replace function trunq.list_progress(
  p_queue text, p_subscription text default null, p_ids bigint[] default null, p_limit integer default 100
) returns table (
  subscription text, id bigint, is_running boolean, percent real, note text, checkpoint_bytes integer, worker text, reported_at timestamptz
)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_subscription_id integer := trunq._subscription_id(p_queue, p_subscription);
begin
  perform trunq._check_limit(p_limit);
  return query
    select s.name, p.id, trunq._is_running(v_queue, p.subscription_id, p.lease_id, p.id), p.percent, p.note, p.checkpoint_bytes, p.worker, p.reported_at
    from (
      select p.* from trunq.subscription s join trunq.progress p on p.subscription_id = s.subscription_id
      where s.queue_id = v_queue.queue_id and (v_subscription_id is null or s.subscription_id = v_subscription_id) and (p_ids is null or p.id = any (p_ids))
      order by p.reported_at desc, p.id desc limit p_limit) p
    join trunq.subscription s on s.subscription_id = p.subscription_id
    order by p.reported_at desc, p.id desc, s.name;
end $$;
comment on function trunq.list_progress is
  'What handlers last reported, the newest first, p_limit of them at most (100), of all messages or those of p_ids: of those that run (is_running), and of those that a later attempt goes on with, or that are dead. checkpoint_bytes null: no checkpoint.
Raises: TQ001, TQ002, TQ005.';

create or replace function trunq._is_running(p_queue trunq.queue, p_subscription_id integer, p_lease_id bigint, p_id bigint) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_lease record := trunq._lease(p_queue, p_subscription_id, p_lease_id);
begin
  return v_lease.token is not null and v_lease.reaped_at is null and trunq._unanswered_messages(p_queue, p_subscription_id, p_lease_id, array[p_id]) <> '{}';
end $$;
comment on function trunq._is_running is 'Whether a message of a lease is neither answered nor given back.';

create or replace function trunq._check_progress(p_percent double precision, p_note text, p_checkpoint jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(p_percent, p_note, p_checkpoint) = 0 then
    perform trunq._fail('TQ005', 'set_progress was given nothing to say', 'give p_percent, p_note or p_checkpoint');
  elsif p_percent not between 0 and 100 or p_percent <> 0 and p_percent < 1e-30 then
    perform trunq._fail('TQ005', format('percent is 0 to 100, not %s', p_percent));
  elsif length(p_note) > trunq._limit('note_characters') then
    perform trunq._fail('TQ005', format('a note has up to %s characters, not %s', trunq._limit('note_characters'), length(p_note)),
      'keep what the next attempt needs in the checkpoint');
  elsif octet_length(p_checkpoint::text) > trunq._limit('checkpoint_bytes') then
    perform trunq._fail('TQ006', format('a checkpoint has up to %s bytes (1 MB), not %s', trunq._limit('checkpoint_bytes'), octet_length(p_checkpoint::text)),
      'keep large content elsewhere, and say in the checkpoint where it is');
  end if;
end $$;
comment on function trunq._check_progress is 'Refuses (TQ005, TQ006) what cannot be reported.';

create or replace function trunq._use_progress(p_subscription_id integer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform from trunq.subscription s where s.subscription_id = p_subscription_id for key share;
  if not found then
    return false;
  end if;
  update trunq.subscription s set has_progress = true where s.subscription_id = p_subscription_id and not s.has_progress;
  return true;
end $$;
comment on function trunq._use_progress is
  'Before the first report about a message: answers of its subscription are to look for progress, and trunq.forget is kept from undoing that until the transaction ends.
Returns: false when the subscription is gone.';

create or replace function trunq._has_checkpoint(p_subscription_id integer, p_id bigint) returns boolean
-- Not in SQL: Postgres would put it in the place of its call, and open the table where nobody asks.
language plpgsql stable set search_path = pg_catalog, pg_temp set trunq.plan = probe as $$
begin
  -- What an older snapshot does not see: whoever leases it looks.
  return current_setting('transaction_isolation') <> 'read committed'
    or exists (select from trunq.progress p where p.subscription_id = p_subscription_id and p.id = p_id
      and (p.checkpoint_bytes is not null or p.resumed_at is not null));
end $$;
comment on function trunq._has_checkpoint is 'Whether a message that goes back has a checkpoint, or was resumed with a value.';

create or replace function trunq._drop_progress(p_subscription_id integer, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
begin
  -- It must never fail an answer of a transaction that began before a report. Then trunq.forget does it.
  if current_setting('transaction_isolation') = 'read committed' then
    delete from trunq.progress p where p.subscription_id = p_subscription_id and p.id = any (p_ids);
  end if;
end $$;
comment on function trunq._drop_progress is 'Deletes the progress of messages that are done.';

create or replace function trunq._forget_progress(p_queue trunq.queue, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_sub trunq.subscription;
  v_ids bigint[];
  v_kept bigint[];
  v_gone integer;
  v_count integer := 0;
begin
  for v_sub in
    select s.* from trunq.subscription s where s.queue_id = p_queue.queue_id and s.has_progress order by s.subscription_id for update skip locked
  loop
    -- Not those that an open answer deletes.
    v_ids := array(
      select p.id from trunq.progress p where p.subscription_id = v_sub.subscription_id and p.look_at <= p_now order by p.look_at, p.id limit 1000
      for update skip locked);
    -- In one statement: what is requeued meanwhile is in one place or the other.
    v_kept := array(
      select d.id from trunq.dead d where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id = any (v_ids)
      union
      select m.id from trunq._message(v_sub, p_queue, array(
        select u.id from unnest(v_ids) u(id) where not exists (
          select from trunq.dead d where d.queue_id = v_sub.queue_id and d.subscription_id = v_sub.subscription_id and d.id = u.id)), true, false) m
      where trunq._is_open(m.state));
    -- What runs, and does not pass a filter that came meanwhile, is not among the messages of the subscription.
    v_kept := v_kept || array(
      select p.id from trunq.progress p where p.subscription_id = v_sub.subscription_id and p.id = any (v_ids) and p.id <> all (v_kept)
        and trunq._is_running(p_queue, p.subscription_id, p.lease_id, p.id));
    delete from trunq.progress p where p.subscription_id = v_sub.subscription_id and p.id = any (v_ids) and p.id <> all (v_kept);
    get diagnostics v_gone = row_count;
    v_count := v_count + v_gone;
    -- Most go with the ack: what is still there runs, waits or is dead, for long.
    update trunq.progress p set look_at = p_now + interval '1 hour' where p.subscription_id = v_sub.subscription_id and p.id = any (v_kept);
    update trunq.subscription s set has_progress = false
    where s.subscription_id = v_sub.subscription_id and not exists (select from trunq.progress p where p.subscription_id = v_sub.subscription_id);
  end loop;
  return v_count;
end $$;
comment on function trunq._forget_progress is
  'Deletes the progress of messages that are over; at most 1,000 of each subscription are looked at. Leaves out a subscription that somebody changes, or first reports for, just now.';
