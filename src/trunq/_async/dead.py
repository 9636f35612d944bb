"""Dead messages: those that are given up."""

from __future__ import annotations

from collections.abc import Iterable

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import DeadMessage, DeadPolicy
from trunq.wire.array import bigint_array
from trunq.wire.scalar import Interval, interval


class AsyncDead(AsyncAccess):
    """Dead messages."""

    async def list_dead(
        self,
        queue: str,
        subscription: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        brief: bool | None = None,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        older_than: Interval | None = None,
        newer_than: Interval | None = None,
        reason: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[DeadMessage]:
        """Dead messages, newest first, at most `limit` (100); the next page is `before` the last dead_id.

        `brief` leaves out what is slow to read: payload and headers (None), and all errors but the last.
        Only those of a `kind` and a `key`, whose last error contains `error` in any case, and that have been
        dead for longer than `older_than` or no longer than `newer_than`. `reason` is rejected, max_attempts,
        lease_expired, expired or cancelled.
        """
        return await self._records(
            connection,
            DeadMessage,
            "list_dead",
            queue=queue,
            subscription=subscription,
            limit=limit,
            before=before,
            brief=brief,
            kind=kind,
            key=key,
            error=error,
            older_than=interval("older_than", older_than),
            newer_than=interval("newer_than", newer_than),
            reason=reason,
        )

    async def count_dead(
        self,
        queue: str,
        subscription: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Interval | None = None,
        newer_than: Interval | None = None,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        before: int | None = None,
        limit: int | None = None,
        reason: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """How many dead messages `requeue` or `purge` would take, given the same; counts no further than
        `limit`.
        """
        counted: int = await self._value(
            connection,
            "count_dead",
            queue=queue,
            subscription=subscription,
            ids=bigint_array(ids),
            older_than=interval("older_than", older_than),
            newer_than=interval("newer_than", newer_than),
            kind=kind,
            key=key,
            error=error,
            before=before,
            limit=limit,
            reason=reason,
        )
        return counted

    async def forget(self, queue: str, *, connection: AsyncGiven | None = None) -> int:
        """Delete dead messages older than their subscription keeps them; returns how many."""
        forgotten: int = await self._value(connection, "forget", queue=queue)
        return forgotten

    async def requeue(
        self,
        queue: str,
        subscription: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Interval | None = None,
        newer_than: Interval | None = None,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        before: int | None = None,
        limit: int | None = None,
        reason: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Let dead messages run again from the first attempt; returns how many.

        All of the queue, of one subscription, with these message ids, or those that the filters of
        `list_dead` find. With `limit` the oldest so many; `before` takes only those with a smaller dead_id,
        so that calls in parts come to an end while messages die.
        """
        requeued: int = await self._value(
            connection,
            "requeue",
            queue=queue,
            subscription=subscription,
            ids=bigint_array(ids),
            older_than=interval("older_than", older_than),
            newer_than=interval("newer_than", newer_than),
            kind=kind,
            key=key,
            error=error,
            before=before,
            limit=limit,
            reason=reason,
        )
        return requeued

    async def purge(
        self,
        queue: str,
        subscription: str | None = None,
        ids: Iterable[int] | None = None,
        older_than: Interval | None = None,
        newer_than: Interval | None = None,
        kind: str | None = None,
        key: str | None = None,
        error: str | None = None,
        before: int | None = None,
        limit: int | None = None,
        reason: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Forget dead messages, chosen as `requeue` does; returns how many."""
        purged: int = await self._value(
            connection,
            "purge",
            queue=queue,
            subscription=subscription,
            ids=bigint_array(ids),
            older_than=interval("older_than", older_than),
            newer_than=interval("newer_than", newer_than),
            kind=kind,
            key=key,
            error=error,
            before=before,
            limit=limit,
            reason=reason,
        )
        return purged

    async def set_dead(
        self,
        queue: str,
        subscription: str | None = None,
        warn: bool | None = None,
        notify: bool | None = None,
        into: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> DeadPolicy:
        """Say how a subscription ("default") makes it known when a message of it dies; returns how it is now.

        `warn`: a WARNING in the log of the server; `notify`: a NOTIFY on `channel` with its name and the id;
        `into`: the message is published into that queue too, with `trunq_dead` in its headers, a list of
        where it died and why ("": no more). All of it is of the transaction in which the message dies.
        """
        (policy,) = await self._records(
            connection,
            DeadPolicy,
            "set_dead",
            queue=queue,
            subscription=subscription,
            warn=warn,
            notify=notify,
            into=into,
        )
        return policy
