"""How a client reaches its database: by a pool of its own, one of yours, or the connection in your hand."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import lru_cache
from itertools import chain
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncPipeline, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from trunq import install
from trunq.argument import Array, adapt_arrays, adapt_raw, check_name, plain, unreadable
from trunq.errors import InvalidArgument, QueueNotFound, SchemaMissing, Translated, translated

Record = TypeVar("Record", bound=NamedTuple)

AsyncPool = AsyncConnectionPool[AsyncConnection[Any]]

_PARAMETERS: Final = {"application_name": "trunq", "connect_timeout": "10", "client_encoding": "UTF8"}

_ABSENT: Final = (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction)

_GONE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction)

_OF_A_QUEUE: Final = re.compile(r"trunq_(log|data)\.")


class AsyncAccess:
    """Connections and calls; the methods of `AsyncClient` are made of these."""

    def __init__(
        self, database: str | AsyncPool | None = None, *, max_connections: int = 10, timeout: float = 10.0
    ) -> None:
        if database is None:
            from trunq import settings  # noqa: PLC0415  # slow to import, and most name their database

            database = settings.load().dsn or ""
        self._conninfo: str | None = None
        self._pool: AsyncPool | None = None
        if isinstance(database, str):
            self._conninfo = make_conninfo("", **{**_PARAMETERS, **conninfo_to_dict(database)})
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

    async def _value(
        self, connection: AsyncConnection[Any] | None, function: str, /, **arguments: Any
    ) -> Any:
        """What a function that returns one value returns."""
        rows = await self._call(connection, function, (), arguments)
        return rows[0][0]

    async def _records(
        self,
        connection: AsyncConnection[Any] | None,
        record: type[Record],
        function: str,
        /,
        **arguments: Any,
    ) -> list[Record]:
        """The rows of a function that returns a table, as named tuples."""
        rows = await self._call(connection, function, record._fields, arguments)
        return [record._make(row) for row in rows]

    async def _call(
        self,
        connection: AsyncConnection[Any] | None,
        function: str,
        columns: tuple[str, ...],
        arguments: dict[str, Any],
        *,
        raw: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Call a function with the arguments that are not None: the rest is the database's to decide."""
        given = _given(arguments)
        statement = _statement(function, tuple(given), columns)
        values = list(given.values())
        with _Explained(function):
            if connection is not None:
                return await _execute(connection, statement, values, raw)
            async with self._borrow() as own:
                return await _execute(own, statement, values, raw)

    async def _calls(
        self,
        connection: AsyncConnection[Any] | None,
        function: str,
        arguments: dict[str, Any],
        parts: Sequence[Callable[[], dict[str, Any]]],
    ) -> list[Any]:
        """The values of one function called for each part, all in one transaction.

        The server works on each call while the arguments of the next are made.
        """
        first = {**arguments, **parts[0]()}
        if len(parts) == 1:
            return [row[0] for row in await self._call(connection, function, (), first)]
        calls = chain([first], ({**arguments, **part()} for part in parts[1:]))
        with _Explained(function):
            if connection is not None:
                return await _execute_all(connection, function, calls)
            async with self._borrow() as own:
                return await _execute_all(own, function, calls)

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
                    await _check(connection)
            else:
                # By a connection of its own: its error says why, a pool's says only that it took too long.
                first = await self.connect()
                try:
                    await _check(first)
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

    __slots__ = ("_access", "_connection", "_pool")

    def __init__(self, access: AsyncAccess) -> None:
        self._access = access

    async def __aenter__(self) -> AsyncConnection[Any]:
        self._pool = await self._access._ready_pool()
        self._connection = await self._pool.getconn()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._pool.putconn(self._connection)


async def _execute(
    connection: AsyncConnection[Any], statement: bytes, values: Sequence[Any], raw: bool
) -> list[tuple[Any, ...]]:
    # A cursor of this class whatever the connection makes by default: it may be somebody else's.
    cursor = AsyncCursor(connection, row_factory=tuple_row)
    has_arrays = any(isinstance(value, Array) for value in values)
    if raw:
        adapt_raw(cursor)
    elif has_arrays:
        check_encoding(connection)
        adapt_arrays(cursor)
    await cursor.execute(statement, values, binary=raw or has_arrays)
    return await cursor.fetchall()


async def _execute_all(
    connection: AsyncConnection[Any], function: str, arguments: Iterable[dict[str, Any]]
) -> list[Any]:
    check_encoding(connection)
    begins = is_idle(connection)
    if not begins:
        # In the caller's transaction: what cannot be sent must be found before anything is.
        arguments = list(arguments)
    cursors = []
    async with (
        connection.pipeline() if AsyncPipeline.is_supported() else nullcontext(),
        connection.transaction() if begins else nullcontext(),
    ):
        for named in arguments:
            given = _given(named)
            cursor = AsyncCursor(connection, row_factory=tuple_row)
            adapt_arrays(cursor)
            await cursor.execute(_statement(function, tuple(given), ()), list(given.values()), binary=True)
            cursors.append(cursor)
    return [row[0] for cursor in cursors for row in await cursor.fetchall()]


def is_idle(connection: AsyncConnection[Any]) -> bool:
    """Whether a transaction is ours to begin: the connection commits by itself, and none is open."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def check_encoding(connection: AsyncConnection[Any]) -> None:
    """Refuse a connection on which what is sent in UTF-8 would be taken for something else."""
    if connection.info.encoding != "utf-8":
        encoding = connection.info.parameter_status("client_encoding")
        raise InvalidArgument(
            f"the client_encoding of this connection is {encoding}; lists and COPY are sent in UTF8",
            "set client_encoding to UTF8 on it",
        )


class _Explained(Translated):
    """`translated`, and what else the database says: arguments it cannot read, functions it lacks."""

    __slots__ = ("_function",)

    def __init__(self, function: str) -> None:
        self._function = function

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, psycopg.DataError):
            raise unreadable(error) from error
        if isinstance(error, _GONE) and _OF_A_QUEUE.search(error.diag.message_primary or ""):
            raise QueueNotFound(
                f"the queue was dropped meanwhile: {error.diag.message_primary}",
                "`trunq queue list` shows those there are",
            ) from error
        if isinstance(error, _ABSENT):
            raise SchemaMissing(
                f"trunq.{self._function} is not in this database: {error.diag.message_primary}",
                "`trunq db install` puts trunq there, or brings it up to date",
            ) from error


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    for kind in ("queue", "subscription"):
        if (name := arguments.get(kind)) is not None:
            check_name(kind, name)
    return {name: plain(name, value) for name, value in arguments.items() if value is not None}


@lru_cache(maxsize=512)
def _statement(function: str, arguments: tuple[str, ...], columns: tuple[str, ...]) -> bytes:
    """The call of a function. Columns are named: a newer function may have more."""
    given = ", ".join(f"p_{name.rstrip('_')} => %s" for name in arguments)
    wanted = ", ".join(columns)
    called = f"trunq.{function}({given})"
    return (f"select {wanted} from {called}" if wanted else f"select {called}").encode()


async def _configure(connection: AsyncConnection[Any]) -> None:
    # The database's default may be another one, in which leases are refused.
    await connection.execute("set default_transaction_isolation = 'read committed'")
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


async def _check_alive(connection: AsyncConnection[Any]) -> None:
    """Replace a connection the server has closed, without asking each of the others before each use."""
    # On an idle connection there is nothing to read but the server's farewell.
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if idle.poll(0):
        await AsyncConnectionPool.check_connection(connection)


async def _check(connection: AsyncConnection[Any]) -> None:
    """Refuse a database whose schema does not fit."""
    try:
        async with connection.transaction():
            row = await (await connection.execute("select trunq.version()")).fetchone()
    except _ABSENT:
        install.compare(None)
    except psycopg.errors.InsufficientPrivilege:
        # A publisher may do no more than publish.
        return
    else:
        install.compare(row and row[0])
