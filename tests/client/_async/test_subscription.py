"""Subscriptions through the client."""

from __future__ import annotations

import pytest

from trunq import (
    AsyncClient,
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
