"""What watching costs those who work: messages published and leased a second while the duties of figures run.

One process publishes in transactions of 100, another leases 100 and answers them, for some seconds. Beside
them, on connections of their own: nobody; the duty `sample` every five seconds, as the leader's line of looks
performs it, with 500 other queues; ten workers that say every ten seconds what they handle; /metrics
scraped by two every five seconds; all three. A loop sleeps in between, as those do. A watcher's session is
new in each round, and looks at most queues for the first time.

The second table has what a duty takes of a processor, which other work moves less than rates: in a session
that has looked at each queue before, as a leader's has.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import psycopg

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    at_most,
    connect,
    in_turn,
    main,
    median_ratio,
    milliseconds,
    new_database,
    server,
    settle,
)
from trunq.metrics import Metrics

NOBODY = "nobody"
ARMS: dict[str, tuple[str, ...]] = {
    NOBODY: (),
    "samples": ("sample",),
    "reports of ten workers": ("report",),
    "scrapes by two": ("scrape",),
    "all of them": ("sample", "report", "scrape"),
}

PUBLISH = (
    f"insert into trunq_log.{QUEUE} (kind, payload) select 'email', to_jsonb(repeat('x', 200))"
    " from generate_series(1, 100)"
)
WORK = f"""
with held as materialized (select * from trunq_queue.{QUEUE}_lease('default', 'w', 100))
select coalesce(sum(done), 0) from (
  select trunq_queue.{QUEUE}_ack('default', h.lease_id, h.token, array_agg(h.id)) as done
  from held h group by h.lease_id, h.token) d
"""
REPORT = """
select trunq._report('w' || n, array[%s], 'default', 'shop', n, 60, '1', 10,
  '[{"id": 1, "kind": "email", "seconds": 1, "queue": "q"}]') from generate_series(1, 10) n
"""


def measure(options: Options) -> Iterator[Table]:
    """The table of one version of Postgres."""
    length, others = options.size(20, 4), options.size(500, 20)
    with server(options, max_locks_per_transaction=512) as running:
        dsn = new_database(running)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for n in range(others):
                connection.execute("select trunq.create_queue(%s)", (f"other_{n}",))
        figures = in_turn(
            {name: partial(rate, dsn, length, watchers) for name, watchers in ARMS.items()},
            rounds=options.rounds(quick=2),
        )
    table = Table(
        f"watching, Postgres {options.postgres}",
        f"Messages of 200 bytes published, leased and answered for {length} s beside {others:,} other queues;"
        f" median of {len(figures[NOBODY])} rounds in turn.",
        ["who watches", "messages/s", "share of the rate of nobody"],
    )
    for name, rates in figures.items():
        table.add(name, a_second(statistics.median(rates)), f"{median_ratio(figures, name, NOBODY):.3f}")
    yield table
    yield duties(options)


def duties(options: Options) -> Table:
    """What each duty takes of a processor, beside queues where nothing happens."""
    table = Table(
        f"watching, processor, Postgres {options.postgres}",
        "Milliseconds of the session's processor, mean of 20, and their share of the machine's processors"
        " when it is done as often as it is; a queue where nothing happens is looked at once a minute.",
        ["queues", "a sample, every 5 s", "share", "reports of ten workers, every 10 s", "share", "target"],
    )
    cores = os.cpu_count() or 1
    for queues in (1, 50, options.size(500, 60)):
        with server(options, max_locks_per_transaction=512) as running:
            dsn = new_database(running)
            with psycopg.connect(dsn, autocommit=True) as connection:
                for n in range(queues - 1):
                    connection.execute("select trunq.create_queue(%s)", (f"other_{n}",))
                connection.execute("select trunq.let_clock_move()")
                sample, report = processor(connection)
        shares = [sample / 5 / cores, report / 10 / cores]
        table.add(
            f"{queues:,}",
            milliseconds(sample),
            f"{shares[0]:.2%}",
            milliseconds(report),
            f"{shares[1]:.3%}",
            at_most(100 * sum(shares), 1, " %"),
        )
    return table


def processor(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Seconds of a session's processor for a sample, and for the reports of ten workers."""
    beyond = 0

    def sample() -> None:
        nonlocal beyond
        beyond += 5
        connection.execute(f"set trunq.clock_offset = '{beyond} s'".encode())
        connection.execute("select trunq.perform_duty('sample')")

    # Two minutes: each queue was looked at twice.
    for _ in range(24):
        sample()
    taken = []
    for work, times in ((sample, 20), (lambda: connection.execute(REPORT, (QUEUE,)), 200)):
        before = used(connection)
        for _ in range(times):
            work()
        taken.append((used(connection) - before) / times)
    return taken[0], taken[1]


def used(connection: psycopg.Connection[Any]) -> float:
    """Seconds of a processor that its session has used, as the kernel counts them."""
    fields = Path(f"/proc/{connection.info.backend_pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rate(dsn: str, length: int, watchers: tuple[str, ...]) -> float:
    """Messages a second of one round: published and answered, half of the sum."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select trunq.empty_queue(%s)", (QUEUE,))
    settle(dsn)
    context = multiprocessing.get_context("spawn")
    begin, end = context.Barrier(3), context.Event()
    counts = context.Queue()
    work: list[Callable[..., None]] = [publish, lease]
    processes = [context.Process(target=each, args=(dsn, begin, end, counts)) for each in work]
    processes += [context.Process(target=watch, args=(dsn, name, end)) for name in watchers]
    for process in processes:
        process.start()
    # Whoever works has connected: a process takes seconds to start.
    begin.wait()
    begun = time.perf_counter()
    time.sleep(length)
    end.set()
    done: list[int] = [counts.get(), counts.get()]
    took = time.perf_counter() - begun
    for process in processes:
        process.join()
    return sum(done) / 2 / took


def publish(dsn: str, begin: Barrier, end: Event, counts: multiprocessing.Queue[int]) -> None:
    """Publish until the end."""
    with connect(dsn) as connection:
        begin.wait()
        done = 0
        while not end.is_set():
            connection.execute(PUBLISH)
            done += 100
    counts.put(done)


def lease(dsn: str, begin: Barrier, end: Event, counts: multiprocessing.Queue[int]) -> None:
    """Lease and answer until the end."""
    with connect(dsn) as connection:
        begin.wait()
        done = 0
        while not end.is_set():
            row = connection.execute(WORK).fetchone()
            done += int(row[0]) if row else 0
    counts.put(done)


def watch(dsn: str, what: str, end: Event) -> None:
    """Until the end, what somebody does who watches."""
    if what == "scrape":
        asyncio.run(scrape(dsn, end))
        return
    with connect(dsn) as connection:
        while not end.is_set():
            if what == "sample":
                connection.execute("select trunq.perform_duty('sample')")
            else:
                connection.execute(REPORT, (QUEUE,))
            end.wait(5 if what == "sample" else 10)


async def scrape(dsn: str, end: Event) -> None:
    """Two who scrape."""
    async with Metrics(lambda: {"one": dsn}) as one, Metrics(lambda: {"two": dsn}) as two:
        while not end.is_set():
            await one.page()
            await two.page()
            await asyncio.to_thread(end.wait, 5)


if __name__ == "__main__":
    main(__doc__, measure)
