"""What many queues cost: memory of a backend, locks, and time of the duties, at 1, 10, 100 and 1,000 queues.

Memory is what is the backend's own (Anonymous in /proc/<pid>/smaps_rollup), so the server runs on this
machine. "Served": one connection publishes to, leases from and acks in every queue, ten times. "Duties": a
connection that only calls `trunq.perform_each_duty()`. A backend keeps the relations and plans that it has
used; the rest of each table says how much that is for one queue. Locks are the most that were seen at once
(sampled), for the procedure that commits each duty and for the function that does all in one transaction.

A second table has what one `trunq.status()` of all queues costs: the first of a connection, which opens every
relation, and the second; pages by EXPLAIN; locks held in the end. A third says what a backend keeps of a
queue that it served, by Postgres's own memory contexts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from _bench import Options, Table, connect, main, new_database, server

COUNTS = (1, 10, 100, 1000)
ROUNDS = 10
SERVED = 100

CONTEXTS = """
    select name, sum(total_bytes)::bigint, count(*) from pg_backend_memory_contexts
    group by name order by 2 desc limit 10
"""


def measure(options: Options) -> Iterator[Table]:
    """One database that grows."""
    with server(options) as running:
        dsn = new_database(running, queue=False)
        table = Table(
            f"many queues, Postgres {options.postgres}",
            "Duties: one round over all queues, the second of a connection. Memory in MB, of a backend.",
            (
                "queues",
                "duties",
                "a queue",
                "summarize, a queue",
                "locks, each commits",
                "locks, one transaction",
                "duties' memory",
                "a queue",
                "served: memory",
                "a queue",
            ),
        )
        status = Table(
            f"status of many queues, Postgres {options.postgres}",
            "trunq.status() of all queues, each with 10 messages handled. Memory in MB, of its backend.",
            (
                "queues",
                "first",
                "second",
                "a queue",
                "pages",
                "a queue",
                "locks",
                "a queue",
                "memory",
                "a queue",
            ),
        )
        kept = Table(
            f"what a backend keeps of each queue it served, Postgres {options.postgres}",
            "Publish, lease and ack of each queue, ten times; KB a queue by pg_backend_memory_contexts.",
            ("context", "KB", "contexts"),
        )
        made = 0
        for count in COUNTS[: options.size(4, 2)]:
            with connect(dsn) as connection:
                for number in range(made, count):
                    connection.execute("select trunq.create_queue(%s)", (f"q{number}",))
                made = count
            table.add(*row(dsn, count))
            status.add(*status_row(dsn, count))
        for cells in contexts(dsn, min(made, SERVED)):
            kept.add(*cells)
        yield from (table, status, kept)


def row(dsn: str, count: int) -> list[str]:
    """The figures of one number of queues."""
    with connect(dsn) as connection:
        empty = own_memory(connection)
        serve(connection, count)
        served = own_memory(connection) - empty
    with connect(dsn) as connection:
        empty = own_memory(connection)
        connection.execute("call trunq.perform_each_duty()")
        with Watch(dsn, connection) as watch:
            seconds = timed(connection, "call trunq.perform_each_duty()")
        duties = own_memory(connection) - empty
        summarize = timed(connection, "select sum(trunq.summarize(q.name)) from trunq.queue q")
    with connect(dsn) as connection:
        together = locks_of_one_transaction(connection)
    return [
        f"{count:,}",
        f"{seconds * 1000:,.0f} ms",
        f"{seconds / count * 1000:.1f} ms",
        f"{summarize / count * 1000:.2f} ms",
        f"{watch.most:,}",
        together,
        f"{duties:.1f}",
        f"{duties / count:.2f}",
        f"{served:.1f}",
        f"{served / count:.2f}",
    ]


def status_row(dsn: str, count: int) -> list[str]:
    """What `trunq.status()` costs with so many queues."""
    query = "select count(*) from trunq.status()"
    with connect(dsn) as connection:
        empty = own_memory(connection)
        try:
            first, second = timed(connection, query), timed(connection, query)
            explain = f"explain (analyze, buffers, timing off, format json) {query}".encode()
            plan = (connection.execute(explain).fetchone() or ([{}],))[0][0]["Plan"]
            pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            with connection.transaction():
                connection.execute(query)
                held = connection.execute(
                    "select count(*) from pg_locks where pid = pg_backend_pid()"
                ).fetchone()
        except psycopg.errors.OutOfMemory:
            return [f"{count:,}", "out of shared memory", *[""] * 8]
        memory = own_memory(connection) - empty
    locks = held[0] if held else 0
    return [
        f"{count:,}",
        f"{first * 1000:,.0f} ms",
        f"{second * 1000:,.0f} ms",
        f"{second / count * 1000:.1f} ms",
        f"{pages:,}",
        f"{pages / count:.0f}",
        f"{locks:,}",
        f"{locks / count:.1f}",
        f"{memory:.1f}",
        f"{memory / count:.2f}",
    ]


def contexts(dsn: str, count: int) -> Iterator[list[str]]:
    """The largest memory contexts of a backend that served so many queues, a queue."""
    with connect(dsn) as connection:
        serve(connection, count)
        for name, size, number in connection.execute(CONTEXTS.encode()).fetchall():
            yield [name, f"{size / count / 1024:,.0f}", f"{number / count:.1f}"]


def serve(connection: psycopg.Connection[Any], count: int) -> None:
    """Publish, lease and ack in every queue."""
    for _ in range(ROUNDS):
        for number in range(count):
            name = f"trunq_queue.q{number}"
            connection.execute(f"select {name}_publish('{{}}'::jsonb)".encode())
            held = f"select lease_id, token, id from {name}_lease('default', 'w', 10)".encode()
            lease_id, token, id = connection.execute(held).fetchone() or (0, 0, 0)
            connection.execute(f"select {name}_ack('default', %s, %s, %s)".encode(), (lease_id, token, [id]))


def timed(connection: psycopg.Connection[Any], statement: str) -> float:
    """Seconds a statement takes."""
    begun = time.monotonic()
    connection.execute(statement.encode())
    return time.monotonic() - begun


def own_memory(connection: psycopg.Connection[Any]) -> float:
    """Of the backend alone, in MB."""
    rollup = Path(f"/proc/{connection.info.backend_pid}/smaps_rollup").read_text()
    (line,) = [line for line in rollup.splitlines() if line.startswith("Anonymous:")]
    return int(line.split()[1]) / 1024


def locks_of_one_transaction(connection: psycopg.Connection[Any]) -> str:
    """How many locks `perform_duties` holds in the end, or that shared memory was not enough."""
    try:
        with connection.transaction():
            rows = connection.execute("select error from trunq.perform_duties()").fetchall()
            failed = sum(error is not None for (error,) in rows)
            held = connection.execute("select count(*) from pg_locks where pid = pg_backend_pid()").fetchone()
            assert held is not None
            return f"{held[0]:,}" + (f" ({failed} duties failed)" if failed else "")
    except psycopg.errors.OutOfMemory:
        return "out of shared memory"


class Watch:
    """Counts the locks of a connection while it works."""

    def __init__(self, dsn: str, watched: psycopg.Connection[Any]) -> None:
        self.most = 0
        self._pid = watched.info.backend_pid
        self._dsn = dsn
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        with connect(self._dsn) as connection:
            while not self._is_over.is_set():
                row = connection.execute(
                    "select count(*) from pg_locks where pid = %s", (self._pid,)
                ).fetchone()
                self.most = max(self.most, row[0] if row else 0)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


if __name__ == "__main__":
    main(__doc__, measure)
