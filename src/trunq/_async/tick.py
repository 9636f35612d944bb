"""Ticks: stored snapshots, between which batches lie."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import (
    Tick,
)


class AsyncTicks(AsyncAccess):
    """Ticks."""

    async def tick(
        self, queue: str, *, force: bool = False, connection: AsyncGiven | None = None
    ) -> int | None:
        """Cut a tick when one is due, or `force`d; returns its id, or None."""
        tick_id: int | None = await self._value(connection, "tick", queue=queue, force=force)
        return tick_id

    async def list_ticks(
        self,
        queue: str,
        from_: int | None = None,
        to: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Tick]:
        """Ticks in order, from `from_` to `to`, both included."""
        return await self._records(connection, Tick, "list_ticks", queue=queue, from_=from_, to=to)
