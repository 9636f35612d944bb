"""Batches: an exclusive subscription is read in what lies between two ticks."""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.call import Call
from trunq.record import (
    Batch,
    BatchMessage,
)
from trunq.wire.json import decode_jsonb
from trunq.wire.scalar import Interval, decode_timestamp, interval

OPENED: Final = Batch._fields[: Batch._fields.index("queue")]
"""The columns of `trunq.next_batch`."""


class AsyncBatches(AsyncAccess):
    """Batches."""

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

        Each call fences those before it: of two readers that use one name, perhaps a restarted one and its
        paused predecessor, only the one that asked last can finish the batch.
        None when there is no new tick, or another worker holds the open batch.
        """
        arguments = {
            "queue": queue,
            "subscription": subscription,
            "worker": worker,
            "max_ticks": max_ticks,
            "lease_time": interval("lease_time", lease_time),
        }
        rows = await self._execute(connection, Call("next_batch", arguments, OPENED))
        return Batch._make((*rows[0], queue, subscription)) if rows else None

    async def read(
        self, batch: Batch, *, connection: AsyncConnection[Any] | None = None
    ) -> list[BatchMessage]:
        """The messages of an open batch, in order: `read_batch` of it."""
        return await self.read_batch(batch.queue, batch.subscription, batch.batch_id, connection=connection)

    async def finish(self, batch: Batch, *, connection: AsyncConnection[Any] | None = None) -> bool:
        """Move the subscription past a batch: `finish_batch` of it."""
        return await self.finish_batch(
            batch.queue, batch.subscription, batch.batch_id, batch.token, connection=connection
        )

    async def read_batch(
        self, queue: str, subscription: str, batch_id: int, *, connection: AsyncConnection[Any] | None = None
    ) -> list[BatchMessage]:
        """The messages of the open batch, in order: the same ones each time."""
        arguments = {"queue": queue, "subscription": subscription, "batch_id": batch_id}
        rows = await self._execute(connection, Call("read_batch", arguments, BatchMessage._fields, raw=True))
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
        """Move the subscription past the batch; False when this reader finished it before.

        With `connection`, in the transaction that holds what the batch led to: both happen, or neither.
        Raises LeaseLost when another reader has the batch, or has finished it.
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
