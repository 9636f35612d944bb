"""Movers: streams that are moved into other queues, also of another database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Move, MoverState
from trunq.wire.json import json_text
from trunq.wire.scalar import Interval, interval


class AsyncMovers(AsyncAccess):
    """Movers, step by step; `trunq.Mover` takes these steps."""

    async def start_mover(
        self,
        queue: str,
        subscription: str,
        worker: str,
        definition: Mapping[str, Any],
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Note that a process begins to move an exclusive subscription, which has no `max_attempts`.

        Returns how often it was asked to stop so far: when that becomes more, the process should end.
        """
        stops: int = await self._value(
            connection,
            "start_mover",
            queue=queue,
            subscription=subscription,
            worker=worker,
            definition=json_text("definition", definition),
        )
        return stops

    async def begin_move(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        *,
        connection: AsyncGiven | None = None,
    ) -> Move:
        """What the target of a mover has to be told of an open batch: the arguments of `receive`."""
        arguments = {"queue": queue, "subscription": subscription, "batch_id": batch_id, "token": token}
        rows = await self._records(connection, Move, "begin_move", **arguments)
        return rows[0]

    async def receive(
        self,
        source: str,
        subscription_id: int,
        from_: Mapping[str, Any],
        to: Mapping[str, Any],
        moved: Mapping[str, Any] | None = None,
        accept: bool | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Note in the target that a batch is here. True: it is new, publish its messages on `connection`.

        Raises MarkMismatch when it does not follow the last one, unless you `accept` that.
        """
        is_new: bool = await self._value(
            connection,
            "receive",
            source=source,
            subscription_id=subscription_id,
            from_=json_text("from_", from_),
            to=json_text("to", to),
            moved=json_text("moved", moved),
            accept=accept,
        )
        return is_new

    async def finish_move(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        messages: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Finish a batch that the target has, and count `messages` (0) as moved now.

        False when it was finished before. Raises LeaseLost when another reader has it.
        """
        finished: bool = await self._value(
            connection,
            "finish_move",
            queue=queue,
            subscription=subscription,
            batch_id=batch_id,
            token=token,
            messages=messages,
        )
        return finished

    async def fail_move(
        self,
        queue: str,
        subscription: str,
        batch_id: int,
        token: int,
        error: str,
        after: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> datetime:
        """Give a batch back that could not be moved, and note why: as `fail_batch`."""
        until: datetime = await self._value(
            connection,
            "fail_move",
            queue=queue,
            subscription=subscription,
            batch_id=batch_id,
            token=token,
            error=error,
            after=interval("after", after),
        )
        return until

    async def stop_mover(
        self, queue: str, subscription: str, *, connection: AsyncGiven | None = None
    ) -> bool:
        """Ask the mover of a subscription to stop. False: it has ended already."""
        is_there: bool = await self._value(connection, "stop_mover", queue=queue, subscription=subscription)
        return is_there

    async def end_mover(
        self, queue: str, subscription: str, worker: str, *, connection: AsyncGiven | None = None
    ) -> bool:
        """Note that the process of a mover ends. False: another has started since."""
        is_noted: bool = await self._value(
            connection, "end_mover", queue=queue, subscription=subscription, worker=worker
        )
        return is_noted

    async def list_movers(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[MoverState]:
        """Who moves which streams, where to, and how far it is."""
        return await self._records(connection, MoverState, "list_movers", queue=queue)

    async def _mover_stops(self, queue: str, subscription: str) -> int | None:
        """How often it was asked to stop; None: its subscription is gone."""
        stops: int | None = await self._value(None, "_mover_stops", queue=queue, subscription=subscription)
        return stops

    async def _database_id(self) -> str:
        """What tells this database from any other."""
        told: str = await self._value(None, "_database")
        return told
