"""The queue `orders`, as many tests want it."""

from __future__ import annotations

from typing import Any

from trunq import (
    AsyncClient,
    Message,
)


async def lease(client: AsyncClient, max_messages: int = 10, **options: Any) -> list[Message]:
    """The next messages, for the worker w1."""
    return await client.lease("orders", "default", "w1", max_messages, **options)


async def prepared(client: AsyncClient, count: int = 3, **policy: Any) -> list[Message]:
    """A queue with so many messages, all leased; the policy of its subscription changed."""
    await client.create_queue("orders")
    if policy:
        assert not await client.subscribe("orders", "default", **policy)
    await client.publish_many("orders", list(range(count)), kind="new")
    messages = await lease(client)
    assert [message.payload for message in messages] == list(range(count))
    return messages


async def states(client: AsyncClient) -> list[str]:
    """The state of each message, sorted."""
    return sorted(message.state for message in await client.list_messages("orders"))
