"""Leasing: when to look for messages, for how many, and how to sleep when there are none."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from time import monotonic, time_ns
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from trunq.client.message import LEASED, Message
from trunq.connection._async.execute import execute, value
from trunq.connection._async.link import AsyncLink
from trunq.connection.backoff import first_line
from trunq.errors import MessagesLost
from trunq.wire.array import bigint_array
from trunq.wire.call import Call
from trunq.worker.answer import MOST_UNSENT, Outbox
from trunq.worker.answer.lease import Lease, Source, Statistics
from trunq.worker.run.bell import Bell
from trunq.worker.run.options import Options
from trunq.worker.slot.backlog import Backlog

_ID: Final = LEASED.index("id")

log = logging.getLogger("trunq.worker")

LARGEST_LEASE: Final = 1000
MOST_AHEAD: Final = 2000
"""Without a stated prefetch, never more than this is leased ahead."""
SHORTEST_MEASURE: Final = 0.01
WORK_AHEAD: Final = 0.25
"""Without a stated prefetch, this many seconds of work are leased ahead."""
ENOUGH_A_SLOT: Final = 20
"""Messages that each slot must have finished before their rate counts."""
SHUFFLED: Final = 1000
"""In random order, so many messages are leased ahead and mixed, unless a prefetch is stated."""
QUICKEST_LOOK: Final = 0.005
"""With a publisher in the way of the bell: the first look after this many seconds, later ones less often."""
LOOKS_APART: Final = 4
"""After catching up, the next look waits this many times as long as the last took: on a busy server looks are
fewer and find more, instead of taking from the publishers what they need.
"""
LONGEST_APART: Final = 0.02
MOST_PASSED: Final = 200
"""Without a stated prefetch: while limits of handlers keep all that is leased from starting, each lease is
twice as large as the last, up to this, to get past what cannot start.
"""
LOST_CHECK: Final = 30.0
"""A subscription that lost messages is asked so often whether somebody accepted that."""
EMPTY_CHECK: Final = 0.1
"""Serving until empty, or idle: look so often while the rest is leased to others, or delayed."""


class Ahead:
    """How many messages to lease beyond free slots.

    As stated; or, when nothing is stated, what the slots finish in WORK_AHEAD seconds. So a fast handler is
    never kept waiting by a round trip, and a slow one does not sit on messages that an idle worker could
    have.
    """

    low = 2
    """More are asked for when only this part of them is left, as a divisor."""

    def __init__(self, stated: int | None, concurrency: int) -> None:
        self._stated = stated
        self._enough = ENOUGH_A_SLOT * concurrency
        self._measured = 0
        self._since = monotonic()
        self._finished = 0
        self.is_barred = False
        """Set when messages that did not start were given back; until one finishes, none is leased ahead."""

    def count(self, finished: int) -> int:
        """The number for now; `finished` counts all messages ever finished."""
        now = monotonic()
        if finished != self._finished:
            self.is_barred = False
        lately, elapsed = finished - self._finished, now - self._since
        if elapsed >= WORK_AHEAD or lately >= self._enough:
            self._measured = min(MOST_AHEAD, int(WORK_AHEAD * lately / max(elapsed, SHORTEST_MEASURE)))
            self._since, self._finished = now, finished
        if self.is_barred:
            return 0
        return self._measured if self._stated is None else self._stated


class Mixed(Ahead):
    """The same for random order: as many as are to be mixed.

    Half as many after some of them did not get to start in time and were given back; twice as many again when
    that did not happen for a while.
    """

    low = 10

    def __init__(self, stated: int | None, concurrency: int) -> None:
        super().__init__(stated, concurrency)
        self._most = self._number = SHUFFLED if stated is None else stated
        self._is_halved = False

    def count(self, finished: int) -> int:
        """The number for now; `finished` counts all messages ever finished."""
        if self.is_barred:
            if not self._is_halved:
                self._number, self._is_halved, self._finished = self._number // 2, True, finished
            if finished == self._finished:
                return 0
            self.is_barred = self._is_halved = False
        elif finished - self._finished >= 2 * self._number:
            self._number, self._finished = min(self._most, 2 * self._number + 1), finished
        return self._number


class Passing:
    """How large a lease is that must get past messages which a limit keeps from starting."""

    def __init__(self, backlog: Backlog, most: int) -> None:
        self._backlog = backlog
        self._most = most
        self._last = 0
        self._turned_away = 0

    def count(self, room: int) -> int:
        """The number for the next lease, of which `room` could start."""
        turned_away = self._backlog.turned_away - self._turned_away
        if not 0 < self._last <= turned_away:
            return room
        return max(room, min(2 * self._last, self._most))

    def found(self, messages: int) -> None:
        """So many were leased."""
        self._last, self._turned_away = messages, self._backlog.turned_away


class Fetcher:
    """Leases for all queues of a worker in turn, on one connection."""

    def __init__(
        self,
        link: AsyncLink,
        sources: Sequence[Source],
        backlog: Backlog,
        outbox: Outbox,
        bell: Bell,
        ahead: Ahead,
        statistics: Statistics,
        options: Options,
        is_empty: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self._link = link
        self._sources = list(sources)
        self._backlog = backlog
        self._outbox = outbox
        self._bell = bell
        self._statistics = statistics
        self._options = options
        self._is_empty = is_empty
        self._ahead = ahead
        self._passing = Passing(backlog, 1 if options.prefetch is not None else MOST_PASSED)
        self.is_stopped = False

    def stop(self) -> None:
        """Lease no more. What was asked for already still comes, unless the database is away."""
        self.is_stopped = True
        self._link.hurry()
        self._backlog.changed.set()

    async def run(self) -> None:
        """Lease until stopped; with `is_empty`, until nothing is left."""
        try:
            await self._serve()
        except psycopg.Error:
            if not self.is_stopped:
                raise

    async def _serve(self) -> None:
        while not self.is_stopped:
            room = self._room()
            if room < 1:
                await self._wait_for_room()
            elif (source := self._due()) is not None:
                await self._look(source, room)
            elif await self._is_finished():
                return
            else:
                await self._sleep()

    # Room

    def _room(self) -> int:
        backlog, statistics = self._backlog, self._statistics
        ahead = self._ahead.count(
            statistics.handled
            + statistics.failed
            + statistics.retried
            + statistics.rejected
            + statistics.put_off
        )
        backlog.low = ahead // self._ahead.low
        if len(backlog.waiting) > backlog.low or self._outbox.unsent > MOST_UNSENT:
            return 0
        return min(self._options.concurrency + ahead - backlog.held + backlog.missing, LARGEST_LEASE)

    async def _wait_for_room(self) -> None:
        if self._outbox.unsent > MOST_UNSENT:
            await self._outbox.flushed(MOST_UNSENT)
            return
        for source in self._sources:
            # A worker that is not going to look must not be the one that publishers wake.
            await self._bell.give(source)
        if self._room() < 1 and not self.is_stopped:
            await self._changed(None)

    # Looking

    def _due(self) -> Source | None:
        now = monotonic()
        for place, source in enumerate(self._sources):
            if source.is_rung or source.is_freed or now >= source.next_look:
                # The next time its neighbour comes first.
                self._sources = self._sources[place + 1 :] + self._sources[: place + 1]
                return source
        return None

    async def _look(self, source: Source, room: int) -> None:
        if source.is_freed and not source.is_rung and monotonic() < source.next_look:
            # The bell is free, but only the worker that gets it should look, not every sleeper.
            source.is_freed, due = False, source.next_look
            await self._rest(source)
            # A look that fell due meanwhile was not made, and who has not looked in vain is not told of what
            # others set aside.
            source.next_look = min(source.next_look, due)
            return
        was_rung, source.is_rung, source.is_freed = source.is_rung, False, False
        share, begun = self._passing.count(max(1, room // len(self._sources))), monotonic()
        if was_rung and source.holds_bell:
            giving = asyncio.create_task(self._bell.give(source))
            found = await self._lease(source, share)
            await giving
        else:
            found = await self._lease(source, share)
            if found:
                await self._bell.give(source)
        if found:
            now = monotonic()
            caught_up = found < share
            source.next_look = now + min(LONGEST_APART, (now - begun) * LOOKS_APART) if caught_up else 0.0
            source.waits_since = None
        elif not source.is_rung:
            await self._rest(source)

    async def _lease(self, source: Source, share: int) -> int:
        asked_at, began = monotonic(), time_ns()
        arguments = {
            **source.names,
            "worker": self._options.identity,
            "max_messages": share,
            "lease_time": timedelta(seconds=source.lease_time),
            "asks": self._options.asks,
        }
        call = Call("lease", arguments, LEASED, raw=True)
        public_ids: list[UUID] = []

        async def lease(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            nonlocal asked_at
            asked_at = monotonic()
            rows = await execute(connection, call)
            if self._options.public_ids and rows:
                ids = bigint_array([row[_ID] for row in rows])
                ((public_ids[:],),) = await execute(
                    connection, Call("public_ids", {"queue": source.queue, "ids": ids})
                )
            return rows

        try:
            rows = await self._link.run(lease)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
            # The queue was dropped while we looked. Asked again, the database says so in words.
            rows = await self._link.run(lease)
        except psycopg.Error as error:
            if error.sqlstate != MessagesLost.sqlstate or self._is_empty is not None:
                raise
            # The others of this worker go on. Who accepts the loss wakes it.
            if not source.has_lost:
                log.error("%s; %s", first_line(error), error.diag.message_hint, extra={"queue": source.queue})
            source.has_lost = True
            source.next_look = monotonic() + LOST_CHECK
            rows = []
        else:
            source.has_lost = False
        self._statistics.looks += 1
        if not rows:
            self._statistics.empty_looks += 1
            return 0
        queue, subscription = source.queue, source.subscription
        messages = [Message(row, queue, subscription) for row in rows]
        self._trace(source, messages, began)
        for message, public_id in zip(messages, public_ids, strict=False):
            message.public_id = public_id
        first = messages[0]
        held = Lease(
            queue, subscription, first.lease_id, first.token, len(messages), asked_at, source.lease_time,
            source.time_out,
        )  # fmt: skip
        self._outbox.open[held.token] = held
        self._statistics.leased += len(messages)
        self._backlog.add([(held, message) for message in messages])
        self._passing.found(len(messages))
        return len(messages)

    def _trace(self, source: Source, messages: list[Message], began: int) -> None:
        if self._options.telemetry is not None:
            self._options.telemetry.received(source.queue, source.subscription, messages, began)

    # Sleeping

    async def _rest(self, source: Source) -> None:
        """After an empty poll: arrange to be woken."""
        if source.is_limited and await self._is_kept(source):
            return
        held = source.holds_bell
        state = await self._bell.take(source)
        now = monotonic()
        if state == "held" and not held:
            # Once more: what was published between our look and the bell, nobody told us.
            source.next_look = 0.0
            source.waits_since = None
        elif state == "publisher":
            since = source.waits_since = source.waits_since or now
            # In proportion to how long it has lasted: a short transaction is met at once, a long one costs
            # few looks.
            pause = max(QUICKEST_LOOK, (now - since) / 4) * (0.75 + random.random() / 2)
            source.next_look = now + min(pause, self._options.poll)
        else:
            source.waits_since = None
            if source.next_look <= now:
                source.next_look = now + self._options.poll * (0.9 + random.random() / 5)

    async def _is_kept(self, source: Source) -> bool:
        """Whether a pause or its rate keeps messages from us: then sleep until it does no more.

        Without the bell: a publisher could only wake us for an empty poll. Who ends the pause, or changes the
        rate, wakes everybody.
        """
        call = Call("retry_after", source.names)
        wait: timedelta | None = await self._link.run(lambda connection: value(connection, call))
        if wait is None:
            return False
        await self._bell.give(source)
        if not source.is_rung:
            source.next_look = monotonic() + min(wait.total_seconds(), self._options.poll)
        return True

    async def _is_finished(self) -> bool:
        if self._is_empty is None:
            return False
        if self._backlog.held == 0 and self._outbox.unsent == 0 and await self._is_empty():
            return True
        for source in self._sources:
            source.next_look = min(source.next_look, monotonic() + EMPTY_CHECK)
        return False

    async def _sleep(self) -> None:
        await self._changed(min(source.next_look for source in self._sources) - monotonic())

    async def _changed(self, seconds: float | None) -> None:
        """Wait until something changed: room, a notification, the end; or until `seconds` are over."""
        changed = self._backlog.changed
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(max(0.0, seconds), changed.set)
        await changed.wait()
        if timer is not None:
            timer.cancel()
        changed.clear()
