"""Handlers in a transaction: what they write and the ack commit together, or not at all.

The ack is the last statement: it takes the lease's lock, which is held until the commit, and refuses when the
lease has ended (then all is rolled back). Only an ack commits. A handler that raises, or answers Retry or
Reject, is rolled back, and its answer goes the ordinary way, outside: the book-keeping of a failure must
survive the rollback.

The transaction is READ COMMITTED, whatever the database's default. A handler that wants another level says so
in its first statement: `set transaction isolation level serializable`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

from trunq._async.connection import require_open
from trunq._async.execute import execute
from trunq._async.pool import AsyncPool, open_pool
from trunq._sync.connection import require_open as require_open_sync
from trunq._sync.execute import execute as execute_sync
from trunq._sync.pool import Pool
from trunq._sync.pool import open_pool as open_sync_pool
from trunq.bridge import Rows
from trunq.bridge.transaction import AsyncTransaction, Library, Transaction
from trunq.call import Call
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.connection.silence import lend, lent
from trunq.errors import LeaseLost, translate
from trunq.message import Message, Reject, Retry
from trunq.record import Fate
from trunq.worker.batch import Batch
from trunq.worker.group import Group, ack_of_one
from trunq.worker.lease import Lease
from trunq.worker.registry import Handler
from trunq.worker.result import encode
from trunq.worker.session import (
    EVERY,
    WATCH,
    AsyncSession,
    Session,
    configure,
    configure_sync,
    has_pipeline,
    renew,
)

log = logging.getLogger("trunq.worker")

_PATIENCE: Final = 10.0
"""Seconds to wait for a connection before asking whether the lease is still ours."""

_NO_ROOM: Final = "53"
"""The class of SQLSTATEs that say so: the disk is full, there is no memory."""
_MET: Final = {"40001", "40P01"}
"""Serialization failures and deadlocks: SQLSTATEs of transactions that met another."""
_TRIES: Final = 20
"""So often is a handler run for one attempt of its message, if each time its transaction met another."""
_AT_ONCE: Final = 3
_AWAY: Final = 1.0
"""Seconds until a library is asked again for a transaction."""
_LONGEST_PAUSE: Final = 0.5


Held = Lease | Batch
Handled = Message | Batch


class _RollBack(Exception):
    """The handler's answer is no ack: its transaction is rolled back."""


class AckRefused(Exception):
    """The ack in a handler's transaction was refused: the message is no longer ours; all is rolled back."""


class NoRoom(Exception):
    """The database had no room for the ack in a handler's transaction: all is rolled back, and it is nobody's
    fault."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The handler's transaction committed, the ack with it; of a batch, all outcomes."""

    outcomes: list[Any] | None = None
    fates: list[Fate] = field(default_factory=list)
    """What becomes of those that were no acks."""


COMMITTED: Final = Committed()


class Transactions:
    """Connections for handlers that asked for a transaction, opened when first needed: at most
    `max_connections` for async handlers, and as many for sync ones.
    """

    def __init__(self, dsn: str, application_name: str, max_connections: int) -> None:
        self._conninfo = complete(dsn, application_name)
        self._max_connections = max_connections
        self._pool: AsyncPool | None = None
        self._sync_pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._sync_opening = threading.Lock()

    def watch(self) -> None:
        """Have the server end the statements of handlers whose worker has died."""
        own = conninfo_to_dict(self._conninfo).get("options")
        options = f"{own or ''} -c {WATCH}={EVERY}".strip()
        self._conninfo = make_conninfo(self._conninfo, options=options)

    async def run(self, handler: Handler, lease: Held, message: Handled) -> Any:
        """Call an async handler in a transaction. Returns COMMITTED, or its answer after a rollback."""
        contents = _contents(message)
        for tried in range(_TRIES):
            try:
                return await self._run_once(handler, lease, message)
            except Exception as error:
                if _sqlstate(handler, error) not in _MET:
                    raise
                _put_back(contents)
                await asyncio.sleep(_pause(error, tried, lease, message))
        raise AssertionError("the last try returns or raises")

    def run_sync(self, handler: Handler, lease: Held, message: Handled, arguments: dict[str, Any]) -> Any:
        """The same for a sync handler, in the thread it runs in."""
        contents = _contents(message)
        for tried in range(_TRIES):
            try:
                return self._run_once_sync(handler, lease, message, arguments)
            except Exception as error:
                if _sqlstate(handler, error) not in _MET:
                    raise
                _put_back(contents)
                sleep(_pause(error, tried, lease, message))
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        if self._sync_pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_pool.close, 1)

    async def _run_once(self, handler: Handler, lease: Held, message: Handled) -> Any:
        started, result = monotonic(), None
        try:
            async with self._begun(handler, lease) as transaction:
                result = await handler.function(message, **handler.arguments(transaction.given))
                if isinstance(result, Retry | Reject):
                    raise _RollBack
                groups = _answers(lease, message, result, monotonic() - started)
                execute = await transaction.settle()
                rows: list[Rows] = []
                for group in groups:
                    with _refusal(handler):
                        _require_fresh(await execute(group.call), lease, group)
                    if group.question is not None:
                        rows.append(await execute(group.question))
        except _RollBack:
            return result
        return _committed(lease, result, rows)

    def _run_once_sync(
        self, handler: Handler, lease: Held, message: Handled, arguments: dict[str, Any]
    ) -> Any:
        started, result = monotonic(), None
        try:
            with self._begun_sync(handler, lease) as transaction:
                given = {**handler.arguments(transaction.given), **arguments}
                result = handler.function(message, **given)
                if isinstance(result, Retry | Reject):
                    raise _RollBack
                groups = _answers(lease, message, result, monotonic() - started)
                execute = transaction.settle()
                rows: list[Rows] = []
                for group in groups:
                    with _refusal(handler):
                        _require_fresh(execute(group.call), lease, group)
                    if group.question is not None:
                        rows.append(execute(group.question))
        except _RollBack:
            return result
        return _committed(lease, result, rows)

    @asynccontextmanager
    async def _begun(self, handler: Handler, lease: Held) -> AsyncIterator[AsyncTransaction]:
        """A transaction for an async handler: one of its library, or one of ours."""
        async with AsyncExitStack() as stack:
            if (library := handler.library) is None:
                connection = await stack.enter_async_context(self._connection(lease))
                await stack.enter_async_context(connection.transaction())
                with lent(connection):
                    yield AsyncTransaction(connection, partial(_settled, connection))
                return
            while True:
                try:
                    transaction = await stack.enter_async_context(library.async_transaction())
                    break
                except Exception as error:
                    _require_patience(library, lease, error)
                    await asyncio.sleep(_AWAY)
            yield transaction

    @contextmanager
    def _begun_sync(self, handler: Handler, lease: Held) -> Iterator[Transaction]:
        """The same for a sync handler."""
        with ExitStack() as stack:
            if (library := handler.library) is None:
                connection = stack.enter_context(self._sync_connection(lease))
                stack.enter_context(connection.transaction())
                with lent(connection):
                    yield Transaction(connection, partial(_settled_sync, connection))
                return
            while True:
                try:
                    transaction = stack.enter_context(library.transaction())
                    break
                except Exception as error:
                    _require_patience(library, lease, error)
                    sleep(_AWAY)
            yield transaction

    @asynccontextmanager
    async def _connection(self, lease: Held) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        pool = await self._open()
        connection = None
        while connection is None:
            try:
                connection = await pool.getconn(timeout=_PATIENCE)
            except PoolTimeout:
                # The database is away. The message has not failed: it has not begun.
                _require_held(lease)
        renew(connection)
        try:
            yield connection
        finally:
            if has_pipeline(connection):
                await connection.close()
            await pool.putconn(connection)

    @contextmanager
    def _sync_connection(self, lease: Held) -> Iterator[psycopg.Connection[Any]]:
        pool = self._open_sync()
        connection = None
        while connection is None:
            try:
                connection = pool.getconn(timeout=_PATIENCE)
            except PoolTimeout:
                _require_held(lease)
        renew(connection)
        try:
            yield connection
        finally:
            if has_pipeline(connection):
                connection.close()
            pool.putconn(connection)

    async def _open(self) -> AsyncPool:
        async with self._opening:
            if self._pool is None:
                self._pool = await open_pool(
                    self._conninfo, "trunq worker", self._max_connections, _PATIENCE, AsyncSession, configure
                )
            return self._pool

    def _open_sync(self) -> Pool:
        with self._sync_opening:
            if self._sync_pool is None:
                self._sync_pool = open_sync_pool(
                    self._conninfo, "trunq worker", self._max_connections, _PATIENCE, Session, configure_sync
                )
            return self._sync_pool


async def _settled(connection: psycopg.AsyncConnection[Any]) -> Callable[[Call], Awaitable[Rows]]:
    lend(connection, is_lent=False)
    require_open(connection)
    return partial(execute, connection)


def _settled_sync(connection: psycopg.Connection[Any]) -> Callable[[Call], Rows]:
    lend(connection, is_lent=False)
    require_open_sync(connection)
    return partial(execute_sync, connection)


def _sqlstate(handler: Handler, error: Exception) -> str | None:
    if handler.library is not None and (found := handler.library.sqlstate(error)) is not None:
        return found
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _require_patience(library: Library, lease: Held, error: Exception) -> None:
    """While the database is away, the message has not failed: it has not begun."""
    if not library.is_away(error):
        raise error
    _require_held(lease)
    log.warning("a handler waits for its transaction: %s", str(error).partition("\n")[0])


def _pause(error: Exception, tried: int, lease: Held, message: Handled) -> float:
    """Two transactions met, and this one gave way: it is run again, which costs no attempt.

    Returns the seconds until then: none at first, later a random time, so that those that keep meeting part.
    """
    if tried == _TRIES - 1 or lease.is_lost:
        raise error
    log.debug("message %s of %s is run again: %s", message.id, message.queue, str(error).partition("\n")[0])
    return (
        0.0 if tried < _AT_ONCE else random.random() * min(_LONGEST_PAUSE, 0.005 * 2.0 ** (tried - _AT_ONCE))
    )


def _contents(message: Handled) -> list[tuple[Message, Any, Any]]:
    """What messages hold, as it was leased."""
    messages = message.messages if isinstance(message, Batch) else [message]
    return [(each, each._payload, each._headers) for each in messages]


def _put_back(contents: list[tuple[Message, Any, Any]]) -> None:
    """Another run must not find a payload that was brought up to date, read, or changed by the handler."""
    for message, payload, headers in contents:
        message._payload, message._headers = payload, headers


def _require_held(lease: Held) -> None:
    if lease.is_lost:
        raise AckRefused(f"lease {lease.lease_id} was lost while its message waited for a connection")


def _answers(lease: Held, message: Handled, result: Any, took: float) -> list[Group]:
    if isinstance(lease, Batch):
        return lease.answers(result, took)
    return [ack_of_one(lease, message.id, took, encode(result))]


def _committed(lease: Held, result: Any, rows: list[Rows]) -> Committed:
    if isinstance(lease, Batch):
        return Committed(result, [Fate(*row) for told in rows for row in told])
    return COMMITTED


def _require_fresh(answered: Rows, lease: Held, group: Group) -> None:
    if answered[0][0] == len(group.answers):
        return
    if isinstance(lease, Batch):
        # A failure, or those that were not answered would come again for ever.
        raise RuntimeError("a message of the batch was answered before its handler ended")
    raise AckRefused("the message was answered before")


@contextmanager
def _refusal(handler: Handler) -> Iterator[None]:
    """A LeaseLost in here is about the message being handled, not about one the handler itself dealt with."""
    try:
        yield
    except LeaseLost as error:
        raise AckRefused(error.message) from error
    except Exception as error:
        if (_sqlstate(handler, error) or "").startswith(_NO_ROOM):
            raise NoRoom(first_line(error)) from error
        if isinstance(error, psycopg.Error) and isinstance(lost := translate(error), LeaseLost):
            raise AckRefused(lost.message) from error
        raise
