"""Telling a queue later what it was not told when it was made."""

from __future__ import annotations

from datetime import timedelta

from trunq.client._async.passing import AsyncPassing
from trunq.connection.given import AsyncGiven
from trunq.word import Lanes, UniquePolicy


class AsyncConversions(AsyncPassing):
    """Conversions of queues."""

    async def convert_queue(
        self,
        queue: str,
        *,
        retention: timedelta | float | None = None,
        hold_at_most: timedelta | float | None = None,
        lanes: Lanes | None = None,
        unique: UniquePolicy | None = None,
        at_once: bool | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Give a queue what it was not made with: a longer `retention`, `hold_at_most`, `lanes`, `unique`.

        Messages, ids, leases, positions, schedules, captures, archives and grants stay; workers and
        publishers go on. What waits is handed out first, with lanes: in each lane. Before it, the index by
        lanes of a large log is built beside publishers (`list_preparations`), which takes as long as the log
        is large; not with `connection=`, with a pool of yours, or `at_once`, when publishers wait meanwhile.
        For the owner of trunq, or a member of that role.

        Returns False when the queue is so already. Raises InvalidArgument for what no queue can have, and for
        other lanes or another policy than it has; QueueInUse while an open transaction uses the queue.
        """
        if lanes is not None and connection is None and not at_once and self._conninfo is not None:
            await self._prepare(queue, lanes)
        arguments = {"retention": retention, "hold_at_most": hold_at_most, "lanes": lanes, "unique": unique}
        changed: bool = await self._value(
            connection, "convert_queue", queue=queue, **arguments, at_once=at_once
        )
        return changed

    async def _prepare(self, queue: str, lanes: Lanes) -> None:
        if not (preparations := await self.list_preparations(queue, lanes)):
            return
        # Postgres builds an index beside others in no transaction but its own.
        async with await self.connect() as own:
            for preparation in preparations:
                await own.execute(preparation.statement.encode(), prepare=False)
