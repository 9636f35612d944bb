"""Handlers in a transaction: what they write and the ack commit together, or not at all.

The ack is the last statement: it takes the lease's lock, which is held until the commit, and refuses when the
lease has ended (then all is rolled back). Only an ack commits. A handler that raises, or answers Retry or
Reject, is rolled back, and its answer goes the ordinary way, outside: the book-keeping of a failure must
survive the rollback.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from trunq.connection.address import complete
from trunq.errors import LeaseLost, translate
from trunq.message import Message, Reject, Retry
from trunq.worker.answer import ack_in_sync_transaction, ack_in_transaction
from trunq.worker.lease import Lease
from trunq.worker.registry import Handler
from trunq.worker.result import encode

_PATIENCE = 10.0
"""Seconds to wait for a connection before asking whether the lease is still ours."""


class AckRefused(Exception):
    """The ack in a handler's transaction was refused: the message is no longer ours; all is rolled back."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The handler's transaction committed, the ack with it."""


COMMITTED = Committed()


class Transactions:
    """Connections for handlers that asked for a transaction, opened when first needed, at most one a slot."""

    def __init__(self, dsn: str, application_name: str, concurrency: int) -> None:
        self._conninfo = complete(dsn, application_name)
        self._concurrency = concurrency
        self.is_pooled = False
        """Whether a connection pooler is in between, where prepared statements would be somebody else's."""
        self._pool: AsyncConnectionPool[Any] | None = None
        self._sync_pool: ConnectionPool[Any] | None = None
        self._opening = asyncio.Lock()
        self._sync_opening = threading.Lock()

    async def run(self, handler: Handler, lease: Lease, message: Message) -> Any:
        """Call an async handler in a transaction. Returns COMMITTED, or its answer after a rollback."""
        started = monotonic()
        async with self._connection(lease) as connection, connection.transaction() as transaction:
            result = await handler.function(message, **{str(handler.connection): connection})
            if isinstance(result, Retry | Reject):
                raise psycopg.Rollback(transaction)
            took, encoded = monotonic() - started, encode(result)
            with _refusal():
                _require_fresh(await ack_in_transaction(connection, lease, message.id, took, encoded))
            return COMMITTED
        return result

    def run_sync(self, handler: Handler, lease: Lease, message: Message, arguments: dict[str, Any]) -> Any:
        """The same for a sync handler, in the thread it runs in."""
        started = monotonic()
        with self._sync_connection(lease) as connection, connection.transaction() as transaction:
            result = handler.function(message, **{str(handler.connection): connection}, **arguments)
            if isinstance(result, Retry | Reject):
                raise psycopg.Rollback(transaction)
            took, encoded = monotonic() - started, encode(result)
            with _refusal():
                _require_fresh(ack_in_sync_transaction(connection, lease, message.id, took, encoded))
            return COMMITTED
        return result

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        if self._sync_pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_pool.close, 1)

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

    async def _open(self) -> AsyncConnectionPool[Any]:
        async with self._opening:
            if self._pool is None:
                pool = AsyncConnectionPool(
                    self._conninfo,
                    check=AsyncConnectionPool.check_connection,
                    **self._settings(),
                )
                await pool.open()
                self._pool = pool
            return self._pool

    def _open_sync(self) -> ConnectionPool[Any]:
        with self._sync_opening:
            if self._sync_pool is None:
                pool = ConnectionPool(
                    self._conninfo,
                    check=ConnectionPool.check_connection,
                    **self._settings(),
                )
                pool.open()
                self._sync_pool = pool
            return self._sync_pool

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"min_size": 0, "max_size": self._concurrency, "open": False}
        if self.is_pooled:
            settings["kwargs"] = {"prepare_threshold": None}
        return settings


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
