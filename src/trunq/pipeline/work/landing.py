"""A source of which only reading tells the columns, on its way into `sql` or a transform: one task reads it
into files, and the others read these.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from trunq import Client
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import Wait, raise_wait, wait_told
from trunq.pipeline.figures import Figures, timed_each
from trunq.pipeline.redact import redacted
from trunq.pipeline.source import Context
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.reason import translating
from trunq.pipeline.work.share import Landed, Read, land, refusing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Landing:
    """What the task needs; `directory`: of the attempt, where all its tasks see it."""

    pipeline: Pipeline
    dsn: str
    run: Run
    directory: Path

    def land(self) -> dict[str, Any]:
        """What became of it."""
        # A directory of this try: another copy of this task writes into another.
        directory, run, figures = self.directory / str(uuid.uuid4()), self.run, Figures()
        directory.mkdir()
        count = [0, 0]
        with (
            redacted(self.pipeline, self.dsn),
            refusing(self.dsn, run) as refusal,
            Client(self.dsn, max_connections=1) as client,
        ):
            context = Context(run.pipeline, run.number, message=run.message, refuse=refusal)
            source = sources.make(self.pipeline, self.dsn, Control(client))

            def batches() -> Iterator[pa.RecordBatch]:
                for batch in timed_each(source.read(run.slice, context), figures.read):
                    count[:] = count[0] + batch.num_rows, count[1] + batch.nbytes
                    yield batch

            landed, slice = land(run.pipeline, batches(), directory)
        return {
            "slice": slice,
            "schemas": [base64.b64encode(each.serialize()).decode() for each in landed.schemas],
            "read": [*count, refusal.count, refusal.part, figures.source],
            "state": context.state,
        }

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as a function of Spark's: a row of JSON text."""
        for batch in numbers:
            for _ in range(batch.num_rows):
                try:
                    told = self.land()
                except Wait as wait:
                    told = wait_told(wait)
                yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})


def landed_by_task(
    session: SparkSession, landing: Landing, context: Context
) -> tuple[Landed, dict[str, Any], Read]:
    """The rows as a source, with its slice, and what became of them; the context has the state after them."""
    with translating(landing.pipeline.name):
        one = session.range(0, 1, 1, 1)
        (row,) = map_batches(one, landing.__call__, StructType().add("told", StringType())).collect()
    told = json.loads(row.told)
    raise_wait([told])
    context.state = told["state"]
    schemas = [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(each))) for each in told["schemas"]]
    return Landed(schemas), told["slice"], Read(*told["read"])
