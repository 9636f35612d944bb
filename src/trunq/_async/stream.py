"""Streams, which exclusive subscriptions read: where they stand, how to move them, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import BatchState, Loss, Stream
from trunq.wire.array import bigint_array
from trunq.wire.scalar import Interval, interval, moment
from trunq.word import Start


class AsyncStreams(AsyncAccess):
    """Streams."""

    async def list_streams(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Stream]:
        """Where the exclusive subscriptions of a queue, or of all, stand, and their open batch."""
        return await self._records(connection, Stream, "list_streams", queue=queue)

    async def list_losses(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Loss]:
        """What subscriptions of a queue, or of all, lost because they stood still for longer than it holds
        messages: shared ones, too.
        """
        return await self._records(connection, Loss, "list_losses", queue=queue)

    async def accept_loss(
        self, queue: str, subscription: str, *, connection: AsyncGiven | None = None
    ) -> int:
        """Let a subscription that lost messages go on; returns how many losses this accepts."""
        accepted: int = await self._value(connection, "accept_loss", queue=queue, subscription=subscription)
        return accepted

    async def show_batch(
        self, queue: str, subscription: str, batch_id: int, *, connection: AsyncGiven | None = None
    ) -> BatchState:
        """What a batch is about: who has it, since when, between which ticks, how many messages."""
        rows = await self._records(
            connection, BatchState, "show_batch", queue=queue, subscription=subscription, batch_id=batch_id
        )
        return rows[0]

    async def seek(
        self,
        queue: str,
        subscription: str,
        tick_id: int | None = None,
        at: datetime | None = None,
        start: Start | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Move an exclusive subscription, forward or back: to a tick, to the last one at or before a time,
        to the `earliest` in reach or to now (`latest`); returns the tick it stands at.

        An open batch ends: its reader cannot finish it. Retries that wait stay.
        Raises TickNotFound when messages after that tick are gone.
        """
        position: int = await self._value(
            connection,
            "seek",
            queue=queue,
            subscription=subscription,
            tick_id=tick_id,
            at=moment("at", at),
            start=start,
        )
        return position

    async def fail_batch(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        error: str | None = None,
        after: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> datetime:
        """Give a batch back that could not be done; returns from when on it is handed out again.

        After `max_attempts` failures it is handed out by halves, until a message is alone: three failures
        more, and it is dead.
        """
        until: datetime = await self._value(
            connection,
            "fail_batch",
            queue=queue,
            subscription=subscription,
            batch_id=batch_id,
            token=token,
            error=error,
            after=interval("after", after),
        )
        return until

    async def retry_batch(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        ids: Sequence[int] | None = None,
        after: Interval | None = None,
        error: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Hand messages of an open batch (`ids`, or all) out again in a later one, to this subscription only.

        Finish the batch in the same transaction: until then they are part of it too. Returns how many; those
        that wait already do not count.
        """
        count: int = await self._value(
            connection,
            "retry_batch",
            queue=queue,
            subscription=subscription,
            batch_id=batch_id,
            token=token,
            ids=None if ids is None else bigint_array(ids),
            after=interval("after", after),
            error=error,
        )
        return count

    async def copy_position(
        self, queue: str, subscription: str, like: str, *, connection: AsyncGiven | None = None
    ) -> int:
        """Move an exclusive subscription exactly where another one, `like`, stands; returns the tick.

        Raises SubscriptionBusy while one of them has an open batch, TickNotFound when messages after that
        place are gone.
        """
        position: int = await self._value(
            connection, "copy_position", queue=queue, subscription=subscription, like=like
        )
        return position
