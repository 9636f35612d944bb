"""What a handler in a transaction costs: its writes and the ack commit together.

Beside it the same work without a queue, as one would write it by hand: a table of jobs whose ids are known,
and for each a transaction with two statements, the insert and the job's status. So the ratio says what it
takes to find, lease and ack messages. The same number of connections, each way by psycopg and by SQLAlchemy,
rounds in turn; once with every commit waiting for the disk, once without, where the work itself shows. Start
and end of a worker are left out: counted is from the first handler's start to the last one's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    connect,
    copy_in,
    in_turn,
    main,
    median_ratio,
    new_database,
    server,
    settle,
)
from trunq import Message, Worker

CONNECTIONS = 10
EFFECT = "insert into effect (id) values (%s)"
DONE = "update job set status = 'done', done_at = now() where id = %s"
BASE = "two statements, psycopg"


def measure(options: Options) -> Iterator[Table]:
    """With and without waiting for the disk."""
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn) as connection:
            connection.execute("create table effect (id bigint)")
            connection.execute(
                "create table job (id bigint primary key, status text not null default 'waiting',"
                " done_at timestamptz, payload jsonb)"
            )
        for commit in ("on", "off"):
            yield table_of(options, make_conninfo(dsn, options=f"-c synchronous_commit={commit}"), commit)


def table_of(options: Options, dsn: str, commit: str) -> Table:
    """The arms in turn."""
    rounds, messages = options.rounds(), options.size(1_700, 500)
    table = Table(
        f"handlers in transactions, synchronous_commit {commit}, Postgres {options.postgres}",
        f"{messages:,} messages through {CONNECTIONS} connections of one process, each with one insert of its"
        f" own; {rounds} rounds in turn, median of the rounds' ratios.",
        ["what", "messages", "ratio", "to the same by hand"],
    )
    arms: dict[str, Callable[[], float]] = {
        BASE: partial(run, dsn, messages, by_hand),
        "handler with connection": partial(run, dsn, messages, by_handler),
        "two statements, SQLAlchemy": partial(run, dsn, messages, by_hand_in_sessions),
        "handler with session": partial(run, dsn, messages, by_handler_in_sessions),
    }
    figures = in_turn(arms, rounds, warm_up=arms)
    for hand, handler in ((BASE, "handler with connection"), (list(arms)[2], "handler with session")):
        table.add(hand, a_second(median(figures[hand])), f"{median_ratio(figures, hand, BASE):.2f}", "")
        table.add(
            handler,
            a_second(median(figures[handler])),
            f"{median_ratio(figures, handler, BASE):.2f}",
            f"{median_ratio(figures, handler, hand):.2f}",
        )
    return table


def run(dsn: str, messages: int, work: Callable[[str, int], Awaitable[float]]) -> float:
    """Messages a second; each has left its row and nothing is left."""
    with connect(dsn) as connection:
        connection.execute("truncate effect, job")
        connection.execute(
            "insert into job (id, payload) select n, '{\"n\": 1}' from generate_series(1, %s) n", (messages,)
        )
        if work in (by_handler, by_handler_in_sessions):
            copy_in(connection, f"trunq_log.{QUEUE}", messages)
        settle(dsn)
        took = asyncio.run(work(dsn, messages))  # type: ignore[arg-type]
        row = connection.execute("select count(*) from effect").fetchone()
        assert row == (messages,), row
    return messages / took


async def shared(ids: Iterator[int], each: Callable[[int], Awaitable[None]]) -> None:
    """One connection takes ids until there are none."""
    for id in ids:
        await each(id)


async def by_hand(dsn: str, messages: int) -> float:
    """Two statements and a commit each, by psycopg."""
    connections = [
        await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        for _ in range(CONNECTIONS)
    ]

    async def handle(connection: psycopg.AsyncConnection[Any], id: int) -> None:
        async with connection.transaction():
            await connection.execute(EFFECT, (id,))
            await connection.execute(DONE, (id,))

    ids = iter(range(1, messages + 1))
    begun = perf_counter()
    await asyncio.gather(*(shared(ids, partial(handle, connection)) for connection in connections))
    took = perf_counter() - begun
    for connection in connections:
        await connection.close()
    return took


class Span:
    """From the first handler's start to the last one's end."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self._begun = 0.0
        self.length = 0.0

    def begin(self) -> None:
        """A handler starts."""
        self._begun = self._begun or perf_counter()

    def end(self) -> None:
        """A handler has done its work."""
        self._left -= 1
        if not self._left:
            self.length = perf_counter() - self._begun


async def by_handler(dsn: str, messages: int) -> float:
    """A worker whose handler has the connection."""
    span = Span(messages)
    worker = Worker(QUEUE, dsn=dsn, concurrency=CONNECTIONS, until_empty=True, lead=False)

    @worker.handler("*")
    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        span.begin()
        await connection.execute(EFFECT, (message.id,))
        span.end()

    await worker.run_async()
    return span.length


@asynccontextmanager
async def engine_of(dsn: str) -> AsyncIterator[AsyncEngine]:
    """An engine with as many connections."""

    async def open_connection() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(**conninfo_to_dict(dsn), prepare_threshold=0)

    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=open_connection, pool_size=CONNECTIONS, max_overflow=0
    )
    yield engine
    await engine.dispose()


EFFECT_TEXT = text(EFFECT.replace("%s", ":id"))
DONE_TEXT = text(DONE.replace("%s", ":id"))


async def by_hand_in_sessions(dsn: str, messages: int) -> float:
    """The same two statements, each time in a session of its own."""
    async with engine_of(dsn) as engine:

        async def handle(id: int) -> None:
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(EFFECT_TEXT, {"id": id})
                await session.execute(DONE_TEXT, {"id": id})

        ids = iter(range(1, messages + 1))
        begun = perf_counter()
        await asyncio.gather(*(shared(ids, handle) for _ in range(CONNECTIONS)))
        return perf_counter() - begun


async def by_handler_in_sessions(dsn: str, messages: int) -> float:
    """A worker whose handler has a session."""
    span = Span(messages)
    async with engine_of(dsn) as engine:
        worker = Worker(QUEUE, dsn=dsn, concurrency=CONNECTIONS, until_empty=True, lead=False, engine=engine)

        @worker.handler("*")
        async def handle(message: Message, session: AsyncSession) -> None:
            span.begin()
            await session.execute(EFFECT_TEXT, {"id": message.id})
            span.end()

        await worker.run_async()
        return span.length


if __name__ == "__main__":
    main(__doc__, measure)
