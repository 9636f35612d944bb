"""How a client reaches its database: by a pool of its own, or one of yours."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg_pool import AsyncConnectionPool

from trunq import install
from trunq.connection.address import address, complete
from trunq.connection.session import PROBE, adapt
from trunq.errors import translated

AsyncPool = AsyncConnectionPool[AsyncConnection[Any]]


class AsyncConnections:
    """The connections of a client: opened at the first call, checked once."""

    def __init__(
        self, database: str | AsyncPool | None = None, *, max_connections: int = 10, timeout: float = 10.0
    ) -> None:
        self._conninfo: str | None = None
        self._pool: AsyncPool | None = None
        if database is None or isinstance(database, str):
            self._conninfo = complete(address(database), "trunq")
        else:
            self._pool = database
        self._max_connections = max_connections
        self._timeout = timeout
        self._is_ready = False
        self._first_use = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client's own connections; a pool of yours stays open. Another call opens them again."""
        pool, self._is_ready = self._pool, False
        if self._conninfo is not None and pool is not None:
            self._pool = None
            await pool.close()

    async def connect(self, **parameters: Any) -> AsyncConnection[Any]:
        """Open a connection outside the pool, in autocommit and READ COMMITTED, for you to keep and close.

        `parameters` are libpq's and stand before those of the client's own connection string.
        """
        if self._conninfo is None:
            raise TypeError(
                "a client that was given a pool cannot connect by itself: give it a connection string"
            )
        connection = await AsyncConnection.connect(self._conninfo, autocommit=True, **parameters)
        try:
            await _configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection in a transaction: pass it as `connection=`, and use it for statements of your own.

        The transaction is READ COMMITTED; it commits at the end of the block, or rolls back when that raises.
        """
        with translated:
            async with self._borrow() as connection, connection.transaction():
                yield connection

    def _borrow(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        return _Own(self) if self._conninfo is not None else self._borrow_from_yours()

    async def _ready_pool(self) -> AsyncPool:
        if not self._is_ready:
            await self._make_ready()
        assert self._pool is not None
        return self._pool

    @asynccontextmanager
    async def _borrow_from_yours(self) -> AsyncIterator[AsyncConnection[Any]]:
        pool = await self._ready_pool()
        async with pool.connection() as connection:
            # Nothing is known about connections of others but that a transaction can be begun on them.
            level = connection.isolation_level
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                if not connection.closed:
                    await connection.set_isolation_level(level)

    async def _make_ready(self) -> None:
        """Look once whether the database can be reached and fits, and open the pool."""
        async with self._first_use:
            if self._is_ready:
                return
            if self._conninfo is None:
                assert self._pool is not None
                async with self._pool.connection() as connection:
                    await check_schema(connection)
            else:
                # By a connection of its own: its error says why, a pool's says only that it took too long.
                first = await self.connect()
                try:
                    await check_schema(first)
                finally:
                    await first.close()
                self._pool = await self._open_pool(self._conninfo)
            self._is_ready = True

    async def _open_pool(self, conninfo: str) -> AsyncPool:
        pool = AsyncPool(
            conninfo,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=self._max_connections,
            timeout=self._timeout,
            configure=_configure,
            check=_check_alive,
            name="trunq",
            open=False,
        )
        await pool.open()
        return pool


class _Own:
    """A connection out of the client's own pool; in autocommit, so that there is nothing to end.

    Less work than the pool's own `connection()`, which is a quarter of a small publish.
    """

    __slots__ = ("_connection", "_connections", "_pool")

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections

    async def __aenter__(self) -> AsyncConnection[Any]:
        self._pool = await self._connections._ready_pool()
        self._connection = await self._pool.getconn()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._pool.putconn(self._connection)


async def _configure(connection: AsyncConnection[Any]) -> None:
    probed = await (await connection.execute(PROBE)).fetchone() or (0, "")
    for statement in adapt(connection, probed):
        await connection.execute(statement)
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


async def _check_alive(connection: AsyncConnection[Any]) -> None:
    """Replace a connection the server has closed, without asking each of the others before each use."""
    # On an idle connection there is nothing to read but the server's farewell.
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if idle.poll(0):
        await AsyncConnectionPool.check_connection(connection)


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
    else:
        install.compare(row and row[0])
