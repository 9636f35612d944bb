"""What becomes of messages whose handler has ended, by what it returned or raised."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trunq import display
from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Lease
from trunq.worker.answer.outcome import Subject
from trunq.worker.handler import Registry
from trunq.worker.handler.result import describe, encode, raised_answer
from trunq.worker.slot.batch import Batch, failed
from trunq.worker.slot.deadline import CalledOff, TimedOut
from trunq.worker.slot.transaction import NoRoom
from trunq.worker.slot.work import AckRefused, Committed, Entry

log = logging.getLogger("trunq.worker")

CALLED_OFF: Final = "cancelled while it ran"
_UNTIL_ROOM: Final = 5.0
"""Seconds after which a message whose ack found no room in the database runs again."""


class NoHandler(NamedTuple):
    """A message has no handler here that could be called; `why` says why."""

    why: str


class Settlement:
    """Answers messages whose handler has ended."""

    def __init__(self, registry: Registry, outbox: Outbox) -> None:
        self._registry = registry
        self._outbox = outbox

    def answer(self, lease: Lease, message: Message, took: float, result: Any) -> None:
        """The handler returned. Raises for a result that cannot be sent."""
        if log.isEnabledFor(logging.DEBUG):
            _say_done(message, took, result)
        if isinstance(result, Committed):
            self._outbox.committed(lease, is_parked=isinstance(result.result, Park))
        elif isinstance(result, Retry | Reject):
            self._outbox.answer(lease, message, took, result, self._registry.policy(message.kind))
        elif isinstance(result, Park):
            self._outbox.park(lease, message, took, result, self._registry.policy(message.kind))
        elif isinstance(result, NoHandler):
            self._outbox.put_off(lease, message, result.why)
        else:
            self._outbox.ack(lease, message.id, took, encode(result), self._registry.policy(message.kind))

    def fail(self, lease: Lease, message: Message, took: float, error: BaseException) -> None:
        """The handler raised."""
        if lease.is_lost or isinstance(error, AckRefused):
            log.warning(
                "message %s of %s has no effect: its lease was lost while it ran; another worker handles it",
                message.id,
                message.queue,
                extra=Subject.of(message).about,
            )
            self._outbox.forget(lease)
            return
        if isinstance(error, NoRoom):
            self._try_later([(lease, message)], error)
            return
        policy = self._registry.policy(message.kind)
        if message.is_cancelled and not isinstance(error, Reject):
            why = CALLED_OFF if isinstance(error, CalledOff) else f"{CALLED_OFF}: {describe(error)}"
            self._outbox.call_off(lease, message, took, why, policy)
            return
        if isinstance(error, Retry | Reject):
            try:
                self.answer(lease, message, took, raised_answer(error))
                return
            except Exception as broken:
                # A class of the handler's own, without what an answer has.
                error = broken
        self._outbox.fail(lease, message, took, error, policy, is_late=isinstance(error, TimedOut))

    def answer_each(self, batch: Batch, took: float, result: Any) -> None:
        """The handler of a batch returned: each message has its outcome."""
        if isinstance(result, Committed):
            self._tell(batch, result)
            return
        for (lease, message), outcome in zip(batch.entries, result, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Retry | Reject):
                self.fail(lease, message, took, outcome)
                continue
            try:
                is_answer = isinstance(outcome, Retry | Reject)
                self.answer(lease, message, took, raised_answer(outcome) if is_answer else outcome)
            except Exception as error:
                # A result that JSON cannot hold.
                self.fail(lease, message, took, error)

    def fail_each(self, batch: Batch, took: float, error: BaseException) -> None:
        """The handler of a batch raised."""
        if isinstance(error, NoRoom):
            self._try_later(batch.entries, error)
        elif batch.is_lost or isinstance(error, AckRefused):
            self._give_back(batch)
        else:
            for lease, message in batch.entries:
                self.fail(lease, message, took, error)

    def _tell(self, batch: Batch, committed: Committed) -> None:
        """All outcomes are in the database."""
        fates = {fate.id: fate for fate in committed.fates}
        for (lease, message), outcome in zip(batch.entries, committed.result, strict=True):
            made = failed(outcome)
            if isinstance(made, Retry | Reject):
                reference = batch.reference_of(message)
                self._outbox.settled(lease, message, made, reference, fates.get(message.id))
            else:
                self._outbox.committed(lease, is_parked=isinstance(made, Park))

    def _give_back(self, batch: Batch) -> None:
        """A lease was lost, and nothing of the batch has an effect: the messages that are still ours did not
        fail, and go back.
        """
        log.warning(
            "%s of %s had no effect: a lease of theirs was lost while they ran",
            display.counted(len(batch.entries), "message"),
            batch.subject.queue,
            extra={"queue": batch.subject.queue},
        )
        for lease, message in batch.entries:
            if lease.is_lost:
                self._outbox.forget(lease)
            else:
                self._outbox.release(lease, [message.id])

    def _try_later(self, entries: Sequence[Entry], error: Exception) -> None:
        """The database had no room for the ack in a handler's transaction: the messages did not fail, and go
        back for a while, which is no attempt.
        """
        for lease, message in entries:
            log.error(
                "message %s of %s is rolled back and runs again in %g s:"
                " its ack finds no room in the database: %s",
                message.id,
                message.queue,
                _UNTIL_ROOM,
                error,
                extra=Subject.of(message).about,
            )
            if lease.is_lost:
                self._outbox.forget(lease)
            else:
                self._outbox.release(lease, [message.id], _UNTIL_ROOM)


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
