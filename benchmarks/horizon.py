"""A transaction that stays open, and what it does to a queue.

While a transaction holds an xid, vacuum removes nothing that died since: where messages are updated and
deleted, every claim walks over the dead ones. Messages are published at a steady rate and handled by one
worker process, first without such a transaction, then with one, then without again, each on a fresh
database; beside it the classic queue, a table claimed from by UPDATE ... FOR UPDATE SKIP LOCKED and deleted
from (its plan pinned to its indexes, as trunq's is), for as long with the open transaction as trunq. Shown:
messages handled a second over time, the time the server spent in lease and ack for each (track_functions),
and at the end, with the transaction still open, how quickly a backlog is handled, and how many dead rows
there are.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from threading import Thread
from typing import Any

import psycopg
import uvloop

from _bench import (
    KIND,
    LEAST_ROUNDS,
    QUEUE,
    Options,
    Table,
    a_second,
    at_least,
    connect,
    copy_in,
    drop_database,
    main,
    microseconds,
    new_database,
    payload,
    server,
    settle,
)
from trunq import Message
from trunq.embedded import Embedded
from trunq.worker import Worker

RATE, EVERY = 2000, 0.01
"""Messages a second, published so often (seconds)."""
TARGET = 0.98
WINDOWS = 10
"""Points in time shown."""

CLASSIC = """
create table classic (id bigserial primary key, state smallint not null default 0, kind text, payload jsonb);
create index classic_waiting on classic (id) where state = 0;
create function classic_claim(p_max integer) returns table (id bigint, kind text, payload jsonb)
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
  return query
    update classic set state = 1 where ctid = any(array(
      select c.ctid from classic c where c.state = 0 order by c.id limit p_max for update skip locked))
    returning id, kind, payload;
end $$;
create function classic_finish(p_ids bigint[]) returns void language plpgsql set enable_seqscan = off as $$
begin
  delete from classic where id = any(p_ids);
end $$;
"""


@dataclass
class Phase:
    """What was seen of one system in one state of the horizon."""

    handled: list[float] = field(default_factory=list)
    """Messages a second, by window."""
    cost: list[float] = field(default_factory=list)
    """Seconds of the server a message, by window."""
    capacity: float = 0.0
    """Messages a second out of a backlog."""
    dead: int = 0
    changed: int = 0
    """Rows updated or deleted in the queue's tables."""


@dataclass(frozen=True)
class System:
    """A queue: its table, its worker, its functions, its tables for the count of dead rows."""

    table: str
    work: Callable[..., None]
    functions: str
    tables: str


def measure(options: Options) -> Iterator[Table]:
    """Summary, then the course over time."""
    length = 60 * (options.extra.minutes or options.size(5, 0)) or 20.0
    with server(options, track_functions="pl") as running:
        phases = {
            "trunq, clean": phase(running, TRUNQ, length / 2, pinned=False),
            "trunq, transaction open": phase(running, TRUNQ, length, pinned=True),
            "trunq, clean again": phase(running, TRUNQ, length / 2, pinned=False),
            "SKIP LOCKED, clean": phase(running, SKIP_LOCKED, length / 2, pinned=False),
            "SKIP LOCKED, transaction open": phase(running, SKIP_LOCKED, length, pinned=True),
        }
    yield summary(options, phases, length)
    yield course(options, phases, length)


def phase(running: Embedded, system: System, length: float, *, pinned: bool) -> Phase:
    """Publish and handle for so long, then a backlog; see what was left."""
    dsn = new_database(running)
    result = Phase()
    with connect(dsn) as connection:
        connection.execute(CLASSIC.encode(), prepare=False)
        settle(dsn)
        with hold(dsn) if pinned else nullcontext(), working(dsn, system) as handled:
            with publishing(dsn, system):
                # Both processes are up, and what gathered meanwhile is handled.
                while handled.value < RATE:
                    time.sleep(0.1)
                for _ in range(WINDOWS):
                    window(connection, system, handled, length / WINDOWS, result)
            result.capacity = burst(connection, system, handled, length)
        connection.execute("select pg_stat_force_next_flush()")
        counts = connection.execute(system.tables).fetchone() or (0, 0)
        result.dead, result.changed = map(int, counts)
    drop_database(running, dsn)
    return result


def window(
    connection: psycopg.Connection[Any], system: System, handled: Any, length: float, result: Phase
) -> None:
    """What happened in that many seconds."""
    before, spent, begun = handled.value, server_time(connection, system), time.perf_counter()
    time.sleep(length)
    count = handled.value - before
    result.handled.append(count / (time.perf_counter() - begun))
    result.cost.append((server_time(connection, system) - spent) / max(count, 1))


def server_time(connection: psycopg.Connection[Any], system: System) -> float:
    """Seconds the server has spent in the functions of a system."""
    row = connection.execute(
        "select coalesce(sum(total_time), 0) / 1000 from pg_stat_user_functions"
        " where schemaname || '.' || funcname = any(string_to_array(%s, ' '))",
        (system.functions,),
    ).fetchone()
    (spent,) = row or (0,)
    return float(spent)


def burst(connection: psycopg.Connection[Any], system: System, handled: Any, length: float) -> float:
    """Messages a second from backlogs that commit at once, the median of nine; one gets only so long."""
    patience = max(1.0, length / 54)
    time.sleep(1)
    rates: list[float] = []
    for _ in range(LEAST_ROUNDS):
        before = handled.value
        copy_in(connection, system.table, messages := 28_000, chunk=28_000)
        begun = time.perf_counter()
        while handled.value < before + messages and time.perf_counter() - begun < patience:
            time.sleep(0.001)
        rates.append((handled.value - before) / (time.perf_counter() - begun))
    return statistics.median(rates)


@contextmanager
def hold(dsn: str) -> Iterator[None]:
    """A transaction with an xid, open until the block ends."""
    with psycopg.connect(dsn) as connection:
        connection.execute("select pg_current_xact_id()")
        yield


# The publishing side


@contextmanager
def publishing(dsn: str, system: System) -> Iterator[None]:
    """A process that publishes at a steady rate until the block ends."""
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    process = context.Process(target=publish, args=(dsn, system.table, over), daemon=True)
    process.start()
    try:
        yield
    finally:
        over.set()
        process.join()


def publish(dsn: str, table: str, over: Event) -> None:
    """Publish some messages, a transaction, every moment; what was missed is made up for."""
    some = int(RATE * EVERY)
    rows = ", ".join(f"('{KIND}', '{payload(number)}')" for number in range(some))
    with connect(dsn) as connection:
        at = time.perf_counter()
        while not over.is_set():
            connection.execute(f"insert into {table} (kind, payload) values {rows}".encode())
            at += EVERY
            if (pause := at - time.perf_counter()) > 0:
                time.sleep(pause)


# The handling side


@contextmanager
def working(dsn: str, system: System) -> Iterator[Any]:
    """A worker process until the block ends. Gives the count of handled messages."""
    context = multiprocessing.get_context("spawn")
    handled, over = context.Value("Q", lock=False), context.Event()
    process = context.Process(target=system.work, args=(dsn, handled, over), daemon=True)
    process.start()
    try:
        yield handled
    finally:
        over.set()
        process.join()


def work_trunq(dsn: str, handled: Any, over: Event) -> None:
    """A worker as it comes."""
    worker = Worker(QUEUE, dsn=dsn)

    @worker.handler(KIND)
    async def handle(_: Message) -> None:
        handled.value += 1

    def wait() -> None:
        over.wait()
        worker.stop()

    Thread(target=wait, daemon=True).start()
    worker.run()


def work_classic(dsn: str, handled: Any, over: Event) -> None:
    """Claim up to a thousand, handle, delete; when there is nothing, look again a moment later."""

    async def handle(_: Sequence[Any]) -> None:
        handled.value += 1

    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        async with connection:
            while not over.is_set():
                cursor = await connection.execute("select * from classic_claim(1000)")
                rows = await cursor.fetchall()
                for row in rows:
                    await handle(row)
                if rows:
                    ids = "{" + ",".join(str(row[0]) for row in rows) + "}"
                    await connection.execute("select classic_finish(%s::bigint[])", (ids,))
                else:
                    await asyncio.sleep(0.005)

    uvloop.run(run())


TRUNQ = System(
    f"trunq_log.{QUEUE}",
    work_trunq,
    "trunq.lease trunq._answer",
    "select sum(n_dead_tup), sum(n_tup_upd + n_tup_del) from pg_stat_all_tables where schemaname = "
    "'trunq_data'",
)
SKIP_LOCKED = System(
    "classic",
    work_classic,
    "public.classic_claim public.classic_finish",
    "select n_dead_tup, n_tup_upd + n_tup_del from pg_stat_all_tables where relname = 'classic'",
)


# Printing


def summary(options: Options, phases: dict[str, Phase], length: float) -> Table:
    """Open against clean, of each system."""
    table = Table(
        f"pinned horizon, Postgres {options.postgres}",
        f"{RATE:,} messages/s of 200 bytes through one worker process, without and with a transaction that "
        f"holds an xid for "
        f"{length / 60:g} minutes. Handled: median of the last third. Server time: lease and ack, a "
        f"message, last third. "
        "Backlog: 28,000 messages at once, median of nine, with the transaction still open. Ratios to "
        "clean; trunq's clean "
        "is the mean of before and after.",
        [
            "queue",
            "handled",
            "ratio",
            "server time",
            "ratio",
            "out of a backlog",
            "ratio",
            "dead rows",
            "updates and deletes",
            "target",
        ],
    )
    for name, seen in phases.items():
        clean = [other for key, other in phases.items() if key.startswith(f"{name.partition(',')[0]}, clean")]
        ratios = [
            figure(seen) / statistics.mean(figure(other) for other in clean)
            for figure in (last_handled, last_cost, lambda some: some.capacity)
        ]
        target = ""
        if name == "trunq, transaction open":
            # The backlogs last a third of a second each: too short to be judged by hundredths.
            handled = at_least(round(ratios[0], 3), TARGET)
            target = f"handled {handled}; dead rows: {'FOUND' if seen.dead else 'none'}"
        table.add(
            name,
            a_second(last_handled(seen)),
            f"{ratios[0]:.3f}",
            microseconds(last_cost(seen)),
            f"{ratios[1]:.2f}",
            a_second(seen.capacity),
            f"{ratios[2]:.2f}",
            f"{seen.dead:,}",
            f"{seen.changed:,}",
            target,
        )
    return table


def last_handled(seen: Phase) -> float:
    """Messages a second at the end."""
    return statistics.median(seen.handled[-WINDOWS // 3 :])


def last_cost(seen: Phase) -> float:
    """Server time a message at the end."""
    return statistics.median(seen.cost[-WINDOWS // 3 :])


def course(options: Options, phases: dict[str, Phase], length: float) -> Table:
    """Messages a second, and server time a message, over time."""
    open_ones = {name: seen for name, seen in phases.items() if name.endswith("open")}
    table = Table(
        f"pinned horizon over time, Postgres {options.postgres}",
        "Messages handled a second and server time a message, since the transaction was opened.",
        [
            "after",
            *(
                f"{name.partition(',')[0]} {what}"
                for name in open_ones
                for what in ("handled", "server time")
            ),
        ],
    )
    for number in range(WINDOWS):
        cells = []
        for seen in open_ones.values():
            cells += [a_second(seen.handled[number]), microseconds(seen.cost[number])]
        table.add(f"{length * (number + 1) / WINDOWS:.0f} s", *cells)
    return table


if __name__ == "__main__":
    main(__doc__, measure, ("--minutes", {"type": float, "help": "how long the transaction is open (5)"}))
