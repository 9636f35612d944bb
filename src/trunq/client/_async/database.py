"""How a client reaches its database: by a pool of its own, or one of yours."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolClosed

from trunq import install
from trunq.connection._async.opening import open_lent
from trunq.connection._async.pool import AsyncPool, open_pool
from trunq.connection.address import address, complete
from trunq.connection.fork import disown, is_inherited, leave_to_parent, living, require_own
from trunq.connection.home import AsyncHome
from trunq.connection.probe import PROBE, is_pooled
from trunq.connection.silence import lent
from trunq.errors import (
    ClientClosed,
    InvalidArgument,
    SchemaOlder,
    TransactionEnded,
    translate,
    translated,
)


class AsyncConnections:
    """The connections of a client: opened at the first call, checked once."""

    def __init__(
        self, database: str | AsyncPool | None = None, *, max_connections: int = 10, timeout: float = 10.0
    ) -> None:
        self._pool: AsyncPool | None = None
        self._conninfo: str | None = None
        if database is None or isinstance(database, str):
            self._conninfo = complete(address(database), "trunq")
        elif isinstance(database, AsyncConnectionPool):
            self._pool = database
        else:
            raise InvalidArgument(
                f"database is an address or a psycopg AsyncConnectionPool, not {type(database).__name__}"
            )
        self._max_connections = max_connections
        self._timeout = timeout
        self._process = os.getpid()
        self._is_pooled = False
        """Whether a pool of yours is behind a connection pooler."""
        self._start_afresh()
        living.add(self)

    def _start_afresh(self) -> None:
        """Forget the connections of the process this one was forked from; it happens by itself."""
        if self._conninfo is not None and self._pool is not None:
            leave_to_parent(self._pool)
            self._pool = None
        self._is_ready = False
        self._is_closing = False
        self._closings = 0
        self._swapping = Lock()
        """Held while the pool is put in its place, or taken from it."""
        self._first_use = asyncio.Lock()
        self._home = AsyncHome()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getstate__(self) -> object:
        raise TypeError("a client does not travel to another process: make one there")

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is None or self._conninfo is None:
            return
        self._home.leave(pool)
        if not sys.is_finalizing():
            warnings.warn(
                "a trunq client was not closed: call close(), or use it in a with block",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    async def close(self) -> None:
        """Close the client's own connections; a pool of yours stays open. Another call opens them again.

        Calls that still wait for a connection raise ClientClosed.
        """
        if self._conninfo is None:
            self._is_ready = False
            return
        is_left = self._pool is not None and self._home.move()
        with self._swapping:
            # A call that is opening the pool meanwhile sees by this number that it is not wanted any more.
            self._closings += 1
            pool, self._pool, self._is_ready = self._pool, None, False
        if pool is None:
            return
        if is_left:
            self._home.leave(pool)
            return
        self._is_closing = True
        try:
            await pool.close()
        finally:
            self._is_closing = False

    async def connect(self, **parameters: Any) -> AsyncConnection[Any]:
        """Open a connection outside the pool, in autocommit and READ COMMITTED, for you to keep and close.

        `parameters` are libpq's and stand before those of the client's own connection string.
        """
        if self._conninfo is None:
            raise TypeError(
                "a client that was given a pool cannot connect by itself: give it a connection string"
            )
        return await open_lent(self._conninfo, **parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection in a transaction: pass it as `connection=`, and use it for statements of your own.

        The transaction is READ COMMITTED; it commits at the end of the block, or rolls back when that raises.
        """
        with translated:
            async with self._borrow() as connection, connection.transaction():
                try:
                    with lent(connection):
                        yield connection
                finally:
                    if is_inherited(connection):
                        # Forked inside the block: the transaction is the parent's to end.
                        disown(connection)
                require_open(connection)

    def _borrow(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        return _Own(self) if self._conninfo is not None else self._borrow_from_yours()

    async def _ready_pool(self) -> AsyncPool:
        if not self._is_ready or self._home.is_elsewhere():
            await self._make_ready()
        pool = self._pool
        if pool is None:
            raise ClientClosed(_CLOSED)
        return pool

    @asynccontextmanager
    async def _borrow_from_yours(self) -> AsyncIterator[AsyncConnection[Any]]:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "the pool of this client belongs to the process that this one was forked from",
                "open a pool, and a client, in each process; a client given an address does so by itself",
            )
        pool = await self._ready_pool()
        async with pool.connection() as connection:
            require_own(connection)
            # Nothing is known about connections of others but that a transaction can be begun on them.
            level, threshold = connection.isolation_level, connection.prepare_threshold
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            if self._is_pooled:
                connection.prepare_threshold = None
            try:
                async with connection.transaction():
                    yield connection
            finally:
                connection.prepare_threshold = threshold
                if not connection.closed:
                    await connection.set_isolation_level(level)

    async def _make_ready(self) -> None:
        """Look once whether the database can be reached and fits, and open the pool."""
        closings = self._closings
        if self._is_closing:
            raise ClientClosed(_CLOSED)
        if self._home.move() and self._conninfo is not None:
            self._is_ready, self._first_use = False, asyncio.Lock()
            if self._pool is not None:
                self._forget(self._pool)
        async with self._first_use:
            if self._is_ready:
                return
            if self._closings != closings:
                raise ClientClosed(_CLOSED)
            if self._conninfo is None:
                assert self._pool is not None
                async with self._pool.connection() as connection:
                    require_own(connection)
                    probed = await (await connection.execute(PROBE)).fetchone()
                    self._is_pooled = probed is not None and is_pooled(connection, probed)
                    await check_schema(connection)
                self._is_ready = True
            else:
                # By a connection of its own: its error says why, a pool's says only that it took too long.
                first = await self.connect()
                try:
                    await check_schema(first)
                finally:
                    await first.close()
                pool = await open_pool(self._conninfo, "trunq", self._max_connections, self._timeout)
                try:
                    # Else this call would have it open a second one, still connecting when the loop may end.
                    await pool.wait(self._timeout)
                    self._settle(pool, closings)
                except BaseException:
                    await pool.close()
                    raise

    def _settle(self, pool: AsyncPool, closings: int) -> None:
        """Take a new pool, unless the client was closed while it was opened."""
        with self._swapping:
            if self._closings != closings:
                raise ClientClosed(_CLOSED)
            self._pool, self._is_ready = pool, True

    def _forget(self, pool: AsyncPool) -> None:
        """Let go of a pool whose event loop is closed."""
        self._pool = None
        self._home.leave(pool)


_CLOSED: Final = "this client is being closed"


class _Own:
    """A connection out of the client's own pool; in autocommit, so that there is nothing to end.

    Less work than the pool's own `connection()`, which is a quarter of a small publish.
    """

    __slots__ = ("_connection", "_connections", "_pool")

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections

    async def __aenter__(self) -> AsyncConnection[Any]:
        self._pool = await self._connections._ready_pool()
        try:
            self._connection = await self._pool.getconn()
        except PoolClosed:
            raise ClientClosed(_CLOSED) from None
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._pool.putconn(self._connection)


def require_open(connection: AsyncConnection[Any]) -> None:
    """Refuse to end a block as if its transaction could still be committed."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise TransactionEnded(
            "a pipeline in the transaction is still open, so nothing of it can be committed",
            "leave the block `with connection.pipeline()` first",
        )
    if ended := _ENDED.get(connection.info.transaction_status):
        raise TransactionEnded(f"the transaction ended before its block did: {ended}")


_ENDED: Final = {
    TransactionStatus.ACTIVE: "a COPY or another statement in it is still open",
    TransactionStatus.IDLE: "a statement in it was commit or rollback, and what came after was not in it",
    TransactionStatus.INERROR: "a statement in it failed, so nothing of it can be committed",
    TransactionStatus.UNKNOWN: "its connection is closed",
}


async def check_schema(connection: AsyncConnection[Any]) -> None:
    """Refuse a database whose schema does not fit."""
    try:
        async with connection.transaction():
            row = await (await connection.execute("select trunq.version()")).fetchone()
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction):
        install.compare(None)
    except psycopg.errors.InsufficientPrivilege:
        # A publisher may do no more than publish.
        return
    except psycopg.Error as error:
        if error.sqlstate == SchemaOlder.sqlstate and (ours := translate(error)) is not None:
            raise ours from None
        raise
    else:
        install.compare(row and row[0])
