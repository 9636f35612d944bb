"""Forwarding through the client."""

from __future__ import annotations

from typing import Any

import pytest

from trunq import AsyncClient, LeaseLost


async def test_messages_go_on_and_are_found_by_their_first_id(database: str) -> None:
    async with AsyncClient(database) as client:
        for queue in ("stage", "work"):
            await client.create_queue(queue)
        ids = await client.publish_many("stage", [1, 2], kinds=["mail"])
        held = await client.lease("stage", "default", "me", 2)
        there = await client.forward(held[0], into="work")
        there += await client.forward("stage", "default", held[1].lease_id, held[1].token, [ids[1]], "work")
        assert await client.forward(held, into="work") == [None, None]
        assert await client.forward([], into="work") == []
        (row,) = await client.show_message("stage", ids[0])
        assert (row.subscription, row.id) == ("work/default", there[0])
        taken = await client.lease("work", "default", "me", 2)
        assert [(message.id, message.kind, message.payload) for message in taken] == [
            (there[0], "mail", 1),
            (there[1], "mail", 2),
        ]
        await client.retry(taken, after=60)
        assert await client.forward_retries("work", "default", "stage", max=1) == 1
        assert await client.forward_retries("work", "default", "stage") == 1
        await client.cancel("stage", ids)
        assert [row.state for row in await client.show_message("stage", ids[1])] == ["dead"]


async def test_a_transaction_that_rolls_back_forwards_nothing(database: str) -> None:
    async with AsyncClient(database) as client:
        for queue in ("stage", "work"):
            await client.create_queue(queue)
        await client.publish("stage", 1)
        held = await client.lease("stage", "default", "me")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.forward(held, into="work", connection=connection)
                _ = 1 / 0
        assert await client.lease("work", "default", "me") == []
        assert len(await client.forward(held, into="work", delay=60)) == 1
        forget: Any = client.forward
        with pytest.raises(TypeError, match="into"):
            await forget(held)
        with pytest.raises(LeaseLost):
            await client.forward("stage", "default", 99, 1, [1], "work")
