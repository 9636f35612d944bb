"""Erasing messages through the client."""

from __future__ import annotations

from trunq import AsyncClient


async def test_a_message_is_erased_and_somebody_has_done_it(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        one, two = await client.publish_many("orders", [{"secret": 1}, 2])
        assert await client.delete("orders", one) == 1
        assert [message.id for message in await client.lease("orders", "default", "me", 9)] == [two]
        assert await client.delete("orders", [one, two]) == 2
        again, first = await client.list_deletions("orders")
        assert (first.ids, first.running, again.ids, again.running) == ([one], 0, [one, two], 1)
        assert await client.list_deletions(before=first.deletion_id) == []
