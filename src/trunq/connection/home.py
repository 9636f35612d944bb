"""Where a client's own pool lives: an async one in the event loop that opened it, a sync one anywhere in its
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import Any, Final

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq.errors import InvalidArgument

_closing: Final[set[asyncio.Task[None]]] = set()
"""The loop alone does not keep a task."""


class AsyncHome:
    """The event loop of an async client."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_elsewhere(self) -> bool:
        """Whether another event loop is running than that of the pool."""
        return self._loop is not asyncio.get_running_loop()

    def move(self) -> bool:
        """Settle in the running loop; True when the former one was closed, and its pool is of no more use.

        Raises InvalidArgument while the former loop is open: two loops cannot share connections.
        """
        loop, former = asyncio.get_running_loop(), self._loop
        if former is not None and former is not loop and not former.is_closed():
            raise InvalidArgument(
                "this client is in use in another event loop",
                "give each event loop, and each thread, an AsyncClient of its own; threads share a Client",
            )
        self._loop = loop
        return former is not None and former is not loop

    def leave(self, pool: AsyncConnectionPool[Any]) -> None:
        """Close a pool that nobody can wait for."""
        _finish(pool)
        loop = self._loop

        def close() -> None:
            assert loop is not None
            task = loop.create_task(pool.close())
            _closing.add(task)
            task.add_done_callback(_closing.discard)

        # The loop may be closed, or be closed meanwhile: then it has ended the pool's tasks.
        with contextlib.suppress(RuntimeError):
            if loop is not None:
                loop.call_soon_threadsafe(close)


class Home:
    """A sync client is at home in every thread."""

    __slots__ = ()

    def is_elsewhere(self) -> bool:
        """Never."""
        return False

    def move(self) -> bool:
        """Never needed."""
        return False

    def leave(self, pool: ConnectionPool[Any]) -> None:
        """Close a pool that nobody can wait for."""
        _finish(pool)
        # In a thread: whoever happens to collect the client may be in the pool's own code, with its lock.
        with contextlib.suppress(RuntimeError):
            if not sys.is_finalizing():
                threading.Thread(target=pool.close, name="trunq-close", daemon=True).start()


def _finish(pool: AsyncConnectionPool[Any] | ConnectionPool[Any]) -> None:
    """Close idle connections at once, as long as their pool is not at work on them."""
    for connection in list(pool._pool):
        connection.pgconn.finish()
