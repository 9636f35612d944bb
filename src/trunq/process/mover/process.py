"""A process that moves batch after batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunq.client._async import AsyncClient
from trunq.client._async.stream.reading import AsyncBatchStream
from trunq.client._async.stream.wake import AsyncWake
from trunq.connection.backoff import AsyncHurry, async_retrying, first_line, is_away
from trunq.errors import (
    InvalidArgument,
    InvalidName,
    LeaseLost,
    MarkMismatch,
    QueueNotFound,
    SubscriptionNotFound,
    TrunqError,
)
from trunq.process.mover.rows import move_rows
from trunq.process.mover.split import By, Label, split_by
from trunq.process.signals import run_with_signals
from trunq.record import Batch
from trunq.wire.name import check_name, own_name
from trunq.wire.scalar import Interval
from trunq.word import Start

log = logging.getLogger("trunq.mover")

_LOOK: Final = 1.0
"""Seconds between two looks whether it is to stop, where nothing comes."""
_TELL: Final = 10.0
_FATAL: Final = (MarkMismatch, QueueNotFound, InvalidName, InvalidArgument)
"""What no time heals: somebody has to do something."""


class TargetNotFound(QueueNotFound):
    """A message goes to a queue that the target does not have."""


@dataclass
class Statistics:
    """What a mover has done since it was made."""

    batches: int = 0
    """Those that the target has and that are finished in the source."""
    messages: int = 0
    """Those it published in the target."""
    skipped: int = 0
    """Batches that the target had already: a process died before it had finished them."""
    failures: int = 0
    last_error: str | None = None


class Mover:
    """Moves the messages of a queue into other queues, of this database or another, exactly once.

        Mover("changes", "orders_{slot}", split="key", into=3, target="postgresql://...").run()

    It reads the exclusive subscription `name` (made when it is not there, at `start`; by default `to_` and
    the target), and publishes kind, key, payload, body, headers, priority and those columns of your own that
    the target has too as they are, with the id in the header `trunq_source_id`. `to`, `split`, `into`,
    `patterns` and `on` say which queue a message goes to (`trunq.mover.split_by`). `filter`, written as in
    `subscribe`, says which are moved. `target` is the address of the other database; None: the same. With
    `create`, queues that are not there are made.

    The position is committed in the target, with the messages; so batches are moved once whoever is killed
    when. With `once` it ends when nothing is left. `accept`: go on from where the stream stands,
    though the first batch does not follow what the target has. `worker` is as in `client.stream`.
    """

    def __init__(
        self,
        queue: str,
        to: str,
        *,
        database: str | None = None,
        target: str | None = None,
        name: str | None = None,
        split: By | None = None,
        into: int | None = None,
        patterns: Mapping[str, str] | None = None,
        on: Label | None = None,
        filter: Mapping[str, Any] | None = None,
        start: Start = "earliest",
        create: bool = False,
        once: bool = False,
        accept: bool = False,
        max_ticks: int | None = None,
        lease_time: Interval | None = None,
        worker: str | None = None,
        progress: Callable[[Statistics], None] | None = None,
    ) -> None:
        check_name("queue", queue)
        self._split = split_by(to, split, into, patterns, on)
        self.name = name or default_name(to)
        check_name("subscription", self.name)
        self.worker = worker or own_name()
        self.statistics = Statistics()
        self._queue = queue
        self._database = database
        self._target = target
        self._filter = dict(filter) if filter else None
        self._start = start
        self._is_creating = create
        self._is_once = once
        self._is_accepting = accept
        self._asked = {"max_ticks": max_ticks, "lease_time": lease_time}
        self._progress = progress
        self._is_stopped = False
        self._batches: _Batches | None = None
        self._known: set[str] = set()
        self._is_same_database = False
        self._hurried = AsyncHurry()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Move until SIGTERM or SIGINT, which end it between two batches; a second one ends it at once.

        Raises psycopg.OperationalError when one of the databases is away to begin with (later on it is
        waited for), TargetNotFound, a QueueNotFound, and MarkMismatch when a batch does not follow what the
        target has received: nothing of that batch is moved then.
        """
        run_with_signals(self.run_async, self.stop)

    def stop(self) -> None:
        """End it when the batch in hand is done; from any thread."""
        self._is_stopped = True
        if (batches := self._batches) is not None:
            batches.stop()
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._hurried.set)

    async def run_async(self) -> None:
        """`run` on the event loop you have, without signals; `stop` ends it."""
        self._loop = asyncio.get_running_loop()
        try:
            async with (
                AsyncClient(self._database, max_connections=3) as source,
                AsyncClient(
                    self._database if self._target is None else self._target, max_connections=2
                ) as target,
            ):
                await self._prepare(source, target)
                stops = await source.start_mover(self._queue, self.name, self.worker, self._definition())
                try:
                    await self._work(source, target, stops)
                finally:
                    with contextlib.suppress(psycopg.Error, TrunqError):
                        await source.end_mover(self._queue, self.name, self.worker)
        finally:
            self._loop = None
            self._is_stopped = False

    async def _prepare(self, source: AsyncClient, target: AsyncClient) -> None:
        """What can be known to fail before anything is moved, and the subscription."""
        if self._queue not in {row.queue for row in await source.list_queues()}:
            raise QueueNotFound(f'there is no queue "{self._queue}" to move')
        here, there = [await client._value(None, "_database") for client in (source, target)]
        self._is_same_database = here == there
        for queue in self._split.known:
            await self._ready(source, target, queue)
        subscriptions = await source.list_subscriptions(self._queue)
        if self.name not in {row.subscription for row in subscriptions}:
            await source.subscribe(
                self._queue, self.name, mode="exclusive", start=self._start, max_attempts=0
            )

    async def _ready(self, source: AsyncClient, target: AsyncClient, queue: str) -> None:
        """Have a queue in the target, or raise."""
        if self._is_same_database and queue == self._queue:
            raise InvalidArgument(
                f'a mover from queue "{queue}" to itself would never end', "name another target"
            )
        if queue in self._known:
            return
        self._known = {row.queue for row in await target.list_queues()}
        if queue in self._known:
            return
        if not self._is_creating:
            raise TargetNotFound(
                f'there is no queue "{queue}" in the target', "create it there first, or have it made: create"
            )
        (like,) = [row for row in await source.list_queues() if row.queue == self._queue]
        columns = await source.list_columns(self._queue)
        async with target.transaction() as made:
            # At once: one that is there without its columns would be taken for ready.
            await target.create_queue(
                queue,
                retention=like.retention,
                lanes=like.lanes,  # type: ignore[arg-type]
                connection=made,
            )
            for column in columns:
                await target.add_column(queue, column.name, column.type, connection=made)
        log.info("made queue %s in the target", queue)
        self._known.add(queue)

    async def _work(self, source: AsyncClient, target: AsyncClient, stops: int) -> None:
        batches = _Batches(source, self._queue, self.name, self.worker, self._asked, stops, self._is_once)
        self._batches = batches
        if self._is_stopped:
            return
        told_at = monotonic()
        try:
            async for batch in batches:
                await self._move(source, target, batch)
                if self._progress is not None and (batches.is_idle or monotonic() > told_at + _TELL):
                    told_at = monotonic()
                    self._progress(replace(self.statistics))
        finally:
            self._batches = None

    async def _move(self, source: AsyncClient, target: AsyncClient, batch: Batch) -> None:
        """Move a batch, as often as it takes, or give it back."""
        tries = async_retrying(is_over=lambda: self._is_stopped, say=self._say, sleep=self._hurried.pause)
        try:
            await tries(self._move_once, source, target, batch)
        except LeaseLost as error:
            self._count_failure(error)
            log.warning("batch %s was taken over, or the stream was moved", batch.batch_id)
        except (psycopg.Error, TrunqError) as error:
            self._count_failure(error)
            if is_away(error):
                return  # it was stopped meanwhile: the batch stays open
            is_fatal = isinstance(error, _FATAL) or self._is_once
            await self._give_back(source, batch, error, 0 if is_fatal else None)
            if is_fatal:
                raise
            log.error("batch %s could not be moved: %s", batch.batch_id, self.statistics.last_error)

    async def _move_once(self, source: AsyncClient, target: AsyncClient, batch: Batch) -> None:
        named = (self._queue, self.name, batch.batch_id, batch.token)
        move = await source.begin_move(*named)
        count = 0
        async with target.transaction() as writing:
            is_new = await target.receive(
                move.source,
                move.subscription_id,
                move.from_place,
                move.to_place,
                move.moved_place,
                self._is_accepting or None,
                connection=writing,
            )
            if is_new:

                async def ready(queue: str) -> None:
                    await self._ready(source, target, queue)

                async with source.transaction() as reading:
                    count = await move_rows(batch, self._filter, self._split, reading, writing, ready)
        self._is_accepting = False
        self.statistics.messages += count
        await source.finish_move(*named, count)
        self.statistics.batches += 1
        self.statistics.skipped += not is_new

    async def _give_back(
        self, source: AsyncClient, batch: Batch, error: Exception, after: int | None
    ) -> None:
        told = f"{type(error).__name__}: {error}"
        try:
            await source.fail_move(self._queue, self.name, batch.batch_id, batch.token, told, after)
        except (psycopg.Error, TrunqError) as failure:
            log.warning("batch %s could not be given back: %s", batch.batch_id, first_line(failure))

    def _count_failure(self, error: Exception) -> None:
        self.statistics.failures += 1
        self.statistics.last_error = f"{type(error).__name__}: {first_line(error)}"

    def _say(self, error: BaseException, failures: int, pause: float) -> None:  # noqa: ARG002  # as Say
        if failures == 1:
            log.warning("a database is away, or busy: %s", first_line(error))

    def _definition(self) -> dict[str, Any]:
        told = self._split.definition
        if self._filter:
            told["filter"] = self._filter
        if self._target is not None:
            known = conninfo_to_dict(self._target)
            told["target"] = {part: known[part] for part in ("host", "port", "dbname") if known.get(part)}
        return told


class _Batches(AsyncBatchStream):
    """The batches of a stream until somebody says stop; with `once`, until nothing is left."""

    def __init__(
        self,
        client: AsyncClient,
        queue: str,
        subscription: str,
        worker: str,
        asked: dict[str, Any],
        stops: int,
        once: bool,
    ) -> None:
        super().__init__(client, queue, subscription, worker, asked, _LOOK)
        self._source = client
        self._stops = stops
        self._is_once = once
        self._looked_at = 0.0
        self.is_idle = False
        """Whether the last batch was waited for."""

    async def __aiter__(self) -> AsyncIterator[Batch]:  # type: ignore[override]
        wake = AsyncWake(self._source, self._queue)
        try:
            await wake.open()
            while (batch := await self._wait(wake, None)) is not None:
                yield batch
                self.is_idle = False
        finally:
            await wake.close()

    async def _next(self) -> Batch | None:
        if await self._is_over():
            self.stop()
            return None
        batch = await super()._next()
        if batch is None:
            self.is_idle = True
            if self._is_once and not await self._is_held():
                self.stop()
        return batch

    async def _is_over(self) -> bool:
        """Whether somebody elsewhere asked it to stop."""
        if monotonic() < self._looked_at + _LOOK:
            return False
        self._looked_at = monotonic()
        try:
            stops: int | None = await self._source._value(
                None, "_mover_stops", queue=self._queue, subscription=self._subscription
            )
        except psycopg.Error:
            return False  # the next call waits for the database
        if stops is None:
            raise SubscriptionNotFound(
                f'queue "{self._queue}" has no subscription "{self._subscription}" any more'
            )
        return stops > self._stops

    async def _is_held(self) -> bool:
        """Whether another process has a batch."""
        (stream,) = [
            row
            for row in await self._source.list_streams(self._queue)
            if row.subscription == self._subscription
        ]
        return stream.batch_id is not None


def default_name(to: str) -> str:
    """What a mover is called that has no name: `to_orders_kind` for the target `orders_{kind}`."""
    return f"to_{to.replace('{', '').replace('}', '')}"[:48]
