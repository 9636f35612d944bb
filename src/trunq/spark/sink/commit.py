"""One transaction in the database, from a task of Spark: by ADBC for many rows, by psycopg for few.

ADBC copies three times as fast; its connection takes 30 ms to open, and psycopg's 2 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql

from trunq.arrow.adbc import connect as connect_adbc
from trunq.arrow.adbc import has_adbc
from trunq.arrow.copy import copy_adbc, copy_psycopg
from trunq.connection.backoff import first_line, is_away, retrying
from trunq.errors import Diagnosis, TrunqError, translate_diagnosis
from trunq.spark.connection import APPLICATION, LATER, Connection, away, connect, redact
from trunq.spark.errors import DatabaseAway, SinkRefused, SparkError

ROWS_WORTH_ADBC: Final = 5_000


class Session(Protocol):
    """A transaction."""

    def execute(self, statement: sql.Composed) -> tuple[Any, ...] | None:
        """Execute a statement; the first row of its result, if it has one."""

    def copy(
        self, schema: str | None, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Copy rows into a table; how many."""

    def commit(self) -> None:
        """End the transaction and begin another."""


class _Psycopg:
    def __init__(self, connection: Connection) -> None:
        self._cursor = connection.cursor()
        self._connection = connection

    def execute(self, statement: sql.Composed) -> tuple[Any, ...] | None:
        self._cursor.execute(statement)
        return self._cursor.fetchone() if self._cursor.description else None

    def copy(
        self, schema: str | None, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> int:
        return copy_psycopg(self._cursor, sql.Identifier(*filter(None, (schema, table))), columns, batches)

    def commit(self) -> None:
        self._connection.commit()


class _Adbc:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._begin()

    def execute(self, statement: sql.Composed) -> tuple[Any, ...] | None:
        self._cursor.execute(statement.as_string(None))
        row: tuple[Any, ...] | None = self._cursor.fetchone() if self._cursor.description else None
        return row

    def copy(
        self, schema: str | None, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> int:
        return copy_adbc(self._cursor, schema, table, columns, batches)

    def commit(self) -> None:
        self._connection.commit()
        self._begin()

    def _begin(self) -> None:
        self._cursor.execute("set transaction isolation level read committed")


@contextmanager
def session(dsn: str, engine: str, what: str) -> Iterator[Session]:
    """A transaction, committed at the end of the block; `what` is written to, for errors to name.

    It waits a minute for a database that is away. Raises the errors of trunq, `SinkRefused` for what
    Postgres refuses, and `DatabaseAway`.
    """
    tries = retrying(also=DatabaseAway, within=LATER)
    try:
        connection = tries(_open_adbc if engine == "adbc" else _open_psycopg, dsn)
    except psycopg.Error as error:
        raise away(error, dsn) from error
    try:
        # Its constructor already speaks to the server.
        made: Session = _Adbc(connection) if engine == "adbc" else _Psycopg(connection)
        yield made
        connection.commit()
    except Exception as error:
        raised = refusal(error, what, dsn)
        if raised is None:
            raise
        # Without its cause, whose text has values of rows, or the password.
        raise raised from None
    finally:
        with suppress(Exception):
            connection.close()


def _open_psycopg(dsn: str) -> Any:
    connection = connect(dsn)
    connection.autocommit = False
    return connection


def _open_adbc(dsn: str) -> Any:
    try:
        return connect_adbc(dsn, APPLICATION)
    except Exception as error:
        raise away(error, dsn) from error


def choose(
    engine: str, batches: Iterator[pa.RecordBatch], *, is_exact: bool
) -> tuple[str, Iterator[pa.RecordBatch]]:
    """The engine, and the rows again; `auto` takes adbc for many rows, if it is installed.

    Values that are not of the table's types Postgres reads as text: that is psycopg's way.
    """
    if not is_exact or engine == "psycopg":
        return "psycopg", batches
    if not has_adbc():
        if engine == "auto":
            return "psycopg", batches
        raise SparkError("the engine adbc is not installed", "pip install 'trunq[spark]'")
    first: list[pa.RecordBatch] = []
    while engine == "auto" and sum(batch.num_rows for batch in first) < ROWS_WORTH_ADBC:
        batch = next(batches, None)
        if batch is None:
            return "psycopg", iter(first)
        first.append(batch)
    return "adbc", chain(first, batches)


def refusal(error: Exception, what: str, dsn: str) -> TrunqError | None:
    """What to raise for an error of a driver; None: the error itself."""
    if isinstance(error, TrunqError):
        return None
    if isinstance(error, psycopg.Error):
        told = Diagnosis.of(error.diag)
        if is_away(error):
            return away(error, dsn)
        return _refused(told, what) if told.sqlstate else SinkRefused(redact(first_line(error), dsn))
    if type(error).__module__.startswith("adbc_driver_manager"):
        told = _diagnosis(error)
        if told.sqlstate.startswith(("08", "57P")) or "server closed the connection" in str(error):
            return away(error, dsn)
        return _refused(told, what) if told.sqlstate else SinkRefused(redact(first_line(error), dsn))
    return None


def _diagnosis(error: Any) -> Diagnosis:
    """As ADBC tells it."""
    said = {
        name.decode(): value.decode(errors="replace") for name, value in getattr(error, "details", None) or ()
    }

    def part(name: str) -> str | None:
        return said.get(f"PG_DIAG_{name}")

    return Diagnosis(
        part("SQLSTATE") or getattr(error, "sqlstate", None) or "",
        part("MESSAGE_PRIMARY"),
        part("MESSAGE_HINT"),
        part("MESSAGE_DETAIL"),
        part("CONTEXT"),
        part("SCHEMA_NAME"),
        part("CONSTRAINT_NAME"),
    )


def _refused(told: Diagnosis, what: str) -> TrunqError:
    """The error of trunq that it is, or what Postgres says, with the column; values stay out of it."""
    if (ours := translate_diagnosis(told)) is not None:
        return ours
    column = _COLUMN.search(told.context or "")
    where = f" ({column[0]})" if column else ""
    return SinkRefused(f"{what} refused: {told.message}{where}", _ADVICE.get(told.sqlstate, told.hint))


_COLUMN: Final = re.compile(r"\bline \d+, column [^:,\n]+")
_ADVICE: Final = {
    "42501": "ask the owner for the right; docs/pipeline/spark.md says what a sink needs",
    "0A000": "COPY cannot do that: commitProtocol staged inserts",
}
