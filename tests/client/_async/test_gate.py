"""Rules by which a queue takes messages, and what it announces, through the client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import psycopg
import pytest

from trunq import (
    AsyncClient,
    InvalidArgument,
    QueueClosed,
    QueueFull,
    QueueNotFound,
    TransactionTooLarge,
)


class Kind(Enum):
    PLACED = "placed"
    PAID = 2


LISTENERS = """
    select pg_terminate_backend(pid, 5000) from pg_stat_activity
    where datname = current_database() and query like 'listen%'"""


@contextmanager
def publishing(database: str, queue: str) -> Iterator[psycopg.Connection[Any]]:
    """Publish message after message meanwhile; gives another connection."""
    is_over = threading.Event()

    def publish() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not is_over.wait(0.01):
                connection.execute(f"insert into trunq_log.{queue} (kind) values ('a'), ('b')".encode())

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        with psycopg.connect(database, autocommit=True) as connection:
            yield connection
    finally:
        is_over.set()
        thread.join()


async def test_each_rule_of_a_queue_has_an_error_of_its_own(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", kinds=["placed"])
        with pytest.raises(InvalidArgument, match='takes no message of kind "paid"'):
            await client.publish("orders", 1, kind="paid")
        await client.set_publishing("orders", kinds=[], max_waiting=1, max_per_transaction=2)
        with pytest.raises(TransactionTooLarge):
            await client.publish_many("orders", [1, 2, 3])
        await client.publish("orders", 1, kind="paid")
        async with AsyncClient(database) as other:
            with pytest.raises(QueueFull):
                await other.publish("orders", 1)
        await client.close_queue("orders")
        with pytest.raises(QueueClosed):
            await client.publish("orders", 1)
        await client.open_queue("orders")
        await client.set_publishing("orders", max_waiting=0, max_per_transaction=0)
        with pytest.raises(TransactionTooLarge, match="takes nothing"):
            await client.publish("orders", 1)
        await client.set_publishing("orders", max_per_transaction=-1)
        assert [row.max_per_transaction for row in await client.list_queues()] == [None]
        assert len(await client.publish_many("orders", [1, 2, 3])) == 3


async def test_the_kinds_of_a_queue_are_given_like_the_kind_of_a_message(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", kinds=Kind)
        await client.publish("orders", 1, kind=Kind.PLACED)
        with pytest.raises(InvalidArgument, match="takes no message of kind"):
            await client.publish("orders", 1, kind="p")
        for one in ("placed", Kind.PLACED, 3):
            with pytest.raises(InvalidArgument, match="kinds is a list of kinds, not"):
                await client.set_publishing("orders", kinds=one)  # type: ignore[arg-type]


async def test_a_listener_hears_the_ids_of_each_statement_and_comes_back_when_cut(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.set_publishing("orders", announce=True)
        channel = await client.announcement_channel("orders")
        with publishing(database, "orders") as connection:
            cuts: list[bool] = []
            async for announced in client.listen("orders"):
                rows = connection.execute(
                    "select id from trunq_log.orders where id between %s and %s order by id", announced
                ).fetchall()
                assert rows == [(announced.first,), (announced.last,)]
                if len(cuts) == 2:
                    break
                # What is no announcement is passed over.
                connection.execute(
                    "select pg_notify(%s, said) from unnest(array['', '7', 'a-b']) said", (channel,)
                )
                cuts += [row[0] for row in connection.execute(LISTENERS)]


async def test_there_is_nothing_to_hear_of_a_queue_that_announces_nothing(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument, match="does not announce its messages"):
            await anext(aiter(client.listen("orders")))
        with pytest.raises(QueueNotFound):
            await anext(aiter(client.listen("other")))
