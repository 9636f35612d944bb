"""A queue of trunq: a message a row, all of a run in one transaction."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from psycopg import sql

from trunq.arrow.catalog import Connection
from trunq.arrow.statement import PART
from trunq.arrow.value import json_rows
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import QueueSink as Model
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink.table import PostgresSink, stage_of

_STAGED = pa.schema([("key", pa.string()), ("payload", pa.string())])


class QueueSink(PostgresSink):
    """A queue. Payloads are made while rows are staged, so that the commit only copies."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        self._model = pipeline.sink

    def check(self) -> None:
        with self._connected() as connection:
            row = connection.execute(
                "select 1 from trunq.queue where name = %s", (self._model.queue,)
            ).fetchone()
        if row is None:
            raise InvalidPipeline(
                f"pipeline {self._pipeline.name}: there is no queue {self._model.queue} in the"
                f" database of its sink",
                f"trunq queue create {self._model.queue}",
            )

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        if self._model.key is not None and self._model.key not in schema.names:
            raise InvalidPipeline(
                f'pipeline {self._pipeline.name}: there is no column "{self._model.key}" in the'
                f" rows, whose values"
                f" are to be keys; there are {', '.join(schema.names)}"
            )
        return super().begin(run, _STAGED)

    def stage(self, run: Run, part: str, batches: Any) -> int:
        return super().stage(run, part, (self._messages(batch) for batch in batches))

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = pa.nulls(batch.num_rows, pa.string())
        if self._model.key is not None:
            values = batch.column(self._model.key).to_pylist()
            keys = pa.array([None if value is None else str(value) for value in values], pa.string())
        return pa.RecordBatch.from_arrays([keys, json_rows(batch)], schema=_STAGED)

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        query = sql.SQL(
            "insert into {} (kind, key, payload) select %(kind)s::text, key, payload::jsonb from {}"
            " where {} = any(%(parts)s)"
        ).format(sql.Identifier("trunq_log", self._model.queue), stage_of(run), sql.Identifier(PART))
        connection.execute(query, {"kind": self._model.kind, "parts": parts})
