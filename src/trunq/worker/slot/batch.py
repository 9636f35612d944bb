"""Batches: messages that one call of a handler takes together.

Messages of a batch handler that a slot takes from the backlog are gathered here, for each queue by itself,
until there are enough of them or the first has waited long enough. Then a slot has them as one piece of work:
a batch takes one slot, and one place of its handler's `concurrency`. What waits here is leased and not
started, as what waits for a slot: it is given back, cancelled and lost in the same way.

A message that may be on its way to death runs in a batch of its own, so that no other dies with it: on its
last attempt, unless that is the first, and whenever it comes alone in its lease after its first attempt, as
those do whose leases ran out (suspects).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic
from typing import Any, Final

from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.wire.reference import new_reference
from trunq.worker.answer.group import Group, answered, referred, seconds
from trunq.worker.answer.lease import Acked, Lease, Parked, Rejected, Retried
from trunq.worker.answer.outcome import Note, Subject
from trunq.worker.handler import Handler
from trunq.worker.handler.batched import Batching
from trunq.worker.handler.result import describe, encode, raised_answer
from trunq.worker.slot.limit import Limit
from trunq.worker.slot.work import Entry, time_out

_SOON_ENOUGH: Final = 3
"""After this part of their lease (a divisor), messages start however few they are: before they would be given
back to other workers.
"""
_UNSAID: Final = Note(Subject("", 0), "", (), "", is_first=False)


class Batch:
    """Messages that run together."""

    def __init__(self, handler: Handler, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._handler = handler
        self._leases = sorted({lease for lease, _ in entries}, key=attrgetter("lease_id"))
        self._references: dict[int, str] = {}

    @property
    def given(self) -> list[Message]:
        """The messages."""
        return [message for _, message in self.entries]

    @property
    def subject(self) -> Subject:
        """The first message, which stands for all where one line tells of them."""
        return Subject.of(self.entries[0][1])

    @property
    def is_lost(self) -> bool:
        """Whether no answer can count any more: in a transaction, all of them are given together."""
        return (any if self._handler.has_transaction else all)(lease.is_lost for lease in self._leases)

    @property
    def lease_time(self) -> float:
        """The shortest."""
        return min(lease.lease_time for lease in self._leases)

    def time_out(self, handler: Handler) -> float | None:
        """The shortest."""
        given = (time_out(entry, handler) for entry in self.entries)
        return min((each for each in given if each is not None), default=None)

    def reference_of(self, message: Message) -> str:
        """The reference of a message's error: one, however often the transaction is tried."""
        return self._references.setdefault(message.id, new_reference())

    def answers(self, result: Any, took: float) -> list[Group]:
        """All answers, in the order in which leases must be locked; the result is a list of outcomes."""
        groups = []
        for lease in self._leases:
            acked: list[Acked] = []
            retried: list[Retried] = []
            rejected: list[Rejected] = []
            parked: list[Parked] = []
            for (own, message), outcome in zip(self.entries, result, strict=True):
                if own is not lease:
                    continue
                answer = failed(outcome)
                if isinstance(answer, Retry):
                    policy, delay = self._handler.policy, seconds(answer)
                    error = None
                    if answer.error is not None:
                        error = referred(answer.error, self.reference_of(message))
                    retried.append(Retried(message.id, took, _UNSAID, error, delay, policy))
                elif isinstance(answer, Park):
                    parked.append(Parked(message.id, took, answer))
                elif isinstance(answer, Reject):
                    error = referred(answer.detail, self.reference_of(message), answer.public)
                    rejected.append(Rejected(message.id, took, _UNSAID, error))
                else:
                    acked.append((message.id, took, encode(answer)))
            groups += answered(lease, acked, retried, rejected, parked)
        return groups

    def answered_before(self) -> Exception:
        """A failure, or those that were not answered would come again for ever."""
        return RuntimeError("a message of the batch was answered before its handler ended")


def failed(outcome: Any) -> Any:
    """An outcome; in place of an exception the retry that it stands for."""
    if isinstance(outcome, Retry | Reject):
        return raised_answer(outcome)
    return Retry(error=describe(outcome)) if isinstance(outcome, BaseException) else outcome


class Gathering:
    """Messages of one handler and one queue that wait for more of them, or for a place of their handler."""

    def __init__(
        self, handler: Handler, batching: Batching, limit: Limit | None, start: Callable[[Entry], None]
    ) -> None:
        self.handler = handler
        self._size, self._wait = batching
        self._limit = limit
        self._start = start
        """Gives a message to a slot, which brings it back and takes the batch."""
        self.waiting: deque[Entry] = deque()
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def missing(self) -> int:
        """So many more fill the batch that is being gathered."""
        return max(0, self._size - len(self.waiting)) if self.waiting else 0

    @property
    def is_full(self) -> bool:
        """Whether no more may wait here for a place."""
        limit = self._limit
        return limit is not None and limit.is_reached and len(self.waiting) >= limit.most

    def delay(self, now: float) -> float:
        """Seconds for which one more message is given back."""
        assert self._limit is not None
        return self._limit.delay(now, len(self.waiting))

    def add(self, entry: Entry, now: float) -> Batch | None:
        """Have one more. Returns the batch when it is to start now, its place taken."""
        lease, message = entry
        if self.handler.policy is not None:
            self.handler.policy.tell(message)
        if self._is_due or _is_alone(entry):
            self.waiting.appendleft(entry)
        else:
            self.waiting.append(entry)
        self._be_due(lease, now)
        if not self._may_start:
            return None
        if self._limit is not None:
            self._limit.running += 1
        return Batch(self.handler, self._take(now))

    def rouse(self) -> None:
        """Have a slot take what may start: something changed."""
        if self.waiting and self._may_start:
            self._is_due = True
            self._start(self.waiting.popleft())

    @property
    def _may_start(self) -> bool:
        if self._limit is not None and self._limit.is_reached:
            return False
        return self._is_due or len(self.waiting) >= self._size or _is_alone(self.waiting[0])

    def _take(self, now: float) -> list[Entry]:
        taken: list[Entry] = []
        while self.waiting and len(taken) < self._size:
            is_alone = _is_alone(self.waiting[0])
            if is_alone and taken:
                break
            lease, message = entry = self.waiting.popleft()
            if now >= lease.ends:
                lease.parked.append(message)
                continue
            taken.append(entry)
            if is_alone:
                break
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiting:
            self._be_due(self.waiting[0][0], now)
            self.rouse()
        return taken

    def _be_due(self, lease: Lease, now: float) -> None:
        """Start in time for a message that came now."""
        due = min(now + self._wait, lease.leased_at + lease.lease_time / _SOON_ENOUGH)
        if self._is_due or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer, self._is_due = None, True
        self.rouse()


def _is_alone(entry: Entry) -> bool:
    lease, message = entry
    return message.attempt > 1 and (lease.size == 1 or message.is_last_attempt)
