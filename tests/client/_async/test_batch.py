"""Ticks and batches, duties and views through the client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from conftest import AsyncConnect
from trunq import AsyncClient, QueueInUse, QueueNotFound, SubscriptionNotFound


async def test_a_batch_is_read_until_it_is_finished(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        assert await client.next_batch("orders", "stream", "w") is None
        ids = await client.publish_many("orders", [1, 2], headers={"h": 1}, bodies=[b"a", b"b"])
        tick_id = await client.tick("orders", force=True)
        batch = await client.next_batch("orders", "stream", "w", lease_time=60)
        assert batch is not None
        assert batch.to_tick_id == tick_id
        assert await client.next_batch("orders", "stream", "other") is None
        messages = await client.read_batch("orders", "stream", batch.batch_id)
        assert messages == await client.read_batch("orders", "stream", batch.batch_id)
        assert [(m.id, m.payload, m.headers, m.body) for m in messages] == [
            (ids[0], 1, {"h": 1}, b"a"),
            (ids[1], 2, {"h": 1}, b"b"),
        ]
        assert abs(await client.clock() - messages[0].created_at) < timedelta(minutes=1)
        assert await client.finish_batch("orders", "stream", batch.batch_id, batch.token)
        assert not await client.finish_batch("orders", "stream", batch.batch_id, batch.token)
        assert await client.position("orders", "stream") == tick_id
        assert await client.next_batch("orders", "stream", "w") is None


async def test_ticks_are_listed_in_order_and_advanced_to(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        start = await client.position("orders", "stream")
        made = []
        for n in range(3):
            await client.publish("orders", n)
            made.append(await client.tick("orders", force=True))
        ticks = await client.list_ticks("orders", made[0], made[1])
        assert [tick.tick_id for tick in ticks] == made[:2]
        assert ticks[0].last_message_id <= ticks[1].last_message_id
        assert ticks[0].snapshot.count(":") == 2
        assert [tick.tick_id for tick in await client.list_ticks("orders", from_=made[2])] == made[2:]
        assert made[1] is not None
        assert await client.advance("orders", "stream", made[1]) == made[1]
        assert await client.advance("orders", "stream", start) == made[1]


async def test_a_tick_that_is_not_due_is_none(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", tick_max_count=1000, tick_max_lag=3600, tick_idle_period=3600)
        await client.tick("orders", force=True)
        await client.publish("orders", 1)
        assert await client.tick("orders") is None
        await client.publish_many("orders", [0] * 1500)
        assert await client.tick("orders") is not None


async def test_queues_and_subscriptions_are_listed_with_their_policies(database: str) -> None:
    async with AsyncClient(database) as client:
        assert await client.create_queue("orders", retention=timedelta(hours=2))
        assert not await client.create_queue("orders")
        policy: dict[str, Any] = {"max_attempts": 0, "lease_time": 1.5, "backoff": "linear", "jitter": 0.5}
        assert await client.subscribe("orders", "mail", **policy)
        (queue,) = await client.list_queues()
        assert (queue.queue, queue.retention, queue.subscriptions) == ("orders", timedelta(hours=2), 2)
        default, mail = sorted(await client.list_subscriptions("orders"))
        assert (default.subscription, default.max_attempts, default.backoff) == ("default", 5, "exponential")
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


async def test_an_unknown_subscription_is_named(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(SubscriptionNotFound, match="nobody"):
            await client.lease("orders", "nobody", "w")


async def test_one_leads_until_it_resigns(database: str) -> None:
    async with AsyncClient(database) as client:
        term = await client.elect("one", lease_time=60)
        assert term is not None
        assert await client.elect("one") == term
        assert await client.elect("two") is None
        assert not await client.resign("two", term)
        assert await client.resign("one", term)
        following = await client.elect("two")
        assert following is not None
        assert following > term


async def test_duties_can_be_done_one_by_one_or_all_at_once(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        assert await client.rotate("orders") == 0
        assert await client.summarize("orders") >= 0
        assert await client.reap("orders") == 0
        duties = await client.perform_duties()
        assert {"promote", "reap", "tick", "rotate"} <= {done.duty for done in duties}
        assert {done.queue for done in duties} == {"orders"}


async def test_status_counts_each_subscription(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2, 3])
        await client.publish("orders", 4, delay=3600)
        await client.lease("orders", "default", "w")
        (status,) = await client.status("orders")
        assert (status.ready, status.leased, status.delayed, status.dead) == (2, 1, 1, 0)
        assert (status.queue, status.subscription, status.mode) == ("orders", "default", "shared")
        assert status.oldest_ready is not None
        assert not status.ready_is_capped
        assert [message.state for message in await client.list_messages("orders", limit=2)]
        assert len(await client.list_messages("orders", "default", "leased")) == 1


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
    await client.grant_publisher("orders", "clerk", connection=connection)
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
