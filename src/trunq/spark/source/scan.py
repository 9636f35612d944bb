"""Reading a part of the log as Arrow record batches, by one of two engines.

`adbc` turns Postgres' binary COPY into Arrow in native code. It is about three times as fast for many rows,
but its connection takes 30 ms to open, so each worker process keeps one. `psycopg` connects at once and
suits few rows.

Both engines run the same statement. Its values are literals, since ADBC does not use COPY with bound
parameters: numbers, checked names and quoted texts. Every batch is bounded in bytes, whatever the size of
the payloads.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from trunq.arrow import reader as shared
from trunq.arrow.adbc import connect as connect_adbc
from trunq.arrow.adbc import has_adbc
from trunq.connection.backoff import is_retryable, retrying
from trunq.spark.connection import APPLICATION, LATER, away, connect
from trunq.spark.errors import DatabaseAway, SparkError
from trunq.spark.source.column import Column, arrow_schema
from trunq.spark.source.log import out_of_reach, still_reachable
from trunq.spark.source.range import ROWS_WORTH_A_TASK, Part


@dataclass(frozen=True, slots=True)
class Query:
    """What to read of a queue: columns, and conditions in addition to those of the part."""

    queue: str
    columns: tuple[Column, ...]
    conditions: tuple[str, ...] = ()

    def statement(self, part: Part) -> str:
        """One SELECT, or a union of several where the part needs several index scans."""
        chosen = ", ".join(column.sql for column in self.columns) or "1 as one"
        more = "".join(f" and {condition}" for condition in ("subscription_id is null", *self.conditions))
        table = sql.Identifier("trunq_log", self.queue).as_string()
        selects = [f"select {chosen} from {table} g where {each}{more}" for each in part.conditions()]
        return " union all ".join(selects)

    def check(self, after: int | None) -> Check:
        """What to do after reading, by a later statement: see that messages after the tick are still there.

        A segment that is emptied while the statement above waits for its lock looks empty to it.
        """

        def check(cursor: Any) -> None:
            if after is not None:
                cursor.execute(still_reachable(self.queue, after).as_string())
                if cursor.fetchone() != (True,):
                    raise out_of_reach(self.queue, after)

        return check


Check = Callable[[Any], None]
Engine = Callable[[str, str, Sequence[Column], Check], Iterator[pa.RecordBatch]]


def fetch(
    dsn: str, query: Query, part: Part, after: int | None = None, engine: str = "auto"
) -> Iterator[pa.RecordBatch]:
    """The rows of a part. Until it has yielded the first batch, it waits for a database that is away.

    Afterwards a lost connection is an error, upon which Spark runs the whole task again. It raises `DataLoss`
    at the end if messages after the tick `after` are gone.
    """
    if not part.conditions():
        return
    read = choose(engine, part.rows)
    statement = query.statement(part)
    tries = retrying(also=DatabaseAway, within=LATER)
    try:
        first, rest = tries(_begin, partial(read, dsn, statement, query.columns, query.check(after)))
        if first is not None:
            yield first
            yield from rest
    except (psycopg.Error, DatabaseAway) as error:
        if not (isinstance(error, DatabaseAway) or is_retryable(error)):
            raise
        raise away(error, dsn) from error


def _begin(
    read: Callable[[], Iterator[pa.RecordBatch]],
) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
    """The first batch, if there is one, and those that follow."""
    batches = read()
    return next(batches, None), batches


def choose(engine: str, rows: int) -> Engine:
    """The engine of that name; `auto` takes adbc for many rows if it is installed."""
    if engine == "psycopg" or (engine == "auto" and rows < ROWS_WORTH_A_TASK):
        return read_psycopg
    if has_adbc():
        return read_adbc
    if engine == "auto":
        return read_psycopg
    raise SparkError("the engine adbc is not installed", "pip install 'trunq[spark]'")


def read_psycopg(
    dsn: str, statement: str, columns: Sequence[Column], check: Check
) -> Iterator[pa.RecordBatch]:
    """Reads by a binary COPY, row by row: a cursor could bound a batch in rows only."""
    schema = arrow_schema(columns)
    with connect(dsn) as connection, connection.transaction(), connection.cursor() as cursor:
        for setting in _PLAN:
            cursor.execute(setting)
        with cursor.copy(f"copy ({statement}) to stdout (format binary)".encode()) as copy:
            copy.set_types([column.postgres for column in columns])
            gathering = shared.Gathering(schema)
            for row in copy.rows():
                if (batch := gathering.add(row)) is not None:
                    yield batch
            if (batch := gathering.rest()) is not None:
                yield batch
        check(cursor)


def read_adbc(dsn: str, statement: str, columns: Sequence[Column], check: Check) -> Iterator[pa.RecordBatch]:
    """Reads by ADBC, over the connection that this process keeps for the address."""
    schema = arrow_schema(columns)
    try:
        connection = _kept(dsn)
    except Exception as error:
        raise away(error, dsn) from error
    try:
        with connection.cursor() as cursor:
            for setting in _PLAN:
                cursor.execute(setting)
            yield from shared.run(cursor, statement, schema)
            check(cursor)
        connection.commit()
    except GeneratorExit:
        # Spark stops early; the rest of the result is still in the connection.
        _forget(dsn)
        raise
    except Exception as error:
        lost = not _is_alive(connection)
        _forget(dsn)
        if lost:
            # In the middle of a result, ADBC reports a lost connection as an OSError, like any other failure.
            raise away(error, dsn) from error
        raise


# Settings of the transaction: through a pooler, those of the session would reach other clients.
_PLAN: Final = (
    "set transaction isolation level read committed",
    "set local enable_seqscan = off",
    "set local enable_bitmapscan = off",
    "set local jit = off",
)

_connections: dict[tuple[int, str], Any] = {}


@atexit.register
def _forget_all() -> None:
    for _, dsn in list(_connections):
        _forget(dsn)


def _kept(dsn: str) -> Any:
    """This process's connection to the address; a forked process must not use that of its parent."""
    key = (os.getpid(), dsn)
    if key not in _connections:
        _connections[key] = connect_adbc(dsn, APPLICATION)
    return _connections[key]


def _is_alive(connection: Any) -> bool:
    try:
        connection.rollback()
    except Exception:
        return False
    return True


def _forget(dsn: str) -> None:
    connection = _connections.pop((os.getpid(), dsn), None)
    if connection is not None:
        with suppress(Exception):
            connection.close()
