"""Members of a group in loops: each message once, whoever reads it, and one member a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from trunq import AsyncClient, Consumer, InvalidArgument, MemberBusy
from waiting import async_wait_until, wait_until


@pytest.fixture
async def client(database: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(database) as client:
        await client.create_queue("sales", default_subscription=False)
        await client.create_group("sales", "crew", 4)
        yield client


async def test_members_share_the_keys_and_leave(client: AsyncClient) -> None:
    seen: list[tuple[str, int]] = []

    async def read(member: str) -> None:
        async for batch in client.stream("sales", "crew", member=member, poll=0.2):
            seen.extend([(message.key or "", message.payload) async for message in batch])
            await batch.finish()
            if len(seen) >= 60:
                return

    readers = [asyncio.create_task(read(member)) for member in ("ada", "bob")]
    await async_wait_until(lambda: joined(client, 2))
    with pytest.raises(MemberBusy, match='has a member "ada"'):
        async for _ in client.stream("sales", "crew", member="ada"):
            pass
    for n in range(20):
        await client.publish_many("sales", [n] * 3, keys=["a", "b", "c"])
    await async_wait_until(lambda: has(seen, 60))
    # Those who wait for more are told to look by what is published.
    await client.publish_many("sales", [20] * 4, keys=["a", "b", "c", "d"])
    await asyncio.gather(*readers)
    for key in "abc":
        assert [n for each, n in seen if each == key][:20] == list(range(20))
    await async_wait_until(lambda: joined(client, 0))


async def joined(client: AsyncClient, count: int) -> bool:
    return len(await client.list_members("sales", "crew")) == count


async def has(seen: list[Any], count: int) -> bool:
    return len(seen) >= count


async def test_a_reader_has_one_name(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument, match="or by a member of a group"):
        client.stream("sales", "crew", "ada", member="ada")


async def test_a_consumer_reads_as_a_member(client: AsyncClient, database: str) -> None:
    seen: list[int] = []

    async def handle(batch: Any, connection: Any) -> None:
        seen.extend([message.id async for message in batch])
        if len(seen) == 3:
            consumer.stop()

    consumer = Consumer("sales", "crew", handle, database=database, member="eve", poll=0.2)
    consumer.start()
    ids = await client.publish_many("sales", [1, 2, 3], keys=["a", "b", "c"])
    await asyncio.to_thread(wait_until, lambda: len(seen) == 3)
    assert await asyncio.to_thread(consumer.wait, 60)
    assert sorted(seen) == sorted(ids)
    assert await client.list_members("sales", "crew") == []
