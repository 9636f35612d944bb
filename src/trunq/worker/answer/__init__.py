"""Answers on their way to the database: gathered, sent in groups, never lost to a lost connection.

A group goes out in one pipeline and one transaction: one wait for the disk for all of it. If one answer of it
is refused, nothing of it is done, and each is sent by itself. Sending an answer twice is harmless, so after a
lost connection the group is simply sent again.

    lease      a lease as the worker holds it
    group      answers of one kind under one lease, and their call
    report     what handlers say of their progress
    outcome    what the log says of messages that did not succeed
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from operator import attrgetter
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq import display
from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.connection._async.execute import value
from trunq.connection._async.link import AsyncLink
from trunq.connection.backoff import first_line
from trunq.errors import LeaseLost, translate
from trunq.record import Fate
from trunq.wire.call import Call
from trunq.wire.reference import new_reference
from trunq.worker.answer.group import Group, clean, extension_of, groups_of, referred, retry_of, seconds
from trunq.worker.answer.lease import Lease, Parked, PutOff, Rejected, Released, Retried, Statistics, refuse
from trunq.worker.answer.outcome import CANCELLED, PUT_OFF, Note, Outcomes, Subject
from trunq.worker.answer.report import Report
from trunq.worker.handler.policy import Policy
from trunq.worker.handler.result import describe

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

log = logging.getLogger("trunq.worker")

GATHER: Final = 0.005
"""Seconds for which answers are gathered while others are on their way."""
LARGE: Final = 2000
"""Answers sent at once."""
MOST_UNSENT: Final = 20_000
"""With this many answers unsent, nothing more is leased: the database is slow, or away."""


class Outbox:
    """Where slots put their answers; `run` sends them."""

    def __init__(
        self,
        link: AsyncLink,
        statistics: Statistics,
        outcomes: Outcomes,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._link = link
        self._telemetry = telemetry
        self._statistics = statistics
        self._outcomes = outcomes
        self._unsent: list[Lease] = []
        self._extensions: list[Lease] = []
        self._reports: list[Report] = []
        self._filled = asyncio.Event()
        self._large = asyncio.Event()
        self._sent = asyncio.Event()
        self.unsent = 0
        self.open: dict[int, Lease] = {}
        """Leases with messages that wait or run, by token."""

    def inform(
        self,
        lost: Callable[[Lease], None],
        renewed: Callable[[Lease], None],
        cancelled: Callable[[Lease, frozenset[int]], None],
    ) -> None:
        """Who is to hear that a lease is lost, or extended, or that somebody cancelled messages of it."""
        self._lost, self._renewed, self._cancelled = lost, renewed, cancelled

    # In order of what happens most; each is called once a message.

    def ack(
        self, lease: Lease, id: int, took: float, result: bytes | None = None, policy: Policy | None = None
    ) -> None:
        """The message was handled."""
        if self._take(lease):
            lease.acked.append((id, took, result))
            if policy is not None:
                lease.policies[id] = policy
            self._statistics.handled += 1

    def answer(
        self, lease: Lease, message: Message, took: float, answer: Retry | Reject, policy: Policy | None
    ) -> None:
        """The handler said what is to become of the message."""
        id, subject = message.id, Subject.of(message)
        # Made before it counts: what cannot be sent must not be taken twice.
        if isinstance(answer, Retry):
            delay = seconds(answer)
            reference = None if answer.error is None else new_reference()
            note = self._outcomes.answered(subject, "runs again", answer.error, reference)
            error = None if reference is None else referred(answer.error or "", reference)
            retried = Retried(id, took, note, error, delay, policy)
            if self._take(lease):
                lease.retried.append(retried)
                self._statistics.retried += 1
        else:
            reference = new_reference()
            note = self._outcomes.answered(subject, "is rejected", answer.detail, reference)
            rejected = Rejected(id, took, note, referred(answer.detail, reference, answer.public))
            if self._take(lease):
                lease.rejected.append(rejected)
                self._statistics.rejected += 1

    def fail(
        self,
        lease: Lease,
        message: Message,
        took: float,
        error: BaseException,
        policy: Policy | None = None,
        *,
        is_late: bool = False,
    ) -> None:
        """The handler raised, or took too long (`is_late`): the policy decides."""
        if self._take(lease):
            reference = new_reference()
            note, why = self._outcomes.failed(message, error, reference), referred(describe(error), reference)
            retried = Retried(message.id, took, note, why, None, policy)
            (lease.timed_out if is_late else lease.retried).append(retried)
            self._statistics.failed += 1

    def park(self, lease: Lease, message: Message, took: float, park: Park, policy: Policy | None) -> None:
        """The message waits for the outside."""
        if self._take(lease):
            lease.parkings.append(Parked(message.id, took, park))
            if policy is not None:
                lease.policies[message.id] = policy
            self._statistics.parked += 1

    def call_off(
        self, lease: Lease, message: Message, took: float, why: str, policy: Policy | None = None
    ) -> None:
        """The handler stopped because somebody cancelled the message."""
        if self._take(lease):
            note = self._outcomes.answered(Subject.of(message), "runs again", why)
            lease.retried.append(Retried(message.id, took, note, clean(why), None, policy))

    def call_off_waiting(self, lease: Lease, messages: list[Message]) -> None:
        """Somebody cancelled messages that were not started."""
        if self._take(lease, len(messages)):
            lease.released += [Released(message.id, None) for message in messages]
            self._statistics.cancelled += len(messages)
            for message in messages:
                self._outcomes.say(
                    self._outcomes.answered(Subject.of(message), CANCELLED, "before it started"),
                    None,
                    "cancelled",
                )

    def put_off(self, lease: Lease, message: Message, why: str) -> None:
        """This worker cannot start the message; another may, or its own next version."""
        if self._take(lease):
            note = self._outcomes.answered(Subject.of(message), PUT_OFF, why)
            lease.put_off.append(PutOff(message.id, note, clean(why) or ""))
            self._statistics.put_off += 1

    def release(self, lease: Lease, ids: list[int], delay: float | None = None) -> None:
        """Messages that were not started go back, for `delay` seconds."""
        if self._take(lease, len(ids)):
            lease.released += [Released(id, delay) for id in ids]
            self._statistics.released += len(ids)

    def extend(self, lease: Lease, seconds: float) -> None:
        """Ask that the lease ends so many seconds from then."""
        if lease.asked is None:
            self._extensions.append(lease)
            self._filled.set()
        lease.asked = seconds

    async def extended(self, lease: Lease, seconds: float) -> datetime:
        """Have it last so long at each heartbeat from now on; returns when the lease ends."""
        waiter: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
        lease.lease_time = seconds
        lease.waiters.append(waiter)
        self.extend(lease, seconds)
        return await waiter

    def tell(self, report: Report) -> None:
        """Write what a handler reported."""
        self._reports.append(report)
        self._filled.set()

    async def recall(self, message: Message) -> None:
        """Give a message the checkpoint that an earlier attempt left, and what it was resumed with."""
        message.checkpoint = await self._kept(message, "show_checkpoint")
        message.resumed = await self._kept(message, "show_resumed")

    async def _kept(self, message: Message, function: str) -> bytes | None:
        names = {"queue": message.queue, "subscription": message.subscription}
        call = Call(function, {**names, "id": message.id}, raw=True)
        found: bytes | None = await self._link.run(lambda connection: value(connection, call))
        return None if found is None else found[1:]

    def committed(self, lease: Lease, *, is_parked: bool = False) -> None:
        """The message was acked, or parked, in its handler's own transaction."""
        self._drop(lease, 1)
        self._statistics.parked += is_parked
        self._statistics.handled += not is_parked

    def settled(
        self, lease: Lease, message: Message, answer: Retry | Reject, reference: str, fate: Fate | None
    ) -> None:
        """The message was retried or rejected in its handler's own transaction, in which the database said
        what becomes of it.
        """
        self._drop(lease, 1)
        if isinstance(answer, Retry):
            kept = None if answer.error is None else reference
            note = self._outcomes.answered(Subject.of(message), "runs again", answer.error, kept)
            self._statistics.retried += 1
        else:
            note = self._outcomes.answered(Subject.of(message), "is rejected", answer.detail, reference)
            self._statistics.rejected += 1
        self._say(note, fate.wait if fate else None, fate.reason if fate else None)

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
        asked_at, began = monotonic(), time_ns()
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
                self._trace(group, began)
                await self._tell(group)
        for group in groups:
            if group.seconds and not group.lease.is_lost:
                group.lease.renewed(asked_at, group.seconds)
                self._renewed(group.lease)
        self.unsent -= count
        self._sent.set()

    def _collect(self, leases: list[Lease], extensions: list[Lease]) -> tuple[int, list[Group]]:
        """What to send, in the order in which several leases must be locked, and how many answers that is."""
        # Unsent answers of a lease lost meanwhile are gone from it, but not from the count.
        count = self.unsent
        groups: list[Group] = []
        for lease in leases:
            lease.is_unsent = False
            groups += groups_of(lease)
        for lease in extensions:
            group = extension_of(lease)
            if lease.is_lost:
                refuse(group.waiters, LeaseLost(f"lease {lease.lease_id} has ended"))
            else:
                groups.append(group)
        reports, self._reports = self._reports, []
        groups += [sent for report in reports if (sent := report.group()) is not None]
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
        began = time_ns()
        try:
            await self._link.run(group.send)
        except psycopg.Error as error:
            self._trace(group, began, error)
            await self._refused(group, error)
        else:
            self._trace(group, began)
            await self._tell(group)

    def _trace(self, group: Group, began: int, error: psycopg.Error | None = None) -> None:
        if self._telemetry is not None and group.answers and group.call.function != "set_progress":
            lease, ids = group.lease, [each[0] for each in group.answers]
            self._telemetry.settled(group.call.function, lease.queue, lease.subscription, ids, began, error)

    async def _tell(self, group: Group) -> None:
        """Say what became of messages that were not acked, and hear which ones somebody cancelled."""
        group.told(None)
        if group.seconds:
            extension = await group.extension()
            for waiter in group.waiters:
                if not waiter.done():
                    waiter.set_result(extension.expires_at)
            if extension.cancelled:
                self._cancelled(group.lease, frozenset(extension.cancelled))
        if group.question is None:
            return
        fates = await group.fates()
        for answer in group.answers:
            wait, reason = fates.get(answer.id, (None, None))
            self._say(answer.note, wait, reason)

    def _say(self, note: Note, wait: timedelta | None, reason: str | None) -> None:
        is_cancelled = reason == "cancelled"
        self._statistics.cancelled += is_cancelled
        self._statistics.dead += reason is not None and not is_cancelled
        self._outcomes.say(note, wait, reason)

    async def _refused(self, group: Group, error: psycopg.Error) -> None:
        ours, function = translate(error), group.call.function
        refuse(group.waiters, ours if isinstance(ours, Exception) else error)
        group.told(error)
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
            has_note = function not in ("ack", "park")
            subject = answered.note.subject if has_note else Subject(group.lease.queue, answered[0])
            reference = new_reference()
            note = self._outcomes.answered(subject, "failed", why, reference)
            policy = getattr(answered, "policy", None) or group.lease.policies.get(answered[0])
            again = Retried(answered[0], answered[1], note, referred(why, reference), None, policy)
            await self._send_alone(retry_of(group.lease, [again]))
        elif function != "set_progress":
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
                display.counted(number, "message"),
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
    "time_out": ("the time-out", "failed"),
    "reject": ("the rejection", "rejected"),
    "park": ("the parking", "parked"),
}
"""Answers that become a failure of their message when the database refuses them, and what counted them."""


def _was_refused(answer: Any) -> bool:
    """Whether this is the failure that stands for a refused answer: a second one would be the same again."""
    return isinstance(answer, Retried) and (answer.error or "").startswith(_REFUSED)
