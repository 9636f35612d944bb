"""What a caller gives as `connection=`: a psycopg connection of the right colour, opened in this process.

Or one of another library that `trunq.connection.bridge` knows; COPY and pipelines are psycopg's alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq.connection.fork import require_own
from trunq.errors import InvalidArgument

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio


class DjangoConnection(Protocol):
    """A connection of django.db."""

    alias: str
    vendor: str

    def cursor(self) -> Any:
        """Django's cursor."""


if TYPE_CHECKING:
    Given = (
        psycopg.Connection[Any]
        | orm.Session
        | orm.scoped_session[Any]
        | sqlalchemy.Connection
        | DjangoConnection
        | str
    )
    AsyncGiven = (
        psycopg.AsyncConnection[Any]
        | asyncio.AsyncSession
        | asyncio.async_scoped_session[Any]
        | asyncio.AsyncConnection
    )
else:
    Given = AsyncGiven = Any

Connection = TypeVar("Connection", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


def require_connection(given: object, wanted: type[Connection]) -> Connection:
    """Refuse what is no psycopg connection of this class, and say how to get at one."""
    if not isinstance(given, wanted):
        kind = type(given)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        raise InvalidArgument(
            f"connection= takes a psycopg.{wanted.__name__}, not a {name}",
            _way(given, wanted),
        )
    require_own(given)
    return given


def _way(given: object, wanted: type[Any]) -> str:
    """How to get from what was given to what is wanted."""
    wants_async = wanted is psycopg.AsyncConnection
    if isinstance(given, psycopg.Connection | psycopg.AsyncConnection):
        return _OF_CLIENT if wants_async else _OF_ASYNC_CLIENT
    if isinstance(given, psycopg.Cursor | psycopg.AsyncCursor):
        return "give cursor.connection"
    if isinstance(given, ConnectionPool | AsyncConnectionPool):
        return "take one out of the pool: with pool.connection() as connection; or make a client of the pool"
    if isinstance(given, str):
        return _ASYNC_ALIAS if wants_async else _ADDRESS
    library = type(given).__module__.partition(".")[0]
    if library in _OTHER_DRIVERS:
        return f"{library} is another driver: give a connection of SQLAlchemy over it, or publish by SQL"
    if library == "django":
        return _OF_CLIENT if wants_async else "COPY needs the one below: connection.connection of django.db"
    names = {each.__name__ for each in type(given).__mro__} if library == "sqlalchemy" else set()
    if names & _ASYNC:
        return f"{_BELOW} {_ASYNC_BELOW}" if wants_async else _OF_ASYNC_CLIENT
    if names & _SYNC:
        return _OF_CLIENT if wants_async else f"{_BELOW} session.connection().connection.driver_connection"
    if library == "sqlalchemy":
        return "give a Session or a Connection: with engine.connect() as connection"
    return "docs/client/frameworks.md shows what else it takes: connections of SQLAlchemy and Django"


_OTHER_DRIVERS: Final = {"psycopg2", "asyncpg", "pg8000", "aiopg"}

_ADDRESS: Final = "give an address to the client: Client(address); or the alias of a database of Django's"
_ASYNC_ALIAS: Final = (
    "give an address to the client: AsyncClient(address). Django's connections are sync: an alias of one goes"
    " with Client, in a function that you call by sync_to_async"
)
_OF_CLIENT: Final = "a sync connection goes with Client, an async one with AsyncClient: this one with Client"
_OF_ASYNC_CLIENT: Final = (
    "an async connection goes with AsyncClient, a sync one with Client: this one with AsyncClient"
)
_SYNC: Final = {"Session", "scoped_session", "Connection"}
_ASYNC: Final = {"AsyncSession", "async_scoped_session", "AsyncConnection"}
_BELOW: Final = "COPY needs the psycopg connection below:"
_ASYNC_BELOW: Final = (
    "raw.driver_connection, with raw = await (await session.connection()).get_raw_connection()"
)
