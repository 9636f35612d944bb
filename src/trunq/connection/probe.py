"""What is done with a new connection: READ COMMITTED on it, and nothing that sticks to a pooler's server.

The default of the database or the role may be another isolation level, in which leases are refused, or a way
to write times, intervals and arrays that psycopg or Postgres then fails to read, or to read the backslashes
in our functions. Behind a connection pooler in transaction mode neither settings nor prepared statements are
used: they would stay with a server connection that others use next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psycopg import AsyncConnection, Connection, sql

from trunq.connection.silence import Watching

_WANTED: Final = {
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
}
"""How these settings must begin: the order of day and month in what is read stays as it is."""

PROBE: Final = "select pg_backend_pid(), " + ", ".join(f"current_setting('{name}')" for name in _WANTED)
"""What is asked first on each connection."""


_LARGEST_PID: Final = 1 << 22
"""That of Linux; of other systems it is smaller."""


def is_pooled(connection: AsyncConnection[Any] | Connection[Any], probed: tuple[Any, ...]) -> bool:
    """Whether a pooler is in between: it answers the handshake with a process id of its own making."""
    return bool(probed[0] != connection.pgconn.backend_pid)


def looks_pooled(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether the process id of a connection of yours, which nobody probed, is that of a pooler.

    PgBouncer makes up 32 random bits; a real id is far smaller.
    """
    return not 0 < connection.pgconn.backend_pid <= _LARGEST_PID


def adapt(
    connection: AsyncConnection[Any] | Connection[Any],
    probed: tuple[Any, ...],
    settings: Mapping[str, str] | None = None,
) -> list[sql.Composed]:
    """Adapt a connection to what the probe found; returns the statements still to be executed on it."""
    if is_pooled(connection, probed):
        connection.prepare_threshold = None
        if isinstance(connection, Watching):
            connection.is_pooled = True
        return []
    wanted = dict(settings or {})
    for (name, value), found in zip(_WANTED.items(), probed[1:], strict=False):
        if not found.startswith(value):
            wanted[name] = value
    return [
        sql.SQL("set {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in wanted.items()
    ]
