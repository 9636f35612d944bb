"""Probes of an orchestrator: /healthz asks no database, /readyz does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import httpx
import psycopg
import pytest

from browsing import serve
from serving import Queue, running
from trunq.client.message import Message
from trunq.embedded import Embedded
from trunq.errors import InvalidArgument
from trunq.leader import Leaders
from trunq.pipeline.runner import Runner
from trunq.web import app
from waiting import async_wait_until


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def handled(message: Message) -> None:
    """A handler."""


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.request(method, f"http://127.0.0.1:{port}{path}")
    return answer.status_code, answer.text.strip()


async def is_listening(port: int) -> bool:
    try:
        return (await ask(port, "/healthz"))[0] == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def away(queue: Queue, server: Embedded) -> Iterator[Callable[[], None]]:
    """Takes the database away; it comes back at the end."""
    name = queue.connection.info.dbname
    with psycopg.connect(server.dsn, autocommit=True) as administrator:

        def take() -> None:
            administrator.execute(f"alter database {name} with allow_connections false".encode())
            administrator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = %s and application_name like 'trunq %%'",
                (name,),
            )

        yield take
        administrator.execute(f"alter database {name} with allow_connections true".encode())


async def test_an_outage_of_the_database_makes_a_worker_not_ready_and_leaves_it_alive(
    queue: Queue, port: int, away: Callable[[], None]
) -> None:
    worker = queue.worker(health=f"127.0.0.1:{port}")
    worker.handler("work")(handled)
    async with running(worker):
        await async_wait_until(lambda: is_listening(port))
        await async_wait_until(lambda: _is(port, (200, "ok")))
        away()

        async def says_why() -> bool:
            status, why = await ask(port, "/readyz")
            return status == 503 and "not currently accepting connections" in why

        await async_wait_until(says_why)
        assert await ask(port, "/healthz") == (200, "ok")
        queue.connection.execute(
            f"alter database {queue.connection.info.dbname} with allow_connections true".encode()
        )
        await async_wait_until(lambda: _is(port, (200, "ok")))


@asynccontextmanager
async def serving(process: str, dsn: str, port: int) -> AsyncIterator[int]:
    """A process of some sort that answers probes; its port."""
    at = f"127.0.0.1:{port}"
    if process == "web":
        with serve(app(dsn)) as address:
            yield int(address.rpartition(":")[2])
    elif process == "runner":
        runner = Runner(dsn)
        runner.lead, runner.health = False, at
        async with running(runner):
            yield port
    else:

        async def find() -> list[str]:
            return [dsn]

        leaders = Leaders(find, "one", lease_time=1.0, health=at)
        leading = asyncio.create_task(leaders.run_async())
        try:
            yield port
        finally:
            leaders.stop()
            await leading


@pytest.mark.parametrize("process", ["leader", "runner", "web"])
async def test_others_are_alive_and_not_ready_while_the_database_is_away_and_then_ready_again(
    process: str, queue: Queue, port: int, away: Callable[[], None]
) -> None:
    queue.connection.execute("select trunq.create_queue('pipelines')")
    async with serving(process, queue.dsn, port) as at:

        async def says(status: int) -> bool:
            with suppress(httpx.TransportError):
                return (await ask(at, "/readyz"))[0] == status
            return False

        await async_wait_until(lambda: says(200))
        away()
        await async_wait_until(lambda: says(503))
        assert (await ask(at, "/healthz"))[0] == 200
        back = f"alter database {queue.connection.info.dbname} with allow_connections true"
        queue.connection.execute(back.encode())
        await async_wait_until(lambda: says(200))
        assert (await ask(at, "/healthz"))[0] == 200


async def test_a_runner_is_alive_from_the_start_and_says_that_it_starts(queue: Queue, port: int) -> None:
    queue.connection.execute("select trunq.create_queue('pipelines')")
    runner = Runner(queue.dsn)
    runner.lead, runner.health = False, f"127.0.0.1:{port}"
    with psycopg.connect(queue.dsn) as other:
        other.execute("lock table trunq.pipeline in access exclusive mode")
        begun = asyncio.create_task(runner.run_async())
        await async_wait_until(lambda: is_listening(port))
        assert await ask(port, "/readyz") == (503, "it is starting")
        other.rollback()
        await async_wait_until(lambda: _is(port, (200, "ok")))
    runner.stop()
    await begun


async def test_a_worker_that_drains_is_alive_and_no_longer_ready_and_then_gone(
    queue: Queue, port: int
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    worker = queue.worker(health=port)

    @worker.handler("work")
    async def work(message: Message) -> None:
        begun.set()
        await may_end.wait()

    queue.publish()
    async with running(worker):
        await asyncio.wait_for(begun.wait(), 60)
        worker.stop()
        await async_wait_until(lambda: _is(port, (503, "it is stopping")))
        assert (await ask(port, "/healthz"))[0] == 200
        may_end.set()
    assert not await is_listening(port)


async def test_other_requests_are_told_what_may_be_asked(queue: Queue, port: int) -> None:
    worker = queue.worker(health=f"127.0.0.1:{port}")
    worker.handler("work")(handled)
    async with running(worker):
        await async_wait_until(lambda: is_listening(port))
        assert await ask(port, "/") == (404, "ask /healthz or /readyz")
        assert (await ask(port, "/readyz", "POST"))[0] == 405
        assert await ask(port, "/healthz", "HEAD") == (200, "")
        assert await ask(port, "/healthz?probe=1") == (200, "ok")
        for nonsense in (b"\r\n\r\n", b"GET", b"x" * 100_000, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert await ask(port, "/healthz") == (200, "ok")


@pytest.mark.parametrize("at", ["", "http", "localhost", ":0", "1:65536", "8080x", "-1", 0])
async def test_what_is_no_address_is_refused_before_anything_is_leased(queue: Queue, at: str | int) -> None:
    worker = queue.worker(health=at)
    worker.handler("work")(handled)
    with pytest.raises(InvalidArgument, match="no address for probes"):
        await worker.run_async()


async def test_an_address_that_is_taken_is_named(queue: Queue) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        worker = queue.worker(health=taken)
        worker.handler("work")(handled)
        with pytest.raises(InvalidArgument, match=f"probes cannot be answered at {taken}: .*in use"):
            await worker.run_async()


async def test_a_leader_is_ready_while_each_of_its_databases_answers(
    queue: Queue, server: Embedded, port: int, away: Callable[[], None]
) -> None:
    other = queue.dsn

    async def find() -> list[str]:
        return [other, server.dsn]

    leaders = Leaders(find, "both", lease_time=1.0, health=f"127.0.0.1:{port}")
    leading = asyncio.create_task(leaders.run_async())
    try:
        await async_wait_until(lambda: is_listening(port))
        name = queue.connection.info.dbname

        # The other one has no trunq.
        async def names_one() -> bool:
            status, why = await ask(port, "/readyz")
            return status == 503 and "trunq db install" in why and name not in why

        await async_wait_until(names_one)
        away()

        async def names_both() -> bool:
            _, why = await ask(port, "/readyz")
            return name in why and "not currently accepting connections" in why

        await async_wait_until(names_both)
        assert await ask(port, "/healthz") == (200, "ok")
    finally:
        leaders.stop()
        await leading


async def _is(port: int, expected: tuple[int, str]) -> bool:
    return await ask(port, "/readyz") == expected
