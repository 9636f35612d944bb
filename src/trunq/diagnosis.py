"""What is wrong between this program and its database: what the database says of itself (trunq.diagnose), and
what only a program can see: versions, whether LISTEN reaches it, its clock, the disk of a server beside it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
from psycopg import sql

from trunq import install
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.connection.probe import looks_pooled
from trunq.errors import InvalidArgument, TrunqError
from trunq.record import Finding

HEARS_WITHIN: Final = 3.0
"""Seconds; a notification takes milliseconds."""

CLOCKS_DIFFER: Final = 2.0
"""Seconds from which on times in logs mislead, and delays that a program computes are wrong."""


PROGRAM: Final = {
    "version": "The database is of another version of trunq than the program, or its functions are.",
    "clock": "This machine's clock is more than two seconds off the server's.",
    "wake-up": "LISTEN through this address hears nothing: a pooler stands in between, and workers poll.",
}
"""The areas that a program alone can look at."""

# Whoever connects may ask the catalog, and nothing else: a role without rights calls no function of trunq.
_RIGHTS: Final = """
with door as (
  select p.proname as name, has_function_privilege(p.oid, 'execute') as is_open
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where n.nspname = 'trunq_queue' and p.prosecdef and p.proname ~ '_(read|administer)$')
select quote_ident(current_user), pg_has_role(r.oid, 'usage'),
  -- A member that does not inherit has been granted it.
  format(case when pg_has_role(r.oid, 'member') then 'set role %%I' else 'grant %%I to %%I' end,
    r.rolname, current_user),
  (select format('select trunq.grant_role(%%L, ''reader'', %%L)', w.queue, current_user)
   from (select %s::text as queue) w
   where exists (select from door d where d.name = w.queue || '_read')
     and not exists (
       select from door d where d.is_open and d.name in (w.queue || '_read', w.queue || '_administer'))),
  exists (select from door d where d.is_open)
from pg_namespace n join pg_roles r on r.oid = n.nspowner where n.nspname = 'trunq'
"""

_SIZE: Final = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{0,20})?)\s*(bytes|[kMGTP]?B|)\s*", re.IGNORECASE)
_UNITS: Final = {unit: 1024**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb", "pb"))}

_LOCAL: Final = ("", "localhost", "127.0.0.1", "::1")


class Rights(NamedTuple):
    """What the role of a connection may see, by the catalog, and which grant shows it the rest."""

    role: str
    owns: bool
    """Whether it has the rights of the owner of trunq, who sees all."""
    grant: str
    """The statement that gives it those."""
    as_reader: str | None
    """The one that makes it a reader of the queue that was asked for; None: it is, or there is none."""
    reads: bool
    """Whether it is reader or admin of any queue."""

    @property
    def way_out(self) -> str:
        """What shows the role what it may not see."""
        if self.as_reader is not None:
            return f"{self.grant} shows all, {self.as_reader} what a reader of the queue sees"
        if not self.reads:
            return f"{self.grant} shows all, trunq.grant_role as reader what is in one queue"
        return f"{self.grant} shows it"


def rights(connection: psycopg.Connection[Any], queue: str | None = None) -> Rights | None:
    """What the role of a connection may see; None: there is no trunq in this database."""
    row = connection.execute(_RIGHTS, (queue,)).fetchone()
    return row and Rights(*row)


async def async_rights(connection: psycopg.AsyncConnection[Any], queue: str | None = None) -> Rights | None:
    """As `rights`."""
    row = await (await connection.execute(_RIGHTS, (queue,))).fetchone()
    return row and Rights(*row)


def refusal(error: psycopg.Error, held: Rights | None, what: str = "look") -> str:
    """Why a role may not do what it asked for, and what helps, in one sentence: that of the function that
    refused, where it says what helps.
    """
    said, hint = error.diag.message_primary or first_line(error), error.diag.message_hint
    if hint is not None or held is None:
        return said if hint is None else f"{said}: {hint}"
    return f"this role may not {what}: {held.way_out}"


def together(found: Iterable[Finding]) -> Iterator[Finding]:
    """Findings, of which those that one grant shows are one."""
    rows = list(found)
    areas = defaultdict[str, dict[str, None]](dict)
    for row in rows:
        if row.missing_grant is not None:
            areas[row.missing_grant][row.area] = None
    for row in rows:
        them = {} if row.missing_grant is None else areas.pop(row.missing_grant, None)
        if them is None:
            continue  # told with the first of them
        if len(them) > 1:
            told = f"this role may not look at {', '.join(them)}"
            yield row._replace(finding=told, hint=f"{row.missing_grant} shows them")
        else:
            yield row


def diagnose(
    dsn: str,
    now: Callable[[], float] = time.time,
    *,
    queues: int = 0,
    disk: str | None = None,
) -> list[Finding]:
    """All that is wrong with the database at `dsn`, seen from this machine whose clock is `now`.

    Of more than so many `queues`, others are looked at each minute; 0: all. `disk`: how large the disk
    of the server is, as Postgres writes sizes ('200GB'); of a server on this machine that is looked up. It
    changes nothing but a LISTEN and a NOTIFY of its own, on a channel that nobody else has. A look that
    fails is an error, and the others go on. Raises InvalidArgument for a `disk` that is no size;
    psycopg.OperationalError where the database cannot be reached.
    """
    if disk is not None:
        disk = disk_size(disk)
    with open_connection(complete(dsn, "trunq doctor")) as connection:
        looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
            ("version", lambda: _version(connection)),
            ("database", lambda: _database(connection, queues, disk)),
            ("clock", lambda: _clock(connection, now)),
            ("wake-up", lambda: _wake_up(dsn, connection)),
        )
        return [finding for area, look in looks for finding in _safely(connection, area, look)]


def disk_size(size: str) -> str:
    """A size in bytes, as every Postgres reads it. Raises InvalidArgument for one that no disk has."""
    found = _SIZE.fullmatch(size)
    count = round(float(found[1]) * _UNITS.get(found[2].lower(), 1)) if found else 0
    if not 0 < count < 2**63:
        raise InvalidArgument(
            f'"{size[:100]}" is not the size of a disk', "write it as Postgres writes sizes: 200GB, 1.5TB"
        )
    return f"{count} bytes"


def _safely(
    connection: psycopg.Connection, area: str, look: Callable[[], Iterator[Finding]]
) -> list[Finding]:
    try:
        return list(look())
    except psycopg.errors.InsufficientPrivilege as error:
        held = rights(connection)
        if held is None:
            return [_finding(area, "unseen", f"this role may not look at {area}: {first_line(error)}", "")]
        finding = f"role {held.role} may not look at {area}: {first_line(error)}"
        told = _finding(area, "unseen", finding, f"{held.grant} shows it")
        return [told._replace(missing_grant=held.grant)]
    except psycopg.Error as error:
        hint = error.diag.message_hint or "the log of the server may say more"
        return [_finding(area, "error", f"the look at {area} failed: {first_line(error)}", hint)]


def _database(connection: psycopg.Connection, queues: int, disk: str | None) -> Iterator[Finding]:
    # Of one that is there twice, to_regproc knows nothing either.
    of_ours = "where proname = 'diagnose' and pronamespace = to_regnamespace('trunq')"
    asks = f"select exists (select from pg_proc {of_ours})".encode()
    if connection.execute(asks).fetchone() == (False,):
        return
    # In one transaction: behind a pooler, the next one may be another session's.
    with connection.transaction():
        if disk is None:
            disk = _disk_beside(connection)
        if disk is not None:
            connection.execute("select set_config('trunq.disk_size', %s, true)", (disk,))
        looked = connection.execute("select * from trunq.diagnose(%s)", (queues,))
        # A database of another version tells other columns.
        names = [column.name for column in looked.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in looked]
    for told in rows:
        yield Finding(**{name: value for name, value in told.items() if name in Finding._fields})


def _disk_beside(connection: psycopg.Connection) -> str | None:
    """Of a server on this machine, what the database has and the disk has free; None: it is elsewhere, the
    role may not know, or somebody says how large the disk is.
    """
    host = connection.info.host
    asks = "select current_setting('trunq.disk_size', true), pg_has_role('pg_read_all_settings', 'usage')"
    if connection.execute(asks).fetchone() not in ((None, True), ("", True)):
        return None
    if host not in _LOCAL and not host.startswith("/"):
        return None
    asks = "select current_setting('data_directory'), pg_database_size(current_database())"
    directory, size = connection.execute(asks).fetchone() or ("", 0)
    try:
        if not Path(directory, "PG_VERSION").is_file():
            return None  # of a container, perhaps
        return f"{size + shutil.disk_usage(directory).free} bytes"
    except OSError:
        return None


def _finding(area: str, severity: str, finding: str, hint: str) -> Finding:
    return Finding(area, severity, None, None, finding, hint, None)  # type: ignore[arg-type]


def _version(connection: psycopg.Connection) -> Iterator[Finding]:
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


def _clock(connection: psycopg.Connection, now: Callable[[], float]) -> Iterator[Finding]:
    asked = now()
    row = connection.execute("select extract(epoch from clock_timestamp())").fetchone()
    answered = now()
    if row is None:
        return
    unsure = (answered - asked) / 2
    ahead = (asked + answered) / 2 - float(row[0])
    if abs(ahead) > CLOCKS_DIFFER + unsure:
        yield _finding(
            "clock",
            "warning",
            f"the clock of this machine is {abs(ahead):.0f} s"
            f" {'ahead of' if ahead > 0 else 'behind'} the server's",
            "have both follow NTP (timedatectl set-ntp true); trunq goes by the server's",
        )


def _wake_up(dsn: str, connection: psycopg.Connection) -> Iterator[Finding]:
    if connection.execute("select pg_is_in_recovery()").fetchone() == (True,):
        yield _finding(
            "wake-up",
            "unseen",
            "this server is a standby, where nothing can listen; the rest is what has reached it",
            "give the address of the primary",
        )
        return
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
