"""Queues: each one log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Queue
from trunq.wire.array import kind_array
from trunq.wire.scalar import Interval, Label, interval
from trunq.word import Lanes, UniquePolicy


class AsyncQueues(AsyncAccess):
    """Queues."""

    async def create_queue(
        self,
        queue: str,
        *,
        retention: Interval | None = None,
        tick_max_count: int | None = None,
        tick_max_lag: Interval | None = None,
        tick_idle_period: Interval | None = None,
        default_subscription: bool | None = None,
        kinds: Iterable[Label] | None = None,
        lanes: Lanes | None = None,
        unique: UniquePolicy | None = None,
        hold_at_most: Interval | None = None,
        hold_size: int | None = None,
        retain_size: int | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Create a queue with its shared subscription `default`; False when it was there, and nothing
        changed.

        `default` keeps every message until a worker reads it: with `default_subscription` False, a queue
        that only streams read does without. With `kinds`, it takes messages of these only. With `lanes`,
        messages are handed out by turns of their priority, key or kind (`set_lanes`). With `unique`, messages
        may have unique keys: one whose key another holds is left out (`refuse`) or stands for that one
        (`replace`).

        Messages are kept for `retention` (1 day), and longer while a subscription needs them. A tick is due
        after `tick_max_count` messages (500), `tick_max_lag` after the first of them (3 s), and every
        `tick_idle_period` (never) on a queue where nothing happens.

        The log is held for subscriptions that have not read it for `hold_at_most`, and up to `hold_size`
        bytes (for ever, no limit): what is behind, they lose (`list_losses`). What all have read is kept up
        to `retain_size` bytes, however long the retention.
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
            kinds=kind_array(kinds),
            lanes=lanes,
            unique=unique,
            hold_at_most=interval("hold_at_most", hold_at_most),
            hold_size=hold_size,
            retain_size=retain_size,
        )
        return created

    async def set_queue(
        self,
        queue: str,
        *,
        retention: Interval | None = None,
        tick_max_count: int | None = None,
        tick_max_lag: Interval | None = None,
        tick_idle_period: Interval | None = None,
        hold_at_most: Interval | None = None,
        hold_size: int | None = None,
        retain_size: int | None = None,
        tick_external: bool | None = None,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Change what is given of a queue; see `create_queue`. 0 takes a limit away.

        `retention` and `hold_at_most` can become shorter, and longer again up to what the queue was made
        with. With `tick_external`, `cut_tick` alone cuts ticks.
        """
        await self._value(
            connection,
            "set_queue",
            queue=queue,
            retention=interval("retention", retention),
            tick_max_count=tick_max_count,
            tick_max_lag=interval("tick_max_lag", tick_max_lag),
            tick_idle_period=interval("tick_idle_period", tick_idle_period),
            hold_at_most=interval("hold_at_most", hold_at_most),
            hold_size=hold_size,
            retain_size=retain_size,
            tick_external=tick_external,
        )

    async def drop_queue(
        self, queue: str, *, force: bool = False, connection: AsyncGiven | None = None
    ) -> None:
        """Drop a queue with everything in it.

        Raises QueueInUse unless `force`d when it has other subscriptions than `default`, or unfinished
        messages.
        """
        await self._value(connection, "drop_queue", queue=queue, force=force)

    async def empty_queue(self, queue: str, *, connection: AsyncGiven | None = None) -> int:
        """Throw away every message but the dead ones; workers and readers lose what they hold.

        Returns how many messages that were. Raises QueueInUse while an open transaction uses the queue.
        """
        thrown_away: int = await self._value(connection, "empty_queue", queue=queue)
        return thrown_away

    async def list_queues(self, *, connection: AsyncGiven | None = None) -> list[Queue]:
        """All queues, by name."""
        return await self._records(connection, Queue, "list_queues")

    async def clock(self, *, connection: AsyncGiven | None = None) -> datetime:
        """The time all of trunq goes by: the database's."""
        now: datetime = await self._value(connection, "clock")
        return now

    async def let_clock_move(
        self, moves: bool | None = None, *, connection: AsyncGiven | None = None
    ) -> None:
        """Let sessions of a database of tests move its clock by the setting `trunq.clock_offset`; or no more.

        Whoever may run SQL there may then end the leases of others. The fixtures of pytest do this by
        themselves.
        """
        await self._value(connection, "let_clock_move", moves=moves)

    async def snapshot(self, *, connection: AsyncGiven | None = None) -> str:
        """Which transactions are finished now, as Postgres writes it: positions and ticks are made of it."""
        snapshot: str = await self._value(connection, "snapshot")
        return snapshot

    async def version(self, *, connection: AsyncGiven | None = None) -> int:
        """Number of the newest migration the database has had."""
        version: int = await self._value(connection, "version")
        return version

    async def adopt(self, *, connection: AsyncGiven | None = None) -> bool:
        """After pg_upgrade: go on in a cluster whose transaction ids continue; False when it was ours before.

        Raises ClusterChanged, and changes nothing, when they do not continue: then `rebase`.
        """
        adopted: bool = await self._value(connection, "adopt")
        return adopted

    async def rebase(self, *, connection: AsyncGiven | None = None) -> int:
        """After a restore into another cluster, with all workers stopped: start every position afresh.

        What was not answered is published again; returns how many messages that were.
        """
        published: int = await self._value(connection, "rebase")
        return published
