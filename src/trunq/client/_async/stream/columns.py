"""A batch as Arrow: copied from the log, by ADBC or psycopg, or read in pages where that is not allowed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq.client._async.access import AsyncAccess
from trunq.errors import InvalidArgument, TrunqError
from trunq.record import Batch, BatchMessage
from trunq.record.stream import BATCHED
from trunq.wire.call import Call
from trunq.wire.json import json_text

if TYPE_CHECKING:
    import pyarrow as pa

    from trunq.arrow.reader import AsyncKept

log = logging.getLogger("trunq.client")

PAGE: Final = 2000
"""Messages fetched by one call."""

_SETTINGS: Final = {
    # The log has no statistics: left alone, the planner would read all of it.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # In order without a sort.
    "max_parallel_workers_per_gather": "0",
}
_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where Postgres begins to count."""


class AsyncColumns:
    """Reads batches of a stream, one after the other, and keeps a connection of ADBC's for it."""

    def __init__(self, client: AsyncAccess) -> None:
        self._client = client
        self._kept: AsyncKept | None = None

    async def close(self) -> None:
        """Close what was kept."""
        if self._kept is not None:
            await self._kept.close()

    def schema(self) -> pa.Schema:
        """The columns; raises InvalidArgument without pyarrow."""
        _require()
        import pyarrow as pa  # noqa: PLC0415

        return pa.schema(
            [
                (name, pa.timestamp("us", "UTC") if kind == "timestamp" else getattr(pa, kind)())
                for name, (_, kind) in BATCHED.items()
            ]
        )

    async def table(
        self, batch: Batch, filter: Mapping[str, Any] | None, connection: AsyncConnection[Any] | None
    ) -> pa.Table:
        """As `batches`, all in one."""
        schema = self.schema()
        import pyarrow as pa  # noqa: PLC0415

        return pa.Table.from_batches([each async for each in self.batches(batch, filter, connection)], schema)

    def reader(
        self, batch: Batch, filter: Mapping[str, Any] | None, connection: AsyncConnection[Any] | None
    ) -> pa.RecordBatchReader:
        """As `batches`, for whatever reads Arrow."""
        schema = self.schema()
        from trunq.arrow.reader import AsyncReader  # noqa: PLC0415

        return AsyncReader.over(schema, self.batches(batch, filter, connection))

    async def batches(
        self, batch: Batch, filter: Mapping[str, Any] | None, connection: AsyncConnection[Any] | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The messages of a batch, some at a time; on the connection given, where psycopg reads them."""
        named = {
            "queue": batch.queue,
            "subscription": batch.subscription,
            "batch_id": batch.batch_id,
            "filter": json_text("filter", filter),
        }
        asked = Call("_batch_query", named, ("query", "queue_id", "from_tick_id"))
        rows = await self._client._execute(connection, asked)
        # By name: a newer database may have more columns.
        query = f"select {', '.join(BATCHED)} from ({rows[0][0]}) q" if rows else None
        if query is None:
            source = self._paged(named, connection)
        elif (number := await self._start(query)) is not None:
            source = self._by_adbc(number)
        else:
            source = self._by_psycopg(query, connection)
        async with aclosing(source):
            async for found in source:
                yield found
        for _, queue_id, tick_id in rows:
            # Afterwards, by a later statement: what was emptied before the rows were read is known by now.
            await self._client._value(connection, "_check_reachable", queue_id=queue_id, tick_id=tick_id)

    async def _start(self, query: str) -> int | None:
        """Have ADBC run the query, if it does; the query's number for it."""
        reader = _require()
        from trunq.arrow.adbc import has_adbc  # noqa: PLC0415

        if self._client._conninfo is None or not has_adbc():
            return None
        if self._kept is None:
            self._kept = reader.AsyncKept(self._client._conninfo)
        try:
            return await self._kept.start(query, self.schema(), _SETTINGS)
        except Exception as error:
            # Its errors do not say what is wrong. psycopg's do, if it fails too.
            log.info("ADBC could not read a batch: %s", error)
            return None

    async def _by_adbc(self, number: int) -> AsyncGenerator[pa.RecordBatch, None]:
        assert self._kept is not None
        while True:
            try:
                found = await self._kept.next(number)
            except TrunqError:
                raise
            except Exception as error:
                raise psycopg.OperationalError(f"the rest of a batch could not be read: {error}") from error
            if found is None:
                return
            yield found

    async def _by_psycopg(
        self, query: str, connection: AsyncConnection[Any] | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        reader = _require()
        gathering = reader.Gathering(self.schema())
        # Rolled back, so that the settings end with it in a transaction of the user's, too.
        async with (
            self._on(connection) as used,
            used.transaction(force_rollback=True),
            used.cursor() as cursor,
        ):
            await cursor.execute(reader.set_local(_SETTINGS).encode())
            async with cursor.copy(f"copy ({query}) to stdout (format binary)".encode()) as copy:
                copy.set_types([kind for kind, _ in BATCHED.values()])
                async for row in copy.rows():
                    if (found := gathering.add(row)) is not None:
                        yield found
        if (found := gathering.rest()) is not None:
            yield found

    @asynccontextmanager
    async def _on(self, connection: AsyncConnection[Any] | None) -> AsyncIterator[AsyncConnection[Any]]:
        if connection is not None:
            yield connection
            return
        async with self._client.transaction() as own:
            yield own

    async def _paged(
        self, named: dict[str, Any], connection: AsyncConnection[Any] | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        gathering = _require().Gathering(self.schema())
        place: dict[str, int] = {}
        while True:
            call = Call("read_batch", {**named, **place, "limit": PAGE}, BatchMessage._fields, raw=True)
            rows = await self._client._execute(connection, call)
            for row in rows:
                if (found := gathering.add(_plain(row))) is not None:
                    yield found
            if len(rows) < PAGE:
                break
            last = BatchMessage._make(rows[-1])
            place = {"after_txid": last.txid, "after_id": last.id}
        if (found := gathering.rest()) is not None:
            yield found


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of read_batch as it was sent, in the types of Arrow."""
    message = BatchMessage._make(row)
    told = message._replace(
        payload=_text(message.payload),
        headers=_text(message.headers),
        created_at=int(message.created_at) + _EPOCH,  # type: ignore[call-overload]  # it is still a number
    )
    return told[: len(BATCHED)]


def _text(sent: bytes | None) -> str | None:
    """The text of a jsonb; before it stands a byte for the version."""
    return None if sent is None else sent[1:].decode()


def _require() -> ModuleType:
    try:
        import pyarrow as pa  # noqa: F401, PLC0415  # slow to import, and not everybody has it
    except ImportError as error:
        raise InvalidArgument(
            "Arrow needs pyarrow, which is not here", "pip install 'trunq[arrow]'"
        ) from error
    from trunq.arrow import reader  # noqa: PLC0415

    return reader
