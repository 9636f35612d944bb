"""Keeping leases: what runs is extended, what does not get to start is given back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Sequence
from time import monotonic
from typing import Final

from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Lease, Source, Statistics
from trunq.worker.run.leasing import Ahead
from trunq.worker.slot import Slot
from trunq.worker.slot.backlog import Backlog

_BEATS: Final = 8
"""Looks at the leases in one lease time: an extension is asked for between a third and 11/24 of it."""
_SHORTEST: Final = 0.02
_LONGEST: Final = 5.0
_FOR_ANSWER: Final = 10.0
"""Seconds after the time-out of a handler in which its lease still holds, for its answer."""


class Heartbeat:
    """Watches over the open leases of a worker."""

    def __init__(
        self,
        sources: Sequence[Source],
        slots: Iterable[Slot],
        backlog: Backlog,
        outbox: Outbox,
        ahead: Ahead,
        statistics: Statistics,
    ) -> None:
        self._sources = sources
        self._slots = list(slots)
        self._running = [slot.running for slot in self._slots]
        self._backlog = backlog
        self._outbox = outbox
        self._ahead = ahead
        self._statistics = statistics
        self._changed = asyncio.Event()
        outbox.inform(self.lost, self.renewed, self.cancelled)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            times = [source.lease_time for source in self._sources]
            times += [lease.lease_time for lease in self._outbox.open.values()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(min(times) / _BEATS, _SHORTEST), _LONGEST)):
                    await self._changed.wait()
            self._changed.clear()
            now = monotonic()
            for lease in list(self._outbox.open.values()):
                if now >= lease.renew_at:
                    self._renew(lease, now)

    def _renew(self, lease: Lease, now: float) -> None:
        if now - lease.leased_at > lease.lease_time / 2:
            # It was extended before, and still some have not started: another worker may have a slot for
            # them.
            self.give_back(lease)
        if lease.active > 0 and (seconds := self._room(lease, now)) > lease.ends - now:
            self._outbox.extend(lease, seconds)

    def _room(self, lease: Lease, now: float) -> float:
        """How long it may last from now: no longer than its last handler may run, whose answer needs a
        moment."""
        stops = [each.stops_at for each in self._running for held, _ in each.entries if held is lease]
        last = max((at for at in stops if at is not None), default=None)
        if last is None or None in stops or len(stops) < lease.active:
            return lease.lease_time
        return min(lease.lease_time, last + _FOR_ANSWER - now)

    def ask(self, source: Source, ids: Collection[int] | None) -> None:
        """Somebody cancelled messages of a queue that run (None: many): ask about those that are here."""
        entries = [entry for each in self._running for entry in each.entries]
        entries += self._backlog.not_started
        entries += [(lease, message) for lease in self._outbox.open.values() for message in lease.parked]
        leases = {
            lease
            for lease, message in entries
            if lease.queue == source.queue and (ids is None or message.id in ids)
        }
        now = monotonic()
        for lease in leases:
            self._outbox.extend(lease, max(self._room(lease, now), lease.ends - now, _SHORTEST))

    def cancelled(self, lease: Lease, ids: Collection[int]) -> None:
        """The database said that somebody cancelled messages of a lease."""
        for slot in self._slots:
            slot.call_off(lease, ids)
        waiting = [message for _, message in self._backlog.withdraw(lease, ids)]
        waiting += [message for message in lease.parked if message.id in ids]
        lease.parked = [message for message in lease.parked if message.id not in ids]
        if waiting:
            self._outbox.call_off_waiting(lease, waiting)

    def give_back(self, lease: Lease) -> None:
        """Release what waits of a lease."""
        entries = self._backlog.withdraw(lease)
        if entries:
            self._ahead.is_barred = True
            self._outbox.release(lease, [message.id for _, message in entries])

    def renewed(self, lease: Lease) -> None:
        """An extension was granted: what was parked may start."""
        self._changed.set()
        if lease.parked and not self._backlog.is_closed:
            parked, lease.parked = lease.parked, []
            self._backlog.add([(lease, message) for message in parked])

    def lost(self, lease: Lease) -> None:
        """A lease is lost: forget what waits of it, tell the handlers of what runs."""
        self._statistics.lost += len(self._backlog.withdraw(lease))
        for slot in self._slots:
            if any(held is lease for held, _ in slot.running.entries):
                slot.lose()
