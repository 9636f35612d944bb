"""An attempt in Spark's tasks where neither sql nor a transform is between source and sink.

Each task reads its share, works on it and stages it, as one process does without Spark. To the driver come
counts.

Rows that have to be seen together (a function, `unique`), those of the quarantine, and a source of which only
reading tells the columns, are one task.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from trunq import Client
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reserved import require_free
from trunq.pipeline.errors import Wait, raise_wait, wait_told
from trunq.pipeline.figures import Figures, Newest
from trunq.pipeline.redact import redacted
from trunq.pipeline.sink import Sink, Staged
from trunq.pipeline.source import Context, Source
from trunq.pipeline.work.column import Steps
from trunq.pipeline.work.fitting import fitting_of
from trunq.pipeline.work.flow import Flow
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.reason import translating
from trunq.pipeline.work.rule import check_failed
from trunq.pipeline.work.ruling import ruling
from trunq.pipeline.work.share import unsliced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOLD: Final = StructType().add("told", StringType())


@dataclass(frozen=True, slots=True)
class Share:
    """What a task needs; schema None: the first rows tell it, and the task makes the sink ready."""

    pipeline: Pipeline
    dsn: str
    run: Run
    slices: list[dict[str, Any]]
    schema: pa.Schema | None
    there: pa.Schema | None = None
    """The columns of the sink before it was made ready."""

    def stage(self, number: int) -> dict[str, Any]:
        """What became of a share."""
        # A part of this try: what another copy of this task has staged is not taken.
        part = str(uuid.uuid4())
        run = replace(self.run, slice=self.slices[number], progress={}, figures=Figures())
        with redacted(self.pipeline, self.dsn), Client(self.dsn, max_connections=1) as client:
            control = Control(client)
            is_again = "quarantine" in run.slice
            source = None if is_again else sources.make(self.pipeline, self.dsn, control)
            sink = sinks.make(self.pipeline, self.dsn)
            flow = Flow(
                self.pipeline,
                run,
                control,
                lambda: None,
                self.dsn,
                part=part,
                schema=self.schema,
                there=self.there,
            )
            staged = flow.stage(sink, flow.rows(source))
        figures, schema = run.figures, flow.schema
        return {
            "part": part,
            "rows": staged.rows,
            "bad": flow.bad,
            "failed": flow.failed,
            "broken": run.progress.get("broken", {}),
            "rows_in": run.progress["rows_in"],
            "bytes_in": run.progress["bytes"],
            "bytes_out": figures.bytes_out,
            "seconds": [figures.source, figures.work, figures.sink],
            "newest": None if figures.newest is None else figures.newest.isoformat(),
            "state": flow.context.state,
            "schema": None if schema is None else base64.b64encode(schema.serialize()).decode(),
        }

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as a function of Spark's: a row of JSON text for each share."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    told = self.stage(number)
                except Wait as wait:
                    told = wait_told(wait)
                yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})


@dataclass(slots=True)
class Fused:
    """One attempt; `check` raises when the run is to stop."""

    spark: SparkSession
    pipeline: Pipeline
    run: Run
    source: Source | None
    sink: Sink
    context: Context
    check: Callable[[], None]
    dsn: str

    def stage(self) -> Staged:
        """Do it. Raises InvalidPipeline for what cannot be, CheckFailed, and WorkFailed."""
        slices, schema = self._shares()
        figures = self.run.figures
        fitting = None
        if schema is not None:
            require_free(self.pipeline, schema.names)
            fitting = fitting_of(self.pipeline, schema, self.sink)
            becomes = schema if fitting is None else fitting.schema
            Newest(self.pipeline, becomes)  # refused before a row is read
            with ruling(self.pipeline, schema, self.dsn):
                figures.columns = self.sink.begin(self.run, becomes)
        self.check()
        there = None if fitting is None else fitting.there
        share = Share(self.pipeline, self.dsn, unsliced(self.run), slices, schema, there)
        session = self.spark.newSession()
        with translating(self.pipeline.name):
            numbers = session.range(0, len(slices), 1, len(slices))
            rows = map_batches(numbers, share.__call__, _TOLD).collect()
        results = [json.loads(row.told) for row in rows]
        raise_wait(results)
        if schema is None and (found := next((each["schema"] for each in results if each["rows"]), None)):
            # What a commit needs to know of the columns.
            buffer = pa.py_buffer(base64.b64decode(found))
            figures.columns = self.sink.begin(self.run, pa.ipc.read_schema(buffer))
        return self._staged(results)

    def _shares(self) -> tuple[list[dict[str, Any]], pa.Schema | None]:
        slice = self.run.slice
        is_one = self.pipeline.function is not None or any(check.unique for check in self.pipeline.checks)
        if self.source is None or is_one:
            return [slice], None
        if (schema := self.source.schema(slice)) is None:
            return [slice], None
        if self.pipeline.columns is not None:
            schema = Steps(self.pipeline, schema).schema
        return self.source.shares(slice, self.spark.sparkContext.defaultParallelism), schema

    def _staged(self, results: list[dict[str, Any]]) -> Staged:
        if failed := next((each["failed"] for each in results if each["failed"]), None):
            raise check_failed(self.pipeline.name, failed)
        progress, figures = self.run.progress, self.run.figures
        progress["rows_in"] = sum(each["rows_in"] for each in results)
        progress["bytes"] = sum(each["bytes_in"] for each in results)
        progress["rows_out"] = sum(each["rows"] for each in results)
        figures.bytes_out = sum(each["bytes_out"] for each in results)
        figures.work = 0.0
        broken: Counter[str] = Counter()
        for each in results:
            broken.update(each["broken"])
            figures.see(None if each["newest"] is None else datetime.fromisoformat(each["newest"]))
            read, worked, written = each["seconds"]
            figures.read(read)
            figures.work += worked
            figures.wrote(written)
        if broken:
            progress["broken"] = dict(broken)
        if len(results) == 1:
            # Of a source of which only reading tells where it stands then.
            self.context.state = results[0]["state"]
        parts = [each["part"] for each in results if each["rows"]]
        if not parts:
            self.sink.discard(self.run)
        kept = [each["part"] for each in results if each["bad"] and not each["rows"]]
        return Staged(parts, progress["rows_out"], sum(each["bad"] for each in results), kept)
