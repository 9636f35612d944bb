"""What runs in a slot, and what its handler may ask about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from time import monotonic

from trunq.client.message import Message
from trunq.client.progress import Progress
from trunq.errors import InvalidArgument
from trunq.process.thread import wait_for
from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Lease
from trunq.worker.answer.report import Reports
from trunq.worker.slot.work import Entry


class Running:
    """The work of a slot, from the start of its handler to the end: what a message knows as its runner."""

    def __init__(self, outbox: Outbox) -> None:
        self.entries: Sequence[Entry] = ()
        """Each message that runs, with its lease."""
        self.is_joint = False
        """Whether the answers to all of them are given in one transaction."""
        self.since = 0.0
        """When their handler was called."""
        self.stops_at: float | None = None
        """When a time-out stops its handler."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._outbox = outbox
        self._reports = Reports(self._lease_of, outbox.tell)

    @property
    def is_lost(self) -> bool:
        """Whether no answer can count any more."""
        lost = [lease.is_lost for lease, _ in self.entries]
        return any(lost) if self.is_joint else bool(lost) and all(lost)

    def end(self) -> None:
        """Nothing runs any more."""
        self.entries, self.is_joint, self.stops_at = (), False, None

    def time_left(self, message: Message) -> float | None:
        """Seconds until the handler of a message is stopped; None: it may go on, or runs no more."""
        if self.stops_at is None or self._lease_of(message) is None:
            return None
        return max(0.0, self.stops_at - monotonic())

    async def extend(self, message: Message, seconds: float) -> datetime:
        """Let the lease of a message that runs here end so many seconds from now."""
        if (lease := self._lease_of(message)) is None:
            raise InvalidArgument(f"the handler of message {message.id} has ended", "extend it while it runs")
        return await self._outbox.extended(lease, seconds)

    def extend_in_thread(self, message: Message, seconds: float) -> datetime:
        """The same, for a sync handler."""
        return wait_for(self.loop, self.extend(message, seconds), "message.extend()")

    async def set_progress(self, message: Message, progress: Progress) -> None:
        """Tell how far a message is that runs here."""
        await self._reports.add(message, progress)

    def set_progress_in_thread(self, message: Message, progress: Progress) -> None:
        """The same, for a sync handler."""
        wait_for(self.loop, self.set_progress(message, progress), "message.set_progress()")

    def _lease_of(self, message: Message) -> Lease | None:
        return next((lease for lease, each in self.entries if each is message), None)
