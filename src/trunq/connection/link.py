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
from psycopg.abc import AdaptContext
from tenacity import RetryCallState

from trunq.connection._async.session import open_connection
from trunq.connection.address import complete
from trunq.connection.backoff import async_retrying, error_of, first_line, is_away
from trunq.connection.outage import Outage

T = TypeVar("T")

log = logging.getLogger("trunq.link")


class Link:
    """A connection in autocommit that is opened again whenever it is lost.

    `settings` are session settings given to each new connection, `prepare` may adapt it further. Links of
    one process share an `outage`.
    """

    def __init__(
        self,
        dsn: str,
        application_name: str,
        settings: Mapping[str, str] | None = None,
        prepare: Callable[[AdaptContext], None] | None = None,
        outage: Outage | None = None,
    ) -> None:
        self._conninfo = complete(dsn, application_name)
        self._settings = dict(settings or {})
        self._prepare = prepare
        self._outage = outage or Outage()
        self._opened_at = 0.0
        self._opening = asyncio.Lock()
        self._working = asyncio.Lock()
        self._hurried = asyncio.Event()
        self.connection: AsyncConnection[Any] | None = None
        self.pooled = False
        """Whether a connection pooler is in between."""

    async def open(self) -> AsyncConnection[Any]:
        """The live connection, made now if there is none. One attempt: raises psycopg.OperationalError."""
        async with self._opening:
            if self.connection is None or self.connection.closed:
                self.connection = await self._connect()
            return self.connection

    def hurry(self) -> None:
        """Wait for the database no more: from now on `run` tries once, and one that waits gives up."""
        self._hurried.set()

    async def run(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Do `work` on the connection until it was done without losing it; other errors leave at once."""
        try:
            return await self._attempt(work)
        except psycopg.Error as error:
            # Only now: what retries costs more than a call that succeeds at once.
            return await self._again(work, error)

    async def _again(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]], failed: psycopg.Error) -> T:
        """Go on after the first failure, as often as it takes."""
        tries = async_retrying(is_over=self._hurried.is_set, sleep=self._pause, before_sleep=self._say)
        async for attempt in tries:
            with attempt:
                # The first is the one that failed; hurried while it waited, the latest failure stands.
                if attempt.retry_state.attempt_number == 1 or self._hurried.is_set():
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

    def _say(self, state: RetryCallState) -> None:
        error = error_of(state)
        pause = state.next_action.sleep if state.next_action is not None else 0.0
        if error is None:
            return
        if is_away(error):
            self.notice(error)
        level = logging.DEBUG if is_away(error) else logging.WARNING
        log.log(level, "trying again in %.1f s: %s", pause, first_line(error))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()

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

    async def _connect(self) -> AsyncConnection[Any]:
        self._opened_at = monotonic()
        connection = await open_connection(self._conninfo, self._settings)
        self.pooled = connection.is_pooled
        if self._prepare is not None:
            self._prepare(connection)
        return connection
