"""`refers_to`: which values of a batch a column of a table in Postgres does not have."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors, sql

from trunq.arrow.catalog import identifier
from trunq.arrow.value import postgres_type
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.check import Check
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.text import texts

_COLUMN: Final = """select format_type(a.atttypid, null), format_type(to_regtype(%s), -1)
from pg_attribute a where a.attrelid = to_regclass(%s) and a.attname = %s and a.attnum > 0
and not a.attisdropped"""


class References:
    """The tables that checks of a pipeline refer to, a connection for each address."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        self._name, self._dsn = pipeline.name, dsn
        self._connections: dict[str, Any] = {}
        self._queries: dict[str, str] = {}

    def require(self, check: Check, field: pa.Field, kind: pa.DataType) -> None:
        """Refuse a check whose table or column is not there, or holds what a column is never equal to."""
        assert check.refers_to is not None
        table, column = check.refers_to.table, check.refers_to.column
        of = postgres_type(
            pa.field(field.name, kind, metadata=field.metadata if pa.types.is_string(kind) else None)
        )
        connection = self._connected(check)
        quoted = identifier(table)
        row = connection.execute(_COLUMN, (of, quoted.as_string(None), column)).fetchone()
        if row is None:
            raise InvalidPipeline(
                f"pipeline {self._name}: check {check.name!r}: there is no column {column} of a"
                f" table {table}",
                "refers_to = { table = 'countries', column = 'code' }",
            )
        theirs, ours = row
        query = sql.SQL(
            "select v from unnest(%s::text[]) v where not exists (select from {} t where t.{} = v::{})"
        ).format(quoted, sql.Identifier(column), sql.SQL(ours or "text"))
        made = query.as_string(None)
        # In a statement with parameters, a percent sign of a name is written twice.
        made = made.replace("%", "%%").replace("%%s::text[]", "%s::text[]", 1)
        try:
            connection.execute(made.encode(), ([],))
        except (errors.UndefinedFunction, errors.DatatypeMismatch, errors.IndeterminateDatatype):
            raise InvalidPipeline(
                f'pipeline {self._name}: check {check.name!r}: column "{field.name}" is {ours}, and'
                f" {table}.{column} is {theirs}: they are never equal",
                f"cast one of them: columns = {{ cast = {{ {field.name} = '...' }} }}",
            ) from None
        except errors.InsufficientPrivilege:
            raise InvalidPipeline(
                f"pipeline {self._name}: check {check.name!r}: {table} may not be read",
                f"grant select on {quoted.as_string(None)} to the role that runs it",
            ) from None
        self._queries[check.name] = made

    def missing(self, check: Check, column: pa.Array) -> pa.Array:
        """Which values the other column does not have; null is none of them."""
        found = texts(column)
        distinct = [each for each in pc.unique(found).to_pylist() if each is not None]
        # No text of Postgres has a NUL.
        asked = [each for each in distinct if "\0" not in each]
        rows = self._connected(check).execute(self._queries[check.name].encode(), (asked,)).fetchall()
        lacking = [row[0] for row in rows] + [each for each in distinct if "\0" in each]
        return pc.is_in(found, pa.array(lacking, pa.string()), skip_nulls=True)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connected(self, check: Check) -> Any:
        dsn = complete((check.refers_to and check.refers_to.dsn) or self._dsn, f"trunq pipeline {self._name}")
        if dsn not in self._connections:
            self._connections[dsn] = open_connection(dsn)
        return self._connections[dsn]
