"""Cancelling, and time-outs, through the client."""

from __future__ import annotations

from datetime import timedelta

import pytest

from trunq import AsyncClient, InvalidArgument, MessageNotFound
from trunq.record import Cancelled


async def test_a_message_is_cancelled_by_its_id(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        one, two, three = await client.publish_many("orders", [1, 2, 3])
        held = await client.lease("orders", "default", "me")
        assert await client.cancel("orders", two) == [Cancelled("default", two, "ready")]
        found = await client.cancel("orders", [one, two], "default")
        assert [(row.id, row.state) for row in found] == [(one, "leased"), (two, "ready")]
        expires_at, cancelled = await client.extend(held)
        assert (held[0].expires_at, cancelled) == (expires_at, [one])
        assert await client.retry(held) == 1
        assert [message.id for message in await client.lease("orders", "default", "me", 9)] == [three]
        assert {row.id: row.reason for row in await client.list_dead("orders")} == {
            one: "cancelled",
            two: "cancelled",
        }
        assert await client.cancel("orders", []) == []


async def test_a_transaction_that_rolls_back_cancels_nothing(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1)
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.cancel("orders", id, connection=connection)
                _ = 1 / 0
        assert [message.id for message in await client.lease("orders", "default", "me")] == [id]


async def test_what_is_nowhere_is_an_error(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1)
        with pytest.raises(MessageNotFound, match="no message 999"):
            await client.cancel("orders", [id, 999])
        with pytest.raises(InvalidArgument):
            await client.cancel("orders", [2**70])
        assert len(await client.lease("orders", "default", "me")) == 1


async def test_what_took_too_long_is_answered_so(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "default", time_out=90, max_attempts=1)
        (row,) = await client.list_subscriptions("orders")
        assert row.time_out == timedelta(seconds=90)
        id = await client.publish("orders", 1, options={"time_out": 2.5})
        (message,) = await client.lease("orders", "default", "me")
        assert message.time_out == 2.5
        assert await client.time_out(message, error="longer than 2.5 s", took=2.6) == 1
        (attempt,) = (await client.show_message("orders", id))[0].attempts
        assert (attempt["outcome"], attempt["error"]) == ("timed_out", "longer than 2.5 s")
        with pytest.raises(InvalidArgument, match=r"client\.extend"):
            message.extend_sync(5)
