"""Movers: streams that are moved into other queues, also of another database."""

from __future__ import annotations

from trunq._async.access import AsyncAccess


class AsyncMovers(AsyncAccess):
    """Movers, step by step; `trunq.Mover` takes these steps."""

    async def _mover_stops(self, queue: str, subscription: str) -> int | None:
        """How often it was asked to stop; None: its subscription is gone."""
        stops: int | None = await self._value(None, "_mover_stops", queue=queue, subscription=subscription)
        return stops

    async def _database_id(self) -> str:
        """What tells this database from any other."""
        told: str = await self._value(None, "_database")
        return told
