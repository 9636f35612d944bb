"""Publishing: one message, many, or a stream of them by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from itertools import chain
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCopy, AsyncCursor, sql
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from trunq._async.access import AsyncAccess
from trunq._async.execute import check_encoding, is_idle
from trunq.call import Call, unreadable
from trunq.connection.fork import require_own
from trunq.errors import translated
from trunq.wire.copy import COLUMNS, PART, Columns, line
from trunq.wire.json import json_text
from trunq.wire.name import check_name
from trunq.wire.scalar import Interval, interval, moment


class AsyncPublishing(AsyncAccess):
    """Publishing. With `connection`, the messages are there when and if that transaction commits."""

    async def publish(
        self,
        queue: str,
        payload: Any = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        headers: Any = None,
        body: bytes | None = None,
        priority: int | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Publish a message and return its id, which it keeps through every retry.

        `payload` is anything JSON, or RawJson; `body` is for bytes that are not. With `delay` or `due_at`
        it is leased no sooner. `options` are `max_attempts`, which stands in for the subscription's, and
        `expires_at`: after that time, or `max_age` after now, no lease hands it out, and it is dead instead.
        Raises MessageTooLarge above 16 MB.
        """
        message_id: int = await self._value(
            connection,
            "publish",
            queue=queue,
            payload=json_text("payload", payload),
            kind=kind,
            key=key,
            headers=json_text("headers", headers),
            body=body,
            priority=priority,
            delay=interval("delay", delay),
            due_at=moment("due_at", due_at),
            options=json_text("options", options),
            max_age=interval("max_age", max_age),
        )
        return message_id

    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any] | None = None,
        *,
        kinds: Sequence[str | None] | str | None = None,
        keys: Sequence[str | None] | str | None = None,
        headers: Sequence[Any] | Mapping[str, Any] | None = None,
        bodies: Sequence[bytes | None] | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> list[int]:
        """Publish many messages at once and return their ids, in the order given.

        `payloads`, or `bodies`, say how many there are. Of the others, a list is as long, and a list of
        one, or one value, stands for all. It is all of them or none. Some thousands at a time are quickest:
        more than 500 go by COPY, with ids drawn before. `copy` takes a stream, and gives no ids.
        `options` and `max_age` are for all of them.
        """
        if isinstance(payloads, Mapping | str | bytes):
            raise TypeError(f"payloads is a list of payloads, not one {type(payloads).__name__}")
        payloads = list(payloads or [])
        if not payloads and not bodies:
            return []
        rest: dict[str, Any] = {
            "queue": queue,
            "delay": interval("delay", delay),
            "due_at": moment("due_at", due_at),
            "options": json_text("options", options),
            "max_age": interval("max_age", max_age),
        }
        is_plain = not any(value is not None for name, value in rest.items() if name != "queue")
        columns = Columns(payloads or [None], kinds, keys, headers, bodies)
        if columns.count > PART and columns.fit and is_plain:
            copied = await self._copy_many(connection, queue, columns)
            if copied is not None:
                return copied
        ids = await self._calls(connection, "publish_many", rest, columns.arrays())
        return list(chain.from_iterable(ids))

    async def draw_ids(
        self, queue: str, count: int, *, connection: AsyncConnection[Any] | None = None
    ) -> list[int] | None:
        """Draw ids for messages that you put into the log by a COPY or an INSERT of your own.

        None for a role that may not write ids. An id that is not used is never given again.
        """
        arguments = {"queue": queue, "count": count}
        ((ids,),) = await self._execute(connection, Call("draw_ids", arguments, raw=True))
        return ids  # type: ignore[no-any-return]

    async def _copy_many(
        self, connection: AsyncConnection[Any] | None, queue: str, columns: Columns
    ) -> list[int] | None:
        """The ids; None in a pipeline, where Postgres has no COPY, and for a role that may not write ids."""
        async with self._borrow() if connection is None else nullcontext(connection) as own:
            if own.pgconn.pipeline_status != PipelineStatus.OFF:
                return None
            begins = is_idle(own)
            async with own.transaction() if begins else nullcontext():
                ids = await self.draw_ids(queue, columns.count, connection=own)
                if ids is None:
                    return None
                lines = columns.lines(ids)
                if not begins:
                    # In the caller's transaction: what cannot be sent must be found before anything is.
                    lines = iter(list(lines))
                async with _copying(own, queue, columns.names) as copy:
                    for text in lines:
                        await copy.write(text)
        return ids

    @asynccontextmanager
    async def copy(
        self, queue: str, *, connection: AsyncConnection[Any] | None = None
    ) -> AsyncIterator[AsyncCopyWriter]:
        """Publish a stream of messages by COPY, all of them or, when the block raises, none.

        An example:

            async with client.copy("orders") as orders:
                for row in rows:
                    await orders.write(row, kind="order")
        """
        check_name("queue", queue)
        async with (
            self._borrow() if connection is None else nullcontext(connection) as own,
            _copying(own, queue, COLUMNS) as copy,
        ):
            writer = AsyncCopyWriter(copy)
            yield writer
            await writer.flush()


@asynccontextmanager
async def _copying(
    connection: AsyncConnection[Any], queue: str, columns: Sequence[str]
) -> AsyncIterator[AsyncCopy]:
    statement = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier("trunq_log", queue), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    require_own(connection)
    check_encoding(connection)
    try:
        with translated:
            async with (
                AsyncCursor(connection, row_factory=tuple_row) as cursor,
                cursor.copy(statement) as copy,
            ):
                yield copy
    except psycopg.DataError as error:
        raise unreadable(error) from error


class AsyncCopyWriter:
    """Where `copy` takes messages."""

    def __init__(self, copy: AsyncCopy) -> None:
        self._copy = copy
        self._lines: list[bytes] = []
        self._size = 0

    async def write(
        self,
        payload: Any = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        headers: Any = None,
        body: bytes | None = None,
    ) -> None:
        """Publish one message."""
        text = line(payload, kind, key, headers, body)
        self._lines.append(text)
        self._size += len(text)
        # A call for each message would cost more than the message.
        if self._size > 32_768:
            await self.flush()

    async def flush(self) -> None:
        """Send what has been gathered; the end of the block does so too."""
        lines, self._lines, self._size = self._lines, [], 0
        await self._copy.write(b"".join(lines))
