"""Connections over which nothing comes any more, and statements that merely take long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from engine import Engine
from freezing import Proxy, freezing
from pooling import needs_pgbouncer, pooling
from serving import PATIENCE
from trunq import AsyncClient, Channel, Client, Heard, Missed, Notification
from trunq.connection._sync.link import Link
from trunq.connection.silence import limit
from trunq.embedded import Embedded
from trunq.process.mover import Mover
from trunq.spark.connection import Database
from waiting import async_wait_until, wait_until

LONG = "select pg_sleep(4)"
"""Several times as long as silence may last."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second of silence is enough to ask."""
    monkeypatch.setenv("TRUNQ_SILENCE", "1")
    limit.cache_clear()
    yield
    limit.cache_clear()


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with freezing(database) as proxy:
        yield proxy


@pytest.fixture
def work(connection: psycopg.Connection[object]) -> Engine:
    return Engine(connection, "work").create()


def test_a_call_on_a_silent_connection_fails_and_the_next_has_another(
    work: Engine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(proxy.dsn, max_connections=1) as client:
        client.publish("work", 1)
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            client.publish("work", 2)
        assert client.publish("work", 3)
    assert caplog.text.count("closed a silent connection (trunq)") == 1


async def test_an_async_call_on_a_silent_connection_fails_and_the_next_has_another(
    work: Engine, proxy: Proxy
) -> None:
    async with AsyncClient(proxy.dsn, max_connections=1) as client:
        await client.publish("work", 1)
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            await client.publish("work", 2)
        assert await client.publish("work", 3)


async def test_one_silence_is_enough_to_replace_all_connections_of_a_pool(
    work: Engine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = "select pid from pg_stat_activity where application_name = 'trunq'"
    async with AsyncClient(proxy.dsn, max_connections=4) as client:

        async def publish_at_once() -> None:
            async with AsyncExitStack() as stack:
                for _ in range(4):
                    connection = await stack.enter_async_context(client.transaction())
                    await client.publish("work", 1, connection=connection)

        await publish_at_once()
        former = set(work.connection.execute(sessions).fetchall())
        assert len(former) == 4
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            await client.publish("work", 2)
        await publish_at_once()
        assert caplog.text.count("closed a silent connection") == 1
        # The server ended their sessions too, though it did not hear from them.
        assert not former & set(work.connection.execute(sessions).fetchall())


def test_links_to_a_server_trust_it_no_more_after_one_was_silent(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Link(proxy.dsn, "one"), Link(proxy.dsn, "other")

    def session(link: Link) -> object:
        return link.run(lambda connection: connection.execute("select pg_backend_pid()").fetchone())

    before = [session(one), session(other)]
    proxy.silence()
    after = [session(one), session(other)]
    assert not set(before) & set(after)
    assert caplog.text.count("closed a silent connection") == 1
    assert [session(one), session(other)] == after
    one.close()
    other.close()


def test_where_nobody_answers_at_all_a_call_fails_too(work: Engine, proxy: Proxy) -> None:
    with Client(proxy.dsn, max_connections=1) as client:
        client.publish("work", 1)
        proxy.freeze()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            client.publish("work", 2)


async def test_a_statement_that_takes_long_is_waited_for(work: Engine, proxy: Proxy) -> None:
    with Client(proxy.dsn) as client, client.transaction() as connection:
        connection.execute(LONG)
        assert client.publish("work", 1, connection=connection)
    async with AsyncClient(proxy.dsn) as asynchronous, asynchronous.transaction() as lent:
        await lent.execute(LONG)
        assert await asynchronous.publish("work", 1, connection=lent)


@pytest.fixture
def shut(server: Embedded, database: str, work: Engine) -> Iterator[Callable[[], None]]:
    """Let nobody into the database any more."""
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(server.dsn, autocommit=True) as session:

        def let(is_let: bool) -> None:
            session.execute(f"alter database {name} allow_connections {is_let}".encode())

        yield lambda: let(False)
        let(True)


def test_a_statement_that_takes_long_is_waited_for_where_the_server_lets_nobody_ask(
    proxy: Proxy, shut: Callable[[], None]
) -> None:
    with Client(proxy.dsn) as client, client.transaction() as connection:
        shut()
        connection.execute(LONG)
        assert client.publish("work", 1, connection=connection)


async def test_an_async_one_is_waited_for_too(proxy: Proxy, shut: Callable[[], None]) -> None:
    async with AsyncClient(proxy.dsn) as client, client.transaction() as connection:
        shut()
        await connection.execute(LONG)
        assert await client.publish("work", 1, connection=connection)


def test_a_silent_call_of_ours_is_given_up_there(proxy: Proxy, shut: Callable[[], None]) -> None:
    with Client(proxy.dsn, max_connections=1) as client:
        client.publish("work", 1)
        shut()
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            client.publish("work", 2)


def test_where_the_server_lets_nobody_in_the_other_connections_are_kept(
    work: Engine, database: str, shut: Callable[[], None]
) -> None:
    with Client(database, max_connections=2) as client, psycopg.connect(database) as blocker:
        with client.transaction() as one, client.transaction() as two:
            assert one.info.backend_pid != two.info.backend_pid
        shut()
        blocker.execute("lock table trunq.queue")
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            client.list_queues()
        blocker.rollback()
        assert client.list_queues()


async def test_one_that_takes_long_and_whose_answer_is_lost_is_given_up(work: Engine, proxy: Proxy) -> None:
    asleep = "select count(*) from pg_stat_activity where query = %s and state = 'active'"
    async with AsyncClient(proxy.dsn, max_connections=1) as client:

        async def take_long() -> None:
            async with client.transaction() as connection:
                await connection.execute(LONG)

        waiting = asyncio.create_task(take_long())
        await async_wait_until(
            lambda: work.connection.execute(asleep, (LONG,)).fetchone() == (1,) or waiting.done()
        )
        proxy.silence()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            await waiting
        assert await client.publish("work", 1)


def test_a_stream_goes_on_after_a_silence(work: Engine, proxy: Proxy) -> None:
    with Client(proxy.dsn) as client:
        client.subscribe("work", "ledger", mode="exclusive")
        seen: list[object] = []
        work.publish()
        for batch in client.stream("work", "ledger", "reader", poll=0.2):
            with batch.transaction():
                seen += [message.id for message in batch]
            if len(seen) == 1:
                proxy.silence()
                work.publish()
            else:
                break
    assert len(set(seen)) == len(seen) == 2


async def test_a_sleeping_stream_notices_that_nothing_comes(
    work: Engine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(proxy.dsn) as client:
        await client.subscribe("work", "ledger", mode="exclusive")
        stream = client.stream("work", "ledger", "reader", poll=0.2)

        async def read() -> None:
            async for batch in stream:
                await batch.finish()

        reading = asyncio.create_task(read())
        holds = "select count(*) from pg_locks where locktype = 'advisory' and classid = %s"
        await async_wait_until(
            lambda: work.connection.execute(holds, (1953656417,)).fetchone() == (1,) or reading.done()
        )
        proxy.silence()
        await async_wait_until(lambda: "not listening to queue work for now" in caplog.text)
        stream.stop()
        async with asyncio.timeout(PATIENCE):
            await reading


def test_who_listens_to_a_quiet_channel_keeps_the_connection_and_misses_nothing(
    work: Engine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(proxy.dsn) as client, client.listen(Channel[int]("news")) as heard:
        work.connection.execute(LONG)
        work.connection.execute("select pg_notify('news', '7')")
        told = next(heard)
        assert isinstance(told, Notification)
        assert told.payload == 7
    assert caplog.text == ""


async def test_who_listens_notices_that_nothing_comes(
    work: Engine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        AsyncClient(proxy.dsn) as client,
        client.listen("work") as heard,
        client.listen(Channel[int]("news")) as news,
    ):
        proxy.silence()
        await async_wait_until(lambda: "not listening for now" in caplog.text)
        missed = await anext(news)
        assert isinstance(missed, Missed)
        work.publish()
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await anext(heard), Heard)


def test_what_the_driver_of_spark_asks_goes_on_after_a_silence(proxy: Proxy) -> None:
    database = Database(lambda: proxy.dsn)
    for _ in range(2):
        assert database.run(lambda connection: connection.execute("select 1").fetchone()) == (1,)
        proxy.silence()
    database.close()


async def test_a_mover_moves_each_message_once_over_a_silence(work: Engine, proxy: Proxy) -> None:
    copy = Engine(work.connection, "copy").create()
    mover = Mover("work", "copy", database=proxy.dsn, target=proxy.dsn)
    moving = asyncio.create_task(mover.run_async())
    moved = "select count(*), count(distinct headers ->> 'trunq_source_id') from trunq_log.copy"
    try:
        for count in range(1, 4):
            work.publish()
            await async_wait_until(
                lambda wanted=count: (
                    copy.connection.execute(moved).fetchone() == (wanted,) * 2 or moving.done()
                )
            )
            proxy.silence()
    finally:
        mover.stop()
    async with asyncio.timeout(PATIENCE):
        await moving


@needs_pgbouncer
def test_behind_a_pooler_what_is_yours_is_waited_for_and_what_is_ours_given_up(
    server: Embedded, database: str, work: Engine
) -> None:
    with pooling(server, database) as dsn, Client(dsn, max_connections=1) as client:
        with client.transaction() as connection:
            connection.execute(LONG)
        blocker = psycopg.connect(database)
        try:
            blocker.execute("lock table trunq.queue")
            with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
                client.list_queues()
        finally:
            blocker.close()
        wait_until(client.list_queues)
