"""The bell through the client."""

from __future__ import annotations

from conftest import AsyncConnect
from trunq import (
    AsyncClient,
)


async def test_the_bell_goes_from_sleeper_to_sleeper(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        first, second = await async_connect(), await async_connect()
        channel = await client.queue_channel("orders")
        await first.execute(f"listen {channel}")
        assert await client.take_bell("orders", connection=first) == "held"
        assert await client.take_bell("orders", connection=second) == "sleeper"
        await client.publish("orders", 1)
        assert [notice.payload async for notice in first.notifies(timeout=120, stop_after=1)] == ["m"]
        assert await client.give_bell("orders", connection=first)
        assert not await client.give_bell("orders", connection=first)
        assert await client.take_bell("orders", connection=second) == "held"
