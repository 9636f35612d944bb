"""Rows of a query as Arrow batches: by ADBC, which makes them in native code, or out of rows of Python's.

Values in a query are literals: with parameters ADBC would not use COPY. Every batch is bounded in bytes,
whatever the size of a row.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from trunq.arrow.adbc import connect
from trunq.errors import InvalidArgument

BATCH_BYTES: Final = 8 << 20
BATCH_ROWS: Final = 20_000

READING: Final = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "timezone": "UTC",
}
"""Settings of Postgres under which a value has the same text on any server."""


def set_local(settings: dict[str, str]) -> str:
    """The query that sets them in a transaction; through a pooler, a session's would reach other clients."""
    chosen = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"select {chosen}"


def begin(cursor: Any, settings: dict[str, str]) -> None:
    """Begin a transaction with these settings."""
    # An older snapshot finds a table empty that was rewritten meanwhile.
    cursor.execute("set transaction isolation level read committed")
    cursor.execute(set_local(settings))
    cursor.fetchall()


def run(cursor: Any, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a query by ADBC, in the types of `schema`. They are Postgres' own: see `adbc`."""
    cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
    cursor.execute(query)
    for batch in cursor.fetch_record_batch():
        if batch.num_rows:
            columns = zip(batch.columns, schema, strict=True)
            made = [_made(field, partial(column.cast, field.type)) for column, field in columns]
            yield pa.RecordBatch.from_arrays(made, schema=schema)


def _made(field: pa.Field, make: Callable[[], pa.Array]) -> pa.Array:
    """A column in its type. Raises InvalidArgument for a value that the type lacks, as NaN of a decimal."""
    try:
        return make()
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f'column "{field.name}" has a value that {field.type} has no word for: {error}',
            "read the other columns: in Spark, .schema(...) names those that are read",
        ) from None


def fetch(
    dsn: str,
    query: str,
    schema: pa.Schema,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    verify: Callable[[Any], None] = lambda _cursor: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a query of a pipeline by ADBC, over a connection of its own; `settings` beside READING.

    `verify` is called when all are read, in the same transaction; `check` before each batch.
    """
    with connect(dsn, "trunq pipeline") as connection, connection.cursor() as cursor:
        begin(cursor, {**READING, **settings})
        for batch in run(cursor, query, schema):
            check()
            yield batch
        verify(cursor)


class Gathering:
    """Rows on their way into batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, row: tuple[Any, ...]) -> pa.RecordBatch | None:
        """Take one more; the batch that is full by it, if one is."""
        self._rows.append(row)
        self._size += sum(len(value) for value in row if isinstance(value, str | bytes))
        return self.rest() if self._size >= BATCH_BYTES or len(self._rows) >= BATCH_ROWS else None

    def rest(self) -> pa.RecordBatch | None:
        """What is left, if anything is."""
        if not self._rows:
            return None
        columns = zip(*self._rows, strict=True)
        arrays = [
            _made(field, partial(pa.array, values, field.type))
            for values, field in zip(columns, self._schema, strict=True)
        ]
        self._rows, self._size = [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class Kept:
    """A connection by ADBC that is kept for one query after another; from any thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._process = os.getpid()
        self._connection: Any = None
        self._cursor: Any = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._first: pa.RecordBatch | None = None
        self._number = 0
        self._is_closed = False
        # A task that was cancelled leaves its thread behind, in the middle of a call.
        self._using = Lock()

    def start(self, query: str, schema: pa.Schema, settings: dict[str, str]) -> int:
        """Run a query; its number, for `next`. What is left of the query before comes no more."""
        with self._using:
            if self._process != os.getpid():
                # To close it would end the session of the parent.
                _inherited.append((self._cursor, self._connection, self._batches))
                self._cursor = self._connection = self._batches = None
                self._process = os.getpid()
            if self._batches is not None:
                self._let_go()
            is_new = self._connection is None
            try:
                self._begin(query, schema, settings)
            except Exception:
                self._let_go()
                if is_new:
                    raise
                # It may have been lost since it was last used.
                self._begin(query, schema, settings)
            self._number += 1
            return self._number

    def next(self, number: int) -> pa.RecordBatch | None:
        """The next batch of the query, or None."""
        with self._using:
            if number != self._number or self._batches is None:
                raise InvalidArgument(
                    "another batch of the stream was begun meanwhile", "read each to its end before the next"
                )
            batch, self._first = self._first, None
            if batch is None:
                batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                self._cursor.close()
                self._connection.commit()
                if self._is_closed:
                    self._let_go()
            return batch

    def close(self) -> None:
        """Close it. What is read afterwards has a connection for itself."""
        with self._using:
            self._is_closed = True
            self._let_go()

    def _begin(self, query: str, schema: pa.Schema, settings: dict[str, str]) -> None:
        if self._connection is None:
            self._connection = connect(self._dsn, "trunq")
        self._cursor = self._connection.cursor()
        begin(self._cursor, settings)
        self._batches = run(self._cursor, query, schema)
        # Only then is the query sent.
        self._first = next(self._batches, None)

    def _let_go(self) -> None:
        cursor, connection = self._cursor, self._connection
        self._cursor = self._connection = self._batches = None
        for each in filter(None, (cursor, connection)):
            with suppress(Exception):
                each.close()


_inherited: Final[list[Any]] = []


class AsyncKept:
    """As Kept, for an event loop, which goes on meanwhile."""

    def __init__(self, dsn: str) -> None:
        self._kept = Kept(dsn)

    async def start(self, query: str, schema: pa.Schema, settings: dict[str, str]) -> int:
        """Run a query; its number, for `next`."""
        return await asyncio.to_thread(self._kept.start, query, schema, settings)

    async def next(self, number: int) -> pa.RecordBatch | None:
        """The next batch of the query, or None."""
        return await asyncio.to_thread(self._kept.next, number)

    async def close(self) -> None:
        """Close it."""
        await asyncio.to_thread(self._kept.close)


class Reader:
    """Batches as pyarrow reads them."""

    @staticmethod
    def over(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """A reader of batches that come one after the other."""
        return pa.RecordBatchReader.from_batches(schema, batches)


class AsyncReader:
    """As Reader, of batches that an event loop makes, for another thread."""

    @staticmethod
    def over(schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """A reader of batches that come one after the other, out of the running loop."""
        loop = asyncio.get_running_loop()

        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        def each() -> Iterator[pa.RecordBatch]:
            with suppress(RuntimeError):
                if asyncio.get_running_loop() is loop:
                    raise InvalidArgument(
                        "this reader waits for the event loop, which cannot go on while it reads",
                        "read in a thread: await asyncio.to_thread(reader.read_all)",
                    )
            while (batch := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
                yield batch

        return pa.RecordBatchReader.from_batches(schema, each())
