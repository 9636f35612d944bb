"""History: what became of messages."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import MessageState
from trunq.wire.scalar import Interval, interval
from trunq.word import State


class AsyncHistory(AsyncAccess):
    """History."""

    async def show_message(
        self, queue: str, id: int, *, connection: AsyncGiven | None = None
    ) -> list[MessageState]:
        """One message and all that became of it, a row a shared subscription; if none has it, a row a stream.

        Raises MessageNotFound when there is none.
        """
        return await self._records(connection, MessageState, "show_message", queue=queue, id=id)

    async def list_messages(
        self,
        queue: str,
        subscription: str | None = None,
        state: State | None = None,
        limit: int | None = None,
        before: int | None = None,
        brief: bool | None = None,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        older_than: Interval | None = None,
        newer_than: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[MessageState]:
        """Messages as one subscription (`default`) sees them, newest first, at most `limit` (100,000).

        The next page is `before` the smallest `id`. `brief` leaves out (None) what is slow to read:
        payload, headers, attempts and result. Only those of a `kind` and a `key`, whose last error contains
        `error` in any case, and that were published longer ago than `older_than` or no longer ago than
        `newer_than`; such a list, and one of the state replaced or purged, looks at 100,000 messages at most
        and, when it ends there, a warning of Postgres tells where to go on.
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
            kind=kind,
            key=key,
            error=error,
            older_than=interval("older_than", older_than),
            newer_than=interval("newer_than", newer_than),
        )
