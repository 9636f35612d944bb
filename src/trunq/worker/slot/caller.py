"""Calling a handler as it wants to be called: in a thread, a process, a transaction, a time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import partial
from time import monotonic
from typing import Any, Final

from trunq.worker.answer import Outbox
from trunq.worker.handler import Handler
from trunq.worker.handler.process import NotReady
from trunq.worker.slot.beside import Beside
from trunq.worker.slot.deadline import late, raise_late
from trunq.worker.slot.running import Running
from trunq.worker.slot.settle import NoHandler
from trunq.worker.slot.transaction import Transactions
from trunq.worker.slot.work import Work

_PATIENCE: Final = 5.0
"""A sync handler that took too long has so many seconds to notice."""


class Caller:
    """Calls the handlers of one slot."""

    def __init__(
        self,
        transactions: Transactions,
        outbox: Outbox,
        running: Running,
        beside: Beside,
        reserve: float | None,
    ) -> None:
        self._transactions = transactions
        self._outbox = outbox
        self._running = running
        self._beside = beside
        self._reserve = reserve
        """Seconds of its lease that a handler must leave."""

    async def call(self, handler: Handler, work: Work) -> Any:
        """Call a handler, in another process if it is for one: until that is ready, its time does not run."""
        for _, message in work.entries:
            if message.has_checkpoint:
                await self._outbox.recall(message)
        if handler.processes is None:
            return await self._call_in_time(handler, work)
        try:
            async with handler.processes.reserved():
                return await self._call_in_time(handler, work)
        except NotReady as error:
            return NoHandler(str(error))

    async def _call_in_time(self, handler: Handler, work: Work) -> Any:
        own = work.time_out(handler)
        self._running.stops_at = None if own is None else monotonic() + own
        limit = self._limit(work, own)
        if not handler.is_async:
            return await self._call_beside(handler, work, limit)
        if handler.has_transaction:
            called = self._transactions.run(handler, work)
        else:
            called = handler.function(work.given)
        if limit is None:
            return await called
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await called
        except TimeoutError as error:
            if not deadline.expired():
                raise
            # With the way to the line at which the handler was stopped.
            stopped = error.__cause__ or error
            if handler.processes is not None:
                raise late(limit, has_place=False) from None
            raise late(limit).with_traceback(stopped.__traceback__) from None
        except Exception as error:
            if deadline.expired():
                raise_late(limit, error)
            raise

    def _call_beside(self, handler: Handler, work: Work, limit: float | None) -> Coroutine[Any, Any, Any]:
        lost = threading.Event()
        arguments = {} if handler.lost is None else {handler.lost: lost}
        if handler.has_transaction:
            call = partial(self._transactions.run_sync, handler, work, arguments)
        else:
            call = partial(handler.function, work.given, **arguments)
        patience = _PATIENCE if self._reserve is None else self._reserve / 2
        return self._beside.run(work, call, lost, limit, patience)

    def _limit(self, work: Work, time_out: float | None) -> float | None:
        if self._reserve is None:
            return time_out
        rest = work.lease_time - self._reserve
        return rest if time_out is None else min(rest, time_out)
