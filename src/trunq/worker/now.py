"""A message handled here and now, without a database: for tests of handlers.

What a handler gets and what becomes of its answer are as in a worker: the payload has been JSON in between,
the result must be JSON, and a transaction is rolled back unless the answer is an ack.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from trunq.connection.given import require_connection
from trunq.errors import InvalidArgument
from trunq.message import Message, Reject, Retry
from trunq.wire.json import headers_bytes, json_bytes
from trunq.wire.scalar import Label, content, label
from trunq.worker.registry import Handler, Registry
from trunq.worker.result import encode

_LEASE_TIME: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Published:
    """A message as `publish` takes it, and its attempt."""

    payload: Any
    kind: Label | None
    key: Label | None
    headers: Any
    body: bytes | None
    attempt: int | None
    max_attempts: int | None

    def message(self, queue: str, subscription: str) -> Message:
        """The message that a worker would receive, its id 1; or the one that was given as the payload."""
        if isinstance(self.payload, Message):
            self._check_alone()
            return self.payload
        now = datetime.now(UTC)
        document = _decoded(json_bytes("payload", self.payload))
        headers = _decoded(headers_bytes("headers", self.headers))
        counted = (self.attempt or 1, self.max_attempts or 0)
        labels = (label("kind", self.kind), label("key", self.key))
        body = content("body", self.body)
        row = (0, 0, 1, *counted, *labels, document, body, headers, 0, now, now + _LEASE_TIME, None)
        return Message(row, queue, subscription)

    def _check_alone(self) -> None:
        others = ("kind", "key", "headers", "body", "attempt", "max_attempts")
        if lost := [name for name in others if getattr(self, name) is not None]:
            raise InvalidArgument(f"a Message has its own {', '.join(lost)}", "give either, not both")


def handle_sync(registry: Registry, message: Message, connection: Any) -> Any:
    """The answer of the handler; an async one runs in an event loop of its own."""
    handler = _find(registry, message, connection)
    if not handler.is_async:
        return _run_sync(handler, message, connection)
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("an event loop is running here: await worker.handle_now_async()")
    return asyncio.run(_run(handler, message, connection))


async def handle(registry: Registry, message: Message, connection: Any) -> Any:
    """The answer of the handler; a sync one runs in a thread."""
    handler = _find(registry, message, connection)
    if handler.is_async:
        return await _run(handler, message, connection)
    return await asyncio.to_thread(_run_sync, handler, message, connection)


def _find(registry: Registry, message: Message, connection: Any) -> Handler:
    handler = registry.find(message.kind)
    if handler is None:
        known = ", ".join(registry.kinds) or "none"
        raise InvalidArgument(f"no handler for kind {message.kind!r}; this worker has: {known}")
    if handler.connection is None and connection is not None:
        raise InvalidArgument("this handler has no parameter for a connection", "leave out connection=")
    if handler.connection is not None and connection is None:
        raise InvalidArgument(
            "this handler runs in a transaction and needs a connection",
            f"give connection=, a psycopg.{'AsyncConnection' if handler.is_async else 'Connection'},"
            " or something that stands for one",
        )
    return handler


async def _run(handler: Handler, message: Message, connection: Any) -> Any:
    arguments = {} if handler.connection is None else {handler.connection: connection}
    async with _transaction(connection, psycopg.AsyncConnection):
        try:
            answer = _kept(await handler.function(message, **arguments))
        except (Retry, Reject) as raised:
            answer = raised
        _roll_back_unless_acked(answer, connection)
    return answer


def _run_sync(handler: Handler, message: Message, connection: Any) -> Any:
    arguments = {} if handler.connection is None else {handler.connection: connection}
    if handler.lost is not None:
        arguments[handler.lost] = threading.Event()
    with _transaction(connection, psycopg.Connection):
        try:
            answer = _kept(handler.function(message, **arguments))
        except (Retry, Reject) as raised:
            answer = raised
        _roll_back_unless_acked(answer, connection)
    return answer


def _transaction(connection: Any, wanted: Any) -> Any:
    """A real connection's transaction; what stands for a connection is left alone."""
    if not _is_real(connection):
        return nullcontext()
    require_connection(connection, wanted)
    return connection.transaction()


def _roll_back_unless_acked(answer: Any, connection: Any) -> None:
    if isinstance(answer, Retry | Reject) and _is_real(connection):
        raise psycopg.Rollback


def _is_real(connection: Any) -> bool:
    return isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)


def _kept(result: Any) -> Any:
    """A result as it would be kept, which is JSON; a Retry or Reject as it is."""
    return result if isinstance(result, Retry | Reject) else _decoded(encode(result))


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else json.loads(raw)
