"""Hearing notifications: one listener for every LISTEN of trunq.

Who only listens would not hear that nothing comes any more: so a listener asks the server for a sign of life
whenever it heard nothing for as long as silence may last, and a silent connection is a lost one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Self

from psycopg import AsyncConnection, Notify, sql

from trunq.connection.ear import AsyncEar
from trunq.connection.silence import Watching, lend, limit


class AsyncListener:
    """Hears on a connection, over which its owner may execute statements as well; `hear` is told each
    notification, whatever brought it along. It must bear anything: whoever is connected may notify.

    Whatever waits or executes raises psycopg.OperationalError when the connection is lost. `ear` is for who
    must be woken while there is no connection, too.
    """

    def __init__(
        self, connection: AsyncConnection[Any], hear: Callable[[Notify], None], ear: AsyncEar | None = None
    ) -> None:
        self.connection = connection
        self._hear = hear
        self._ear = ear or AsyncEar()
        self._owns_ear = ear is None
        self._is_heard = False
        self._alive_at = monotonic()
        connection.add_notify_handler(self._note)

    @property
    def is_busy(self) -> bool:
        """Whether a statement waits for its answer."""
        return self.connection.lock.locked()

    @property
    def alive_at(self) -> float:
        """When it last heard something, or had a sign of life that it asked for (of `monotonic`)."""
        return self._alive_at

    @property
    def is_pooled(self) -> bool:
        """Whether a connection pooler in transaction mode is in between, so that nothing is heard."""
        return isinstance(self.connection, Watching) and self.connection.is_pooled

    @classmethod
    async def on(
        cls, connection: AsyncConnection[Any], channel: str, hear: Callable[[Notify], None]
    ) -> Self | None:
        """A listener that has the connection for itself, and closes it; None behind a connection pooler in
        transaction mode, where nothing can be heard.
        """
        lend(connection, is_lent=False)
        listener = cls(connection, hear)
        try:
            if listener.is_pooled:
                await listener.close()
                return None
            await listener.listen(channel)
        except BaseException:
            await listener.close()
            raise
        return listener

    async def listen(self, channel: str) -> None:
        """Hear what is notified on a channel from now on."""
        await self.connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    async def unlisten(self, channel: str) -> None:
        """Hear of it no longer."""
        await self.connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(channel)))

    async def wait(self, seconds: float = inf) -> bool:
        """Wait until something is heard, or for `wake`, so many seconds at most; whether anything was heard.

        What came with the answer to a statement meanwhile counts.
        """
        ends = monotonic() + seconds
        await self._read()
        if not self._is_heard:
            if (due := self._alive_at + limit()) <= monotonic():
                await self.connection.execute("select 1")
                self._alive_at = monotonic()
            else:
                await self._ear.wait(self.connection, max(0.0, min(ends, due) - monotonic()))
                await self._read()
        is_heard, self._is_heard = self._is_heard, False
        return is_heard

    def wake(self) -> None:
        """End the wait, or the next one: after statements that others executed while somebody waits."""
        self._ear.wake()

    async def close(self) -> None:
        """Close the connection."""
        if self._owns_ear:
            self._ear.close()
        await self.connection.close()

    async def _read(self) -> None:
        """Take what has come, also what libpq has read behind the last answer."""
        pgconn = self.connection.pgconn
        async with self.connection.lock:
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                if pgconn.notify_handler is not None:
                    pgconn.notify_handler(notification)

    def _note(self, notification: Notify) -> None:
        self._is_heard = True
        self._alive_at = monotonic()
        self._hear(notification)
