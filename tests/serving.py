"""Helpers for tests in which workers run: a queue to serve, and workers that run in the test's own event
loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from calling import come_back
from trunq.worker import Worker
from waiting import wait_until

PATIENCE = 120.0


class Queue:
    """A queue of a test database, seen through SQL alone."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], name: str = "q", **policy: Any) -> None:
        self.dsn = dsn
        self.name = name
        self.connection = connection
        connection.execute("select trunq.create_queue(%s)", (name,))
        if policy:
            self.policy(**policy)

    def policy(self, **policy: Any) -> None:
        """Change the policy of the subscription `default`."""
        given = ", ".join(f"p_{option} => {_literal(value)}" for option, value in policy.items())
        self.connection.execute(f"select trunq.subscribe('{self.name}', 'default', {given})".encode())

    def publish(self, kind: str | None = "work", payload: Any = None, count: int = 1) -> list[int]:
        """Publish `count` messages of a kind; a payload that is a list gives one message an element."""
        payloads = payload if isinstance(payload, list) else [payload] * count
        row = self.connection.execute(
            "select trunq.publish_many(%s, %s::jsonb[], array[%s::text])",
            (self.name, [Jsonb(each) for each in payloads], kind),
        ).fetchone()
        assert row is not None
        return list(row[0])

    def message(self, id: int) -> Any:
        """The message as `show_message` tells it, columns as attributes."""
        with self.connection.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            return cursor.execute("select * from trunq.show_message(%s, %s)", (self.name, id)).fetchone()

    def states(self) -> dict[str, int]:
        """How many messages are in each state."""
        rows = self.connection.execute(
            "select state, count(*) from trunq.list_messages(%s, p_limit => 100000) group by state",
            (self.name,),
        )
        return dict(rows.fetchall())

    def is_done(self) -> bool:
        """Whether every message is done or dead, at one moment: between two counts a message may move."""
        with self.connection.transaction():
            self.connection.execute("set transaction isolation level repeatable read, read only")
            row = self.connection.execute(
                "select bool_and(ready + leased + delayed = 0) from trunq.status(%s)", (self.name,)
            ).fetchone()
        return row == (True,)

    def dead(self) -> list[Any]:
        """The dead messages."""
        with self.connection.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            return cursor.execute("select * from trunq.list_dead(%s)", (self.name,)).fetchall()

    def worker(self, *queues: str, **options: Any) -> Worker:
        """A worker for it, which does not stand for election unless asked to."""
        return Worker(*(queues or (self.name,)), **{"dsn": self.dsn, "lead": False, **options})


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run workers beside the test, and stop them in good order at its end."""
    tasks = [asyncio.create_task(worker.run_async()) for worker in workers]
    try:
        yield tasks
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
    except BaseException as error:
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                error.add_note(f"a worker had ended with {task.exception()!r}")
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def take_away(queue: Queue, message_id: int, attempt: int = 1) -> None:
    """End the lease a message is under, as if its time had run out."""
    row = queue.connection.execute(
        "select lease_id, token from trunq_data.q_lease where %s = any(ids) and reaped_at is null"
        " order by lease_id desc limit 1",
        (message_id,),
    ).fetchone()
    assert row is not None
    queue.connection.execute("select trunq.extend('q', 'default', %s, %s, '0 s')", row)
    wait_until(lambda: queue.connection.execute("select trunq.reap('q')").fetchone() == (1,))
    come_back(queue.connection, "q")


def said(error: str) -> str:
    """What an error says above its reference."""
    text, _, line = error.rpartition("\n")
    assert re.fullmatch(r'reference \w{10}(, public ".*")?', line), error
    return text


async def drain(worker: Worker) -> None:
    """Run a worker until nothing is left."""
    worker.until_idle = True
    async with asyncio.timeout(PATIENCE):
        await worker.run_async()


def _literal(value: Any) -> str:
    """A value as an untyped literal: the function's signature says what it is."""
    return "null" if value is None else f"'{value}'"
