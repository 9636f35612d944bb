"""Where rows come from: the models of sources."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from trunq.pipeline.definition.api import HttpSource
from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.jdbc import JdbcSource
from trunq.pipeline.definition.part import InPostgres, Part
from trunq.pipeline.definition.pattern import Patterns
from trunq.pipeline.definition.storage import Stored


class TableSource(InPostgres):
    """A table of Postgres: what was committed since the last run (`window`), `all` of it each time, or first
    all of it and then each change, deletes too (`capture`).

    With `cursor`, an indexed time column, and `lag`, a run reads only rows not older than the newest one of
    the last run less the lag, and loses what was committed later than that. `capture` publishes changes into
    `queue`, where `subscription` holds them until they are written; both are made where they are not named.

    `tables` stands in place of `table`: each table that one of these patterns of schema.table names, and none
    of `except`, is read as one, with a state and runs of its own.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    format: Literal["table"] = "table"
    table: str = ""
    tables: Patterns = []
    except_: Patterns = Field([], alias="except")
    changes: Literal["window", "all", "capture"] = "window"
    cursor: str | None = None
    lag: Span | None = None
    queue: str | None = None
    subscription: str | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.table and not self.tables:
            raise ValueError("table is missing, or tables = ['schema.*']")
        if self.table and self.tables:
            raise ValueError("give table, or tables, not both")
        if self.except_ and not self.tables:
            raise ValueError("except goes with tables")
        return self

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.cursor is None) != (self.lag is None):
            raise ValueError("cursor and lag go together: cursor = 'updated_at', lag = '1 hour'")
        if self.cursor is not None and self.changes != "window":
            raise ValueError("cursor and lag are for changes = 'window'")
        if (self.queue or self.subscription) and self.changes != "capture":
            raise ValueError("queue and subscription are for changes = 'capture'")
        return self


class QueueSource(InPostgres):
    """Messages of a queue of trunq, by its ticks; `subscription` holds them until they are read.

    Columns: id, kind, key, payload (JSON text), created_at.
    """

    format: Literal["queue"] = "queue"
    queue: str
    subscription: str | None = None


class HistorySource(InPostgres):
    """What became of the messages of a queue of trunq, an attempt a row; rotation waits for it.

    Columns: queue, subscription, kind, key, id, attempt, outcome, error (its first line), worker,
    published_at, leased_at, finished_at, day, took, waited (seconds), priority, subscription_id, lease_id;
    with `payload` also payload, headers and result.
    """

    format: Literal["history"] = "history"
    queue: str
    taker: str | None = None
    """Under which the queue keeps its history for this pipeline; None: the pipeline's name."""
    payload: bool = False
    max_messages: int = Field(1_000_000, gt=0)
    """About how many messages of each subscription a run takes."""


class FileSource(Stored):
    """Files that no run has read yet; those that changed within `settled` are still being written.

    `path` has * and **, as /data/incoming/**/*.csv and s3://bucket/incoming/*.csv.
    """

    format: Literal["csv", "json", "parquet"]
    max_files: int | None = Field(None, gt=0)
    settled: Span = Field("2 seconds", validate_default=True)
    types: dict[str, str] = {}
    """Types of columns by name, as in Arrow: {"id": "int64"}; others are found out."""
    delimiter: str = ","
    nulls: list[str] = [""]
    changed: Literal["read", "refuse"] = "read"
    """A file that was read and has changed since: it is read again, whole, or no run goes on."""


class FunctionSource(Part):
    """A Python function `module:name`, called with a context, that yields rows: dicts, or Arrow tables.

    `context.state` is what the last run left; what the function assigns to it is the next one's.
    """

    format: Literal["python"] = "python"
    function: str


Source = Annotated[
    TableSource | QueueSource | HistorySource | FileSource | FunctionSource | HttpSource | JdbcSource,
    Field(discriminator="format"),
]
