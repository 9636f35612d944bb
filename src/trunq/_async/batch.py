"""Exclusive subscriptions: one reader takes whole batches, each what lies between two ticks."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.argument import Interval, interval
from trunq.message import decode_jsonb, decode_timestamp
from trunq.record import Batch, BatchMessage, Tick


class AsyncBatches(AsyncAccess):
    """Ticks and batches."""

    async def tick(
        self, queue: str, *, force: bool = False, connection: AsyncConnection[Any] | None = None
    ) -> int | None:
        """Cut a tick when one is due, or `force`d; returns its id, or None."""
        tick_id: int | None = await self._value(connection, "tick", queue=queue, force=force)
        return tick_id

    async def list_ticks(
        self,
        queue: str,
        from_: int | None = None,
        to: int | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[Tick]:
        """Ticks in order, from `from_` to `to`, both included."""
        return await self._records(connection, Tick, "list_ticks", queue=queue, from_=from_, to=to)

    async def next_batch(
        self,
        queue: str,
        subscription: str,
        worker: str,
        max_ticks: int | None = None,
        lease_time: Interval | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> Batch | None:
        """Open the next batch, of at most `max_ticks` (1); the same one until it is finished.

        None when there is no new tick, or another worker holds the open batch.
        """
        batches = await self._records(
            connection,
            Batch,
            "next_batch",
            queue=queue,
            subscription=subscription,
            worker=worker,
            max_ticks=max_ticks,
            lease_time=interval("lease_time", lease_time),
        )
        return batches[0] if batches else None

    async def read_batch(
        self, queue: str, subscription: str, batch_id: int, *, connection: AsyncConnection[Any] | None = None
    ) -> list[BatchMessage]:
        """The messages of the open batch, in order: the same ones each time."""
        arguments = {"queue": queue, "subscription": subscription, "batch_id": batch_id}
        rows = await self._call(connection, "read_batch", BatchMessage._fields, arguments, raw=True)
        return [
            BatchMessage(
                id,
                kind,
                key,
                None if payload is None else decode_jsonb(payload),
                body,
                None if headers is None else decode_jsonb(headers),
                priority,
                attempt,
                decode_timestamp(created_at),
            )
            for id, kind, key, payload, body, headers, priority, attempt, created_at in rows
        ]

    async def finish_batch(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> bool:
        """Move the subscription past the batch; False when it was finished before.

        With `connection`, in the transaction that holds what the batch led to: both happen, or neither.
        """
        finished: bool = await self._value(
            connection,
            "finish_batch",
            queue=queue,
            subscription=subscription,
            batch_id=batch_id,
            token=token,
        )
        return finished

    async def position(
        self, queue: str, subscription: str, *, connection: AsyncConnection[Any] | None = None
    ) -> int:
        """The tick up to which an exclusive subscription has read."""
        tick_id: int = await self._value(connection, "position", queue=queue, subscription=subscription)
        return tick_id

    async def advance(
        self, queue: str, subscription: str, tick_id: int, *, connection: AsyncConnection[Any] | None = None
    ) -> int:
        """Move an exclusive subscription forward to a tick, never back; returns where it is then."""
        position: int = await self._value(
            connection, "advance", queue=queue, subscription=subscription, tick_id=tick_id
        )
        return position
