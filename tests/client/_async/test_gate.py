"""Rules by which a queue takes messages, through the client."""

from __future__ import annotations

from enum import Enum

import pytest

from trunq import (
    AsyncClient,
    InvalidArgument,
    QueueClosed,
    QueueFull,
    TransactionTooLarge,
)


class Kind(Enum):
    PLACED = "placed"
    PAID = 2


async def test_each_rule_of_a_queue_has_an_error_of_its_own(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", kinds=["placed"])
        with pytest.raises(InvalidArgument, match='takes no message of kind "paid"'):
            await client.publish("orders", 1, kind="paid")
        await client.set_publishing("orders", kinds=[], max_waiting=1, max_per_transaction=2)
        with pytest.raises(TransactionTooLarge):
            await client.publish_many("orders", [1, 2, 3])
        await client.publish("orders", 1, kind="paid")
        async with AsyncClient(database) as other:
            with pytest.raises(QueueFull):
                await other.publish("orders", 1)
        await client.close_queue("orders")
        with pytest.raises(QueueClosed):
            await client.publish("orders", 1)
        await client.open_queue("orders")
        await client.set_publishing("orders", max_waiting=0, max_per_transaction=0)
        with pytest.raises(TransactionTooLarge, match="takes nothing"):
            await client.publish("orders", 1)
        await client.set_publishing("orders", max_per_transaction=-1)
        assert [row.max_per_transaction for row in await client.list_queues()] == [None]
        assert len(await client.publish_many("orders", [1, 2, 3])) == 3


async def test_the_kinds_of_a_queue_are_given_like_the_kind_of_a_message(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", kinds=Kind)
        await client.publish("orders", 1, kind=Kind.PLACED)
        with pytest.raises(InvalidArgument, match="takes no message of kind"):
            await client.publish("orders", 1, kind="p")
        for one in ("placed", Kind.PLACED, 3):
            with pytest.raises(InvalidArgument, match="kinds is a list of kinds, not"):
                await client.set_publishing("orders", kinds=one)  # type: ignore[arg-type]
