"""One attempt at a run in Spark: its rows read, transformed, checked and staged, in one pass."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.types import StringType, StructType

from trunq import Client
from trunq.arrow.batch import unified
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reserved import require_free
from trunq.pipeline.figures import Newest, timed
from trunq.pipeline.sink import Sink, Staged
from trunq.pipeline.source import Context, Source
from trunq.pipeline.work.column import Steps, resuming
from trunq.pipeline.work.fitting import Fitting, fitting_of
from trunq.pipeline.work.frame import Seen, frame_of, lookups
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.landing import Landing, landed_by_task
from trunq.pipeline.work.reason import translating
from trunq.pipeline.work.rule import check_failed, marked
from trunq.pipeline.work.ruling import ruling
from trunq.pipeline.work.schema import sink_schema
from trunq.pipeline.work.share import Quarantined, Read, Reading, unsliced
from trunq.pipeline.work.spent import seconds_of_tasks
from trunq.pipeline.work.stager import Stager
from trunq.pipeline.work.statement import transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOLD: Final = StructType().add("told", StringType())


class _Firsts(AccumulatorParam[dict[int, Read]]):
    """Of each share the first task that read it to its end: a share that Spark reads twice counts once."""

    def zero(self, value: dict[int, Read]) -> dict[int, Read]:  # noqa: ARG002  # as Spark calls it
        return {}

    def addInPlace(self, value1: dict[int, Read], value2: dict[int, Read]) -> dict[int, Read]:  # noqa: N802
        return {**value2, **value1}


@dataclass(slots=True)
class Staging:
    """All that it needs; `check` raises when the run is to stop."""

    spark: SparkSession
    pipeline: Pipeline
    run: Run
    source: Source | None
    sink: Sink
    context: Context
    check: Callable[[], None]
    dsn: str
    _landed: Read | None = None
    """What one task has read into files for the others."""

    def stage(self) -> Staged:
        """Do it. Raises InvalidPipeline for what cannot be, CheckFailed, and WorkFailed."""
        # Views, and settings that a transform makes, are this run's alone.
        session = self.spark.newSession()
        with self._client() as control, self._found(control) as (source, slice, given):
            self.check()
            if given is None:
                return self._staged([], [])
            steps = self._steps(control, slice, given)
            schema = given if steps is None else steps.schema
            reading = Reading(rooted(self.pipeline), self.dsn, unsliced(self.run), [], schema, steps=steps)
            firsts = self.spark.sparkContext.accumulator({}, _Firsts())

            def seen(number: int, read: Read) -> None:
                firsts.add({number: read})

            with translating(self.pipeline.name):
                self.context.lookups = lookups(session, self.pipeline, self.run, control, self.dsn)
                given_frame = self._frame(session, source, reading, slice, seen)
                frame = transformed(session, self.pipeline, given_frame, self.context)
                results = self._executed(frame)
        return self._staged(results, list(firsts.value.values()))

    def _frame(
        self, session: SparkSession, source: Source, reading: Reading, slice: dict[str, Any], seen: Seen
    ) -> DataFrame:
        """The rows of the slice."""
        shares = source.shares(slice, self.spark.sparkContext.defaultParallelism)
        return frame_of(session, replace(reading, shares=shares), seen)

    def _executed(self, frame: DataFrame) -> list[dict[str, Any]]:
        schema = sink_schema(self.pipeline.name, frame.schema)
        require_free(self.pipeline, schema.names)
        with ruling(self.pipeline, schema, self.dsn):
            # Refused here, before a row is read.
            checked = marked(self.pipeline, frame, schema)
        self.check()
        fitting = fitting_of(self.pipeline, schema, self.sink)
        becomes = schema if fitting is None else fitting.schema
        Newest(self.pipeline, becomes)  # refused before a row is read
        figures = self.run.figures
        with timed(figures.wrote):
            figures.columns = self.sink.begin(self.run, becomes)
        return self._results(checked, schema, fitting)

    def _results(
        self, checked: DataFrame, schema: pa.Schema, fitting: Fitting | None
    ) -> list[dict[str, Any]]:
        """What became of the rows, by part."""
        stager = Stager(rooted(self.pipeline), self.dsn, unsliced(self.run), schema, fitting)
        return self._collected(checked, stager)

    def _collected(self, checked: DataFrame, stager: Stager) -> list[dict[str, Any]]:
        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from stager(batches)

        rows = map_batches(checked, stage, _TOLD).collect()
        return [json.loads(row.told) for row in rows]

    def _staged(self, results: list[dict[str, Any]], reads: list[Read]) -> Staged:
        if failed := next((each["failed"] for each in results if each["failed"]), None):
            raise check_failed(self.pipeline.name, failed)
        progress = self.run.progress
        # What a task has read into files was counted there.
        counted = reads if self._landed is None else [self._landed]
        progress["rows_in"] = sum(read.rows for read in counted)
        progress["bytes"] = sum(read.bytes for read in counted)
        reads = reads if self._landed is None else [self._landed, *reads]
        progress["rows_out"] = sum(each["rows"] for each in results)
        self._figure(results, reads)
        bad = sum(each["bad"] for each in results) + sum(read.bad for read in reads)
        broken: Counter[str] = Counter()
        for each in results:
            broken.update(each["broken"])
        if broken:
            progress["broken"] = dict(broken)
        parts = [each["part"] for each in results if each["rows"]]
        if not parts:
            self.sink.discard(self.run)
        kept = [each["part"] for each in results if each["bad"] and not each["rows"]]
        kept += [read.part for read in reads if read.bad]
        return Staged(parts, progress["rows_out"], bad, kept)

    def _figure(self, results: list[dict[str, Any]], reads: list[Read]) -> None:
        figures = self.run.figures
        figures.bytes_out = sum(each["bytes"] for each in results)
        for each in results:
            figures.see(None if each["newest"] is None else datetime.fromisoformat(each["newest"]))
        read, written = sum(each.seconds for each in reads), sum(each["seconds"] for each in results)
        figures.read(read)
        figures.wrote(written)
        spent = seconds_of_tasks(self.spark)
        figures.work = None if spent is None else spent - read - written

    @contextmanager
    def _client(self) -> Iterator[Control]:
        with Client(self.dsn, max_connections=1) as client:
            yield Control(client)

    @contextmanager
    def _found(self, control: Control) -> Iterator[tuple[Source, dict[str, Any], pa.Schema | None]]:
        """The source with its slice and the columns of it: rows of the quarantine, or landed ones, are a
        source of their own.
        """
        slice = self.run.slice
        if "quarantine" in slice:
            of_rows = sources.make(self.pipeline, self.dsn, control)
            quarantined = Quarantined(self.pipeline, control, of_rows)
            yield quarantined, slice, quarantined.schema(slice)
            return
        assert self.source is not None
        # Asked once: of many files, each is opened for it.
        if (schema := self.source.schema(slice)) is not None:
            yield self.source, slice, schema
            return
        with tempfile.TemporaryDirectory(prefix="trunq_landing_", ignore_cleanup_errors=True) as directory:
            landing = Landing(rooted(self.pipeline), self.dsn, self.run, Path(directory))
            landed, slice, self._landed = landed_by_task(self.spark, landing, self.context)
            yield (
                landed,
                slice,
                unified(self.pipeline.name, landed.schemas, is_mixed=self.pipeline.evolve.sorts),
            )

    def _steps(self, control: Control, slice: dict[str, Any], given: pa.Schema) -> Steps | None:
        """What becomes of the columns."""
        if self.pipeline.columns is None:
            return None
        if "quarantine" not in slice:
            return Steps(self.pipeline, given)
        of_source = sources.make(self.pipeline, self.dsn, control).schema(slice)
        # Where only reading tells the columns of a source, those of the rows.
        return resuming(self.pipeline, of_source, given)


def rooted(pipeline: Pipeline) -> Pipeline:
    """A pipeline as tasks know it, which may run in another directory."""
    parts: dict[str, Any] = {}
    for part, name in (("sink", "path"), ("source", "landing")):
        model = getattr(pipeline, part)
        path = getattr(model, name, None)
        if path is not None and "://" not in path:
            parts[part] = model.model_copy(update={name: os.path.abspath(path)})
    return pipeline.model_copy(update=parts) if parts else pipeline
