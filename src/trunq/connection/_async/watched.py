"""Connections that are not silent for ever: see `trunq.connection.silence`."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen

from trunq.connection.backoff import first_line
from trunq.connection.silence import ASKING, END, INTERVAL, LAST, QUESTION, Silence, Watching, heard

RV = TypeVar("RV")

log = logging.getLogger("trunq.link")


class AsyncWatched(Watching, AsyncConnection[Any]):
    """A connection that is not silent for ever."""

    async def wait(self, gen: PQGen[RV], interval: float = INTERVAL, timeout: float | None = None) -> RV:
        """Wait for a piece of psycopg's own work; with a `timeout`, somebody else looks after it."""
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        longest: float | None = ASKING if self._is_question else None
        silent = 0.0
        is_resumed = is_last = False
        while True:
            try:
                return await super().wait(heard(gen, longest, is_resumed=is_resumed), interval)
            except Silence as silence:
                silent += silence.args[0]
            if self._is_question:
                raise self._give_up(silent)
            try:
                goes_on = await self._asked(END if is_last else QUESTION)
            except BaseException:
                # Cancelled, with a statement that nobody waits for any more.
                self.pgconn.finish()
                raise
            if is_last:
                raise self._give_up(silent)
            is_resumed, is_last = True, not goes_on
            longest, silent = (None, 0.0) if goes_on else (LAST, silent)

    async def _asked(self, statement: str) -> bool:
        """Ask the server about the session of this connection: whether to wait on."""
        if self.is_pooled:
            return self.is_lent
        try:
            async with await AsyncWatched.connect(self._address(), autocommit=True) as other:
                other._is_question = True
                told = await other.execute(statement.encode(), self._session)
                return self._goes_on(await told.fetchone())
        except psycopg.Error as error:
            log.debug("could not ask after a silent connection: %s", first_line(error))
            return self._goes_on_after(error)
