"""Sources: all that a run needs of one, and the one of each format.

`plan` fixes a slice; `read` reads it, as often as the run is tried. For Spark, `shares` splits it, and each
task makes the source anew and reads its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Protocol

import pyarrow as pa

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.change import gives_changes
from trunq.pipeline.definition.pipeline import Pipeline

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A slice, and the state after it. slice None: there is nothing new up to that state."""

    slice: dict[str, Any] | None
    state: State | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the next run would read (None: nothing is new), and about how many rows (None: only reading
    tells).
    """

    slice: dict[str, Any] | None
    rows: int | None = None
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """About how large a slice is, in rows, and in bytes as they lie in the source; None: only reading
    tells.
    """

    rows: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Context:
    """What a user's function may know of its run, and do.

    `message` is the payload of the message that asked for the run. `state` is where the source stood before;
    a source function may assign the next one. `range` is that of a backfill. `lookups` are DataFrames by
    their names.
    """

    pipeline: str
    number: int
    message: Any = None
    state: State = field(default_factory=dict)
    range: Any = None
    lookups: Mapping[str, Any] = field(default_factory=dict)
    refuse: Callable[[list[Any], list[list[str]]], None] = lambda _rows, _reasons: None
    """Keep rows, with the reasons of each, in the quarantine."""
    check: Callable[[], None] = lambda: None
    """Raises when the run is to stop."""

    def quarantine(self, rows: Any, *reasons: str) -> None:
        """Keep rows (dicts, or an Arrow table or batch) in the quarantine for these reasons, not in the
        sink.
        """
        from trunq.arrow.batch import plain_rows, plain_rows_of  # noqa: PLC0415

        if not reasons:
            raise InvalidPipeline(
                "rows are quarantined for a reason", "context.quarantine(rows, 'no tail number')"
            )
        if isinstance(rows, pa.Table | pa.RecordBatch):
            batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
            kept = [row for batch in batches for row in plain_rows_of(batch)]
        else:
            kept = plain_rows(rows)
        self.refuse(kept, [list(reasons)] * len(kept))


class Source(Protocol):
    """What all sources do."""

    def plan(self, state: State) -> Plan:
        """The next slice after a state ({}: the first), of what is there now."""

    def foresee(self, state: State) -> Foreseen | None:  # noqa: ARG002
        """The next slice after a state, found without anything being written; None: only a run tells."""
        return None

    def has_new(self, state: State) -> bool:
        """Whether there is a slice after a state; asked again and again, and to leave nothing behind."""
        return self.plan(state).slice is not None

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        """The slice of a backfill; refuses a range that it cannot read."""

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Slices that are this one together, to be read beside each other."""
        return [slice]

    def size(self, slice: dict[str, Any]) -> Size:  # noqa: ARG002
        """About how large a slice is, found at once, however large it is."""
        return Size()

    def schema(self, slice: dict[str, Any]) -> pa.Schema | None:  # noqa: ARG002
        """The columns of a slice, or of the quarantine's rows; None: only reading tells.

        Where only reading tells, one task reads all of it into files, which others read.
        """
        return None

    def foresee_schema(self, slice: dict[str, Any]) -> pa.Schema | None:
        """As `schema`, of what is there now; None: only a run tells."""
        return self.schema(slice)

    def release(self, state: State) -> None:
        """All before this state was written: what was kept for it may go."""


_CLASSES: Final = {
    "table": ("trunq.pipeline.source.table", "TableSource"),
    "capture": ("trunq.pipeline.source.capture", "CaptureSource"),
    "queue": ("trunq.pipeline.source.queue", "QueueSource"),
    "history": ("trunq.pipeline.source.history", "HistorySource"),
    "csv": ("trunq.pipeline.source.file", "FileSource"),
    "json": ("trunq.pipeline.source.file", "FileSource"),
    "parquet": ("trunq.pipeline.source.file", "FileSource"),
    "python": ("trunq.pipeline.source.function", "FunctionSource"),
    "http": ("trunq.pipeline.source.http", "HttpSource"),
    "jdbc": ("trunq.pipeline.source.jdbc", "JdbcSource"),
}


def make(pipeline: Pipeline, dsn: str, control: Control) -> Source:
    """The source of a pipeline whose variables are expanded; `dsn`: where trunq is."""
    module, name = _CLASSES["capture" if gives_changes(pipeline.source) else pipeline.source.format]
    made: Source = getattr(import_module(module), name)(pipeline, dsn, control)
    return made
