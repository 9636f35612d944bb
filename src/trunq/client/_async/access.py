"""Calling the functions of the database: the methods of the client are made of these."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from psycopg import AsyncConnection

from trunq.client._async.database import AsyncConnections
from trunq.connection._async.execute import execute, execute_all
from trunq.connection.bridge import AsyncBridge
from trunq.connection.given import AsyncGiven, require_connection
from trunq.wire.call import Call, explained
from trunq.wire.copy import PART, Columns

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

Record = TypeVar("Record", bound=NamedTuple)


class AsyncAccess(AsyncConnections):
    """Calls, on the caller's connection or on one of the client's."""

    _telemetry: Telemetry | None = None

    async def _value(self, connection: AsyncGiven | None, function: str, /, **arguments: Any) -> Any:
        """What a function that returns one value returns."""
        ((returned,),) = await self._execute(connection, Call(function, arguments))
        return returned

    async def _records(
        self,
        connection: AsyncGiven | None,
        record: type[Record],
        function: str,
        /,
        **arguments: Any,
    ) -> list[Record]:
        """The rows of a function that returns a table, as named tuples."""
        rows = await self._execute(connection, Call(function, arguments, record._fields))
        return [record._make(row) for row in rows]

    async def _execute(self, connection: AsyncGiven | None, call: Call) -> list[tuple[Any, ...]]:
        """The rows of a call, on the caller's connection or one of our own."""
        with explained:
            if connection is None:
                async with self._borrow() as own:
                    return await execute(own, call)
            if (bridge := await AsyncBridge.over(connection)) is not None:
                return await bridge.execute(call)
            return await execute(require_connection(connection, AsyncConnection), call)

    async def _publish_columns(
        self, connection: AsyncGiven | None, arguments: dict[str, Any], columns: Columns
    ) -> list[Any]:
        """What publish_many returns for each part of the messages, all in one transaction."""
        bridge = None if connection is None else await AsyncBridge.over(connection)
        # Where each statement commits, all of them are one statement.
        parts = columns.arrays(PART if bridge is None or not bridge.commits else None)
        first = Call("publish_many", {**arguments, **parts[0]()})
        if len(parts) == 1:
            return [row[0] for row in await self._execute(connection, first)]
        calls = chain([first], (Call("publish_many", {**arguments, **part()}) for part in parts[1:]))
        with explained:
            if bridge is not None:
                # In the caller's transaction: what cannot be sent must be found before anything is.
                return [(await bridge.execute(call))[0][0] for call in list(calls)]
            if connection is not None:
                return await execute_all(require_connection(connection, AsyncConnection), calls)
            async with self._borrow() as own:
                return await execute_all(own, calls)
