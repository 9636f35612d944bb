"""Capture: what the client passes on."""

from __future__ import annotations

import psycopg
import pytest

from trunq import AsyncClient
from trunq.errors import ChangeDenied, InvalidArgument, QueueNotFound


async def test_a_table_is_captured_listed_and_let_go(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("changes")
        async with client.transaction() as connection:
            await connection.execute(
                "create table orders (id integer primary key, status text, seen integer)"
            )
            assert await client.capture(
                "orders",
                "changes",
                ignore=["seen"],
                where={"in": {"status": ["paid"]}},
                kind="order_{op}",
                key=["status", "id"],
                deny=["truncate"],
                columns=("id", "status"),
                connection=connection,
            )
            await connection.execute("insert into orders values (1, 'paid'), (2, 'new')")
        (message,) = await client.lease("changes", "default", "w", max_messages=9)
        assert (message.kind, message.key) == ("order_insert", "paid:1")
        assert message.payload["after"] == {"id": 1, "status": "paid"}
        (listed,) = await client.list_captures("changes")
        assert (listed.table_name, listed.key, listed.deny) == (
            "public.orders",
            ["status", "id"],
            ["truncate"],
        )
        assert (listed.condition, listed.warning) == ({"in": {"status": ["paid"]}}, None)
        with pytest.raises(ChangeDenied, match="may not be changed by TRUNCATE"):
            async with client.transaction() as connection:
                await connection.execute("truncate orders")
        assert await client.capture("orders", "changes", key=[]) is False
        assert (await client.list_captures())[0].key is None
        assert await client.uncapture("orders") is True
        assert await client.uncapture("orders") is False
        assert await client.list_captures() == []


async def test_what_cannot_be_captured_is_said(database: str) -> None:
    async with AsyncClient(database) as client:
        with pytest.raises(QueueNotFound):
            await client.capture("orders", "changes")
        await client.create_queue("changes")
        with pytest.raises(InvalidArgument, match="there is no table"):
            await client.capture("orders", "changes")
        with pytest.raises(InvalidArgument, match="key is a list of names, not str"):
            await client.capture("orders", "changes", key="id")
        async with client.transaction() as connection:
            await connection.execute("create view seen as select 1 as id")
        with pytest.raises(InvalidArgument, match="is a view"):
            await client.capture("seen", "changes")


async def test_a_name_without_a_schema_is_that_of_the_connection(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("changes")
        async with client.transaction() as connection:
            await connection.execute("create schema shop; create table shop.orders (id integer)")
            await connection.execute("set local search_path = shop")
            assert await client.capture("orders", "changes", connection=connection)
        (listed,) = await client.list_captures()
        assert listed.table_name == "shop.orders"
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await connection.execute("insert into shop.orders values (1)")
        (message,) = await client.lease("changes", "default", "w")
        assert (message.kind, message.key) == ("shop.orders.insert", None)
