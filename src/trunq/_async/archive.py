"""The archive: every attempt of a queue that has one."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Archive
from trunq.wire.scalar import Interval, interval


class AsyncArchives(AsyncAccess):
    """Archives."""

    async def create_archive(
        self,
        queue: str,
        archive_for: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Keep every attempt of a queue's shared subscriptions in the table `trunq_archive.<queue>`.

        It is yours to read: one row an attempt that is over, with its message, outcome, error, result, worker
        and times. It begins with what the queue still holds. `archive_for` 0: for ever, like None for a queue
        that has no archive yet; what is older goes by whole months. True: the queue had none.
        """
        made: bool = await self._value(
            connection, "create_archive", queue=queue, archive_for=interval("archive_for", archive_for)
        )
        return made

    async def drop_archive(self, queue: str, *, connection: AsyncGiven | None = None) -> None:
        """Drop the archive of a queue with all its rows, also when the queue itself is gone."""
        await self._value(connection, "drop_archive", queue=queue)

    async def list_archives(self, *, connection: AsyncGiven | None = None) -> list[Archive]:
        """The archives there are, those that dropped queues left included."""
        return await self._records(connection, Archive, "list_archives")

    async def archive(self, queue: str, *, connection: AsyncGiven | None = None) -> int | None:
        """Write attempts that are over into the archive, some thousands at most; returns how many.

        A leader does so every 30 seconds. None: another is doing it. It needs READ COMMITTED.
        """
        archived: int | None = await self._value(connection, "archive", queue=queue)
        return archived
