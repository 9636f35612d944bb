"""The election: one process at a time leads and performs the duties of duty.py.

It is elected by a lease row, renewed while it leads, not by a session lock: a pooler in between does no harm.
Two leaders at once, for the moment in which one has not noticed that its lease ran out, do no harm either:
each duty takes the locks it needs and is done twice to no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq._async.execute import execute, value
from trunq.call import Call
from trunq.connection.backoff import first_line
from trunq.connection.link import Link
from trunq.connection.outage import Outage
from trunq.errors import translated
from trunq.leader.duty import FIRE, LIST, call, pause
from trunq.leader.schedule import Schedules
from trunq.rank import Ranker, Ranks
from trunq.record import Duty
from trunq.signals import run_with_signals
from trunq.wire.name import own_name

log = logging.getLogger("trunq.leader")

_QUEUES: Final = Call("list_queues", {}, ("queue", "span"))
_SETTINGS: Final = {
    "search_path": "pg_catalog",
    "statement_timeout": "60s",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "60s",
}
"""Of the leader's own connection: those of the role may be meant for others. Duties wait for locks as long as
each of them says.
"""
_WARNINGS: Final = Call("list_warnings", {}, ("queue", "warning", "hint"))
_WARN_EVERY: Final = 60.0
_SAY_AGAIN: Final = 60.0
_LOOK: Final = 1.0
"""Where there is no queue yet, look for one so often (seconds)."""
_MOST_IN_A_ROW: Final = 50
"""A duty that always has more to do lets the others, and the renewal, go on after this number of calls."""


@dataclass(slots=True)
class Performed:
    """How often each duty was called, and how much it did."""

    calls: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def count(self, duty: Duty, done: int) -> None:
        """One call more."""
        self.calls[duty.duty] = self.calls.get(duty.duty, 0) + 1
        self.done[duty.duty] = self.done.get(duty.duty, 0) + done


class Leader:
    """Stands for election, performs the duties while elected, resigns at the end.

    `name` tells candidates apart and must be one process' own; by default it is made up. `lease_time`
    (seconds) is how long a leader that died is waited for. `outage` is that of the process it runs in. With
    `ranks` it calls the functions among them by which lanes are ranked, elected or not. `term` is set while
    this process leads.
    """

    def __init__(
        self,
        dsn: str,
        name: str | None = None,
        lease_time: float = 15.0,
        outage: Outage | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.name = name or own_name()
        self.lease_time = lease_time
        self.term: int | None = None
        self.performed = Performed()
        self._duties: tuple[Duty, ...] = ()
        self._link = Link(dsn, f"trunq leader {self.name}", _SETTINGS, outage=outage)
        self._ranker = Ranker(dsn, self.name, ranks, outage) if ranks is not None else None
        self._stopped = asyncio.Event()
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._renew_at = 0.0
        self._due: dict[tuple[Duty, str | None], float] = {}
        self._failures: dict[tuple[str, str | None], tuple[str, float]] = {}
        self._warn_at = 0.0
        self._warned: set[str] = set()
        self._schedules = Schedules(self._link)

    @property
    def is_running(self) -> bool:
        """Whether `run_async` is at work."""
        return self._loop is not None

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises psycopg.OperationalError when there is no database to begin
        with.
        """
        run_with_signals(self.run_async, self.stop)

    def stop(self) -> None:
        """Resign after the duty at hand. From any thread."""
        # In this order: `run_async` sets the loop and then looks at this, so that one of them sees the other.
        self._is_stopping = True
        if (loop := self._loop) is None:
            return
        if loop is asyncio._get_running_loop():
            self._end()
        else:
            # The loop may be closed meanwhile: then it has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._stopped.set()
        self._link.hurry()

    async def run_async(self, *, is_patient: bool = False) -> None:
        """Run until `stop` is called or the task is cancelled.

        Raises psycopg.OperationalError when there is no database to begin with, unless it `is_patient`.
        """
        self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            self._end()
        ranking = None
        try:
            with translated:
                if not is_patient:
                    await self._link.open()
                if self._ranker is not None:
                    ranking = asyncio.create_task(self._ranker.run())
                    ranking.add_done_callback(lambda _: self._end())
                while not self._stopped.is_set():
                    await self._stand()
                    if self.term is None:
                        # The next time a little off: candidates that started together should not all ask
                        # together.
                        await self._pause(self.lease_time / 3 * (0.75 + random.random() / 2))
                    else:
                        await self._perform()
                        await self._pause(self._rest())
        except psycopg.OperationalError:
            if not self._stopped.is_set():
                raise
        finally:
            self._loop = None
            if ranking is not None:
                ranking.cancel()
                await asyncio.wait({ranking})
            await self._resign()
            await self._link.close()
            if ranking is not None and not ranking.cancelled():
                ranking.result()

    async def _stand(self) -> None:
        """Be elected, or renew, when it is time to."""
        now = monotonic()
        if self.term is not None and now < self._renew_at:
            return
        term = await self._link.run(self._elect)
        # Known at once: whoever is stopped from here on has something to resign.
        before, self.term = self.term, term
        self._renew_at = now + self.lease_time / 3
        if term != before:
            log.info(
                "leading, term %s" if term else "another leads",
                *([term] if term else []),
                extra={"leader": self.name},
            )
            self._due = {}
            self._schedules.begin()
            if term is not None:
                rows = await self._link.run(lambda connection: execute(connection, LIST))
                self._duties = tuple(map(Duty._make, rows))

    async def _elect(self, connection: AsyncConnection[Any]) -> int | None:
        arguments = {"name": self.name, "lease_time": timedelta(seconds=self.lease_time)}
        term: int | None = await value(connection, Call("elect", arguments))
        return term

    async def _perform(self) -> None:
        """Every duty that is due, for every queue. One that fails leaves the others their turn."""
        spans = await self._link.run(_list_queues)
        pairs = [(duty, queue) for duty in self._duties for queue in (spans if duty.per_queue else (None,))]
        await self._schedules.fill()
        is_changed = self._schedules.take_change()
        # A queue that is gone must not be waited for.
        self._due = {pair: self._due.get(pair, 0.0) for pair in pairs}
        term = self.term
        for duty, queue in pairs:
            if self._due[duty, queue] > monotonic() and not (is_changed and duty.duty == FIRE):
                continue
            self._due[duty, queue] = monotonic() + pause(duty, None if queue is None else spans[queue])
            await self._perform_one(duty, queue)
            if duty.duty == FIRE:
                self._due[duty, queue] = monotonic() + await self._schedules.rest(pause(duty, None))
            await self._stand()
            # In a new term everything is due.
            if self.term != term or self._stopped.is_set():
                return
        await self._warn()

    async def _warn(self) -> None:
        """Log each warning of the database when it appears."""
        if self._warn_at > monotonic():
            return
        self._warn_at = monotonic() + _WARN_EVERY
        try:
            rows = await self._link.run(lambda connection: execute(connection, _WARNINGS))
        except psycopg.Error as error:
            log.error("could not look for warnings: %s", first_line(error))
            return
        for queue, warning, hint in rows:
            if warning not in self._warned:
                log.warning("%s; %s", warning, hint, extra={"queue": queue})
        self._warned = {warning for _, warning, _ in rows}

    async def _perform_one(self, duty: Duty, queue: str | None) -> None:
        async def perform(connection: AsyncConnection[Any]) -> tuple[int | None, str | None]:
            ((done, error),) = await execute(connection, call(duty, queue))
            return done, error

        try:
            for _ in range(_MOST_IN_A_ROW):
                done, error = await self._link.run(perform)
                if error is not None:
                    self._log_failure(duty, queue, error)
                    return
                self.performed.count(duty, done or 0)
                if done is None and duty.again_after is not None:
                    again = monotonic() + duty.again_after.total_seconds()
                    self._due[duty, queue] = min(self._due[duty, queue], again)
                if duty.again_from is None or (done or 0) < duty.again_from:
                    return
            self._due[duty, queue] = 0.0
        except psycopg.Error as error:
            self._log_failure(duty, queue, first_line(error))

    def _log_failure(self, duty: Duty, queue: str | None, why: str) -> None:
        """Log a failure when it is a new one, then once a minute."""
        before, logged_at = self._failures.get((duty.duty, queue), ("", 0.0))
        if why == before and monotonic() < logged_at + _SAY_AGAIN:
            return
        self._failures[duty.duty, queue] = (why, monotonic())
        log.error(
            "duty %s%s failed: %s",
            duty.duty,
            "" if queue is None else f" of queue {queue}",
            why,
            extra={"duty": duty.duty, "queue": queue},
        )

    def _rest(self) -> float:
        due = min(self._due.values(), default=monotonic() + _LOOK)
        return max(0.0, min(due, self._renew_at) - monotonic())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def _resign(self) -> None:
        if self.term is None:
            return
        term, self.term = self.term, None
        connection = self._link.connection
        try:
            if connection is not None and not connection.closed:
                await execute(connection, Call("resign", {"name": self.name, "term": term}))
        except psycopg.Error as error:
            log.warning("could not resign, the next leader waits for our lease to end: %s", first_line(error))


async def _list_queues(connection: AsyncConnection[Any]) -> dict[str, float]:
    """Every queue, and for how many seconds one of its segments is written to."""
    return {queue: span.total_seconds() for queue, span in await execute(connection, _QUEUES)}
