"""Answers on their way to the database: gathered, sent in groups, never lost to a lost connection.

A group goes out in one pipeline and one transaction: one wait for the disk for all of it. If one answer of it
is refused, nothing of it is done, and each is sent by itself. Sending an answer twice is harmless, so after a
lost connection the group is simply sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncCursor

from trunq._async.execute import send, value
from trunq._sync.execute import value as sync_value
from trunq.call import Call
from trunq.connection.backoff import first_line
from trunq.connection.link import Link
from trunq.errors import LeaseLost, translate
from trunq.message import Message, Reject, Retry
from trunq.record import Fate
from trunq.wire.array import (
    bigint_array,
    encoded_jsonb_array,
    interval_array,
    real_array,
    text_array,
)
from trunq.worker.lease import Lease, PutOff, Rejected, Retried, Statistics
from trunq.worker.outcome import PUT_OFF, Outcomes, Subject
from trunq.worker.result import cut, describe

log = logging.getLogger("trunq.worker")

GATHER: Final = 0.005
"""Seconds for which answers are gathered while others are on their way."""
LARGE: Final = 2000
"""Answers sent at once."""
_LONGEST: Final = 8000
"""Characters of an error or reason that are kept."""
MOST_UNSENT: Final = 20_000
"""With this many answers unsent, nothing more is leased: the database is slow, or away."""


@dataclass(slots=True)
class Group:
    """Answers of one kind under one lease, the call that carries them, and what makes such a group.

    Behind answers that are not acks goes a question in the same transaction: what became of the messages?
    """

    lease: Lease
    call: Call
    answers: list[Any] = field(default_factory=list)
    make: Callable[[Lease, list[Any]], Group] | None = None
    question: Call | None = None
    _fates: AsyncCursor[tuple[Any, ...]] | None = None

    async def send(self, connection: AsyncConnection[Any]) -> None:
        """Send them."""
        await send(connection, self.call)
        if self.question is not None:
            self._fates = await send(connection, self.question)

    async def fates(self) -> dict[int, tuple[timedelta | None, str | None]]:
        """By message: the wait until it runs again, or why it is dead; none for those that run at once."""
        rows = [] if self._fates is None else await self._fates.fetchall()
        return {id: (wait, reason) for id, wait, reason in rows}


class Outbox:
    """Where slots put their answers; `run` sends them."""

    def __init__(
        self,
        link: Link,
        statistics: Statistics,
        outcomes: Outcomes,
        lost: Callable[[Lease], None],
        renewed: Callable[[Lease], None],
    ) -> None:
        self._link = link
        self._statistics = statistics
        self._outcomes = outcomes
        self._lost = lost
        self._renewed = renewed
        self._unsent: list[Lease] = []
        self._extensions: list[Lease] = []
        self._filled = asyncio.Event()
        self._large = asyncio.Event()
        self._sent = asyncio.Event()
        self.unsent = 0
        self.open: dict[int, Lease] = {}
        """Leases with messages that wait or run, by token."""

    # In order of what happens most; each is called once a message.

    def ack(self, lease: Lease, id: int, took: float, result: bytes | None = None) -> None:
        """The message was handled."""
        if self._take(lease):
            lease.acked.append((id, took, result))
            self._statistics.handled += 1

    def answer(self, lease: Lease, message: Message, took: float, answer: Retry | Reject) -> None:
        """The handler said what is to become of the message."""
        id, subject = message.id, Subject.of(message)
        # Made before it counts: what cannot be sent must not be taken twice.
        if isinstance(answer, Retry):
            delay = answer.after
            seconds = delay if delay is None or isinstance(delay, int | float) else delay.total_seconds()
            note = self._outcomes.answered(subject, "runs again", answer.error)
            retried = Retried(id, took, note, _clean(answer.error), seconds)
            if self._take(lease):
                lease.retried.append(retried)
                self._statistics.retried += 1
        else:
            note = self._outcomes.answered(subject, "is rejected", answer.reason)
            rejected = Rejected(id, took, note, _clean(answer.reason) or "")
            if self._take(lease):
                lease.rejected.append(rejected)
                self._statistics.rejected += 1

    def fail(self, lease: Lease, message: Message, took: float, error: BaseException) -> None:
        """The handler raised: the policy decides."""
        if self._take(lease):
            note = self._outcomes.failed(message, error)
            lease.retried.append(Retried(message.id, took, note, _clean(describe(error)), None))
            self._statistics.failed += 1

    def put_off(self, lease: Lease, message: Message, why: str) -> None:
        """This worker cannot start the message; another may, or its own next version."""
        if self._take(lease):
            note = self._outcomes.answered(Subject.of(message), PUT_OFF, why)
            lease.put_off.append(PutOff(message.id, note, _clean(why) or ""))
            self._statistics.put_off += 1

    def release(self, lease: Lease, ids: list[int]) -> None:
        """Messages that were not started go back."""
        if self._take(lease, len(ids)):
            lease.released += ids
            self._statistics.released += len(ids)

    def extend(self, lease: Lease) -> None:
        """Ask for more time."""
        if not lease.is_extending:
            lease.is_extending = True
            self._extensions.append(lease)
            self._filled.set()

    def committed(self, lease: Lease) -> None:
        """The message was acked in its handler's own transaction."""
        self._drop(lease, 1)
        self._statistics.handled += 1

    def forget(self, lease: Lease) -> None:
        """The message is no longer ours to answer."""
        self._drop(lease, 1)
        self._statistics.lost += 1

    def _drop(self, lease: Lease, count: int) -> None:
        lease.active -= count
        if lease.active <= 0:
            self.open.pop(lease.token, None)

    def _take(self, lease: Lease, count: int = 1) -> bool:
        self._drop(lease, count)
        if lease.is_lost:
            self._statistics.lost += count
            return False
        if not lease.is_unsent:
            lease.is_unsent = True
            self._unsent.append(lease)
            self._filled.set()
        self.unsent += count
        if self.unsent >= LARGE:
            self._large.set()
        return True

    # Sending

    async def run(self) -> None:
        """Send answers until cancelled: at once when there was nothing to send for a while, else gathered."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            self._large.clear()
            begun = monotonic()
            await self._send()
            rest = begun + GATHER - monotonic()
            if rest > 0 and not self._large.is_set():
                await self._gather(rest)

    async def _gather(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._large.set)
        await self._large.wait()
        timer.cancel()

    async def flushed(self, limit: int = 0) -> None:
        """Return when no more than `limit` answers are unsent."""
        while self.unsent > limit:
            self._sent.clear()
            await self._sent.wait()

    async def _send(self) -> None:
        leases, self._unsent = self._unsent, []
        extensions, self._extensions = self._extensions, []
        count, groups = self._collect(leases, extensions)
        asked_at = monotonic()
        try:
            await self._link.run(lambda connection: self._send_together(connection, groups))
        except psycopg.Error:
            # Statements behind the refused one were skipped, their preparation too, of which psycopg knows
            # nothing.
            await self._link.close()
            for group in groups:
                await self._send_alone(group)
        else:
            for group in groups:
                await self._tell(group)
        for lease in extensions:
            lease.is_extending = False
            if not lease.is_lost:
                lease.renewed(asked_at)
                self._renewed(lease)
        self.unsent -= count
        self._sent.set()

    def _collect(self, leases: list[Lease], extensions: list[Lease]) -> tuple[int, list[Group]]:
        """What to send, in the order in which several leases must be locked, and how many answers that is."""
        # Unsent answers of a lease lost meanwhile are gone from it, but not from the count.
        count = self.unsent
        groups: list[Group] = []
        for lease in leases:
            lease.is_unsent = False
            groups += _groups(lease)
        groups += [_extension(lease) for lease in extensions if not lease.is_lost]
        groups.sort(key=attrgetter("lease.lease_id"))
        return count, groups

    async def _send_together(self, connection: AsyncConnection[Any], groups: list[Group]) -> None:
        if len(groups) == 1 and groups[0].question is None:
            await groups[0].send(connection)
            return
        async with connection.pipeline():
            for group in groups:
                await group.send(connection)

    async def _send_alone(self, group: Group) -> None:
        try:
            await self._link.run(group.send)
        except psycopg.Error as error:
            await self._refused(group, error)
        else:
            await self._tell(group)

    async def _tell(self, group: Group) -> None:
        """Say what became of messages that were not acked."""
        if group.question is None:
            return
        fates = await group.fates()
        for answer in group.answers:
            wait, reason = fates.get(answer.id, (None, None))
            self._statistics.dead += reason is not None
            self._outcomes.say(answer.note, wait, reason)

    async def _refused(self, group: Group, error: psycopg.Error) -> None:
        ours, function = translate(error), group.call.function
        if isinstance(ours, LeaseLost):
            self._lose(group.lease, len(group.answers))
        elif len(group.answers) > 1 and group.make is not None:
            # One of them is not to the database's taste (a result that is RawJson and not JSON): find it.
            for answer in group.answers:
                await self._send_alone(group.make(group.lease, [answer]))
        elif function in _FAILING and not _was_refused(group.answers[0]):
            what, counter = _FAILING[function]
            answered = group.answers[0]
            setattr(self._statistics, counter, getattr(self._statistics, counter) - 1)
            self._statistics.failed += 1
            why = f"{_REFUSED} {what}: {first_line(error)}"
            subject = Subject(group.lease.queue, answered[0]) if function == "ack" else answered.note.subject
            note = self._outcomes.answered(subject, "failed", why)
            await self._send_alone(_retry(group.lease, [Retried(answered[0], answered[1], note, why, None)]))
        else:
            log.error(
                "the database refused an answer: %s",
                first_line(error),
                extra={"lease_id": group.lease.lease_id},
            )

    def _lose(self, lease: Lease, answers: int) -> None:
        self._statistics.lost += answers + lease.unsent + len(lease.parked)
        if not lease.is_lost:
            number = lease.active + answers
            log.warning(
                "lost the lease of %s of %s/%s: it ran out, or a second worker of the same name took it back",
                "1 message" if number == 1 else f"{number} messages",
                lease.queue,
                lease.subscription,
                extra={"lease_id": lease.lease_id, "queue": lease.queue},
            )
            lease.lose()
            self.open.pop(lease.token, None)
            self._lost(lease)


_REFUSED: Final = "the database refused"
_FAILING: Final = {
    "ack": ("the result", "handled"),
    "retry": ("the retry", "retried"),
    "reject": ("the rejection", "rejected"),
}
"""Answers that become a failure of their message when the database refuses them, and what counted them."""


def _was_refused(answer: Any) -> bool:
    """Whether this is the failure that stands for a refused answer: a second one would be the same again."""
    return isinstance(answer, Retried) and (answer.error or "").startswith(_REFUSED)


async def ack_in_transaction(
    connection: AsyncConnection[Any], lease: Lease, id: int, took: float, result: bytes | None
) -> bool:
    """Ack one message as the last statement of a handler's transaction. False: it was answered before."""
    return bool(await value(connection, _ack(lease, [(id, took, result)]).call) == 1)


def ack_in_sync_transaction(
    connection: psycopg.Connection[Any], lease: Lease, id: int, took: float, result: bytes | None
) -> bool:
    """The same on a sync connection."""
    return bool(sync_value(connection, _ack(lease, [(id, took, result)]).call) == 1)


def _groups(lease: Lease) -> list[Group]:
    groups = []
    if lease.acked:
        answers, lease.acked = lease.acked, []
        groups.append(_ack(lease, answers))
    if lease.retried:
        retried, lease.retried = lease.retried, []
        groups.append(_retry(lease, retried))
    if lease.rejected:
        rejected, lease.rejected = lease.rejected, []
        groups.append(_reject(lease, rejected))
    if lease.released:
        released, lease.released = lease.released, []
        groups.append(_release(lease, released))
    if lease.put_off:
        put_off, lease.put_off = lease.put_off, []
        groups.append(_put_off(lease, put_off))
    return groups


def _ack(lease: Lease, answers: list[Any]) -> Group:
    ids, took, results = zip(*answers, strict=True)
    given = None if results.count(None) == len(results) else encoded_jsonb_array(results)
    return _group(_ack, lease, answers, "ack", ids, results=given, took=real_array(took))


def _retry(lease: Lease, answers: list[Retried]) -> Group:
    ids, took, _, errors, delays = zip(*answers, strict=True)
    return _group(
        _retry,
        lease,
        answers,
        "retry",
        ids,
        errors=text_array("errors", errors),
        delays=interval_array("delays", delays),
        took=real_array(took),
        is_asked=True,
    )


def _reject(lease: Lease, answers: list[Rejected]) -> Group:
    ids, took, _, reasons = zip(*answers, strict=True)
    errors = text_array("errors", reasons)
    return _group(_reject, lease, answers, "reject", ids, errors=errors, took=real_array(took), is_asked=True)


def _put_off(lease: Lease, answers: list[PutOff]) -> Group:
    ids, _, reasons = zip(*answers, strict=True)
    errors = text_array("errors", reasons)
    return _group(_put_off, lease, answers, "release", ids, errors=errors, is_asked=True)


def _release(lease: Lease, ids: list[int]) -> Group:
    return _group(_release, lease, ids, "release", ids)


def _group(
    make: Callable[[Lease, list[Any]], Group],
    lease: Lease,
    answers: list[Any],
    function: str,
    ids: Iterable[int],
    *,
    is_asked: bool = False,
    **arguments: Any,
) -> Group:
    group = Group(
        lease, Call(function, {**lease.names, "ids": bigint_array(ids), **arguments}), answers, make
    )
    if is_asked:
        source = {"queue": lease.queue, "subscription": lease.subscription}
        group.question = Call("list_fates", {**source, "ids": bigint_array(ids)}, Fate._fields)
    return group


def _extension(lease: Lease) -> Group:
    lease_time = timedelta(seconds=lease.lease_time)
    return Group(lease, Call("extend", {**lease.names, "lease_time": lease_time}))


def _clean(text: str | None) -> str | None:
    """Text that Postgres takes (no character 0, no lone surrogates), and that somebody may read."""
    if text is None:
        return None
    return cut(text, _LONGEST).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
