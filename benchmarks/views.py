"""Pages that status and the lists read, beside much history, a backlog and a million delayed messages.

Five million messages are handled by leases of 500, 10 and 1, thirty thousand died, a million wait, a million
are delayed, 5,400 were leased and taken back, and wait behind the backlog. There are no statistics and no
summary of any page, and no leader has been there for an hour. Then the same once its ticks and marks are gone
too, as if none had ever been there, and once a leader is back. In a second queue 100,000 leases of an hour
are answered. Built by the functions themselves, in the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from _bench import Options, Table, at_most, connect, main, new_database, server

TARGET = 10_000

PARTS = {500: 4_600_000, 10: 350_000, 1: 50_000}
"""Messages handled, by messages a lease; the last tenth of each with no leader."""

BUILD = """
create procedure public.publish(n bigint, by_leader boolean) language plpgsql as $$
begin
  for i in 1 .. n / 500 loop
    insert into trunq_log.q (kind, key, payload)
    select 'placed', 'customer-' || m, jsonb_build_object('order', m, 'note', repeat('x', 120))
    from generate_series(1, 500) m;
    commit;
    if by_leader then
      perform trunq.tick('q', true);
      commit;
    end if;
  end loop;
end $$;
create procedure public.handle(p_queue text, n bigint, size integer, p_time interval default null)
language plpgsql as $$
declare
  v record;
  v_bad bigint[];
begin
  for i in 1 .. n / size loop
    select array_agg(l.id) ids, min(l.lease_id) lease_id, min(l.token) token into v
    from trunq.lease(p_queue, 'default', 'worker-' || i % 8, size, p_time) l;
    v_bad := array(select b from unnest(v.ids) b where b % 167 = 0);
    perform trunq.ack(p_queue, 'default', v.lease_id, v.token,
      array(select b from unnest(v.ids) b where b % 167 <> 0), null,
      array(select 0.1::real from unnest(v.ids) b where b % 167 <> 0));
    if v_bad <> '{}' then
      perform trunq.reject(p_queue, 'default', v.lease_id, v.token, v_bad,
        array(select 'ValueError: no such order' from unnest(v_bad)));
    end if;
    commit;
  end loop;
end $$;
"""

STATES = (None, "ready", "leased", "done", "dead", "retrying", "scheduled")

Connection = psycopg.Connection[Any]


def measure(options: Options) -> Iterator[Table]:
    """One table."""
    divisor = options.size(1, 50)
    with (
        server(options, autovacuum="off", fsync="off", synchronous_commit="off") as running,
        connect(new_database(running)) as connection,
    ):
        build(connection, divisor)
        table = Table(
            f"views, Postgres {options.postgres}",
            f"Pages read: {5_000_000 // divisor:,} handled, {1_000_000 // divisor:,} waiting,"
            f" about {30_000 // divisor:,} dead, {1_000_000 // divisor:,} delayed, 5,400 taken back,"
            f" {100_000 // divisor:,} answered leases of an hour; without"
            " statistics, unsummarized. A page of a list is 50 messages; at most 10,000 pages each.",
            ["view", "no leader for an hour", "never a leader", "with a leader", "target"],
        )
        ids = ids_of(connection)
        hour = pages(connection, ids)
        connection.execute("create table public.kept as table trunq.tick")
        connection.execute("delete from trunq.tick")
        connection.execute("delete from trunq.mark")
        never = pages(connection, ids)
        connection.execute("insert into trunq.tick table public.kept")
        for duty in ("reap", "tick", "summarize"):
            for queue in ("q", "hourly"):
                connection.execute(f"select trunq.{duty}(%s)".encode(), (queue,))
        led = pages(connection, ids)
        for view, read in hour.items():
            most = max(read, led[view])
            table.add(view, f"{read:,}", f"{never[view]:,}", f"{led[view]:,}", at_most(most, TARGET))
        yield table


def build(connection: Connection, divisor: int) -> None:
    """What the essay above says."""
    connection.execute(BUILD.encode(), prepare=False)
    connection.execute("select trunq.let_clock_move()")
    connection.execute("set trunq.clock_offset = '-1 hour'")
    for by_leader, share in ((True, 0.9), (False, 0.1)):
        for size, messages in PARTS.items():
            some = int(messages * share / divisor) // 500 * 500
            connection.execute("call public.publish(%s, %s)", (some, by_leader))
            connection.execute("call public.handle('q', %s, %s)", (some, size))
        if by_leader:
            connection.execute("select trunq.reap('q')")
            connection.execute("set trunq.clock_offset = '0'")
    connection.execute("call public.publish(%s, false)", (1_000_000 // divisor,))
    # Open leases of every size, and some messages that are to be tried again.
    for size in (1, 10, 500) * 7:
        connection.execute("select from trunq.lease('q', 'default', 'busy', %s)", (size,))
    # Read, and waiting again behind the backlog.
    for size in [500] * 8 + [10] * 100 + [1] * 400:
        connection.execute("select from trunq.lease('q', 'default', 'lost', %s)", (size,))
    while connection.execute("select trunq.reclaim('q', 'default', 'lost')").fetchone() != (0,):
        pass
    retry = (
        "select trunq.retry('q', 'default', min(lease_id), min(token), array_agg(id), null,"
        " array_agg(interval '1 hour'))"
        " from trunq.lease('q', 'default', 'retrying', 500)"
    )
    connection.execute(retry.encode())
    connection.execute(
        "select trunq.publish_many('q', array(select to_jsonb(m) from generate_series(1, 100000 / %s) m),"
        " p_delay => '1 day')"
        " from generate_series(1, 10)",
        (divisor,),
    )
    connection.execute("select trunq.create_queue('hourly')")
    connection.execute(
        "insert into trunq_log.hourly (kind) select 'k' from generate_series(1, 1000000 / %s)", (divisor,)
    )
    connection.execute("call public.handle('hourly', 1000000 / %s, 10, '1 hour')", (divisor,))


def ids_of(connection: Connection) -> dict[str, int]:
    """Messages to show: early, late, waiting, dead, retrying."""
    found = connection.execute(
        "select (select min(id) from trunq_log.q),"
        " (select ids[1] from trunq_data.q_lease where size = 1 order by lease_id desc limit 1),"
        " (select max(id) from trunq_log.q), (select min(id) from trunq.dead),"
        " (select min(id) from trunq.delayed where subscription_id > 0)"
    ).fetchone()
    assert found is not None
    return dict(zip(("the first", "a leased", "the last", "a dead", "a retrying"), found, strict=True))


def pages(connection: Connection, ids: dict[str, int]) -> dict[str, int]:
    """Pages read by each view."""
    views = {
        "status('q')": "trunq.status('q')",
        "status('hourly')": "trunq.status('hourly')",
        "status()": "trunq.status()",
    }
    for state in STATES:
        name = "null" if state is None else f"'{state}'"
        for brief in ("", ", p_brief => true"):
            views[f"list_messages, {state or 'any state'}{', brief' if brief else ''}"] = (
                f"trunq.list_messages('q', p_state => {name}, p_limit => 50{brief})"
            )
    views["list_messages, below the middle"] = "trunq.list_messages('q', p_limit => 50, p_before => %s)" % (
        ids["the last"] // 2
    )
    for what, id in ids.items():
        views[f"show_message, {what}"] = f"trunq.show_message('q', {id})"
    views["list_dead"] = "trunq.list_dead('q', p_limit => 50)"
    return {view: read_by(connection, f"select * from {call}") for view, call in views.items()}


def read_by(connection: Connection, statement: str) -> int:
    """Pages, the second time: the first fills the caches of the session."""
    for _ in range(2):
        explained = connection.execute(
            f"explain (analyze, buffers, timing off, format json) {statement}".encode()
        ).fetchone()
    assert explained is not None
    plan = explained[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


if __name__ == "__main__":
    main(__doc__, measure)
