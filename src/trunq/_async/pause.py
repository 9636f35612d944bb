"""Pausing a subscription or a whole queue."""

from __future__ import annotations

from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.wire.scalar import moment


class AsyncPauses(AsyncAccess):
    """Pauses."""

    async def pause_subscription(
        self,
        queue: str,
        subscription: str,
        until: datetime | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Hand out no message of a subscription until a time, or (None) until it is resumed.

        What workers hold goes on, and publishers publish.
        """
        await self._value(
            connection,
            "pause_subscription",
            queue=queue,
            subscription=subscription,
            until=moment("until", until),
        )

    async def resume_subscription(
        self, queue: str, subscription: str, *, connection: AsyncGiven | None = None
    ) -> bool:
        """End the pause of a subscription and wake its workers; False when it was not paused."""
        resumed: bool = await self._value(
            connection, "resume_subscription", queue=queue, subscription=subscription
        )
        return resumed

    async def pause_queue(
        self, queue: str, until: datetime | None = None, *, connection: AsyncGiven | None = None
    ) -> None:
        """Hand out no message of a queue, to any subscription, until a time, or (None) until it is
        resumed.
        """
        await self._value(connection, "pause_queue", queue=queue, until=moment("until", until))

    async def resume_queue(self, queue: str, *, connection: AsyncGiven | None = None) -> bool:
        """End the pause of a queue and wake its workers; False when it was not paused.

        A subscription that is paused itself stays so.
        """
        resumed: bool = await self._value(connection, "resume_queue", queue=queue)
        return resumed
