"""Progress and checkpoints through the client."""

from __future__ import annotations

import pytest

from trunq import AsyncClient, InvalidArgument, LeaseLost, MessageNotFound, MessageTooLarge


async def test_what_is_reported_of_a_message_is_listed(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        one, two = await client.publish_many("orders", [1, 2])
        first, second = await client.lease("orders", "default", "ada", 2)
        await client.set_progress(first, percent=12.5, note="begun")
        await client.set_progress(
            "orders", "default", second.lease_id, second.token, two, checkpoint={"at": [1, 2]}
        )
        newest, other = await client.list_progress("orders")
        assert (other.id, other.percent, other.note, other.worker) == (one, 12.5, "begun", "ada")
        assert (newest.id, newest.percent, newest.checkpoint_bytes) == (two, None, len('{"at": [1, 2]}'))
        assert newest.is_running
        assert newest.reported_at > other.reported_at
        assert [row.id for row in await client.list_progress("orders", "default", [one], 5)] == [one]
        assert await client.show_checkpoint("orders", one) is None
        assert await client.show_checkpoint("orders", two, "default") == {"at": [1, 2]}


async def test_the_next_lease_says_that_there_is_a_checkpoint(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2])
        held = await client.lease("orders", "default", "me", 2)
        assert [message.checkpoint for message in held] == [None, None]
        await client.set_progress(held[0], checkpoint="page 7")
        await client.retry(held, after=0)
        again, without = await client.lease("orders", "default", "me", 2)
        assert (again.has_checkpoint, without.has_checkpoint) == (True, False)
        assert without.checkpoint is None
        with pytest.raises(InvalidArgument, match=r"client\.show_checkpoint"):
            _ = again.checkpoint
        assert await client.show_checkpoint(again.queue, again.id, again.subscription) == "page 7"


async def test_it_joins_a_transaction(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        (message,) = await client.lease("orders", "default", "me")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.set_progress(message, percent=1, connection=connection)
                _ = 1 / 0
        assert await client.list_progress("orders") == []


async def test_what_cannot_be_reported(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2])
        message, other = await client.lease("orders", "default", "me", 2)
        with pytest.raises(InvalidArgument, match="nothing to say"):
            await client.set_progress(message)
        with pytest.raises(InvalidArgument, match=r"0 to 100, not 100\.1"):
            await client.set_progress(message, percent=100.1)
        with pytest.raises(MessageTooLarge, match="1,048,576 bytes"):
            await client.set_progress(message, checkpoint="x" * 50_000_000)
        hold = ("orders", "default", message.lease_id, message.token)
        with pytest.raises(MessageNotFound, match="does not belong"):
            await client.set_progress(*hold, id=999, percent=1)
        with pytest.raises(TypeError, match="id"):
            await client.set_progress(*hold, percent=1)  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="no worker runs"):
            message.set_progress_sync(percent=1)
        await client.ack(message)
        with pytest.raises(InvalidArgument, match="was answered"):
            await client.set_progress(message, percent=1)
        await client.extend(other, lease_time=0)
        await client.reap("orders")
        with pytest.raises(LeaseLost):
            await client.set_progress(other, percent=1)
        assert await client.list_progress("orders") == []
