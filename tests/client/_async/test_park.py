"""Parking and resuming through the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trunq import AsyncClient, Duplicate, InvalidArgument, MessageTooLarge, Park


async def test_a_parked_message_is_resumed_with_a_value(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        (id,) = await client.publish_many("orders", [1])
        (message,) = await client.lease("orders", "default", "me")
        assert (message.is_resumed, message.resumed) == (False, None)
        assert await client.park(message, "secret", "1 day") == 1
        assert [row.id for row in await client.list_messages("orders", state="parked")] == [id]
        assert await client.resume("orders", "secret", {"paid": True}) == "resumed"
        assert await client.resume("orders", "secret") == "repeated"
        assert await client.show_resumed("orders", id) == {"paid": True}
        await client.promote("orders")
        (again,) = await client.lease("orders", "default", "me")
        assert again.attempt == 1
        with pytest.raises(InvalidArgument, match=r"client\.show_resumed"):
            _ = again.resumed
        await client.ack(again)
        assert await client.resume("orders", "early") == "noted"


async def test_several_are_parked_at_once(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2, 3])
        held = await client.lease("orders", "default", "me", 3)
        until = datetime.now(UTC) + timedelta(days=9)
        assert await client.park(held[:2], ["a", "b"], until) == 2
        shown = await client.list_messages("orders", state="parked")
        assert all(row.due_at is not None and abs(row.due_at - until) < timedelta(hours=1) for row in shown)
        last = held[2]
        names = (last.queue, last.subscription, last.lease_id, last.token, [last.id])
        with pytest.raises(Duplicate):
            await client.park(*names, ["a"], [60])
        assert await client.park(*names, ["c"], [60]) == 1


async def test_parking_joins_a_transaction(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        (message,) = await client.lease("orders", "default", "me")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                assert await client.park(message, "t", 60, connection=connection) == 1
                _ = 1 / 0
        assert await client.list_messages("orders", state="parked") == []


async def test_what_cannot_be_parked_or_resumed(database: str) -> None:
    for wrong in ("", "x" * 1001, "\0", "\ud800"):
        with pytest.raises(InvalidArgument):
            Park(wrong, 60)
    with pytest.raises(InvalidArgument, match="is text"):
        Park(7, 60)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a time that ends"):
        Park("t", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="time zone"):
        Park("t", datetime(2030, 1, 1))
    assert "secret" not in repr(Park("secret", 60)), "a log may show it"
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(MessageTooLarge):
            await client.resume("orders", "t", "x" * 1_048_577)
        with pytest.raises(InvalidArgument):
            await client.resume("orders", "")
