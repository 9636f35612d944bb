"""Dead messages through the client."""

from __future__ import annotations

from client._async.orders import lease, prepared
from trunq import (
    AsyncClient,
)


async def test_dead_messages_are_requeued_or_purged(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three = await prepared(client)
        await client.reject("orders", "default", one.lease_id, one.token, [one.id, two.id, three.id], "no")
        assert [dead.id for dead in await client.list_dead("orders", limit=2)] == [three.id, two.id]
        page = await client.list_dead(
            "orders", "default", before=(await client.list_dead("orders"))[0].dead_id
        )
        assert [dead.id for dead in page] == [two.id, one.id]
        assert await client.purge("orders", ids=[one.id]) == 1
        assert await client.purge("orders", older_than=3600) == 0
        assert await client.requeue("orders", "default", [two.id]) == 1
        assert [(m.id, m.attempt) for m in await lease(client)] == [(two.id, 1)]
        assert await client.requeue("orders") == 1
        assert await client.list_dead("orders") == []
