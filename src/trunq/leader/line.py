"""The lines of a leader: duties that take turns on a connection of their own.

The duties of the quick line never wait for one of the slow line (the rows of duty.py say which is in which),
and one that takes too long is cut: the others go on. Both lines pause while another process leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.connection._async.execute import execute
from trunq.connection._async.link import AsyncLink
from trunq.connection.backoff import AsyncHurry, first_line
from trunq.connection.outage import Outage, Said
from trunq.leader.duty import FIRE, QUICK, call, pause
from trunq.leader.schedule import Schedules
from trunq.record import Duty
from trunq.wire.call import Call

log = logging.getLogger("trunq.leader")

_QUEUES: Final = Call("list_queues", {}, ("queue", "span"))
_BUDGET: Final = 20.0
_SLOW_BUDGET: Final = 60.0
"""Seconds that one statement of the quick line, and of the slow line, may take."""
_LATER: Final = 1.2
"""Behind a pooler the server knows no budget: we cut a statement ourselves, after so many budgets."""
_WARNINGS: Final = Call("list_warnings", {}, ("queue", "warning", "hint"))
_WARN_EVERY: Final = 60.0
_LOOK: Final = 1.0
"""Where there is no queue yet, look for one so often (seconds)."""
_MOST_IN_A_ROW: Final = 50
"""A duty that always has more to do lets the others go on after this number of calls."""

Pair = tuple[str, str | None]
"""A duty and a queue; None: of no queue."""

Due = dict[tuple[Duty, str | None], float]
"""When each duty is due, by `monotonic`."""


def settings(budget: float) -> dict[str, str]:
    """Of the leader's own connections: those of the role may be meant for others. Duties wait for locks as
    long as each of them says.
    """
    return {
        "search_path": "pg_catalog",
        "statement_timeout": f"{budget:g}s",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "60s",
    }


@dataclass(slots=True)
class Performed:
    """How often each duty was called, how much it did, and how often it failed."""

    calls: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def count(self, duty: Duty, done: int) -> None:
        """One call more."""
        self.calls[duty.duty] = self.calls.get(duty.duty, 0) + 1
        self.done[duty.duty] = self.done.get(duty.duty, 0) + done


class Line:
    """Performs the duties of one line from `begin` to `end`, each time this process leads."""

    def __init__(self, dsn: str, leader: str, line: str, performed: Performed, outage: Outage | None) -> None:
        self.line = line
        self._budget = _BUDGET if line == QUICK else _SLOW_BUDGET
        self._link = AsyncLink(dsn, f"trunq leader {leader}", settings(self._budget), outage=outage)
        self._performed = performed
        self._schedules = Schedules(self._link)
        self._duties: tuple[Duty, ...] = ()
        self._term: int | None = None
        self._due: Due = {}
        self._done: dict[Pair, float] = {}
        self._said = Said()
        self._warn_at = 0.0
        self._warned: set[str] = set()
        self._changed = AsyncHurry()
        self._is_stopped = False

    def begin(self, term: int, duties: Sequence[Duty], done: dict[Pair, float]) -> None:
        """Lead in a term: everything is due. `done` is since when some were not, by `monotonic`."""
        self._duties = tuple(duty for duty in duties if duty.line == self.line)
        ours = {duty.duty for duty in self._duties}
        self._due = {}
        self._done = {pair: at for pair, at in done.items() if pair[0] in ours}
        self._schedules.begin()
        self._term = term
        self._changed.set()

    def end(self) -> None:
        """Another leads, or may: pause after the duty at hand."""
        self._term = None

    def stop(self) -> None:
        """End after the duty at hand."""
        self._is_stopped = True
        self._link.hurry()
        self._changed.set()

    def cut(self) -> None:
        """End the duty at hand, if there is one: its connection is lost."""
        if self._link.is_busy:
            self._link.cut()

    async def run(self) -> None:
        """Perform what is due until stopped."""
        try:
            while not self._is_stopped:
                if self._term is None:
                    await self._changed.pause(None)
                else:
                    await self._perform()
                    await self._changed.pause(self._rest())
                self._changed.clear()
        except psycopg.OperationalError:
            if not self._is_stopped:
                raise

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    def ages(self) -> list[tuple[str, str | None, float]]:
        """For each duty, the queue for which it was last done longest ago, and how many seconds."""
        oldest: dict[str, tuple[float, str | None]] = {}
        for (duty, queue), at in self._done.items():
            if duty not in oldest or at < oldest[duty][0]:
                oldest[duty] = (at, queue)
        now = monotonic()
        return [(duty, queue, now - at) for duty, (at, queue) in oldest.items()]

    async def _perform(self) -> None:
        """Every duty that is due, for every queue. One that fails leaves the others their turn."""
        term = self._term
        spans = await self._link.run(_list_queues)
        pairs = [(duty, queue) for duty in self._duties for queue in (spans if duty.per_queue else (None,))]
        is_changed = False
        if any(duty.duty == FIRE for duty in self._duties):
            await self._schedules.fill()
            is_changed = self._schedules.take_change()
        if self._term != term:
            return
        # A queue that is gone must not be waited for.
        due = self._due = {pair: self._due.get(pair, 0.0) for pair in pairs}
        now = monotonic()
        self._done = {(duty.duty, queue): self._done.get((duty.duty, queue), now) for duty, queue in pairs}
        for duty, queue in pairs:
            if due[duty, queue] > monotonic() and not (is_changed and duty.duty == FIRE):
                continue
            begun = monotonic()
            due[duty, queue] = begun + pause(duty, None if queue is None else spans[queue])
            await self._perform_one(duty, queue, due)
            if duty.duty == FIRE:
                due[duty, queue] = monotonic() + await self._schedules.rest(pause(duty, None))
            # In a new term everything is due, and in the same one that begins again.
            if self._term != term or self._due is not due or self._is_stopped:
                return
        if self.line != QUICK:
            await self._warn()

    async def _perform_one(self, duty: Duty, queue: str | None, due: Due) -> None:
        """Call a duty, again and again while there is more to do. Of the term that it began in, `due` says
        when it is due again: another may have begun when it ends.
        """

        async def perform(connection: AsyncConnection[Any]) -> tuple[int | None, str | None]:
            async with asyncio.timeout(self._budget * _LATER if self._link.pooled else None):
                ((done, error),) = await execute(connection, call(duty, queue))
            return done, error

        try:
            for _ in range(_MOST_IN_A_ROW):
                begun = monotonic()
                done, error = await self._link.run(perform)
                if error is not None:
                    self._fail(duty, queue, due, error, monotonic() - begun)
                    return
                self._performed.count(duty, done or 0)
                if done is not None:
                    self._done[duty.duty, queue] = monotonic()
                elif duty.again_after is not None:
                    again = monotonic() + duty.again_after.total_seconds()
                    due[duty, queue] = min(due[duty, queue], again)
                if duty.again_from is None or (done or 0) < duty.again_from:
                    return
            due[duty, queue] = 0.0
        except (psycopg.Error, TimeoutError) as error:
            self._fail(duty, queue, due, first_line(error), monotonic() - begun)

    def _fail(self, duty: Duty, queue: str | None, due: Due, why: str, took: float) -> None:
        """Log a failure when it is a new one, then once a minute. One that took long has to wait as long."""
        due[duty, queue] = max(due[duty, queue], monotonic() + took)
        self._performed.errors[duty.duty] = self._performed.errors.get(duty.duty, 0) + 1
        if not self._said.is_new((duty.duty, queue), why):
            return
        log.error(
            "duty %s%s failed: %s",
            duty.duty,
            "" if queue is None else f" of queue {queue}",
            why,
            extra={"duty": duty.duty, "queue": queue},
        )

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

    def _rest(self) -> float:
        return max(0.0, min(self._due.values(), default=monotonic() + _LOOK) - monotonic())


async def _list_queues(connection: AsyncConnection[Any]) -> dict[str, float]:
    """Every queue, and for how many seconds one of its segments is written to."""
    return {queue: span.total_seconds() for queue, span in await execute(connection, _QUEUES)}
