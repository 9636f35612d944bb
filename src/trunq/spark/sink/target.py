"""What rows are written into: how they must be, and the statements that take them from a stage.

A target is made on the driver, which asks the database about it; tasks get a copy, and convert rows by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

import pyarrow as pa
from psycopg import sql
from psycopg.errors import DuplicateTable, UniqueViolation

from trunq.spark.connection import Connection
from trunq.spark.errors import SinkMismatch
from trunq.spark.sink.option import SinkOptions
from trunq.stage import catalog, statement
from trunq.stage.arrow import json_field, postgres_type, staged

PART: Final = "trunq part"
"""The column of a stage that says which task wrote a row."""


class Target(Protocol):
    """A table, or a queue."""

    what: str
    """As errors name it."""
    identity: str
    """As marks name it."""
    schema: str | None
    """The schema that its table is in; None: the one that Postgres finds."""
    table: str
    stage_columns: tuple[tuple[str, str], ...]
    """Names and types of a stage of rows for it."""
    is_exact: bool
    """Whether rows have just the types that COPY into the table wants."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are copied."""

    def empty(self, connection: Connection) -> None:
        """Remove all that is there."""

    def take(self, connection: Connection, stage: sql.Identifier, parts: Sequence[int]) -> int:
        """Take rows from a stage; how many."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a column goes in: its type in the stage, in Arrow, and what it is cast to (None: nothing)."""

    name: str
    stage: str
    arrow: pa.DataType | None
    cast: str | None
    is_json: bool = False

    def convert(self, column: pa.Array) -> tuple[pa.Field, pa.Array]:
        """The column as it is copied."""
        if pa.types.is_decimal(column.type) and self.stage == "numeric":
            return pa.field(self.name, column.type), column
        made = staged(column)
        if self.arrow is not None and made.type != self.arrow:
            made = made.cast(self.arrow)
        return (json_field(self.name) if self.is_json else pa.field(self.name, made.type)), made


EXACT: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "character varying": pa.string(),
    "bpchar": pa.string(),
    "json": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
}
"""Types that COPY writes from these of Arrow; and jsonb, and numeric."""

_OF_SPARK: Final = EXACT.keys() - {"json", "text", "character varying", "bpchar"} | {"numeric"}
"""Types that a column of Spark can have, so a text for them is a mistake."""
_OF_ZONES: Final = {
    ("timestamp without time zone", "timestamp with time zone"),
    ("date", "timestamp with time zone"),
}
"""What Postgres would do by itself, by the time zone of whoever asks."""


def way(field: pa.Field, there: str) -> Way:
    """How a column goes into one of the type `there`, which it fits."""
    natural = staged(pa.array([], field.type)).type
    if there == "jsonb" and natural == pa.string():
        return Way(field.name, "jsonb", pa.string(), None, is_json=True)
    if there == "numeric" and pa.types.is_decimal(field.type):
        return Way(field.name, "numeric", None, None)
    if (exact := EXACT.get(there)) is not None:
        return Way(field.name, there, exact, None)
    return Way(field.name, postgres_type(pa.field("x", natural)) or "text", None, there)


class TableTarget:
    """A table of people's own."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, connection: Connection) -> None:
        assert options.table is not None
        self.what = f"table {options.table}"
        self._options = options
        self._target = statement.Target(catalog.identifier(options.table), options.upsert_key, options.newest)
        self._check_names(schema)
        self.is_new = False
        if not catalog.is_there(connection, self._target.name):
            self._create(connection, schema)
        row = connection.execute(
            "select n.nspname, c.relname, c.relkind from pg_class c"
            " join pg_namespace n on n.oid = c.relnamespace where c.oid = %s::regclass",
            (self._target.name,),
        ).fetchone()
        assert row is not None
        if row[2] not in ("r", "p"):
            raise SinkMismatch(f"{options.table} is no table", "write into the table behind it")
        self.schema, self.table = row[0], row[1]
        self.identity = f"table:{quote(self.schema)}.{quote(self.table)}"
        self._require_index(connection)
        self._ways = self._fit(connection, schema)
        self.stage_columns = tuple((each.name, each.stage) for each in self._ways)
        self.is_exact = all(each.cast is None for each in self._ways)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are copied."""
        made = [each.convert(batch.column(each.name)) for each in self._ways]
        columns, fields = [column for _, column in made], [field for field, _ in made]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def empty(self, connection: Connection) -> None:
        """Remove all that is there."""
        # Not TRUNCATE: it shows an empty table to readers with an older snapshot.
        connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(self._target.table))
        connection.execute(sql.SQL("delete from {}").format(self._target.table))

    def take(self, connection: Connection, stage: sql.Identifier, parts: Sequence[int]) -> int:
        """Take rows from a stage; how many."""
        made = statement.upsert if self._target.key else statement.append
        columns = [(each.name, each.cast or each.stage) for each in self._ways]
        return connection.execute(made(self._target, columns, stage, PART), {"parts": list(parts)}).rowcount

    def _check_names(self, schema: pa.Schema) -> None:
        doubled = {name for name in schema.names if schema.names.count(name) > 1}
        if doubled:
            raise SinkMismatch(f'the rows have two columns "{min(doubled)}"', "rename one of them")
        for name in (*self._target.key, *([self._target.newest] if self._target.newest else [])):
            if name not in schema.names:
                raise SinkMismatch(
                    f'there is no column "{name}" in the rows', f"their columns: {', '.join(schema.names)}"
                )

    def _create(self, connection: Connection, schema: pa.Schema) -> None:
        if not self._options.create_table:
            raise SinkMismatch(
                f"there is no table {self._options.table}", "create it, or leave createTable out"
            )
        body: list[sql.Composable] = []
        for field in schema:
            kind = postgres_type(field)
            if kind is None:
                raise SinkMismatch(f'column "{field.name}" is null in all rows: its type is not known')
            body.append(sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(kind)))
        if self._target.key:
            keys = sql.SQL(", ").join(map(sql.Identifier, self._target.key))
            body.append(sql.SQL("primary key ({})").format(keys))
        query = sql.SQL("create table {} ({})").format(self._target.table, sql.SQL(", ").join(body))
        try:
            with connection.transaction():
                connection.execute(query)
        except (DuplicateTable, UniqueViolation):
            # Another job made it at the same moment.
            return
        self.is_new = True

    def _require_index(self, connection: Connection) -> None:
        key = self._target.key
        if key and not catalog.has_unique_index(connection, self._target.name, key):
            names = ", ".join(key)
            raise SinkMismatch(
                f"{self._options.table} has no unique index over {names}, by which upserts find their rows",
                f"create unique index on {self._options.table} ({names})",
            )

    def _fit(self, connection: Connection, schema: pa.Schema) -> tuple[Way, ...]:
        there = catalog.columns(connection, self._target.name)
        for field in schema:
            if field.name not in there:
                raise SinkMismatch(
                    f'{self._options.table} has no column "{field.name}"',
                    f"its columns: {', '.join(there)}; add it there, or drop it from the rows",
                )
            kind, column = postgres_type(field), there[field.name]
            if kind is not None and not _fits(connection, kind, column):
                raise SinkMismatch(
                    f'column "{field.name}" of {self._options.table} is {column.kind} and comes as {kind}',
                    "cast the column, or change its type in the table",
                )
        return tuple(way(field, there[field.name].cast) for field in schema)


def _fits(connection: Connection, given: str, there: catalog.Column) -> bool:
    """Whether values of a type go into a column as they are."""
    if given == "text":
        # A type that Spark has not (uuid, inet, an enum) is read from its text.
        return there.base not in _OF_SPARK
    if given == "jsonb":
        return there.base in ("jsonb", "json", "text")
    if (given, there.base) in _OF_ZONES:
        return False
    if given.startswith("numeric(") and there.kind.startswith("numeric("):
        return _scale(given) <= _scale(there.kind)
    return catalog.fits(connection, given, there.base)


def _scale(numeric: str) -> int:
    return int(numeric.rstrip(")").partition(",")[2] or 0)
