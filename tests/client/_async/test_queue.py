"""Queues through the client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from conftest import AsyncConnect
from trunq import (
    AsyncClient,
    QueueInUse,
    QueueNotFound,
)


async def test_queues_and_subscriptions_are_listed_with_their_policies(database: str) -> None:
    async with AsyncClient(database) as client:
        assert await client.create_queue("orders", retention=timedelta(hours=2))
        assert not await client.create_queue("orders")
        policy: dict[str, Any] = {"max_attempts": 0, "lease_time": 1.5, "backoff": "linear", "jitter": 0.5}
        assert await client.subscribe("orders", "mail", **policy)
        (queue,) = await client.list_queues()
        assert (queue.queue, queue.retention, queue.subscriptions) == ("orders", timedelta(hours=2), 2)
        default, mail = sorted(await client.list_subscriptions("orders"))
        assert (default.subscription, default.max_attempts, default.backoff) == ("default", 20, "exponential")
        assert (mail.lease_time, mail.backoff, mail.jitter) == (timedelta(seconds=1.5), "linear", 0.5)
        assert not mail.max_attempts
        assert await client.unsubscribe("orders", "mail")
        assert not await client.unsubscribe("orders", "mail")


async def test_a_queue_in_use_is_dropped_only_by_force(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        with pytest.raises(QueueInUse):
            await client.drop_queue("orders")
        await client.drop_queue("orders", force=True)
        with pytest.raises(QueueNotFound):
            await client.drop_queue("orders")
        with pytest.raises(QueueNotFound):
            await client.lease("orders", "default", "w")


async def test_version_snapshot_and_clock_are_the_databases(database: str) -> None:
    async with AsyncClient(database) as client:
        assert await client.version() > 0
        assert (await client.snapshot()).count(":") == 2
        async with client.transaction() as connection:
            before = await client.clock()
            await connection.execute("set local trunq.clock_offset = '1 day'")
            assert await client.clock(connection=connection) - before > timedelta(hours=23)


async def test_a_publisher_may_publish_and_no_more(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
    # Roles belong to the whole server, so this one is rolled back in the end.
    connection = await async_connect(autocommit=False)
    await connection.execute("create role clerk")
    await client.grant_role("orders", "publisher", "clerk", connection=connection)
    await connection.execute("set local role clerk")
    assert await client.publish("orders", 1, connection=connection) > 0
    ids = await client.publish_many("orders", range(600), connection=connection)
    assert ids == sorted(set(ids))
    assert len(ids) == 600
    async with client.copy("orders", connection=connection) as orders:
        await orders.write(2)
    await connection.execute("insert into trunq_log.orders (kind, payload) values ('new', '3')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await connection.execute("insert into trunq_log.orders (txid, payload) values ('1', '4')")
    await connection.rollback()


async def test_rebase_publishes_again_what_was_not_answered(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2])
        (one,) = await client.lease("orders", "default", "w")
        await client.ack("orders", "default", one.lease_id, one.token, [one.id])
        assert await client.rebase() == 1
        assert [m.payload for m in await client.lease("orders", "default", "w", 10)] == [2]


async def test_a_queue_gets_lanes_later_and_its_index_beside_publishers(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        ids = await client.publish_many("orders", [1, 2, 3], keys=["a", "b", "a"])
        assert [row.statement.split()[0] for row in await client.list_preparations("orders", "key")] == [
            "create"
        ]
        assert await client.convert_queue("orders", lanes="key", retention=timedelta(days=9))
        assert not await client.convert_queue("orders", lanes="key")
        (queue,) = await client.list_queues()
        assert (queue.lanes, queue.retention) == ("key", timedelta(days=9))
        index = "select count(*) from pg_class where relname ~ '^orders_log_[0-9]_by_key$'"
        async with client.transaction() as connection:
            assert await (await connection.execute(index)).fetchone() == (1,)
        assert sorted(row.id for row in await client.lease("orders", "default", "w", 9)) == ids
