"""A soak: publish and handle at a steady rate with a short retention, and see what grows.

Two processes beside the server: one publishes, one has a worker that leads, and a reader of batches. Every
few seconds: memory and descriptors of each process, connections, the size of each kind of table, pages that a
lease and a batch look at. A line is fitted to each from the third turn of the ring on; what the line says
for the rest of the run, compared with where it started, tells what grows.

    python benchmarks/soak.py --minutes 30
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread

import psycopg
import uvloop

from _bench import KIND, QUEUE, Options, Table, connect, main, new_database, payload, server
from trunq import Message
from trunq.worker import Worker

EVERY = 0.02
"""Seconds between two transactions of the publisher."""
GROWS = 0.10
"""More than so much of its start, along the line, and the line explains half of what is seen."""

SIZES = """
    select coalesce(substring(c.relname from '_(log|lease|receipt)_[0-9]+$'), c.relname) as kind,
      sum(pg_total_relation_size(c.oid))::bigint / 1024 as kb
    from pg_class c
    where c.relkind = 'r' and (c.relnamespace = 'trunq_data'::regnamespace
      or c.relnamespace = 'trunq'::regnamespace and c.relname in ('tick', 'mark', 'delayed', 'dead', 'queue'))
    group by 1"""
SEGMENTS = """
    select count(*) from pg_class where relnamespace = 'trunq_data'::regnamespace and relkind = 'r'
      and relname ~ '_(log|lease|receipt)_[0-9]+$' and pg_relation_size(oid) > 0"""


def measure(options: Options) -> Iterator[Table]:
    """One run."""
    given = options.extra
    length = 60 * (given.minutes or options.size(30, 2))
    context = multiprocessing.get_context("spawn")
    with server(options, max_connections=60) as running:
        dsn = new_database(running, queue=False)
        with connect(dsn) as connection:
            connection.execute(f"select trunq.create_queue('{QUEUE}', '{given.retention} s')")
            for name in ("stream", "probe"):
                connection.execute(f"select trunq.subscribe('{QUEUE}', '{name}', 'exclusive')")
        ended = context.Event()
        processes = {
            "publisher": context.Process(target=publish, args=(dsn, given.rate, ended)),
            "worker": context.Process(target=work, args=(dsn, ended)),
        }
        for process in processes.values():
            process.start()
        reader = Thread(target=read_batches, args=(dsn, ended))
        reader.start()
        try:
            samples = sample(dsn, {name: process.pid or 0 for name, process in processes.items()}, length)
        finally:
            ended.set()
            for process in processes.values():
                process.join(60)
            reader.join()
    yield lines(options, samples, length)


def publish(dsn: str, rate: int, ended: Event) -> None:
    """So many a second."""
    share = max(1, round(rate * EVERY))
    payloads = "{" + ",".join(json.dumps(payload(n)) for n in range(share)) + "}"
    call = f"select trunq_queue.{QUEUE}_publish_many(%s::jsonb[], array['{KIND}'])"
    with connect(dsn) as connection:
        next_at = time.monotonic()
        while not ended.is_set():
            connection.execute(call.encode(), (payloads,))
            next_at += EVERY
            time.sleep(max(0.0, next_at - time.monotonic()))


def work(dsn: str, ended: Event) -> None:
    """A worker that leads, in a process of its own; one message in a hundred is retried."""
    worker = Worker(QUEUE, dsn=dsn)

    @worker.handler(KIND)
    async def handle(message: Message) -> None:
        if message.attempt == 1 and message.id % 100 == 0:
            raise ValueError("the first attempt of one in a hundred")

    async def run() -> None:
        task = asyncio.create_task(worker.run_async())
        await asyncio.to_thread(ended.wait)
        worker.stop()
        await task

    logging.disable(logging.ERROR)  # it would log each exception of a handler
    uvloop.run(run())


def read_batches(dsn: str, ended: Event) -> None:
    """The stream, batch by batch."""
    with connect(dsn) as connection:
        while not ended.is_set():
            found = connection.execute(
                f"select batch_id, token from trunq_queue.{QUEUE}_next_batch('stream', 'soak')"
            ).fetchone()
            if found is None:
                ended.wait(0.2)
                continue
            connection.execute(f"select count(*) from trunq.read_batch('{QUEUE}', 'stream', %s)", found[:1])
            connection.execute(f"select trunq_queue.{QUEUE}_finish_batch('stream', %s, %s)", found)
            connection.execute(
                f"select trunq.advance('{QUEUE}', 'probe', trunq.position('{QUEUE}', 'stream'))"
            )


def sample(dsn: str, pids: dict[str, int], length: float) -> list[dict[str, float]]:
    """Look every few seconds."""
    samples = []
    begun = time.monotonic()
    with connect(dsn) as connection:
        while (now := time.monotonic() - begun) < length:
            samples.append({"at": now, **look(connection, pids)})
            time.sleep(max(0.0, min(5.0, length / 60) - (time.monotonic() - begun - now)))
    return samples


def look(connection: psycopg.Connection[object], pids: dict[str, int]) -> dict[str, float]:
    """All figures at one moment."""
    figures: dict[str, float] = {}
    for name, pid in pids.items():
        figures[f"{name}: memory, KB"] = memory(pid)
        figures[f"{name}: descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
    backends = connection.execute(
        "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    ).fetchall()
    figures["connections"] = len(backends)
    with suppress(FileNotFoundError):
        figures["backends: largest memory, KB"] = max(memory(pid) for (pid,) in backends)
    for kind, size in connection.execute(SIZES).fetchall():
        figures[f"{kind}: size, KB"] = size
    figures["segments that take space"] = connection.execute(SEGMENTS).fetchone()[0]
    waiting = connection.execute(
        f"select ready, leased from trunq.status('{QUEUE}') where mode = 'shared'"
    ).fetchone()
    figures["messages waiting"], figures["messages leased"] = waiting
    for name, call in (
        ("a lease", f"select * from trunq_queue.{QUEUE}_lease('default', 'probe', 10)"),
        ("a batch", f"select * from trunq_queue.{QUEUE}_next_batch('probe', 'probe')"),
        ("rotate", f"select trunq.rotate('{QUEUE}')"),
    ):
        figures[f"pages of {name}"] = pages(connection, call)
    return figures


def memory(pid: int) -> int:
    """What the process has to itself, in KB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def pages(connection: psycopg.Connection[object], call: str) -> int:
    """Pages a call looks at; it is rolled back."""
    with connection.transaction(force_rollback=True):
        found = connection.execute(
            f"explain (analyze, buffers, timing off, format json) {call}".encode(), prepare=False
        )
        plan = found.fetchone()[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def lines(options: Options, samples: list[dict[str, float]], length: float) -> Table:
    """A line through each figure, and whether it grows."""
    given = options.extra
    # Two turns of the ring, each of four spans of half the retention, fill what will be full.
    start = min(4.0 * given.retention, length / 2)
    fitted = [figures for figures in samples if figures["at"] >= start]
    table = Table(
        f"Soak of {length / 60:g} minutes, {given.rate} messages a second, retention {given.retention} s, "
        f"Postgres {options.postgres}",
        f"Lines through {len(fitted)} samples from second {start:.0f} on.",
        ("figure", "least", "median", "most", "line, start to end", "grows"),
    )
    for name in (key for key in samples[-1] if key != "at"):
        points = [(figures["at"], figures[name]) for figures in fitted if name in figures]
        values = [value for _, value in points]
        table.add(
            name,
            *(f"{value:,.0f}" for value in (min(values), statistics.median(values), max(values))),
            *line(points, 256 if name.endswith("KB") else 1),
        )
    return table


def line(points: list[tuple[float, float]], least: float) -> tuple[str, str]:
    """The fitted line from its start to its end, and what it says; a rise by less than `least` is none."""
    times, values = zip(*points, strict=True)
    if min(values) == max(values):
        return f"{values[0]:,.0f}", "no"
    slope, intercept = statistics.linear_regression(times, values)
    first, last = (intercept + slope * at for at in (times[0], times[-1]))
    explained = statistics.correlation(times, values) ** 2
    grows = last - first > max(GROWS * abs(first), least) and explained > 0.5
    return f"{first:,.0f} to {last:,.0f}", f"GROWS (r² {explained:.2f})" if grows else "no"


if __name__ == "__main__":
    main(
        __doc__,
        measure,
        ("--minutes", {"type": float, "help": "how long (30)"}),
        ("--rate", {"type": int, "default": 1500, "help": "messages a second (1500)"}),
        ("--retention", {"type": int, "default": 60, "help": "of the queue, in seconds (60)"}),
    )
