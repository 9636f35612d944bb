"""Shared subscriptions: workers compete for messages, and each is answered on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.argument import (
    Interval,
    bigint_array,
    interval,
    interval_array,
    jsonb_array,
    real_array,
    text_array,
)
from trunq.message import Message

_COLUMNS: Final = (
    "lease_id",
    "token",
    "id",
    "attempt",
    "max_attempts",
    "kind",
    "key",
    "payload",
    "body",
    "headers",
    "priority",
    "created_at",
    "expires_at",
)


class AsyncLeases(AsyncAccess):
    """Shared subscriptions.

    Each answer names the lease and its token. Answering for a message twice under the same lease changes
    nothing and is not counted, so an answer may be sent again when the connection broke. All answers raise
    LeaseLost when the lease has ended, MessageNotFound for an id that is not of this lease. In a
    transaction of yours an answer is the last statement: it locks the lease until the transaction ends.
    """

    async def lease(
        self,
        queue: str,
        subscription: str,
        worker: str,
        max_messages: int | None = None,
        lease_time: Interval | None = None,
        max_bytes: int | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[Message]:
        """Lease the next messages, at most `max_messages` (1) and about `max_bytes` (16 MB); [] when there
        are none.

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
        }
        rows = await self._call(connection, "lease", _COLUMNS, arguments, raw=True)
        return [Message(row, queue, subscription) for row in rows]

    async def extend(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        lease_time: Interval | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> datetime:
        """Let a lease end `lease_time` (the subscription's) from now, later or sooner; returns when."""
        expires_at: datetime = await self._value(
            connection,
            "extend",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            lease_time=interval("lease_time", lease_time),
        )
        return expires_at

    async def ack(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        results: Sequence[Any] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages are done; returns how many were not answered before.

        `results` (any JSON, kept if the subscription keeps results) and `took` (seconds each handler ran)
        are in the order of `ids`.
        """
        acked: int = await self._value(
            connection,
            "ack",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids),
            results=jsonb_array("results", results),
            took=real_array(took),
        )
        return acked

    async def retry(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages are to be tried again; those whose attempts are used up become dead. Returns how many.

        `errors` is one for all, or, like `delays` and `took`, one for each id. A delay of None is by the
        subscription's policy.
        """
        retried: int = await self._value(
            connection,
            "retry",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids := list(ids)),
            errors=text_array("errors", [errors] * len(ids) if isinstance(errors, str) else errors),
            delays=interval_array("delays", delays),
            took=real_array(took),
        )
        return retried

    async def reject(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages will never succeed: they become dead, with these reasons. Returns how many."""
        rejected: int = await self._value(
            connection,
            "reject",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids := list(ids)),
            errors=text_array("errors", [errors] * len(ids) if isinstance(errors, str) else errors),
            took=real_array(took),
        )
        return rejected

    async def release(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages were not started: they go back at once, the attempt does not count. Returns how many."""
        released: int = await self._value(
            connection,
            "release",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids),
        )
        return released

    async def reclaim(
        self, queue: str, subscription: str, worker: str, *, connection: AsyncConnection[Any] | None = None
    ) -> int:
        """End all leases of a worker that starts again under its name; their messages go back.

        The attempt is counted, answers of its former self are refused. Returns how many leases.
        """
        reclaimed: int = await self._value(
            connection, "reclaim", queue=queue, subscription=subscription, worker=worker
        )
        return reclaimed

    async def take_bell(
        self, queue: str, *, connection: AsyncConnection[Any]
    ) -> Literal["held", "publisher", "sleeper"]:
        """Ask to be the one who is woken, before sleeping on a connection that listens on `queue_channel`.

        held: look once more, then sleep; publisher: an open publisher is in the way, look again soon;
        sleeper: another holds it, sleep. The bell belongs to the session of `connection`.
        """
        answer: Literal["held", "publisher", "sleeper"] = await self._value(
            connection, "take_bell", queue=queue
        )
        return answer

    async def give_bell(self, queue: str, *, connection: AsyncConnection[Any]) -> bool:
        """Give the bell back on waking up, and let the next sleeper know; False when we did not hold it."""
        given: bool = await self._value(connection, "give_bell", queue=queue)
        return given

    async def queue_channel(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> str:
        """The channel to LISTEN on for new messages."""
        channel: str = await self._value(connection, "queue_channel", queue=queue)
        return channel
