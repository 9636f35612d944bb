"""Rotation: old segments are emptied."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven


class AsyncRotation(AsyncAccess):
    """Rotation."""

    async def rotate(self, queue: str, *, connection: AsyncGiven | None = None) -> int | None:
        """Empty one old segment in which nothing is needed, or move a cursor out of its way; returns 1 then.

        Call it again until it returns 0: there is nothing to do. None: somebody was in the way just now. It
        needs READ COMMITTED, and a transaction of its own.
        """
        rotated: int | None = await self._value(connection, "rotate", queue=queue)
        return rotated

    async def summarize(self, queue: str, *, connection: AsyncGiven | None = None) -> int:
        """Bring the indexes that find a message by its id up to date; returns how many ranges were new."""
        summarized: int = await self._value(connection, "summarize", queue=queue)
        return summarized
