"""Ticks through the client."""

from __future__ import annotations

from trunq import (
    AsyncClient,
)


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
