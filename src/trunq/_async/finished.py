"""Messages that wait for their time, and those that are given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.argument import Interval, bigint_array, interval
from trunq.record import DeadMessage


class AsyncFinished(AsyncAccess):
    """Delayed and dead messages."""

    async def promote(
        self, queue: str, max: int | None = None, *, connection: AsyncConnection[Any] | None = None
    ) -> int:
        """Put delayed messages that are due into the queue, at most `max` (1000); returns how many."""
        promoted: int = await self._value(connection, "promote", queue=queue, max=max)
        return promoted

    async def list_dead(
        self,
        queue: str,
        subscription: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[DeadMessage]:
        """Dead messages, newest first, at most `limit` (100); the next page is `before` the last dead_id."""
        return await self._records(
            connection,
            DeadMessage,
            "list_dead",
            queue=queue,
            subscription=subscription,
            limit=limit,
            before=before,
        )

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
