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
from datetime import timedelta
from time import monotonic, time
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.connection._async.execute import execute, value
from trunq.connection._async.link import AsyncLink
from trunq.connection.backoff import AsyncHurry, first_line
from trunq.connection.outage import Outage
from trunq.errors import translated
from trunq.leader.duty import LINES, LIST
from trunq.leader.line import Line, Pair, Performed, settings
from trunq.leader.pulse import Pulse
from trunq.leader.rank import Ranker, Ranks
from trunq.process.signals import run_with_signals
from trunq.process.together import together
from trunq.record import Duty
from trunq.wire.array import integer_array, text_array
from trunq.wire.call import Call
from trunq.wire.name import own_name

log = logging.getLogger("trunq.leader")

_DONE: Final = "select n.duty, n.queue, extract(epoch from trunq.clock() - n.done_at) from trunq.duty_done n"
_NOTE_EVERY: Final = 10.0
"""Seconds between two times that the database is told when duties were last done."""
_BUDGET: Final = 10.0
"""Seconds that an election, or a note of what was done, may take."""
_SHORTEST: Final = 1.0
"""Seconds, at least, after which a lease that was not renewed is given up."""
_STUBBORN: Final = 2.0
"""Seconds for the duties at hand, or an election, to end."""
_CUT: Final = 0.5
"""Seconds for duties to end whose connections were cut."""


class Leader:
    """Stands for election, performs the duties while elected, resigns at the end.

    `name` tells candidates apart and must be one process' own; by default it is made up. `lease_time`
    (seconds) is how long a leader that died is waited for. With `statistics` (seconds) it logs a line so
    often: what it did since the last one. `outage` is that of the process it runs in. With `ranks` it calls
    the functions among them by which lanes are ranked, elected or not. `term` is set while this process
    leads.
    """

    def __init__(
        self,
        dsn: str,
        name: str | None = None,
        lease_time: float = 15.0,
        outage: Outage | None = None,
        ranks: Ranks | None = None,
        statistics: float | None = None,
    ) -> None:
        self.name = name or own_name()
        self.lease_time = lease_time
        self.term: int | None = None
        self.performed = Performed()
        title = f"trunq leader {self.name}"
        self._link = AsyncLink(dsn, title, settings(_BUDGET), outage=outage)
        self._lines = [Line(dsn, self.name, line, self.performed, outage) for line in LINES]
        self._ranker = Ranker(dsn, self.name, ranks, outage) if ranks is not None else None
        self._pulse = None if statistics is None else Pulse(statistics, self.performed, lambda: self.term)
        self._stopped = AsyncHurry()
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._newest: int | None = None
        """The term that we may still have, though its lease could not be renewed in time."""
        self._expiry: asyncio.TimerHandle | None = None
        self._note_at = 0.0

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
        """Resign after the duties at hand. From any thread."""
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
        asyncio.get_running_loop().call_later(_STUBBORN, self._ask_no_longer)
        for line in self._lines:
            line.stop()

    def _ask_no_longer(self) -> None:
        if self._link.is_busy:
            self._link.cut()

    async def run_async(self, *, is_patient: bool = False) -> None:
        """Run until `stop` is called or the task is cancelled.

        Raises psycopg.OperationalError when there is no database to begin with, unless it `is_patient`.
        """
        self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            self._end()
        try:
            with translated:
                if not is_patient:
                    await self._link.open()
                await self._serve()
        except psycopg.OperationalError:
            if not self._stopped.is_set():
                raise
        finally:
            self._loop = None
            if self._expiry is not None:
                self._expiry.cancel()
            await self._resign()
            for line in self._lines:
                await line.close()
            await self._link.close()

    async def _serve(self) -> None:
        """Stand, with the lines and the ranker beside; whatever one of them dies of ends all."""
        async with together() as group:
            lines = [group.create_task(line.run()) for line in self._lines]
            beside = [each for each in (self._ranker, self._pulse) if each is not None]
            tasks = [group.create_task(each.run()) for each in beside]
            try:
                while not self._stopped.is_set():
                    await self._stand()
                    if self.term is not None:
                        await self._note()
                        await self._stopped.pause(min(self.lease_time / 3, self._note_at - monotonic()))
                    else:
                        # The next time a little off: candidates that started together should not all ask
                        # together.
                        await self._stopped.pause(self.lease_time / 3 * (0.75 + random.random() / 2))
            finally:
                for line in self._lines:
                    line.stop()
                for task in tasks:
                    task.cancel()
                if (await asyncio.wait(lines, timeout=_STUBBORN))[1]:
                    # The database is silent. A query that is cancelled asks it to cancel, and waits for
                    # that; one whose connection is cut fails at once.
                    for line in self._lines:
                        line.cut()
                    await asyncio.wait(lines, timeout=_CUT)
                for task in lines:
                    task.cancel()

    async def _stand(self) -> None:
        """Be elected, or renew."""
        asked_at = monotonic()
        term = await self._link.run(self._elect)
        # Known at once: whoever is stopped from here on has something to resign.
        before, self.term = self.term, term
        self._newest = term
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if term is not None:
            left = max(self.lease_time, _SHORTEST) - (monotonic() - asked_at)
            self._expiry = asyncio.get_running_loop().call_later(left, self._expire, term)
        if term == before:
            return
        if before is not None:
            log.warning(
                "no longer the leader of term %s: its lease ran out", before, extra={"leader": self.name}
            )
        if term is None:
            log.info("another leads", extra={"leader": self.name})
            self._end_term()
            return
        log.info("leading, term %s", term, extra={"leader": self.name})
        rows = await self._link.run(lambda connection: execute(connection, LIST))
        done = await self._link.run(_left_undone)
        self._note_at = 0.0
        for line in self._lines:
            line.begin(term, tuple(map(Duty._make, rows)), done)

    def _expire(self, term: int) -> None:
        """The lease was not renewed in time: another may lead."""
        self.term = None
        log.warning(
            "no longer the leader of term %s: its lease could not be renewed in time",
            term,
            extra={"leader": self.name},
        )
        self._end_term()

    def _end_term(self) -> None:
        for line in self._lines:
            line.end()

    async def _note(self) -> None:
        """Now and then, tell the database when duties were last done."""
        if self._note_at > monotonic():
            return
        self._note_at = monotonic() + _NOTE_EVERY
        ages = [age for line in self._lines for age in line.ages()]
        arguments = {
            "duties": text_array("duties", [duty for duty, _, _ in ages]),
            "queues": text_array("queues", [queue or "" for _, queue, _ in ages]),
            "seconds": integer_array([int(seconds) for _, _, seconds in ages]),
        }
        try:
            await self._link.run(
                lambda connection: value(connection, Call("_note_duties", arguments | {"clock": time()}))
            )
        except psycopg.Error as error:
            log.error("could not note when duties were done: %s", first_line(error))

    async def _elect(self, connection: AsyncConnection[Any]) -> int | None:
        arguments = {"name": self.name, "lease_time": timedelta(seconds=self.lease_time)}
        term: int | None = await value(connection, Call("elect", arguments))
        return term

    async def _resign(self) -> None:
        term, self.term, self._newest = self._newest, None, None
        if term is None or self._link.connection is None:
            return
        resign = Call("resign", {"name": self.name, "term": term})
        timer = asyncio.get_running_loop().call_later(_STUBBORN, self._ask_no_longer)
        try:
            async with asyncio.timeout(1.5 * _STUBBORN):
                try:
                    await self._link.run(lambda connection: execute(connection, resign))
                except psycopg.OperationalError:
                    # The connection was lost, perhaps before.
                    await self._link.run(lambda connection: execute(connection, resign))
        except (psycopg.Error, TimeoutError) as error:
            log.warning("could not resign, the next leader waits for our lease to end: %s", first_line(error))
        finally:
            timer.cancel()


async def _left_undone(connection: AsyncConnection[Any]) -> dict[Pair, float]:
    """Which duties were not done for longer than others, and since when by `monotonic`: the time in which
    nobody led does not count.
    """
    rows = await (await connection.execute(_DONE)).fetchall()
    ages = {(duty, queue or None): max(0.0, float(age)) for duty, queue, age in rows}
    youngest, now = min(ages.values(), default=0.0), monotonic()
    return {pair: now - (age - youngest) for pair, age in ages.items()}
