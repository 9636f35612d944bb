"""The columns of a message as Spark sees them: names, types, and the SQL that reads each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from psycopg import sql

from trunq.errors import InvalidArgument
from trunq.record.stream import BATCHED

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `postgres` is the type it is copied as, `kind` that of Spark."""

    name: str
    postgres: str
    kind: str

    @property
    def sql(self) -> str:
        """What reads it of a row g of the log."""
        name = sql.Identifier(self.name).as_string()
        return f"g.{name}::{self.postgres} as {name}"

    @property
    def ddl(self) -> str:
        """Its place in a schema, as Spark reads one."""
        quoted = self.name if self.name.isidentifier() else f"`{self.name.replace('`', '``')}`"
        return f"{quoted} {self.kind}"

    @property
    def arrow(self) -> pa.DataType:
        """The exact type that Spark expects: microseconds, in UTC."""
        if digits := _DECIMAL.fullmatch(self.kind):
            return pa.decimal128(int(digits[1]), int(digits[2]))
        return _ARROW[self.kind]


_ARROW: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_BATCHED: Final = {"int64": "bigint", "int16": "smallint"}
_KINDS: Final = {
    "bigint": ("int8", "bigint"),
    "integer": ("int4", "int"),
    "smallint": ("int2", "smallint"),
    "boolean": ("bool", "boolean"),
    "real": ("float4", "float"),
    "double precision": ("float8", "double"),
    "bytea": ("bytea", "binary"),
    "date": ("date", "date"),
    "timestamp with time zone": ("timestamptz", "timestamp"),
    "timestamp without time zone": ("timestamp", "timestamp_ntz"),
}
_TEXT: Final = ("text", "string")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_SECONDS: Final = re.compile(r"^(timestamp)\(\d\)")
_NUMERIC: Final = re.compile(r"numeric\((3[0-8]|[12]?\d),(\d+)\)")

BY_NAME: Final = {
    name: Column(name, postgres, _BATCHED.get(arrow, arrow))
    for name, (postgres, arrow) in BATCHED.items()
    if name != "txid"
}
"""The columns of every message."""


def own(name: str, type: str) -> Column:
    """A column that the user added to the log; what Spark has no type for is text."""
    if (digits := _NUMERIC.fullmatch(type)) and int(digits[2]) <= int(digits[1]):
        return Column(name, "numeric", f"decimal({digits[1]},{digits[2]})")
    # With or without the digits of its seconds.
    return Column(name, *_KINDS.get(_SECONDS.sub(r"\1", type), _TEXT))


def ddl(columns: Iterable[Column]) -> str:
    """The schema of these columns."""
    return ", ".join(column.ddl for column in columns)


def choose(schema: StructType, others: Callable[[], Sequence[Column]]) -> tuple[Column, ...]:
    """The columns in a schema given with `.schema()`; the source reads only those. `others`, those of the
    user's own, are asked for when a name is none of ours.
    """
    known = dict(BY_NAME)
    if any(field.name not in known for field in schema.fields):
        known |= {column.name: column for column in others()}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise InvalidArgument(
                f'a message has no column "{field.name}"', f"its columns: {ddl(known.values())}"
            )
        if field.dataType.simpleString() != column.kind:
            raise InvalidArgument(
                f'column "{field.name}" is {column.kind}, not {field.dataType.simpleString()}',
                "read it as it is and cast it in the query",
            )
    return tuple(known[name] for name in schema.names)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The exact schema that Spark expects of record batches: nullable fields."""
    return pa.schema([(column.name, column.arrow) for column in columns])
