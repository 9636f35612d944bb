"""A table of Postgres that loses rows: what its source deleted (`mode = "apply"`), or has no longer
(`missing`). All of a run in one transaction with its mark, as all that a table takes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from psycopg import sql

from trunq.arrow import catalog
from trunq.arrow.apply import Apply
from trunq.arrow.catalog import Connection, is_there
from trunq.arrow.statement import Target, take
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import CHANGED_AT, DELETED_AT, OP, OWN, is_whole, key_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import TableSink as Model
from trunq.pipeline.definition.stamp import STAMPS
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink.deleting import (
    require_few_missing,
    require_key,
    require_op,
)
from trunq.pipeline.sink.key import with_keys
from trunq.pipeline.sink.table import TableSink, stage_of
from trunq.pipeline.sink.version import VALID_TO


class DeletingTableSink(TableSink):
    """Such a table."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        self._model = pipeline.sink
        self._applies = pipeline.sink.mode == "apply"
        self._deleted_at = DELETED_AT if pipeline.sink.deletes == "soft" else None
        self._own: list[str] = []

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        self._target = self._target_of(run)
        if self._applies:
            require_op(self._pipeline, schema, run.slice)
            require_key(self._pipeline, list(self._target.key), schema)
        self._own = [name for name in OWN if name in schema.names]
        return super().begin(run, schema)

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        return super().stage(run, part, with_keys(self._pipeline, key_of(self._pipeline, run.slice), batches))

    def _target_of(self, run: Run) -> Target:
        model, key = self._model, tuple(key_of(self._pipeline, run.slice))
        stamps = STAMPS if self._pipeline.stamp else ()
        return Target(model.table, model.mode, key, model.newest, stamps, reopens=model.mode == "history")

    def _fit(self, connection: Connection, schema: pa.Schema) -> SinkColumns:
        own = OWN if self._applies else ()
        fitted = super()._fit(connection, pa.schema([field for field in schema if field.name not in own]))
        if self._deleted_at is not None:
            self._add_deleted_at(connection)
        return fitted

    def _add_deleted_at(self, connection: Connection) -> None:
        found = catalog.columns(connection, self._target.quoted).get(DELETED_AT)
        if found is None:
            query = sql.SQL("alter table {} add column if not exists {} timestamptz")
            connection.execute(query.format(self._target.table, sql.Identifier(DELETED_AT)))
        elif found.base != "timestamp with time zone":
            raise InvalidPipeline(
                f'pipeline {self._pipeline.name}: column "{DELETED_AT}" of {self._model.table} is'
                f" {found.kind}, and notes when a row was deleted",
                f"alter table {self._model.table} alter {DELETED_AT} type timestamptz",
            )

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        staged = self._staged(run, parts)
        if self._applies:
            connection.execute(staged.delete())
            connection.execute(staged.write())
        else:
            connection.execute(take(self._target, self._columns, stage_of(run)), {"parts": parts})
            if self._deleted_at is not None:
                connection.execute(staged.revive())
        self._drop_missing(connection, run, staged)

    def _apply_nothing(self, connection: Connection, run: Run) -> None:
        self._target = self._target_of(run)
        if is_whole(run.slice) and is_there(connection, self._target.quoted):
            if self._deleted_at is not None:
                self._add_deleted_at(connection)
            self._drop_missing(connection, run, self._staged(run, []))

    def _staged(self, run: Run, parts: list[str]) -> Apply:
        own = dict.fromkeys(self._own)
        return Apply(
            self._target,
            getattr(self, "_columns", []),
            stage_of(run),
            parts,
            op=OP if self._applies else None,
            at=CHANGED_AT if self._applies and CHANGED_AT in own else None,
            deleted_at=self._deleted_at,
            valid_to=VALID_TO if self._model.mode == "history" else None,
        )

    def _drop_missing(self, connection: Connection, run: Run, staged: Apply) -> None:
        if not is_whole(run.slice):
            return
        row = connection.execute(staged.count()).fetchone()
        gone = connection.execute(staged.drop_missing()).rowcount
        if not self._applies:
            require_few_missing(self._pipeline, self._model.max_missing, gone, row[0] if row else 0)
