"""What Spark does with a sink, without Spark: tasks write Arrow batches, the driver commits."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from trunq.spark.sink.option import SinkOptions
from trunq.spark.sink.writer import Series, Sink, Written

DDL = "id bigint, word string, at timestamp"
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)

_KINDS = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval": pa.duration("us"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(9,3)": pa.decimal128(9, 3),
    "strings": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.string()),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "structs": pa.list_(pa.struct([("a", pa.int32())])),
}


def columns_of(ddl: str) -> pa.Schema:
    """Columns in types of Spark, as Spark brings them."""
    return pa.schema([(name, _KINDS[kind]) for name, kind in (each.split() for each in ddl.split(", "))])


class Job:
    """What Spark does with a sink: tasks write, the driver commits."""

    def __init__(self, dsn: str, ddl: str = DDL, *, replaces: bool = False, **given: str) -> None:
        options = SinkOptions.parse({"dsn": dsn, **given}).for_batch(replaces)
        self.schema = columns_of(ddl)
        self.sink = Sink.plan(options, self.schema, replaces=replaces)
        self.series: Series = self.sink.series()

    def task(self, rows: list[tuple[Any, ...]], number: int = 0) -> Written:
        """A task that writes these rows, in two batches."""
        schema = self.schema
        columns = list(zip(*rows, strict=True)) or [[]] * len(schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        half = len(rows) // 2
        return self.sink.write(iter([batch.slice(0, half), batch.slice(half)]), self.series, number)

    def commit(self, *written: Written) -> bool:
        return self.sink.commit(list(written), self.series)

    def run(self, *parts: list[tuple[Any, ...]]) -> bool:
        """The whole of it."""
        return self.commit(*[self.task(rows, number) for number, rows in enumerate(parts)])
