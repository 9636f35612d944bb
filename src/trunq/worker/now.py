"""A message handled here and now, without a database: for tests of handlers.

What a handler gets and what becomes of its answer are as in a worker: the payload has been JSON in between,
the result must be JSON, and a transaction is rolled back unless the answer is an ack.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from trunq.client.message import LEASED, Message, Reject, Retry
from trunq.client.park import Park
from trunq.client.progress import Progress
from trunq.connection.given import require_connection
from trunq.errors import InvalidArgument
from trunq.wire.json import headers_bytes, json_bytes
from trunq.wire.scalar import Label, content, label
from trunq.worker.handler import Handler, Registry
from trunq.worker.handler.result import encode

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
    id: int = 1

    def message(self, queue: str, subscription: str) -> Message:
        """The message that a worker would receive; or the one that was given as the payload."""
        if isinstance(self.payload, Message):
            self._check_alone()
            return self.payload
        now = datetime.now(UTC)
        given = {
            **dict.fromkeys(("lease_id", "token", "priority"), 0),
            "id": self.id,
            "attempt": self.attempt or 1,
            "max_attempts": self.max_attempts or 0,
            "kind": label("kind", self.kind),
            "key": label("key", self.key),
            "payload": _decoded(json_bytes("payload", self.payload)),
            "body": content("body", self.body),
            "headers": _decoded(headers_bytes("headers", self.headers)),
            "created_at": now,
            "expires_at": now + _LEASE_TIME,
            "options": None if self.max_attempts is None else {"max_attempts": self.max_attempts},
        }
        return Message([given.get(name) for name in LEASED], queue, subscription)

    def _check_alone(self) -> None:
        others = ("kind", "key", "headers", "body", "attempt", "max_attempts")
        if lost := [name for name in others if getattr(self, name) is not None]:
            raise InvalidArgument(f"a Message has its own {', '.join(lost)}", "give either, not both")


def published(payload: Any, kind: Label | None, headers: Any, id: int) -> Published:
    """A message of a batch, with what is for all of them."""
    if isinstance(payload, Message):
        kind = headers = None
    return Published(payload, kind, None, headers, None, None, None, id)


class Here:
    """Stands for the worker that runs a message: nothing stops it; what it reports is in the message."""

    def time_left(self, message: Message) -> None:
        """None: nobody stops the handler."""

    async def extend(self, message: Message, seconds: float) -> datetime:
        """When the lease would end."""
        return self.extend_in_thread(message, seconds)

    def extend_in_thread(self, _message: Message, seconds: float) -> datetime:
        """The same."""
        return datetime.now(UTC) + timedelta(seconds=seconds)

    async def set_progress(self, message: Message, progress: Progress) -> None:
        """Take it: `message.checkpoint` has the last checkpoint."""

    def set_progress_in_thread(self, message: Message, progress: Progress) -> None:
        """The same."""


def handle_sync(registry: Registry, given: Message | list[Message], connection: Any) -> Any:
    """The answer of the handler, or the outcome of each message of a batch; an async handler runs in an event
    loop of its own.
    """
    if not given:
        return []
    handler, taken = _find(registry, given, connection)
    if handler.is_async:
        return _outcome(given, taken, _in_loop(_run(handler, taken, connection)))
    return _outcome(given, taken, _run_sync(handler, taken, connection))


async def handle(registry: Registry, given: Message | list[Message], connection: Any) -> Any:
    """The same in an event loop; a sync handler runs in a thread."""
    if not given:
        return []
    handler, taken = _find(registry, given, connection)
    if handler.is_async:
        return _outcome(given, taken, await _run(handler, taken, connection))
    return _outcome(given, taken, await asyncio.to_thread(_run_sync, handler, taken, connection))


def _in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    if asyncio._get_running_loop() is not None:
        work.close()
        raise RuntimeError("an event loop is running here: await worker.handle_now_async()")
    return asyncio.run(work)


def _find(
    registry: Registry, given: Message | list[Message], connection: Any
) -> tuple[Handler, Message | list[Message]]:
    """The handler of a message, or of all messages of a batch, and what it takes."""
    if isinstance(given, Message):
        handler = _handler(registry, given, connection)
        return handler, given if handler.batching is None else [given]
    found = [_handler(registry, message, connection) for message in given]
    for handler, message in zip(found, given, strict=True):
        if handler.batching is None or handler is not found[0]:
            raise InvalidArgument(
                f"kind {message.kind!r} has no batch handler, or another one",
                "handle_now handles one message",
            )
    return found[0], given


def _outcome(given: Message | list[Message], taken: Message | list[Message], answer: Any) -> Any:
    """What is returned of an answer: the outcome of each message of a batch (what the handler raised as its
    answer is that of each); of the one message, raised if it is an error.
    """
    if isinstance(taken, Message):
        return answer
    outcomes = [answer] * len(taken) if isinstance(answer, Retry | Reject) else answer
    if isinstance(given, list):
        return outcomes
    (outcome,) = outcomes
    if isinstance(outcome, BaseException) and not isinstance(outcome, Retry | Reject):
        raise outcome
    return outcome


def _handler(registry: Registry, message: Message, connection: Any) -> Handler:
    handler = registry.find(message.kind)
    if handler is None:
        known = ", ".join(registry.kinds) or "none"
        raise InvalidArgument(f"no handler for kind {message.kind!r}; this worker has: {known}")
    handler = handler.here or handler
    message._runner = Here()
    if handler.policy is not None:
        handler.policy.tell(message)
    if handler.connection is None and connection is not None:
        raise InvalidArgument("this handler has no parameter for a connection", "leave out connection=")
    if handler.connection is not None and connection is None:
        raise InvalidArgument(
            "this handler runs in a transaction and needs a connection",
            f"give connection=, {_given(handler)}, or something that stands for one",
        )
    return handler


def _given(handler: Handler) -> str:
    if handler.library is not None:
        return handler.library.given
    return f"a psycopg.{'AsyncConnection' if handler.is_async else 'Connection'}"


async def _run(handler: Handler, message: Message | list[Message], connection: Any) -> Any:
    arguments = handler.arguments(connection)
    async with _transaction(connection, psycopg.AsyncConnection):
        try:
            answer = _kept(handler, await handler.function(message, **arguments))
        except (Retry, Reject) as raised:
            answer = raised
        _roll_back_unless_acked(answer, connection)
    return answer


def _run_sync(handler: Handler, message: Message | list[Message], connection: Any) -> Any:
    arguments = handler.arguments(connection)
    if handler.lost is not None:
        arguments[handler.lost] = threading.Event()
    with _transaction(connection, psycopg.Connection):
        try:
            answer = _kept(handler, handler.function(message, **arguments))
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


def _kept(handler: Handler, result: Any) -> Any:
    """A result as it would be kept, which is JSON; a Retry or Reject, and an error in a batch, as it is."""
    if isinstance(result, Retry | Reject | Park):
        return result
    if handler.batching is not None:
        return [each if isinstance(each, BaseException | Park) else _decoded(encode(each)) for each in result]
    return _decoded(encode(result))


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else json.loads(raw)


class Now:
    """What a worker does without a database."""

    queues: tuple[str, ...]
    subscription: str
    _registry: Registry

    def handle_now(
        self,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        attempt: int | None = None,
        max_attempts: int | None = None,
        connection: Any = None,
    ) -> Any:
        """Have the handler of this kind handle a message here and now, without a database: for tests.

        `payload` and the rest are as `publish` takes them, or `payload` is a Message. Returns what a worker
        would answer: the result of an ack (None when the handler returns none), a Retry or a Reject. What
        else the handler raises is raised. A handler in a transaction gets `connection`, whose transaction is
        rolled back unless the answer is an ack; anything may stand in for one.
        """
        published = Published(payload, kind, key, headers, body, attempt, max_attempts)
        return handle_sync(self._registry, self._message(published), connection)

    async def handle_now_async(
        self,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        attempt: int | None = None,
        max_attempts: int | None = None,
        connection: Any = None,
    ) -> Any:
        """`handle_now` in the event loop you have; sync handlers run in a thread."""
        published = Published(payload, kind, key, headers, body, attempt, max_attempts)
        return await handle(self._registry, self._message(published), connection)

    def handle_batch_now(
        self,
        payloads: Sequence[Any],
        *,
        kind: Label | None = None,
        headers: Any = None,
        connection: Any = None,
    ) -> list[Any]:
        """`handle_now` for a batch handler and several messages, whatever its `size`: payloads, or Messages.
        Returns the outcome of each.
        """
        messages = [self._message(published(each, kind, headers, id)) for id, each in enumerate(payloads, 1)]
        return list(handle_sync(self._registry, messages, connection))

    async def handle_batch_now_async(
        self,
        payloads: Sequence[Any],
        *,
        kind: Label | None = None,
        headers: Any = None,
        connection: Any = None,
    ) -> list[Any]:
        """`handle_batch_now` in the event loop you have."""
        messages = [self._message(published(each, kind, headers, id)) for id, each in enumerate(payloads, 1)]
        return list(await handle(self._registry, messages, connection))

    def _message(self, published: Published) -> Message:
        return published.message(self.queues[0] if self.queues else "", self.subscription)
