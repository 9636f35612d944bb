"""Lanes: in which order a subscription serves them, and what each may."""

from __future__ import annotations

from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Lane
from trunq.wire.scalar import moment
from trunq.word import LanePolicy


class AsyncLanes(AsyncAccess):
    """Lanes of a queue that was made with them: the key or kind of messages, and their priority."""

    async def set_lanes(
        self,
        queue: str,
        subscription: str | None = None,
        *,
        policy: LanePolicy | None = None,
        max_running: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        function: str | None = None,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Say in which order a subscription (`default`) serves its lanes, and what each of them may.

        `fair`, the default, serves each lane in turn, `priority` the smallest first; every eighth lease goes
        to the oldest turn. `ranked` goes by a `function` of yours, which a leader or workers were given by
        this name (`trunq.Ranks`). A lane runs at most `max_running` messages at once (1 to 1,000) and is
        handed out `rate` a second, up to `burst` at once. What is left out is no limit, also when there was
        one.
        """
        await self._value(
            connection,
            "set_lanes",
            queue=queue,
            subscription=subscription,
            policy=policy,
            max_running=max_running,
            rate=rate,
            burst=burst,
            function=function,
        )

    async def set_lane(
        self,
        queue: str,
        subscription: str | None = None,
        *,
        lane: str | None = None,
        priority: int | None = None,
        max_running: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        weight: int | None = None,
        rank: int | None = None,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Set what one lane may, its weight and its rank; what is left out is as for the others.

        With a `weight` of 3 it gets three times the share. A `rank` (-100 to 100, the smallest comes first)
        stands for its place by the policy: so a subscription gives kinds their priority.
        """
        await self._value(
            connection,
            "set_lane",
            queue=queue,
            subscription=subscription,
            lane=lane,
            priority=priority,
            max_running=max_running,
            rate=rate,
            burst=burst,
            weight=weight,
            rank=rank,
        )

    async def pause_lane(
        self,
        queue: str,
        subscription: str | None = None,
        *,
        lane: str | None = None,
        priority: int | None = None,
        until: datetime | None = None,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Hand nothing more out of a lane, until a time or `resume_lane`. What runs goes on."""
        await self._value(
            connection,
            "pause_lane",
            queue=queue,
            subscription=subscription,
            lane=lane,
            priority=priority,
            until=moment("until", until),
        )

    async def resume_lane(
        self,
        queue: str,
        subscription: str | None = None,
        *,
        lane: str | None = None,
        priority: int | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Hand messages of a paused lane out again; False when it was not paused."""
        resumed: bool = await self._value(
            connection, "resume_lane", queue=queue, subscription=subscription, lane=lane, priority=priority
        )
        return resumed

    async def list_lanes(
        self,
        queue: str,
        subscription: str | None = None,
        limit: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Lane]:
        """The lanes in which something waits or runs, or that have settings, the deepest first."""
        return await self._records(
            connection, Lane, "list_lanes", queue=queue, subscription=subscription, limit=limit
        )
