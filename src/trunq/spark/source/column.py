"""The columns of a message as Spark sees them: names, types, and the SQL that reads each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from trunq.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is the type in Spark, `arrow` in Arrow, `postgres` that of the expression `sql`."""

    name: str
    kind: str
    arrow: str
    postgres: str
    sql: str


COLUMNS = (
    Column("id", "bigint", "int64", "int8", "id"),
    Column("kind", "string", "string", "text", "kind"),
    Column("key", "string", "string", "text", "key"),
    Column("payload", "string", "string", "text", "payload::text"),
    Column("body", "binary", "binary", "bytea", "body"),
    Column("headers", "string", "string", "text", "headers::text"),
    Column("priority", "smallint", "int16", "int2", "priority"),
    Column("attempt", "smallint", "int16", "int2", "attempt"),
    Column("created_at", "timestamp", "timestamp", "timestamptz", "created_at"),
)
BY_NAME = {column.name: column for column in COLUMNS}
DDL = ", ".join(f"{column.name} {column.kind}" for column in COLUMNS)


def choose(schema: StructType) -> tuple[str, ...]:
    """The names of the columns in a schema given with `.schema()`; the source reads only those."""
    for field in schema.fields:
        known = BY_NAME.get(field.name)
        if known is None:
            raise InvalidArgument(f'a message has no column "{field.name}"', f"its columns: {DDL}")
        if field.dataType.simpleString() != known.kind:
            raise InvalidArgument(
                f'column "{field.name}" is {known.kind}, not {field.dataType.simpleString()}',
                "read it as it is and cast it in the query",
            )
    return tuple(schema.names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The exact schema that Spark expects of record batches: nullable fields, microseconds in UTC."""

    def kind(column: Column) -> pa.DataType:
        return pa.timestamp("us", "UTC") if column.arrow == "timestamp" else getattr(pa, column.arrow)()

    return pa.schema([(name, kind(BY_NAME[name])) for name in names])
