"""Leading and its duties through the client."""

from __future__ import annotations

from trunq import (
    AsyncClient,
)


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
        assert {done.queue for done in duties} == {"orders", None}
