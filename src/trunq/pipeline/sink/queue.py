"""A queue of trunq: a message a row, all of a run in one transaction."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from trunq.arrow.catalog import Connection
from trunq.arrow.statement import PART
from trunq.arrow.value import json_rows
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import OP, OWN, key_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import QueueSink as Model
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink.deleting import require_key, require_op
from trunq.pipeline.sink.key import with_keys
from trunq.pipeline.sink.table import PostgresSink, stage_of

_STAGED = pa.schema([("key", pa.string()), ("payload", pa.string())])


class QueueSink(PostgresSink):
    """A queue. Payloads are made while rows are staged, so that the commit only copies."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        self._model = pipeline.sink
        self._applies = pipeline.sink.mode == "apply"

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
        if self._applies:
            require_op(self._pipeline, schema, run.slice)
            require_key(self._pipeline, key_of(self._pipeline, run.slice), schema)
        if self._model.key is not None and self._model.key not in schema.names:
            raise InvalidPipeline(
                f'pipeline {self._pipeline.name}: there is no column "{self._model.key}" in the'
                f" rows, whose values"
                f" are to be keys; there are {', '.join(schema.names)}"
            )
        return super().begin(run, _STAGED)

    def stage(self, run: Run, part: str, batches: Any) -> int:
        if not self._applies:
            return super().stage(run, part, (self._messages(batch) for batch in batches))
        key = key_of(self._pipeline, run.slice)
        keyed = with_keys(self._pipeline, key, batches)
        return super().stage(run, part, (_changes(batch, key) for batch in keyed))

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        given = self._model.key
        keys = pa.nulls(batch.num_rows, pa.string()) if given is None else _texts(batch.column(given))
        return pa.RecordBatch.from_arrays([keys, json_rows(batch)], schema=_STAGED)

    def _apply_nothing(self, connection: Connection, run: Run) -> None:
        if self._applies and run.slice.get("snapshot"):
            self._tell_snapshot(connection, run)

    def _tell_snapshot(self, connection: Connection, run: Run) -> None:
        """Whoever has a copy forgets it: what follows is all that there is."""
        query = sql.SQL("insert into {} (kind, payload) values (%s, %s::jsonb)")
        log = sql.Identifier("trunq_log", self._model.queue)
        payload = json.dumps({"op": "snapshot", "because": run.slice.get("because")})
        connection.execute(query.format(log), (self._model.kind, payload))

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        if self._applies and run.slice.get("snapshot"):
            self._tell_snapshot(connection, run)
        query = sql.SQL(
            "insert into {} (kind, key, payload) select %(kind)s::text, key, payload::jsonb from {}"
            " where {} = any(%(parts)s)"
        ).format(sql.Identifier("trunq_log", self._model.queue), stage_of(run), sql.Identifier(PART))
        connection.execute(query, {"kind": self._model.kind, "parts": parts})


def _texts(column: pa.Array) -> pa.Array:
    values = (None if value is None else str(value) for value in column.to_pylist())
    return pa.array(list(values), pa.string())


def _changes(batch: pa.RecordBatch, key: list[str]) -> pa.RecordBatch:
    """Messages that tell what rows have become."""
    op = batch.column(OP)
    keys, rows = (
        json_rows(batch.select(key)),
        json_rows(batch.drop_columns([n for n in OWN if n in batch.schema.names])),
    )
    rows = pc.if_else(pc.equal(op, "delete"), "null", rows)
    payloads = pc.binary_join_element_wise('{"op": "', op, '", "key": ', keys, ', "row": ', rows, "}", "")
    texts = [_texts(batch.column(name)) for name in key]
    named = pc.binary_join_element_wise(*texts, ":") if len(texts) > 1 else texts[0]
    return pa.RecordBatch.from_arrays([named, payloads], schema=_STAGED)
