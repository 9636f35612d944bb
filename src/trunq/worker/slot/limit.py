"""How many messages of one handler run at a time in this worker, and which of them wait for their turn.

The log hands out what comes next, of whatever kind. So a worker leases messages that their limit keeps from
starting: some wait here, beside the slots and the prefetch, which they must not fill; the rest goes back
with a delay and loses no attempt. What waits here is what the handler does in HOLD seconds: more would only
keep it from other workers, less would leave the handler idle until something comes back.

The delay is about the time until the message could start, half of it: other workers may be free sooner. So a
message is given back a few times in a long wait, and those given back come again in their order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from trunq.worker.slot.work import Entry

HOLD: Final = 2.0
"""Seconds of work that wait here."""
MOST: Final = 1000
"""Messages that wait here."""
SOONEST: Final = 1.0
LATEST: Final = 300.0
"""Seconds after which what was given back comes again: 5 minutes at most, as for want of a handler."""
_GUESS: Final = 1.0
"""Seconds that a handler takes, before one has ended."""
_WEIGHT: Final = 0.2
"""Of the last handler in the mean of all."""


class Limit:
    """The limit of one handler, which may handle several messages each time it runs."""

    def __init__(self, concurrency: int, size: int = 1) -> None:
        self.concurrency = concurrency
        self._size = size
        self.running = 0
        self.waiting: deque[Entry] = deque()
        self._seconds: float | None = None
        self._all_back_at = 0.0

    @property
    def is_full(self) -> bool:
        """Whether no more may wait here."""
        return len(self.waiting) >= self.most

    @property
    def is_reached(self) -> bool:
        """Whether no more may run."""
        return self.running >= self.concurrency

    @property
    def most(self) -> float:
        """So many messages may wait."""
        return max(self._size, min(MOST, max(self.concurrency * self._size, HOLD / self._pace)))

    @property
    def _pace(self) -> float:
        """Seconds from the start of one message to that of the next while the limit is reached."""
        seconds = max(1e-6, _GUESS if self._seconds is None else self._seconds)
        return seconds / (self.concurrency * self._size)

    def ended(self, seconds: float) -> None:
        """A handler has ended, and took so long."""
        self.running -= 1
        before = seconds if self._seconds is None else self._seconds
        self._seconds = before + (seconds - before) * _WEIGHT

    def delay(self, now: float, waiting: int | None = None) -> float:
        """Seconds for which one more message is given back, behind those that wait here, or elsewhere."""
        ahead = len(self.waiting) if waiting is None else waiting
        soonest = now + max(SOONEST, ahead * self._pace / 2)
        self._all_back_at = min(max(soonest, self._all_back_at + self._pace / 2), now + LATEST)
        return self._all_back_at - now
