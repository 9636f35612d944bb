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
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

import psycopg
from psycopg_pool import PoolTimeout

from trunq._async.connection import require_open
from trunq._async.pool import AsyncPool, open_pool
from trunq._sync.connection import require_open as require_open_sync
from trunq._sync.pool import Pool
from trunq._sync.pool import open_pool as open_sync_pool
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.errors import LeaseLost, translate
from trunq.message import Message, Reject, Retry
from trunq.worker.answer import ack_in_sync_transaction, ack_in_transaction
from trunq.worker.lease import Lease
from trunq.worker.registry import Handler
from trunq.worker.result import encode

log = logging.getLogger("trunq.worker")

_PATIENCE: Final = 10.0
"""Seconds to wait for a connection before asking whether the lease is still ours."""

_MET: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_TRIES: Final = 20
"""So often is a handler run for one attempt of its message, if each time its transaction met another."""
_AT_ONCE: Final = 3
_LONGEST_PAUSE: Final = 0.5


class AckRefused(Exception):
    """The ack in a handler's transaction was refused: the message is no longer ours; all is rolled back."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The handler's transaction committed, the ack with it."""


COMMITTED = Committed()


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

    async def run(self, handler: Handler, lease: Lease, message: Message) -> Any:
        """Call an async handler in a transaction. Returns COMMITTED, or its answer after a rollback."""
        for tried in range(_TRIES):
            try:
                return await self._run_once(handler, lease, message)
            except _MET as error:
                await asyncio.sleep(_pause(error, tried, lease, message))
        raise AssertionError("the last try returns or raises")

    def run_sync(self, handler: Handler, lease: Lease, message: Message, arguments: dict[str, Any]) -> Any:
        """The same for a sync handler, in the thread it runs in."""
        for tried in range(_TRIES):
            try:
                return self._run_once_sync(handler, lease, message, arguments)
            except _MET as error:
                sleep(_pause(error, tried, lease, message))
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        if self._sync_pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_pool.close, 1)

    async def _run_once(self, handler: Handler, lease: Lease, message: Message) -> Any:
        started = monotonic()
        async with self._connection(lease) as connection, connection.transaction() as transaction:
            result = await handler.function(message, **{str(handler.connection): connection})
            if isinstance(result, Retry | Reject):
                raise psycopg.Rollback(transaction)
            took, encoded = monotonic() - started, encode(result)
            require_open(connection)
            with _refusal():
                _require_fresh(await ack_in_transaction(connection, lease, message.id, took, encoded))
            return COMMITTED
        return result

    def _run_once_sync(
        self, handler: Handler, lease: Lease, message: Message, arguments: dict[str, Any]
    ) -> Any:
        started = monotonic()
        with self._sync_connection(lease) as connection, connection.transaction() as transaction:
            result = handler.function(message, **{str(handler.connection): connection}, **arguments)
            if isinstance(result, Retry | Reject):
                raise psycopg.Rollback(transaction)
            took, encoded = monotonic() - started, encode(result)
            require_open_sync(connection)
            with _refusal():
                _require_fresh(ack_in_sync_transaction(connection, lease, message.id, took, encoded))
            return COMMITTED
        return result

    @asynccontextmanager
    async def _connection(self, lease: Lease) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        pool = await self._open()
        connection = None
        while connection is None:
            try:
                connection = await pool.getconn(timeout=_PATIENCE)
            except PoolTimeout:
                # The database is away. The message has not failed: it has not begun.
                _require_held(lease)
        try:
            yield connection
        finally:
            await pool.putconn(connection)

    @contextmanager
    def _sync_connection(self, lease: Lease) -> Iterator[psycopg.Connection[Any]]:
        pool = self._open_sync()
        connection = None
        while connection is None:
            try:
                connection = pool.getconn(timeout=_PATIENCE)
            except PoolTimeout:
                _require_held(lease)
        try:
            yield connection
        finally:
            pool.putconn(connection)

    async def _open(self) -> AsyncPool:
        async with self._opening:
            if self._pool is None:
                self._pool = await open_pool(self._conninfo, "trunq worker", self._max_connections, _PATIENCE)
            return self._pool

    def _open_sync(self) -> Pool:
        with self._sync_opening:
            if self._sync_pool is None:
                self._sync_pool = open_sync_pool(
                    self._conninfo, "trunq worker", self._max_connections, _PATIENCE
                )
            return self._sync_pool


def _pause(error: psycopg.Error, tried: int, lease: Lease, message: Message) -> float:
    """Two transactions met, and this one gave way: it is run again, which costs no attempt.

    Returns the seconds until then: none at first, later a random time, so that those that keep meeting part.
    """
    if tried == _TRIES - 1 or lease.is_lost:
        raise error
    log.debug("message %s of %s is run again: %s", message.id, message.queue, first_line(error))
    return (
        0.0 if tried < _AT_ONCE else random.random() * min(_LONGEST_PAUSE, 0.005 * 2.0 ** (tried - _AT_ONCE))
    )


def _require_held(lease: Lease) -> None:
    if lease.is_lost:
        raise AckRefused(f"lease {lease.lease_id} was lost while its message waited for a connection")


def _require_fresh(fresh: bool) -> None:
    if not fresh:
        raise AckRefused("the message was answered before")


@contextmanager
def _refusal() -> Iterator[None]:
    """A LeaseLost in here is about the message being handled, not about one the handler itself dealt with."""
    try:
        yield
    except psycopg.Error as error:
        if isinstance(lost := translate(error), LeaseLost):
            raise AckRefused(lost.message) from error
        raise
