"""Writing a DataFrame into a Postgres table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from trunq.arrow.catalog import identifier
from trunq.arrow.copy import copy_psycopg
from trunq.arrow.statement import create, empty
from trunq.arrow.value import for_stage, postgres_type
from trunq.connection.address import address
from trunq.spark.connection import LATER, Connection, Database
from trunq.spark.errors import translating

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def write_table(frame: DataFrame, table: str, dsn: str | None = None) -> int:
    """Replaces the content of a Postgres table by a DataFrame, and returns the number of rows.

    It creates the table if necessary; structs, maps and arrays are jsonb there. All happens in one
    transaction: readers see the old content until the new content is complete. The rows pass through this
    process, so use it for results, not for raw data. `table` may include a schema, as in `report.delays`;
    `dsn` is its database, by default that of the settings.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # a runner of pipelines may lack it

    target = identifier(table)
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    kinds = [(field.name, postgres_type(field) or "text") for field in schema]
    with translating():
        rows = frame.toArrow()
    known = address(dsn)
    database = Database(lambda: known, LATER)
    try:
        return database.run(lambda connection: _replace(connection, target, kinds, rows))
    finally:
        database.close()


def _replace(
    connection: Connection, target: sql.Identifier, kinds: list[tuple[str, str]], rows: pa.Table
) -> int:
    connection.execute(create(target, kinds, kind="table if not exists"))
    connection.execute(empty(target))
    with connection.cursor() as cursor:
        return copy_psycopg(cursor, target, rows.schema, map(for_stage, rows.to_batches()))
