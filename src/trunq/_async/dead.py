"""Dead messages: those that are given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.record import (
    DeadMessage,
)
from trunq.wire.array import bigint_array
from trunq.wire.scalar import Interval, interval


class AsyncDead(AsyncAccess):
    """Dead messages."""

    async def list_dead(
        self,
        queue: str,
        subscription: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        brief: bool | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[DeadMessage]:
        """Dead messages, newest first, at most `limit` (100); the next page is `before` the last dead_id.

        `brief` leaves out what is slow to read: payload and headers (None), and all errors but the last.
        """
        return await self._records(
            connection,
            DeadMessage,
            "list_dead",
            queue=queue,
            subscription=subscription,
            limit=limit,
            before=before,
            brief=brief,
        )

    async def forget(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """Delete dead messages older than their subscription keeps them; returns how many."""
        forgotten: int = await self._value(connection, "forget", queue=queue)
        return forgotten

    async def requeue(
        self,
        queue: str,
        subscription: str | None = None,
        ids: Iterable[int] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Let dead messages (of one subscription, with these message ids, or all) run again from the first
        attempt.

        Returns how many.
        """
        requeued: int = await self._value(
            connection, "requeue", queue=queue, subscription=subscription, ids=bigint_array(ids)
        )
        return requeued

    async def purge(
        self,
        queue: str,
        subscription: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Interval | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Forget dead messages: of one subscription, with these message ids, dead for so long, or all.

        Returns how many.
        """
        purged: int = await self._value(
            connection,
            "purge",
            queue=queue,
            subscription=subscription,
            ids=bigint_array(ids),
            older_than=interval("older_than", older_than),
        )
        return purged
