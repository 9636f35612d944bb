"""What rows are written into: how they must be, and the statements that take them from a stage.

A target is made on the driver, which asks the database about it; tasks get a copy, and convert rows by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from psycopg import sql

from trunq.arrow import catalog, statement, table
from trunq.arrow.value import OF_POSTGRES, json_field, postgres_type, staged
from trunq.errors import InvalidArgument
from trunq.spark.connection import Connection
from trunq.spark.errors import SinkMismatch
from trunq.spark.sink.option import SinkOptions


@dataclass(frozen=True, slots=True)
class Way:
    """How a column goes in: its type in the stage, in Arrow, and what it is cast to (None: nothing)."""

    name: str
    stage: str
    arrow: pa.DataType | None
    cast: str | None

    def convert(self, column: pa.Array) -> tuple[pa.Field, pa.Array]:
        """The column as it is copied."""
        if pa.types.is_decimal(column.type) and self.stage == "numeric":
            return pa.field(self.name, column.type), column
        made = staged(column)
        if self.arrow is not None and made.type != self.arrow:
            made = made.cast(self.arrow)
        return (json_field(self.name) if self.stage == "jsonb" else pa.field(self.name, made.type)), made


EXACT: Final = {**OF_POSTGRES, "bpchar": pa.string(), "json": pa.string()}
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
        return Way(field.name, "jsonb", pa.string(), None)
    if there == "numeric" and pa.types.is_decimal(field.type):
        return Way(field.name, "numeric", None, None)
    if (exact := EXACT.get(there)) is not None:
        return Way(field.name, there, exact, None)
    return Way(field.name, postgres_type(pa.field("x", natural)) or "text", None, there)


class TableTarget:
    """A table of people's own.

    `what` is how errors name it, `identity` how marks do. `stage_columns`: names and types of a stage of rows
    for it. `is_exact`: rows have just the types that COPY into the table wants.
    """

    def __init__(self, options: SinkOptions, schema: pa.Schema, connection: Connection) -> None:
        assert options.table is not None
        self.what = f"table {options.table}"
        mode: statement.Mode = "upsert" if options.upsert_key else "append"
        self._target = statement.Target(options.table, mode, options.upsert_key, options.newest)
        self.is_new = False
        try:
            there = self._prepare(connection, schema, creates=options.create_table)
        except InvalidArgument as error:
            raise SinkMismatch(error.message, error.hint) from None
        row = connection.execute(
            "select n.nspname, c.relname, c.relkind from pg_class c"
            " join pg_namespace n on n.oid = c.relnamespace where c.oid = %s::regclass",
            (self._target.quoted,),
        ).fetchone()
        assert row is not None
        if row[2] not in ("r", "p"):
            raise SinkMismatch(f"{options.table} is no table", "write into the table behind it")
        self.schema, self.table = row[0], row[1]
        self.identity = f"table:{quote(self.schema)}.{quote(self.table)}"
        self._ways = tuple(way(field, there[field.name].cast) for field in schema)
        self.stage_columns = tuple((each.name, each.stage) for each in self._ways)
        self.is_exact = all(each.cast is None for each in self._ways)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are copied."""
        made = [each.convert(batch.column(each.name)) for each in self._ways]
        columns, fields = [column for _, column in made], [field for field, _ in made]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def empty(self, connection: Connection) -> None:
        """Remove all that is there."""
        connection.execute(statement.empty(self._target.table))

    def take(self, connection: Connection, stage: sql.Identifier, parts: Sequence[int]) -> int:
        """Take rows from a stage; how many."""
        columns = [(each.name, each.cast or each.stage) for each in self._ways]
        query = statement.take(self._target, columns, stage)
        return connection.execute(query, {"parts": list(parts)}).rowcount

    def _prepare(
        self, connection: Connection, schema: pa.Schema, *, creates: bool
    ) -> dict[str, catalog.Column]:
        kinds = table.incoming(self._target, schema)
        if not catalog.is_there(connection, self._target.quoted):
            if not creates:
                raise InvalidArgument(
                    f"there is no table {self._target.name}", "create it, or leave createTable out"
                )
            if unknown := [name for name, kind in kinds.items() if kind is None]:
                raise InvalidArgument(
                    f'column "{unknown[0]}" is null in all rows: its type is not known', "cast it"
                )
            self.is_new = table.make(connection, self._target, kinds)
        table.require_index(connection, self._target)
        return table.fit(connection, self._target, kinds, fits=_fits, whole=True)


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
    return table.fits(connection, given, there)


def _scale(numeric: str) -> int:
    return int(numeric.rstrip(")").partition(",")[2] or 0)
