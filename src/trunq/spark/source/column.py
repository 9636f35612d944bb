"""The columns of a message as Spark sees them: names, types, and the SQL that reads each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from trunq.errors import InvalidArgument
from trunq.record.stream import BATCHED

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_KINDS = {"int64": "bigint", "int16": "smallint"}


@dataclass(frozen=True, slots=True)
class Column:
    """Types of a column: `postgres` and `arrow` as it is copied, `kind` in Spark."""

    name: str
    postgres: str
    arrow: str

    @property
    def kind(self) -> str:
        return _KINDS.get(self.arrow, self.arrow)

    @property
    def sql(self) -> str:
        return f"{self.name}::{self.postgres}"


BY_NAME = {name: Column(name, *types) for name, types in BATCHED.items() if name != "txid"}
DDL = ", ".join(f"{column.name} {column.kind}" for column in BY_NAME.values())


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
