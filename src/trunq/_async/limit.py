"""Limits of a subscription."""

from __future__ import annotations

from datetime import timedelta

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven


class AsyncLimits(AsyncAccess):
    """Limits."""

    async def retry_after(
        self, queue: str, subscription: str, *, connection: AsyncGiven | None = None
    ) -> timedelta | None:
        """How long a subscription hands out nothing, paused or at the end of its rate (at most a day); None
        when neither is so.
        """
        wait: timedelta | None = await self._value(
            connection, "retry_after", queue=queue, subscription=subscription
        )
        return wait
