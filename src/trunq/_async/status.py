"""Status: the numbers of each subscription."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Status, Warned


class AsyncStatuses(AsyncAccess):
    """Status."""

    async def status(self, queue: str | None = None, *, connection: AsyncGiven | None = None) -> list[Status]:
        """The numbers of each subscription of a queue, or of all."""
        return await self._records(connection, Status, "status", queue=queue)

    async def list_warnings(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Warned]:
        """What is wrong, of a queue or all: duties that fail, messages that nobody reads."""
        return await self._records(connection, Warned, "list_warnings", queue=queue)
