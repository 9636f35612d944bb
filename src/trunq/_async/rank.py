"""Ranks: which lanes come first, and what a process that decides that should know."""

from __future__ import annotations

from collections.abc import Iterable

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Fleet, Ranking
from trunq.wire.array import integer_array, text_array


class AsyncRankings(AsyncAccess):
    """Ranks of lanes, by a process or a function of yours."""

    async def set_ranks(
        self,
        queue: str,
        subscription: str,
        lanes: Iterable[str],
        ranks: Iterable[int | None],
        priorities: Iterable[int] | None = None,
        max_running: Iterable[int | None] | None = None,
        are_all: bool | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Set the ranks of many lanes at once, from a process of yours that decides which come first.

        The next lease goes by them. `max_running` are the lanes' limits; not given, they stay as they are.
        With `are_all`, lanes that are not among `lanes` lose theirs. Returns how many changed.
        """
        changed: int = await self._value(
            connection,
            "set_ranks",
            queue=queue,
            subscription=subscription,
            lanes=text_array("lanes", list(lanes)),
            ranks=integer_array(ranks),
            priorities=integer_array(priorities),
            max_running=integer_array(max_running),
            are_all=are_all,
        )
        return changed

    async def list_rankings(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Ranking]:
        """The subscriptions whose lanes a function of yours ranks: who calls it, and why it failed."""
        return await self._records(connection, Ranking, "list_rankings", queue=queue)

    async def fleet(
        self, queue: str, subscription: str | None = None, *, connection: AsyncGiven | None = None
    ) -> Fleet:
        """How many workers serve a subscription, how many slots they have, and how many of these are free."""
        (fleet,) = await self._records(connection, Fleet, "fleet", queue=queue, subscription=subscription)
        return fleet
