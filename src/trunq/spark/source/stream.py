"""Following a queue: `spark.readStream.format("trunq")`.

An offset is a tick with its snapshot. The messages between two ticks are the same at every read, so a batch
that Spark replays after a crash is the same batch. Spark does not store where a query starts, but the
subscription does: after a crash before the end of the first batch, the query starts at the same tick again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from trunq.errors import InvalidArgument
from trunq.spark.connection import Database
from trunq.spark.errors import CheckpointMismatch, DataLoss
from trunq.spark.source.column import Column
from trunq.spark.source.log import QueueLog, Tick, out_of_reach
from trunq.spark.source.option import Options
from trunq.spark.source.reader import LogPart, conditions, plan, read_part
from trunq.spark.source.scan import Query

Offset = dict[str, Any]

logger = logging.getLogger("trunq.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads batches between ticks, for an exclusive subscription of its own.

    One instance lives in the query's driver process and holds the connection. Spark's workers read the
    partitions with copies of another instance, which Spark created when it planned the query.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        if options.subscription is None:
            raise InvalidArgument(
                "a stream needs the option subscription",
                "give it a name of its own: it keeps the stream's position and the messages not yet read",
            )
        if options.ending_tick is not None:
            raise InvalidArgument("a stream has no end: endingTick is for spark.read")
        self._options = options
        self._subscription = options.subscription
        self._database = Database(options.address)
        self._log = QueueLog(self._database, options.queue)
        self._query = Query(options.queue, tuple(columns), conditions(options))
        self._queue_id: int | None = None
        self._known: Tick | None = None
        self._target: Tick | None = None
        self._stood: int | None = None
        """Where the subscription was after our last commit."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """The position of the subscription, which is created if it does not exist."""
        self._begin()
        tick_id = self._options.starting_tick
        start = "earliest" if tick_id is not None else self._options.starting_offsets or "latest"
        strict = self._options.fail_on_data_loss
        made = self._log.subscribe(self._subscription, start, tick_id, strict=strict)
        position = self._log.position(self._subscription)
        if made and start == "latest":
            logger.warning(
                'subscription "%s" of queue "%s" is new and starts at the latest tick, %s: it will not read '
                "older messages. With startingOffsets=earliest, a new subscription reads all there are.",
                self._subscription,
                self._options.queue,
                position,
            )
        tick = self._log.tick(position)
        if tick is None:
            raise DataLoss(
                f'tick {position}, where subscription "{self._subscription}" of queue '
                f'"{self._options.queue}" stands, is not kept'
            )
        self._require(tick, tick)
        return self._offset(tick)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Sets the end of the run: a tick that includes everything committed so far."""
        self._begin()
        self._target = self._log.tick_for_everything()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The tick that ends the next batch: as far as the limit allows, but at least the next tick."""
        known = self._check(start)
        if self._log.is_paused(self._subscription):
            return self._offset(known)
        newest = self._target or self._newest(known)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if newest.tick_id <= known.tick_id:
            return self._offset(known)
        return self._offset(newest if most is None else self._log.tick_within(known, newest.tick_id, most))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """The newest tick, from which Spark computes the backlog in the query's progress."""
        return self._offset(self._log.newest_tick(self._known.tick_id if self._known else None))

    def partitions(self, start: Offset, end: Offset) -> Sequence[LogPart]:
        first, last = self._check(start), self._check(end)
        if first.tick_id == last.tick_id:
            return []
        # Each batch by the filter of its time: the copies of this object may be older.
        condition = self._log.filter_condition(self._subscription)
        return plan(self._log, first, last, self._options, (condition,) if condition else ())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, self._query, partition)

    def commit(self, end: Offset) -> None:
        """Moves the subscription. Spark calls this one batch late, and never for the last: see `finish`."""
        mine, stood = int(end["tick"]), self._stood
        self._stood = self._log.advance(self._subscription, mine)
        if stood is not None and self._stood > max(mine, stood):
            raise CheckpointMismatch(
                f'somebody else reads subscription "{self._subscription}" of queue "{self._options.queue}":'
                f" it stands at tick {self._stood}, and this query has read up to {mine}",
                "a query with a checkpointLocation of its own has a subscription of its own: what one has"
                " read is not kept for another",
            )

    def stop(self) -> None:
        self._database.close()

    def _begin(self) -> int:
        """The queue's id; the first call checks that this is a server a stream can read from."""
        if self._queue_id is None:
            self._log.require_primary()
            self._queue_id = self._log.queue_id()
        return self._queue_id

    def _newest(self, known: Tick) -> Tick:
        """The newest tick, if the known one is still what it was.

        A failover under a running query may lose the known tick and cut another of its number. What lies
        between the two would never be read.
        """
        still, newest = self._log.still_and_newest(known)
        self._require(known, still)
        return newest

    def _require(self, known: Tick, still: Tick | None) -> None:
        """Raises `DataLoss` if a tick is not what it was, or messages after it are gone."""
        if not self._options.fail_on_data_loss:
            return
        if still is None or still.snapshot != known.snapshot:
            raise self._data_loss(known.tick_id, gone=still is None)
        if not still.reachable:
            raise out_of_reach(self._options.queue, known.tick_id)

    def _offset(self, tick: Tick) -> Offset:
        # Spark compares offsets as text: the keys must always have the same order.
        return {
            "queue": self._options.queue,
            "queue_id": self._begin(),
            "subscription": self._subscription,
            "tick": tick.tick_id,
            "snap": tick.snapshot,
        }

    def _check(self, offset: Offset) -> Tick:
        """The tick of an offset, which may come from a checkpoint: checks its queue, id and snapshot."""
        if self._known is not None and self._known.tick_id == offset.get("tick"):
            return self._known
        self._check_queue(offset)
        tick_id, still = int(offset["tick"]), self._log.tick(int(offset["tick"]))
        # The snapshot alone defines what to read of the messages that are left.
        known = Tick(tick_id, str(offset["snap"]), still.last_message_id if still else 0)
        self._require(known, still)
        self._known = known
        return known

    def _check_queue(self, offset: Offset) -> None:
        queue_id = self._begin()
        if not {"queue", "queue_id", "tick", "snap"} <= offset.keys():
            raise CheckpointMismatch(
                "the checkpoint was not written by a query over trunq",
                "give the query a checkpointLocation of its own",
            )
        if offset["queue"] != self._options.queue:
            raise CheckpointMismatch(
                f'the checkpoint belongs to queue "{offset["queue"]}", this query reads '
                f'"{self._options.queue}"',
                "give each query a checkpointLocation of its own",
            )
        if (other := offset.get("subscription")) != self._subscription:
            raise CheckpointMismatch(
                f'the checkpoint belongs to subscription "{other}", this query reads under '
                f'"{self._subscription}"',
                f'"{other}" holds what it has not read: name that, or start with a new checkpointLocation',
            )
        if offset["queue_id"] != queue_id:
            raise CheckpointMismatch(
                f'queue "{self._options.queue}" was dropped and made again since the checkpoint was written, '
                "or this is another database",
                "start with a new checkpointLocation",
            )

    def _data_loss(self, tick_id: int, *, gone: bool) -> DataLoss:
        what = "is not kept any more" if gone else "is not the one this query has read up to"
        why = (
            "its messages are older than the queue's retention, and no subscription held them"
            if gone
            else "a standby took over that had not received it, or the database was set back or restored"
        )
        return DataLoss(
            f'tick {tick_id} of queue "{self._options.queue}" {what}: {why}',
            "start with a new checkpointLocation, or set failOnDataLoss to false to read what is left",
        )
