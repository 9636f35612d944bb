-- What a queue refuses to take: anything while it is closed, other kinds than its own, more in one transaction than it allows, more
-- than may wait. Whatever way a message comes (publish, INSERT, COPY, a delay), its queue's gate decides; retries, what becomes due
-- and what is requeued were let in before and pass (the setting trunq.inside).
--
-- The gate is made of triggers on the log, each there only where its queue asks for it: a queue without a gate pays nothing.
-- They stand behind the rows: a trigger before each row would keep COPY from writing many at once.

create or replace function trunq.set_publishing(
  p_queue text, p_kinds text[] default null, p_max_waiting bigint default null, p_max_per_transaction integer default null,
  p_announce boolean default null
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('set_publishing', p_queue, jsonb_build_object('kinds', p_kinds, 'max_waiting', p_max_waiting,
    'max_per_transaction', p_max_per_transaction, 'announce', p_announce));
  if array_ndims(p_kinds) > 1 or exists (select from unnest(p_kinds) k where k is null) then
    perform trunq._fail('TQ005', format('the kinds of queue "%s" must be a list of texts', p_queue), 'give an empty list for any kind');
  end if;
  if p_max_waiting < 0 then
    perform trunq._fail('TQ005', format('max_waiting of queue "%s" cannot be %s', p_queue, p_max_waiting),
      'give a number of messages, or 0 for no limit');
  elsif p_max_per_transaction < -1 then
    perform trunq._fail('TQ005', format('max_per_transaction of queue "%s" cannot be %s', p_queue, p_max_per_transaction),
      'give a number of messages, 0 to take none, or -1 for no limit');
  end if;
  perform trunq._change_gate(p_queue, p_kinds, p_max_waiting, p_max_per_transaction, p_announce, null);
end $$;
comment on function trunq.set_publishing is
  'Changes the rules by which a queue accepts messages, however they are published; arguments that are left out keep their values. p_kinds: only these kinds (empty: any), others are refused (TQ005). p_max_waiting: refuses (TQ014) while the slowest shared subscription has so many messages waiting, checked once in 100 ms a session (0: no limit). p_max_per_transaction: at most so many in one transaction, else TQ019 (0: none at all; -1: no limit, which trunq.list_queues shows as null). p_announce: sends a NOTIFY with the first and last id of each statement on trunq.announcement_channel, for listeners in other languages; trunq.read_on needs none.
Raises: TQ001, TQ005; TQ009 while an open transaction publishes.
Locks: publishers of the queue, waiting 200 ms at a time, where a rule comes or goes.';

create or replace function trunq.close_queue(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('close_queue', p_queue);
  perform trunq._change_gate(p_queue, null, null, null, null, true);
end $$;
comment on function trunq.close_queue is
  'Refuses to publish into a queue (TQ018) until trunq.open_queue. What it holds is handled, retried and promoted as before.
Raises: TQ001; TQ009 while an open transaction publishes.
Locks: publishers of the queue, waiting 200 ms at a time.';

create or replace function trunq.open_queue(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform trunq._audit('open_queue', p_queue);
  perform trunq._change_gate(p_queue, null, null, null, null, false);
end $$;
comment on function trunq.open_queue is
  'Lets a queue that was closed take messages again.
Raises: TQ001; TQ009 while an open transaction uses it.
Locks: as close_queue.';

create or replace function trunq._pass_gate(p_queue text) returns void
language sql volatile as $$ select pg_catalog.set_config('trunq.inside', coalesce(p_queue, ''), true) $$;
comment on function trunq._pass_gate is
  'Around an insert into the log of a queue of what was let in before: its name before, null behind. A trigger of the user''s that publishes into another queue meets that one''s gate.';

create or replace function trunq._change_gate(
  p_queue text, p_kinds text[], p_max_waiting bigint, p_max_per_transaction integer, p_announce boolean, p_close boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role text;
begin
  perform trunq._require_read_committed('set_publishing');
  v_role := trunq._become_owner();
  perform trunq._try_for_locks(p_queue, format('select 0 from trunq._apply_gate($1, %L, %L, %L, %L, %L)',
    p_kinds, p_max_waiting, p_max_per_transaction, p_announce, p_close));
  perform trunq._restore_role(v_role);
end $$;
comment on function trunq._change_gate is 'set_publishing, close_queue and open_queue: null leaves a rule as it is.';

create or replace function trunq._apply_gate(
  p_queue trunq.queue, p_kinds text[], p_max_waiting bigint, p_max_per_transaction integer, p_announce boolean, p_close boolean
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  update trunq.queue q set
    kinds = case when p_kinds is null then q.kinds else nullif(p_kinds, '{}') end,
    max_waiting = case when p_max_waiting is null then q.max_waiting else nullif(p_max_waiting, 0) end,
    max_per_transaction = case when p_max_per_transaction is null then q.max_per_transaction else nullif(p_max_per_transaction, -1) end,
    announces = coalesce(p_announce, q.announces),
    is_closed = coalesce(p_close, q.is_closed)
  where q.queue_id = p_queue.queue_id returning * into p_queue;
  perform trunq._define_gate(p_queue);
end $$;
comment on function trunq._apply_gate is 'One try of _change_gate, under the lock of the queue.';

create or replace function trunq._define_gate(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_trigger record;
  v_is_there boolean;
begin
  for v_trigger in
    select * from (values
      ('gate', p_queue.is_closed or p_queue.max_waiting is not null, 'before insert', 'for each statement', '_gate',
        -- The setting that says when there was room; that of a closed queue is never made.
        format('%L, %L', p_queue.name, case when p_queue.is_closed then 'trunq.closed' else 'trunq.room_' || p_queue.queue_id end)),
      ('gate_kinds', p_queue.kinds is not null, 'after insert',
        format('for each row when ((new.kind = any (%L::text[])) is not true)', p_queue.kinds), '_refuse_kind',
        format('%L, %L', p_queue.name, array_to_string(
          array(select k from unnest(p_queue.kinds) k limit 20) || case when cardinality(p_queue.kinds) > 20 then 'and others' end, ', '))),
      ('gate_transaction', p_queue.max_per_transaction is not null, 'after insert', 'referencing new table as published for each statement',
        '_count_published', format('%L', p_queue.name)),
      ('gate_announce', p_queue.announces, 'after insert', 'referencing new table as published for each statement', '_announce',
        format('%L', case when p_queue.announces then trunq.announcement_channel(p_queue.name) end))
    ) t(name, is_wanted, event, level, function, arguments)
    -- To drop takes the stronger lock: whoever reads the log and then inserts would deadlock with us if it came second.
    order by t.is_wanted
  loop
    v_is_there := exists (
      select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
      where t.tgrelid = format('trunq_log.%I', p_queue.log_table)::regclass and t.tgname = v_trigger.name and p.pronamespace = 'trunq'::regnamespace);
    -- Only where something changes: it locks the log against publishers. The kinds stand in their trigger, and whether it is closed.
    if v_is_there and not v_trigger.is_wanted then
      execute format('drop trigger %I on trunq_log.%I', v_trigger.name, p_queue.log_table);
    elsif v_trigger.is_wanted and (not v_is_there or v_trigger.name in ('gate', 'gate_kinds')) then
      execute format('create %s trigger %I %s on trunq_log.%I %s execute function trunq.%I(%s)', case when v_is_there then 'or replace' end,
        v_trigger.name, v_trigger.event, p_queue.log_table, v_trigger.level, v_trigger.function, v_trigger.arguments);
    end if;
  end loop;
end $$;
comment on function trunq._define_gate is 'Makes the triggers that the rules of a queue need, and drops those that they no longer need.';

-- The functions below run for whoever publishes, with the owner's rights: they look at what a publisher may not read. Nobody else may
-- execute them, or he would put them on a table of his own, and his types and their casts would run as the owner. (A trigger that is
-- there fires all the same.)

create or replace function trunq._gate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.inside', true) is distinct from tg_argv[0] and not coalesce(
      extract(epoch from clock_timestamp()) - nullif(current_setting(tg_argv[1], true), '')::numeric between 0 and 0.1, false) then
    perform trunq._check_open(trunq._find_queue(tg_argv[0]));
  end if;
  return null;
end $$;
revoke execute on function trunq._gate from public;
comment on function trunq._gate is 'Before an insert into a log: refuses it while its queue is closed or full.';

create or replace function trunq._check_open(p_queue trunq.queue) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_waiting bigint;
begin
  if p_queue.is_closed then
    perform trunq._fail('TQ018', format('queue "%s" is closed: nothing can be published into it', p_queue.name),
      format('whoever closed it opens it again: select trunq.open_queue(%L)', p_queue.name));
  end if;
  if p_queue.max_waiting is null then
    return;
  end if;
  begin
    select max(w.ready) into v_waiting
    from trunq.subscription s cross join lateral trunq._count_waiting(p_queue, s.subscription_id) w
    where s.queue_id = p_queue.queue_id and s.mode = 'shared';
    -- Gives the locks of all segments back: a publisher that stays open would hold up rotation.
    raise exception using errcode = 'TQ000';
  exception when sqlstate 'TQ000' then
  end;
  if v_waiting >= p_queue.max_waiting then
    perform trunq._fail('TQ014', format('queue "%s" is full: %s messages wait, at most %s may', p_queue.name, v_waiting, p_queue.max_waiting),
      'publish again when its workers have caught up, or raise the limit with trunq.set_publishing');
  end if;
  -- trunq._gate looks at it.
  perform set_config('trunq.room_' || p_queue.queue_id, extract(epoch from clock_timestamp())::text, false);
end $$;
comment on function trunq._check_open is
  'Refuses what would be published into a queue that is closed (TQ018) or full (TQ014). That a queue is not full holds for 100 ms of this session.';

create or replace function trunq._refuse_kind() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('trunq.inside', true) is distinct from tg_argv[0] then
    perform trunq._fail('TQ005', format('queue "%s" takes no message %s', tg_argv[0],
        case when new.kind is null then 'without a kind' else format('of kind "%s"', new.kind) end),
      format('it takes: %s; trunq.set_publishing changes that', tg_argv[1]));
  end if;
  return null;
end $$;
revoke execute on function trunq._refuse_kind from public;
comment on function trunq._refuse_kind is 'After an insert of a message whose kind its queue does not take: refuses it (TQ005), unless it was let in before.';

create or replace function trunq._count_published() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue;
  v_setting text;
  v_count bigint;
begin
  if current_setting('trunq.inside', true) = tg_argv[0] then
    return null;
  end if;
  v_queue := trunq._find_queue(tg_argv[0]);
  v_setting := 'trunq.published_' || v_queue.queue_id;
  -- To the end of the transaction; a savepoint that is rolled back takes back what it counted.
  v_count := coalesce(nullif(current_setting(v_setting, true), '')::bigint, 0) + (select count(*) from published);
  if v_count > 0 and v_queue.max_per_transaction = 0 then
    perform trunq._fail('TQ019', format('queue "%s" takes nothing: a transaction may publish no message into it', v_queue.name),
      format('let it: select trunq.set_publishing(%L, p_max_per_transaction => 1000), or -1 for no limit', v_queue.name));
  elsif v_count > v_queue.max_per_transaction then
    perform trunq._fail('TQ019', format('a transaction may publish at most %s messages into queue "%s", not %s',
        v_queue.max_per_transaction, v_queue.name, v_count),
      'commit in between, or raise the limit with trunq.set_publishing');
  end if;
  perform set_config(v_setting, v_count::text, true);
  return null;
end $$;
revoke execute on function trunq._count_published from public;
comment on function trunq._count_published is 'After an insert into a log: refuses (TQ019) more in one transaction than its queue allows.';

create or replace function trunq._has_gate(p_queue trunq.queue) returns boolean
language sql immutable as $$
  select p_queue.is_closed or p_queue.kinds is not null or p_queue.max_waiting is not null or p_queue.max_per_transaction is not null
    or p_queue.unique_on is not null
$$;
comment on function trunq._has_gate is 'Whether a queue refuses anything, doubles by their content among it: what is published with a delay then passes its log, where the gate is.';

create or replace function trunq._announce() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_first bigint; v_last bigint;
begin
  -- A retry is nobody's news; what has a time is announced when it is due.
  select min(p.id), max(p.id) into v_first, v_last from published p where p.subscription_id is null and p.due_at is null;
  -- A transaction that is to be prepared must not notify.
  if v_first is not null and current_setting('trunq.notify', true) is distinct from 'off' then
    perform pg_notify(tg_argv[0], format('%s-%s', v_first, v_last));
  end if;
  return null;
end $$;
revoke execute on function trunq._announce from public;
comment on function trunq._announce is 'After an insert into a log: notifies the first and last id of the statement.';

create or replace function trunq.announcement_channel(p_queue text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_queue trunq.queue := trunq._find_queue(p_queue);
begin
  if not v_queue.announces then
    perform trunq._fail('TQ005', format('queue "%s" does not announce its messages', p_queue),
      format('let it: select trunq.set_publishing(%L, p_announce => true)', p_queue));
  end if;
  return concat('trunq_', v_queue.queue_id, '_messages');
end $$;
comment on function trunq.announcement_channel is
  'The channel to LISTEN on, where a queue announces its messages (trunq.set_publishing); payload: the first and last id of a statement, with a hyphen between.
Raises: TQ001; TQ005 for a queue that announces nothing.';
