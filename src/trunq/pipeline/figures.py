"""What one sees of an attempt later: bytes, times, the newest value and the columns of the sink.

Rows pass in a chain that is pulled from its end, so each step is timed where it waits for the one before.
What is between source and sink is the work: columns, checks, a function, or Spark. With Spark, tasks time
themselves, and times are those of all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import for_lake
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline

T = TypeVar("T")

_UTC: Final = pa.timestamp("us", "UTC")
"""A time without a zone is taken as UTC."""

SinkColumns = dict[str, str | None]
"""Columns with their types, as a sink has them."""


@dataclass(slots=True)
class Figures:
    """Of one attempt; times in seconds."""

    bytes_out: int = 0
    """Rows as they were given to the sink, in Arrow's memory."""
    source: float = 0.0
    work: float | None = 0.0
    """None: Spark did not tell."""
    sink: float = 0.0
    commit: float | None = None
    """None: this process has not seen it."""
    newest: datetime | None = None
    """Of the column that says how fresh the sink is, newest_by."""
    newest_by: str | None = None
    columns: SinkColumns | None = None
    """None: of no rows, or of a sink without columns."""
    _pulled: float = 0.0

    def read(self, seconds: float) -> None:
        """Reading took this long, which is a part of what `pulled` is told."""
        self.source += seconds

    def pulled(self, seconds: float) -> None:
        """Waiting for rows, of the source and through the work, took this long, a part of `staged`."""
        self._pulled += seconds

    @contextmanager
    def working(self) -> Iterator[None]:
        """What its body takes is work, but for reading within it."""
        pulled, begun = self._pulled, monotonic()
        try:
            yield
        finally:
            # Rows that were waited for meanwhile are in it already.
            self._pulled = pulled + monotonic() - begun

    def worked_each(self, items: Iterable[T]) -> Iterator[T]:
        """The same of each step of an iterator."""
        iterator = iter(items)
        end = object()
        while True:
            with self.working():
                item: Any = next(iterator, end)
            if item is end:
                return
            yield item

    def staged(self, seconds: float) -> None:
        """All took this long: the sink has what it did not wait for."""
        self.work = self._pulled - self.source
        self.sink = seconds - self._pulled

    def wrote(self, seconds: float) -> None:
        """Writing took this long."""
        self.sink += seconds

    def committed(self, seconds: float) -> None:
        """The commit of the sink took this long."""
        self.commit = seconds

    def see(self, newest: datetime | None) -> None:
        """Rows have this newest value."""
        if newest is not None:
            self.newest = newest if self.newest is None else max(self.newest, newest)


@contextmanager
def timed(spent: Callable[[float], None]) -> Iterator[None]:
    """Tells how long its body took, also if it raises."""
    begun = monotonic()
    try:
        yield
    finally:
        spent(monotonic() - begun)


def timed_each(items: Iterable[T], spent: Callable[[float], None]) -> Iterator[T]:
    """The same of each step of an iterator."""
    iterator = iter(items)
    end = object()
    while True:
        with timed(spent):
            item: Any = next(iterator, end)
        if item is end:
            return
        yield item


def freshness_of(pipeline: Pipeline) -> str | None:
    """The column whose newest value says how fresh the sink is, if its values are times; None: none."""
    newest, cursor = getattr(pipeline.sink, "newest", None), getattr(pipeline.source, "cursor", None)
    # That of an API is no column.
    return pipeline.freshness or newest or (cursor if isinstance(cursor, str) else None)


class Newest:
    """The newest value of the column that says how fresh the sink is."""

    def __init__(self, pipeline: Pipeline, schema: pa.Schema) -> None:
        named, column = pipeline.freshness, freshness_of(pipeline)
        is_time = column in schema.names and _is_time(schema.field(column).type)
        is_empty = column in schema.names and pa.types.is_null(schema.field(column).type)
        if named and not is_time and not is_empty:
            what = f"is {schema.field(named).type}" if named in schema.names else "is not there"
            times = [field.name for field in schema if _is_time(field.type)]
            raise InvalidPipeline(
                f'pipeline {pipeline.name}: freshness is the column "{named}", which {what}',
                "it is to be a column of dates or times in the rows that are written: "
                + (", ".join(times) or "there is none"),
            )
        self._column = column if is_time else None

    def of(self, batch: pa.RecordBatch) -> datetime | None:
        """That of these rows; None: there is none, or a time without end."""
        if self._column is None or not batch.num_rows:
            return None
        try:
            found: datetime | None = pc.max(batch.column(self._column)).cast(_UTC, safe=False).as_py()
        except (ValueError, OverflowError):
            return None
        return found


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def lake_columns(schema: pa.Schema) -> SinkColumns:
    """The columns of rows as a lake has them."""
    made = for_lake(pa.RecordBatch.from_pylist([], schema)).schema
    return {field.name: str(field.type) for field in made}
