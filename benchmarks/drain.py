"""Emptying a queue: one worker process of trunq against one of PgQueuer, on the same server in the same run.

Handlers do nothing, payloads have 200 bytes, each message is answered by itself, both keep their history
(trunq its receipts, PgQueuer its log table). trunq's worker runs with its defaults. PgQueuer runs as its
own benchmark tool runs it (asyncpg driver, several queue managers in one process on uvloop) with the
autovacuum settings its guide recommends and a fresh ANALYZE; number of managers and batch size are tried
out first, and the best is taken.

The clock runs from the first handler call until the worker has ended, stopped by its last handler call,
with all answers in the database; that they are all there is checked.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from functools import partial
from time import perf_counter

import asyncpg  # type: ignore[import-untyped]
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from _bench import (
    KIND,
    QUEUE,
    Options,
    Table,
    a_second,
    apart,
    at_least,
    copy_in,
    drop_database,
    in_turn,
    main,
    median_ratio,
    new_database,
    payload,
    server,
    settle,
)
from trunq import Message
from trunq.embedded import Embedded
from trunq.worker import Worker

MANAGERS = (1, 5)
BATCHES = (10, 50, 200, 1000)
TARGET = 4.0


def measure(options: Options) -> Iterator[Table]:
    """The table of one version of Postgres."""
    messages = options.size(110_000, 10_000)
    with server(options) as running:
        managers, batch = best_of_pgqueuer(running, options.size(50_000, 5_000))
        theirs = f"PgQueuer ({managers} managers, batches of {batch})"
        figures = in_turn(
            {
                "trunq": partial(trunq_rate, running, messages),
                theirs: partial(pgqueuer_rate, running, messages, managers, batch),
            },
            rounds=options.rounds(quick=1),
        )
    ratio = median_ratio(figures, "trunq", theirs)
    table = Table(
        f"drain, Postgres {options.postgres}",
        f"One worker process empties a queue of {messages:,} messages of 200 bytes, no-op handlers, history "
        f"kept; median of "
        f"{len(figures['trunq'])} rounds in turn, from the first handler call to the last answer committed. "
        f"PgQueuer at the "
        f"best of {len(MANAGERS) * len(BATCHES)} settings.",
        ["worker", "messages/s", "rounds", "ratio", "target"],
    )
    for name, rates in figures.items():
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        ours = name == "trunq"
        table.add(
            name,
            a_second(statistics.median(rates)),
            spread,
            f"{ratio:.1f}" if ours else "1",
            at_least(ratio, TARGET) if ours else "",
        )
    yield table


def best_of_pgqueuer(running: Embedded, messages: int) -> tuple[int, int]:
    """Number of managers and batch size with which it is quickest here."""
    rates = {
        (managers, batch): pgqueuer_rate(running, messages, managers, batch)
        for managers in MANAGERS
        for batch in BATCHES
    }
    for (managers, batch), rate in rates.items():
        print(f"  PgQueuer, {managers} managers, batches of {batch}: {a_second(rate)}", flush=True)
    return max(rates, key=lambda setting: rates[setting])


def trunq_rate(running: Embedded, messages: int) -> float:
    """Messages a second of one round of trunq."""
    dsn = new_database(running)
    with psycopg.connect(dsn, autocommit=True) as connection:
        copy_in(connection, f"trunq_log.{QUEUE}", messages)
        settle(dsn)
        took = apart(drain_trunq, dsn, messages)
        done = connection.execute(f"select sum(size) from trunq_data.{QUEUE}_receipt where outcome = 'a'")
        assert done.fetchone() == (messages,)
    drop_database(running, dsn)
    return messages / took


def drain_trunq(dsn: str, messages: int) -> float:
    """In the worker's process: handle that many messages, return the seconds it took."""
    worker = Worker(QUEUE, dsn=dsn)
    handled, begun = 0, 0.0

    @worker.handler(KIND)
    async def handle(_: Message) -> None:
        nonlocal handled, begun
        if not handled:
            begun = perf_counter()
        handled += 1
        if handled == messages:
            worker.stop()

    worker.run()
    return perf_counter() - begun


def pgqueuer_rate(running: Embedded, messages: int, managers: int, batch: int) -> float:
    """Messages a second of one round of PgQueuer."""
    dsn = new_database(running, queue=False)
    asyncio.run(fill_pgqueuer(dsn, messages))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        settle(dsn)
        took = apart(drain_pgqueuer, dsn, messages, managers, batch)
        done = connection.execute("select count(*) from pgqueuer_log where status = 'successful'")
        assert done.fetchone() == (messages,)
        assert connection.execute("select count(*) from pgqueuer").fetchone() == (0,)
    drop_database(running, dsn)
    return messages / took


async def fill_pgqueuer(dsn: str, messages: int, chunk: int = 1000) -> None:
    """Install PgQueuer and enqueue."""
    connection = await asyncpg.connect(**asyncpg_address(dsn))
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    for first in range(0, messages, chunk):
        size = min(chunk, messages - first)
        bodies: list[bytes | None] = [payload(number).encode() for number in range(first, first + size)]
        await queries.enqueue([KIND] * size, bodies, [0] * size)
    await connection.close()


def drain_pgqueuer(dsn: str, messages: int, managers: int, batch: int) -> float:
    """In the worker's process: handle that many messages, return the seconds it took."""
    return uvloop.run(_drain_pgqueuer(dsn, messages, managers, batch))


async def _drain_pgqueuer(dsn: str, messages: int, managers: int, batch: int) -> float:
    connections = [await asyncpg.connect(**asyncpg_address(dsn)) for _ in range(managers)]
    workers = [PgQueuer(AsyncpgDriver(connection)) for connection in connections]
    handled, begun = 0, 0.0

    async def handle(_: Job) -> None:
        nonlocal handled, begun
        if not handled:
            begun = perf_counter()
        handled += 1
        if handled == messages:
            for worker in workers:
                worker.shutdown.set()

    for worker in workers:
        worker.entrypoint(KIND)(handle)
    await asyncio.gather(*(worker.run(batch_size=batch) for worker in workers))
    took = perf_counter() - begun
    for connection in connections:
        await connection.close()
    return took


def asyncpg_address(dsn: str) -> dict[str, str | int]:
    """A connection string of libpq, as asyncpg takes it."""
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return {
        "host": str(parts["host"]),
        "port": int(parts["port"] or 5432),
        "user": str(parts["user"]),
        "database": str(parts["dbname"]),
    }


if __name__ == "__main__":
    main(__doc__, measure)
