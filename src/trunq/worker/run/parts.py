"""The parts of a worker, which go on beside each other, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

STUBBORN: Final = 5.0
"""Seconds in which what is cancelled should end, when no grace bounds them."""


class Parts:
    """Tasks that go on beside what a worker does at the moment.

    Unlike in a TaskGroup, what one of them dies of leaves the others alone: handlers that run are finished
    and answered first. And nobody waits for ever for one that refuses to be cancelled.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin one more."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`; whatever a part dies of ends it."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                done, _ = await asyncio.wait({task, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
                # Forgotten, or it would end the next work too.
                self._tasks -= done
                for part in done - {task}:
                    part.result()
            task.result()
        finally:
            await _end({task}, STUBBORN)

    async def end(self, within: float = STUBBORN) -> None:
        """Cancel all of them."""
        await _end(self._tasks, within)


async def wait_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until all have ended; raises what the first one raised that did."""
    # Not gather: cancelled itself, it would cancel them.
    for task in tasks:
        await asyncio.wait({task})
        task.result()


async def _end(tasks: set[asyncio.Task[None]], within: float) -> None:
    """Cancel tasks and wait until they have ended, however; not for ever, for a handler may refuse to."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=within)
        for task in done:
            if not task.cancelled():
                task.exception()
