"""An attempt whose rows Spark reads, or writes, by JDBC: between both, each task works on them as on any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from trunq.arrow.batch import like
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import gives_changes
from trunq.pipeline.definition.jdbc import place_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.figures import Figures, timed_each
from trunq.pipeline.jdbc.database import PART
from trunq.pipeline.jdbc.driver import telling
from trunq.pipeline.redact import redacted
from trunq.pipeline.sink import Staged
from trunq.pipeline.sink.jdbc import JdbcSink
from trunq.pipeline.sink.key import with_keys
from trunq.pipeline.sink.stamped import stamped, with_stamps
from trunq.pipeline.source import Source
from trunq.pipeline.source.jdbc import JdbcSource
from trunq.pipeline.work.column import Steps
from trunq.pipeline.work.fitting import Fitting
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.rule import Sorter
from trunq.pipeline.work.ruling import ruling
from trunq.pipeline.work.schema import for_frame, spark_schema
from trunq.pipeline.work.share import Read, Reading, refusing, unsliced
from trunq.pipeline.work.stager import Stager
from trunq.pipeline.work.staging import Staging, rooted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Seen = Callable[[int, Read], None]
Told = dict[str, dict[str, Any]]


class _Parts(AccumulatorParam[Told]):
    """What became of the rows of each part. Of a task that is done twice, Spark counts the one it goes by."""

    def zero(self, value: Told) -> Told:  # noqa: ARG002  # as Spark calls it
        return {}

    def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802
        return {**value2, **value1}


@dataclass(frozen=True, slots=True)
class Passing:
    """What a task does with rows as they come from a database, before a statement sees them."""

    pipeline: Pipeline
    dsn: str
    run: Run
    schema: pa.Schema
    """The columns as Spark has them afterwards."""
    steps: Steps | None
    seen: Seen

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        figures = Figures()
        with redacted(self.pipeline, self.dsn), refusing(self.dsn, self.run) as refusal:
            for batch in timed_each(batches, figures.read):
                rows += batch.num_rows
                size += batch.nbytes
                given = batch if self.steps is None else self.steps.step(batch, refusal)
                yield like(for_frame(given), self.schema)
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        self.seen(number, Read(rows, size, refusal.count, refusal.part, figures.source))


@dataclass(frozen=True, slots=True)
class Counting(Stager):
    """A stager that tells how many rows came to it."""

    def stage(self, batches: Any) -> dict[str, Any]:
        counts = _Counts()
        told = Stager.stage(self, counts.of(batches))
        return {**told, **counts.told}


@dataclass(slots=True)
class _Counts:
    rows: int = 0
    bytes: int = 0
    figures: Figures = field(default_factory=Figures)

    def of(self, batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in timed_each(batches, self.figures.read):
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            yield batch

    @property
    def told(self) -> dict[str, Any]:
        return {"rows_in": self.rows, "bytes_in": self.bytes, "read": self.figures.source}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking(Stager):
    """A stager whose rows Spark writes: it gives them on, with the part of this task."""

    out: pa.Schema
    """The columns with that of the part, as Spark has them."""
    tell: Callable[[Told], None]

    def __call__(self, batches: Any) -> Iterator[pa.RecordBatch]:
        counts, figures, rows = _Counts(), Figures(), 0
        key = getattr(self.pipeline.sink, "key", [])
        with redacted(self.pipeline, self.dsn), refusing(self.dsn, self.run) as refusal, ExitStack() as stack:
            sorter = Sorter(self.pipeline.checks, refusal, gives_changes(self.pipeline.source))
            ruler = stack.enter_context(ruling(self.pipeline, self.schema, self.dsn))
            pulled = timed_each(counts.of(batches), figures.pulled)
            written = self._written(pulled, sorter, ruler, figures, refusal)
            if self.pipeline.stamp:
                written = with_stamps(self.run, written)
            for batch in with_keys(self.pipeline, key, written):
                rows += batch.num_rows
                part = pa.repeat(pa.scalar(refusal.part), batch.num_rows)
                marked = pa.RecordBatch.from_arrays([*batch.columns, part], names=[*batch.schema.names, PART])
                begun = monotonic()
                yield like(marked, self.out)
                figures.wrote(monotonic() - begun)
        newest = None if figures.newest is None else figures.newest.isoformat()
        told = {
            "part": refusal.part,
            "rows": rows,
            "bad": refusal.count,
            "broken": dict(sorter.broken),
            "failed": sorter.failed,
            "bytes": figures.bytes_out,
            "seconds": figures.sink,
            "newest": newest,
            **counts.told,
        }
        self.tell({refusal.part: told})


@dataclass(slots=True)
class JdbcStaging(Staging):
    """One attempt with JDBC on either side, or on both."""

    _is_counted: bool = False
    """Whether tasks count what they read before the stager has it."""

    def _frame(
        self, session: SparkSession, source: Source, reading: Reading, slice: dict[str, Any], seen: Seen
    ) -> DataFrame:
        if not isinstance(source, JdbcSource):
            self._is_counted = True
            return Staging._frame(self, session, source, reading, slice, seen)
        with self._telling():
            frame = source.frame(session, slice, session.sparkContext.defaultParallelism)
        if reading.steps is None and not self.pipeline.has_frames:
            return frame
        self._is_counted = True
        made, plain = spark_schema(self.pipeline.name, reading.schema)
        passing = Passing(reading.pipeline, self.dsn, reading.run, plain, reading.steps, seen)

        def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from passing(batches)

        return map_batches(frame, passed, made)

    def _results(
        self, checked: DataFrame, schema: pa.Schema, fitting: Fitting | None
    ) -> list[dict[str, Any]]:
        pipeline, run = rooted(self.pipeline), unsliced(self.run)
        sink = getattr(self.sink, "unstamped", self.sink)
        if not isinstance(sink, JdbcSink):
            with self._telling():
                return self._collected(checked, Counting(pipeline, self.dsn, run, schema, fitting))
        becomes = schema if fitting is None else fitting.schema
        becomes = stamped(becomes) if pipeline.stamp else becomes
        made, plain = spark_schema(pipeline.name, pa.schema([*becomes, pa.field(PART, pa.string())]))
        parts = self.spark.sparkContext.accumulator({}, _Parts())

        def tell(told: Told) -> None:
            parts.add(told)

        marking = Marking(pipeline, self.dsn, run, schema, fitting, out=plain, tell=tell)

        def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from marking(batches)

        with self._telling():
            sink.write(self.run, map_batches(checked, mark, made))
        return list(parts.value.values())

    def _staged(self, results: list[dict[str, Any]], reads: list[Read]) -> Staged:
        if not self._is_counted:
            # Each share was counted where it was staged.
            reads = [Read(each["rows_in"], each["bytes_in"], 0, "", each["read"]) for each in results]
        return Staging._staged(self, results, reads)

    def _telling(self) -> AbstractContextManager[None]:
        """Says what a database said in Spark's tasks, or before them."""
        return telling(self.pipeline.name, self._places())

    def _places(self) -> str:
        places = [each for each in (self.pipeline.source, self.pipeline.sink) if each.format == "jdbc"]
        return " or ".join(dict.fromkeys(place_of(each) for each in places))
