"""Connections of other libraries, whose transaction a call joins: SQLAlchemy's and Django's.

    statement   a call in words that every driver takes, and what comes back read as psycopg reads it
    signature   the types of parameters and results, generated from the functions' sources
    sqlalchemy  sessions and connections, of any driver
    django      the connections of django.db, or their aliases

An adapter is imported when somebody gives a connection of its library, so neither library is needed here.
Nothing in this package commits, rolls back or repeats: the transaction is the caller's.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

from trunq.wire.call import Call

Rows = list[tuple[Any, ...]]


class Bridge(ABC):
    """A connection of another library, on which calls are executed."""

    @property
    @abstractmethod
    def commits(self) -> bool:
        """Whether each statement is a transaction of its own."""

    @abstractmethod
    def execute(self, call: Call) -> Rows:
        """Execute a call and fetch its rows. Raises what stands in `trunq.errors`, or the library's own."""

    @staticmethod
    def over(given: object) -> Bridge | None:
        """The bridge over what a caller gave; None when it is of no library that has one."""
        match _library(given):
            case "sqlalchemy":
                from trunq.connection.bridge import sqlalchemy  # noqa: PLC0415

                return sqlalchemy.bridge(given)
            case "django":
                from trunq.connection.bridge import django  # noqa: PLC0415

                return django.bridge(given)
        return None


class AsyncBridge(ABC):
    """The same for event loops."""

    @property
    @abstractmethod
    def commits(self) -> bool:
        """Whether each statement is a transaction of its own."""

    @abstractmethod
    async def execute(self, call: Call) -> Rows:
        """Execute a call and fetch its rows. Raises what stands in `trunq.errors`, or the library's own."""

    @staticmethod
    async def over(given: object) -> AsyncBridge | None:
        """The bridge over what a caller gave; None when it is of no library that has one."""
        if _library(given) != "sqlalchemy":
            return None
        from trunq.connection.bridge import sqlalchemy  # noqa: PLC0415

        return await sqlalchemy.async_bridge(given)


def _library(given: object) -> str | None:
    """The library that this is of."""
    if isinstance(given, str):
        # The alias of a database in Django's settings, where there is a Django.
        return "django" if "django.db" in sys.modules else None
    return _library_of(type(given))  # type: ignore[arg-type]  # a class has a hash


@lru_cache(maxsize=256)
def _library_of(kind: type[Any]) -> str | None:
    """The library that a class is of, or derives from."""
    libraries = {each.__module__.partition(".")[0] for each in kind.__mro__}
    return next((name for name in ("sqlalchemy", "django") if name in libraries), None)
