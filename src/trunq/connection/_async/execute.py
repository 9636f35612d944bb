"""Executing calls on a connection, whoever's it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, AsyncPipeline
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from trunq.connection.probe import looks_pooled
from trunq.errors import InvalidArgument
from trunq.wire.array import adapt_arrays
from trunq.wire.call import Call
from trunq.wire.scalar import adapt_raw


async def send(connection: AsyncConnection[Any], call: Call) -> AsyncCursor[tuple[Any, ...]]:
    """Execute a call; the cursor has its rows. In a pipeline they are still to come."""
    # A cursor of this class whatever the connection makes by default: it may be somebody else's.
    cursor = AsyncCursor(connection, row_factory=tuple_row)
    is_binary = call.is_raw
    if call.is_raw:
        adapt_raw(cursor)
    elif call.has_arrays:
        check_encoding(connection)
        adapt_arrays(cursor)
        is_binary = True
    # Not in a pipeline: what follows a failure there is skipped, of which psycopg's list knows nothing.
    prepare = call.prepare if connection.pgconn.pipeline_status == PipelineStatus.OFF else None
    if connection.prepare_threshold is not None and looks_pooled(connection):
        prepare = False
    return await cursor.execute(call.statement, call.values, prepare=prepare, binary=is_binary)


async def execute(connection: AsyncConnection[Any], call: Call) -> list[tuple[Any, ...]]:
    """Execute a call and fetch its rows."""
    cursor = await send(connection, call)
    return await cursor.fetchall()


async def value(connection: AsyncConnection[Any], call: Call) -> Any:
    """Execute the call of a function that returns one value."""
    row = await (await send(connection, call)).fetchone()
    assert row is not None
    return row[0]


async def execute_all(connection: AsyncConnection[Any], calls: Iterable[Call]) -> list[Any]:
    """The value of each call, all in one transaction.

    The server works on each while the arguments of the next are made.
    """
    check_encoding(connection)
    begins = is_idle(connection)
    if not begins:
        # In the caller's transaction: what cannot be sent must be found before anything is.
        calls = list(calls)
    async with (
        connection.pipeline() if AsyncPipeline.is_supported() else nullcontext(),
        connection.transaction() if begins else nullcontext(),
    ):
        cursors = [await send(connection, call) for call in calls]
    return [row[0] for cursor in cursors for row in await cursor.fetchall()]


def is_idle(connection: AsyncConnection[Any]) -> bool:
    """Whether a transaction is ours to begin: the connection commits by itself, and none is open."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def check_encoding(connection: AsyncConnection[Any]) -> None:
    """Refuse a connection on which what is sent in UTF-8 would be taken for something else."""
    if connection.info.encoding != "utf-8":
        encoding = connection.info.parameter_status("client_encoding")
        raise InvalidArgument(
            f"the client_encoding of this connection is {encoding}; lists and COPY are sent in UTF8",
            "set client_encoding to UTF8 on it",
        )
