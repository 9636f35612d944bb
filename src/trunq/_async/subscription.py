"""Subscriptions: the readers of a queue, and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import (
    Subscription,
)
from trunq.wire.json import json_text
from trunq.wire.scalar import Interval, interval, moment
from trunq.word import Backoff, Mode, Start


class AsyncSubscriptions(AsyncAccess):
    """Subscriptions."""

    async def subscribe(
        self,
        queue: str,
        subscription: str,
        *,
        mode: Mode | None = None,
        start: Start | None = None,
        max_attempts: int | None = None,
        lease_time: Interval | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        keep_results: bool | None = None,
        dead_retention: Interval | None = None,
        filter: Mapping[str, Any] | None = None,
        rate: float | None = None,
        rate_interval: Interval | None = None,
        burst: int | None = None,
        max_running: int | None = None,
        time_out: Interval | None = None,
        in_order: bool | None = None,
        tick_id: int | None = None,
        at: datetime | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Create a subscription, or change the policies given of one that is there (then False).

        It sees every message whose transaction was not finished at this moment; with `start` earliest also
        those that are still kept; with `tick_id` those after that tick, with `at` those since that time, and
        a few before, back to a tick.

        A message is tried `max_attempts` times (20; 0: for ever), each under a
        lease of `lease_time` (60 s). The delay before attempt n+1 is `backoff_base` (1 s), times n when
        `backoff` is linear, times 2^(n-1) when exponential, at most `backoff_cap` (6 h), less a random part
        of it, up to the share `jitter` (0.1). What handlers return is kept if `keep_results`. A
        worker stops a handler after `time_out` (0, the default: never). Dead messages are kept for
        `dead_retention` (0, the default: until they are purged).

        It reads only what passes its `filter` ({}: every message): any of `kinds`, `not_kinds`, `keys`,
        `not_keys` (lists), `headers` and `not_headers` (dicts), all of which must hold. A change counts for
        what is read from then on. A shared one hands out up to `rate` messages each `rate_interval` (1 s),
        `burst` of them at once, and at most `max_running` (up to 1000) run at the same time, in all workers
        together; 0: no limit. With `in_order`, of a queue with lanes by key, one message of each key runs at
        a time, and one that is retried holds its key until it is done or dead; say so before the first lease.
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
            dead_retention=interval("dead_retention", dead_retention),
            filter=json_text("filter", filter),
            rate=rate,
            rate_interval=interval("rate_interval", rate_interval),
            burst=burst,
            max_running=max_running,
            time_out=interval("time_out", time_out),
            in_order=in_order,
            tick_id=tick_id,
            at=moment("at", at),
        )
        return created

    async def unsubscribe(
        self, queue: str, subscription: str, *, connection: AsyncGiven | None = None
    ) -> bool:
        """Drop a subscription with its delayed and dead messages; False when there was none."""
        dropped: bool = await self._value(connection, "unsubscribe", queue=queue, subscription=subscription)
        return dropped

    async def reset(
        self,
        queue: str,
        subscription: str,
        start: Start | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Start a subscription afresh: at the `latest` message (the default) it skips what waits, at the
        `earliest` it reads all that is still kept once more.

        Its policy stays; its position, history, delayed and dead messages go, and answers under its leases
        are refused.
        """
        await self._value(connection, "reset", queue=queue, subscription=subscription, start=start)

    async def list_subscriptions(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Subscription]:
        """The subscriptions of a queue, or of all, with their policies."""
        return await self._records(connection, Subscription, "list_subscriptions", queue=queue)

    async def position(self, queue: str, subscription: str, *, connection: AsyncGiven | None = None) -> int:
        """The tick up to which an exclusive subscription has read."""
        tick_id: int = await self._value(connection, "position", queue=queue, subscription=subscription)
        return tick_id

    async def advance(
        self, queue: str, subscription: str, tick_id: int, *, connection: AsyncGiven | None = None
    ) -> int:
        """Move an exclusive subscription forward to a tick, never back; returns where it is then."""
        position: int = await self._value(
            connection, "advance", queue=queue, subscription=subscription, tick_id=tick_id
        )
        return position
