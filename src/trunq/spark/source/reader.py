"""Reading a queue once: `spark.read.format("trunq")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition, IsNotNull

from trunq.errors import TickNotFound
from trunq.spark.connection import Database
from trunq.spark.source.column import Column
from trunq.spark.source.log import QueueLog, Tick, out_of_reach
from trunq.spark.source.option import Options
from trunq.spark.source.range import BEGINNING, Part, Snapshot, Split, split
from trunq.spark.source.scan import Query, fetch

START = Tick(0, f"{BEGINNING.xmin}:{BEGINNING.xmax}:", 0)
"""A tick before everything that is still in the log."""


@dataclass
class LogPart(InputPartition):
    """What one task reads; Spark sends it to the worker.

    The task fails if messages after the tick `after` are gone when it has read; None: it reads what is left.
    """

    part: Part
    after: int | None = None
    conditions: tuple[str, ...] = ()
    """In addition to those of the query."""


class BatchReader(DataSourceReader):
    """Reads from one tick to another, by default all committed messages that lie after a reachable tick.

    A segment may be emptied while tasks read: no subscription holds it for a batch. With failOnDataLoss the
    read then fails; without, it begins at the oldest message, and reads what is left.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self._options = options
        self._database = Database(options.address)
        self._log = QueueLog(self._database, options.queue)
        self._query = Query(options.queue, tuple(columns), conditions(options))

    def partitions(self) -> Sequence[LogPart]:
        try:
            end = self._end()
            start = self._start(end)
            if start.tick_id == end.tick_id:
                return []
            # Ids leave gaps, most of all where the oldest messages were emptied.
            low, high = (Snapshot.parse(each.snapshot).xmax for each in (start, end))
            first = self._log.first_id(low, high) or 1
            start = replace(start, last_message_id=max(start.last_message_id, first - 1))
            return plan(self._log, start, end, self._options)
        finally:
            self._database.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._options, self._query, partition)

    def _start(self, end: Tick) -> Tick:
        strict = self._options.fail_on_data_loss
        if self._options.starting_tick is not None:
            named = self._named(self._options.starting_tick)
            if strict and not named.reachable:
                raise out_of_reach(self._options.queue, named.tick_id)
            return named
        if self._options.starting_offsets == "latest":
            return self._log.newest_tick()
        if not strict:
            return START
        oldest = self._log.oldest_tick() or end
        if oldest.tick_id > end.tick_id:
            raise out_of_reach(self._options.queue, end.tick_id)
        return oldest

    def _end(self) -> Tick:
        if self._options.ending_tick is not None:
            return self._named(self._options.ending_tick)
        return self._log.tick_for_everything()

    def _named(self, tick_id: int) -> Tick:
        tick = self._log.tick(tick_id)
        if tick is None:
            raise TickNotFound(f'queue "{self._options.queue}" has no tick {tick_id}', self._kept())
        return tick

    def _kept(self) -> str:
        oldest, newest = self._log.oldest_tick(), self._log.newest_tick()
        return f"it keeps ticks {oldest.tick_id} to {newest.tick_id}" if oldest else "it keeps no tick"


class FilteringReader(BatchReader):
    """A batch reader that lets Postgres apply the query's conditions on kind and key.

    It is a class of its own because Spark refuses a reader with `pushFilters` where
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        taken: list[str] = []
        for each in filters:
            condition = as_condition(each)
            if condition is None:
                yield each
            else:
                taken.append(condition)
        kept = self._query
        self._query = Query(kept.queue, kept.columns, (*kept.conditions, *taken))


def as_condition(given: Filter) -> str | None:
    """The SQL for a condition on kind or key; None for one that Spark must apply."""
    match given:
        case EqualTo(("kind" | "key",) as column, str() as value):
            return membership(column[0], [value])
        case In(("kind" | "key",) as column, values) if all(isinstance(value, str) for value in values):
            return membership(column[0], values)
        case IsNotNull(("kind" | "key",) as column):
            return f"{column[0]} is not null"
        case _:
            return None


def membership(column: str, values: Iterable[Any]) -> str:
    """`column in (...)`, the values quoted."""
    literals = sql.SQL(", ").join(sql.Literal(str(value)) for value in values)
    return sql.SQL("{} in ({})").format(sql.Identifier(column), literals).as_string()


def conditions(options: Options) -> tuple[str, ...]:
    """The conditions of the options kind and key."""
    asked = (("kind", options.kinds), ("key", options.keys))
    return tuple(membership(column, values) for column, values in asked if values)


def plan(
    log: QueueLog, start: Tick, end: Tick, options: Options, conditions: tuple[str, ...] = ()
) -> list[LogPart]:
    """Cuts the messages between two ticks into partitions, which read those that meet the conditions; raises
    `DataLoss` if some of them are gone.
    """
    ids = (start.last_message_id, end.last_message_id)
    parts = split(start.between(end), log, ids, Split(options.max_rows_per_partition, options.min_partitions))
    if not options.fail_on_data_loss:
        return [LogPart(part, None, conditions) for part in parts]
    # What is gone has no parts, and no task that would notice.
    log.require_reachable(start.tick_id)
    return [LogPart(part, start.tick_id, conditions) for part in parts]


def read_part(options: Options, query: Query, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; Spark passes None when there are no partitions."""
    if not isinstance(partition, LogPart):
        return iter(())
    asked = replace(query, conditions=(*query.conditions, *partition.conditions))
    return fetch(options.address(), asked, partition.part, partition.after, options.engine)
