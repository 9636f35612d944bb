-- What a lease (lease.sql) is made of: what it reads, and how it goes on. c is what it knows (trunq.leasing).
--
-- The functions in SQL have no settings: Postgres then puts the query in the place of its call, and the caller's order,
-- limit and settings reach into it. Where a queue with unique keys differs, sql/specimen/unique has a function of the
-- same name, which such a queue gets instead; what these here say of keys, to leases and to answers, is nothing, and
-- costs nothing when it is put there.

create or replace function trunq_queue._specimen_key_hold(p_row trunq_log._specimen) returns trunq.key_hold
language sql stable as $$ select null::trunq.key_hold $$;
comment on function trunq_queue._specimen_key_hold is 'How a message, a row of the log, holds its unique key.';

create or replace function trunq_queue._specimen_told_options(p_row trunq_log._specimen) returns jsonb
language sql stable as $$ select p_row.options::jsonb /*own_columns*/ $$;
comment on function trunq_queue._specimen_told_options is
  'The options of a message, a row of the log, as its reader is told them: with columns, an object of the columns that the user added to the log (functions/log/column.sql), where there are any.';

create or replace function trunq_queue._specimen_sifted(p_headers jsonb, p_options jsonb) returns jsonb
language sql stable as $$ select p_headers /*own_columns*/ $$;
comment on function trunq_queue._specimen_sifted is
  'What a filter is asked of as the headers of a message (functions/ground/filter.sql): with trunq_columns, the columns in p_options (trunq_queue.<queue>_told_options), where the user added any.';

create or replace function trunq_queue._specimen_note_key(p_hold trunq.key_hold, p_id bigint) returns bigint[]
language sql volatile as $$ select null::bigint[] $$;
comment on function trunq_queue._specimen_note_key is
  'Frees the unique key of a message that is leased, if it holds it until then. Returns: the message, if it holds it until it is done.';

create or replace function trunq_queue._specimen_note_keys(p_keyed bigint[], p_freed bigint[]) returns bigint[]
language sql volatile as $$ select null::bigint[] $$;
comment on function trunq_queue._specimen_note_keys is
  'Frees the unique keys of messages that are leased and hold them until then (p_freed). Returns: p_keyed.';

create or replace function trunq_queue._specimen_replaces() returns boolean
language sql stable as $$ select false $$;
comment on function trunq_queue._specimen_replaces is 'Whether a message of this queue may stand for another one.';

create or replace function trunq_queue._specimen_replaced_by(p_hold trunq.key_hold, p_attempt integer)
returns table (by bigint)
language sql stable as $$ select null::bigint where false $$;
comment on function trunq_queue._specimen_replaced_by is 'The message that stands for one, if another does.';

create or replace function trunq_queue._specimen_is_replaced(p_hold trunq.key_hold, p_attempt integer) returns boolean
language sql stable as $$ select false $$;
comment on function trunq_queue._specimen_is_replaced is 'Whether another message stands for one.';

create or replace function trunq_queue._specimen_pass_over(
  p_subscription_id integer, p_lease_id bigint, p_ids bigint[], p_by bigint[], p_now timestamptz
) returns void
language sql volatile as $$ select $$;
comment on function trunq_queue._specimen_pass_over is
  'Answers messages of a lease that others (p_by) stand for, in its own transaction: nobody handles them.';

create or replace function trunq_queue._specimen_walk(p_txid xid8, p_id bigint, p_hi pg_snapshot) returns table (
  txid xid8, id bigint, subscription_id integer, attempt smallint, kind text, key text, payload jsonb, body bytea,
  headers jsonb, priority smallint, created_at timestamptz, expiries smallint, options jsonb, hold trunq.key_hold
)
-- Columns by name: Postgres cannot plan the rows of a table anew that got another column meanwhile.
language sql stable as $$
  -- One row comparison is one start key; the walk ends after so many index rows, for this reader or not.
  select w.* from (
    select g.txid, g.id, g.subscription_id, g.attempt, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea,
      g.headers::jsonb, g.priority::smallint, g.created_at, g.expiries,
      trunq_queue._specimen_told_options(g) options, trunq_queue._specimen_key_hold(g) hold
    from trunq_log._specimen g
    where g.txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(p_hi)
      and (g.txid, g.id) operator(pg_catalog.>) (p_txid, p_id)
    order by g.txid, g.id limit 50000 /*limit walk_rows*/) w
  where pg_catalog.pg_visible_in_snapshot(w.txid, p_hi)
$$;
comment on function trunq_queue._specimen_walk is 'The range of a window behind a place, in order, as far as one step walks.';

create or replace function trunq_queue._specimen_upcoming(
  p_subscription_id integer, p_late xid8[], p_last_txid xid8, p_last_id bigint, p_txid xid8, p_id bigint,
  p_hi pg_snapshot
) returns table (
  txid xid8, id bigint, subscription_id integer, attempt smallint, kind text, key text, payload jsonb, body bytea,
  headers jsonb, priority smallint, created_at timestamptz, expiries smallint, options jsonb, hold trunq.key_hold
)
language sql stable as $$
  -- 1. Late ones, each transaction by itself. No sort: the snapshot lists them in order, and a sort would read all.
  (select m.* from pg_catalog.unnest(p_late) late(txid) cross join lateral (
     select g.txid, g.id, g.subscription_id, g.attempt, g.kind::text, g.key::text, g.payload::jsonb, g.body::bytea,
       g.headers::jsonb, g.priority::smallint, g.created_at, g.expiries,
       trunq_queue._specimen_told_options(g), trunq_queue._specimen_key_hold(g)
     from trunq_log._specimen g
     where g.txid operator(pg_catalog.=) late.txid and g.id operator(pg_catalog.>)
       case when late.txid operator(pg_catalog.=) p_last_txid then p_last_id else 0 end
     order by g.id offset 0) m)
  union all
  -- 2. The range.
  (select w.* from trunq_queue._specimen_walk(p_txid, p_id, p_hi) w)
  union all
  -- 3. Where the walk ended, if it did: attempt 0 marks it. Reached only when 1 and 2 did not fill the lease. Before
  -- that row: one of this reader may have the same place as another's (functions/ground/place.sql), and come behind it.
  (select g.txid, g.id operator(pg_catalog.-) 1, p_subscription_id, 0::smallint, null, null, null::jsonb, null::bytea,
     null::jsonb, 0::smallint, null::timestamptz, null::smallint, null::jsonb, null::trunq.key_hold
   from trunq_log._specimen g
   where g.txid operator(pg_catalog.<) pg_catalog.pg_snapshot_xmax(p_hi)
     and (g.txid, g.id) operator(pg_catalog.>) (p_txid, p_id)
   order by g.txid, g.id offset 50000 /*limit walk_rows*/ operator(pg_catalog.-) 1 limit 1)
$$;
comment on function trunq_queue._specimen_upcoming is
  'What comes next in a window, of all readers; at last where the walk ended, for this reader, with attempt 0.';

create or replace function trunq_queue._specimen_go_further(c trunq.leasing, p_lease_id bigint, p_worker text)
returns trunq.leasing
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  c_bury constant integer := 100;     -- messages that a step buries at least, if there are so many
  v_size integer; v_txid xid8; v_id bigint;
begin
  if p_lease_id is not null and pg_current_xact_id_if_assigned() is not null then
    select l.size, l.last_txid, l.last_id into v_size, v_txid, v_id
    from trunq_data._specimen_lease l where l.subscription_id = c.subscription_id and l.lease_id = p_lease_id;
  end if;
  if v_size > 0 then
    -- All of it was buried. On behind it: taken for an empty look, what follows in the window would be passed over.
    c.last_txid := v_txid; c.last_id := v_id; c.buried := coalesce(c.buried, 0) + v_size;
    -- Among those that are buried, it looks at more, and hands out no more than it was asked for.
    c.most := greatest(c.max_messages, c_bury);
    if trunq._has_buried_long(0 /*queue_id*/, c.buried, c.began_at) then
      c.is_over := true;
      return c;
    end if;
  else
    -- Nothing here for this reader. Did the walk end before the window?
    select g.txid, g.id - 1 into v_txid, v_id from trunq_log._specimen g
    where g.txid < pg_snapshot_xmax(c.hi) and (g.txid, g.id) > (c.from_txid, c.from_id)
    order by g.txid, g.id offset 50000 /*limit walk_rows*/ - 1 limit 1;
    if found then
      c.last_txid := v_txid; c.last_id := v_id; c.walked := coalesce(c.walked, 0) + 1; c.is_over := c.walked >= 40;
    else
      c.last_txid := pg_snapshot_xmax(c.hi); c.last_id := 0;
    end if;
  end if;
  if c.is_over is not true then
    c := trunq._find_range(c, null, null);
  end if;
  -- A look that had to walk far writes an empty lease, or the next one would walk it again, and no segment ever be let
  -- go.
  if c.is_over and (c.walked is not null or pg_snapshot_xmax(c.hi)::text::bigint - c.first_xmax::text::bigint > 1000
      or clock_timestamp() - c.began_at > '3 milliseconds') then
    insert into trunq_data._specimen_lease (lease_id, subscription_id, token, worker, lo, hi, last_txid, last_id,
      leased_at, tokens, tokens_at, open_leases, ahead)
    values (nextval('trunq_data._specimen_lease_id'), c.subscription_id, trunq._token(), p_worker, c.lo, c.hi,
      c.last_txid, c.last_id, c.leased_at, c.tokens, c.tokens_at, c.open_leases,
      c.ahead);
  end if;
  return c;
end $$;
comment on function trunq_queue._specimen_go_further is
  'Goes on behind what was handed to nobody: buried messages, or rows of others. is_over: there is no more, or it took long enough.';
