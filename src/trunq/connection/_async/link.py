"""One connection that comes back.

The database restarts, fails over, an administrator cuts connections: none of that is the business of what
runs on a connection. `Link.run` does a piece of work on it and, when the connection was lost under it or the
server asked for patience, does it again on a new one, with a growing pause between. So the work must bear
being done twice: an answer does (the second changes nothing), a lease does (the first is reaped).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from trunq.connection._async.opening import open_connection, open_lent
from trunq.connection._async.watched import AsyncWatched
from trunq.connection.address import complete
from trunq.connection.backoff import AsyncHurry, async_retrying, first_line, is_away
from trunq.connection.outage import Outage

T = TypeVar("T")

log = logging.getLogger("trunq.link")


class AsyncLink:
    """A connection in autocommit that is opened again whenever it is lost.

    Each new connection gets the session settings `settings`; with `lends`, it is for statements of others.
    Links of one process share an `outage`.
    """

    def __init__(
        self,
        dsn: str,
        application_name: str,
        settings: Mapping[str, str] | None = None,
        *,
        lends: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self._conninfo = complete(dsn, application_name)
        self._settings = dict(settings or {})
        self._open = open_lent if lends else open_connection
        self._outage = outage or Outage()
        self._opened_at = 0.0
        self._opening = asyncio.Lock()
        self._working = asyncio.Lock()
        self._hurried = AsyncHurry()
        self.connection: AsyncWatched | None = None
        self.pooled = False
        """Whether a connection pooler is in between."""

    async def open(self) -> AsyncWatched:
        """The live connection, made now if there is none. One attempt: raises psycopg.OperationalError."""
        async with self._opening:
            connection = self.connection
            if connection is not None and not connection.closed and connection.is_suspect:
                await connection.retire()
            if connection is None or connection.closed:
                connection = self.connection = await self._connect()
            return connection

    def hurry(self) -> None:
        """Wait for the database no more: from now on `run` tries once, and one that waits gives up."""
        self._hurried.set()

    async def run(
        self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], within: float | None = None
    ) -> T:
        """Do `work` on the connection until it was done without losing it, or for `within` seconds; other
        errors leave at once.
        """
        try:
            return await self._attempt(work)
        except psycopg.Error as error:
            # Only now: what retries costs more than a call that succeeds at once.
            return await self._again(work, error, within)

    async def _again(
        self,
        work: Callable[[AsyncConnection[Any]], Awaitable[T]],
        failed: psycopg.Error,
        within: float | None,
    ) -> T:
        """Go on after the first failure, as often as it takes."""
        hurried = self._hurried
        tries = async_retrying(within=within, is_over=hurried.is_set, say=self._say, sleep=hurried.pause)
        async for attempt in tries:
            with attempt:
                # The first is the one that failed; hurried while it waited, the latest failure stands.
                if attempt.retry_state.attempt_number == 1 or hurried.is_set():
                    raise failed
                try:
                    return await self._attempt(work)
                except psycopg.Error as error:
                    failed = error
                    raise
        raise AssertionError("tries end with a return or an error")

    async def _attempt(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        # One at a time: what others execute meanwhile would be in its transaction.
        async with self._working:
            connection = await self.open()
            try:
                done = await work(connection)
                if self._outage.is_on:
                    self.answered()
                return done
            except psycopg.Error as error:
                is_closed = connection.closed
                if is_closed or is_away(error):
                    await self._discard(connection)
                if is_closed and not is_away(error):
                    raise psycopg.OperationalError(f"the connection was lost: {first_line(error)}") from error
                raise

    def notice(self, error: BaseException) -> None:
        """Tell of an error after which a new connection is needed."""
        self._outage.notice(error, self._opened_at)

    def answered(self) -> None:
        """Tell that the database did what was asked."""
        self._outage.answered(self._opened_at)

    def _say(self, error: BaseException, _: int, pause: float) -> None:
        if is_away(error):
            self.notice(error)
        level = logging.DEBUG if is_away(error) else logging.WARNING
        log.log(level, "trying again in %.1f s: %s", pause, first_line(error))

    @property
    def is_busy(self) -> bool:
        """Whether `run` waits for the database."""
        return self._working.locked()

    def cut(self) -> None:
        """End what waits on the connection, at once: it is lost to that."""
        if (connection := self.connection) is not None and not connection.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the connection; the next `run` or `open` makes a new one."""
        await self._discard(self.connection)

    async def _discard(self, connection: AsyncConnection[Any] | None) -> None:
        # Another user of the link may have opened the next one already: that one stays.
        if connection is not None:
            if self.connection is connection:
                self.connection = None
            await connection.close()

    async def _connect(self) -> AsyncWatched:
        self._opened_at = monotonic()
        connection = await self._open(self._conninfo, self._settings)
        self.pooled = connection.is_pooled
        return connection
