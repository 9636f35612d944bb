"""A worker whose handlers use the ORM."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import django
from django.db import connections
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from trunq import worker
from trunq.connection.bridge.django import Database, tidied
from trunq.errors import InvalidArgument


def dsn(using: str = "default") -> str:
    """The address of a database of Django's settings, for clients and workers."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        raise InvalidArgument(
            f'the database "{using}" of Django is one of {connection.vendor}', "trunq lives in Postgres"
        )
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    given = connection.get_connection_params()
    return make_conninfo(**{name: value for name, value in given.items() if name in known})


class Worker(worker.Worker):
    """A worker of a database of Django's settings.

    Handlers that are plain functions run in threads, where Django's connections are closed as at the
    beginning and the end of a request. With `transaction=True`, or a parameter `connection`, a handler runs
    in `transaction.atomic()`: what the ORM writes and the ack commit together. A process that runs handlers
    sets Django up before it imports them. The rest is as in `trunq.Worker`.
    """

    _process_start = "trunq.django.worker:set_up"

    def __init__(self, *queues: str, using: str = "default", **options: Any) -> None:
        self._using = using
        super().__init__(*queues, **{"engine": Database(using), **options})

    @property
    def dsn(self) -> str | None:
        """The address given, else that of the settings when it is asked for: tests change it."""
        return dsn(self._using) if self._dsn is None else self._dsn

    @dsn.setter
    def dsn(self, value: str | None) -> None:
        self._dsn = value

    def _prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if iscoroutinefunction(function) or not callable(function):
            return function
        return _tidied(function)


def set_up() -> Callable[[], AbstractContextManager[None]]:
    """Make Django ready in a process that runs handlers; what it gives goes around each of them."""
    django.setup()
    return tidied


def _tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with tidied():
            return function(*arguments, **named)

    return call
