"""The ends of asyncio's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

STUBBORN: Final = 5.0
"""Seconds in which what is cancelled should end, when no grace bounds them."""


async def wait_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until all have ended; raises what the first one raised that did."""
    # Not gather: cancelled itself, it would cancel them.
    for task in tasks:
        await asyncio.wait({task})
        task.result()


async def end_all(*tasks: asyncio.Task[None], within: float = STUBBORN) -> None:
    """Cancel tasks and wait until they have ended, however; not for ever, for a handler may refuse to."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=within)
        for task in done:
            if not task.cancelled():
                task.exception()
