"""Reading a stream in a loop: batch after batch, waiting for the next."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.client._async.stream.batch import AsyncBatches
from trunq.client._async.stream.columns import PAGE, AsyncColumns
from trunq.client._async.stream.wake import AsyncWake
from trunq.client._async.work.bell import AsyncBells
from trunq.connection.backoff import async_retrying
from trunq.connection.idle import AsyncIdle
from trunq.errors import InvalidArgument, LeaseLost, SubscriptionBusy, TrunqError
from trunq.record import Batch, BatchMessage
from trunq.wire.name import own_name
from trunq.wire.scalar import Interval, interval

if TYPE_CHECKING:
    import pyarrow as pa

    from trunq.telemetry import Work

log = logging.getLogger("trunq.client")

_SOON: Final = 0.05
"""Seconds after which one who was woken for nothing looks once more: another reader may have been about to
cut the tick.
"""
_TIMED_POLL: Final = 0.5
"""Seconds between two looks, at most, where a batch comes of age without anybody saying so."""


class AsyncReadings(AsyncBatches, AsyncBells):
    """Reading in a loop."""

    def stream(
        self,
        queue: str,
        subscription: str,
        worker: str | None = None,
        *,
        max_ticks: int | None = None,
        lease_time: Interval | None = None,
        min_lag: Interval | None = None,
        min_count: int | None = None,
        min_interval: Interval | None = None,
        poll: Interval = 5.0,
        member: str | None = None,
    ) -> AsyncBatchStream:
        """The batches of an exclusive subscription, for a loop that waits for the next until you leave it.

            async for batch in client.stream("sales", "ledger", "bookkeeper"):
                async with batch.transaction() as connection:
                    async for message in batch:
                        ...

        Each has to be finished or failed in the body of the loop; the next iteration raises InvalidArgument
        otherwise. `worker` is the reader's name: the next process of that name goes on at once where a killed
        one stood, another (None: a name of its own) when the lease time is over. With `member`, it reads a
        group under that name, which it joins and leaves again: MemberBusy says that another process has the
        name. The rest is as in `next_batch`. It listens on a connection of its own and looks each `poll`
        seconds besides; with a pool of yours, and behind a connection pooler, it looks each half second. A
        lost connection is opened again. Raises psycopg.OperationalError when there is no database to begin
        with.
        """
        asked: dict[str, Any] = {
            "max_ticks": max_ticks,
            "lease_time": lease_time,
            "min_lag": min_lag,
            "min_count": min_count,
            "min_interval": min_interval,
        }
        if worker is not None and member is not None:
            raise InvalidArgument("a stream is read by a worker, or by a member of a group", "give one name")
        length = interval("poll", poll)
        seconds = length.total_seconds() if length is not None else 0.0
        if seconds <= 0:
            raise InvalidArgument(f"poll is a time between two looks, more than 0, not {poll}")
        if (min_lag, min_count, min_interval) != (None, None, None):
            seconds = min(seconds, _TIMED_POLL)
        name = member or worker or own_name()
        return AsyncBatchStream(self, queue, subscription, name, asked, seconds, is_member=member is not None)


class AsyncBatchStream:
    """What `client.stream` gives: loop over it. `stop` ends the loop between two batches."""

    def __init__(
        self,
        client: AsyncReadings,
        queue: str,
        subscription: str,
        worker: str,
        asked: dict[str, Any],
        poll: float,
        *,
        is_member: bool = False,
    ) -> None:
        self.worker = worker
        self._is_member = is_member
        self._client = client
        self._queue = queue
        self._subscription = subscription
        self._asked = asked
        self._poll = poll
        self._is_stopped = False

    def stop(self) -> None:
        """End the loop when its body is done with the batch it has; from any thread."""
        self._is_stopped = True

    async def __aiter__(self) -> AsyncIterator[AsyncOpenBatch]:
        wake = AsyncWake(self._client, self._queue)
        columns = AsyncColumns(self._client)
        again_at: float | None = None
        if self._is_member:
            await self._client.join_group(self._queue, self._subscription, self.worker)
        try:
            await wake.open()
            while (found := await self._wait(wake, again_at)) is not None:
                batch = AsyncOpenBatch(self._client, found, columns)
                yield batch
                batch._require_end()
                again_at = batch._again_at
        finally:
            try:
                await columns.close()
            finally:
                await wake.close()
            if self._is_member:
                await self._leave()

    async def _leave(self) -> None:
        try:
            await self._client.leave_group(self._queue, self._subscription, self.worker)
        except (psycopg.Error, TrunqError) as error:
            # With a batch in hand it stays a member: others take that over when its time is up.
            log.info("member %s of %s stays: %s", self.worker, self._subscription, error)

    async def _wait(self, wake: AsyncWake, again_at: float | None) -> Batch | None:
        """The next batch; None when the loop is to end."""
        soon = again_at
        while self._goes_on():
            if (batch := await self._next()) is not None:
                await wake.get_up()
                return batch
            if await wake.lie_down():
                continue
            until = monotonic() + self._poll
            if soon is not None:
                until, soon = min(until, max(soon, monotonic() + _SOON)), None
            while self._goes_on() and monotonic() < until:
                if await wake.sleep(until):
                    soon = monotonic() + _SOON
                    break
                if not wake.is_listening:
                    break
        return None

    def _goes_on(self) -> bool:
        return not self._is_stopped

    async def _next(self) -> Batch | None:
        """Ask for a batch as often as it takes to get an answer; None, too, when the loop is to end."""
        again = async_retrying(also=SubscriptionBusy, is_over=lambda: self._is_stopped)
        try:
            return await again(
                self._client.next_batch, self._queue, self._subscription, self.worker, **self._asked
            )
        except (psycopg.Error, SubscriptionBusy):
            if self._is_stopped:
                return None
            raise


class AsyncOpenBatch:
    """A batch in hand: loop over its messages, in order and by pages; finish it, or fail it."""

    def __init__(self, client: AsyncReadings, batch: Batch, columns: AsyncColumns) -> None:
        self.batch = batch
        self._client = client
        self._columns = columns
        self._connection: AsyncConnection[Any] | None = None
        self._is_ended = False
        self._again_at: float | None = None
        self._work: Work | None = None
        self.message_count = 0
        """How many messages the last loop over it has had so far."""

    def __repr__(self) -> str:
        return f"<batch {self.batch.batch_id} of {self.batch.queue}, {self.batch.subscription}>"

    @property
    def is_ended(self) -> bool:
        """Whether it was finished or failed."""
        return self._is_ended

    async def __aiter__(self) -> AsyncIterator[BatchMessage]:
        after_txid = after_id = None
        self.message_count = 0
        while True:
            if self._connection is not None:
                await AsyncIdle(self._connection).wait()
            page = await self._client.read_batch(
                self.batch.queue,
                self.batch.subscription,
                self.batch.batch_id,
                after_txid,
                after_id,
                PAGE,
                connection=self._connection,
            )
            for message in page:
                self.message_count += 1
                if self._work is not None:
                    self._work.read(message)
                yield message
            if len(page) < PAGE:
                return
            after_txid, after_id = page[-1].txid, page[-1].id

    async def to_arrow(self, filter: Mapping[str, Any] | None = None) -> pa.Table:
        """The messages as a table of Arrow, in order; with `filter`, written as in `subscribe`, those that
        pass it.

        Columns: id, txid (int64), kind, key (string), payload, headers (string, JSON text), body (binary),
        priority, attempt (int16), created_at (timestamp, UTC). A role that may read the log (the owner, or a
        reader with payloads) has it copied straight from there, by ADBC if it is installed; for others it is
        read in pages. Raises InvalidArgument without pyarrow, which comes with `pip install 'trunq[arrow]'`.
        """
        return await self._columns.table(self.batch, filter, self._connection)

    def to_arrow_reader(self, filter: Mapping[str, Any] | None = None) -> pa.RecordBatchReader:
        """As `to_arrow`, for a batch of any size: a reader of some thousand messages, or 8 MB, at a time.

        Read it to its end before you do anything else with the batch. Of an async client, read it in a thread
        of its own: `await asyncio.to_thread(pyarrow.parquet.write_table, ...)`.
        """
        return self._columns.reader(self.batch, filter, self._connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection in a transaction that finishes the batch at its end: effects and position commit
        together. An exception rolls both back and fails the batch; not one that ends the task or the process
        (CancelledError, KeyboardInterrupt): the batch stays open.

        Raises LeaseLost, and rolls back, when another reader has the batch, or when it is finished: by a
        transaction before, whose commit was answered too late for you.
        """
        if self._connection is not None:
            raise InvalidArgument(f"{self!r} has a transaction already")
        self._require_open()
        with self._traced() as self._work:
            async with self._finishing() as connection:
                yield connection

    def _traced(self) -> AbstractContextManager[Work | None]:
        telemetry = self._client._telemetry
        if telemetry is None:
            return nullcontext()
        return telemetry.reading(self.batch.queue, self.batch.subscription)

    @asynccontextmanager
    async def _finishing(self) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            async with self._client.transaction() as connection:
                self._connection = connection
                try:
                    yield connection
                    if not self._is_ended:
                        await self.finish()
                finally:
                    self._connection = None
        except LeaseLost:
            self._is_ended = True
            raise
        except Exception as error:
            self._is_ended = False
            await self._give_back(error)
            raise
        except BaseException:
            self._is_ended = False
            raise

    async def finish(self, upto: BatchMessage | None = None) -> bool:
        """Move the subscription past the batch, or past one message of it: the next batch is the rest.

        Within `transaction`, it is part of that. False when this reader finished it before; within
        `transaction`, that raises LeaseLost, as its effects are there already.
        """
        finished = await self._client.finish_batch(
            self.batch.queue,
            self.batch.subscription,
            self.batch.batch_id,
            self.batch.token,
            None if upto is None else upto.txid,
            None if upto is None else upto.id,
            connection=self._connection,
        )
        if not finished and self._connection is not None and not self._is_ended:
            # A transaction whose commit was cut off, or timed out, was committed after all.
            raise LeaseLost(
                f"batch {self.batch.batch_id} of {self.batch.queue}, {self.batch.subscription} is finished,"
                " and what it led to is committed: this transaction would do it twice"
            )
        self._is_ended = True
        return finished

    async def retry(
        self,
        *messages: BatchMessage | int | Iterable[BatchMessage | int],
        after: Interval | None = None,
        error: str | None = None,
    ) -> int:
        """Have messages (or their ids, or lists of them; no argument: all) come again in a later batch.

        Returns how many. The batch is still to be finished: in one `transaction` with this.
        """
        ids: list[int] = []
        for given in messages:
            some = (given,) if isinstance(given, BatchMessage | int) else given
            ids.extend(each.id if isinstance(each, BatchMessage) else each for each in some)
        if messages and not ids:
            return 0
        return await self._client.retry_batch(
            self.batch.queue,
            self.batch.subscription,
            self.batch.batch_id,
            self.batch.token,
            ids or None,
            after,
            error,
            connection=self._connection,
        )

    async def fail(self, error: str | None = None, after: Interval | None = None) -> datetime:
        """Give the batch back; returns from when on it is handed out again.

        Raises InvalidArgument within `transaction`, whose effects would stay: raise an error there.
        """
        if self._connection is not None:
            raise InvalidArgument(
                f"{self!r} cannot fail in the transaction that has its effects",
                "raise an error in it: that rolls the effects back and fails the batch",
            )
        until = await self._client.fail_batch(
            self.batch.queue, self.batch.subscription, self.batch.batch_id, self.batch.token, error, after
        )
        self._is_ended = True
        self._again_at = monotonic() + until.timestamp() - time()
        return until

    async def _give_back(self, error: Exception) -> None:
        """Fail it after a transaction that was rolled back, or perhaps not, if the connection was lost."""
        try:
            await self.fail(f"{type(error).__name__}: {error}")
        except Exception as failure:
            # What holds is in the database: the next call of next_batch says it.
            self._is_ended = True
            log.warning("%r could not be given back: %s", self, failure)

    def _require_open(self) -> None:
        if self._is_ended:
            raise InvalidArgument(f"{self!r} was finished or failed before", "the next iteration has another")

    def _require_end(self) -> None:
        if not self._is_ended:
            raise InvalidArgument(
                f"{self!r} was neither finished nor failed",
                "work in `with batch.transaction()`, or call finish, or fail",
            )
