"""Columns of the user's own through the client."""

from __future__ import annotations

import pickle

import pytest

from trunq import AsyncClient, InvalidArgument
from trunq.record import Column


async def test_columns_are_published_and_come_with_the_message(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        assert await client.add_column("orders", "customer", "text")
        assert await client.add_column("orders", "total", "numeric(12,2)", "0")
        assert not await client.add_column("orders", "customer", "text")
        await client.subscribe("orders", "lake", mode="exclusive")
        await client.publish("orders", 1, columns={"customer": "acme", "total": 1.5})
        await client.publish("orders", 2, columns={"customer": "acme"}, awaited=True, max_age=60)
        await client.publish("orders", 3)
        messages = await client.lease("orders", "default", "w", 10)
        assert [message.columns for message in messages] == [
            {"customer": "acme", "total": 1.5},
            {"customer": "acme", "total": 0},
            {"customer": None, "total": 0},
        ]
        assert pickle.loads(pickle.dumps(messages[0])).columns == {"customer": "acme", "total": 1.5}  # noqa: S301
        assert messages[1].deadline is not None
        await client.tick("orders", force=True)
        batch = await client.next_batch("orders", "lake", "w", max_ticks=9)
        assert batch is not None
        assert [row.columns["total"] for row in await client.read(batch)] == [1.5, 0, 0]
        assert await client.list_columns("orders") == [
            Column("customer", "text", None),
            Column("total", "numeric(12,2)", "'0'::numeric"),
        ]
        await client.drop_column("orders", "customer")
        assert [column.name for column in await client.list_columns("orders")] == ["total"]


async def test_a_queue_without_has_none(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "lake", mode="exclusive")
        await client.publish("orders", 1)
        (message,) = await client.lease("orders", "default", "w")
        assert message.columns == {}
        await client.tick("orders", force=True)
        batch = await client.next_batch("orders", "lake", "w", max_ticks=9)
        assert batch is not None
        assert [row.columns for row in await client.read(batch)] == [{}]
        with pytest.raises(InvalidArgument, match='has no column "customer"'):
            await client.publish("orders", 1, columns={"customer": "acme"})


async def test_a_retry_keeps_them(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.add_column("orders", "customer", "text")
        await client.publish("orders", 1, columns={"customer": "acme"})
        (message,) = await client.lease("orders", "default", "w")
        await client.retry([message], after=0)
        await client.promote("orders")
        (again,) = await client.lease("orders", "default", "w")
        assert (again.attempt, again.columns) == (2, {"customer": "acme"})
