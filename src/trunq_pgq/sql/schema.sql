-- PgQ's API over trunq's log: thin names, one truth. Messages, ticks, positions and retries are trunq's own, so native workers, streams and
-- programs written for PgQ meet in one queue. Here lie only names (PgQ's have no rules), PgQ's extra settings, and which lease a batch number
-- stands for.
--
--   an event        is a message: ev_id id, ev_type kind, ev_data payload (a JSON string), ev_extra1 key, ev_extra2..4 in headers,
--                   ev_owner subscription_id, ev_retry attempt - 1 (0: null)
--   a consumer      is an exclusive subscription without a limit of attempts, whose leases do not run out
--   a batch         is a lease over a window, under a number of its own
--   a retry         is a row of trunq.delayed
--   pgq.event_N     is a view of the log; the one of its parts whose number is current shows all of it, the others nothing: a union of any
--                   of them has each event once
--
-- trunq's leader ticks, promotes and rotates these queues as all others; pgq.ticker and the maint functions do the same by hand.

do $$
declare
  v_role text;
  v_other text;
  v_function regprocedure;
begin
  if exists (select from pg_extension e where e.extname = 'pgq') or to_regnamespace('pgq') is not null and to_regclass('pgq._queue') is null then
    raise exception using errcode = 'object_not_in_prerequisite_state',
      message = format('database "%s" has a schema pgq already, which is not trunq''s: PgQ itself, or a copy of it', current_database()),
      hint = 'move its queues (docs/operate/pgq.md), then drop extension pgq cascade, or drop schema pgq cascade; or install trunq in another database';
  end if;
  foreach v_other in array '{pgq_coop,pgq_ext}'::text[] loop
    if to_regnamespace('pgq') is null and to_regnamespace(v_other) is not null then
      raise exception using errcode = 'object_not_in_prerequisite_state',
        message = format('database "%s" has a schema %s already, which is not trunq''s', current_database(), v_other),
        hint = format('let it have another name: alter schema %s rename to %s_before; what its tables say can be copied then (docs/operate/pgq.md)', v_other, v_other);
    end if;
  end loop;
  -- Those of an older release, whose arguments may have been others.
  for v_function in
    select p.oid from pg_proc p where p.pronamespace = to_regnamespace('pgq') and starts_with(p.proname, '_on__specimen')
  loop
    execute format('drop function %s', v_function);
  end loop;
  foreach v_role in array '{pgq_reader,pgq_writer,pgq_admin}'::text[] loop
    continue when exists (select from pg_roles r where r.rolname = v_role);
    begin
      execute format('create role %I', v_role);
      if v_role = 'pgq_admin' then
        grant pgq_reader, pgq_writer to pgq_admin;
      end if;
    exception
      when duplicate_object or unique_violation then
        null;  -- by an install in another database of this server
      when insufficient_privilege then
        raise exception using errcode = 'object_not_in_prerequisite_state',
          message = format('PgQ''s API needs the database role "%s", which "%s" may not create', v_role, current_user),
          hint = 'as a superuser: create role pgq_reader; create role pgq_writer; create role pgq_admin in role pgq_reader, pgq_writer';
    end;
  end loop;
end $$;

do $$
begin
  -- Asked first: "if not exists" would give a NOTICE at each upgrade.
  if to_regnamespace('pgq') is not null then
    return;
  end if;
  create schema pgq;

  create table pgq._queue (
    queue_id integer primary key references trunq.queue on delete cascade,
    queue_name text not null unique,
    queue_ntables integer not null default 3,
    queue_cur_table integer not null default 0,
    queue_rotation_period interval not null default '2 hours',
    queue_switch_step1 bigint not null default pg_current_xact_id()::text::bigint,
    queue_switch_step2 bigint default pg_current_xact_id()::text::bigint,
    queue_switch_time timestamptz not null default now(),
    queue_disable_insert boolean not null default false,
    queue_per_tx_limit integer,
    queue_extra_maint text[]
  );

  create table pgq.consumer (
    co_id serial constraint consumer_pkey primary key,
    co_name text not null constraint consumer_name_uq unique
  );

  create table pgq._subscription (
    sub_queue integer not null references pgq._queue on delete cascade,
    sub_consumer integer not null references pgq.consumer,
    -- trunq.reset gives a subscription a new id.
    subscription_id integer not null references trunq.subscription on delete cascade on update cascade,
    is_member boolean not null default false,
    active_at timestamptz not null default clock_timestamp(),
    primary key (sub_queue, sub_consumer)
  );
  create index on pgq._subscription (subscription_id);

  -- Without a foreign key to trunq.subscription: it would lock that row for each batch.
  create sequence pgq.batch_id_seq;
  create table pgq._batch (
    batch_id bigint primary key default nextval('pgq.batch_id_seq'),
    queue_id integer not null,
    subscription_id integer not null,
    sub_consumer integer not null,
    lease_id bigint not null
  );
  create index on pgq._batch (subscription_id, lease_id);

  create table pgq.event_template (
    ev_id bigint not null,
    ev_time timestamptz not null,
    ev_txid bigint not null default pg_current_xact_id()::text::bigint,
    ev_owner integer,
    ev_retry integer,
    ev_type text,
    ev_data text,
    ev_extra1 text,
    ev_extra2 text,
    ev_extra3 text,
    ev_extra4 text
  );
end $$;

comment on table pgq._queue is 'What PgQ knows of a queue and trunq does not: its name, and PgQ''s own settings. The view pgq.queue has all of it.';
comment on table pgq.consumer is 'The names of PgQ''s consumers.';
comment on table pgq._subscription is 'Which subscription a consumer of a queue is. is_member: it shares that of its group (pgq_coop).';
comment on table pgq._batch is 'Which lease the number of an open batch stands for; deleted when the batch is finished.';
comment on table pgq.event_template is 'Empty: what is granted on it is granted on the events of each queue that is made.';
