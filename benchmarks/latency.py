"""From the commit of a publish to the start of its handler, with workers that sleep between messages.

One process publishes with `AsyncClient.publish`, one transaction a message, at random moments (independent
arrivals), one worker process with its defaults handles. Both read the machine's monotonic clock: the
publisher when the commit has returned, the handler as its first statement. A start before the commit has
returned to the publisher counts as 0. The baseline is the least that LISTEN and NOTIFY can do: an INSERT
into a bare table whose trigger always notifies, and a listener that then selects the new rows; no lease, no
answer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Event
from time import monotonic, perf_counter
from typing import Any

import psycopg
import uvloop

from _bench import (
    KIND,
    QUEUE,
    Options,
    Table,
    at_most,
    connect,
    main,
    milliseconds,
    moments,
    new_database,
    payload,
    percentile,
    server,
    settle,
)
from trunq import AsyncClient, Message, RawJson
from trunq.worker import Worker

RATE = 200
MEDIAN, TAIL = 0.005, 0.020

BARE = """
create table bare (id bigserial primary key, kind text, payload jsonb);
create function ring() returns trigger language plpgsql as $$
begin
  perform pg_notify('bare', '');
  return null;
end $$;
create trigger ring after insert on bare for each statement execute function ring();
"""

Times = dict[int, float]


def measure(options: Options) -> Iterator[Table]:
    """One table: median and tail."""
    length, rounds = options.size(11, 4), options.rounds(quick=1)
    context = multiprocessing.get_context("spawn")
    latencies: dict[str, list[list[float]]] = {"bare LISTEN/NOTIFY": [], "trunq": []}
    sides: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
        "bare LISTEN/NOTIFY": (insert_all, listen),
        "trunq": (publish_all, work),
    }
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn) as connection:
            connection.execute(BARE.encode(), prepare=False)
        order = list(sides)
        for _ in range(rounds):
            for name in order:
                settle(dsn)
                latencies[name].append(one_round(context, dsn, *sides[name], length))
            order.reverse()
    yield tabulate(options, latencies, length)


def one_round(
    context: Any, dsn: str, publish: Callable[..., None], handle: Callable[..., None], length: float
) -> list[float]:
    """Start both processes, let them run, join what they noted."""
    count = sum(1 for _ in moments(RATE, length))
    notes = context.Queue()
    ready: Event = context.Event()
    processes = [
        context.Process(target=handle, args=(dsn, count, notes, ready), daemon=True),
        context.Process(target=publish, args=(dsn, length, notes, ready), daemon=True),
    ]
    for process in processes:
        process.start()
    noted: dict[str, Times] = dict(notes.get(timeout=length + 60) for _ in processes)
    for process in processes:
        process.join()
    committed, started = noted["committed"], noted["started"]
    assert committed.keys() == started.keys()
    return [max(0.0, started[id] - committed[id]) for id in committed]


def tabulate(options: Options, latencies: dict[str, list[list[float]]], length: float) -> Table:
    """Medians of the rounds' medians and percentiles."""
    table = Table(
        f"latency, Postgres {options.postgres}",
        f"{RATE} messages/s at random moments for {length:g} s, publish committed to handler started, one "
        f"idle worker with "
        f"its defaults; median of {len(latencies['trunq'])} rounds in turn. Baseline: a trigger that always "
        f"notifies and a listener "
        "that selects the new rows.",
        ["way", "median", "95 %", "99 %", "longest", "ratio of medians", "target"],
    )
    figures = {
        name: [
            statistics.median(percentile(one, share) for one in rounds) for share in (0.5, 0.95, 0.99, 1.0)
        ]
        for name, rounds in latencies.items()
    }
    base = figures["bare LISTEN/NOTIFY"][0]
    for name, shares in figures.items():
        middle = at_most(shares[0] * 1e3, MEDIAN * 1e3, " ms")
        tail = at_most(shares[2] * 1e3, TAIL * 1e3, " ms")
        table.add(
            name,
            *map(milliseconds, shares),
            f"{shares[0] / base:.1f}",
            f"median {middle}, 99 % {tail}" if name == "trunq" else "",
        )
    return table


# The publishing side


def publish_all(dsn: str, length: float, notes: Any, ready: Event) -> None:
    """Publish through the client."""

    async def run() -> Times:
        body = RawJson(payload())
        async with AsyncClient(dsn) as client:
            await client.list_queues()
            return await at_moments(length, ready, partial(client.publish, QUEUE, body, kind=KIND))

    notes.put(("committed", uvloop.run(run())))


def insert_all(dsn: str, length: float, notes: Any, ready: Event) -> None:
    """Insert into the bare table."""

    async def run() -> Times:
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)

        async def insert() -> int:
            cursor = await connection.execute(
                "insert into bare (kind, payload) values (%s, %s) returning id", (KIND, payload())
            )
            (id,) = await cursor.fetchone() or (0,)
            return int(id)

        async with connection:
            return await at_moments(length, ready, insert)

    notes.put(("committed", uvloop.run(run())))


async def at_moments(length: float, ready: Event, publish: Callable[[], Any]) -> Times:
    """Publish at each moment, those that are late at once; note when each call returned."""
    await asyncio.to_thread(ready.wait)
    committed: Times = {}
    begun = perf_counter()
    for at in moments(RATE, length):
        if (pause := begun + at - perf_counter()) > 0:
            await asyncio.sleep(pause)
        id = await publish()
        committed[id] = monotonic()
    return committed


# The handling side


def work(dsn: str, count: int, notes: Any, ready: Event) -> None:
    """A worker that notes when each handler started."""
    worker = Worker(QUEUE, dsn=dsn)
    started: Times = {}

    @worker.handler(KIND)
    async def handle(message: Message) -> None:
        started[message.id] = monotonic()
        if len(started) == count:
            worker.stop()

    async def run() -> None:
        task = asyncio.create_task(worker.run_async())
        await asyncio.sleep(1)  # asleep by then, with the bell
        ready.set()
        await task

    uvloop.run(run())
    notes.put(("started", started))


def listen(dsn: str, count: int, notes: Any, ready: Event) -> None:
    """A listener that selects what is new."""

    async def run() -> Times:
        started: Times = {}
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        reader = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        async with connection, reader:
            await connection.execute("listen bare")
            cursor = await reader.execute("select coalesce(max(id), 0) from bare")
            (last,) = await cursor.fetchone() or (0,)
            ready.set()
            async for _ in connection.notifies():
                cursor = await reader.execute(
                    "select id, kind, payload from bare where id > %s order by id", (last,)
                )
                for id, *_ in await cursor.fetchall():
                    started[id] = monotonic()
                    last = id
                if len(started) == count:
                    break
        return started

    notes.put(("started", uvloop.run(run())))


if __name__ == "__main__":
    main(__doc__, measure)
