"""Status through the client."""

from __future__ import annotations

from trunq import (
    AsyncClient,
)


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
        assert status.estimated == []
        assert [message.state for message in await client.list_messages("orders", limit=2)]
        assert len(await client.list_messages("orders", "default", "leased")) == 1
