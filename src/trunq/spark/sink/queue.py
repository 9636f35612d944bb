"""A queue as what rows are written into: a message a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from trunq.arrow.statement import PART
from trunq.arrow.value import json_field, json_rows, staged
from trunq.errors import InvalidArgument, QueueNotFound, translate
from trunq.spark.connection import Connection
from trunq.spark.errors import SinkMismatch, SinkRefused
from trunq.spark.sink.option import ALL, MESSAGE, STAGED, SinkOptions

_STAGE: Final = {
    "payload": "trunq.payload",
    "body": "trunq.body",
    "kind": "trunq.kind",
    "key": "trunq.key",
    "headers": "trunq.headers",
    "priority": "smallint",
    "due_at": "timestamp with time zone",
    "delay": "double precision",
    "unique_key": "trunq.unique_key",
    "options": "trunq.options",
}
"""The parts of a message in a stage: by the domains of the log, so that a task meets its limits."""

_ARROW: Final = {
    "body": pa.binary(),
    "priority": pa.int16(),
    "due_at": pa.timestamp("us", "UTC"),
    "delay": pa.float64(),
}
_JSON: Final = ("payload", "headers", "options")


class QueueTarget:
    """A queue of trunq, through what every publisher goes through: limits, gate, keys, rights.

    Its attributes are those of a TableTarget.
    """

    def __init__(self, options: SinkOptions, schema: pa.Schema, connection: Connection) -> None:
        assert options.queue is not None
        self._options = options
        self.what = f'queue "{options.queue}"'
        row = connection.execute(
            "select queue_id, log_table, unique_policy from trunq.queue where name = %s", (options.queue,)
        ).fetchone()
        if row is None:
            raise QueueNotFound(f'there is no queue "{options.queue}"', f"trunq queue create {options.queue}")
        self.identity = f"queue:{row[0]}"
        self.schema, self.table = "trunq_log", row[1]
        self._columns = _choose(options, schema)
        self._check(schema, has_keys=row[2] is not None)
        self._parts = [part for part in MESSAGE if part in self._columns or self._is_constant(part)]
        self.stage_columns = tuple((part, _STAGE[part]) for part in self._parts)
        # ADBC looks at all columns of a table before it copies into it; a publisher may write to some.
        seen = connection.execute(
            "select has_table_privilege(format('trunq_log.%%I', %s::text), 'select')", (self.table,)
        ).fetchone()
        self.is_exact = options.protocol == STAGED or bool(seen and seen[0])
        self._try_to_publish(connection)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Messages as they are copied."""
        columns, fields = [], []
        for part in self._parts:
            if self._is_constant(part):
                column = pa.repeat(pa.scalar(self._options.kind, pa.string()), batch.num_rows)
            elif self._columns[part] == ALL:
                column = json_rows(batch)
            else:
                column = self._convert(part, batch.column(self._columns[part]))
            columns.append(column)
            fields.append(json_field(part) if part in _JSON else pa.field(part, column.type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def empty(self, connection: Connection) -> None:  # noqa: ARG002  # as all targets
        """A queue is never emptied by a writer."""
        raise AssertionError("refused by the options")

    def take(self, connection: Connection, stage: sql.Identifier, parts: Sequence[int]) -> int:
        """Publish what is staged; how many messages, without those whose unique keys others hold."""
        names = [part for part in self._parts if part != "delay"]
        values: list[sql.Composable] = [sql.Identifier(part) for part in names]
        if "delay" in self._parts:
            at: sql.Composable = sql.SQL("null::timestamptz")
            if "due_at" in names:
                at = values.pop(names.index("due_at"))
                names.remove("due_at")
            names.append("due_at")
            values.append(_DUE_AT.format(at))
        # Two who take the same keys take them in the same order.
        order = sql.SQL(' order by unique_key collate "C"' if "unique_key" in names else "")
        return connection.execute(
            sql.SQL("insert into {} ({}) select {} from {} where {} = any(%(parts)s){}").format(
                sql.Identifier("trunq_log", self.table),
                sql.SQL(", ").join(map(sql.Identifier, names)),
                sql.SQL(", ").join(values),
                stage,
                sql.Identifier(PART),
                order,
            ),
            {"parts": list(parts)},
        ).rowcount

    def _is_constant(self, part: str) -> bool:
        return part == "kind" and self._options.kind is not None

    def _check(self, schema: pa.Schema, *, has_keys: bool) -> None:
        for part, name in self._columns.items():
            if name == ALL:
                continue
            _check_type(part, schema.field(name))
        if "unique_key" in self._columns and not has_keys:
            raise InvalidArgument(
                f"{self.what} has no unique keys",
                "they are chosen when a queue is made: trunq.create_queue(..., p_unique => 'refuse')",
            )
        if self._options.protocol != STAGED:
            if "unique_key" in self._columns:
                raise InvalidArgument(
                    f"commitProtocol {self._options.protocol} writes from several tasks at once, which would"
                    " wait for each other's unique keys",
                    "commitProtocol staged takes them in order",
                )
            if "delay" in self._columns:
                raise InvalidArgument(
                    "a delay counts from the commit",
                    "it needs commitProtocol staged; or give due_at, a time",
                )

    def _try_to_publish(self, connection: Connection) -> None:
        """No message: the gate and the rights are asked before a job computes for an hour."""
        names = ["due_at" if part == "delay" else part for part in self._parts]
        columns = list(dict.fromkeys(names))
        query = sql.SQL("insert into {} ({}) select {} limit 0").format(
            sql.Identifier("trunq_log", self.table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join([sql.NULL] * len(columns)),
        )
        try:
            with connection.transaction():
                connection.execute(query)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SinkRefused(
                f"{self.what}: {error.diag.message_primary}",
                "its owner grants it: select trunq.grant_role("
                f"'{self._options.queue}', 'publisher', '<role>')",
            ) from None
        except psycopg.Error as error:
            if (ours := translate(error)) is not None:
                raise ours from None
            raise

    def _convert(self, part: str, column: pa.Array) -> pa.Array:
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), _ARROW.get(part, pa.string()))
        if part in _JSON and not _is_text(column.type):
            return _json_values(column)
        if (wanted := _ARROW.get(part)) is not None:
            return column.cast(wanted)
        made = staged(column)
        return made if made.type == pa.string() else made.cast(pa.string())


def _choose(options: SinkOptions, schema: pa.Schema) -> dict[str, str]:
    """Which column each part of a message comes from."""
    chosen = dict(options.columns)
    if missing := [name for name in chosen.values() if name != ALL and name not in schema.names]:
        raise SinkMismatch(
            f'there is no column "{missing[0]}" in the rows', f"their columns: {', '.join(schema.names)}"
        )
    if wrong := [part for part, name in chosen.items() if name == ALL and part != "payload"]:
        raise InvalidArgument(f"{MESSAGE[wrong[0]]} names one column; all of them are a payload only")
    if chosen.get("payload") == ALL:
        return chosen
    taken = set(chosen.values())
    for name in schema.names:
        if name in taken:
            continue
        if name not in MESSAGE or name in chosen or (name == "kind" and options.kind is not None):
            raise SinkMismatch(
                f'a message has no column "{name}"',
                f"its columns: {', '.join(MESSAGE)}; option('payloadColumn', '*') makes the payload of all"
                " columns, others name the column of each part",
            )
        chosen[name] = name
    if not {"payload", "body", "kind"} & chosen.keys() and options.kind is None:
        raise SinkMismatch(
            "the rows have no column payload, body or kind, so messages would say nothing",
            "option('payloadColumn', '*') makes the payload of all columns",
        )
    return chosen


def _check_type(part: str, field: pa.Field) -> None:
    kind = field.type
    fits = {
        "body": pa.types.is_binary,
        "priority": lambda t: t in (pa.int8(), pa.int16(), pa.int32()),
        "due_at": lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        "delay": lambda t: pa.types.is_integer(t) or pa.types.is_floating(t),
        "payload": lambda t: _is_text(t) or pa.types.is_nested(t),
        "headers": lambda t: _is_text(t) or pa.types.is_nested(t),
        "options": lambda t: _is_text(t) or pa.types.is_nested(t),
        "kind": lambda t: _is_text(t) or pa.types.is_integer(t),
        "key": lambda t: _is_text(t) or pa.types.is_integer(t),
        "unique_key": lambda t: _is_text(t) or pa.types.is_integer(t),
    }[part]
    if not pa.types.is_null(kind) and not fits(kind):
        raise SinkMismatch(f'column "{field.name}" is {kind}, and is to be {_WANTED[part]}', "cast it")


_WANTED: Final = {
    "payload": "the payload: JSON text, or a struct, map or array",
    "body": "the body: binary",
    "kind": "the kind: a string",
    "key": "the key: a string",
    "headers": "the headers: JSON text, or a map or struct",
    "priority": "the priority: a small number",
    "due_at": "the time: a timestamp",
    "delay": "the delay: a number of seconds",
    "unique_key": "the unique key: a string",
    "options": "the options: JSON text, or a struct",
}

_DUE_AT: Final = sql.SQL(
    "case when delay is not null or {0} is not null then trunq._due_at(make_interval(secs => delay), {0}) end"
)


def _is_text(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _json_values(column: pa.Array) -> pa.Array:
    """A struct as an object, a column at a time; other values one by one."""
    if not pa.types.is_struct(column.type):
        return staged(column)
    rows = pa.RecordBatch.from_arrays(column.flatten(), names=[field.name for field in column.type])
    return pc.if_else(column.is_valid(), json_rows(rows), pa.scalar(None, pa.string()))
