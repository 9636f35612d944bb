"""A connection that several tasks of a worker work on."""

from __future__ import annotations

import asyncio
from typing import Any, LiteralString

import psycopg

from serving import PATIENCE, Queue
from trunq.connection._async.link import AsyncLink


async def test_what_is_done_on_one_connection_at_the_same_time_stays_out_of_each_others_transactions(
    queue: Queue,
) -> None:
    link = AsyncLink(queue.dsn, "test")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def in_a_transaction(connection: psycopg.AsyncConnection[Any]) -> Any:
        async with connection.transaction():
            begun.set()
            await go_on.wait()
            await connection.execute("set transaction isolation level repeatable read, read only")
            return await _one(connection, "select pg_current_xact_id_if_assigned() is null")

    async def beside(connection: psycopg.AsyncConnection[Any]) -> Any:
        return await _one(connection, "select (trunq.create_queue('beside'))")

    first = asyncio.create_task(link.run(in_a_transaction))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    second = asyncio.create_task(link.run(beside))
    # It has begun, or waits for its turn.
    await asyncio.wait([second], timeout=0.2)
    go_on.set()
    assert await asyncio.gather(first, second) == [True, True]
    await link.close()


async def _one(connection: psycopg.AsyncConnection[Any], query: LiteralString) -> Any:
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return row[0]
