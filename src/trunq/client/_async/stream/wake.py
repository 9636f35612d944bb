"""How a reader of a stream sleeps until there is something to read."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

import psycopg
from psycopg import Notify

from trunq.client._async.work.bell import AsyncBells
from trunq.client.reply import AsyncPatience
from trunq.connection._async.listener import AsyncListener
from trunq.connection.backoff import first_line

log = logging.getLogger("trunq.client")

SLICE: Final = 0.25
"""Seconds in which a sleeper notices that it is to stop."""
_FIRST_POLL: Final = 0.02
_LONGEST_POLL: Final = 0.5
"""Seconds between two looks where nothing can be heard, at first and later."""
_FIRST_PUBLISHER: Final = 0.005


class AsyncWake:
    """Takes the bell of a queue (see functions/work/bell.sql) on a connection of its own, which listens.

    Unlike a worker it goes by every message that is announced, whoever holds the bell: an exclusive
    subscription has one reader. Where nothing can be heard (a pool of yours, a pooler in transaction mode,
    a connection that is lost and not yet back) it sleeps for a while instead.
    """

    def __init__(self, client: AsyncBells, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._can_listen = client._conninfo is not None
        self._listener: AsyncListener | None = None
        self._holds_bell = False
        self._is_rung = False
        self._pause = _FIRST_POLL
        self._publisher_pause = _FIRST_PUBLISHER

    @property
    def is_listening(self) -> bool:
        """Whether anything can be heard."""
        return self._listener is not None

    async def open(self) -> None:
        """Listen, where that is possible; raises psycopg.OperationalError when the database is away."""
        channel = await self._client.queue_channel(self._queue)
        if not self._can_listen:
            return
        self._listener = await AsyncListener.on(await self._client.connect(), channel, self._hear)
        if self._listener is None:
            self._can_listen = False
            log.info("a connection pooler is in between: the stream of %s polls", self._queue)

    async def close(self) -> None:
        """Stop listening; the server frees the bell."""
        listener, self._listener, self._holds_bell = self._listener, None, False
        if listener is not None:
            await listener.close()

    async def get_up(self) -> None:
        """There was something to read: give the bell to the next sleeper."""
        self._pause, self._publisher_pause = _FIRST_POLL, _FIRST_PUBLISHER
        if self._holds_bell and self._listener is not None:
            self._holds_bell = False
            try:
                await self._client.give_bell(self._queue, connection=self._listener.connection)
            except psycopg.Error as error:
                await self._lose(error)

    async def lie_down(self) -> bool:
        """Take the bell before sleeping. True: look once more first, as something may have come."""
        if self._holds_bell:
            return False
        try:
            if self._listener is None:
                if self._can_listen:
                    await self.open()
                # What came while nobody listened was not heard.
                return self.is_listening
            state = await self._client.take_bell(self._queue, connection=self._listener.connection)
        except psycopg.Error as error:
            await self._lose(error)
            return False
        self._holds_bell = state == "held"
        if state == "publisher":
            # It saw nobody asleep: it will not announce what it commits.
            self._publisher_pause = min(2 * self._publisher_pause, _LONGEST_POLL)
            await AsyncPatience.pause(self._publisher_pause)
            return True
        self._publisher_pause = _FIRST_PUBLISHER
        return self._holds_bell

    async def sleep(self, until: float) -> bool:
        """Sleep until something is heard, until `until` (of `monotonic`), or for a moment.

        Returns whether something was heard, or the connection was lost.
        """
        left = max(0.0, until - monotonic())
        if self._listener is None:
            await AsyncPatience.pause(min(self._pause, left))
            self._pause = min(2 * self._pause, _LONGEST_POLL)
            return False
        try:
            await self._listener.wait(min(SLICE, left))
        except psycopg.Error as error:
            await self._lose(error)
            return True
        is_rung, self._is_rung = self._is_rung, False
        return is_rung

    def _hear(self, notification: Notify) -> None:
        listener = self._listener
        is_ours = listener is not None and notification.pid == listener.connection.pgconn.backend_pid
        self._is_rung |= notification.payload != "bell" or not is_ours

    async def _lose(self, error: psycopg.Error) -> None:
        log.warning("not listening to queue %s for now: %s", self._queue, first_line(error))
        await self.close()
