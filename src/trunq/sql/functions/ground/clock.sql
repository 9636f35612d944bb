-- Time, snapshots, and how a function refuses.

-- No default of the log's columns: those must be plain, and stable. With a volatile one such as clock_timestamp(), COPY inserts rows one by one
-- (0.63 instead of 0.80 of a bare table).
create or replace function trunq.clock() returns timestamptz
language sql volatile as $$
  select case when pg_catalog.length(pg_catalog.current_setting('trunq.clock_offset', true)) operator(pg_catalog.>) 0
    then pg_catalog.clock_timestamp() operator(pg_catalog.+) trunq._clock_offset() else pg_catalog.clock_timestamp() end
$$;
comment on function trunq.clock is
  'The time that all of trunq uses: the database''s; moved by the setting trunq.clock_offset where its owner lets tests move it (trunq.let_clock_move). Column defaults of the log must be plain, and stable: with a volatile one such as clock_timestamp(), COPY inserts rows one by one (0.63 instead of 0.80 of a bare table).';

create or replace function trunq._clock_offset() returns interval
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_offset constant interval := current_setting('trunq.clock_offset')::interval;
begin
  -- Whoever may run SQL may change a setting: a worker who moved the clock would end the leases of others.
  if v_offset <> '0' and to_regclass('trunq.moving_clock') is null then
    perform trunq._fail('TQ005', format('the clock of this database does not move, and the setting trunq.clock_offset is %s', v_offset),
      'in a database of tests, its owner allows it: select trunq.let_clock_move(); else: reset trunq.clock_offset');
  end if;
  return v_offset;
end $$;
comment on function trunq._clock_offset is 'The setting trunq.clock_offset; refused (TQ005) where the clock does not move.';

create or replace function trunq.let_clock_move(p_moves boolean default true) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_role constant text := trunq._become_owner();
begin
  -- That it is there says all, to every role, and a copy of the database has it too.
  if not p_moves then
    drop table if exists trunq.moving_clock;
  elsif to_regclass('trunq.moving_clock') is null then
    create table trunq.moving_clock ();
    alter table trunq.moving_clock replica identity full;
    comment on table trunq.moving_clock is 'Sessions may move their clocks here (trunq.let_clock_move): a database of tests.';
  end if;
  perform trunq._restore_role(v_role);
end $$;
comment on function trunq.let_clock_move is
  'Lets sessions of this database move their clocks by the setting trunq.clock_offset, an interval, as tests do instead of waiting; for the owner of trunq, and for databases of tests alone: whoever may run SQL there may then end leases of others. The fixtures of pytest do this by themselves. p_moves false forbids it again.';

create or replace function trunq.snapshot() returns pg_snapshot
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  v_snapshot pg_snapshot := pg_current_snapshot();
  v_mine xid8 := pg_current_xact_id_if_assigned();
begin
  if v_mine is null or v_mine >= pg_snapshot_xmax(v_snapshot) then
    return v_snapshot;
  end if;
  -- Postgres leaves the caller's own transaction out of those in progress. A transaction that writes, leases and then
  -- publishes would find its own rows counted as read before they were there.
  return (least(pg_snapshot_xmin(v_snapshot), v_mine)::text || ':' || pg_snapshot_xmax(v_snapshot)::text || ':'
    || array_to_string(array(
         select x from (select pg_snapshot_xip(v_snapshot) union select v_mine) u(x) order by x), ','))::pg_snapshot;
end $$;
comment on function trunq.snapshot is
  'The current snapshot with the caller''s own transaction among those in progress, which says what is finished now. Every position and tick is made of these.';

create or replace function trunq._fail(p_code text, p_message text, p_hint text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_hint is null then
    raise exception using errcode = p_code, message = p_message;
  end if;
  raise exception using errcode = p_code, message = p_message, hint = p_hint;
end $$;
comment on function trunq._fail is 'Raises an error of ours, with a hint.';

create or replace function trunq._check_interval(p_what text, p_interval interval, p_from interval default '1 microsecond') returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  -- What is infinite, or leads beyond the year 9999, no driver can hold.
  if p_interval < p_from or p_interval > '1000 years' then
    perform trunq._fail('TQ005', format('%s must be %s and at most 1000 years, not %s', p_what,
      case p_from when '1 microsecond' then 'positive' when '0' then 'not negative' else 'at least ' || p_from end, justify_hours(p_interval)), 'give an interval such as ''10 minutes''');
  end if;
end $$;
comment on function trunq._check_interval is 'Refuses (TQ005) a length of time below p_from or above 1000 years; null is none.';

create or replace function trunq._token() returns bigint
language sql volatile as $$
  select (pg_catalog.random() operator(pg_catalog.*) 9223372036854775807)::bigint
$$;
comment on function trunq._token is
  'A random fence. Lease ids come again after a crash (sequences are logged 32 ahead), with the very same messages; tokens do not. A fence is no secret: random() is enough, and Postgres without OpenSSL opens a file for each UUID.';

create or replace function trunq._require_read_committed(p_function text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform trunq._fail('TQ007',
      format('trunq.%s needs READ COMMITTED, this transaction is %s', p_function,
        upper(current_setting('transaction_isolation'))),
      'begin the transaction with ISOLATION LEVEL READ COMMITTED; behind a connection pooler, make it the default of the database or the role (default_transaction_isolation)');
  end if;
end $$;
comment on function trunq._require_read_committed is
  'A position is read after its lock was got: under an older snapshot the same messages would be handed out twice.';
