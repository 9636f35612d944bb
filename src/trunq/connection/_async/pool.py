"""Pools of connections: a client's own, and a worker's for handlers in a transaction."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Final

from psycopg import AsyncConnection, IsolationLevel
from psycopg_pool import AsyncConnectionPool

from trunq.connection._async.opening import fit
from trunq.connection._async.watched import AsyncWatched
from trunq.connection.pool import AsyncOwnPool

AsyncPool = AsyncConnectionPool[AsyncConnection[Any]]

_TRIES: Final = 2.0
"""Seconds until a pool begins its tries anew. It doubles the pause after each try: left to itself, it would
stay away nearly as long again as the server did.
"""


class AsyncTrustedPool(AsyncOwnPool):
    """A pool that hands out no connection that is likely to be silent: after one was, only new ones."""

    async def getconn(self, timeout: float | None = None) -> AsyncConnection[Any]:
        """A connection, to be given back by `putconn`."""
        connection = await super().getconn(timeout)
        while isinstance(connection, AsyncWatched) and connection.is_suspect:
            try:
                await connection.retire()
            finally:
                await self.putconn(connection)
            connection = await super().getconn(timeout)
        return connection


async def open_pool(
    conninfo: str,
    name: str,
    max_size: int,
    patience: float,
    kind: type[AsyncConnection[Any]] = AsyncWatched,
    prepare: Callable[[Any], Any] | None = None,
) -> AsyncPool:
    """A pool of connections in autocommit and READ COMMITTED, back within seconds of its server.

    They are of a `kind`, and `prepare` makes each fit, where `configure` is not enough.
    """
    pool = AsyncTrustedPool(
        conninfo,
        connection_class=kind,
        kwargs={"autocommit": True},
        min_size=1,
        max_size=max_size,
        timeout=patience,
        configure=prepare or configure,
        check=_check_alive,
        reconnect_timeout=_TRIES,
        reconnect_failed=_try_again,
        name=name,
        open=False,
    )
    await pool.open()
    return pool


async def configure(connection: AsyncConnection[Any]) -> None:
    """Make a new connection fit for every call."""
    await fit(connection)
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


async def _check_alive(connection: AsyncConnection[Any]) -> None:
    """Replace a connection the server has closed, without asking each of the others before each use."""
    # On an idle connection there is nothing to read but the server's farewell.
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if idle.poll(0):
        await AsyncConnectionPool.check_connection(connection)


async def _try_again(pool: AsyncPool) -> None:
    """Keep one connection of a pool trying: those who wait for one would not make it begin again."""
    if pool.get_stats()["pool_size"] == 0:
        await pool.resize(0, pool.max_size)
        await pool.resize(1, pool.max_size)
