"""What the leader does, and who leads."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.argument import Interval, interval
from trunq.record import DutyDone


class AsyncDuties(AsyncAccess):
    """Duties and election."""

    async def reap(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """End leases whose time is over: their messages go back or die as lease_expired. Returns how many."""
        reaped: int = await self._value(connection, "reap", queue=queue)
        return reaped

    async def rotate(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> int | None:
        """Empty one old segment in which nothing is needed, or move a cursor out of its way; returns 1 then.

        Call it again until it returns 0: there is nothing to do. None: somebody was in the way just now. It
        needs READ COMMITTED, and a transaction of its own.
        """
        rotated: int | None = await self._value(connection, "rotate", queue=queue)
        return rotated

    async def summarize(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """Bring the indexes that find a message by its id up to date; returns how many ranges were new."""
        summarized: int = await self._value(connection, "summarize", queue=queue)
        return summarized

    async def elect(
        self, name: str, lease_time: Interval | None = None, *, connection: AsyncConnection[Any] | None = None
    ) -> int | None:
        """Lead for `lease_time` (15 s), or go on leading; returns the term, or None when another leads."""
        term: int | None = await self._value(
            connection, "elect", name=name, lease_time=interval("lease_time", lease_time)
        )
        return term

    async def resign(self, name: str, term: int, *, connection: AsyncConnection[Any] | None = None) -> bool:
        """Stop leading at once; False when we did not lead in that term."""
        resigned: bool = await self._value(connection, "resign", name=name, term=term)
        return resigned

    async def perform_duties(self, *, connection: AsyncConnection[Any] | None = None) -> list[DutyDone]:
        """Do every duty of every queue once, as pg_cron would."""
        return await self._records(connection, DutyDone, "perform_duties")

    async def rebase(self, *, connection: AsyncConnection[Any] | None = None) -> int:
        """After a restore into another cluster, with all workers stopped: start every position afresh.

        What was not answered is published again; returns how many messages that were.
        """
        published: int = await self._value(connection, "rebase")
        return published
