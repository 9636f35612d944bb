"""SQLAlchemy's sessions and connections, sync and async, of any driver of Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Final, cast, get_origin

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from trunq.connection.bridge import AsyncBridge, Bridge, Rows
from trunq.connection.bridge.refusal import refusal, sqlstate
from trunq.connection.bridge.statement import Statement, parameters, read, written
from trunq.connection.bridge.transaction import AsyncTransaction, Library, Transaction
from trunq.errors import InvalidArgument, TransactionEnded
from trunq.wire.call import Call


def bridge(given: object) -> SyncConnection | None:
    """The bridge over a Session or a Connection; None over what is neither."""
    if isinstance(given, Session | scoped_session):
        given = given.connection()
    if not isinstance(given, Connection):
        return None
    _require_postgres(given)
    return SyncConnection(given)


async def async_bridge(given: object) -> EventConnection | None:
    """The same for an AsyncSession or an AsyncConnection."""
    if isinstance(given, AsyncSession | async_scoped_session):
        given = await given.connection()
    if not isinstance(given, AsyncConnection):
        return None
    _require_postgres(given)
    return EventConnection(given)


class SyncConnection(Bridge):
    """A Connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def commits(self) -> bool:
        return _commits(self._connection)

    def execute(self, call: Call) -> Rows:
        statement, clause, given = _prepared(call)
        with _translated():
            rows = self._connection.execute(clause, given).fetchall()
        return read(statement, rows)


class EventConnection(AsyncBridge):
    """An AsyncConnection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @property
    def commits(self) -> bool:
        assert self._connection.sync_connection is not None
        return _commits(self._connection.sync_connection)

    async def execute(self, call: Call) -> Rows:
        statement, clause, given = _prepared(call)
        with _translated():
            rows = (await self._connection.execute(clause, given)).fetchall()
        return read(statement, rows)


class Sessions(Library):
    """Sessions over an engine, or those that a sessionmaker makes."""

    given = "a Session of SQLAlchemy"

    def __init__(self, engine: object) -> None:
        makers: dict[type[Any], Callable[[], Any]] = {
            Engine: lambda: Session(cast(Engine, engine)),
            AsyncEngine: lambda: AsyncSession(cast(AsyncEngine, engine)),
            sessionmaker: cast(Any, engine),
            async_sessionmaker: cast(Any, engine),
        }
        found = next((kind for kind in makers if isinstance(engine, kind)), None)
        if found is None:
            raise TypeError(f"engine is an Engine, an AsyncEngine or a sessionmaker, not {_class(engine)}")
        self._make = makers[found]
        self._is_async = found in {AsyncEngine, async_sessionmaker}

    def takes(self, name: str, hint: Any) -> bool:
        if hint in (None, Any):
            return name == "session"
        kind = get_origin(hint) or hint
        return isinstance(kind, type) and issubclass(kind, Session | AsyncSession)

    def check_colour(self, is_async: bool) -> None:
        if is_async != self._is_async:
            wanted = "create_async_engine" if is_async else "create_engine"
            raise TypeError(f"the session of such a handler needs another engine of the worker: {wanted}()")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._make() as session, session.begin() as begun:
            connection = session.connection(execution_options=_LEVEL)

            def settle() -> Callable[[Call], Rows]:
                _require_open(session.get_transaction() is begun and begun.is_active)
                session.flush()
                return SyncConnection(connection).execute

            yield Transaction(session, settle)

    @asynccontextmanager
    async def async_transaction(self) -> AsyncIterator[AsyncTransaction]:
        async with self._make() as session, session.begin() as begun:
            connection = await session.connection(execution_options=_LEVEL)

            async def settle() -> Callable[[Call], Awaitable[Rows]]:
                _require_open(session.get_transaction() is begun and begun.is_active)
                await session.flush()
                return EventConnection(connection).execute

            yield AsyncTransaction(session, settle)

    def is_away(self, error: Exception) -> bool:
        if isinstance(error, OperationalError | InterfaceError | PoolTimeout | OSError):
            return True
        return (getattr(error, "sqlstate", None) or "")[:3] in {"080", "57P"}

    def sqlstate(self, error: Exception) -> str | None:
        return sqlstate(error.orig) if isinstance(error, DBAPIError) and error.orig is not None else None


def _class(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


_LEVEL: Final = {"isolation_level": "READ COMMITTED"}


def _require_open(is_open: bool) -> None:
    if not is_open:
        raise TransactionEnded(
            "the transaction ended before its handler did: the worker commits it, or rolls it back"
        )


def _commits(connection: Connection) -> bool:
    # Every driver that SQLAlchemy knows for Postgres has this attribute, if need be by its adapter.
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def _prepared(call: Call) -> tuple[Statement, TextClause, dict[str, str]]:
    statement = written(call, _named)
    return statement, _clause(statement.sql), dict(zip(call.arguments, parameters(call), strict=True))


def _named(name: str) -> str:
    return f":{name}"


@lru_cache(maxsize=1024)
def _clause(sql: str) -> TextClause:
    return text(sql)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if (ours := refusal(error.orig)) is not None:
            raise ours from error
        raise


def _require_postgres(connection: Connection | AsyncConnection) -> None:
    if (name := connection.dialect.name) != "postgresql":
        raise InvalidArgument(f"this connection of SQLAlchemy is one to {name}", "trunq lives in Postgres")
