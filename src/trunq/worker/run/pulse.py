"""What a worker says of its work: numbers, while there are any, and at the end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from datetime import timedelta
from time import monotonic
from typing import Final

from trunq.display import interval
from trunq.worker.answer.lease import Statistics
from trunq.worker.answer.outcome import EVERY, Outcomes
from trunq.worker.slot.backlog import Backlog

log = logging.getLogger("trunq.worker")

_SAID: Final = (
    *(
        "handled",
        "failed",
        "retried",
        "rejected",
        "parked",
        "dead",
        "cancelled",
        "put_off",
        "released",
        "lost",
    ),
)


class Pulse:
    """Says every EVERY seconds what was done since the last time, unless nothing was."""

    def __init__(self, statistics: Statistics, backlog: Backlog, outcomes: Outcomes) -> None:
        self._statistics = statistics
        self._backlog = backlog
        self._outcomes = outcomes
        self._began = self._said_at = monotonic()
        self._first = self._last = asdict(statistics)

    async def run(self) -> None:
        """Speak until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self._outcomes.say_rest()
            now, done = monotonic(), self._since(self._last)
            if done:
                backlog = self._backlog
                log.info(
                    "in %.0f s: %s; %s run, %s wait for a slot",
                    now - self._said_at,
                    _counts(done),
                    backlog.busy,
                    len(backlog.waiting),
                    extra={**done, "running": backlog.busy, "waiting": len(backlog.waiting)},
                )
            self._said_at, self._last = now, asdict(self._statistics)

    def end(self) -> None:
        """Say what this run did, in all."""
        self._outcomes.say_rest()
        done = self._since(self._first)
        # Whole seconds are enough, unless it was over at once.
        took = timedelta(seconds=round(monotonic() - self._began, 1))
        log.info("ended after %s: %s", interval(took), _counts(done) or "nothing was done", extra=done)

    def _since(self, before: dict[str, int]) -> dict[str, int]:
        now = asdict(self._statistics)
        return {name: now[name] - before[name] for name in _SAID if now[name] > before[name]}


def _counts(done: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in done.items())
