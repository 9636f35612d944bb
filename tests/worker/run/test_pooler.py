"""Behind PgBouncer. Its sessions are not ours: no bell, no session settings, no prepared statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pooling import needs_pgbouncer, pooling
from serving import Queue, drain
from trunq.client.message import Message, Retry
from trunq.embedded import Embedded

pytestmark = needs_pgbouncer


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, server: Embedded, queue: Queue) -> Iterator[str]:
    """The test's database behind PgBouncer."""
    with pooling(server, queue.dsn, request.param) as dsn:
        yield dsn


async def test_everything_but_the_bell_works(
    queue: Queue, pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.connection.execute("create table effect (id bigint)")
    queue.publish("plain", count=1000)
    queue.publish("again", count=50)
    once = queue.publish("once", count=100) + queue.publish("once_sync", count=100)
    worker = queue.worker(dsn=pooled, poll=0.1, lead=True)

    @worker.handler("plain")
    async def plain(message: Message) -> None: ...

    @worker.handler("again")
    async def again(message: Message) -> Retry | None:
        return Retry(after=0.05) if message.attempt == 1 else None

    @worker.handler("once")
    async def write(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))

    @worker.handler("once_sync")
    def write_sync(message: Message, connection: Any) -> None:
        connection.execute("insert into effect values (%s)", (message.id,))

    await drain(worker)
    statistics = worker.statistics
    assert (statistics.handled, statistics.retried, statistics.failed, statistics.lost) == (1250, 50, 0, 0)
    assert [id for (id,) in queue.connection.execute("select id from effect order by id")] == sorted(once)
    assert "a connection pooler is in between: polling" in caplog.text


async def test_nothing_sticks_to_the_connections_others_use_next(queue: Queue, pooled: str) -> None:
    queue.publish(count=10)
    worker = queue.worker(dsn=pooled, lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    await drain(worker)
    held = queue.connection.execute(
        "select count(*) from pg_locks where locktype = 'advisory'"
        " and database = (select oid from pg_database where datname = current_database())"
    ).fetchone()
    assert held == (0,)
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        settings = {connection.execute("show synchronous_commit").fetchone() for _ in range(20)}
    fresh = queue.connection.execute("show synchronous_commit").fetchone()
    assert settings == {fresh}
