"""Subscriptions through the client."""

from __future__ import annotations

from datetime import timedelta

import pytest

from trunq import (
    AsyncClient,
    MessageFailed,
    SubscriptionNotFound,
    WrongMode,
)


async def test_an_unknown_subscription_is_named(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(SubscriptionNotFound, match="nobody"):
            await client.lease("orders", "nobody", "w")


async def test_shared_subscriptions_have_no_batches_and_exclusive_ones_no_leases(
    database: str,
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        with pytest.raises(WrongMode):
            await client.next_batch("orders", "default", "w")
        with pytest.raises(WrongMode):
            await client.lease("orders", "stream", "w")


async def test_who_awaits_a_message_that_is_too_old_is_told_so(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("prices")
        await client.subscribe("prices", "default", max_age=timedelta(microseconds=1))
        (row,) = await client.list_subscriptions("prices")
        assert row.max_age == timedelta(microseconds=1)
        id = await client.publish("prices", {"eur": 1}, awaited=True)
        assert await client.lease("prices", "default", "w") == []
        with pytest.raises(MessageFailed, match="older than its subscription takes") as caught:
            await client.result("prices", id, timeout=5)
        assert caught.value.outcome == "outdated"


async def test_what_fell_due_comes_first_for_a_subscription_that_says_so(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("jobs")
        await client.subscribe("jobs", "default", due_first=True)
        (row,) = await client.list_subscriptions("jobs")
        assert row.due_first is True
        await client.publish_many("jobs", [1, 2, 3])
        await client.publish("jobs", "now", delay=timedelta(microseconds=1))
        await client.promote("jobs")
        (message,) = await client.lease("jobs", "default", "w", 10)
        assert message.payload == "now"
        await client.ack(message)
        assert len(await client.lease("jobs", "default", "w", 10)) == 3
        await client.subscribe("jobs", "default", due_first=False)
        (row,) = await client.list_subscriptions("jobs")
        assert row.due_first is False
