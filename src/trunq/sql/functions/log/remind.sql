-- A listener that is none of our workers may miss an announcement: it was away, or the server failed over. A worker looks by itself every few
-- seconds; for the others a queue that announces (gate.sql) may announce again what waits unread.
--
-- A duty looks at the message that each shared subscription would be handed next. The same one after the time that the queue
-- says means that nobody reads, and it announces the first and last id of what waits, of at most 1,000: one NOTIFY a queue, of the form of any
-- other. Nobody reads still: it comes again after twice the time, then four times, up to an hour, for ever. As soon as anything is read it begins anew.
-- What is read and not answered is the reaper's, and no news. Nor are messages of a subscription that is paused.
--
-- Unread means: not leased by one of the shared subscriptions that the queue names, or of any if it names none. Streams are not asked: their readers keep a
-- position, and read it when they like.

create or replace function trunq.set_reminders(p_queue text, p_after interval default null, p_subscriptions text[] default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
  v_subscription text;
begin
  if p_after is null then
    delete from trunq.reminder r where r.queue_id = v_queue.queue_id;
    return;
  end if;
  if p_after not between '1 second' and '1 day' then
    perform trunq._fail('TQ005', format('queue "%s" cannot announce again after %s', p_queue, p_after), 'give 1 second to 1 day, or null for not at all');
  elsif not v_queue.announces then
    perform trunq._fail('TQ005', format('queue "%s" does not announce its messages, so it cannot do so again', p_queue),
      format('let it: select trunq.set_publishing(%L, p_announce => true)', p_queue));
  end if;
  foreach v_subscription in array coalesce(p_subscriptions, '{}') loop
    perform trunq._subscription(p_queue, v_subscription, 'shared');
  end loop;
  insert into trunq.reminder as r (queue_id, after, subscriptions) values (v_queue.queue_id, p_after, nullif(p_subscriptions, '{}'))
  on conflict (queue_id) do update set after = excluded.after, subscriptions = excluded.subscriptions, looked_at = null, due_at = null, id = null, txid = null, times = 0;
end $$;
comment on function trunq.set_reminders is
  'Lets a queue that announces its messages (trunq.set_publishing) do so again for what has waited unread for p_after, 1 second to 1 day; null: no more. Each time that nobody has read anything since, the next one comes after twice the time, up to an hour. p_subscriptions: unread by any of these shared subscriptions; null: by any that there is. The leader looks every 10 seconds (trunq.remind).
Raises: TQ001, TQ002, TQ005, TQ011.
Locks: the row of the queue''s reminders.';

create or replace function trunq.remind() returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := trunq.clock();
  v_reminder trunq.reminder;
  v_count integer := 0;
begin
  -- Whose turn is longest ago.
  for v_reminder in
    select r.* from trunq.reminder r where r.looked_at is null or r.looked_at not between v_now - interval '1 second' and v_now
    order by r.looked_at nulls first limit 100 for update skip locked
  loop
    perform trunq._remind(v_reminder, v_now);
    v_count := v_count + 1;
  end loop;
  return v_count;
end $$;
comment on function trunq.remind is
  'Announces again what waits unread in queues that ask for it (trunq.set_reminders), at most 100 queues. It looks at 1,000 messages of a subscription at most.
Returns: at how many queues it looked.
Locks: their reminders; those that another has are left to it.';

create or replace function trunq._remind(p_reminder trunq.reminder, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_reminder.queue_id);
  v_oldest record;
  v_range record;
  v_is_due boolean := false;
begin
  select w.txid, w.id into v_oldest from trunq._waiting(v_queue, p_reminder.subscriptions, p_now, 1) w order by w.txid, w.id limit 1;
  if v_oldest.id is null or (v_oldest.txid, v_oldest.id) is distinct from (p_reminder.txid, p_reminder.id) then
    p_reminder.times := 0;
    p_reminder.due_at := p_now + p_reminder.after;
  elsif p_reminder.due_at <= p_now then
    v_is_due := v_queue.announces;
    p_reminder.times := p_reminder.times + 1;
    p_reminder.due_at := p_now + greatest(p_reminder.after, least(p_reminder.after * power(2, least(p_reminder.times, 20)), interval '1 hour'));
  elsif p_reminder.due_at > p_now + greatest(p_reminder.after, interval '1 hour') then
    p_reminder.due_at := p_now + p_reminder.after;  -- the clock went back
  end if;
  update trunq.reminder r set looked_at = p_now, txid = v_oldest.txid, id = v_oldest.id, due_at = p_reminder.due_at, times = p_reminder.times
  where r.queue_id = p_reminder.queue_id;
  if v_is_due then
    select min(w.id) low, max(w.id) high into v_range from trunq._waiting(v_queue, p_reminder.subscriptions, p_now, 1000) w;
    perform pg_notify(trunq.announcement_channel(v_queue.name), format('%s-%s', v_range.low, v_range.high));
  end if;
end $$;
comment on function trunq._remind is 'Looks at one queue, and announces again what waits there, if it is time.';

create or replace function trunq._waiting(p_queue trunq.queue, p_subscriptions text[], p_now timestamptz, p_limit integer) returns table (txid xid8, id bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return query
    select u.txid, u.id from trunq.subscription s cross join lateral trunq._unread(p_queue, s.subscription_id, p_limit) u
    where s.queue_id = p_queue.queue_id and s.mode = 'shared' and (p_subscriptions is null or s.name = any (p_subscriptions))
      and greatest(s.paused_until, s.queue_paused_until, '-infinity') <= p_now;
end $$;
comment on function trunq._waiting is 'What shared subscriptions that are not paused have not read, up to p_limit of each.';
