"""Sync handlers: the thread of a slot, and those that it left to handlers that hang."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from trunq.process.thread import Thread
from trunq.worker.slot.deadline import late, raise_late
from trunq.worker.slot.work import Committed, Work

log = logging.getLogger("trunq.worker")

_UNHEARD: Final = 10.0
"""A handler whose lease was lost has so many seconds to notice."""
_MOST_LEFT: Final = 3
"""Threads that a slot leaves behind with handlers that hang. Each takes memory, and perhaps a connection."""


class Beside:
    """Runs sync handlers beside the event loop, one at a time. None can be cancelled: each has an event that
    says it should give up, and one that does not is left to its thread, of which `stop` tells the slot, with
    what it failed with.
    """

    def __init__(self, number: int, stop: Callable[[Exception | None], None]) -> None:
        self._name = f"trunq-slot-{number}"
        self._stop = stop
        self._thread: Thread | None = None
        self._left: list[Thread] = []
        self._work: Work | None = None
        self._lost: threading.Event | None = None
        """The event of the handler that runs."""

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs."""
        return self._lost is not None

    async def run(
        self,
        work: Work,
        call: Callable[[], Any],
        lost: threading.Event,
        limit: float | None,
        patience: float,
    ) -> Any:
        """Call a handler, whose event is `lost`. That is set after `limit` seconds; it is left `patience`
        later.
        """
        self._lost, self._work = lost, work
        if self._thread is None:
            self._thread = Thread(self._name)
        timers, is_over = [], False

        def end_time() -> None:
            nonlocal is_over
            is_over = True
            lost.set()

        if limit is not None:
            loop = asyncio.get_running_loop()
            timers.append(loop.call_later(limit, end_time))
            timers.append(loop.call_later(limit + patience, self._leave, lost, late(limit)))
        try:
            result = await self._thread.run(call)
        except asyncio.CancelledError:
            # A thread cannot be cancelled. The slot goes on with another.
            self._left = [thread for thread in self._left if thread.is_alive]
            self._left.append(self._thread)
            self._thread.close()
            self._thread = None
            raise
        except Exception as error:
            if limit is not None and is_over and not work.is_lost:
                raise_late(limit, error)
            raise
        finally:
            self._lost = self._work = None
            for timer in timers:
                timer.cancel()
        if limit is not None and is_over and not isinstance(result, Committed) and not work.is_lost:
            raise late(limit)
        return result

    def tell(self) -> None:
        """Set the event of what runs."""
        if self._lost is not None:
            self._lost.set()

    def lose(self) -> None:
        """Set it since the lease is lost: who does not hear it in time is left."""
        if self._lost is not None:
            self._lost.set()
            asyncio.get_running_loop().call_later(_UNHEARD, self._leave, self._lost, None)

    def give_up(self, error: Exception) -> None:
        """Set it, and leave what runs at once: it has failed with `error`."""
        if self._lost is not None:
            self._lost.set()
            self._leave(self._lost, error)

    def close(self) -> None:
        """Let the thread go."""
        if self._thread is not None:
            self._thread.close()

    def _leave(self, lost: threading.Event, error: Exception | None) -> None:
        """Leave a handler that hangs to its thread, unless this slot has left too many."""
        if self._lost is not lost or self._work is None:
            return
        subject = self._work.subject
        hanging = sum(thread.is_alive for thread in self._left)
        if hanging >= _MOST_LEFT:
            log.error("%s hangs, and its slot waits: %s others of the slot hang already", subject, hanging)
            return
        log.error("%s hangs: its handler does not end, and is left to its thread", subject)
        self._stop(error)
