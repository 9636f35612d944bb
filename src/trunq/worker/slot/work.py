"""What a slot has at work: one message, or several that run together, each under its lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from trunq.client.message import Message
from trunq.client.park import Park
from trunq.record import Fate
from trunq.worker.answer.group import Group, ack_of_one, park_of
from trunq.worker.answer.lease import Lease, Parked
from trunq.worker.answer.outcome import Subject
from trunq.worker.handler import Handler
from trunq.worker.handler.result import encode


class AckRefused(Exception):
    """The ack in a handler's transaction was refused: the message is no longer ours; all is rolled back."""


class Committed(NamedTuple):
    """The handler's transaction committed, the ack with it; of a batch, all outcomes."""

    result: Any
    fates: list[Fate]
    """What becomes of those that were no acks."""


Entry = tuple[Lease, Message]
"""A message and its lease. A bare tuple: there are many."""


class Work(Protocol):
    """What a handler is called for once."""

    @property
    def entries(self) -> Sequence[Entry]:
        """Its messages, each with its lease."""

    @property
    def given(self) -> Any:
        """What the handler is called with."""

    @property
    def subject(self) -> Subject:
        """What the log calls it."""

    @property
    def is_lost(self) -> bool:
        """Whether no answer to it can count any more."""

    @property
    def lease_time(self) -> float:
        """Seconds that a lease of it lasts, at least."""

    def time_out(self, handler: Handler) -> float | None:
        """Seconds that the handler may take."""

    def answers(self, result: Any, took: float) -> list[Group]:
        """All answers, for the transaction of the handler. Raises TypeError for what JSON cannot hold."""

    def answered_before(self) -> Exception:
        """What is wrong when one of its messages had an answer already."""


class Single(NamedTuple):
    """One message."""

    lease: Lease
    message: Message

    @property
    def entries(self) -> Sequence[Entry]:
        """This one."""
        return (self,)

    @property
    def given(self) -> Message:
        """The message."""
        return self.message

    @property
    def subject(self) -> Subject:
        """The message."""
        return Subject.of(self.message)

    @property
    def is_lost(self) -> bool:
        """Whether its lease is."""
        return self.lease.is_lost

    @property
    def lease_time(self) -> float:
        """Its lease's."""
        return self.lease.lease_time

    def time_out(self, handler: Handler) -> float | None:
        """Its own."""
        return time_out(self, handler)

    def answers(self, result: Any, took: float) -> list[Group]:
        """The ack, or what parks it."""
        if isinstance(result, Park):
            return [park_of(self.lease, [Parked(self.message.id, took, result)])]
        return [ack_of_one(self.lease, self.message.id, took, encode(result))]

    def answered_before(self) -> Exception:
        """It is no longer ours."""
        return AckRefused("the message was answered before")


def time_out(entry: Entry, handler: Handler) -> float | None:
    """Seconds that a handler may take: as the message says, or the handler, or the subscription."""
    lease, message = entry
    return message.time_out or handler.time_out or lease.time_out
