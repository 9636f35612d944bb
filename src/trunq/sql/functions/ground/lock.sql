-- Names of what the SQL otherwise writes as numbers: classes of advisory locks, limits. All are immutable, so Postgres puts the value
-- in their place when it plans a statement.
--
-- Advisory locks share one space with the user's application, so each purpose has a class of its own (the two-integer form).
--
-- Every function takes locks in one order, and so does a transaction that calls several: install, rights, captures, queues or queue, facade, tick,
-- subscription, lease (several in order of lease_id), answer, due, then rows, of trunq.mark last. A transaction that leases, answers and
-- extends leases first. Whoever goes through many at a time (the reaper, rotation) waits for none of them: it tries, and leaves
-- out what another holds. What needs a table exclusively (drop_queue, empty_queue, an upgrade) waits for less than a second
-- and gives back all it has.

create or replace function trunq._lock_class(p_what text) returns integer
language sql immutable parallel safe as $$
  select case p_what
    when 'install' then 1953656416       -- one installation at a time (install.py)
    when 'bell' then 1953656417          -- by queue: the bell of a sleeping worker
    when 'subscription' then 1953656418  -- by subscription: its position (lease, next_batch, rotate)
    when 'member' then 1953656432        -- by group and member, hashed: it gets one batch at a time; tried, never waited for
    when 'lease' then 1953656419         -- by queue and lease, hashed: its answers (to one message: shared), extensions and end
    when 'answer' then 1953656436        -- by queue, lease and message, hashed: answers to this one message; after the lease's
    when 'due' then 1953656437           -- by queue: the list of what fell due (promote)
    when 'queue' then 1953656420         -- by queue: its shape (subscribe shared; rotate and drop exclusive)
    when 'tick' then 1953656421          -- by queue: one tick at a time
    when 'reap' then 1953656422          -- by queue: one reaper at a time
    when 'queues' then 1953656423        -- which queues there are: create and drop
    when 'sample' then 1953656438        -- one process that samples at a time; tried, never waited for
    when 'rights' then 1953656424        -- one grant at a time
    when 'captures' then 1953656425      -- which tables are captured, and how
    when 'facade' then 1953656435        -- which queues have names in another system's API (trunq_pgq)
    when 'pipelines' then 1953656430     -- which pipelines there are, and which run after which
    when 'continuous' then 1953656431    -- by pipeline: one runner looks whether its source has something new
  end
$$;
comment on function trunq._lock_class is 'The class of an advisory lock, the first of its two integers.';

create or replace function trunq._limit(p_what text) returns integer
language sql immutable parallel safe as $$
  select case p_what
    when 'message_bytes' then 16777216   -- payload, body and headers, each; the domains of the log repeat it
    when 'label_bytes' then 1000         -- kind and key, each; the domains of the log repeat it
    when 'list_rows' then 100000         -- of one call of a function that lists
    when 'lease_messages' then 10000     -- messages of one lease
    when 'cancelled_messages' then 10000 -- of one call of cancel
    when 'swept_messages' then 10000     -- that one part of a sweep looks at
    when 'swept_bytes' then 67108864     -- after so many, one part of a sweep takes no further dead message
    when 'drawn_ids' then 10000000        -- of one call of draw_ids
    when 'awaited_messages' then 10000   -- of one call of list_replies
    when 'reply_bytes' then 1048576      -- of a result, for the one who waits
    when 'memo_bytes' then 65536         -- of the value of a memo
    when 'memo_name_bytes' then 200      -- of its scope, and of its name
    when 'lease_bytes' then 16777216     -- of one lease, unless the caller says otherwise
    when 'reaped_messages' then 1000     -- after so many, one reaping ends no further lease
    when 'filter_bytes' then 100000      -- of the filter of a subscription
    when 'running' then 1000             -- messages of a subscription at the same time, where that is limited
    when 'archived_messages' then 5000   -- of one call of the duty, and what is left of a lease
    when 'counted_messages' then 10000   -- of one minute, all of which the statistics look at
    when 'sampled_messages' then 3000    -- looked at when there were more
    when 'walk_rows' then 50000          -- index rows that one look walks before it notes its place
    when 'errors_kept' then 100          -- of a message that is retried for ever
    when 'error_characters' then 8000    -- of one error
    when 'schedule_runs' then 1000       -- rows of history, of one schedule
    when 'public_characters' then 1000   -- of the public text of an error
    when 'note_characters' then 500      -- of what a handler says about its progress
    when 'checkpoint_bytes' then 1048576 -- of a checkpoint as text; trunq.message repeats it
  end
$$;
comment on function trunq._limit is 'A limit by name.';

create or replace function trunq._check_limit(p_limit integer) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_limit is null or p_limit not between 1 and trunq._limit('list_rows') then
    perform trunq._fail('TQ005', format('a list has 1 to %s rows, not %s', trunq._limit('list_rows'), coalesce(p_limit::text, 'null')),
      'ask for the next page with p_before');
  end if;
end $$;
comment on function trunq._check_limit is 'Refuses (TQ005) a number of rows that no list has.';

create or replace function trunq._lease_lock(p_queue_id integer, p_lease_id bigint) returns integer
language sql immutable parallel safe as $$ select (pg_catalog.hashint8extended(p_lease_id, p_queue_id) operator(pg_catalog.&) 2147483647)::integer $$;
comment on function trunq._lease_lock is
  'The second integer of the lock of a lease. Leases of two queues have the same numbers; two that share a hash only wait for each other.';
