"""Connections by ADBC that share what it knows of a database's types.

ADBC reads all types of a database when it opens one, and each table is a type: measured, 54 ms without a
queue, and 20 ms more for each hundred tables. So what it opened is kept for each address, and a connection
costs 2 ms. Types that are made later it does not know: a query over it gives what is of the user's own types
as text.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from threading import RLock
from typing import Any, Final

from trunq.connection.address import complete

_MOST: Final = 16
"""Addresses that are kept: the last ones."""


def has_adbc() -> bool:
    """Whether ADBC is installed."""
    try:
        import adbc_driver_postgresql.dbapi  # noqa: F401, PLC0415  # slow to import
    except ImportError:
        return False
    return True


def connect(dsn: str, application_name: str) -> Any:
    """A connection by ADBC. Its first statement begins a transaction."""
    from adbc_driver_manager import AdbcConnection, dbapi  # noqa: PLC0415  # slow to import

    opened = _open(complete(dsn, application_name))
    try:
        made = AdbcConnection(opened.database)
    except BaseException:
        opened.close()
        raise
    # One that fails halfway gives it back when it is collected.
    return dbapi.Connection(opened, made)  # type: ignore[arg-type]


class _Opened:
    """A database of ADBC's, for the cache and for each connection over it; whoever closes last, closes it."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.holders = 1

    def close(self) -> None:
        """Called by a connection when it is closed."""
        with _lock:
            self.holders -= 1
            is_last = self.holders == 0
        if is_last:
            self.database.close()


_lock = RLock()
"""A connection that is collected while somebody holds it gives back in the same thread."""
_cache: Final[dict[tuple[int, str], _Opened]] = {}


def _open(address: str) -> _Opened:
    """That of the address, lent once more."""
    key = (os.getpid(), address)
    with _lock:
        if known := _cache.pop(key, None):
            _cache[key] = known
            known.holders += 1
            return known
    import adbc_driver_postgresql  # noqa: PLC0415  # slow to import

    made = _Opened(adbc_driver_postgresql.connect(address))
    with _lock:
        # Another thread may have been faster; then this one is for its connection alone.
        if key in _cache:
            return made
        _cache[key] = made
        made.holders += 1
        given_up = _cache.pop(next(iter(_cache))) if len(_cache) > _MOST else None
    if given_up is not None:
        with suppress(Exception):
            given_up.close()
    return made


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock  # noqa: PLW0603  # one for the process
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _give_up() -> None:
    with _lock:
        kept = [each for (process, _), each in _cache.items() if process == os.getpid()]
        _cache.clear()
    for each in kept:
        with suppress(Exception):
            each.close()
