"""Opening a connection of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection, sql

from trunq.connection._async.watched import AsyncWatched
from trunq.connection.session import PROBE, adapt


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


async def fit(
    connection: AsyncConnection[Any], settings: Mapping[str, str] | None = None
) -> list[sql.Composed]:
    """Adapt a new connection to what it is like; returns what was executed for it."""
    probed = await (await connection.execute(PROBE)).fetchone() or (0, "")
    statements = adapt(connection, probed, settings)
    for statement in statements:
        await connection.execute(statement)
    return statements
