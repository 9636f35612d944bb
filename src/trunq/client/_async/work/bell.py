"""The bell: how a sleeping worker is woken."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from trunq.client._async.passing import AsyncPassing
from trunq.word import Bell


class AsyncBells(AsyncPassing):
    """The bell."""

    async def take_bell(self, queue: str, *, connection: AsyncConnection[Any]) -> Bell:
        """Ask to be woken, before sleeping on a connection that listens on `queue_channel`.

        held: look once more, then sleep; publisher: an open publisher is in the way, look again soon;
        sleeper: another holds it, sleep. The bell belongs to the session of `connection`.
        """
        answer: Bell = await self._value(connection, "take_bell", queue=queue)
        return answer

    async def give_bell(self, queue: str, *, connection: AsyncConnection[Any]) -> bool:
        """Give the bell back on waking up, and let the next sleeper know; False when we did not hold it."""
        given: bool = await self._value(connection, "give_bell", queue=queue)
        return given
