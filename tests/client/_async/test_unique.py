"""Publishing with unique keys through the client."""

from __future__ import annotations

from uuid import UUID

import pytest

from trunq import AsyncClient, Duplicate, InvalidArgument, MessageTooLarge, QueueNotFound


async def test_what_became_of_a_message_is_a_value(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("keyed", unique="refuse")
        first = await client.publish_unique("keyed", {"n": 1}, "a")
        again = await client.publish_unique("keyed", {"n": 2}, "a")
        assert (first.is_new, again.is_new, again.id) == (True, False, first.id)
        with pytest.raises(Duplicate, match=str(first.id)):
            await client.publish_unique("keyed", {"n": 2}, "a", on_conflict="raise")
        (message,) = await client.lease("keyed", "default", "w", 5)
        assert message.payload == {"n": 1}
        await client.ack(message)
        assert (await client.publish_unique("keyed", {"n": 3}, "a", unique_for=60, delay=5)).is_new


async def test_more_than_one_part_of_many_goes_in_one_call(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("keyed", unique="refuse")
        numbers = list(range(1200))
        rows = await client.publish_many_unique("keyed", numbers, [n // 2 for n in numbers], kind="k")
        assert [row.is_new for row in rows] == [n % 2 == 0 for n in numbers]
        assert len(await client.lease("keyed", "default", "w", 2000)) == 600
        assert await client.publish_many_unique("keyed", []) == []
        assert (await client.publish_many_unique("keyed", ["x"], bodies=[b"1"]))[0].is_new


async def test_a_key_may_be_what_a_label_may_be(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("keyed", unique="refuse")
        first = await client.publish_unique("keyed", 1, UUID(int=7))
        assert await client.publish_unique("keyed", 1, str(UUID(int=7))) == (first.id, False)
        assert (await client.publish_many_unique("keyed", [1], [UUID(int=7)]))[0].id == first.id


async def test_in_a_transaction_that_is_rolled_back_nothing_is_held(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("keyed", unique="replace")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                assert (await client.publish_unique("keyed", 1, "a", connection=connection)).is_new
                raise ZeroDivisionError
        assert (await client.publish_unique("keyed", 1, "a", on_conflict="refuse")).is_new


async def test_what_cannot_be_is_said(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("plain")
        with pytest.raises(QueueNotFound, match='"plain" with unique keys'):
            await client.publish_unique("plain", 1, "a")
        with pytest.raises(InvalidArgument, match='"plain" has no unique keys'):
            await client.publish_many_unique("plain", [1], ["a"])
        await client.create_queue("keyed", unique="refuse")
        with pytest.raises(InvalidArgument, match="neither a payload nor a kind"):
            await client.publish_unique("keyed", unique_key="a")
        with pytest.raises(InvalidArgument, match="empty"):
            await client.publish_unique("keyed", 1, "")
        with pytest.raises(MessageTooLarge, match="1001 bytes"):
            await client.publish_unique("keyed", 1, "x" * 1001)
        with pytest.raises(InvalidArgument, match="not as many"):
            await client.publish_many_unique("keyed", [1, 2, 3], ["a", "b"])
        with pytest.raises(InvalidArgument, match="refuse or replace"):
            await client.create_queue("other", unique="sometimes")  # type: ignore[arg-type]


async def test_a_queue_that_is_unique_on_content_refuses_by_every_way(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("tasks", unique="refuse", unique_on="content")
        id = await client.publish("tasks", {"a": 1, "b": 2}, kind="welcome")
        with pytest.raises(Duplicate, match=f"message {id} .* same kind .welcome. and content"):
            await client.publish("tasks", {"b": 2, "a": 1}, kind="welcome")
        # By one INSERT, and by COPY: none of them is published.
        for count in (10, 1000):
            with pytest.raises(Duplicate):
                payloads = [*({"n": n} for n in range(count)), {"a": 1, "b": 2}]
                await client.publish_many("tasks", payloads, kind="welcome")
        assert not (await client.publish_unique("tasks", {"a": 1, "b": 2}, kind="welcome")).is_new
        assert [each.id for each in await client.lease("tasks", "default", "w", 10)] == [id]
