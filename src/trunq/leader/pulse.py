"""What a leader says of its work at an interval, if it was told to: a line as that of PgQ's daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from trunq.leader.line import Performed

log = logging.getLogger("trunq.leader")

_SAID: Final = {
    "tick": "ticks",
    "promote": "promoted",
    "reap": "reaped",
    "fire": "fired",
    "rotate": "rotated",
    "archive": "archived",
}
"""What the work of these duties is called; of the others, calls are counted alone."""


class Pulse:
    """Says every `interval` seconds what was done since the last line, while this process leads."""

    def __init__(self, interval: float, performed: Performed, find_term: Callable[[], int | None]) -> None:
        self._interval = interval
        self._performed = performed
        self._find_term = find_term

    async def run(self) -> None:
        """Speak until cancelled."""
        last, said_at = self._count(), monotonic()
        while True:
            await asyncio.sleep(self._interval)
            now, total = monotonic(), self._count()
            counts = {name: total[name] - last[name] for name in total}
            # A term that ended since the last line has its last one.
            if (term := self._find_term()) is not None or any(counts.values()):
                told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
                log.info("in %.0f s: %s", now - said_at, told, extra={**counts, "term": term})
            last, said_at = total, now

    def _count(self) -> dict[str, int]:
        done = self._performed.done
        counts = {name: done.get(duty, 0) for duty, name in _SAID.items()}
        calls, errors = self._performed.calls, self._performed.errors
        return {"duties": sum(calls.values()), **counts, "errors": sum(errors.values())}
