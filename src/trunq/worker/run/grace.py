"""The grace: the time that a worker has from a stop to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

from trunq.process import signals
from trunq.worker.run.parts import STUBBORN

_FOR_HANDLERS: Final = 0.8
"""This share of the grace is for handlers."""
_FOR_ANSWERS: Final = 0.9
"""Until then is the time of their answers; the rest is for the end."""
_FOR_LEASE: Final = 0.25
"""This share of the grace is for the answer of a lease that was asked for before."""


class Grace:
    """It lasts `seconds`; None: for ever."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._ends_at: float | None = None
        self._overdue = asyncio.Event()

    def begin(self, lease_no_longer: Callable[[], None], give_up: Callable[[], None]) -> None:
        """It begins: what is called when a lease that was asked for is waited for no longer, and when
        handlers are.
        """
        if (grace := self.seconds) is None:
            return
        loop = asyncio.get_running_loop()
        # A handler that blocks this loop may have kept us from hearing of it.
        now = monotonic()
        since = now - (signals.heard_at or now)
        self._ends_at = now - since + grace
        loop.call_later(max(0.0, min(grace * _FOR_LEASE, STUBBORN) - since), lease_no_longer)
        loop.call_later(max(0.0, grace * _FOR_HANDLERS - since), give_up)
        loop.call_later(max(0.0, grace * _FOR_ANSWERS - since), self._overdue.set)

    @property
    def is_over(self) -> bool:
        """Whether all that is left of it is for the end."""
        return self._overdue.is_set()

    @property
    def for_tasks(self) -> float:
        """Seconds until what was cancelled should have ended: half of what is left is for closing the
        connections.
        """
        return STUBBORN if self._ends_at is None else max(0.0, (self._ends_at - monotonic()) / 2)

    async def bound(self, work: Coroutine[Any, Any, None], say_over: Callable[[], None]) -> None:
        """Do `work`, but no longer than it lasts."""
        task, overdue = asyncio.create_task(work), asyncio.create_task(self._overdue.wait())
        try:
            await asyncio.wait({task, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            else:
                say_over()
        finally:
            task.cancel()
            overdue.cancel()
