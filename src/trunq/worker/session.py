"""Sessions of handlers in a transaction: what one handler leaves in its session, the next must not find.

Locks, channels, settings, roles, temporary tables and cursors outlive a transaction, also one that is rolled
back. They are cleaned away in the round trip of the commit or the rollback, each time, for some 40 µs: a look
whether something is there costs more (for locks at those of all sessions, for settings at each of them), and
what functions do leaves no trace in what a client sees. Prepared statements stay: they are ours, and dear.

A statement ends when its worker has died: the server looks each 2 s whether somebody still waits for it.
Behind a connection pooler nothing of this is done, as the next statement may meet another session.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, IsolationLevel, generators, sql
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.rows import tuple_row

from trunq.connection._async.session import fit
from trunq.connection._async.watched import AsyncWatched
from trunq.connection._sync.session import fit as fit_sync
from trunq.connection._sync.watched import Watched

_CLEAN: Final = (
    b"select pg_catalog.pg_advisory_unlock_all(); close all; unlisten *; discard temp; reset role; reset all"
)
_IDENTITY: Final = b"session_authorization"
"""The server tells when this changes, so that it is set back only then."""
_ENDS: Final = {b"COMMIT", b"ROLLBACK"}
WATCH: Final = "client_connection_check_interval"
"""How often the server looks whether somebody waits for a statement. Set when the session starts: what is set
later, cleaning would undo."""
EVERY: Final = "2s"


class _Cleaned:
    """A connection whose session is clean after each transaction."""

    cleaning = b""
    """What cleans it, as the server is told; empty: nothing does."""
    identity: bytes | None = None
    """As whom it was opened."""

    def _exec_command(self, command: Any, result_format: Format = Format.TEXT) -> PQGen[Any]:
        if command not in _ENDS or not self.cleaning or has_pipeline(self):  # type: ignore[arg-type]
            return (yield from super()._exec_command(command, result_format))  # type: ignore[misc]
        return (yield from _end(self, command, self.cleaning))  # type: ignore[arg-type]


class AsyncSession(_Cleaned, AsyncWatched):
    """One for async handlers."""


class Session(_Cleaned, Watched):
    """One for sync handlers."""


def _end(connection: AsyncSession | Session, command: bytes, cleaning: bytes) -> PQGen[Any]:
    """End the transaction, and clean the session by the same message to the server."""
    connection._check_connection_ok()
    if connection.pgconn.parameter_status(_IDENTITY) != connection.identity:
        # Before the role, which comes back as the address or the database gives it.
        cleaning = b"set session authorization default; " + cleaning
    results = yield from _executed(connection, command + b"; " + cleaning)
    if results[0].status == ExecStatus.FATAL_ERROR:
        # The transaction is rolled back, and what came behind was not executed.
        yield from _executed(connection, cleaning)
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    return results[0]


def _executed(connection: AsyncSession | Session, commands: bytes) -> PQGen[list[Any]]:
    connection.pgconn.send_query(commands)
    results = yield from generators.execute(connection.pgconn)
    return list(results)


async def configure(connection: AsyncSession) -> None:
    """Make a new connection fit for handlers."""
    _begin(connection, await fit(connection))
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


def configure_sync(connection: Session) -> None:
    """The same for sync handlers."""
    _begin(connection, fit_sync(connection))
    connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


def _begin(connection: AsyncSession | Session, statements: list[sql.Composed]) -> None:
    """Note what makes the session again what it is now; behind a pooler nothing does."""
    if not connection.is_pooled:
        connection.identity = connection.pgconn.parameter_status(_IDENTITY)
        connection.cleaning = b"; ".join([_CLEAN, *(each.as_bytes(connection) for each in statements)])


def renew(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    """Make a connection what each handler gets, whatever the one before made of it."""
    connection.row_factory = tuple_row
    connection.cursor_factory = AsyncCursor if isinstance(connection, AsyncConnection) else Cursor


def has_pipeline(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether a pipeline on it is open: what is executed waits for its end."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF
