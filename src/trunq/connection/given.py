"""What a caller gives as `connection=`: a psycopg connection of the right colour, opened in this process."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq.connection.fork import require_own
from trunq.errors import InvalidArgument

Connection = TypeVar("Connection", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


def require_connection(given: object, wanted: type[Connection]) -> None:
    """Refuse what is no connection of this class, and say how to get at one."""
    if not isinstance(given, wanted):
        kind = type(given)
        raise InvalidArgument(
            f"connection= takes a psycopg.{wanted.__name__}, not a {kind.__module__}.{kind.__qualname__}",
            _way(given),
        )
    require_own(given)


def _way(given: object) -> str:
    """How to get from what was given to what is wanted."""
    if isinstance(given, psycopg.Connection):
        return "an async connection goes with AsyncClient, this one with Client"
    if isinstance(given, psycopg.AsyncConnection):
        return "a sync connection goes with Client, this one with AsyncClient"
    if isinstance(given, psycopg.Cursor | psycopg.AsyncCursor):
        return "give cursor.connection"
    if isinstance(given, ConnectionPool | AsyncConnectionPool):
        return "take one out of the pool: with pool.connection() as connection; or make a client of the pool"
    if isinstance(given, str):
        return "give an address to the client: Client(address)"
    library = type(given).__module__.partition(".")[0]
    if library in _OTHER_DRIVERS:
        return f"{library} is another driver: publish by SQL, select trunq_queue.orders_publish(...)"
    if (ways := _BELOW.get(library)) is not None:
        names = {each.__name__ for each in type(given).__mro__}
        return next((way for name, way in ways.items() if name in names), ways["*"])
    return "docs/frameworks.md shows how to get at the one below SQLAlchemy or Django"


_OTHER_DRIVERS: Final = {"psycopg2", "asyncpg", "pg8000", "aiopg"}

_OF_SESSION: Final = "give session.connection().connection.driver_connection"
_BELOW: Final[dict[str, dict[str, str]]] = {
    "sqlalchemy": {
        "AsyncSession": "give raw.driver_connection, with"
        " raw = await (await session.connection()).get_raw_connection()",
        "async_scoped_session": "give raw.driver_connection, with"
        " raw = await (await session.connection()).get_raw_connection()",
        "AsyncConnection": "give raw.driver_connection, with raw = await connection.get_raw_connection()",
        "AsyncEngine": "take a connection, and give raw.driver_connection,"
        " with raw = await connection.get_raw_connection()",
        "Connection": "give connection.connection.driver_connection",
        "Engine": "take a connection, and give connection.connection.driver_connection",
        "PoolProxiedConnection": "give its driver_connection",
        "*": _OF_SESSION,
    },
    "django": {
        "*": "give connection.connection of django.db, after connection.ensure_connection()",
    },
}
"""The psycopg connection below an object of a library, by the names of its classes."""
