-- Replies: what became of a message that was published as awaited (its option "awaited"), for the one who waits for it. Whoever ends
-- such a message writes the reply in the same transaction, with a NOTIFY of its id on a channel of its own:
--   ack      by the lease, which noted the awaited ones among its messages (trunq_queue.<queue>_reply); the others cost nothing
--   death    by a trigger on trunq.dead, whatever brought it there: an answer, the reaper, cancel, expiry
--   replace  by the lease that passed the message over (trunq_queue.<queue>_pass_over)
--   too old  by the lease that left it out (trunq_queue.<queue>_leave_out)
-- A message that is requeued and ends again has its newest reply.

create or replace function trunq.list_replies(
  p_queue text, p_ids bigint[], p_subscription text default 'default', p_check boolean default true
) returns table (
  id bigint, outcome text, result jsonb, error text, reference text, public text, replied_at timestamptz, expires_at timestamptz
)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
#variable_conflict use_column
declare
  v_sub trunq.subscription := trunq._subscription(p_queue, p_subscription, 'shared');
  v_now timestamptz := trunq.clock();
  v_never jsonb;
begin
  if p_ids is null or array_position(array(select unnest(p_ids)), null) is not null then
    perform trunq._fail('TQ005', 'replies are asked for by the ids of messages, not null', format('select * from trunq.list_replies(%L, array[42])', p_queue));
  elsif cardinality(p_ids) > trunq._limit('awaited_messages') then
    perform trunq._fail('TQ005', format('list_replies takes up to %s messages, not %s', trunq._limit('awaited_messages'), cardinality(p_ids)),
      'ask for them in parts');
  end if;
  if p_check then
    -- Another snapshot would see no reply, however long it waits.
    perform trunq._require_read_committed('list_replies');
    v_never := trunq._find_unreplied(v_sub, array(
      select u.id from unnest(p_ids) u(id)
      where not exists (select from trunq.reply r where r.subscription_id = v_sub.subscription_id and r.id = u.id and r.expires_at > v_now)
        and not exists (
          select from trunq._forwarded_message(v_sub, u.id, true) f where trunq._is_open(f.state))));
  end if;
  -- By a later statement: what ended meanwhile has its reply.
  if v_never is not null and not exists (
      select from trunq.reply r
      where r.subscription_id = v_sub.subscription_id and r.id = (v_never->>'id')::bigint and r.expires_at > v_now) then
    perform trunq._fail(v_never->>'sqlstate', v_never->>'message', v_never->>'hint');
  end if;
  return query
    select r.id, r.outcome, r.result, trunq._above_reference(r.error), trunq._reference_of(r.error), trunq._public_of(r.error), r.replied_at, r.expires_at
    from (select distinct u.id from unnest(p_ids) u(id)) u
    join trunq.reply r on r.subscription_id = v_sub.subscription_id and r.id = u.id and r.expires_at > v_now
    order by r.id;
end $$;
comment on function trunq.list_replies is
  'The final answers of a shared subscription to messages that were published as awaited (option awaited), as far as there are any: it does not wait. outcome: success, rejected, failed (after its last attempt), timed_out (likewise), lease_expired, expired, cancelled, outdated or replaced; error: what the one who waits may know: the reason of a rejection, the first line of an error, with success why the result is not here; reference and public: those of the error. p_check, unless false: messages that will never have a reply are refused; it searches the log, so not each time. Replies are notified on the channel trunq.reply_channel.
Returns: a row for each that has a reply.
Raises: TQ001, TQ002, TQ007 with p_check, TQ011; TQ005 for a message that nobody published as awaited, one that this transaction published, or more than 10,000; TQ013 for one that is nowhere, or whose reply is gone.';

create or replace function trunq.reply_channel(p_queue text) returns text
language sql stable as $$ select pg_catalog.concat('trunq_', (trunq._find_queue(p_queue)).queue_id, '_reply') $$;
comment on function trunq.reply_channel is
  'The channel to LISTEN on, where a queue tells of replies (trunq.list_replies); payload: the ids of their messages with spaces between, or nothing for many.
Raises: TQ001.';

create or replace function trunq._find_unreplied(p_sub trunq.subscription, p_ids bigint[]) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_sub.queue_id);
  v_message record;
begin
  if p_ids = '{}' then
    return null;
  end if;
  for v_message in
    select u.id, m.state, w.* from unnest(p_ids) u(id)
    left join trunq._message(p_sub, v_queue, p_ids, true, false) m on m.id = u.id
    left join trunq._awaited_messages(v_queue, p_sub.subscription_id, p_ids) w on w.message_id = u.id
    order by u.id
  loop
    if v_message.state is null then
      return jsonb_build_object('id', v_message.id, 'sqlstate', 'TQ013',
        'message', format('queue "%s" has no message %s for subscription "%s"', v_queue.name, v_message.id, p_sub.name),
        'hint', 'await a message after the transaction that published it has committed; or it was never published, its time (the retention) is over, or the subscription does not read it');
    elsif v_message.is_own then
      return jsonb_build_object('id', v_message.id, 'sqlstate', 'TQ005',
        'message', format('message %s of queue "%s" was published by this transaction, which waits for its result: no worker sees it before the commit',
          v_message.id, v_queue.name),
        'hint', 'commit first, then await the result');
    elsif v_message.is_awaited is false then
      return jsonb_build_object('id', v_message.id, 'sqlstate', 'TQ005',
        'message', format('message %s of queue "%s" was not published as awaited, so nobody will keep its result for you', v_message.id, v_queue.name),
        'hint', 'publish it with the option {"awaited": true}; of others, trunq.show_message tells the state');
    elsif not trunq._is_open(v_message.state) then
      return jsonb_build_object('id', v_message.id, 'sqlstate', 'TQ013',
        'message', format('the reply to message %s of queue "%s" is gone: the message is %s', v_message.id, v_queue.name, v_message.state),
        'hint', 'a reply is kept for an hour, or as many seconds as the option "awaited" says');
    end if;
  end loop;
  return null;
end $$;
comment on function trunq._find_unreplied is
  'The first of these messages that will never have a reply, and why; null: there is none.';

create or replace function trunq._awaited_messages(p_queue trunq.queue, p_subscription_id integer, p_ids bigint[])
returns table (message_id bigint, is_awaited boolean, is_own boolean)
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  -- Null in a transaction that has written nothing. A row that a savepoint wrote has a later id.
  v_txid constant bigint := pg_current_xact_id_if_assigned()::text::bigint;
  v_rows record;
begin
  select r.* into v_rows from (select min(u.id) low, max(u.id) high from unnest(p_ids) u(id)) u
  cross join lateral trunq._rows_of(p_queue, u.low, u.high) r;
  return query execute format($q$
    select w.id, bool_or(w.options->>'awaited' is not null), coalesce(bool_or(w.is_own), false)
    from (
      select g.id, g.options::jsonb, g.txid::text::bigint = $4 is_own from %s g
      where g.id = any ($1) and (g.subscription_id is null or g.subscription_id = $3)
      union all
      select d.id, d.options, case when d.place >= $4 then pg_xact_status(d.place::text::xid8) = 'in progress' end
      from (
        select d.id, d.options, ($4 >> 32 << 32) + d.xmin::text::bigint place from trunq.delayed d
        where d.queue_id = $2 and (d.subscription_id is null or d.subscription_id = $3) and d.id = any ($1)) d
      union all
      select d.id, d.options, false from trunq.dead d where d.queue_id = $2 and d.subscription_id = $3 and d.id = any ($1)) w
    group by w.id
  $q$, v_rows.query) using p_ids, p_queue.queue_id, p_subscription_id, v_txid;
end $$;
comment on function trunq._awaited_messages is
  'Of messages, wherever they are: whether they were published as awaited, and by the transaction that asks.';

create or replace function trunq._reply_time(p_options jsonb) returns interval
language sql immutable as $$
  select pg_catalog.make_interval(secs => coalesce(nullif(p_options operator(pg_catalog.->>) 'awaited', 'true'), '3600')::double precision)
$$;
comment on function trunq._reply_time is 'How long the reply to a message with these options is kept.';

create or replace function trunq._reply(
  p_queue_id integer, p_subscription_id integer, p_ids bigint[], p_outcome text, p_errors text[], p_now timestamptz, p_options jsonb default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  insert into trunq.reply as r (queue_id, subscription_id, id, outcome, error, replied_at, expires_at)
  select p_queue_id, p_subscription_id, u.id, p_outcome, u.error, p_now, p_now + trunq._reply_time(p_options)
  from unnest(p_ids, p_errors) u(id, error) order by u.id
  on conflict (subscription_id, id) do update
    set outcome = excluded.outcome, result = null, error = excluded.error, replied_at = excluded.replied_at, expires_at = excluded.expires_at;
  perform trunq._tell_replies(p_queue_id, p_ids);
end $$;
comment on function trunq._reply is
  'Writes the replies to awaited messages that did not succeed.';

create or replace function trunq._tell_replies(p_queue_id integer, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._notify_replies(p_queue_id, p_ids);
  perform trunq._copy_replies(p_queue_id, p_ids);
end $$;
comment on function trunq._tell_replies is 'Tells of replies that were just written: those who wait here, and where a message was forwarded from.';

create or replace function trunq._notify_replies(p_queue_id integer, p_ids bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- A transaction that is to be prepared must not notify.
  if p_ids <> '{}' and current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify(format('trunq_%s_reply', p_queue_id), case when cardinality(p_ids) <= 100 then array_to_string(p_ids, ' ') else '' end);
  end if;
end $$;
comment on function trunq._notify_replies is 'Notifies those who wait for replies; of many it names none, and all look.';

create or replace function trunq._reply_dead() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._reply(new.queue_id, new.subscription_id, array[new.id],
    case new.reason when 'max_attempts' then 'failed' else new.reason end,
    array[case when new.reason = 'rejected' then new.errors #>> '{-1,error}'
      when new.reason in ('max_attempts', 'lease_expired') then trunq._brief(new.errors #>> '{-1,error}') end],
    new.died_at, new.options);
  return null;
end $$;
revoke execute on function trunq._reply_dead from public;
comment on function trunq._reply_dead is 'After an awaited message died: writes the reply.';

do $$
begin
  -- Where it is missing: to make a trigger locks the dead messages of all queues.
  if not exists (select from pg_trigger t where t.tgrelid = 'trunq.dead'::regclass and t.tgname = 'reply') then
    create trigger reply after insert on trunq.dead for each row when (new.options->>'awaited' is not null) execute function trunq._reply_dead();
  end if;
end $$;

create or replace function trunq._reply_timed_out(p_subscription_id integer, p_ids bigint[]) returns void
language sql volatile set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
  update trunq.reply r set outcome = 'timed_out' where r.subscription_id = p_subscription_id and r.id = any (p_ids) and r.outcome = 'failed'
    -- One that was requeued, and goes back, has the reply of its former life.
    and exists (select from trunq.dead d where d.queue_id = r.queue_id and d.subscription_id = r.subscription_id and d.id = r.id);
  select trunq._copy_replies(s.queue_id, p_ids) from trunq.subscription s where s.subscription_id = p_subscription_id
$$;
comment on function trunq._reply_timed_out is 'Messages died because they took too long: says so in the replies just written.';

create or replace function trunq._forget_replies(p_queue_id integer, p_now timestamptz) returns integer
language plpgsql set search_path = pg_catalog, pg_temp set trunq.plan = index as $$
declare
  v_count integer;
begin
  delete from trunq.reply r using (
    select o.subscription_id, o.id from trunq.reply o where o.queue_id = p_queue_id and o.expires_at <= p_now
    order by o.expires_at limit 1000 for update skip locked) old
  where r.subscription_id = old.subscription_id and r.id = old.id;
  get diagnostics v_count = row_count;
  return v_count;
end $$;
comment on function trunq._forget_replies is 'Deletes replies whose time is over, at most 1,000. Returns: how many.';
