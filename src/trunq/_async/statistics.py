"""Statistics: what each minute brought."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Statistic
from trunq.wire.scalar import Interval, interval


class AsyncStatistics(AsyncAccess):
    """Statistics."""

    async def statistics(
        self,
        queue: str | None = None,
        subscription: str | None = None,
        kind: str | None = None,
        last: Interval | None = None,
        per: Interval | None = None,
        by_kind: bool | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Statistic]:
        """What the `last` hour, or another time, brought: how many messages, how long they ran and waited.

        A row for each queue, subscription, kind and outcome; with `per`, for each such interval (a minute or
        more) in it; with `by_kind` False, kinds together. The newest minute comes 10 seconds after its end.
        """
        return await self._records(
            connection,
            Statistic,
            "statistics",
            queue=queue,
            subscription=subscription,
            kind=kind,
            last=interval("last", last),
            per=interval("per", per),
            by_kind=by_kind,
        )

    async def roll_up(self, queue: str, *, connection: AsyncGiven | None = None) -> int | None:
        """Compute the statistics of the minutes that are over, at most 60; returns how many.

        A leader does so every 10 seconds. None: another is doing it.
        """
        rolled_up: int | None = await self._value(connection, "roll_up", queue=queue)
        return rolled_up
