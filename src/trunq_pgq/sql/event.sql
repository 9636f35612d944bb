-- Publishing. insert_event_raw is generated with each queue's INSERT written out, and its settings: found by name while running, it took five
-- times as long. It is made anew when a queue comes or goes, or one of these settings changes; names are found by halving.
--
-- PgQ's own is in C, whose errors have the SQLSTATE XX000.
--
-- People replace pgq.insert_event with one of their own: all that publishes calls it, with seven arguments.

create or replace function pgq._define_insert() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_branches text[] := array(
    select format($q$if queue_name = %1$L then
        v_id := nextval('pgq.event_%2$s_id_seq'::regclass);%4$s%5$s
        insert into trunq_log.%3$I (id, created_at, subscription_id, attempt, kind, payload, key, headers)
        values (coalesce(ev_id, v_id), coalesce(ev_time, now()), ev_owner, coalesce(ev_retry, 0) + 1, ev_type, to_jsonb(ev_data), ev_extra1,
          %6$s);
        return coalesce(ev_id, v_id);
      end if;$q$, f.queue_name, f.queue_id, q.log_table,
      case when f.queue_disable_insert then $q$
        if current_setting('session_replication_role') <> 'replica' then
          raise internal_error using message = 'Insert into queue disallowed';
        end if;$q$ end,
      -- What this transaction has in the log, by the index: exact, also after a rollback to a savepoint.
      case when f.queue_per_tx_limit is not null then format($q$
        if (select count(*) from (select from trunq_log.%1$I g where g.txid = pg_current_xact_id() limit %2$s) n) >= %2$s then
          raise internal_error using message = format('Queue ''%%s'' allows max %2$s events from one TX', queue_name);
        end if;$q$, q.log_table, f.queue_per_tx_limit) end,
      pgq._headers(''))
    from pgq._queue f join trunq.queue q on q.queue_id = f.queue_id order by f.queue_name collate "C");
  v_names text[] := array(select f.queue_name from pgq._queue f order by f.queue_name collate "C");
begin
  -- A literal as a whole: names of queues stand in it, which may be any text.
  execute format($q$
    create or replace function pgq.insert_event_raw(queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer, ev_type text,
      ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text) returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as %L
  $q$, format($q$
    #variable_conflict use_variable
    declare
      v_id bigint;  -- drawn first: a refused event has used up a number
    begin
      %s
      raise internal_error using message = case when queue_name is null then 'Queue name must not be NULL' else 'No such queue' end;
    end
  $q$, pgq._halve(v_names, v_branches, 1, cardinality(v_names))));
end $$;
comment on function pgq._define_insert is 'Makes insert_event_raw anew. The caller holds the lock of names.';

create or replace function pgq._halve(p_names text[], p_branches text[], p_from integer, p_to integer) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  v_middle constant integer := (p_from + p_to) / 2;
begin
  if p_to - p_from < 4 then
    return array_to_string(p_branches[p_from:p_to], E'\n      ');
  end if;
  return format(E'if queue_name collate "C" <= %L then\n      %s\n      else\n      %s\n      end if;', p_names[v_middle],
    pgq._halve(p_names, p_branches, p_from, v_middle), pgq._halve(p_names, p_branches, v_middle + 1, p_to));
end $$;
comment on function pgq._halve is 'Branches by name, which are in order, so that each is found in a few comparisons.';

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return pgq.insert_event_raw(queue_name, null, now(), null, null, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4);
end $$;

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text) returns bigint
language plpgsql as $$
begin
  return pgq.insert_event(queue_name, ev_type, ev_data, null, null, null, null);
end $$;

create or replace function pgq.current_event_table(x_queue_name text) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  select q.queue_data_pfx, q.queue_cur_table, q.queue_disable_insert into v from pgq.queue q where q.queue_name = x_queue_name;
  if not found then
    raise exception 'Event queue not found';
  elsif v.queue_disable_insert and current_setting('session_replication_role') <> 'replica' then
    raise exception 'Writing to queue disabled';
  end if;
  -- No view takes a row of a replica's (pgq._define_replica).
  return v.queue_data_pfx || '_' || case when current_setting('session_replication_role') = 'replica' then 'replica' else v.queue_cur_table::text end;
end $$;

-- A session does not look for a new insert_event_raw within a transaction. One that was open when its queue was disabled, and inserts later, would
-- do so behind the last tick of a root that became a branch, and nobody would get it. What a session does see, once it has the lock that it
-- inserts under, is a trigger; and demote_root cuts that tick under a lock that keeps out inserts.

create or replace function pgq._refuse_stale(p_queue_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v record;
begin
  select f.queue_disable_insert is_disabled, q.log_table, t.oid is not null is_there, t.tgqual is null is_on into v
  from pgq._queue f join trunq.queue q on q.queue_id = f.queue_id
  left join pg_trigger t on t.tgrelid = to_regclass(format('trunq_log.%I', q.log_table)) and t.tgname = 'pgq_refuse'
  where f.queue_id = p_queue_id;
  if v.is_disabled and not (v.is_there and v.is_on) or not v.is_disabled and v.is_there and v.is_on then
    -- To drop it would wait for readers too.
    execute format('create or replace trigger pgq_refuse before insert on trunq_log.%I for each statement %s execute function pgq._refuse_insert()',
      v.log_table, case when not v.is_disabled then 'when (false)' end);
  end if;
end $$;
comment on function pgq._refuse_stale is
  'Lets a log refuse insert_event while its queue is disabled, by a trigger; of a queue that takes events again, it costs nothing. Locks: publishers, where that changes.';

create or replace function pgq._refuse_insert() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_context text;
begin
  get diagnostics v_context = pg_context;
  if strpos(v_context, 'pgq.insert_event_raw(') > 0 then
    raise internal_error using message = 'Insert into queue disallowed';
  end if;
  return null;
end $$;
comment on function pgq._refuse_insert is 'Before an insert into the log of a disabled queue: refuses that of insert_event; PgQ''s switch is for its calls, and not for retries, COPY or trunq''s publishers.';
