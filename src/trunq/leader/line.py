"""The lines of a leader: duties that take turns on a connection of their own.

The duties of a line never wait for one of another (the rows of duty.py say which is in which): messages
wait for the quick line, disk space and lists for the slow one, and figures for the looks. A duty that takes
too long is cut: the others go on. All lines pause while another process leads.
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
from trunq.leader.duty import FIRE, LOOK, QUICK, SLOW, call, pause
from trunq.leader.schedule import Schedules
from trunq.record import Duty
from trunq.wire.call import Call

log = logging.getLogger("trunq.leader")

_QUEUES: Final = Call("list_queues", {}, ("queue", "span"))
_BUDGETS: Final = {QUICK: 20.0, SLOW: 60.0, LOOK: 20.0}
"""Seconds that one statement of each line may take."""
_LOOK_WAITS: Final = "1s"
"""For a lock, at most, a look: the next one comes in five seconds."""
_LATER: Final = 1.2
"""Behind a pooler the server knows no budget: we cut a statement ourselves, after so many budgets."""
_WARNINGS: Final = Call("list_warnings", {}, ("queue", "warning", "hint"))
_WARN_EVERY: Final = 60.0
_NO_QUEUE: Final = 1.0
"""Where there is no queue yet, look for one so often (seconds)."""
_MOST_IN_A_ROW: Final = 50
"""A duty that always has more to do lets the others go on after this number of calls."""

Pair = tuple[str, str | None]
"""A duty and a queue; None: of no queue."""

Due = dict[tuple[Duty, str | None], float]
"""When each duty is due, by `monotonic`."""


def settings(budget: float, lock_timeout: str = "0") -> dict[str, str]:
    """Of the leader's own connections: those of the role may be meant for others. Duties wait for locks as
    long as each of them says, and where one says nothing, `lock_timeout`.
    """
    return {
        "search_path": "pg_catalog",
        "statement_timeout": f"{budget:g}s",
        "lock_timeout": lock_timeout,
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
        self._budget = _BUDGETS[line]
        bounds = settings(self._budget, _LOOK_WAITS if line == LOOK else "0")
        self._link = AsyncLink(dsn, f"trunq leader {leader}", bounds, outage=outage)
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
        if self.line == SLOW:
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
        return max(0.0, min(self._due.values(), default=monotonic() + _NO_QUEUE) - monotonic())


async def _list_queues(connection: AsyncConnection[Any]) -> dict[str, float]:
    """Every queue, and for how many seconds one of its segments is written to."""
    return {queue: span.total_seconds() for queue, span in await execute(connection, _QUEUES)}
