"""A worker that also stands for election."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import new_names
from conftest import Connect
from serving import Queue, running
from trunq.message import Message
from trunq.worker import Worker
from waiting import async_wait_until

OF_LEASES_ANSWERS_AND_BELL = 3


@pytest.fixture
def clerk(connection: psycopg.Connection[object]) -> Iterator[str]:
    """A role that may open as many connections as a worker needs to begin with, and none for the leader."""
    name = next(new_names("clerk"))
    connection.execute(
        f"create role {name} login connection limit {OF_LEASES_ANSWERS_AND_BELL} in role postgres".encode()
    )
    yield name
    connection.execute(f"drop role {name}".encode())


async def test_a_worker_goes_on_while_there_is_no_connection_for_its_leader(
    queue: Queue, clerk: str, connect: Connect
) -> None:
    worker = Worker("q", dsn=make_conninfo(queue.dsn, user=clerk))

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    leading = "select count(*) from trunq.leader where name is not null"
    async with running(worker) as (task,):
        await async_wait_until(lambda: worker.statistics.looks)
        # The leader has tried, and was refused.
        run = worker._run
        assert run is not None
        assert run._leader is not None
        outage = run._leader._link._outage
        await async_wait_until(lambda: task.done() or outage.is_on)
        for handled in range(1, 4):
            queue.publish()
            await async_wait_until(lambda wanted=handled: task.done() or worker.statistics.handled >= wanted)
        assert not task.done()
        assert queue.connection.execute(leading).fetchone() == (0,)
        queue.connection.execute(f"alter role {clerk} connection limit -1".encode())
        await async_wait_until(lambda: queue.connection.execute(leading).fetchone() == (1,), 20)
        assert not task.done()
