"""What is left to do, for a worker that ends when nothing is: `until_empty`, `until_idle`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from psycopg import AsyncConnection

from trunq.connection._async.execute import execute, value
from trunq.wire.array import text_array
from trunq.wire.call import Call
from trunq.worker.answer.lease import Source, Statistics
from trunq.worker.handler import Registry

log = logging.getLogger("trunq.worker")

_LEFT: Final = ("subscription", "ready", "leased", "delayed", "parked")


class Remaining:
    """Counts what this worker has to wait for: of delayed messages only when it serves `until_idle`."""

    def __init__(
        self,
        sources: Sequence[Source],
        registry: Registry,
        statistics: Statistics,
        asks: str | None,
        *,
        until_idle: bool,
    ) -> None:
        self._sources = sources
        self._registry = registry
        self._statistics = statistics
        self._asks = asks
        self._until_idle = until_idle
        self._said: set[str] = set()
        """Queues of which the log has a line that only what is delayed is left."""

    async def count(self, connection: AsyncConnection[Any]) -> int:
        """How many messages are left."""
        total = self._statistics.unhandled = 0
        async with connection.transaction():
            # One snapshot: what becomes ready between two counts would be seen in neither place.
            await connection.execute("set transaction isolation level repeatable read, read only")
            for source in self._sources:
                rows = await execute(connection, Call("status", {"queue": source.queue}, _LEFT))
                for name, ready, leased, delayed, parked in rows:
                    if name == source.subscription:
                        now = ready + leased
                        if now > 0 and self._asks is not None:
                            asked = Call("_left_asked", {**source.names, "asks": self._asks})
                            now = await value(connection, asked)
                        total += await self._left(connection, source, now, delayed, parked)
        return total

    async def _left(
        self, connection: AsyncConnection[Any], source: Source, now: int, delayed: int, parked: int
    ) -> int:
        if now > 0 or delayed == 0:
            return now
        is_any = self._registry.default is not None
        kinds = text_array("kinds", self._registry.kinds)
        arguments = {**source.names, "kinds": kinds}
        awaited = {**source.names, "kinds": None if is_any else kinds, "asks": self._asks}
        if self._until_idle and await value(connection, Call("_has_delayed", awaited)):
            if source.queue not in self._said:
                self._said.add(source.queue)
                other = 0 if is_any else await value(connection, Call("_count_unhandled", arguments))
                due = max(delayed - parked - other, 1)  # above a thousand the numbers are estimates
                log.info("waits until what is delayed is due: %s of %s", f"{due:,}", source.queue)
            return delayed
        if not is_any:
            self._statistics.unhandled += await value(connection, Call("_count_unhandled", arguments))
        return 0
