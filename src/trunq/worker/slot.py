"""A slot: one handler at a time.

N slots take from one backlog. A slot runs its handlers in its own task, one after the other, since a task for
each message costs as much as leasing and answering it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

from trunq.errors import InvalidArgument
from trunq.message import Message, Reject, Retry
from trunq.progress import Progress
from trunq.thread import Thread, wait_for
from trunq.worker.answer import Outbox
from trunq.worker.backlog import Backlog
from trunq.worker.batch import Batch
from trunq.worker.deadline import CalledOff, TimedOut, late, raise_late
from trunq.worker.lease import Lease
from trunq.worker.limit import Entry
from trunq.worker.outcome import Subject
from trunq.worker.process import NotReady
from trunq.worker.registry import Handler, Registry
from trunq.worker.report import Reports
from trunq.worker.result import describe, encode, raised_answer
from trunq.worker.settle import give_back, settle, try_later
from trunq.worker.transaction import AckRefused, Committed, NoRoom, Transactions

log = logging.getLogger("trunq.worker")

TURN: Final = 0.005
"""Handlers that never wait for anything: the loop gets its turn after this many seconds."""

FOR_ANSWER: Final = 10.0
"""Seconds after the time-out of a handler in which its lease still holds, for its answer."""
_UNHEARD: Final = 10.0
"""A sync handler whose lease was lost has so many seconds to notice."""
_PATIENCE: Final = 5.0
"""A sync handler that took too long has so many."""
_MOST_LEFT: Final = 3
"""Threads that a slot leaves behind with handlers that hang. Each takes memory, and perhaps a connection."""


class NoHandler(NamedTuple):
    """A message has no handler here that could be called; `why` says why."""

    why: str


class Slot:
    """Handles messages from the backlog until it is closed."""

    def __init__(
        self,
        number: int,
        backlog: Backlog,
        registry: Registry,
        outbox: Outbox,
        transactions: Transactions,
        no_handler: Callable[[str], Any],
        reserve: float | None,
        worker: str,
    ) -> None:
        self._number = number
        self._backlog = backlog
        self._registry = registry
        self._outbox = outbox
        self._transactions = transactions
        self._no_handler = no_handler
        self._reserve = reserve
        self._worker = worker
        self._thread: Thread | None = None
        self._left: list[Thread] = []
        """Threads with handlers that hang, left to themselves."""
        self._task: asyncio.Task[Any] | None = None
        self._in_thread: threading.Event | None = None
        self._subject: Subject | None = None
        """The message whose handler runs in the thread."""
        self._verdict: Exception | None = None
        """What a handler that is cancelled now has failed with."""
        self._is_aborted = False
        self.lease: Lease | Batch | None = None
        """The lease of the message that runs here, or the batch."""
        self.message: Message | Batch | None = None
        """That message, that batch, or the one before."""
        self.stops_at: float | None = None
        """When a time-out stops what runs here."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reports = Reports(self._lease_of, outbox.tell)

    async def run(self) -> None:
        """Take and handle messages. This is the hot path: what it does for each message is counted in
        nanoseconds.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
        self._loop = task.get_loop()
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
            lease, message = waiting.popleft()
            if len(waiting) <= backlog.low:
                changed.set()
            started = monotonic()
            handler = handlers.get(message.kind, default)
            if started >= lease.ends or (
                handler is not None and handler.is_held and not backlog.enter(handler)
            ):
                await self._set_aside(handler, lease, message, started)
                continue
            self.lease, self.message, message._runner = lease, message, self
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
                    self._answer(lease, message, ended - started, result)
            except BaseException as error:
                ended = monotonic()
                self._fail(lease, message, ended - started, error)
            finally:
                backlog.busy -= 1
                self.lease = self.stops_at = None
            if ended - turn > TURN or task.cancelling():
                self._recover(task)
                await asyncio.sleep(0)
                turn = monotonic()

    def lose(self) -> None:
        """A lease of what runs here is lost: an async handler is cancelled, a sync one sees its event. A
        batch runs on while an answer of it counts.
        """
        if isinstance(self.lease, Batch) and not self.lease.is_lost:
            return
        if self._in_thread is not None:
            self._in_thread.set()
            asyncio.get_running_loop().call_later(_UNHEARD, self._leave, self._in_thread, None)
        elif self._task is not None:
            self._task.cancel()

    @property
    def entries(self) -> list[Entry]:
        """What runs here, each message with its lease."""
        if isinstance(self.lease, Batch):
            return self.lease.entries
        if self.lease is None or not isinstance(self.message, Message):
            return []
        return [(self.lease, self.message)]

    def call_off(self, lease: Lease, ids: Collection[int]) -> None:
        """Somebody cancelled messages of a lease. Of those that run here, an async handler is cancelled, a
        sync one sees its event; a batch runs on for the sake of the others. Once: what it does then is not
        disturbed.
        """
        told = [each for held, each in self.entries if held is lease and each.id in ids]
        told = [message for message in told if not message.is_cancelled]
        for message in told:
            message.is_cancelled = True
            log.info(
                "message %s of %s was cancelled, and its handler is told",
                message.id,
                message.queue,
                extra=Subject.of(message).about,
            )
        if not told or not all(message.is_cancelled for _, message in self.entries):
            return
        if self._in_thread is not None:
            self._in_thread.set()
        elif self._task is not None:
            self._verdict = CalledOff(_CALLED_OFF)
            self._task.cancel()

    def time_left(self, message: Message) -> float | None:
        """Seconds until the handler of a message is stopped; None: it may go on, or runs no more."""
        if self.stops_at is None or self._lease_of(message) is None:
            return None
        return max(0.0, self.stops_at - monotonic())

    async def extend(self, message: Message, seconds: float) -> datetime:
        """Let the lease of a message that runs here end so many seconds from now."""
        if (lease := self._lease_of(message)) is None:
            raise InvalidArgument(f"the handler of message {message.id} has ended", "extend it while it runs")
        return await self._outbox.extended(lease, seconds)

    def extend_in_thread(self, message: Message, seconds: float) -> datetime:
        """The same, for a sync handler."""
        return wait_for(self._loop, self.extend(message, seconds), "message.extend()")

    async def set_progress(self, message: Message, progress: Progress) -> None:
        """Tell how far a message is that runs here."""
        await self._reports.add(message, progress)

    def set_progress_in_thread(self, message: Message, progress: Progress) -> None:
        """The same, for a sync handler."""
        wait_for(self._loop, self.set_progress(message, progress), "message.set_progress()")

    def give_up(self, error: Exception) -> None:
        """Wait no longer for what runs here: it has failed with `error`."""
        if self._in_thread is not None:
            self._in_thread.set()
            self._leave(self._in_thread, error)
        elif self._task is not None and self.lease is not None:
            self._verdict = error
            self._task.cancel()

    def abort(self) -> None:
        """Stop at once, without an answer."""
        self._is_aborted = True
        if self._in_thread is not None:
            self._in_thread.set()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Let the thread go."""
        if self._thread is not None:
            self._thread.close()

    def _lease_of(self, message: Message) -> Lease | None:
        return next((lease for lease, each in self.entries if each is message), None)

    def _recover(self, task: asyncio.Task[Any]) -> None:
        """After a handler that was cancelled, whether it ended so or swallowed it: the slot goes on."""
        if self._is_aborted:
            raise asyncio.CancelledError
        while task.cancelling():
            task.uncancel()
        self._verdict = None

    async def _set_aside(self, handler: Handler | None, lease: Lease, message: Message, now: float) -> None:
        """A message may not start by itself: its lease has run out, its handler runs as often as it may, or
        takes batches, of which one may start now.
        """
        backlog = self._backlog
        if handler is None or now >= lease.ends:
            lease.parked.append(message)
            backlog.resume()
        elif handler.batching is not None:
            gathering = backlog.gathering(handler, handler.batching, lease.queue)
            if gathering.is_full:
                backlog.turned_away += 1
                self._outbox.release(lease, [message.id], gathering.delay(now))
            elif (batch := gathering.add((lease, message), now)) is not None:
                await self._run_batch(handler, batch)
        elif backlog.limits[handler].is_full:
            backlog.turned_away += 1
            self._outbox.release(lease, [message.id], backlog.limits[handler].delay(now))
        else:
            backlog.turned_away += 1
            backlog.limits[handler].waiting.append((lease, message))

    async def _run_batch(self, handler: Handler, batch: Batch) -> None:
        """Run a batch, which has the place of its handler that it needs."""
        backlog, started = self._backlog, monotonic()
        self.lease = self.message = batch
        for message in batch.messages:
            message._runner = self
        backlog.busy += 1
        try:
            await self._find_checkpoints(batch)
            result = await self._call(handler, batch, batch)
            settle(batch, result, monotonic() - started, self._outbox, self._answer, self._fail)
        except BaseException as error:
            self._fail_batch(batch, monotonic() - started, error)
        finally:
            backlog.busy -= 1
            self.lease = self.stops_at = None
            if handler.concurrency is not None:
                backlog.leave(handler, monotonic() - started)
        assert self._task is not None
        self._recover(self._task)
        await asyncio.sleep(0)

    async def _find_checkpoints(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.has_checkpoint:
                message.checkpoint = await self._outbox.checkpoint(message)

    async def _handle(self, handler: Handler | None, lease: Lease, message: Message) -> Any:
        """Call a handler that needs more than to be awaited, which has the place it was given."""
        if handler is None:
            return self._no_handler(self._unknown(message))
        started = monotonic()
        try:
            if message.has_checkpoint:
                await self._find_checkpoints([message])
            if handler.policy is not None:
                handler.policy.tell(message)
            return await self._call(handler, lease, message)
        finally:
            if handler.concurrency is not None:
                self._backlog.leave(handler, monotonic() - started)

    async def _call(self, handler: Handler, lease: Lease | Batch, message: Message | Batch) -> Any:
        """Call a handler, in another process if it is for one: until that is ready, its time does not run."""
        if handler.processes is None:
            return await self._call_in_time(handler, lease, message)
        try:
            async with handler.processes.reserved():
                return await self._call_in_time(handler, lease, message)
        except NotReady as error:
            return NoHandler(str(error))

    async def _call_in_time(self, handler: Handler, lease: Lease | Batch, message: Message | Batch) -> Any:
        """Call a handler, in a thread, a transaction or a time limit if it needs one."""
        own = message.time_out or handler.time_out or lease.time_out
        self.stops_at = None if own is None else monotonic() + own
        limit = self._limit(lease, own)
        if not handler.is_async:
            return await self._run_in_thread(handler, lease, message, limit)
        if handler.has_transaction:
            work = self._transactions.run(handler, lease, message)
        else:
            work = handler.function(message)
        if limit is None:
            return await work
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await work
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

    async def _run_in_thread(
        self, handler: Handler, lease: Lease | Batch, message: Message | Batch, limit: float | None
    ) -> Any:
        lost = self._in_thread = threading.Event()
        self._subject = Subject.of(message)
        arguments = {} if handler.lost is None else {handler.lost: lost}
        if handler.has_transaction:
            call = partial(self._transactions.run_sync, handler, lease, message, arguments)
        else:
            call = partial(handler.function, message, **arguments)
        if self._thread is None:
            self._thread = Thread(f"trunq-slot-{self._number}")
        timers, over = [], threading.Event()
        if limit is not None:
            loop = asyncio.get_running_loop()
            patience = _PATIENCE if self._reserve is None else self._reserve / 2
            timers.append(loop.call_later(limit, over.set))
            timers.append(loop.call_later(limit, lost.set))
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
            if limit is not None and over.is_set() and not lease.is_lost:
                raise_late(limit, error)
            raise
        finally:
            self._in_thread = None
            for timer in timers:
                timer.cancel()
        if limit is not None and over.is_set() and not isinstance(result, Committed) and not lease.is_lost:
            raise late(limit)
        return result

    def _leave(self, lost: threading.Event, error: Exception | None) -> None:
        """Leave a handler that hangs to its thread, unless this slot has left too many."""
        if self._in_thread is not lost or self._task is None:
            return
        hanging = sum(thread.is_alive for thread in self._left)
        if hanging >= _MOST_LEFT:
            log.error(
                "%s hangs, and its slot waits: %s others of the slot hang already", self._subject, hanging
            )
            return
        log.error("%s hangs: its handler does not end, and is left to its thread", self._subject)
        self._verdict = error
        self._task.cancel()

    def _answer(self, lease: Lease, message: Message, took: float, result: Any) -> None:
        if log.isEnabledFor(logging.DEBUG):
            _say_done(message, took, result)
        if isinstance(result, Committed):
            self._outbox.committed(lease)
        elif isinstance(result, Retry | Reject):
            self._outbox.answer(lease, message, took, result, self._registry.policy(message.kind))
        elif isinstance(result, NoHandler):
            self._outbox.put_off(lease, message, result.why)
        else:
            self._outbox.ack(lease, message.id, took, encode(result), self._registry.policy(message.kind))

    def _fail_batch(self, batch: Batch, took: float, error: BaseException) -> None:
        if not self._is_aborted and isinstance(error, NoRoom):
            try_later(batch.entries, error, self._outbox)
            return
        if not self._is_aborted and (batch.is_lost or isinstance(error, AckRefused)):
            give_back(batch, self._outbox)
            return
        for lease, message in batch.entries:
            self._fail(lease, message, took, error)

    def _fail(self, lease: Lease, message: Message, took: float, error: BaseException) -> None:
        if self._is_aborted or isinstance(error, KeyboardInterrupt | GeneratorExit):
            # Stopping at once: no answer.
            raise error
        if isinstance(error, asyncio.CancelledError) and self._verdict is not None:
            error = self._verdict
        if lease.is_lost or isinstance(error, AckRefused):
            log.warning(
                "message %s of %s ran in vain: its lease was lost meanwhile, and another worker runs it",
                message.id,
                message.queue,
                extra=Subject.of(message).about,
            )
            self._outbox.forget(lease)
            return
        if isinstance(error, NoRoom):
            try_later([(lease, message)], error, self._outbox)
            return
        policy = self._registry.policy(message.kind)
        if message.is_cancelled and not isinstance(error, Reject):
            why = _CALLED_OFF if isinstance(error, CalledOff) else f"{_CALLED_OFF}: {describe(error)}"
            self._outbox.call_off(lease, message, took, why, policy)
            return
        if isinstance(error, TimedOut):
            self._outbox.time_out(lease, message, took, error, policy)
            return
        if isinstance(error, Retry | Reject):
            try:
                self._answer(lease, message, took, raised_answer(error))
                return
            except Exception as broken:
                # A class of the handler's own, without what an answer has.
                error = broken
        self._outbox.fail(lease, message, took, error, policy)

    def _unknown(self, message: Message) -> str:
        known = ", ".join(self._registry.kinds) or "none"
        what = "messages without a kind" if message.kind is None else f"kind {message.kind}"
        return f"no handler for {what} at worker {self._worker}, which has: {known}"

    def _limit(self, lease: Lease | Batch, time_out: float | None) -> float | None:
        if self._reserve is None:
            return time_out
        rest = lease.lease_time - self._reserve
        return rest if time_out is None else min(rest, time_out)


def _say_done(message: Message, took: float, result: Any) -> None:
    if not isinstance(result, Retry | Reject | NoHandler):
        subject = Subject.of(message)
        log.debug(
            "%s done%s, in %.3g ms",
            subject,
            subject.details,
            took * 1000,
            extra={**subject.about, "outcome": "done", "took": took},
        )


_CALLED_OFF: Final = "cancelled while it ran"
