"""A client between event loops and threads, and one that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from conftest import Connect
from trunq import AsyncClient, Client, ClientClosed, InvalidArgument
from waiting import async_wait_until, wait_until

CLIENTS = "from pg_stat_activity where application_name = 'trunq' and datname = current_database()"


def test_an_async_client_follows_from_one_event_loop_to_the_next(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    client = AsyncClient(database)
    asyncio.run(client.create_queue("orders"))
    for number in range(3):
        asyncio.run(client.publish("orders", number))
        # What the last loop left behind is broken as well.
        connection.execute(f"select pg_terminate_backend(pid) {CLIENTS}".encode())
    messages = asyncio.run(client.lease("orders", "default", "w", 10))
    assert [message.payload for message in messages] == [0, 1, 2]
    asyncio.run(client.close())
    wait_until(lambda: connection.execute(f"select count(*) {CLIENTS}".encode()).fetchone() == (0,))


def test_a_second_event_loop_at_the_same_time_is_refused_in_words(database: str) -> None:
    client = AsyncClient(database)

    async def use() -> None:
        await client.version()
        with pytest.raises(InvalidArgument, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.version())
        with pytest.raises(InvalidArgument, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.close())
        # The first goes on.
        assert await client.version()
        await client.close()

    asyncio.run(use())


def test_a_client_that_was_not_closed_says_so_once_and_closes_its_connections(
    database: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def in_a_loop_that_goes_on() -> None:
        await use_and_collect(AsyncClient)
        wait = asyncio.to_thread(gone)
        await wait

    async def use_and_collect(kind: type[AsyncClient]) -> None:
        client = kind(database, max_connections=3)
        await asyncio.gather(*[client.version() for _ in range(20)])
        del client
        gc.collect()

    def sync() -> None:
        client = Client(database, max_connections=3)
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda call: call(), [client.version] * 20))
        del client
        gc.collect()

    def left_by_its_loop() -> None:
        client = AsyncClient(database)
        asyncio.run(client.version())  # type: ignore[arg-type]
        del client
        gc.collect()

    def gone() -> None:
        wait_until(lambda: connection.execute(f"select count(*) {CLIENTS}".encode()).fetchone() == (0,))

    others = set(threading.enumerate())
    ways: list[Callable[[], Any]] = [sync, left_by_its_loop, lambda: asyncio.run(in_a_loop_that_goes_on())]
    for way in ways:
        with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
            warnings.simplefilter("always")
            way()
            gone()
            gc.collect()
        assert [(one.category, "trunq" in str(one.message)) for one in caught] == [(ResourceWarning, True)]
        assert caplog.text == ""
    wait_until(lambda: not [one for one in {*threading.enumerate()} - others if "trunq" in one.name])


def test_a_program_may_end_without_closing_its_client(database: str) -> None:
    program = "import sys, trunq; client = trunq.Client(sys.argv[1]); print(client.version() > 0)"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program, database], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_call_on_a_client_that_is_closed_meanwhile_raises_our_error(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    client = Client(database, max_connections=1)
    client.version()
    with ThreadPoolExecutor(2) as threads:
        with client.transaction():
            waiting = threads.submit(client.version)
            wait_until(lambda: client._pool is not None and client._pool.get_stats()["requests_waiting"] == 1)
            client.close()
            with pytest.raises(ClientClosed):
                waiting.result(120)
        assert client.version()
        client.close()


async def test_an_async_call_on_a_client_that_is_closed_meanwhile_raises_our_error(database: str) -> None:
    client = AsyncClient(database, max_connections=1)
    await client.version()
    async with client.transaction():
        waiting = asyncio.create_task(client.version())
        await asyncio.sleep(0)
        closing = asyncio.create_task(client.close())
        with pytest.raises(ClientClosed):
            await waiting
        await closing
    assert await client.version()
    await client.close()


def opening(connection: psycopg.Connection[Any]) -> bool:
    """Whether a client is looking at the schema, before it opens its pool."""
    (count,) = connection.execute(
        f"select count(*) {CLIENTS} and wait_event_type = 'Lock'".encode()
    ).fetchone() or (0,)
    return bool(count)


def test_a_client_that_is_closed_while_its_first_call_connects_keeps_no_connection(
    database: str, connection: psycopg.Connection[Any], connect: Connect
) -> None:
    client = Client(database)
    holding = connect(autocommit=False)
    holding.execute("lock table trunq.migration")
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(client.clock) for _ in range(2)]
        wait_until(lambda: opening(connection))
        client.close()
        holding.rollback()
        for call in calls:
            with pytest.raises(ClientClosed):
                call.result(120)
    wait_until(lambda: connection.execute(f"select count(*) {CLIENTS}".encode()).fetchone() == (0,))
    assert client.version()
    client.close()


async def test_an_async_client_that_is_closed_while_its_first_call_connects_keeps_no_connection(
    database: str, connection: psycopg.Connection[Any], connect: Connect
) -> None:
    client = AsyncClient(database)
    holding = connect(autocommit=False)
    holding.execute("lock table trunq.migration")
    calls = [asyncio.create_task(client.clock()) for _ in range(2)]
    await async_wait_until(lambda: opening(connection))
    await client.close()
    holding.rollback()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ClientClosed] * 2
    await async_wait_until(
        lambda: connection.execute(f"select count(*) {CLIENTS}".encode()).fetchone() == (0,)
    )
    assert await client.version()
    await client.close()


def test_a_close_in_the_wrong_event_loop_leaves_the_pool_as_it_was(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    client = AsyncClient(database, max_connections=1)

    async def use() -> None:
        pids = f"select pid {CLIENTS}".encode()
        await client.version()
        before = connection.execute(pids).fetchall()
        with pytest.raises(InvalidArgument, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.close())
        await client.version()
        assert connection.execute(pids).fetchall() == before
        await client.close()

    asyncio.run(use())


async def test_many_calls_while_a_client_is_closed_end_with_an_answer_or_our_error(database: str) -> None:
    client = AsyncClient(database, max_connections=2)
    await client.version()
    calls = [asyncio.create_task(client.version()) for _ in range(20)]
    await client.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {int, ClientClosed}
    await client.close()


@pytest.mark.parametrize("statement", ["commit", "rollback"])
def test_a_transaction_that_a_statement_ended_is_noticed(database: str, statement: str) -> None:
    from trunq import TransactionEnded  # noqa: PLC0415

    with Client(database) as client:
        client.create_queue("orders")
        with pytest.raises(TransactionEnded, match="commit or rollback"), client.transaction() as connection:
            connection.execute(statement)
            client.publish("orders", 1, connection=connection)
        with pytest.raises(TransactionEnded, match="failed"), client.transaction() as connection:
            client.publish("orders", "rolled back", connection=connection)
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("select 1 / 0")
        assert [message.payload for message in client.lease("orders", "default", "w", 9)] == [1]
