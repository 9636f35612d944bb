"""A slot: one handler at a time.

N slots take from one backlog. A slot runs its handlers in its own task, one after the other, since a task for
each message costs as much as leasing and answering it.

    backlog      leased, not started
    limit        how many of a handler run at a time, and what waits for that
    batch        messages gathered for a function that takes several
    work         one message or a batch, as a handler is called for it
    running      what runs in a slot, and what its handler may ask
    caller       calls handlers that are not plain coroutines (beside: in a thread; deadline: in time)
    transaction  those that have one (cleaning: what the next must not find)
    settle       what becomes of a message by what its handler returned or raised
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Final

from trunq.client.message import Message
from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Lease
from trunq.worker.answer.outcome import Subject
from trunq.worker.handler import Handler, Registry
from trunq.worker.slot.backlog import Backlog
from trunq.worker.slot.batch import Batch
from trunq.worker.slot.beside import Beside
from trunq.worker.slot.caller import Caller
from trunq.worker.slot.deadline import CalledOff
from trunq.worker.slot.running import Running
from trunq.worker.slot.settle import CALLED_OFF, Settlement
from trunq.worker.slot.transaction import Transactions
from trunq.worker.slot.work import Entry, Single

log = logging.getLogger("trunq.worker")

TURN: Final = 0.005
"""Handlers that never wait for anything: the loop gets its turn after this many seconds."""


class Slot:
    """Handles messages from the backlog until it is closed."""

    def __init__(
        self,
        number: int,
        backlog: Backlog,
        registry: Registry,
        outbox: Outbox,
        transactions: Transactions,
        settlement: Settlement,
        no_handler: Callable[[str], Any],
        reserve: float | None,
        worker: str,
    ) -> None:
        self._backlog = backlog
        self._registry = registry
        self._outbox = outbox
        self._settlement = settlement
        self._no_handler = no_handler
        self._reserve = reserve
        self._worker = worker
        self.running = Running(outbox)
        self._beside = Beside(number, self._cancel)
        self._caller = Caller(transactions, outbox, self.running, self._beside, reserve)
        self._task: asyncio.Task[Any] | None = None
        self._verdict: Exception | None = None
        """What a handler that is cancelled now has failed with."""
        self._is_aborted = False

    async def run(self) -> None:
        """Take and handle messages. This is the hot path: what it does for each message is counted in
        nanoseconds.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        running, settlement = self.running, self._settlement
        running.loop = task.get_loop()
        backlog, outbox = self._backlog, self._outbox
        waiting, changed = backlog.waiting, backlog.changed
        handlers, default = self._registry.handlers, self._registry.default
        is_verbose = log.isEnabledFor(logging.DEBUG)
        turn = monotonic()
        while True:
            while not waiting:
                if backlog.is_closed:
                    return
                await backlog.wait()
                turn = monotonic()
            entry = waiting.popleft()
            lease, message = entry
            if len(waiting) <= backlog.low:
                changed.set()
            started = monotonic()
            handler = handlers.get(message.kind, default)
            if started >= lease.ends or (
                handler is not None and handler.is_held and not backlog.enter(handler)
            ):
                await self._set_aside(handler, entry, started)
                continue
            running.entries, running.since, message._runner = (entry,), started, running
            backlog.busy += 1
            try:
                if (
                    handler is not None
                    and handler.is_plain
                    and self._reserve is None
                    and lease.time_out is None
                    and message._options is None
                ):
                    result = await handler.function(message)
                else:
                    result = await self._handle(handler, lease, message)
                ended = monotonic()
                if result is None and not is_verbose:
                    outbox.ack(lease, message.id, ended - started)
                else:
                    settlement.answer(lease, message, ended - started, result)
            except BaseException as error:
                ended = monotonic()
                settlement.fail(lease, message, ended - started, self._failure(error))
            finally:
                backlog.busy -= 1
                running.entries, running.stops_at = (), None
            if ended - turn > TURN or task.cancelling():
                self._recover(task)
                await asyncio.sleep(0)
                turn = monotonic()

    def lose(self) -> None:
        """A lease of what runs here is lost: an async handler is cancelled, a sync one sees its event. A
        batch runs on while an answer of it counts.
        """
        if not self.running.is_lost:
            return
        if self._beside.is_busy:
            self._beside.lose()
        else:
            self._cancel(None)

    def call_off(self, lease: Lease, ids: Collection[int]) -> None:
        """Somebody cancelled messages of a lease. Of those that run here, an async handler is cancelled, a
        sync one sees its event; a batch runs on for the sake of the others. Once: what it does then is not
        disturbed.
        """
        entries = self.running.entries
        told = [each for held, each in entries if held is lease and each.id in ids and not each.is_cancelled]
        for message in told:
            message.is_cancelled = True
            log.info(
                "message %s of %s was cancelled, and its handler is told",
                message.id,
                message.queue,
                extra=Subject.of(message).about,
            )
        if not told or not all(message.is_cancelled for _, message in entries):
            return
        if self._beside.is_busy:
            self._beside.tell()
        else:
            self._cancel(CalledOff(CALLED_OFF))

    def give_up(self, error: Exception) -> None:
        """Wait no longer for what runs here: it has failed with `error`."""
        if self._beside.is_busy:
            self._beside.give_up(error)
        elif self.running.entries:
            self._cancel(error)

    def abort(self) -> None:
        """Stop at once, without an answer."""
        self._is_aborted = True
        self._beside.tell()
        self._cancel(None)

    def close(self) -> None:
        """Let the thread go."""
        self._beside.close()

    def _cancel(self, verdict: Exception | None) -> None:
        """Cancel what runs here, which has failed with `verdict`."""
        if self._task is not None:
            self._verdict = verdict
            self._task.cancel()

    def _failure(self, error: BaseException) -> BaseException:
        """What a handler has failed with that raised this. Raised when the worker ends at once: there is no
        answer then.
        """
        if self._is_aborted or isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise error
        return self._verdict or error if isinstance(error, asyncio.CancelledError) else error

    def _recover(self, task: asyncio.Task[Any]) -> None:
        """After a handler that was cancelled, whether it ended so or swallowed it: the slot goes on."""
        if self._is_aborted:
            raise asyncio.CancelledError
        while task.cancelling():
            task.uncancel()
        self._verdict = None

    async def _set_aside(self, handler: Handler | None, entry: Entry, now: float) -> None:
        """A message may not start by itself: its lease has run out, its handler runs as often as it may, or
        takes batches, of which one may start now.
        """
        backlog, (lease, message) = self._backlog, entry
        if handler is None or now >= lease.ends:
            lease.parked.append(message)
            backlog.resume()
        elif handler.batching is not None:
            gathering = backlog.gathering(handler, handler.batching, lease.queue)
            if gathering.is_full:
                backlog.turned_away += 1
                self._outbox.release(lease, [message.id], gathering.delay(now))
            elif (batch := gathering.add(entry, now)) is not None:
                await self._run_batch(handler, batch)
        elif backlog.limits[handler].is_full:
            backlog.turned_away += 1
            self._outbox.release(lease, [message.id], backlog.limits[handler].delay(now))
        else:
            backlog.turned_away += 1
            backlog.limits[handler].waiting.append(entry)

    async def _run_batch(self, handler: Handler, batch: Batch) -> None:
        """Run a batch, which has the place of its handler that it needs."""
        backlog, running, started = self._backlog, self.running, monotonic()
        running.entries, running.is_joint = batch.entries, handler.has_transaction
        running.since = started
        for _, message in batch.entries:
            message._runner = running
        backlog.busy += 1
        try:
            result = await self._caller.call(handler, batch)
            self._settlement.answer_each(batch, monotonic() - started, result)
        except BaseException as error:
            self._settlement.fail_each(batch, monotonic() - started, self._failure(error))
        finally:
            backlog.busy -= 1
            running.end()
            if handler.concurrency is not None:
                backlog.leave(handler, monotonic() - started)
        assert self._task is not None
        self._recover(self._task)
        await asyncio.sleep(0)

    async def _handle(self, handler: Handler | None, lease: Lease, message: Message) -> Any:
        """Call a handler that needs more than to be awaited, which has the place it was given."""
        if handler is None:
            return self._no_handler(self._unknown(message.kind))
        started = monotonic()
        try:
            if handler.policy is not None:
                handler.policy.tell(message)
            return await self._caller.call(handler, Single(lease, message))
        finally:
            if handler.concurrency is not None:
                self._backlog.leave(handler, monotonic() - started)

    def _unknown(self, kind: str | None) -> str:
        known = ", ".join(self._registry.kinds) or "none"
        what = "messages without a kind" if kind is None else f"kind {kind}"
        return f"no handler for {what} at worker {self._worker}, which has: {known}"
