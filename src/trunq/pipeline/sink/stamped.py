"""Rows that say which run brought them: two columns more, whatever the sink.

Both are of the run, not of an attempt at it: tried again, it writes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from trunq.pipeline.control import Run
from trunq.pipeline.definition.stamp import STAMPS
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink import Sink, checked

_FIELDS: Final = [pa.field(STAMPS[0], pa.int64()), pa.field(STAMPS[1], pa.timestamp("us", "UTC"))]


class Stamped:
    """A sink whose rows are stamped; all else is as the sink does it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def unstamped(self) -> Sink:
        """The sink itself."""
        return self._sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        """Make ready for rows of this schema with their stamps."""
        return self._sink.begin(run, stamped(schema))

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Stage rows with their stamps."""
        return self._sink.stage(run, part, with_stamps(run, checked(batches)))


def stamped(schema: pa.Schema) -> pa.Schema:
    """The schema of rows with their stamps."""
    return pa.schema([*schema, *_FIELDS], schema.metadata)


def with_stamps(run: Run, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with their stamps."""
    # No run of a backfill has the number of another run.
    number = -run.backfill if run.backfill else run.number
    begun = datetime.fromisoformat(run.begun_at)
    for batch in batches:
        values = zip((number, begun), _FIELDS, strict=True)
        stamps = [pa.repeat(pa.scalar(value, field.type), batch.num_rows) for value, field in values]
        schema = pa.schema([*batch.schema, *_FIELDS], batch.schema.metadata)
        yield pa.RecordBatch.from_arrays([*batch.columns, *stamps], schema=schema)
