"""Takers: who takes the history of a queue elsewhere."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Taker


class AsyncTakers(AsyncAccess):
    """Takers."""

    async def create_taker(self, queue: str, taker: str, *, connection: AsyncGiven | None = None) -> bool:
        """Keep the attempts of a queue until a pipeline of that name, with the source `history`, has them.

        The pipeline does so by itself when it first runs. True: there was none of that name.
        """
        made: bool = await self._value(connection, "create_taker", queue=queue, taker=taker)
        return made

    async def drop_taker(self, queue: str, taker: str, *, connection: AsyncGiven | None = None) -> None:
        """Keep nothing for a taker any more: rotation empties what it has not taken."""
        await self._value(connection, "drop_taker", queue=queue, taker=taker)

    async def list_takers(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Taker]:
        """Who takes the history of queues elsewhere, and how far behind they are."""
        return await self._records(connection, Taker, "list_takers", queue=queue)
