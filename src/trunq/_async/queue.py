"""Queues and their subscriptions."""

from __future__ import annotations

from typing import Any, Literal

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.argument import Interval, interval
from trunq.record import Queue, Subscription, SubscriptionWarning


class AsyncQueues(AsyncAccess):
    """Queues and their subscriptions."""

    async def create_queue(
        self,
        queue: str,
        *,
        retention: Interval | None = None,
        tick_max_count: int | None = None,
        tick_max_lag: Interval | None = None,
        tick_idle_period: Interval | None = None,
        default_subscription: bool | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> bool:
        """Create a queue with its shared subscription `default`; False when it was there, and nothing
        changed.

        `default` keeps every message until a worker reads it: with `default_subscription` False, a queue
        that only streams read does without.

        Messages are kept for `retention` (1 day), and longer while a subscription needs them. A tick is due
        after `tick_max_count` messages (500), `tick_max_lag` after the first of them (3 s), and every
        `tick_idle_period` (1 min) on a queue where nothing happens.
        """
        created: bool = await self._value(
            connection,
            "create_queue",
            queue=queue,
            retention=interval("retention", retention),
            tick_max_count=tick_max_count,
            tick_max_lag=interval("tick_max_lag", tick_max_lag),
            tick_idle_period=interval("tick_idle_period", tick_idle_period),
            default_subscription=default_subscription,
        )
        return created

    async def drop_queue(
        self, queue: str, *, force: bool = False, connection: AsyncConnection[Any] | None = None
    ) -> None:
        """Drop a queue with everything in it.

        Raises QueueInUse unless `force`d when it has other subscriptions than `default`, or unfinished
        messages.
        """
        await self._value(connection, "drop_queue", queue=queue, force=force)

    async def list_queues(self, *, connection: AsyncConnection[Any] | None = None) -> list[Queue]:
        """All queues, by name."""
        return await self._records(connection, Queue, "list_queues")

    async def grant_publisher(
        self, queue: str, role: str, *, connection: AsyncConnection[Any] | None = None
    ) -> None:
        """Let a database role publish to this queue, by function, INSERT and COPY, and do nothing else."""
        await self._value(connection, "grant_publisher", queue=queue, role=role)

    async def subscribe(
        self,
        queue: str,
        subscription: str,
        *,
        mode: Literal["shared", "exclusive"] | None = None,
        start: Literal["latest", "earliest"] | None = None,
        max_attempts: int | None = None,
        lease_time: Interval | None = None,
        backoff: Literal["constant", "linear", "exponential"] | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        keep_results: bool | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> bool:
        """Create a subscription, or change the policies given of one that is there (then False).

        It sees every message whose transaction was not finished at this moment; with `start` earliest also
        those that are still kept. A message is tried `max_attempts` times (5; 0: for ever), each under a
        lease of `lease_time` (60 s). The delay before attempt n+1 is `backoff_base` (1 s), times n when
        `backoff` is linear, times 2^(n-1) when exponential, at most `backoff_cap` (1 h), less a random part
        of it, at most the share `jitter` (0.1). With `keep_results`, the database keeps what handlers
        return.
        """
        created: bool = await self._value(
            connection,
            "subscribe",
            queue=queue,
            subscription=subscription,
            mode=mode,
            start=start,
            max_attempts=max_attempts,
            lease_time=interval("lease_time", lease_time),
            backoff=backoff,
            backoff_base=interval("backoff_base", backoff_base),
            backoff_cap=interval("backoff_cap", backoff_cap),
            jitter=jitter,
            keep_results=keep_results,
        )
        return created

    async def unsubscribe(
        self, queue: str, subscription: str, *, connection: AsyncConnection[Any] | None = None
    ) -> bool:
        """Drop a subscription with its delayed and dead messages; False when there was none."""
        dropped: bool = await self._value(connection, "unsubscribe", queue=queue, subscription=subscription)
        return dropped

    async def list_subscriptions(
        self, queue: str | None = None, *, connection: AsyncConnection[Any] | None = None
    ) -> list[Subscription]:
        """The subscriptions of a queue, or of all, with their policies."""
        return await self._records(connection, Subscription, "list_subscriptions", queue=queue)

    async def list_warnings(
        self, queue: str | None = None, *, connection: AsyncConnection[Any] | None = None
    ) -> list[SubscriptionWarning]:
        """Subscriptions that nobody reads from and that hold messages older than the retention."""
        return await self._records(connection, SubscriptionWarning, "list_warnings", queue=queue)
