"""Batches: an exclusive subscription is read in what lies between two ticks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trunq.client._async.passing import AsyncPassing
from trunq.connection.given import AsyncGiven
from trunq.record import (
    Batch,
    BatchMessage,
)
from trunq.wire.call import Call
from trunq.wire.json import decode_jsonb, json_text
from trunq.wire.scalar import Interval, decode_timestamp, interval

OPENED: Final = Batch._fields[: Batch._fields.index("queue")]
"""The columns of `trunq.next_batch`."""


class AsyncBatches(AsyncPassing):
    """Batches."""

    async def next_batch(
        self,
        queue: str,
        subscription: str,
        worker: str,
        max_ticks: int | None = None,
        lease_time: Interval | None = None,
        min_lag: Interval | None = None,
        min_count: int | None = None,
        min_interval: Interval | None = None,
        *,
        cut: bool | None = None,
        connection: AsyncGiven | None = None,
    ) -> Batch | None:
        """Open the next batch, of at most `max_ticks` (1); the same one until it is finished.

        Where there is no newer tick it cuts one, unless nothing was committed, or `cut` is False. With
        `min_lag` it goes up to ticks that old; with `min_count` and `min_interval`, up to the first tick that
        makes it about so many messages and so long a time.

        Each call fences those before it: of two readers that use one name, perhaps a restarted one and its
        paused predecessor, only the one that asked last can finish the batch.
        To ask again without having finished it counts as a failure (see `fail_batch`).
        None when there is nothing to read, or another worker holds the open batch.
        """
        arguments = {
            "queue": queue,
            "subscription": subscription,
            "worker": worker,
            "max_ticks": max_ticks,
            "lease_time": interval("lease_time", lease_time),
            "min_lag": interval("min_lag", min_lag),
            "min_count": min_count,
            "min_interval": interval("min_interval", min_interval),
            "cut": cut,
        }
        rows = await self._execute(connection, Call("next_batch", arguments, OPENED))
        return Batch._make((*rows[0], queue, subscription)) if rows else None

    async def read(self, batch: Batch, *, connection: AsyncGiven | None = None) -> list[BatchMessage]:
        """The messages of an open batch, in order: `read_batch` of it."""
        return await self.read_batch(batch.queue, batch.subscription, batch.batch_id, connection=connection)

    async def finish(self, batch: Batch, *, connection: AsyncGiven | None = None) -> bool:
        """Move the subscription past a batch: `finish_batch` of it."""
        return await self.finish_batch(
            batch.queue, batch.subscription, batch.batch_id, batch.token, connection=connection
        )

    async def read_batch(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        after_txid: int | None = None,
        after_id: int | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[BatchMessage]:
        """The messages of the open batch, in order: the same ones each time.

        In pages: at most `limit` of those behind the message `(after_txid, after_id)`, the last one of the
        page before. With `filter`, written as in `subscribe`, those that pass it.
        """
        arguments = {
            "queue": queue,
            "subscription": subscription,
            "batch_id": batch_id,
            "after_txid": after_txid,
            "after_id": after_id,
            "limit": limit,
            "filter": json_text("filter", filter),
        }
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
                txid,
                {} if columns is None else decode_jsonb(columns),
            )
            for id, kind, key, payload, body, headers, priority, attempt, created_at, txid, columns in rows
        ]
