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

_LEFT: Final = ("subscription", "ready", "leased", "delayed")


class Remaining:
    """Counts what this worker has to wait for: of delayed messages only when it serves `until_idle`."""

    def __init__(
        self, sources: Sequence[Source], registry: Registry, statistics: Statistics, *, until_idle: bool
    ) -> None:
        self._sources = sources
        self._registry = registry
        self._statistics = statistics
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
                for name, ready, leased, delayed in rows:
                    if name == source.subscription:
                        total += await self._left(connection, source, ready + leased, delayed)
        return total

    async def _left(self, connection: AsyncConnection[Any], source: Source, now: int, delayed: int) -> int:
        if now > 0 or delayed == 0:
            return now
        arguments = {**source.names, "kinds": text_array("kinds", self._registry.kinds)}
        is_any = self._registry.default is not None
        if self._until_idle and (is_any or await value(connection, Call("_has_delayed", arguments))):
            if source.queue not in self._said:
                self._said.add(source.queue)
                other = 0 if is_any else await value(connection, Call("_count_unhandled", arguments))
                log.info("waits until what is delayed is due: %s of %s", f"{delayed - other:,}", source.queue)
            return delayed
        if not is_any:
            self._statistics.unhandled += await value(connection, Call("_count_unhandled", arguments))
        return 0
