"""What becomes of the messages of a batch that has run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from trunq.message import Message, Reject, Retry
from trunq.worker.answer import Outbox
from trunq.worker.batch import Batch, failed
from trunq.worker.lease import Lease
from trunq.worker.limit import Entry
from trunq.worker.outcome import Subject
from trunq.worker.result import raised_answer
from trunq.worker.transaction import Committed

log = logging.getLogger("trunq.worker")

_UNTIL_ROOM: Final = 5.0
"""Seconds after which a message whose ack found no room in the database runs again."""

Answer = Callable[[Lease, Message, float, Any], None]


def settle(batch: Batch, result: Any, took: float, outbox: Outbox, answer: Answer, fail: Answer) -> None:
    """Give each message its outcome, by functions that do so for one."""
    if isinstance(result, Committed):
        _tell(batch, result, outbox)
        return
    for (lease, message), outcome in zip(batch.entries, result, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, Retry | Reject):
            fail(lease, message, took, outcome)
            continue
        try:
            is_answer = isinstance(outcome, Retry | Reject)
            answer(lease, message, took, raised_answer(outcome) if is_answer else outcome)
        except Exception as error:
            # A result that JSON cannot hold.
            fail(lease, message, took, error)


def _tell(batch: Batch, committed: Committed, outbox: Outbox) -> None:
    """All outcomes are in the database."""
    fates = {fate.id: fate for fate in committed.fates}
    for (lease, message), outcome in zip(batch.entries, committed.outcomes or [], strict=True):
        made = failed(outcome)
        if isinstance(made, Retry | Reject):
            outbox.settled(lease, message, made, batch.reference_of(message), fates.get(message.id))
        else:
            outbox.committed(lease)


def give_back(batch: Batch, outbox: Outbox) -> None:
    """A lease was lost, and nothing of the batch has an effect: the messages that are still ours did not
    fail, and go back.
    """
    log.warning(
        "%s of %s ran in vain: a lease of theirs was lost meanwhile",
        "1 message" if len(batch.entries) == 1 else f"{len(batch.entries)} messages",
        batch.queue,
        extra={"queue": batch.queue},
    )
    for lease, message in batch.entries:
        if lease.is_lost:
            outbox.forget(lease)
        else:
            outbox.release(lease, [message.id])


def try_later(entries: Sequence[Entry], error: Exception, outbox: Outbox) -> None:
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
            outbox.forget(lease)
        else:
            outbox.release(lease, [message.id], _UNTIL_ROOM)
