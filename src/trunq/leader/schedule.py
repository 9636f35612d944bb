"""Schedules in the leader: when the next is due, and the due times of cron texts.

Schedules have a queue, and a leader with a queue never rests longer than half a second: so a NOTIFY of a
change is read soon, whatever the leader does on its connection, and needs nobody who waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, Notify

from trunq.client._async.log.schedule import fill, list_fillable
from trunq.connection._async.execute import execute, value
from trunq.connection._async.link import AsyncLink
from trunq.connection._async.listener import AsyncListener
from trunq.connection.backoff import first_line
from trunq.errors import InvalidSchedule
from trunq.schedule import due_times
from trunq.wire.call import Call

log = logging.getLogger("trunq.leader")

_UNTIL_DUE: Final = Call("_until_due", {})
_CHANNEL: Final = "trunq_schedules"
_LOOK: Final = 60.0


class Schedules:
    """What a leader knows of schedules."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self._listener: AsyncListener | None = None
        self._is_changed = False
        self._is_new = True
        self._fill_at = 0.0

    def begin(self) -> None:
        """Begin a term: compute all times anew, by the time zones as this process knows them."""
        self._is_new = True
        self._fill_at = 0.0

    def take_change(self) -> bool:
        """Whether somebody changed a schedule since the last time, or may have while nobody listened."""
        changed, self._is_changed = self._is_changed, False
        return changed or (
            self._listener is not None and self._link.connection is not self._listener.connection
        )

    async def rest(self, longest: float) -> float:
        """Seconds until the next schedule is due; no more than `longest` where no change reaches us."""
        until: timedelta = await self._link.run(self._ask)
        return until.total_seconds() if self._listener is not None else min(until.total_seconds(), longest)

    async def fill(self) -> None:
        """Now and then, compute the times of cron texts that come to an end."""
        if self._fill_at > monotonic():
            return
        self._fill_at = monotonic() + _LOOK
        try:
            is_new, self._is_new = self._is_new, False
            rows = await self._link.run(lambda connection: execute(connection, list_fillable(is_all=is_new)))
            for row in rows:
                await self._fill_one(*row)
        except psycopg.Error as error:
            log.error("could not compute when schedules are due: %s", first_line(error))

    async def _fill_one(self, schedule: str, cron: str, zone: str, after: datetime, now: datetime) -> None:
        try:
            # In a thread: it takes some hundredths of a second.
            times = await asyncio.to_thread(due_times, cron, zone, after, now=now)
        except InvalidSchedule as error:
            log.error("could not compute when schedule %s is due: %s", schedule, error.message)
            return
        await self._link.run(lambda connection: execute(connection, fill(schedule, cron, zone, after, times)))

    async def _ask(self, connection: AsyncConnection[Any]) -> timedelta:
        is_heard = self._listener is not None and self._listener.connection is connection
        if not is_heard and not self._link.pooled:
            listener = AsyncListener(connection, self._hear)
            # What changed before is in what it is told now.
            await listener.listen(_CHANNEL)
            self._listener = listener
        until: timedelta = await value(connection, _UNTIL_DUE)
        return until

    def _hear(self, _: Notify) -> None:
        self._is_changed = True
