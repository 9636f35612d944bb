"""Public ids, and reminders, through the client."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from trunq import AsyncClient, InvalidArgument
from trunq.record import Found


async def test_a_message_is_found_by_its_public_id(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        ids = await client.publish_many("orders", [1, 2])
        found = await client.public_ids("orders", ids)
        assert found is not None
        assert found == [await client.public_id("orders", id) for id in ids]
        assert isinstance(found[0], UUID)
        assert await client.find_public_id(found[1]) == [Found("orders", ids[1])]
        assert await client.find_public_id(uuid4(), "orders") == []
        assert await client.renew_public_key() == 2
        assert await client.public_id("orders", ids[0]) != found[0]
        assert await client.find_public_id(found[0]) == [Found("orders", ids[0])]
        assert await client.renew_public_key(True) == 1
        assert await client.find_public_id(found[0]) == []
        (message,) = await client.lease("orders", "default", "me")
        with pytest.raises(InvalidArgument, match="public_ids=True"):
            _ = message.public_id


async def test_a_queue_announces_again(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument, match="announce"):
            await client.set_reminders("orders", after=60)
        await client.set_publishing("orders", announce=True)
        await client.set_reminders("orders", after="1 minute", subscriptions=["default"])
        assert await client.remind() == 1
        await client.set_reminders("orders")
        assert await client.remind() == 0
