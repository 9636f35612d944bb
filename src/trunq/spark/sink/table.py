"""Writing a DataFrame into a Postgres table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trunq.connection.address import address
from trunq.errors import InvalidArgument
from trunq.spark.connection import LATER, Connection, Database
from trunq.spark.errors import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


def write_table(frame: DataFrame, table: str, dsn: str | None = None) -> int:
    """Replaces the content of a Postgres table by a DataFrame, and returns the number of rows.

    It creates the table if necessary. All happens in one transaction: readers see the old content until the
    new content is complete. The rows pass through this process, so use it for results, not for raw data.
    `table` may include a schema, as in `report.delays`; `dsn` is its database, by default that of the
    settings.
    """
    columns = [(field.name, _type(field)) for field in frame.schema.fields]
    with told():
        rows = frame.toArrow()
    known = address(dsn)
    database = Database(lambda: known, LATER)
    try:
        return database.run(lambda connection: _replace(connection, _name(table), columns, rows))
    finally:
        database.close()


def _replace(
    connection: Connection, table: sql.Identifier, columns: list[tuple[str, str]], rows: pa.Table
) -> int:
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in columns)
    definition = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns
    )
    connection.execute(sql.SQL("create table if not exists {} ({})").format(table, definition))
    # Not TRUNCATE: it blocks readers, and shows an empty table to those with an older snapshot.
    connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(table))
    connection.execute(sql.SQL("delete from {}").format(table))
    copying = sql.SQL("copy {} ({}) from stdin").format(table, names)
    with connection.cursor() as cursor, cursor.copy(copying) as copy:
        for row in _tuples(rows):
            copy.write_row(row)
    return int(rows.num_rows)


def _tuples(rows: pa.Table) -> Iterable[tuple[Any, ...]]:
    for batch in rows.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _type(field: StructField) -> str:
    spark = field.dataType.simpleString()
    if spark.startswith("decimal"):
        return spark.replace("decimal", "numeric")
    if spark not in TYPES:
        raise InvalidArgument(
            f'column "{field.name}" is {spark}, for which Postgres has no plain type',
            "turn it into text first: to_json(column)",
        )
    return TYPES[spark]


def _name(table: str) -> sql.Identifier:
    parts = table.split(".")
    if len(parts) > 2 or not all(parts):
        raise InvalidArgument(f'"{table}" is not the name of a table', "write table, or schema.table")
    return sql.Identifier(*parts)
