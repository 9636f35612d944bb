"""Publishing: one message, many, or a stream of them by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import chain
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from trunq._async.access import AsyncAccess
from trunq.argument import (
    Interval,
    check_name,
    copy_line,
    interval,
    json_text,
    message_arrays,
    moment,
    unreadable,
)
from trunq.errors import QueueNotFound, translated


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
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Publish a message and return its id, which it keeps through every retry.

        `payload` is anything JSON, or RawJson; `body` is for bytes that are not. With `delay` or `due_at`
        it is leased no sooner. Raises MessageTooLarge above 16 MB.
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
        connection: AsyncConnection[Any] | None = None,
    ) -> list[int]:
        """Publish many messages at once and return their ids, in the order given.

        `payloads`, or `bodies`, say how many there are. Of the others, a list is as long, and a list of
        one, or one value, stands for all. It is all of them or none. Some thousands at a time are quick: they
        are sent in parts, each worked on by the server while the next is made. `copy` gives no ids.
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
        }
        parts = message_arrays(payloads or [None], kinds, keys, headers, bodies)
        ids = await self._calls(connection, "publish_many", rest, parts)
        return list(chain.from_iterable(ids))

    @asynccontextmanager
    async def copy(
        self, queue: str, *, connection: AsyncConnection[Any] | None = None
    ) -> AsyncIterator[AsyncCopyWriter]:
        """Publish a stream of messages by COPY, all of them or, when the block raises, none.

        async with client.copy("orders") as orders:
            for row in rows:
                await orders.write(row, kind="order")
        """
        check_name("queue", queue)
        statement = sql.SQL("copy {} (kind, key, payload, headers, body) from stdin").format(
            sql.Identifier("trunq_log", queue)
        )
        with translated:
            if connection is None:
                async with self._borrow() as own, _copy_writer(own, queue, statement) as writer:
                    yield writer
            else:
                async with _copy_writer(connection, queue, statement) as writer:
                    yield writer


@asynccontextmanager
async def _copy_writer(
    connection: AsyncConnection[Any], queue: str, statement: sql.Composed
) -> AsyncIterator[AsyncCopyWriter]:
    try:
        async with connection.cursor() as cursor, cursor.copy(statement) as copy:
            writer = AsyncCopyWriter(copy)
            yield writer
            await writer.flush()
    except psycopg.DataError as error:
        raise unreadable(error) from error
    except psycopg.errors.UndefinedTable as error:
        raise QueueNotFound(f'queue "{queue}" does not exist', "create it: trunq queue create") from error


class AsyncCopyWriter:
    """Where `copy` takes messages."""

    def __init__(self, copy: psycopg.AsyncCopy) -> None:
        self._copy = copy
        self._lines: list[str] = []
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
        text = copy_line(payload, kind, key, headers, body)
        self._lines.append(text)
        self._size += len(text)
        # A call for each message would cost more than the message.
        if self._size > 65_536:
            await self.flush()

    async def flush(self) -> None:
        """Send what has been gathered; the end of the block does so too."""
        lines, self._lines, self._size = self._lines, [], 0
        await self._copy.write("".join(lines))
