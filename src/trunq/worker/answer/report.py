"""What handlers report of their progress, on its way to the database.

A handler may report a thousand times a second. Percent and note are kept here and written once in EVERY
seconds, the last of them always, while the handler runs; it does not wait for it. A checkpoint goes out at
once, with what was kept, and the handler waits until it is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from time import monotonic
from typing import Final

import psycopg

from trunq.client.message import Message
from trunq.client.progress import Progress
from trunq.errors import Diagnosis, InvalidArgument, LeaseLost, translate
from trunq.wire.call import Call, unreadable
from trunq.worker.answer.group import Group
from trunq.worker.answer.lease import Lease

EVERY: Final = 0.5
"""Seconds between two writes of percent and note, for one message."""

Waiters = list[asyncio.Future[None]]


class Report:
    """What the handler of one message says; `is_running` tells whether it still runs, `tell` has `group`
    asked for soon.
    """

    def __init__(
        self,
        lease: Lease,
        message: Message,
        is_running: Callable[[Report], bool],
        tell: Callable[[Report], None],
    ) -> None:
        self.lease = lease
        self.message = message
        self._is_running = is_running
        self._tell = tell
        self._progress = Progress()
        """All that was said, but for checkpoints that are on their way."""
        self._waiters: Waiters = []
        self._is_told = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._refused: Exception | None = None

    async def add(self, progress: Progress) -> None:
        """The handler says more. Raises what the database said to what it reported before."""
        if self.lease.is_lost:
            raise _lost(self.lease)
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        self._progress = self._progress.then(progress)
        if progress.checkpoint is None:
            self._write_in_time()
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._write()
        await waiter

    def group(self) -> Group | None:
        """What is to be sent now; None: the handler has ended, or its lease."""
        self._is_told = False
        progress, waiters = self._progress, self._waiters
        self._progress, self._waiters = progress._replace(checkpoint=None), []
        if self.lease.is_lost or not self._is_running(self):
            _resolve(waiters, _lost(self.lease))
            return None
        self._next_at = monotonic() + EVERY
        call = Call("set_progress", {**self.lease.names, "id": self.message.id, **progress.arguments})
        return Group(self.lease, call, told=partial(self._sent, waiters))

    def _sent(self, waiters: Waiters, error: psycopg.Error | None) -> None:
        if error is None:
            _resolve(waiters, None)
            return
        refused = translate(error) or error
        if isinstance(error, psycopg.DataError):
            refused = unreadable(Diagnosis.of(error.diag), str(error))
        if not waiters:
            # Nobody waits for percent and note: the next report says it.
            self._refused = refused
        _resolve(waiters, refused)

    def _write_in_time(self) -> None:
        if self._is_told or self._timer is not None:
            return
        if (rest := self._next_at - monotonic()) <= 0:
            self._write()
        else:
            self._timer = asyncio.get_running_loop().call_later(rest, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_told:
            self._is_told = True
            self._tell(self)


class Reports:
    """What the handlers of one slot say: of one message, or of each in a batch."""

    def __init__(self, lease_of: Callable[[Message], Lease | None], tell: Callable[[Report], None]) -> None:
        self._lease_of = lease_of
        """The lease of a message whose handler runs; None: it has ended."""
        self._tell = tell
        self._last: dict[int, Report] = {}
        """By message."""

    async def add(self, message: Message, progress: Progress) -> None:
        """A handler says more."""
        if (lease := self._lease_of(message)) is None:
            raise InvalidArgument(f"the handler of message {message.id} has ended", "report while it runs")
        report = self._last.get(message.id)
        if report is None or not self._runs(report):
            # What a slot runs ends together. Looking at each would take a large batch seconds.
            if not all(self._runs(each) for each in islice(self._last.values(), 1)):
                self._last = {}
            report = self._last[message.id] = Report(lease, message, self._runs, self._tell)
        await report.add(progress)

    def _runs(self, report: Report) -> bool:
        return self._lease_of(report.message) is report.lease


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"lease {lease.lease_id} of queue {lease.queue} has ended")


def _resolve(waiters: Waiters, error: Exception | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
