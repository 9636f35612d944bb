"""Sessions of handlers in a transaction: what one handler leaves in its session, the next must not find.

Locks, channels, settings, roles, temporary tables and cursors outlive a transaction, also one that is rolled
back. They are cleaned away in the round trip of the commit or the rollback, each time, for some 40 µs: a look
whether something is there costs more (for locks at those of all sessions, for settings at each of them), and
what functions do leaves no trace in what a client sees. Prepared statements stay: they are ours, and dear.

The ack of a message goes with its COMMIT, in one message to the server. That executes one statement after the
other, and nothing behind one that fails: an ack that is refused keeps the commit from being executed.

A statement ends when its worker has died: the server looks each 2 s whether somebody still waits for it.
Behind a connection pooler nothing of this is done, as the next statement may meet another session.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, IsolationLevel, generators, sql
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus
from psycopg.rows import tuple_row

from trunq.connection._async.opening import fit
from trunq.connection._async.watched import AsyncWatched
from trunq.connection._sync.opening import fit as fit_sync
from trunq.connection._sync.watched import Watched

_CLEAN: Final = (
    b"select pg_catalog.pg_advisory_unlock_all(); close all; unlisten *; discard temp; reset role; reset all"
)
_IDENTITY: Final = b"session_authorization"
"""The server tells when this changes, so that it is set back only then."""
_COMMIT: Final = b"COMMIT"
_ROLLBACK: Final = b"ROLLBACK"
_ENDS: Final = {_COMMIT, _ROLLBACK}
WATCH: Final = "client_connection_check_interval"
"""How often the server looks whether somebody waits for a statement. Set when the session starts: what is set
later, cleaning would undo."""
EVERY: Final = "2s"


class Refused(Exception):
    """The statement that went with a commit failed with `error`: all is rolled back."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class _Cleaned:
    """A connection whose session is clean after each transaction."""

    cleaning = b""
    """What cleans it, as the server is told; empty: nothing does."""
    identity: bytes | None = None
    """As whom it was opened."""
    _last = b""
    """The statement that goes with the next COMMIT, before it."""

    def commit_with(self, statement: bytes) -> None:
        """Have a statement executed with the next COMMIT: when it fails, that is not executed."""
        self._last = statement

    def _exec_command(self, command: Any, result_format: Format = Format.TEXT) -> PQGen[Any]:
        if command in _ENDS:
            last, self._last = self._last, b""
            if command == _COMMIT and last:
                return (yield from _commit(self, last, self.cleaning))  # type: ignore[arg-type]
            if self.cleaning and not has_pipeline(self):  # type: ignore[arg-type]
                return (yield from _end(self, command, self.cleaning))  # type: ignore[arg-type]
        return (yield from super()._exec_command(command, result_format))  # type: ignore[misc]


class AsyncSession(_Cleaned, AsyncWatched):
    """One for async handlers."""


class Session(_Cleaned, Watched):
    """One for sync handlers."""


def _commit(connection: AsyncSession | Session, last: bytes, cleaning: bytes) -> PQGen[Any]:
    """Commit with a last statement, and clean the session, by one message to the server."""
    connection._check_connection_ok()
    results = yield from _executed(connection, last, _COMMIT, _complete(connection, cleaning))
    if results[0].status == ExecStatus.FATAL_ERROR:
        # Nothing behind it was executed.
        yield from _executed(connection, _ROLLBACK, _complete(connection, cleaning))
        raise Refused(_error(connection, results[0]))
    return (yield from _ended(connection, results[1:], _COMMIT, cleaning))


def _end(connection: AsyncSession | Session, command: bytes, cleaning: bytes) -> PQGen[Any]:
    """End the transaction, and clean the session by the same message to the server."""
    connection._check_connection_ok()
    results = yield from _executed(connection, command, _complete(connection, cleaning))
    return (yield from _ended(connection, results, command, cleaning))


def _ended(
    connection: AsyncSession | Session, results: list[Any], command: bytes, cleaning: bytes
) -> PQGen[Any]:
    """What became of the end of a transaction and of the cleaning."""
    ended = results[0]
    if ended.status == ExecStatus.FATAL_ERROR:
        # The transaction is rolled back, and what came behind was not executed.
        yield from _executed(connection, _complete(connection, cleaning))
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise _error(connection, result)
    if ended.command_status != command:
        raise psycopg.InternalError("the server rolled back what it was to commit")
    return ended


def _complete(connection: AsyncSession | Session, cleaning: bytes) -> bytes:
    """The cleaning, with what is set back only when the server says that it was changed."""
    if not cleaning or connection.pgconn.parameter_status(_IDENTITY) == connection.identity:
        return cleaning
    # Before the role, which comes back as the address or the database gives it.
    return b"set session authorization default; " + cleaning


def _executed(connection: AsyncSession | Session, *commands: bytes) -> PQGen[list[Any]]:
    if not any(commands) or connection.pgconn.status != ConnStatus.OK:
        return []
    connection.pgconn.send_query(b"; ".join(filter(None, commands)))
    results = yield from generators.execute(connection.pgconn)
    return list(results)


def _error(connection: AsyncSession | Session, result: Any) -> psycopg.Error:
    return psycopg.errors.error_from_result(result, encoding=connection.info.encoding)


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
