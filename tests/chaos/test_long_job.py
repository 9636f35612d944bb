"""A job of hours: the server is restarted, hours pass, the worker is redeployed, and the job ends once."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from serving import PATIENCE, Queue, running
from trunq import Message, Worker
from trunq.embedded import Embedded
from waiting import async_wait_until

HOURS = 6


@pytest.fixture
def queue(own_server: Embedded) -> Queue:
    return Queue(
        own_server.dsn,
        psycopg.connect(own_server.dsn, autocommit=True),
        lease_time="2 hours",
        backoff_base="0",
    )


class Job:
    """An extraction that takes an hour a page, and what the test sees of it."""

    def __init__(self, server: Embedded, queue: Queue) -> None:
        self.server, self.queue = server, queue
        self.begun: list[tuple[int, Any]] = []
        self.pages: list[int] = []
        self.hours = 0
        self.go = asyncio.Semaphore(0)
        queue.connection.execute("select trunq.let_clock_move()")

    def deploy(self) -> Worker:
        """The worker as it is deployed: a stop gives handlers a moment, then they fail."""
        worker = self.queue.worker(lead=True, grace=5)
        worker.handler("work")(self.extract)
        return worker

    async def extract(self, message: Message) -> dict[str, int]:
        self.begun.append((message.attempt, message.checkpoint))
        for page in range(message.checkpoint or 0, HOURS):
            await message.extend("2 hours")
            self.pages.append(page)
            await message.set_progress(percent=100 * (page + 1) / HOURS, checkpoint=page + 1)
            await self.go.acquire()
        return {"pages": HOURS}

    async def reached(self, pages: int) -> None:
        """So many pages are there, and the database knows it."""
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(lambda: self.progress() == pages)

    def progress(self) -> Any:
        row = self.queue.connection.execute("select checkpoint from trunq.progress").fetchone()
        return row and row[0]

    async def an_hour_passes(self) -> None:
        """While the server is restarted: all sessions that come then find a later time."""
        self.hours += 1
        database = self.queue.connection.info.dbname
        offset = f"alter database {database} set trunq.clock_offset = '{self.hours} hours'"
        self.queue.connection.execute(offset.encode())
        self.queue.connection.close()
        await asyncio.to_thread(self.server.restart)
        self.queue.connection = psycopg.connect(self.server.dsn, autocommit=True)


@pytest.mark.slow
async def test_a_job_of_hours_ends_once_whatever_happens_meanwhile(
    own_server: Embedded, queue: Queue
) -> None:
    job = Job(own_server, queue)
    (id,) = queue.publish()
    for done in range(0, HOURS, 2):
        async with running(job.deploy()):
            for page in (done + 1, done + 2):
                await job.reached(page)
                await job.an_hour_passes()
                assert queue.message(id).state == "leased"
                if page < done + 2 or page == HOURS:
                    job.go.release()
            if page == HOURS:
                async with asyncio.timeout(PATIENCE):
                    await async_wait_until(queue.is_done)
    message = queue.message(id)
    assert (message.state, message.attempt) == ("done", 3)
    assert job.begun == [(1, None), (2, 2), (3, 4)], "each attempt went on where the last one was"
    assert job.pages == list(range(HOURS)), "each page once"
    assert [attempt["outcome"] for attempt in message.attempts] == ["failed", "failed", "success"]
    row = queue.connection.execute(
        "select %s - %s > '5 hours'", (message.finished_at, message.published_at)
    ).fetchone()
    assert row == (True,)
    queue.connection.close()
