"""A worker that also stands for election."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import new_names
from conftest import Connect
from serving import Queue, running
from trunq import Client, InvalidSchedule
from trunq.client.message import Message
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
        await async_wait_until(lambda: queue.connection.execute(leading).fetchone() == (1,), 120)
        assert not task.done()


async def test_a_worker_that_may_not_tell_its_slots_works_all_the_same(
    queue: Queue, connection: psycopg.Connection[object], caplog: pytest.LogCaptureFixture
) -> None:
    name = next(new_names("hand"))
    connection.execute(f"create role {name} login".encode())
    tables = "select, insert, update, delete on all tables in schema"
    for what in (
        "usage on schema trunq, trunq_log, trunq_queue, trunq_data",
        *(f"{tables} {schema}" for schema in ("trunq", "trunq_log", "trunq_data")),
        "usage, select on all sequences in schema trunq_data",
    ):
        connection.execute(f"grant {what} to {name}".encode())
    connection.execute(f"revoke insert on trunq.worker from {name}".encode())
    # What it works by, but not the door through which a worker tells of itself.
    hot = "trunq_queue.q_lease", "trunq_queue.q_answer", "trunq_queue.q_extend"
    for (function,) in connection.execute(
        "select p.oid::regprocedure::text from pg_proc p where p.oid = any (%s::regproc[])", (list(hot),)
    ).fetchall():
        connection.execute(f"grant execute on function {function} to {name}".encode())
    worker = Worker("q", dsn=make_conninfo(queue.dsn, user=name), lead=False)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    try:
        async with running(worker):
            queue.publish()
            await async_wait_until(lambda: worker.statistics.handled == 1)
        assert "its slots are not among those of the fleet: permission denied" in caplog.text
    finally:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())


async def test_a_worker_fires_and_handles_its_own_schedule(queue: Queue) -> None:
    worker = Worker("q", dsn=queue.dsn)
    seen: list[Any] = []

    @worker.schedule("tick", every=1, payload={"n": 1}, overlap="skip")
    async def handle(message: Message) -> None:
        seen.append((message.kind, message.payload, message.headers["schedule"]))

    with pytest.raises(InvalidSchedule, match="cannot be read"):
        worker.schedule("never", cron="61 * * * *")
    with Client(queue.dsn) as client:
        assert [change.change for change in client.sync_schedules(worker.schedules)] == ["created"]
    async with running(worker):
        await async_wait_until(lambda: len(seen) >= 2)
    assert set(map(str, seen)) == {str(("tick", {"n": 1}, "tick"))}
