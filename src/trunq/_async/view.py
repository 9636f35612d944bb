"""Seeing what there is: messages with their history, queues with their numbers, the clock all goes by."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.record import MessageState, Status

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead"]


class AsyncViews(AsyncAccess):
    """Seeing."""

    async def show_message(
        self, queue: str, id: int, *, connection: AsyncConnection[Any] | None = None
    ) -> list[MessageState]:
        """One message and all that became of it, a row a shared subscription; [] when there is none."""
        return await self._records(connection, MessageState, "show_message", queue=queue, id=id)

    async def list_messages(
        self,
        queue: str,
        subscription: str | None = None,
        state: State | None = None,
        limit: int | None = None,
        before: int | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[MessageState]:
        """Messages as one subscription (`default`) sees them, newest first, at most `limit` (100).

        The next page is `before` the last `id`.
        """
        return await self._records(
            connection,
            MessageState,
            "list_messages",
            queue=queue,
            subscription=subscription,
            state=state,
            limit=limit,
            before=before,
        )

    async def status(
        self, queue: str | None = None, *, connection: AsyncConnection[Any] | None = None
    ) -> list[Status]:
        """The numbers of each subscription of a queue, or of all."""
        return await self._records(connection, Status, "status", queue=queue)

    async def clock(self, *, connection: AsyncConnection[Any] | None = None) -> datetime:
        """The time all of trunq goes by: the database's."""
        now: datetime = await self._value(connection, "clock")
        return now

    async def snapshot(self, *, connection: AsyncConnection[Any] | None = None) -> str:
        """Which transactions are finished now, as Postgres writes it: positions and ticks are made of it."""
        snapshot: str = await self._value(connection, "snapshot")
        return snapshot

    async def version(self, *, connection: AsyncConnection[Any] | None = None) -> int:
        """Number of the newest migration the database has had."""
        version: int = await self._value(connection, "version")
        return version
