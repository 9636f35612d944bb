"""Keeping leases: what runs is extended, what does not get to start is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

from trunq.worker.answer import Outbox
from trunq.worker.backlog import Backlog
from trunq.worker.fetch import Ahead
from trunq.worker.lease import Lease, Source, Statistics
from trunq.worker.slot import Slot

_BEATS: Final = 8
"""Looks at the leases in one lease time: an extension is asked for between a third and 11/24 of it."""
_SHORTEST: Final = 0.02
_LONGEST: Final = 5.0


class Heartbeat:
    """Watches over the open leases of a worker."""

    def __init__(
        self,
        sources: Sequence[Source],
        slots: Iterable[Slot],
        backlog: Backlog,
        ahead: Ahead,
        statistics: Statistics,
    ) -> None:
        self._sources = sources
        self._slots = slots
        self._backlog = backlog
        self._ahead = ahead
        self._statistics = statistics

    async def run(self, outbox: Outbox) -> None:
        """Watch until cancelled."""
        while True:
            shortest = min(source.lease_time for source in self._sources)
            await asyncio.sleep(min(max(shortest / _BEATS, _SHORTEST), _LONGEST))
            now = monotonic()
            for lease in list(outbox.open.values()):
                if now >= lease.renew_at:
                    self._renew(lease, outbox, now)

    def _renew(self, lease: Lease, outbox: Outbox, now: float) -> None:
        if now - lease.leased_at > lease.lease_time / 2:
            # It was extended before, and still some have not started: another worker may have a slot for
            # them.
            self.give_back(lease, outbox)
        if lease.active > 0:
            outbox.extend(lease)

    def give_back(self, lease: Lease, outbox: Outbox) -> None:
        """Release what waits of a lease."""
        entries = self._backlog.withdraw(lease)
        if entries:
            self._ahead.is_barred = True
            outbox.release(lease, [message.id for _, message in entries])

    def renewed(self, lease: Lease) -> None:
        """An extension was granted: what was parked may start."""
        if lease.parked and not self._backlog.is_closed:
            parked, lease.parked = lease.parked, []
            self._backlog.add([(lease, message) for message in parked])

    def lost(self, lease: Lease) -> None:
        """A lease is lost: forget what waits of it, tell the handlers of what runs."""
        self._statistics.lost += len(self._backlog.withdraw(lease))
        for slot in self._slots:
            if slot.lease is lease:
                slot.lose()
