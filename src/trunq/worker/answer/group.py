"""Answers of one kind under one lease, and the call that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor

from trunq.client.message import Retry
from trunq.connection._async.execute import send
from trunq.record import Extension, Fate
from trunq.wire import scalar
from trunq.wire.array import (
    bigint_array,
    encoded_jsonb_array,
    interval_array,
    moment_array,
    real_array,
    text_array,
)
from trunq.wire.call import Call
from trunq.wire.reference import LONGEST, with_reference
from trunq.worker.answer.lease import Acked, Lease, Parked, PutOff, Rejected, Released, Retried
from trunq.worker.handler.policy import Policy
from trunq.worker.handler.result import cut


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
    seconds: float = 0.0
    """Of an extension."""
    waiters: list[asyncio.Future[datetime]] = field(default_factory=list)
    """Handlers that asked for it."""
    told: Callable[[psycopg.Error | None], None] = lambda _: None
    """Called with what the database said."""
    _sent: AsyncCursor[tuple[Any, ...]] | None = None
    _fates: AsyncCursor[tuple[Any, ...]] | None = None

    async def send(self, connection: AsyncConnection[Any]) -> None:
        """Send them."""
        self._sent = await send(connection, self.call)
        if self.question is not None:
            self._fates = await send(connection, self.question)

    async def extension(self) -> Extension:
        """What the database said to an extension."""
        assert self._sent is not None
        ((expires_at, cancelled),) = await self._sent.fetchall()
        return Extension(expires_at, cancelled)

    async def fates(self) -> dict[int, tuple[timedelta | None, str | None]]:
        """By message: the wait until it runs again, or why it is dead; none for those that run at once."""
        rows = [] if self._fates is None else await self._fates.fetchall()
        return {id: (wait, reason) for id, wait, reason in rows}


def answered(
    lease: Lease,
    acked: list[Acked],
    retried: list[Retried],
    rejected: list[Rejected],
    parked: list[Parked],
) -> list[Group]:
    """The groups that carry these answers."""
    groups = [_ack(lease, acked)] if acked else []
    groups += [retry_of(lease, answers) for answers in _by_policy(retried)]
    if rejected:
        groups.append(_reject(lease, rejected))
    if parked:
        groups.append(park_of(lease, parked))
    return groups


def ack_of_one(lease: Lease, id: int, took: float, result: bytes | None) -> Group:
    """The last statement of a handler's transaction. It returns 0 for a message that was answered before."""
    return _ack(lease, [(id, took, result)])


def with_commit(groups: list[Group]) -> bytes | None:
    """The statement of a single ack without a result, which fails where nothing may be committed; None for
    all else.

    It has its parameters in it: numbers, and the name of a subscription, which was checked.
    """
    group = groups[0]
    if len(groups) > 1 or len(group.answers) > 1 or group.question is not None or group.call.has_arrays:
        return None
    call = group.call
    given = ", ".join(
        f"p_{name} => '{value}'" for name, value in zip(call.arguments, call.values, strict=True)
    )
    return f"select trunq._require_answered({call.name}({given}))".encode()


def groups_of(lease: Lease) -> list[Group]:
    """The groups that carry all answers of a lease that are not sent; it has none then."""
    groups = answered(lease, lease.acked, lease.retried, lease.rejected, lease.parkings)
    lease.acked, lease.retried, lease.rejected, lease.parkings = [], [], [], []
    if lease.timed_out:
        timed_out, lease.timed_out = lease.timed_out, []
        groups += [_time_out(lease, answers) for answers in _by_policy(timed_out)]
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


def _by_policy(answers: list[Retried]) -> list[list[Retried]]:
    """One call for each policy: a few at most, as many as kinds have one."""
    policies = dict.fromkeys(each.policy for each in answers)
    return [[each for each in answers if each.policy == own] for own in policies]


def retry_of(lease: Lease, answers: list[Retried]) -> Group:
    """A group of retries, which have one policy."""
    ids, took, _, errors, delays, policies = zip(*answers, strict=True)
    return _group(
        retry_of,
        lease,
        answers,
        "retry",
        ids,
        errors=text_array("errors", errors),
        delays=interval_array("delays", delays),
        took=real_array(took),
        is_asked=True,
        **_arguments(policies[0]),
    )


def _time_out(lease: Lease, answers: list[Retried]) -> Group:
    ids, took, _, errors, _, policies = zip(*answers, strict=True)
    return _group(
        _time_out,
        lease,
        answers,
        "time_out",
        ids,
        errors=text_array("errors", errors),
        took=real_array(took),
        is_asked=True,
        **_arguments(policies[0]),
    )


def _arguments(policy: Policy | None) -> dict[str, Any]:
    return {} if policy is None else policy.arguments


def _reject(lease: Lease, answers: list[Rejected]) -> Group:
    ids, took, _, reasons = zip(*answers, strict=True)
    errors = text_array("errors", reasons)
    return _group(_reject, lease, answers, "reject", ids, errors=errors, took=real_array(took), is_asked=True)


def park_of(lease: Lease, answers: list[Parked]) -> Group:
    """A group of messages that wait for the outside."""
    ids, took, parks = zip(*answers, strict=True)
    delays, moments = [each.delay for each in parks], [each.moment for each in parks]
    return _group(
        park_of,
        lease,
        answers,
        "park",
        ids,
        tokens=text_array("tokens", [each.token for each in parks]),
        delays=interval_array("delays", delays),
        until=None if moments.count(None) == len(moments) else moment_array("until", moments),
        took=real_array(took),
    )


def _put_off(lease: Lease, answers: list[PutOff]) -> Group:
    ids, _, reasons = zip(*answers, strict=True)
    errors = text_array("errors", reasons)
    return _group(_put_off, lease, answers, "release", ids, errors=errors, is_asked=True)


def _release(lease: Lease, answers: list[Released]) -> Group:
    ids, delays = zip(*answers, strict=True)
    given = None if delays.count(None) == len(delays) else interval_array("delays", delays)
    return _group(_release, lease, answers, "release", ids, delays=given)


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


def extension_of(lease: Lease) -> Group:
    """The group that carries the extension asked for."""
    seconds, lease.asked = lease.asked or lease.lease_time, None
    waiters, lease.waiters = lease.waiters, []
    arguments = {**lease.names, "lease_time": timedelta(seconds=seconds)}
    call = Call("extend", arguments, Extension._fields)
    return Group(lease, call, seconds=seconds, waiters=waiters)


def seconds(answer: Retry) -> float | None:
    """The delay that a handler asks for; None: as the policy says."""
    return scalar.seconds("after", answer.after)


def clean(text: str | None) -> str | None:
    """Text that Postgres takes (no character 0, no lone surrogates), and that somebody may read."""
    if text is None:
        return None
    return cut(text, LONGEST).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def referred(error: str, reference: str, public: str | None = None) -> str:
    """An error as it is sent, with its reference and what users may see of it."""
    return with_reference(clean(error) or "", reference, clean(public))
