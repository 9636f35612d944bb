"""History: what became of messages."""

from __future__ import annotations

from typing import Any, Literal

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.record import (
    MessageState,
)

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead"]


class AsyncHistory(AsyncAccess):
    """History."""

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
        brief: bool | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[MessageState]:
        """Messages as one subscription (`default`) sees them, newest first, at most `limit` (100,000).

        The next page is `before` the smallest `id`. `brief` leaves out (None) what is slow to read:
        payload, headers, attempts and result.
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
            brief=brief,
        )
