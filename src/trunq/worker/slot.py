"""A slot: one handler at a time.

N slots take from one backlog. A slot runs its handlers in its own task, one after the other, since a task for
each message costs as much as leasing and answering it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

from trunq.message import Message, Reject, Retry
from trunq.worker.answer import Outbox
from trunq.worker.backlog import Backlog
from trunq.worker.lease import Lease
from trunq.worker.outcome import Subject
from trunq.worker.registry import Handler, Registry
from trunq.worker.result import encode, raised_answer
from trunq.worker.thread import Thread
from trunq.worker.transaction import COMMITTED, AckRefused, Transactions

log = logging.getLogger("trunq.worker")

TURN: Final = 0.005
"""Handlers that never wait for anything: the loop gets its turn after this many seconds."""

_UNHEARD: Final = 10.0
"""A sync handler whose lease was lost has so many seconds to notice."""
_MOST_LEFT: Final = 3
"""Threads that a slot leaves behind with handlers that hang. Each takes memory, and perhaps a connection."""


class NoHandler(NamedTuple):
    """No handler is registered for the kind of a message; `why` says so."""

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
        self.lease: Lease | None = None
        """The lease of the message that runs here."""

    async def run(self) -> None:
        """Take and handle messages. This is the hot path: what it does for each message is counted in
        nanoseconds.
        """
        task = self._task = asyncio.current_task()
        assert task is not None
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
            if started >= lease.ends:
                lease.parked.append(message)
                continue
            handler = handlers.get(message.kind, default)
            self.lease = lease
            backlog.busy += 1
            try:
                if handler is not None and handler.is_plain and self._reserve is None:
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
                self.lease = None
            if ended - turn > TURN or task.cancelling():
                self._recover(task)
                await asyncio.sleep(0)
                turn = monotonic()

    def lose(self) -> None:
        """The lease of what runs here is lost: an async handler is cancelled, a sync one sees its event."""
        if self._in_thread is not None:
            self._in_thread.set()
            asyncio.get_running_loop().call_later(_UNHEARD, self._leave, self._in_thread, None)
        elif self._task is not None:
            self._task.cancel()

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

    def _recover(self, task: asyncio.Task[Any]) -> None:
        """After a handler that was cancelled, whether it ended so or swallowed it: the slot goes on."""
        if self._is_aborted:
            raise asyncio.CancelledError
        while task.cancelling():
            task.uncancel()
        self._verdict = None

    async def _handle(self, handler: Handler | None, lease: Lease, message: Message) -> Any:
        """Call a handler that needs a thread, a transaction or a time limit."""
        if handler is None:
            return self._no_handler(self._unknown(message))
        if not handler.is_async:
            return await self._run_in_thread(handler, lease, message)
        if handler.connection is not None:
            work = self._transactions.run(handler, lease, message)
        else:
            work = handler.function(message)
        if (limit := self._limit(lease)) is None:
            return await work
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await work
        except TimeoutError as error:
            raise (_late(limit) if deadline.expired() else error) from None

    async def _run_in_thread(self, handler: Handler, lease: Lease, message: Message) -> Any:
        lost = self._in_thread = threading.Event()
        self._subject = Subject.of(message)
        arguments = {} if handler.lost is None else {handler.lost: lost}
        if handler.connection is not None:
            call = partial(self._transactions.run_sync, handler, lease, message, arguments)
        else:
            call = partial(handler.function, message, **arguments)
        if self._thread is None:
            self._thread = Thread(f"trunq-slot-{self._number}")
        timers, limit = [], self._limit(lease)
        if limit is not None and self._reserve is not None:
            loop = asyncio.get_running_loop()
            timers.append(loop.call_later(limit, lost.set))
            timers.append(loop.call_later(limit + self._reserve / 2, self._leave, lost, _late(limit)))
        try:
            result = await self._thread.run(call)
        except asyncio.CancelledError:
            # A thread cannot be cancelled. The slot goes on with another.
            self._left = [thread for thread in self._left if thread.is_alive]
            self._left.append(self._thread)
            self._thread.close()
            self._thread = None
            raise
        finally:
            self._in_thread = None
            for timer in timers:
                timer.cancel()
        if limit is not None and lost.is_set() and result is not COMMITTED and not lease.is_lost:
            raise _late(limit)
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
        if result is COMMITTED:
            self._outbox.committed(lease)
        elif isinstance(result, Retry | Reject):
            self._outbox.answer(lease, message, took, result)
        elif isinstance(result, NoHandler):
            self._outbox.put_off(lease, message, result.why)
        else:
            self._outbox.ack(lease, message.id, took, encode(result))

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
        if isinstance(error, Retry | Reject):
            try:
                self._answer(lease, message, took, raised_answer(error))
                return
            except Exception as broken:
                # A class of the handler's own, without what an answer has.
                error = broken
        self._outbox.fail(lease, message, took, error)

    def _unknown(self, message: Message) -> str:
        known = ", ".join(self._registry.kinds) or "none"
        what = "messages without a kind" if message.kind is None else f"kind {message.kind}"
        return f"no handler for {what} at worker {self._worker}, which has: {known}"

    def _limit(self, lease: Lease) -> float | None:
        return None if self._reserve is None else lease.lease_time - self._reserve


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


def _late(limit: float) -> TimeoutError:
    return TimeoutError(f"the handler ran longer than the {limit:g} seconds it was given")
