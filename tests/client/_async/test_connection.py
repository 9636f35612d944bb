"""How the client reaches its database, and what it says when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from conftest import AsyncConnect
from trunq import AsyncClient, QueueNotFound, SchemaMissing, SchemaNewer, SchemaOlder
from waiting import async_wait_until

CLIENTS = "from pg_stat_activity where application_name = 'trunq' and datname = current_database()"


async def isolation(connection: psycopg.AsyncConnection[tuple[str]]) -> str:
    row = await (await connection.execute("show transaction_isolation")).fetchone()
    assert row is not None
    return row[0]


async def backends(watcher: psycopg.AsyncConnection[Any]) -> int:
    row = await (await watcher.execute(f"select count(*) {CLIENTS}")).fetchone()
    assert row is not None
    return int(row[0])


async def gone(watcher: psycopg.AsyncConnection[Any]) -> None:
    async def is_gone() -> bool:
        return await backends(watcher) == 0

    await async_wait_until(is_gone)


async def test_the_first_call_opens_the_pool_and_close_closes_it(
    database: str, async_connect: AsyncConnect
) -> None:
    watcher = await async_connect()
    client = AsyncClient(database)
    assert await backends(watcher) == 0
    assert await client.list_queues() == []
    assert await backends(watcher) > 0
    await client.close()
    await gone(watcher)


async def test_a_client_can_be_used_again_after_it_was_closed(database: str) -> None:
    client = AsyncClient(database)
    async with client:
        assert await client.create_queue("orders")
    async with client:
        assert [queue.queue for queue in await client.list_queues()] == ["orders"]


async def test_times_and_intervals_are_read_whatever_the_database_says(
    database: str, async_connect: AsyncConnect
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    connection = await async_connect()
    await connection.execute(f"alter database {name} set DateStyle = 'SQL, DMY'")
    await connection.execute(f"alter database {name} set IntervalStyle = 'sql_standard'")
    async with AsyncClient(database) as client:
        await client.create_queue("orders", retention=3600)
        (queue,) = await client.list_queues()
        message = await client.publish("orders", 1)
        assert queue.retention == timedelta(hours=1)
        (shown,) = await client.show_message("orders", message)
        assert shown.published_at is not None
        async with client.transaction() as own:
            # How a day is written remains the database's choice.
            day = await (await own.execute("select '02/01/2026'::date")).fetchone()
            assert day == (date(2026, 1, 2),)


async def test_own_connections_are_read_committed_whatever_the_database_says(
    database: str, async_connect: AsyncConnect
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    await (await async_connect()).execute(
        f"alter database {name} set default_transaction_isolation = 'serializable'"
    )
    assert await isolation(await async_connect()) == "serializable"
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        assert [message.payload for message in await client.lease("orders", "default", "w")] == [1]
        async with client.transaction() as connection:
            assert await isolation(connection) == "read committed"
        own = await client.connect()
        try:
            assert await isolation(own) == "read committed"
            assert own.autocommit
        finally:
            await own.close()


async def test_a_pool_of_ones_own_is_used_and_left_as_it_was(
    database: str, async_connect: AsyncConnect
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    await (await async_connect()).execute(
        f"alter database {name} set default_transaction_isolation = 'serializable'"
    )
    async with AsyncConnectionPool(database, min_size=1, max_size=1, open=False) as pool:
        async with AsyncClient(pool) as client:
            await client.create_queue("orders")
            await client.publish("orders", {"n": 1})
            assert len(await client.lease("orders", "default", "w")) == 1
        async with pool.connection() as connection:
            assert connection.isolation_level is None
            assert await isolation(connection) == "serializable"


async def test_a_client_with_a_pool_cannot_connect_by_itself(database: str) -> None:
    async with AsyncConnectionPool(database, min_size=1, open=False) as pool:
        with pytest.raises(TypeError, match="give it a connection string"):
            await AsyncClient(pool).connect()


async def test_a_connection_the_server_cut_is_replaced(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database, max_connections=1) as client:
        await client.create_queue("orders")
        watcher = await async_connect()
        await watcher.execute(f"select pg_terminate_backend(pid) {CLIENTS}")
        await gone(watcher)
        assert await client.publish("orders", 1) > 0


async def test_a_database_that_is_away_is_an_operational_error_that_says_so(database: str) -> None:
    away = AsyncClient(make_conninfo(database, host="/nonexistent"))
    with pytest.raises(psycopg.OperationalError, match="/nonexistent"):
        await away.list_queues()
    missing = AsyncClient(make_conninfo(database, dbname="no_such_database"))
    with pytest.raises(psycopg.OperationalError, match='"no_such_database" does not exist'):
        await missing.list_queues()


async def test_a_database_without_trunq_is_schema_missing(
    new_database: Callable[..., str], async_connect: AsyncConnect
) -> None:
    empty = new_database("template1")
    with pytest.raises(SchemaMissing, match="trunq db install"):
        await AsyncClient(empty).list_queues()
    with pytest.raises(SchemaMissing, match=r'trunq is not in this database.*"trunq_queue" does not exist'):
        await AsyncClient(empty).publish("orders", 1, connection=await async_connect(empty))


async def test_another_schema_version_is_refused_before_anything_is_done(
    database: str, async_connect: AsyncConnect
) -> None:
    connection = await async_connect()
    await connection.execute("insert into trunq.migration (number, name) values (9999, 'from the future')")
    with pytest.raises(SchemaNewer, match="pip install --upgrade"):
        await AsyncClient(database).list_queues()
    await connection.execute("update trunq.migration set number = number - 9999")
    with pytest.raises(SchemaOlder, match="trunq db upgrade"):
        await AsyncClient(database).list_queues()


async def test_a_refusal_keeps_its_hint_and_its_cause(database: str) -> None:
    async with AsyncClient(database) as client:
        with pytest.raises(QueueNotFound, match="nowhere") as caught:
            await client.publish("nowhere", 1)
        assert caught.value.sqlstate == "TQ001"
        assert caught.value.hint
        assert isinstance(caught.value.__cause__, psycopg.Error)
