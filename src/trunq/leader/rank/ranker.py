"""Calling the functions that rank, and telling the database what they said."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.connection._async.execute import execute, value
from trunq.connection._async.link import AsyncLink
from trunq.connection._sync.link import Link
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.connection.outage import Outage, Said
from trunq.leader.rank.order import BadOrder, Order, order
from trunq.leader.rank.registry import Ranked, Ranks
from trunq.process.thread import Thread
from trunq.process.together import together
from trunq.record import Fleet, Lane
from trunq.wire.array import integer_array, text_array
from trunq.wire.call import Call

log = logging.getLogger("trunq.rank")

_EVERY: Final = 0.5
"""Seconds between two calls of a function."""
_LATER: Final = 0.3
"""The server ends a statement at the time limit: we wait so much longer, to hear of it."""
_LANES: Final = 10_000

_ASSIGNED: Final = ("subscription_id", "queue", "subscription", "function")


class _Post:
    """One subscription that this process ranks, or once did: its thread, and its connection in it."""

    def __init__(self, subscription_id: int, queue: str, subscription: str, conninfo: str) -> None:
        self.subscription_id = subscription_id
        self.names = {"queue": queue, "subscription": subscription}
        self.overdue: asyncio.Future[Order] | None = None
        """A call that did not return in time."""
        self.due = 0.0
        self.is_busy = False
        """Whether it is being ranked."""
        self._link = Link(conninfo, "trunq rank", lends=True)
        self._thread = Thread(f"trunq-rank-{queue}")

    @property
    def is_stuck(self) -> bool:
        """Whether its thread is in a call that did not return in time."""
        return self.overdue is not None and not self.overdue.done()

    def call(self, ranked: Ranked, lanes: list[Lane], fleet: Fleet) -> asyncio.Future[Order]:
        """Have the thread call a function."""
        future = self._thread.run(partial(self._call, ranked, lanes, fleet))
        # It may raise after its time, when nobody asks any more.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _call(self, ranked: Ranked, lanes: list[Lane], fleet: Fleet) -> Order:
        if not ranked.wants_connection:
            return order(ranked.function(lanes, fleet), lanes)
        connection = self._link.open()
        with connection.transaction():
            # Then the server ends its statement, or the transaction, however stuck the thread is.
            limit = f"{max(1, round(ranked.time_limit * 1000))}ms"
            connection.execute(
                "select set_config('statement_timeout', %s, true),"
                " set_config('idle_in_transaction_session_timeout', %s, true)",
                (limit, limit),
            )
            return order(ranked.function(lanes, fleet, connection=connection), lanes)

    def close(self) -> None:
        """End the thread, after what it is doing."""
        if not self.is_stuck:
            self._link.close()
        self._thread.close()


class Ranker:
    """Ranks the lanes of every subscription whose function it has and that no other process ranks.

    `name` must be one process' own. `outage` is that of the process it runs in.
    """

    def __init__(self, dsn: str, name: str, ranks: Ranks, outage: Outage | None = None) -> None:
        self.name = name
        self._ranks = ranks
        title = f"trunq rank {name}"
        self._conninfo = complete(dsn, title)
        self._link = AsyncLink(dsn, title, outage=outage)
        self._posts: dict[int, _Post] = {}
        self._said = Said()

    async def run(self) -> None:
        """Rank until cancelled; a database that is away is waited for."""
        try:
            async with together() as group:
                while True:
                    try:
                        await self._round(group)
                    except psycopg.Error as error:
                        self._say("", f"no lanes are ranked: {first_line(error)}")
                    await asyncio.sleep(_EVERY)
        finally:
            await self._close()

    async def _round(self, group: asyncio.TaskGroup) -> None:
        """Begin to rank whatever is ours to rank and due."""
        stuck = [number for number, post in self._posts.items() if post.is_stuck]
        arguments = {
            "ranker": self.name,
            "functions": text_array("functions", list(self._ranks.functions)),
            "without": integer_array(stuck),
        }
        call = Call("_start_ranking", arguments, _ASSIGNED)
        assigned = await self._link.run(lambda connection: execute(connection, call))
        self._forget({row[0] for row in assigned})
        for number, queue, subscription, function in assigned:
            post = self._posts.get(number)
            if post is None:
                post = self._posts[number] = _Post(number, queue, subscription, self._conninfo)
            # Each by itself: one that takes long holds up no other.
            if not post.is_busy and monotonic() >= post.due:
                post.is_busy = True
                group.create_task(self._rank(post, self._ranks.functions[function]))

    def _forget(self, ours: set[int]) -> None:
        for number in self._posts.keys() - ours:
            if not self._posts[number].is_busy and not self._posts[number].is_stuck:
                self._posts.pop(number).close()
                self._said.forget(number)

    async def _rank(self, post: _Post, ranked: Ranked) -> None:
        """Call a function once, and have the database go by what it says."""
        begun = monotonic()
        try:
            lanes, fleet = await self._link.run(partial(_look, post.names))
            # A look at many lanes takes long: then it rests as long.
            post.due = 2 * monotonic() - begun
            future = post.call(ranked, lanes, fleet)
            await asyncio.wait({future}, timeout=ranked.time_limit + _LATER)
            if not future.done():
                post.overdue = future
                await self._fail(post, ranked, f"it has been running for more than {ranked.time_limit:g} s")
            elif (error := future.exception()) is None:
                await self._tell(post, ranked, future.result())
                self._said.forget(post.subscription_id)
            else:
                await self._fail(post, ranked, _why(error))
        except psycopg.Error as error:
            why = first_line(error)
            self._say(post.subscription_id, f"the lanes of queue {post.names['queue']} are not ranked: {why}")
        except Exception:
            log.exception("the lanes of queue %s are not ranked", post.names["queue"])
        finally:
            post.is_busy = False

    async def _tell(self, post: _Post, ranked: Ranked, said: Order) -> None:
        arguments = {
            "ranker": self.name,
            "subscription_id": post.subscription_id,
            "function": ranked.name,
            "lanes": text_array("lanes", said.lanes),
            "ranks": integer_array(said.ranks),
            "priorities": integer_array(said.priorities),
            "max_running": integer_array(said.max_running),
        }
        call = Call("_apply_ranks", arguments)
        await self._link.run(lambda connection: value(connection, call))

    async def _fail(self, post: _Post, ranked: Ranked, why: str) -> None:
        self._say(
            post.subscription_id,
            f"the function {ranked.name} failed to rank the lanes of queue {post.names['queue']}, the last"
            f" ranks stay: {why}",
        )
        arguments = {"ranker": self.name, "subscription_id": post.subscription_id, "error": why}
        call = Call("_fail_ranking", arguments)
        await self._link.run(lambda connection: value(connection, call))

    def _say(self, about: int | str, text: str) -> None:
        if self._said.is_new(about, text):
            log.error("%s", text)

    async def _close(self) -> None:
        """Leave what we rank to others."""
        for post in self._posts.values():
            post.close()
        try:
            if (connection := self._link.connection) is not None and not connection.closed:
                await value(connection, Call("_end_ranking", {"ranker": self.name}))
        except psycopg.Error as error:
            log.warning("others rank a few seconds later: %s", first_line(error))
        await self._link.close()


async def _look(names: dict[str, str], connection: AsyncConnection[Any]) -> tuple[list[Lane], Fleet]:
    """The lanes of a subscription, and the fleet that serves it."""
    lanes = await execute(connection, Call("list_lanes", {**names, "limit": _LANES}, Lane._fields))
    ((*fleet,),) = await execute(connection, Call("fleet", dict(names), Fleet._fields))
    return [Lane._make(row) for row in lanes], Fleet._make(fleet)


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, BadOrder) else f"{type(error).__name__}: {error}".rstrip(": ")
