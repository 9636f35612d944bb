"""Connections that notice when nothing comes over them any more.

A proxy that was stopped, a frozen machine, a network that forgot a connection: the kernel at the other end
goes on answering keepalives, and the statement is never answered. So whoever has waited in silence for a
while (the setting `silence`) asks on a second connection what became of the first. While the server works for
it, the wait goes on, however long the statement takes. Otherwise the connection is closed, and is a lost one
like any other: whoever lost it connects again, and sends answers again whose fate is unknown. Its session is
ended too: the server does not know that its client has gone, and others wait for what the session locked.

Which session is ours cannot be asked behind a connection pooler, where nobody tracks activities, or of a
server that lets nobody in: it is full, or its administrator says so. There a statement of ours is given up;
one of a caller's own, on a connection that is lent to it, is waited for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from trunq.connection.backoff import first_line, is_away

RV = TypeVar("RV")

log = logging.getLogger("trunq.link")

SILENCE: Final = 30.0
"""Seconds of silence until the server is asked, where the setting says no other."""

INTERVAL: Final = 0.1
"""Seconds after which psycopg says that it has heard nothing."""
_NOTICED: Final = 1.0
"""Seconds of silence before anybody looks how long it may last: reading the settings takes a moment."""
LAST: Final = 1.0
"""Seconds for an answer that was on its way while we asked."""
ASKING: Final = 5
"""Seconds for a second connection, and for its answer."""

_REFUSED: Final = ":  "
"""What libpq puts behind the severity, in any language, when the server refuses a connection by an error:
there is no code then.
"""

_AT_WORK: Final = "a.state = 'active' and a.wait_event_type is distinct from 'Client'"
"""A session that waits for its client does not work for it."""
QUESTION: Final = f"""
select coalesce(a.state, 'disabled') = 'disabled', {_AT_WORK} from pg_catalog.pg_stat_activity a
where a.pid = %(pid)s
"""
END: Final = f"""
select false, pg_catalog.pg_terminate_backend(a.pid, 1000) is null from pg_catalog.pg_stat_activity a
where a.pid = %(pid)s and a.application_name = %(name)s and a.datname = current_database()
and a.usename = session_user and not ({_AT_WORK})
"""
"""It has ended, and freed what it locked, before its client comes again."""


def lend(connection: AsyncConnection[Any] | Connection[Any], *, is_lent: bool = True) -> None:
    """Somebody executes statements of their own on a connection from now on, or does no more."""
    if isinstance(connection, Watching):
        connection.is_lent = is_lent


@contextmanager
def lent(connection: AsyncConnection[Any] | Connection[Any]) -> Iterator[None]:
    """The same for a while."""
    lend(connection)
    try:
        yield
    finally:
        lend(connection, is_lent=False)


@cache
def limit() -> float:
    """The setting: seconds of silence until the server is asked."""
    if not Path("trunq.toml").exists() and "TRUNQ_SILENCE" not in map(str.upper, os.environ):
        return SILENCE
    from trunq import settings  # noqa: PLC0415  # slow to import, and hardly anybody sets it

    return settings.load().silence or SILENCE


class Silence(Exception):
    """Nothing was heard for so many seconds."""


def heard(work: PQGen[RV], longest: float | None, *, is_resumed: bool) -> PQGen[RV]:
    """Do the work of a connection; raises Silence when nothing comes for too long (None: by the setting)."""
    try:
        wanted = work.send(waiting.READY_NONE) if is_resumed else next(work)
        since = None
        while True:
            ready = yield wanted
            if ready:
                since = None
            elif since is None:
                since = monotonic() - INTERVAL
            elif monotonic() - since >= (longest or _NOTICED):
                longest = longest or limit()
                if (silent := monotonic() - since) >= longest:
                    raise Silence(silent)
            wanted = work.send(ready)
    except StopIteration as done:
        result: RV = done.value
        return result


class Watching:
    """What both colours have."""

    pgconn: psycopg.pq.abc.PGconn
    is_pooled = False
    """Whether a pooler is in between."""
    is_lent = False
    """Whether somebody executes statements of their own on it."""
    _is_question = False

    @property
    def _session(self) -> dict[str, Any]:
        return {"pid": self.pgconn.backend_pid, "name": self._name}

    @property
    def _name(self) -> str:
        names = (each.val for each in self.pgconn.info if each.keyword == b"application_name")
        return (next(names, None) or b"").decode()

    def _address(self) -> str:
        """That of the same server, whichever of several this is connected to."""
        known = {each.keyword.decode(): each.val.decode() for each in self.pgconn.info if each.val}
        return make_conninfo(**(known | {"connect_timeout": str(ASKING), "application_name": "trunq asks"}))

    def _goes_on(self, told: tuple[bool, bool] | None) -> bool:
        """Whether to wait on, by what the server said of the session; None: that it is not there."""
        is_unknown, is_at_work = told or (False, False)
        return self.is_lent if is_unknown else is_at_work

    def _goes_on_after(self, error: psycopg.Error) -> bool:
        """Whether to wait on where nobody could be asked: if at least the server spoke."""
        if error.sqlstate is None:
            return self.is_lent and _REFUSED in first_line(error)
        return not is_away(error)

    def _give_up(self, silent: float) -> psycopg.OperationalError:
        """Close it, and say so."""
        why = f"nothing was heard for {silent:.0f} s, and the server does not work on it"
        log.warning("closed a silent connection (%s): %s", self._name, why)
        self.pgconn.finish()
        return psycopg.OperationalError(f"the connection was silent: {why}")
