"""Publishing: one message, many, or a stream of them by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Never

import psycopg
from psycopg import AsyncConnection, AsyncCopy, AsyncCursor, sql
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from trunq.client._async.access import AsyncAccess
from trunq.client._async.traced import publishing
from trunq.client.outgoing import Injector, Outgoing, with_awaited, with_columns
from trunq.connection._async.execute import check_encoding, is_idle
from trunq.connection._async.pool import AsyncPool
from trunq.connection.bridge import AsyncBridge
from trunq.connection.given import AsyncGiven, require_connection
from trunq.errors import InvalidArgument
from trunq.wire.call import Call, explained
from trunq.wire.copy import COLUMNS, NO_REST, PART, Columns, line, rest
from trunq.wire.habit import refuse_arguments
from trunq.wire.json import headers_text, json_text
from trunq.wire.name import check_name
from trunq.wire.scalar import Interval, Label, content, interval, moment

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry


class AsyncPublishing(AsyncAccess):
    """Publishing. With `connection`, the messages are there when and if that transaction commits."""

    def __init__(
        self,
        database: str | AsyncPool | None = None,
        *,
        max_connections: int = 10,
        timeout: float = 10.0,
        injectors: Iterable[Injector] = (),
        payload_types: Mapping[Label, Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        if telemetry is not None:
            injectors = (*injectors, telemetry.inject)
        self._outgoing = Outgoing(injectors, payload_types) or None
        super().__init__(database, max_connections=max_connections, timeout=timeout)

    @publishing
    async def publish(
        self,
        queue: str,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        priority: int | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        awaited: bool | Interval = False,
        columns: Mapping[str, Any] | None = None,
        connection: AsyncGiven | None = None,
        **habits: Never,
    ) -> int:
        """Publish a message and return its id, which it keeps through every retry.

        `payload` is anything JSON, or RawJson; `body` is for bytes that are not; `headers` are an object
        beside them. `kind` and `key` may be numbers, UUIDs or Enums: they become text. With `delay` or
        `due_at` it is leased no sooner. `options` are `max_attempts`,
        `time_out`, `backoff`, `backoff_base`, `backoff_cap`, `jitter` and `dead_into` (a queue that it goes
        to when it dies), which stand in for the subscription's, and `expires_at`: after that time, or
        `max_age` after now, no lease hands it out, and it is dead instead. Raises MessageTooLarge above
        16 MB, InvalidArgument for a message with nothing in it. Of a message that is `awaited`, `result`
        waits for the final answer, which is kept for an hour, or for as long as `awaited` says. `columns` are
        those of your own that the queue has (`add_column`), by name; those left out have their defaults.
        """
        if habits:
            refuse_arguments("publish", habits)
        if payload is None and kind is None and key is None and headers is None and body is None:
            raise InvalidArgument(
                "this message has neither a payload nor a kind", "give publish what a handler is to be told"
            )
        if self._outgoing is not None:
            payload, headers = self._outgoing.one(queue, kind, payload, headers, body)
        message_id: int = await self._value(
            connection,
            "publish",
            queue=queue,
            payload=json_text("payload", payload),
            kind=kind,
            key=key,
            headers=headers_text(headers),
            body=content("body", body),
            priority=priority,
            delay=interval("delay", delay),
            due_at=moment("due_at", due_at),
            options=json_text("options", with_columns(with_awaited(options, awaited), columns)),
            max_age=interval("max_age", max_age),
        )
        return message_id

    @publishing
    async def publish_many(
        self,
        queue: str,
        payloads: Iterable[Any] | None = None,
        *,
        kinds: Iterable[Label | None] | None = None,
        keys: Iterable[Label | None] | None = None,
        headers: Any = None,
        bodies: Iterable[bytes | None] | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        priorities: Sequence[int] | int | None = None,
        awaited: bool | Interval = False,
        kind: Label | None = None,
        key: Label | None = None,
        connection: AsyncGiven | None = None,
        **habits: Never,
    ) -> list[int]:
        """Publish many messages at once and return their ids, in the order given.

        `payloads`, or `bodies`, say how many there are. Of the others, a list is as long, or one that
        stands for all; `headers` may also be one object for all. `kind` and `key` are for the messages that
        have none of their own in `kinds` and `keys`. It is all of them or none. Some thousands at a time are
        quickest: more than 500 go by COPY, with ids drawn before. `copy` takes a stream, and gives no ids.
        `priorities` are for a queue with lanes by priority. `options`, `max_age` and `awaited` are for all of
        them.
        """
        if habits:
            refuse_arguments("publish_many", habits)
        if isinstance(payloads, Mapping | str | bytes):
            raise TypeError(f"payloads is a list of payloads, not one {type(payloads).__name__}")
        payloads = list(payloads or [])
        if not payloads and not bodies:
            return []
        rest: dict[str, Any] = {
            "queue": queue,
            "delay": interval("delay", delay),
            "due_at": moment("due_at", due_at),
            "options": json_text("options", with_awaited(options, awaited)),
            "max_age": interval("max_age", max_age),
        }
        is_plain = priorities is None and not any(
            value is not None for name, value in rest.items() if name != "queue"
        )
        if self._outgoing is not None:
            payloads, kinds, headers = self._outgoing.many(
                queue, payloads, kinds, kind, headers, has_bodies=bodies is not None
            )
        columns = Columns(payloads or [None], kinds, keys, headers, bodies, kind, key, priorities)
        if columns.count > PART and columns.fit and is_plain:
            copied = await self._copy_many(connection, queue, columns)
            if copied is not None:
                return copied
        ids = await self._publish_columns(connection, rest, columns)
        return list(chain.from_iterable(ids))

    async def draw_ids(
        self, queue: str, count: int, *, connection: AsyncGiven | None = None
    ) -> list[int] | None:
        """Draw ids for messages that you put into the log by a COPY or an INSERT of your own.

        None for a role that may not write ids. An id that is not used is never given again.
        """
        arguments = {"queue": queue, "count": count}
        ((ids,),) = await self._execute(connection, Call("draw_ids", arguments, raw=True))
        return ids  # type: ignore[no-any-return]

    async def _copy_many(
        self, connection: AsyncGiven | None, queue: str, columns: Columns
    ) -> list[int] | None:
        """The ids. None in a pipeline, where Postgres has no COPY, through other libraries, and for a role
        that may not write ids.
        """
        if connection is not None and await AsyncBridge.over(connection) is not None:
            return None
        async with self._own_or(connection) as own:
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
                        with explained:
                            await copy.write(text)
        return ids

    def _own_or(self, connection: AsyncGiven | None) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """One of our own connections, or the psycopg connection that the caller gave."""
        if connection is None:
            return self._borrow()
        return nullcontext(require_connection(connection, AsyncConnection))

    @asynccontextmanager
    async def copy(
        self, queue: str, *, connection: AsyncGiven | None = None
    ) -> AsyncIterator[AsyncCopyWriter]:
        """Publish a stream of messages by COPY, all of them or, when the block raises, none.

        An example:

            async with client.copy("orders") as orders:
                for row in rows:
                    await orders.write(row, kind="order")
        """
        check_name("queue", queue)
        with nullcontext() if self._telemetry is None else self._telemetry.publishing(queue) as work:
            async with self._own_or(connection) as own, _copying(own, queue, COLUMNS) as copy:
                writer = AsyncCopyWriter(copy, queue, self._outgoing)
                yield writer
                await writer.flush()
            if work is not None:
                work.copied(writer.count)


@asynccontextmanager
async def _copying(
    connection: AsyncConnection[Any], queue: str, columns: Sequence[str]
) -> AsyncIterator[AsyncCopy]:
    statement = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier("trunq_log", queue), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    check_encoding(connection)
    of_the_block: BaseException | None = None
    try:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor, cursor.copy(statement) as copy:
            try:
                yield copy
            except BaseException as error:
                of_the_block = error
                raise
    except psycopg.Error as error:
        # What the caller's own statements raise is none of ours to translate.
        if error is of_the_block:
            raise
        with explained:
            raise


class AsyncCopyWriter:
    """Where `copy` takes messages."""

    def __init__(self, copy: AsyncCopy, queue: str, outgoing: Outgoing | None) -> None:
        self._copy = copy
        self._queue = queue
        self._outgoing = outgoing
        self._lines: list[bytes] = []
        self._size = 0
        self.count = 0
        """Messages written so far."""

    async def write(
        self,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        priority: int | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish one message; all is as `publish` takes it."""
        if self._outgoing is not None:
            payload, headers = self._outgoing.one(self._queue, kind, payload, headers, body)
        has_rest = priority is not None or due_at is not None or options is not None
        text = line(
            payload, kind, key, headers, body, rest(priority, options, due_at) if has_rest else NO_REST
        )
        self._lines.append(text)
        self.count += 1
        self._size += len(text)
        # A call for each message would cost more than the message.
        if self._size > 32_768:
            await self.flush()

    async def flush(self) -> None:
        """Send what has been gathered; the end of the block does so too."""
        lines, self._lines, self._size = self._lines, [], 0
        with explained:
            await self._copy.write(b"".join(lines))
