"""The connections of django.db, or the aliases of databases in its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any

from django.conf import settings
from django.db import (
    Error,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from trunq.connection.bridge import Bridge, Rows
from trunq.connection.bridge.refusal import refusal, sqlstate
from trunq.connection.bridge.statement import parameters, read, written
from trunq.connection.bridge.transaction import AsyncTransaction, Library, Transaction
from trunq.errors import InvalidArgument, TransactionEnded
from trunq.wire.call import Call


def bridge(given: object) -> DjangoConnection | None:
    """The bridge over a connection, or that of an alias; None over what is neither."""
    if isinstance(given, BaseDatabaseWrapper):
        connection: Any = given
    else:
        if not settings.configured:
            return None
        # `django.db.connection` stands for the one of this thread, which its alias names.
        alias = given if isinstance(given, str) else getattr(given, "alias", None)
        if alias not in connections.settings:
            return None
        connection = connections[alias]
    if connection.vendor != "postgresql":
        raise InvalidArgument(
            f'the database "{connection.alias}" of Django is one of {connection.vendor}',
            "trunq lives in Postgres",
        )
    return DjangoConnection(connection)


class DjangoConnection(Bridge):
    """A connection of this thread."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def commits(self) -> bool:
        return bool(self._connection.get_autocommit())

    def execute(self, call: Call) -> Rows:
        statement = written(call, _positional)
        with _translated(), self._connection.cursor() as cursor:
            cursor.execute(statement.sql, parameters(call))
            rows = cursor.fetchall()
        return read(statement, rows)


class Database(Library):
    """`transaction.atomic` on a database of Django's settings."""

    given = "a connection of Django"
    needs_parameter = False

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def takes(self, name: str, hint: Any) -> bool:
        return name == "connection" and hint in (None, Any)

    def check_colour(self, is_async: bool) -> None:
        if is_async:
            raise TypeError("Django's transactions are sync: write the handler as a plain function")

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with tidied(), transaction.atomic(using=self._alias):
            connection = connections[self._alias]
            with connection.cursor() as cursor:
                cursor.execute("set transaction isolation level read committed")
            yield Transaction(connection, partial(_settled, connection))

    def async_transaction(self) -> AbstractAsyncContextManager[AsyncTransaction]:
        raise AssertionError("no async handler has one")

    def is_away(self, error: Exception) -> bool:
        return isinstance(error, OperationalError | InterfaceError)

    def sqlstate(self, error: Exception) -> str | None:
        return sqlstate(error.__cause__) if isinstance(error, Error) else None


@contextmanager
def tidied() -> Iterator[None]:
    """Connections that broke or grew old are closed before and after, as those of a request are.

    Nothing is done inside of a transaction: Django would close its connection.
    """
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        yield
        return
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _settled(connection: Any) -> Callable[[Call], Rows]:
    if connection.needs_rollback or not connection.in_atomic_block:
        raise TransactionEnded(
            "the transaction ended before its handler did: an error in it was caught outside of a savepoint"
        )
    return DjangoConnection(connection).execute


def _positional(_: str) -> str:
    return "%s"


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Error as error:
        if (ours := refusal(error.__cause__)) is not None:
            raise ours from error
        raise
