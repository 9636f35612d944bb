"""Arrow batches into a table by COPY: by ADBC, in binary and in native code, or by psycopg, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql


def tagged(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, tag: str, value: str | int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows with one column more, in front, that has the same value in all."""
    kind = pa.string() if isinstance(value, str) else pa.int64()
    with_tag = pa.schema([pa.field(tag, kind), *schema])
    value = pa.scalar(value, kind)
    return with_tag, (
        pa.RecordBatch.from_arrays([pa.repeat(value, batch.num_rows), *batch.columns], schema=with_tag)
        for batch in batches
    )


def copy_adbc(
    cursor: Any, schema: str | None, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> int:
    """COPY by ADBC, whose types must be those of the table; says how many rows."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield _raw(batch)

    reader = pa.RecordBatchReader.from_batches(
        _raw(pa.RecordBatch.from_pylist([], columns)).schema, counted()
    )
    cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema)
    return rows


def _raw(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as the numbers that COPY has for them: those of Postgres' infinity ADBC refuses as times."""
    columns = [
        pc.subtract(column.cast(pa.int64()), _EPOCH) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    # What is JSON says so in the metadata.
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where Postgres begins to count."""


def copy_psycopg(
    cursor: psycopg.Cursor[Any], table: sql.Identifier, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> int:
    """COPY by psycopg as text, which any type of Postgres is read from; says how many rows."""
    rows = 0
    names = sql.SQL(", ").join(map(sql.Identifier, columns.names))
    with cursor.copy(sql.SQL("copy {} ({}) from stdin").format(table, names)) as copy:
        for batch in batches:
            rows += batch.num_rows
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                copy.write_row(row)
    return rows
