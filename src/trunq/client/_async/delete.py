"""Erasing messages for good."""

from __future__ import annotations

from collections.abc import Iterable

from trunq.client._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.wire.array import bigint_array


class AsyncDeleting(AsyncAccess):
    """Deleting."""

    async def delete(
        self, queue: str, ids: Iterable[int] | int, *, connection: AsyncGiven | None = None
    ) -> int:
        """Erase what a message, or up to 10,000, hold, for good: payload, body, headers, errors, results.

        Wherever they are: log, delayed, dead, archive. What is not over is cancelled, and never handed out
        again. A worker that holds one keeps what it has: delete it again when it is over (`list_deletions`
        says `running`). Kind, key and unique key stay. Returns of how many something was there. Raises
        QueueInUse while an open transaction has leased or answered messages of the queue.
        """
        ids = [ids] if isinstance(ids, int) else ids
        found: int = await self._value(connection, "delete", queue=queue, ids=bigint_array(ids))
        return found
