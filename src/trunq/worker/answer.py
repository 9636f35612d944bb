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
from operator import attrgetter
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.errors import LeaseLost, translate
from trunq.link import Link, first_line
from trunq.message import Reject, Retry
from trunq.worker.lease import Lease, Rejected, Retried, Statistics

log = logging.getLogger("trunq.worker")

GATHER: Final = 0.005
"""Seconds for which answers are gathered while others are on their way."""
LARGE: Final = 2000
"""So many are sent at once."""
MOST_UNSENT: Final = 20_000
"""With so many unsent, nothing more is leased: the database is slow, or away."""

_LEASE: Final = "p_queue => %s, p_subscription => %s, p_lease_id => %s, p_token => %s"
_ACK: Final = (
    f"select trunq.ack({_LEASE}, p_ids => %s::bigint[], p_results => %s::jsonb[], p_took => %s::real[])"
)
_RETRY: Final = (
    f"select trunq.retry({_LEASE}, p_ids => %s::bigint[], p_errors => %s::text[],"
    " p_delays => %s::interval[], p_took => %s::real[])"
)
_REJECT: Final = (
    f"select trunq.reject({_LEASE}, p_ids => %s::bigint[], p_errors => %s::text[], p_took => %s::real[])"
)
_RELEASE: Final = f"select trunq.release({_LEASE}, p_ids => %s::bigint[])"
_EXTEND: Final = f"select trunq.extend({_LEASE}, p_lease_time => make_interval(secs => %s))"


@dataclass(slots=True)
class Call:
    """One call of an answering function: statement, parameters, and the answers it carries."""

    lease: Lease
    statement: str
    arguments: tuple[Any, ...]
    answers: list[Any] = field(default_factory=list)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """All parameters, those that name the lease first."""
        lease = self.lease
        return (lease.queue, lease.subscription, lease.lease_id, lease.token, *self.arguments)

    async def execute(self, connection: AsyncConnection[Any]) -> Any:
        """Call it; the cursor holds what it returned."""
        return await connection.execute(self.statement, self.parameters)


class Outbox:
    """Where slots put their answers; `run` sends them."""

    def __init__(
        self,
        link: Link,
        statistics: Statistics,
        lost: Callable[[Lease], None],
        renewed: Callable[[Lease], None],
    ) -> None:
        self._link = link
        self._statistics = statistics
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

    def ack(self, lease: Lease, id: int, took: float, result: str | None = None) -> None:
        """The message was handled."""
        if self._take(lease):
            lease.acked.append((id, took, result))
            self._statistics.handled += 1

    def answer(self, lease: Lease, id: int, took: float, answer: Retry | Reject) -> None:
        """The handler said what is to become of the message."""
        if not self._take(lease):
            return
        if isinstance(answer, Retry):
            delay = answer.after
            seconds = delay if delay is None or isinstance(delay, int | float) else delay.total_seconds()
            lease.retried.append(Retried(id, took, _clean(answer.error), seconds))
            self._statistics.retried += 1
        else:
            lease.rejected.append(Rejected(id, took, _clean(answer.reason) or ""))
            self._statistics.rejected += 1

    def fail(self, lease: Lease, id: int, took: float, error: str) -> None:
        """The handler raised: the policy decides."""
        if self._take(lease):
            lease.retried.append(Retried(id, took, _clean(error), None))
            self._statistics.failed += 1

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
        count, calls = self._collect(leases, extensions)
        asked_at = monotonic()
        try:
            await self._link.run(lambda connection: self._send_group(connection, calls))
        except psycopg.Error:
            # Statements behind the refused one were skipped, their preparation too, of which psycopg knows
            # nothing.
            await self._link.close()
            for call in calls:
                await self._send_alone(call)
        for lease in extensions:
            lease.is_extending = False
            if not lease.is_lost:
                lease.renewed(asked_at)
                self._renewed(lease)
        self.unsent -= count
        self._sent.set()

    def _collect(self, leases: list[Lease], extensions: list[Lease]) -> tuple[int, list[Call]]:
        """The calls to make, in the order in which several leases must be locked, and how many answers they
        carry.
        """
        # Unsent answers of a lease lost meanwhile are gone from it, but not from the count.
        count = self.unsent
        calls: list[Call] = []
        for lease in leases:
            lease.is_unsent = False
            calls += _calls(lease)
        calls += [Call(lease, _EXTEND, (lease.lease_time,)) for lease in extensions if not lease.is_lost]
        calls.sort(key=attrgetter("lease.lease_id"))
        return count, calls

    async def _send_group(self, connection: AsyncConnection[Any], calls: list[Call]) -> None:
        if len(calls) == 1:
            await calls[0].execute(connection)
            return
        async with connection.pipeline():
            for call in calls:
                await call.execute(connection)

    async def _send_alone(self, call: Call) -> None:
        try:
            await self._link.run(call.execute)
        except psycopg.Error as error:
            await self._refused(call, error)

    async def _refused(self, call: Call, error: psycopg.Error) -> None:
        ours = translate(error)
        if isinstance(ours, LeaseLost):
            self._lose(call.lease, len(call.answers))
        elif len(call.answers) > 1 and ours is None:
            # One of them is not to the database's taste (a result with \\u0000 in it): find it.
            for answer in call.answers:
                await self._send_alone(_again(call, [answer]))
        elif call.statement == _ACK and ours is None:
            id, took, _ = call.answers[0]
            self._statistics.handled -= 1
            self._statistics.failed += 1
            answer = Retried(id, took, f"the database refused the result: {first_line(error)}", None)
            await self._send_alone(_retry(call.lease, [answer]))
        else:
            log.error(
                "the database refused an answer: %s",
                first_line(error),
                extra={"lease_id": call.lease.lease_id},
            )

    def _lose(self, lease: Lease, answers: int) -> None:
        self._statistics.lost += answers + lease.unsent + len(lease.parked)
        if not lease.is_lost:
            log.warning(
                "lost lease %s of %s/%s with %s messages unanswered",
                lease.lease_id,
                lease.queue,
                lease.subscription,
                lease.active + answers,
                extra={"lease_id": lease.lease_id, "queue": lease.queue},
            )
            lease.lose()
            self.open.pop(lease.token, None)
            self._lost(lease)


async def ack_in_transaction(
    connection: AsyncConnection[Any], lease: Lease, id: int, took: float, result: str | None
) -> bool:
    """Ack one message as the last statement of a handler's transaction. False: it was answered before."""
    cursor = await _ack(lease, [(id, took, result)]).execute(connection)
    return bool(await cursor.fetchone() == (1,))


def ack_in_sync_transaction(
    connection: psycopg.Connection[Any], lease: Lease, id: int, took: float, result: str | None
) -> bool:
    """The same on a sync connection."""
    call = _ack(lease, [(id, took, result)])
    return connection.execute(call.statement, call.parameters).fetchone() == (1,)


def _calls(lease: Lease) -> list[Call]:
    calls = []
    if lease.acked:
        answers, lease.acked = lease.acked, []
        calls.append(_ack(lease, answers))
    if lease.retried:
        retried, lease.retried = lease.retried, []
        calls.append(_retry(lease, retried))
    if lease.rejected:
        rejected, lease.rejected = lease.rejected, []
        calls.append(_reject(lease, rejected))
    if lease.released:
        released, lease.released = lease.released, []
        calls.append(_release(lease, released))
    return calls


def _ack(lease: Lease, answers: list[Any]) -> Call:
    ids, took, results = zip(*answers, strict=True)
    given = None if results.count(None) == len(results) else _texts(results)
    return Call(lease, _ACK, (_numbers(ids), given, _seconds(took)), answers)


def _retry(lease: Lease, answers: list[Retried]) -> Call:
    ids, took, errors, delays = zip(*answers, strict=True)
    waits = "{" + ",".join("NULL" if delay is None else f"{delay:.6f}s" for delay in delays) + "}"
    return Call(lease, _RETRY, (_numbers(ids), _texts(errors), waits, _seconds(took)), answers)


def _reject(lease: Lease, answers: list[Rejected]) -> Call:
    ids, took, reasons = zip(*answers, strict=True)
    return Call(lease, _REJECT, (_numbers(ids), _texts(reasons), _seconds(took)), answers)


def _release(lease: Lease, ids: list[int]) -> Call:
    return Call(lease, _RELEASE, (_numbers(ids),), ids)


def _again(call: Call, answers: list[Any]) -> Call:
    return _BUILDERS[call.statement](call.lease, answers)


_BUILDERS: Final[dict[str, Callable[[Lease, list[Any]], Call]]] = {
    _ACK: _ack,
    _RETRY: _retry,
    _REJECT: _reject,
    _RELEASE: _release,
}

# Arrays as text: psycopg's own list dumper looks at each element several times, 13 microseconds for a result.


def _numbers(ids: Iterable[int]) -> str:
    return "{" + ",".join(map(str, ids)) + "}"


def _seconds(took: Iterable[float]) -> str:
    return "{" + ",".join([f"{seconds:.6f}" for seconds in took]) + "}"


def _texts(values: Iterable[str | None]) -> str:
    quoted = [
        "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for value in values
    ]
    return "{" + ",".join(quoted) + "}"


def _clean(text: str | None) -> str | None:
    """Text that Postgres takes: it has no character 0, and no lone surrogates."""
    if text is None:
        return None
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
