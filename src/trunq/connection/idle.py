"""Whether a connection is free for a statement: psycopg lets statements wait for each other, for ever where a
COPY is open that gets its rows from the statement behind it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from trunq.errors import InvalidArgument

_PATIENCE: Final = 1.0
"""Seconds for a COPY to end by itself."""


def _is_taken(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether something is being executed, and waited for."""
    return (
        connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        and connection.pgconn.pipeline_status == PipelineStatus.OFF
        and connection.lock.locked()
    )


def _refuse_copy(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    """A statement that runs keeps the connection busy; a COPY waits for its caller."""
    if _is_taken(connection) and not connection.pgconn.is_busy():
        raise InvalidArgument(
            "a COPY is open on the connection of this batch, so its messages cannot be read",
            "read them before: messages = list(batch); or copy by another connection",
        )


class AsyncIdle:
    """A connection that runs no statement."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    async def wait(self) -> None:
        """Wait for it. Raises InvalidArgument behind a COPY that does not end."""
        while _is_taken(self._connection):
            try:
                async with asyncio.timeout(_PATIENCE), self._connection.lock:
                    return
            except TimeoutError:
                _refuse_copy(self._connection)


class Idle:
    """The same for threads."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def wait(self) -> None:
        """Wait for it. Raises InvalidArgument behind a COPY that does not end."""
        while _is_taken(self._connection):
            if self._connection.lock.acquire(timeout=_PATIENCE):
                self._connection.lock.release()
                return
            _refuse_copy(self._connection)
