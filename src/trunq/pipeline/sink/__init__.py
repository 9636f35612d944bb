"""Sinks: all that a run needs of one, and the one of each format.

`stage` shows nobody anything; `commit` takes all that is staged and the mark, the run's number and the
attempt's, in one step. `applied` reads the mark. A run that is not newer than the mark adds nothing: the sink
alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Protocol, cast

import pyarrow as pa

from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import Applying
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import ParquetSink
from trunq.pipeline.definition.storage import scheme_of
from trunq.pipeline.figures import SinkColumns


@dataclass(slots=True)
class Staged:
    """What an attempt has staged."""

    parts: list[str]
    """What the sink is to take."""
    rows: int
    bad: int = 0
    kept: list[str] = field(default_factory=list)
    """Further parts, of the quarantine alone."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest run that a sink has taken, and the attempt of it; attempt 0: that run was cancelled."""

    number: int = 0
    attempt: int = 0


class Sink(Protocol):
    """What all sinks do."""

    def check(self) -> None:
        """Refuse what can be known to be wrong before anything is read."""

    def applied(self, run: Run) -> Mark:
        """The mark of this pipeline."""

    def columns(self) -> pa.Schema | None:
        """The columns that it has; None: it is not there yet, or has none, as a queue."""

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        """Make ready for rows of this schema; refuse those that do not fit.

        The columns that the sink has for them; None: it has none, as a queue.
        """

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Write rows where nobody sees them, and say how many."""

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        """Take what is staged in these parts, and the mark, in one step; False: another was first.

        Without parts, only the mark. Raises StageLost when fewer rows are there than were staged.
        """

    def discard(self, run: Run) -> None:
        """What this attempt staged is not wanted."""

    def clear(self, run: Run) -> bool:
        """Remove what runs of this series before this one had staged; False: something is in use."""


_CLASSES: Final = {
    "table": ("trunq.pipeline.sink.table", "TableSink"),
    "table that deletes": ("trunq.pipeline.sink.apply", "DeletingTableSink"),
    "delta": ("trunq.pipeline.sink.delta", "DeltaSink"),
    "delta that deletes": ("trunq.pipeline.sink.delta_apply", "DeletingDeltaSink"),
    "delta history": ("trunq.pipeline.sink.delta_history", "DeltaHistorySink"),
    "parquet": ("trunq.pipeline.sink.parquet", "ParquetSink"),
    "queue": ("trunq.pipeline.sink.queue", "QueueSink"),
    "http": ("trunq.pipeline.sink.http", "HttpSink"),
    "jdbc": ("trunq.pipeline.sink.jdbc", "JdbcSink"),
}

_PARQUET: Final = (
    ("trunq.pipeline.sink.published", "PublishedSink"),
    ("trunq.pipeline.sink.renamed", "RenamedSink"),
)
"""At an object store, and over SFTP."""


def make(pipeline: Pipeline, dsn: str) -> Sink:
    """The sink of a pipeline whose variables are expanded; `dsn`: where trunq is."""
    module, name = _CLASSES[_kind(pipeline)]
    if isinstance(pipeline.sink, ParquetSink) and (scheme := scheme_of(pipeline.sink.path)) is not None:
        module, name = _PARQUET[scheme == "sftp"]
    made: Sink = getattr(import_module(module), name)(pipeline, dsn)
    if not pipeline.stamp:
        return made
    from trunq.pipeline.sink.stamped import Stamped  # noqa: PLC0415  # it knows what sinks are

    stamped: Any = Stamped(made)
    return cast("Sink", stamped)


def _kind(pipeline: Pipeline) -> str:
    sink = pipeline.sink
    if not isinstance(sink, Applying):
        return str(sink.format)
    mode = getattr(sink, "mode", "")
    if (sink.format, mode) == ("delta", "history"):
        return "delta history"
    if mode == "apply" or sink.missing == "delete":
        return f"{sink.format} that deletes"
    return str(sink.format)


def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Without empty ones."""
    return (batch for batch in batches if batch.num_rows)
