"""A worker whose database role has the role `worker` of one queue, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from serving import PATIENCE, Queue, drain, running
from trunq.client.message import Message, Reject, Retry
from waiting import async_wait_until


@pytest.fixture
def as_worker(queue: Queue) -> Iterator[str]:
    """The address of the database for such a role."""
    role = f"only_works_{queue.connection.info.dbname}"
    queue.connection.execute(f"create role {role} login".encode())
    queue.connection.execute("select trunq.grant_role('q', 'worker', %s)", (role,))
    yield make_conninfo(queue.dsn, user=role)
    queue.connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_it_does_everything_a_worker_does(
    queue: Queue, as_worker: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trunq")
    running_now, cancelled, found = asyncio.Event(), [], []
    worker = queue.worker(dsn=as_worker, lease_time=1, name="w", concurrency=5)

    @worker.handler("work")
    async def work(message: Message) -> None:
        # Longer than its lease: the heartbeat extends it.
        until = asyncio.get_running_loop().time() + 2
        await async_wait_until(lambda: asyncio.get_running_loop().time() > until)

    @worker.handler("again")
    async def again(message: Message) -> Retry | None:
        if message.attempt > 1:
            found.append(message.checkpoint)
            return None
        await message.set_progress(50, checkpoint={"row": 7})
        return Retry(0, "once more")

    @worker.handler("later")
    async def later(_message: Message) -> Retry:
        return Retry(3600, "not today")

    @worker.handler("never")
    async def never(_message: Message) -> Reject:
        return Reject("no")

    @worker.handler("long")
    async def long(message: Message) -> None:
        running_now.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(message.id)

    (cancelled_id,) = queue.publish("long")
    for kind in ("work", "again", "later", "never"):
        queue.publish(kind)
    # A lease from before it was started again, under the same name.
    queue.connection.execute("select * from trunq.lease('q', 'default', 'w')")
    async with running(worker):
        await asyncio.wait_for(running_now.wait(), PATIENCE)
        assert queue.connection.execute("select slots from trunq.worker where name = 'w'").fetchall() == [
            (5,)
        ]
        queue.connection.execute("select * from trunq.cancel('q', %s)", ([cancelled_id],))
        await async_wait_until(lambda: queue.states() == {"done": 2, "retrying": 1, "dead": 2})
    assert (cancelled, found) == ([cancelled_id], [{"row": 7}])
    assert {row.reason for row in queue.dead()} == {"cancelled", "rejected"}
    assert queue.connection.execute("select count(*) from trunq.worker").fetchone() == (0,)
    assert [record.getMessage() for record in caplog.records if "permission" in record.getMessage()] == []


async def test_it_drains_what_there_is_and_stops(queue: Queue, as_worker: str) -> None:
    queue.publish(count=30)
    worker = queue.worker(dsn=as_worker)
    seen: list[int] = []

    @worker.handler("work")
    def work(message: Message) -> None:
        seen.append(message.id)

    await drain(worker)
    assert len(seen) == 30
    assert queue.states() == {"done": 30}
