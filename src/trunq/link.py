"""One connection that comes back.

The database restarts, fails over, an administrator cuts connections: none of that is the business of what
runs on a connection. `Link.run` does a piece of work on it and, when the connection was lost under it or the
server asked for patience, does it again on a new one, with a growing pause between. So the work must bear
being done twice: an answer does (the second changes nothing), a lease does (the first is reaped).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.abc import AdaptContext
from psycopg.conninfo import conninfo_to_dict, make_conninfo

T = TypeVar("T")

log = logging.getLogger("trunq.link")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

# A server that vanished without a word (power, network) is noticed within a minute, not within TCP's two
# hours.
_CONNECTING: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "50000",
}

_AWAY: Final = ("08", "57P", "25006", "26000")
"""The connection is of no more use: connection exceptions, shutdown and starting up, a server that became
read-only, statements we prepared that it does not have (another server connection, behind a pooler).
"""

_PASSING: Final = ("40", "53", "55P03", "57014", "TQ008")
"""The same again will do: serialization, deadlock, no resources, a lock or statement time-out, a subscription
busy.
"""


class Link:
    """A connection in autocommit that is opened again whenever it is lost.

    `settings` are session settings given to each new connection, `prepare` may adapt it further. Through a
    connection pooler (`pooled`) neither settings nor prepared statements are used: they would stick to a
    server connection that others use next.
    """

    def __init__(
        self,
        dsn: str,
        application_name: str,
        settings: Mapping[str, str] | None = None,
        prepare: Callable[[AdaptContext], None] | None = None,
    ) -> None:
        self._conninfo = complete(dsn, application_name)
        self._settings = dict(settings or {})
        self._prepare = prepare
        self._opening = asyncio.Lock()
        self._hurried = asyncio.Event()
        self.connection: AsyncConnection[Any] | None = None
        self.pooled = False

    async def open(self) -> AsyncConnection[Any]:
        """The live connection, made now if there is none. One attempt: raises psycopg.OperationalError."""
        async with self._opening:
            if self.connection is None or self.connection.closed:
                self.connection = await self._connect()
            return self.connection

    def hurry(self) -> None:
        """Wait for the database no more: from now on `run` tries once, and one that waits gives up."""
        self._hurried.set()

    async def run(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Do `work` on the connection until it was done without losing it; other errors leave at once."""
        pause = FIRST_PAUSE
        while True:
            connection = None
            try:
                connection = await self.open()
                return await work(connection)
            except psycopg.Error as error:
                lost = connection is None or connection.closed or is_away(error)
                if lost:
                    await self._discard(connection)
                if not (lost or is_passing(error)):
                    raise
                log.warning("trying again in %.1f s: %s", pause, first_line(error))
                # Half to one and a half: a fleet that lost its server must not come back as one.
                if await self._is_hurried_within(pause * (0.5 + random.random())):
                    raise
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _is_hurried_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        return self._hurried.is_set()

    async def close(self) -> None:
        """Close the connection; the next `run` or `open` makes a new one."""
        await self._discard(self.connection)

    async def _discard(self, connection: AsyncConnection[Any] | None) -> None:
        # Another user of the link may have opened the next one already: that one stays.
        if connection is not None:
            if self.connection is connection:
                self.connection = None
            await connection.close()

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
        try:
            await self._adapt(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _adapt(self, connection: AsyncConnection[Any]) -> None:
        cursor = await connection.execute(
            "select pg_backend_pid(), current_setting('default_transaction_isolation')"
        )
        pid, isolation = await cursor.fetchone() or (0, "")
        # A pooler answers the handshake with a process id of its own making.
        self.pooled = pid != connection.pgconn.backend_pid
        if self.pooled:
            connection.prepare_threshold = None
        else:
            settings = dict(self._settings)
            if isolation != "read committed":
                settings["default_transaction_isolation"] = "read committed"
            for name, value in settings.items():
                await connection.execute(
                    sql.SQL("set {} = {}").format(sql.Identifier(name), sql.Literal(value))
                )
        if self._prepare is not None:
            self._prepare(connection)


def complete(dsn: str, application_name: str) -> str:
    """`dsn` with a name for pg_stat_activity and time-outs for a network that is down, where it gives none
    itself.
    """
    given = conninfo_to_dict(dsn)
    defaults = {**_CONNECTING, "application_name": application_name}
    return make_conninfo(dsn, **{name: value for name, value in defaults.items() if name not in given})


def is_away(error: psycopg.Error) -> bool:
    """Whether the connection the error came over is of no more use."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    # Without a code it was not the server that spoke, but libpq about the connection.
    return isinstance(error, psycopg.OperationalError)


def is_passing(error: psycopg.Error) -> bool:
    """Whether the same statement may well succeed a moment later."""
    return error.sqlstate is not None and error.sqlstate.startswith(_PASSING)


def first_line(error: BaseException) -> str:
    """The error as one line for a log."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
