"""Handlers in a transaction: what they write and the ack commit together, or not at all.

The ack is the last statement: it takes the lease's lock, which is held until the commit, and refuses when the
lease has ended (then all is rolled back). In a transaction of ours an ack without a result goes to the server
together with the commit; one with a result, a batch and other libraries take a round trip more.

Only an ack commits. A handler that raises, or answers Retry or Reject, is rolled back, and its answer goes
the ordinary way, outside: the book-keeping of a failure must survive the rollback.

The transaction is READ COMMITTED, whatever the database's default. A handler that wants another level says so
in its first statement: `set transaction isolation level serializable`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import starmap
from time import monotonic, sleep
from typing import Any, Final, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

from trunq.client._async.database import require_open
from trunq.client._sync.database import require_open as require_open_sync
from trunq.client.message import Message, Reject, Retry
from trunq.connection._async.execute import execute
from trunq.connection._async.pool import AsyncPool, open_pool
from trunq.connection._sync.execute import execute as execute_sync
from trunq.connection._sync.pool import Pool
from trunq.connection._sync.pool import open_pool as open_sync_pool
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.connection.bridge import Rows
from trunq.connection.bridge.transaction import AsyncTransaction, Library, Transaction
from trunq.connection.silence import lend, lent
from trunq.errors import LeaseLost, translate
from trunq.record import Fate
from trunq.wire.call import Call
from trunq.worker.answer.group import Group, with_commit
from trunq.worker.handler import Handler
from trunq.worker.slot.cleaning import (
    EVERY,
    WATCH,
    AsyncSession,
    Refused,
    Session,
    configure,
    configure_sync,
    has_pipeline,
    renew,
)
from trunq.worker.slot.work import AckRefused, Committed, Work

log = logging.getLogger("trunq.worker")

_PATIENCE: Final = 10.0
"""Seconds to wait for a connection before asking whether the lease is still ours."""

_NO_ROOM: Final = "53"
"""The class of SQLSTATEs that say so: the disk is full, there is no memory."""
_MET: Final = {"40001", "40P01"}
"""Serialization failures and deadlocks: SQLSTATEs of transactions that met another."""
_TRIES: Final = 20
"""So often is a handler run for one attempt of its message, if each time its transaction met another."""
_AT_ONCE: Final = 3
_AWAY: Final = 1.0
"""Seconds until a library is asked again for a transaction."""
_LONGEST_PAUSE: Final = 0.5


class _RollBack(Exception):
    """The handler's answer is no ack: its transaction is rolled back."""


class NoRoom(Exception):
    """The database had no room for the ack in a handler's transaction: all is rolled back, and it is nobody's
    fault."""


class Transactions:
    """Connections for handlers that asked for a transaction, opened when first needed: at most
    `max_connections` for async handlers, and as many for sync ones.
    """

    def __init__(self, dsn: str, application_name: str, max_connections: int) -> None:
        self._conninfo = complete(dsn, application_name)
        self._max_connections = max_connections
        self._pool: AsyncPool | None = None
        self._sync_pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._sync_opening = threading.Lock()

    def watch(self) -> None:
        """Have the server end the statements of handlers whose worker has died."""
        own = conninfo_to_dict(self._conninfo).get("options")
        options = f"{own or ''} -c {WATCH}={EVERY}".strip()
        self._conninfo = make_conninfo(self._conninfo, options=options)

    async def run(self, handler: Handler, work: Work) -> Any:
        """Call an async handler in a transaction. Returns a Committed, or its answer after a rollback."""
        contents = _contents(work)
        for tried in range(_TRIES):
            try:
                return await self._run_once(handler, work)
            except Exception as error:
                if _sqlstate(handler, error) not in _MET:
                    raise
                _put_back(contents)
                await asyncio.sleep(_pause(error, tried, work))
        raise AssertionError("the last try returns or raises")

    def run_sync(self, handler: Handler, work: Work, arguments: dict[str, Any]) -> Any:
        """The same for a sync handler, in the thread it runs in."""
        contents = _contents(work)
        for tried in range(_TRIES):
            try:
                return self._run_once_sync(handler, work, arguments)
            except Exception as error:
                if _sqlstate(handler, error) not in _MET:
                    raise
                _put_back(contents)
                sleep(_pause(error, tried, work))
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        if self._sync_pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sync_pool.close, 1)

    async def _run_once(self, handler: Handler, work: Work) -> Any:
        started, result = monotonic(), None
        try:
            async with self._begun(handler, work) as transaction:
                result = await handler.function(work.given, **handler.arguments(transaction.given))
                if isinstance(result, Retry | Reject):
                    raise _RollBack
                groups = work.answers(result, monotonic() - started)
                execute = await transaction.settle()
                fates: list[Fate] = []
                if transaction.commit_with is not None and (ack := with_commit(groups)) is not None:
                    transaction.commit_with(ack)
                    groups = []
                for group in groups:
                    with _refusal(handler):
                        _require_fresh(await execute(group.call), work, group)
                    if group.question is not None:
                        fates += starmap(Fate, await execute(group.question))
        except _RollBack:
            return result
        except Refused as refused:
            with _refusal(handler):
                raise refused.error from None
        return Committed(result, fates)

    def _run_once_sync(self, handler: Handler, work: Work, arguments: dict[str, Any]) -> Any:
        started, result = monotonic(), None
        try:
            with self._begun_sync(handler, work) as transaction:
                given = {**handler.arguments(transaction.given), **arguments}
                result = handler.function(work.given, **given)
                if isinstance(result, Retry | Reject):
                    raise _RollBack
                groups = work.answers(result, monotonic() - started)
                execute = transaction.settle()
                fates: list[Fate] = []
                if transaction.commit_with is not None and (ack := with_commit(groups)) is not None:
                    transaction.commit_with(ack)
                    groups = []
                for group in groups:
                    with _refusal(handler):
                        _require_fresh(execute(group.call), work, group)
                    if group.question is not None:
                        fates += starmap(Fate, execute(group.question))
        except _RollBack:
            return result
        except Refused as refused:
            with _refusal(handler):
                raise refused.error from None
        return Committed(result, fates)

    @asynccontextmanager
    async def _begun(self, handler: Handler, work: Work) -> AsyncIterator[AsyncTransaction]:
        """A transaction for an async handler: one of its library, or one of ours."""
        async with AsyncExitStack() as stack:
            if (library := handler.library) is None:
                connection = await stack.enter_async_context(self._connection(work))
                await stack.enter_async_context(connection.transaction())
                with lent(connection):
                    yield AsyncTransaction(connection, partial(_settled, connection), connection.commit_with)
                return
            while True:
                try:
                    transaction = await stack.enter_async_context(library.async_transaction())
                    break
                except Exception as error:
                    _require_patience(library, work, error)
                    await asyncio.sleep(_AWAY)
            yield transaction

    @contextmanager
    def _begun_sync(self, handler: Handler, work: Work) -> Iterator[Transaction]:
        """The same for a sync handler."""
        with ExitStack() as stack:
            if (library := handler.library) is None:
                connection = stack.enter_context(self._sync_connection(work))
                stack.enter_context(connection.transaction())
                with lent(connection):
                    yield Transaction(connection, partial(_settled_sync, connection), connection.commit_with)
                return
            while True:
                try:
                    transaction = stack.enter_context(library.transaction())
                    break
                except Exception as error:
                    _require_patience(library, work, error)
                    sleep(_AWAY)
            yield transaction

    @asynccontextmanager
    async def _connection(self, work: Work) -> AsyncIterator[AsyncSession]:
        pool = await self._open()
        connection = None
        while connection is None:
            try:
                connection = cast(AsyncSession, await pool.getconn(timeout=_PATIENCE))
            except PoolTimeout:
                # The database is away. The message has not failed: it has not begun.
                _require_held(work)
        renew(connection)
        try:
            yield connection
        finally:
            if has_pipeline(connection):
                await connection.close()
            await pool.putconn(connection)

    @contextmanager
    def _sync_connection(self, work: Work) -> Iterator[Session]:
        pool = self._open_sync()
        connection = None
        while connection is None:
            try:
                connection = cast(Session, pool.getconn(timeout=_PATIENCE))
            except PoolTimeout:
                _require_held(work)
        renew(connection)
        try:
            yield connection
        finally:
            if has_pipeline(connection):
                connection.close()
            pool.putconn(connection)

    async def _open(self) -> AsyncPool:
        async with self._opening:
            if self._pool is None:
                self._pool = await open_pool(
                    self._conninfo, "trunq worker", self._max_connections, _PATIENCE, AsyncSession, configure
                )
            return self._pool

    def _open_sync(self) -> Pool:
        with self._sync_opening:
            if self._sync_pool is None:
                self._sync_pool = open_sync_pool(
                    self._conninfo, "trunq worker", self._max_connections, _PATIENCE, Session, configure_sync
                )
            return self._sync_pool


async def _settled(connection: psycopg.AsyncConnection[Any]) -> Callable[[Call], Awaitable[Rows]]:
    lend(connection, is_lent=False)
    require_open(connection)
    return partial(execute, connection)


def _settled_sync(connection: psycopg.Connection[Any]) -> Callable[[Call], Rows]:
    lend(connection, is_lent=False)
    require_open_sync(connection)
    return partial(execute_sync, connection)


def _sqlstate(handler: Handler, error: Exception) -> str | None:
    if handler.library is not None and (found := handler.library.sqlstate(error)) is not None:
        return found
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def _require_patience(library: Library, work: Work, error: Exception) -> None:
    """While the database is away, the message has not failed: it has not begun."""
    if not library.is_away(error):
        raise error
    _require_held(work)
    log.warning("a handler waits for its transaction: %s", str(error).partition("\n")[0])


def _pause(error: Exception, tried: int, work: Work) -> float:
    """Two transactions met, and this one gave way: it is run again, which costs no attempt.

    Returns the seconds until then: none at first, later a random time, so that those that keep meeting part.
    """
    if tried == _TRIES - 1 or work.is_lost:
        raise error
    log.debug("%s is run again: %s", work.subject, str(error).partition("\n")[0])
    return (
        0.0 if tried < _AT_ONCE else random.random() * min(_LONGEST_PAUSE, 0.005 * 2.0 ** (tried - _AT_ONCE))
    )


def _contents(work: Work) -> list[tuple[Message, Any, Any]]:
    """What messages hold, as it was leased."""
    return [(message, message._payload, message._headers) for _, message in work.entries]


def _put_back(contents: list[tuple[Message, Any, Any]]) -> None:
    """Another run must not find a payload that was brought up to date, read, or changed by the handler."""
    for message, payload, headers in contents:
        message._payload, message._headers = payload, headers


def _require_held(work: Work) -> None:
    if work.is_lost:
        raise AckRefused(f"the lease of {work.subject} was lost while it waited for a connection")


def _require_fresh(answered: Rows, work: Work, group: Group) -> None:
    if answered[0][0] != len(group.answers):
        raise work.answered_before()


@contextmanager
def _refusal(handler: Handler) -> Iterator[None]:
    """A LeaseLost in here is about the message being handled, not about one the handler itself dealt with."""
    try:
        yield
    except LeaseLost as error:
        raise AckRefused(error.message) from error
    except Exception as error:
        if (_sqlstate(handler, error) or "").startswith(_NO_ROOM):
            raise NoRoom(first_line(error)) from error
        if isinstance(error, psycopg.Error) and isinstance(lost := translate(error), LeaseLost):
            raise AckRefused(lost.message) from error
        raise
