"""Opening a connection of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection, IsolationLevel, sql

from trunq.connection._async.watched import AsyncWatched
from trunq.connection.probe import PROBE, adapt
from trunq.connection.silence import lend


async def open_connection(
    conninfo: str, settings: Mapping[str, str] | None = None, **parameters: Any
) -> AsyncWatched:
    """One that notices silence, in autocommit, fit for every call; `parameters` are libpq's."""
    connection = await AsyncWatched.connect(conninfo, autocommit=True, **parameters)
    try:
        await fit(connection, settings)
    except BaseException:
        await connection.close()
        raise
    return connection


async def open_lent(
    conninfo: str, settings: Mapping[str, str] | None = None, **parameters: Any
) -> AsyncWatched:
    """One for statements of others, which may take long: behind a pooler, where nobody can be asked about
    them, they are waited for. Its transactions are READ COMMITTED there, too.
    """
    connection = await open_connection(conninfo, settings, **parameters)
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    lend(connection)
    return connection


async def fit(
    connection: AsyncConnection[Any], settings: Mapping[str, str] | None = None
) -> list[sql.Composed]:
    """Adapt a new connection to what it is like; returns what was executed for it."""
    probed = await (await connection.execute(PROBE)).fetchone() or (0, "")
    statements = adapt(connection, probed, settings)
    for statement in statements:
        await connection.execute(statement)
    return statements
