"""Leases: a worker's hold on some messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.call import Call
from trunq.message import LEASED, Message
from trunq.wire.scalar import Interval, interval


class AsyncLeases(AsyncAccess):
    """Leases."""

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
        rows = await self._execute(connection, Call("lease", arguments, LEASED, raw=True))
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

    async def reap(self, queue: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """End leases whose time is over: their messages go back or die as lease_expired. Returns how many."""
        reaped: int = await self._value(connection, "reap", queue=queue)
        return reaped

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
