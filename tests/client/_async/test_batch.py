"""Batches through the client."""

from __future__ import annotations

from datetime import timedelta

import pytest

from trunq import (
    AsyncClient,
    LeaseLost,
)
from trunq.record import Batch


async def test_a_batch_is_read_until_it_is_finished(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        assert await client.next_batch("orders", "stream", "w") is None
        ids = await client.publish_many("orders", [1, 2], headers={"h": 1}, bodies=[b"a", b"b"])
        tick_id = await client.tick("orders", force=True)
        batch = await client.next_batch("orders", "stream", "w", lease_time=60)
        assert batch is not None
        assert batch.to_tick_id == tick_id
        assert await client.next_batch("orders", "stream", "other") is None
        messages = await client.read_batch("orders", "stream", batch.batch_id)
        assert messages == await client.read_batch("orders", "stream", batch.batch_id)
        assert [(m.id, m.payload, m.headers, m.body) for m in messages] == [
            (ids[0], 1, {"h": 1}, b"a"),
            (ids[1], 2, {"h": 1}, b"b"),
        ]
        assert abs(await client.clock() - messages[0].created_at) < timedelta(minutes=1)
        assert await client.finish_batch("orders", "stream", batch.batch_id, batch.token)
        assert not await client.finish_batch("orders", "stream", batch.batch_id, batch.token)
        assert await client.position("orders", "stream") == tick_id
        assert await client.next_batch("orders", "stream", "w") is None


async def test_a_batch_is_read_and_finished_without_naming_it(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        await client.publish_many("orders", [1, 2])
        tick_id = await client.tick("orders", force=True)
        batch = await client.next_batch("orders", "stream", "w")
        assert batch is not None
        assert (batch.queue, batch.subscription) == ("orders", "stream")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.finish(batch, connection=connection)
                raise ZeroDivisionError
        assert [message.payload for message in await client.read(batch)] == [1, 2]
        assert await client.finish(batch)
        assert not await client.finish(batch)
        assert await client.position("orders", "stream") == tick_id


async def test_of_two_readers_of_one_name_one_has_its_effects(database: str) -> None:
    """One was paused, and its successor started meanwhile: it is refused, before and after that one ends."""
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        async with client.transaction() as connection:
            await connection.execute("create table effect (reader text, id bigint)")

        async def work(reader: str, batch: Batch) -> bool:
            async with client.transaction() as connection:
                for message in await client.read(batch, connection=connection):
                    await connection.execute("insert into effect values (%s, %s)", (reader, message.id))
                return await client.finish(batch, connection=connection)

        await client.publish_many("orders", [1, 2, 3, 4, 5])
        await client.tick("orders", force=True)
        paused = await client.next_batch("orders", "stream", "w")
        successor = await client.next_batch("orders", "stream", "w")
        assert paused is not None
        assert successor is not None
        assert paused.batch_id == successor.batch_id
        with pytest.raises(LeaseLost):
            await work("paused", paused)
        assert await work("successor", successor)
        with pytest.raises(LeaseLost):
            await work("paused", paused)
        # It lost its connection, say, and cannot know that it succeeded.
        assert not await client.finish(successor)
        async with client.transaction() as connection:
            rows = await connection.execute("select reader, count(*) from effect group by 1")
            assert await rows.fetchall() == [("successor", 5)]
