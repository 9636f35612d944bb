"""Election of the leader, and its duties."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Duty, DutyDone
from trunq.wire.scalar import Interval, interval


class AsyncLeading(AsyncAccess):
    """Election of the leader, and its duties."""

    async def elect(
        self, name: str, lease_time: Interval | None = None, *, connection: AsyncGiven | None = None
    ) -> int | None:
        """Lead for `lease_time` (15 s), or go on leading; returns the term, or None when another leads."""
        term: int | None = await self._value(
            connection, "elect", name=name, lease_time=interval("lease_time", lease_time)
        )
        return term

    async def resign(self, name: str, term: int, *, connection: AsyncGiven | None = None) -> bool:
        """Stop leading at once; False when we did not lead in that term."""
        resigned: bool = await self._value(connection, "resign", name=name, term=term)
        return resigned

    async def list_duties(self, *, connection: AsyncGiven | None = None) -> list[Duty]:
        """What the leader does, and how often."""
        return await self._records(connection, Duty, "list_duties")

    async def perform_duty(
        self, duty: str, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> DutyDone:
        """Do one duty once; one that fails changes nothing, and the row says why."""
        (done,) = await self._records(connection, DutyDone, "perform_duty", duty=duty, queue=queue)
        return done

    async def perform_duties(self, *, connection: AsyncGiven | None = None) -> list[DutyDone]:
        """Do every duty of every queue once, in one transaction."""
        return await self._records(connection, DutyDone, "perform_duties")
