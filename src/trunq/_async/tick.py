"""Ticks: stored snapshots, between which batches lie."""

from __future__ import annotations

from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Tick
from trunq.wire.scalar import moment


class AsyncTicks(AsyncAccess):
    """Ticks."""

    async def tick(
        self, queue: str, *, force: bool = False, connection: AsyncGiven | None = None
    ) -> int | None:
        """Cut a tick when one is due, or `force`d; returns its id, or None."""
        tick_id: int | None = await self._value(connection, "tick", queue=queue, force=force)
        return tick_id

    async def cut_tick(
        self,
        queue: str,
        tick_id: int | None = None,
        created_at: datetime | None = None,
        last_message_id: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Cut a tick of a queue whose ticks are external, with the id, time and place among message ids that
        another system says; returns its id.
        """
        cut: int = await self._value(
            connection,
            "cut_tick",
            queue=queue,
            tick_id=tick_id,
            created_at=moment("created_at", created_at),
            last_message_id=last_message_id,
        )
        return cut

    async def pause_ticks(self, queue: str, *, connection: AsyncGiven | None = None) -> bool:
        """Cut no ticks of a queue: exclusive subscriptions have nothing to read behind the newest one.

        Returns False when they were paused.
        """
        paused: bool = await self._value(connection, "pause_ticks", queue=queue)
        return paused

    async def resume_ticks(self, queue: str, *, connection: AsyncGiven | None = None) -> bool:
        """Cut ticks again, and wake readers; False when they were not paused."""
        resumed: bool = await self._value(connection, "resume_ticks", queue=queue)
        return resumed

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
