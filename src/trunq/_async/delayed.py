"""Delayed messages: those that wait for their time."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven


class AsyncDelayed(AsyncAccess):
    """Delayed messages."""

    async def promote(
        self, queue: str, max: int | None = None, *, connection: AsyncGiven | None = None
    ) -> int:
        """Put delayed messages that are due into the queue, at most `max` (1000); returns how many."""
        promoted: int = await self._value(connection, "promote", queue=queue, max=max)
        return promoted
