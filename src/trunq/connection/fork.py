"""What a forked child must leave alone: the connections of its parent.

Both would write to one socket and read each other's answers; the child's statements would join the parent's
transaction. psycopg cannot tell whose a connection is. The socket can: a descriptor that was open when the
process was forked belongs to the parent.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Final, Protocol
from weakref import WeakSet

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq.errors import InvalidArgument


class Forked(Protocol):
    """What starts afresh in a forked child."""

    def _start_afresh(self) -> None:
        """Forget connections and locks: they are the parent's."""


living: Final[WeakSet[Forked]] = WeakSet()
"""Everything that is to be told of a fork."""

_inherited: set[tuple[int, int]] = set()
"""Descriptors that were open at the last fork: number and inode, which tell a later socket of that number."""

_left: Final[list[Any]] = []
"""The parent's pools. They are kept: collected, they would try to end threads that are not there."""


def require_own(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Refuse a connection that another process opened."""
    if _inherited and is_inherited(connection):
        raise InvalidArgument(
            "this connection belongs to the process that this one was forked from",
            "open one in each process; a client without connection= does so by itself",
        )


def is_inherited(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    """Whether another process opened the connection."""
    return bool(_inherited) and not connection.closed and _identity(connection.fileno()) in _inherited


def disown(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Close an inherited connection in this process alone, without a word to the server."""
    with open(os.devnull, "rb") as nothing:  # a descriptor is wanted
        os.dup2(nothing.fileno(), connection.fileno())
    connection.pgconn.finish()


def leave_to_parent(pool: AsyncConnectionPool[Any] | ConnectionPool[Any]) -> None:
    """Never use a pool again, nor close it."""
    pool._closed = True
    _left.append(pool)


def _identity(descriptor: int) -> tuple[int, int]:
    return descriptor, os.fstat(descriptor).st_ino


def _sockets() -> set[tuple[int, int]]:
    found = set()
    for name in os.listdir("/dev/fd"):
        # The descriptor of the listing itself is gone by now.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(_identity(int(name)))
    # A system that does not number its sockets cannot tell a later one from these.
    return {each for each in found if each[1]}


def _forget_the_parents() -> None:
    _inherited.clear()
    _inherited.update(_sockets())
    for each in list(living):
        each._start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parents)
