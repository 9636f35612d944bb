"""Reading a stream in a loop: woken by what is published, exactly once whatever happens to the reader."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from trunq import (
    AsyncClient,
    Client,
    Consumer,
    InvalidArgument,
    LeaseLost,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from waiting import async_wait_until, wait_until

READER = """
import sys
from trunq import Client
with Client(sys.argv[1]) as client:
    for batch in client.stream("sales", "ledger", "reader", max_ticks=1):
        with batch.transaction() as connection:
            for message in batch:
                connection.execute("insert into effect values (%s)", (message.id,))
                print(message.id, flush=True)
"""
CONSUMER = """
import sys
from trunq import Consumer
async def handle(batch, connection):
    async for message in batch:
        await connection.execute("insert into effect values (%s)", (message.id,))
        print(message.id, flush=True)
Consumer("sales", "ledger", handle, database=sys.argv[1]).run()
"""


@pytest.fixture
async def client(database: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database) as client:
        await client.create_queue("sales")
        await client.subscribe("sales", "ledger", mode="exclusive", max_attempts=2, backoff_base=0)
        async with client.transaction() as connection:
            await connection.execute("create table effect (id bigint)")
        yield client


def effects(connection: psycopg.Connection[Any]) -> list[int]:
    return [id for (id,) in connection.execute("select id from effect order by id")]


def started(program: str, database: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, database], stdout=subprocess.PIPE, text=True)


async def test_what_is_published_is_in_hand_soon_and_once(client: AsyncClient) -> None:
    # Whoever is not woken waits for the poll.
    stream = client.stream("sales", "ledger", poll=600)
    seen: list[int] = []

    async def read() -> None:
        async for batch in stream:
            async with batch.transaction():
                seen.extend([message.payload async for message in batch])

    reader = asyncio.create_task(read())
    for n in range(20):
        await client.publish("sales", n)
        await async_wait_until(lambda n=n: n in seen, 120)  # type: ignore[misc]
    stream.stop()
    await reader
    assert seen == list(range(20))


async def test_a_reader_whose_subscription_is_busy_can_be_stopped(client: AsyncClient) -> None:
    stream = client.stream("sales", "ledger")

    async def busy(*_: Any, **__: Any) -> Any:
        stream.stop()
        raise SubscriptionBusy("an open transaction holds it")

    client.next_batch = busy  # type: ignore[method-assign]
    assert [batch async for batch in stream] == []


async def test_an_idle_reader_writes_nothing(
    client: AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    stream = client.stream("sales", "ledger", poll=0.05)
    asked = 0
    next_batch = client.next_batch

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await next_batch(*arguments, **options)

    client.next_batch = counted  # type: ignore[method-assign]

    async def read() -> None:
        async for _ in stream:
            raise AssertionError

    reader = asyncio.create_task(read())
    await async_wait_until(lambda: asked > 3)
    query = "select (select count(*) from trunq.tick), (select pg_snapshot_xmax(pg_current_snapshot()))::text"

    async def is_quiet() -> bool:
        before, looked = connection.execute(query).fetchone(), asked
        await async_wait_until(lambda: asked > looked + 5)
        return connection.execute(query).fetchone() == before

    # Others, such as autovacuum, write once in a while; a reader that writes does so at each look.
    await async_wait_until(is_quiet, 120)
    stream.stop()
    await reader


async def test_an_exception_rolls_back_and_fails_the_batch(
    client: AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    (id,) = await client.publish_many("sales", [1])
    with pytest.raises(ZeroDivisionError):
        async for batch in client.stream("sales", "ledger", "r"):
            async with batch.transaction() as own:
                await own.execute("insert into effect values (%s)", (id,))
                await batch.finish()
                raise ZeroDivisionError
    assert effects(connection) == []
    async for batch in client.stream("sales", "ledger", "r"):
        assert batch.batch.attempt == 2
        with pytest.raises(InvalidArgument, match="raise an error"):
            async with batch.transaction():
                await batch.fail("no")
        break


async def test_a_commit_that_was_not_heard_of_is_not_made_twice(
    client: AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    await client.publish_many("sales", [1, 2])
    stream = client.stream("sales", "ledger")
    async for batch in stream:
        stream.stop()
        insert = "insert into effect select id from trunq.read_batch('sales', 'ledger', %s)"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as patience, batch.transaction() as writing:
                await writing.execute(insert, (batch.batch.batch_id,))
                # The commit succeeds, and its answer comes too late.
                await batch.finish()
                await writing.execute("commit; begin")
                patience.reschedule(0)
                await asyncio.sleep(60)
        with pytest.raises(LeaseLost, match="twice"):
            async with batch.transaction() as writing:
                await writing.execute(insert, (batch.batch.batch_id,))
    assert len(effects(connection)) == 2


async def test_a_batch_that_is_left_open_ends_the_loop(client: AsyncClient) -> None:
    await client.publish("sales", 1)
    with pytest.raises(InvalidArgument, match="neither finished nor failed"):
        async for batch in client.stream("sales", "ledger"):
            assert [message.payload async for message in batch] == [1]


def test_part_of_a_batch_and_a_retry(database: str) -> None:
    with Client(database) as client:
        client.create_queue("sales")
        client.subscribe("sales", "ledger", mode="exclusive", backoff_base=0)
        client.publish_many("sales", list(range(4500)))
        seen: list[list[int]] = []
        for batch in client.stream("sales", "ledger"):
            messages = list(batch)
            seen.append([message.payload for message in messages])
            if len(seen) == 1:
                batch.finish(upto=messages[4399])
            elif len(seen) == 2:
                with batch.transaction():
                    assert batch.retry([]) == 0
                    assert batch.retry([messages[0]], messages[1].id, after=0) == 2
                client.promote("sales")
            else:
                batch.finish()
                break
        assert seen == [list(range(4500)), list(range(4400, 4500)), [4400, 4401]]


async def test_a_message_that_kills_does_not_stop_a_consumer(
    client: AsyncClient, database: str, connection: psycopg.Connection[Any]
) -> None:
    ids = await client.publish_many("sales", [1, 2, 0, 4])

    async def handle(batch: Any, own: Any) -> None:
        async for message in batch:
            await own.execute("insert into effect values (%s)", (message.id,))
            assert 1 / message.payload

    consumer = Consumer("sales", "ledger", handle, database=database)
    consumer.start()
    await async_wait_until(lambda: len(effects(connection)) == 3, 120)
    consumer.stop()
    assert await asyncio.to_thread(consumer.wait, 10)
    assert effects(connection) == [ids[0], ids[1], ids[3]]
    assert [dead.id for dead in await client.list_dead("sales", "ledger")] == [ids[2]]
    assert consumer.statistics.failures >= 2
    assert "ZeroDivisionError" in (consumer.statistics.last_error or "")


async def test_a_reader_whose_connections_are_cut_goes_on(
    client: AsyncClient, database: str, connection: psycopg.Connection[Any]
) -> None:
    async def handle(batch: Any, own: Any) -> None:
        async for message in batch:
            await own.execute("insert into effect values (%s)", (message.id,))

    consumer = Consumer("sales", "ledger", handle, database=database, worker="r", poll=600)
    consumer.start()
    ids: list[int] = []
    for _ in range(4):
        ids.extend(await client.publish_many("sales", [1, 2]))
        await async_wait_until(lambda: effects(connection) == ids, 120)
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and application_name = 'trunq'"
        )
        await async_wait_until(lambda: is_alive(client))
    consumer.stop()
    assert await asyncio.to_thread(consumer.wait, 10)


async def is_alive(client: AsyncClient) -> bool:
    try:
        return await client.clock() is not None
    except psycopg.OperationalError:
        return False


async def test_readers_that_are_killed_in_the_middle_lose_and_double_nothing(
    client: AsyncClient, database: str, connection: psycopg.Connection[Any]
) -> None:
    await client.subscribe("sales", "ledger", mode="exclusive", max_attempts=0)
    ids: list[int] = []
    for _ in range(3):
        ids += await client.publish_many("sales", list(range(300)))
        reader = started(READER, database)
        assert reader.stdout is not None
        for _ in range(150):
            await asyncio.to_thread(reader.stdout.readline)
        reader.kill()
        reader.communicate()
    reader = started(READER, database)
    try:
        await async_wait_until(lambda: len(effects(connection)) >= len(ids), 120)
    finally:
        reader.kill()
        reader.communicate()
    assert effects(connection) == ids


async def test_sigterm_ends_a_consumer_between_batches(
    client: AsyncClient, database: str, connection: psycopg.Connection[Any]
) -> None:
    ids = await client.publish_many("sales", list(range(500)))
    consumer = started(CONSUMER, database)
    assert consumer.stdout is not None
    await asyncio.to_thread(consumer.stdout.readline)
    consumer.send_signal(signal.SIGTERM)
    await asyncio.to_thread(consumer.communicate, timeout=20)
    assert consumer.returncode == 0
    assert effects(connection) == ids
    assert (await client.list_streams("sales"))[0].batch_id is None


def test_a_pool_of_yours_is_polled_for(database: str) -> None:
    from psycopg_pool import ConnectionPool  # noqa: PLC0415

    with ConnectionPool(database, min_size=2, open=True) as pool:
        client = Client(pool)
        client.create_queue("sales")
        client.subscribe("sales", "ledger", mode="exclusive")
        stream = client.stream("sales", "ledger", poll=600)
        seen: list[int] = []
        client.publish("sales", 0)
        for batch in stream:
            seen += [message.payload for message in batch]
            batch.finish()
            if len(seen) == 3:
                break
            client.publish("sales", len(seen))
        assert seen == [0, 1, 2]


def test_what_cannot_be_is_refused(database: str) -> None:
    with Client(database) as client:
        client.create_queue("sales")
        with pytest.raises(InvalidArgument, match="poll"):
            client.stream("sales", "ledger", poll=0)
        with pytest.raises(SubscriptionNotFound):
            next(iter(client.stream("sales", "ledger")))
        with pytest.raises(TypeError, match="async function"):
            Consumer("sales", "ledger", print)  # type: ignore[arg-type]
    consumer = Consumer("sales", "ledger", _nothing, database=database)
    consumer.start()
    with pytest.raises(SubscriptionNotFound):
        wait_until(lambda: consumer.wait(0.1))


async def _nothing(_batch: Any, _connection: Any) -> None:
    pass


def test_a_reader_that_works_long_in_its_transaction_keeps_rotation_from_nothing(database: str) -> None:
    with Client(database) as client, psycopg.connect(database, autocommit=True) as other:
        client.create_queue("sales", retention=timedelta(days=2000), hold_at_most=timedelta(days=2000))
        client.unsubscribe("sales", "default")
        client.subscribe("sales", "ledger", mode="exclusive", lease_time=timedelta(days=9000))
        client.publish_many("sales", [{"n": n} for n in range(5)])
        other.execute("set trunq.clock_offset = '3000 days'")
        for batch in client.stream("sales", "ledger", "reader"):
            with pytest.raises(LeaseLost), batch.transaction() as connection:
                assert len(list(batch)) == 5
                # So long that the queue holds its messages no more: the effects are rolled back.
                assert other.execute("select trunq.rotate('sales')").fetchone() == (1,)
                connection.execute("create table effect ()")
            break
        assert other.execute("select to_regclass('effect')").fetchone() == (None,)


async def test_a_batch_that_is_read_while_a_copy_is_open_on_its_connection_is_refused_with_the_way_out(
    client: AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    ids = await client.publish_many("sales", [1, 2, 3])
    async for batch in client.stream("sales", "ledger", "me"):
        with pytest.raises(
            InvalidArgument, match="a COPY is open on the connection of this batch"
        ) as refused:
            async with batch.transaction() as ours, ours.cursor().copy("copy effect from stdin") as copy:
                async for message in batch:
                    await copy.write_row((message.id,))
        assert refused.value.hint is not None
        assert "messages = list(batch)" in refused.value.hint
        break
    async for batch in client.stream("sales", "ledger", "me"):
        async with batch.transaction() as ours:
            messages = [message async for message in batch]
            async with ours.cursor().copy("copy effect from stdin") as copy:
                for message in messages:
                    await copy.write_row((message.id,))
        break
    assert effects(connection) == ids


def test_the_same_in_a_thread(
    database: str, client: AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    with Client(database) as ours:
        ids = ours.publish_many("sales", [1, 2, 3])
        for batch in ours.stream("sales", "ledger", "me"):
            with (
                pytest.raises(InvalidArgument, match="a COPY is open on the connection of this batch"),
                batch.transaction() as own,
                own.cursor().copy("copy effect from stdin") as copy,
            ):
                for message in batch:
                    copy.write_row((message.id,))
            break
        for batch in ours.stream("sales", "ledger", "me"):
            with batch.transaction() as own:
                messages = list(batch)
                with own.cursor().copy("copy effect from stdin") as copy:
                    for message in messages:
                        copy.write_row((message.id,))
            break
    assert effects(connection) == ids
