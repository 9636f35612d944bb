"""Where rows go to: the models of sinks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trunq.arrow.catalog import split_name
from trunq.pipeline.definition.api import HttpSink
from trunq.pipeline.definition.change import Applying
from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.jdbc import JdbcSink
from trunq.pipeline.definition.part import InPostgres
from trunq.pipeline.definition.storage import Stored, require_lake

Mode = Literal["append", "upsert", "replace", "history", "apply"]


class TableSink(InPostgres, Applying):
    """A table of Postgres, made when it is not there.

    `upsert` needs a `key` with a unique index, and takes the row with the largest `newest` column where that
    is given. `history` keeps each version of a key from `valid_from` to `valid_to`. `apply` has what its
    source has: rows that are deleted there are deleted; its key is the source's where it names none.
    """

    format: Literal["table"] = "table"
    table: str
    mode: Mode = "append"
    key: list[str] = []
    newest: str | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.mode in ("upsert", "history") and not self.key:
            raise ValueError(f"mode = '{self.mode}' needs key = ['...'], the columns that name a row")
        if self.mode in ("append", "replace") and (self.key or self.newest):
            raise ValueError(f"key and newest are for the modes upsert and history, not for {self.mode}")
        if any(len(part.encode()) > 63 for part in split_name(self.table)):
            raise ValueError(f"table is {self.table[:40]}...: a name in Postgres has at most 63 bytes")
        return self


class QueueSink(InPostgres):
    """Messages of a queue of trunq: a row is a payload. `key` names the column of their keys.

    With `apply` a message tells what a row has become: `op` upsert or delete, `key` and `row`.
    """

    format: Literal["queue"] = "queue"
    queue: str
    kind: str | None = None
    key: str | None = None
    mode: Literal["append", "apply"] = "append"

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.mode == "apply" and self.key is not None:
            raise ValueError("key is not for mode = 'apply': the key of a message is that of its row")
        return self


_SHORTEST: Final = timedelta(days=1)


class DeltaSink(Stored, Applying):
    """A Delta table in a directory or an object store, made when it is not there.

    After `compact` runs a runner merges small files, and deletes those that no version of the table of the
    last `vacuum` has; False: never.

    With `replace` a run stands for all rows, with `replace_partitions` for all rows of the partitions that
    it has rows of; the others stay. `history` and `apply` are those of a table.
    """

    format: Literal["delta"] = "delta"
    mode: Literal["append", "upsert", "replace", "replace_partitions", "history", "apply"] = "append"
    key: list[str] = []
    newest: str | None = None
    partition_by: list[str] = []
    compact: Annotated[int, Field(ge=1)] | Literal[False] = 100
    vacuum: Span | Literal[False] = timedelta(days=7)

    @field_validator("compact", "vacuum", mode="before")
    @classmethod
    def _said(cls, value: Any, info: ValidationInfo) -> Any:
        # Zero is equal to False.
        if value is True or (value == 0 and value is not False):
            what = {"compact": "after how many runs small files are merged", "vacuum": "a length of time"}
            raise ValueError(f"{info.field_name} is {what[str(info.field_name)]}, or false")
        return value

    @field_validator("vacuum")
    @classmethod
    def _safe(cls, value: timedelta | Literal[False]) -> timedelta | Literal[False]:
        if value is not False and value < _SHORTEST:
            raise ValueError(
                "vacuum is a day at least, since readers, and runs that have begun, may need older files:"
                " write '1 day' or more"
            )
        return value

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        require_lake(self.path)
        if self.mode != "apply" and (self.mode in ("upsert", "history")) != bool(self.key):
            keyed = self.mode if self.mode == "history" else "upsert"
            raise ValueError(f"mode = '{keyed}' and key = ['...'] go together")
        if self.newest and self.mode not in ("upsert", "history", "apply"):
            raise ValueError(f"newest is for the modes upsert and history, not for {self.mode}")
        if self.mode == "replace_partitions" and not self.partition_by:
            raise ValueError("mode = 'replace_partitions' needs partition_by = ['...']")
        return self


class ParquetSink(Stored):
    """A directory of Parquet files, in which each run has a directory of its own."""

    format: Literal["parquet"] = "parquet"


Sink = Annotated[
    TableSink | QueueSink | DeltaSink | ParquetSink | HttpSink | JdbcSink,
    Field(discriminator="format"),
]
