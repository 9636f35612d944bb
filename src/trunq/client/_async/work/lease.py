"""Leases: a worker's hold on some messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, overload

from trunq.client._async.access import AsyncAccess
from trunq.client._async.traced import leasing
from trunq.client.answered import Answered, Leased
from trunq.client.message import LEASED, Message
from trunq.connection.given import AsyncGiven
from trunq.errors import InvalidArgument
from trunq.record import Extension, NotLeased
from trunq.wire.array import bigint_array
from trunq.wire.call import Call
from trunq.wire.json import json_text
from trunq.wire.scalar import Interval, decode_timestamp, interval

_TOLD: Final = ("state", "reason", "worker", "due_at")
"""What `lease_ids` says besides the columns of a message."""

_ID: Final = LEASED.index("id")
_UNTIL: Final = LEASED.index("expires_at")


class AsyncLeases(AsyncAccess):
    """Leases."""

    @leasing
    async def lease(
        self,
        queue: str,
        subscription: str,
        worker: str,
        max_messages: int | None = None,
        lease_time: Interval | None = None,
        max_bytes: int | None = None,
        asks: Mapping[str, Any] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Message]:
        """Lease the next messages, at most `max_messages` (1) and about `max_bytes` (16 MB); [] when there
        are none.

        With `asks`, only those: a filter as for `subscribe`, or with a `key_prefix`, such as
        `{"kinds": ["mail"], "key_prefix": "eu-", "headers": {"country": "CZ"}}`. What it comes upon and did
        not ask for is set aside for leases of the same subscription that do, or that ask for everything.

        They are the worker's until `lease_time` (the subscription's) is over, by the database's clock. All
        of them have the same `lease_id` and `token`. With `connection`, do nothing else in that transaction
        and end it soon: the other workers of the subscription wait for it. Raises WrongIsolation above READ
        COMMITTED.
        """
        arguments = {
            "queue": queue,
            "subscription": subscription,
            "worker": worker,
            "max_messages": max_messages,
            "lease_time": interval("lease_time", lease_time),
            "max_bytes": max_bytes,
            "asks": json_text("asks", asks),
        }
        rows = await self._execute(connection, Call("lease", arguments, LEASED, raw=True))
        return [Message(row, queue, subscription) for row in rows]

    @leasing
    async def lease_ids(
        self,
        queue: str,
        subscription: str,
        worker: str,
        ids: Iterable[int] | int,
        lease_time: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> tuple[list[Message], list[NotLeased]]:
        """Lease messages by their ids, up to 10,000, whatever waits before them: for a program that heard
        of them, by `listen` or from who published them.

        Returns those it got, all under one lease, and for each of the others what it is: leased by another
        worker, done, dead, delayed, or nowhere. Nobody else gets what it took. Raises InvalidArgument for a
        queue with lanes, which say themselves what comes next, WrongMode for a stream, and WrongIsolation
        above READ COMMITTED. With `connection`, end that transaction soon, as for `lease`.
        """
        ids = [ids] if isinstance(ids, int) else ids
        arguments = {
            "queue": queue,
            "subscription": subscription,
            "worker": worker,
            "ids": bigint_array(ids),
            "lease_time": interval("lease_time", lease_time),
        }
        rows = await self._execute(connection, Call("lease_ids", arguments, (*LEASED, *_TOLD), raw=True))
        taken, others = [], []
        for row in rows:
            message, (state, reason, holder, due_at) = row[: len(LEASED)], row[len(LEASED) :]
            if message[0] is not None:
                taken.append(Message(message, queue, subscription))
                continue
            times = (None if at is None else decode_timestamp(at) for at in (due_at, message[_UNTIL]))
            others.append(NotLeased(message[_ID], state, reason, holder, *times))
        return taken, others

    @overload
    async def extend(
        self,
        messages: Leased,
        /,
        *,
        lease_time: Interval | None = None,
        connection: AsyncGiven | None = None,
    ) -> Extension: ...

    @overload
    async def extend(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        lease_time: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> Extension: ...

    async def extend(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        lease_time: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> Extension:
        """Let a lease end `lease_time` (the subscription's) from now, later or sooner.

        Returns when that is, and which of its messages somebody cancelled: do not go on with those, and give
        them back. It is the whole lease, whichever of its messages is given; the `expires_at` of those given
        is set.
        """
        held = Answered.of(queue, subscription, lease_id, token, () if isinstance(queue, str) else None)
        if held.is_nothing:
            raise InvalidArgument("there are no messages whose lease could be extended")
        arguments = {**held.lease, "lease_time": interval("lease_time", lease_time)}
        (row,) = await self._execute(connection, Call("extend", arguments, Extension._fields))
        extension = Extension._make(row)
        if not isinstance(queue, str):
            for message in [queue] if isinstance(queue, Message) else queue:
                message.expires_at = extension.expires_at
        return extension
