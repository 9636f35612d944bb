"""Calling the functions of the database: the methods of the client are made of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from psycopg import AsyncConnection

from trunq._async.connection import AsyncConnections
from trunq._async.execute import execute, execute_all, value
from trunq.call import Call, explained
from trunq.connection.given import require_connection

Record = TypeVar("Record", bound=NamedTuple)


class AsyncAccess(AsyncConnections):
    """Calls, on the caller's connection or on one of the client's."""

    async def _value(
        self, connection: AsyncConnection[Any] | None, function: str, /, **arguments: Any
    ) -> Any:
        """What a function that returns one value returns."""
        call = Call(function, arguments)
        with explained:
            if connection is not None:
                require_connection(connection, AsyncConnection)
                return await value(connection, call)
            async with self._borrow() as own:
                return await value(own, call)

    async def _records(
        self,
        connection: AsyncConnection[Any] | None,
        record: type[Record],
        function: str,
        /,
        **arguments: Any,
    ) -> list[Record]:
        """The rows of a function that returns a table, as named tuples."""
        rows = await self._execute(connection, Call(function, arguments, record._fields))
        return [record._make(row) for row in rows]

    async def _execute(self, connection: AsyncConnection[Any] | None, call: Call) -> list[tuple[Any, ...]]:
        """The rows of a call, on the caller's connection or one of our own."""
        with explained:
            if connection is not None:
                require_connection(connection, AsyncConnection)
                return await execute(connection, call)
            async with self._borrow() as own:
                return await execute(own, call)

    async def _calls(
        self,
        connection: AsyncConnection[Any] | None,
        function: str,
        arguments: dict[str, Any],
        parts: Sequence[Callable[[], dict[str, Any]]],
    ) -> list[Any]:
        """The values of one function called for each part, all in one transaction."""
        first = Call(function, {**arguments, **parts[0]()})
        if len(parts) == 1:
            return [row[0] for row in await self._execute(connection, first)]
        calls = chain([first], (Call(function, {**arguments, **part()}) for part in parts[1:]))
        with explained:
            if connection is not None:
                require_connection(connection, AsyncConnection)
                return await execute_all(connection, calls)
            async with self._borrow() as own:
                return await execute_all(own, calls)
