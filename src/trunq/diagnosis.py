"""What is wrong between this program and its database: what the database says of itself (trunq.diagnose), and
what only a program can see: versions, whether LISTEN reaches it, its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

import psycopg
from psycopg import sql

from trunq import install
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.connection.probe import looks_pooled
from trunq.errors import TrunqError
from trunq.record import Finding

HEARS_WITHIN: Final = 3.0
"""Seconds; a notification takes milliseconds."""

CLOCKS_DIFFER: Final = 2.0
"""Seconds from which on times in logs mislead, and delays that a program computes are wrong."""


def diagnose(dsn: str, now: Callable[[], float] = time.time) -> list[Finding]:
    """All that is wrong with the database at `dsn`, seen from this machine whose clock is `now`.

    It changes nothing but a LISTEN and a NOTIFY of its own, on a channel that nobody else has. Raises
    psycopg.OperationalError where the database cannot be reached.
    """
    with open_connection(complete(dsn, "trunq doctor")) as connection:
        found = list(_versions(connection))
        asks = "select to_regprocedure('trunq.diagnose()') is not null"
        if connection.execute(asks).fetchone() == (True,):
            rows = connection.execute("select * from trunq.diagnose()").fetchall()
            found += [Finding(*row) for row in rows]
        found += _clocks(connection, now)
        found += _wake_up(dsn, connection)
    return found


def _finding(area: str, severity: str, finding: str, hint: str) -> Finding:
    return Finding(area, severity, None, None, finding, hint, None)  # type: ignore[arg-type]


def _versions(connection: psycopg.Connection) -> Iterator[Finding]:
    try:
        install.check(connection)
    except TrunqError as error:
        yield _finding("version", "error", str(error), error.hint or "")
    else:
        if not install.is_applied(connection):
            yield _finding(
                "version",
                "warning",
                "the functions in this database are not those of this program: another build made them, or an"
                " upgrade stopped in its middle",
                "trunq db upgrade",
            )


def _clocks(connection: psycopg.Connection, now: Callable[[], float]) -> Iterator[Finding]:
    asked = now()
    row = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    answered = now()
    if row is None:
        return
    unsure = (answered - asked) / 2
    ahead = (asked + answered) / 2 - row[0]
    if abs(ahead) > CLOCKS_DIFFER + unsure:
        yield _finding(
            "clock",
            "warning",
            f"the clock of this machine is {abs(ahead):.0f} s"
            f" {'ahead of' if ahead > 0 else 'behind'} the server's",
            "have both follow NTP; trunq goes by the server's",
        )


def _wake_up(dsn: str, connection: psycopg.Connection) -> Iterator[Finding]:
    channel = f"trunq_doctor_{uuid4().hex}"
    with open_connection(complete(dsn, "trunq doctor")) as ear:
        ear.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        connection.execute("select pg_notify(%s, '')", (channel,))
        if any(True for _ in ear.notifies(timeout=HEARS_WITHIN, stop_after=1)):
            return
        pooled = looks_pooled(ear) or looks_pooled(connection)
    yield _finding(
        "wake-up",
        "warning",
        "LISTEN through this address hears nothing: "
        + ("a pooler stands in between" if pooled else "something in between drops it")
        + ", and workers poll instead of being woken",
        "give workers the server's own address or a pooler in session mode, or say how often they look:"
        " trunq worker --poll",
    )
