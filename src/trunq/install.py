"""Puts trunq into a database, or brings one up to date: the files of sql/, in one transaction, under a lock.

Migrations change tables, once, in the order of their numbers, recorded in trunq.migration. Functions say
what the system does today: all of them are applied again whenever one of them differs from what the
database was given last. An install is an upgrade from nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, cast

import psycopg
from psycopg.rows import tuple_row

from trunq.connection.address import complete
from trunq.errors import SchemaMissing, SchemaNewer, SchemaOlder

Connection = psycopg.Connection[Any]

LOCK: Final = 1953656416
"""Class of the advisory lock that lets in one install at a time; sql/functions/clock.sql lists the others."""

_CHECKSUM: Final = "select obj_description(to_regnamespace('trunq_data')::oid, 'pg_namespace')"

_LATE_BOUND: Final = "set local check_function_bodies = off;"
"""Functions in `language sql` may name what a later file makes."""

_INSTALL: Final = "`trunq db install` puts it there"
_UPGRADE: Final = "`trunq db upgrade` brings it up to date"
_RENEW: Final = "`pip install --upgrade trunq` brings this program up to date"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of sql/migrations."""

    number: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Change:
    """What an install did: the schema version before (None: there was none) and after; functions applied?"""

    before: int | None
    after: int
    functions: bool


def install(where: str | Connection) -> Change:
    """Put trunq into the database, or bring it up to date; nothing happens when it is.

    `where` is a connection string, or a connection whose transaction it joins. Twenty at once are as good
    as one. Raises SchemaNewer when the database was made by a newer trunq.
    """
    with _transaction(where) as connection:
        # Whoever waits here finds the work done: the statements below see what was committed meanwhile.
        connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCK,))
        before = version(connection)
        if (before or 0) > newest():
            raise _newer(before or 0)
        for migration in migrations()[before or 0 :]:
            _run(connection, migration.sql)
            _run(connection, _record(migration))
        functions = before != newest() or _fetch(connection, _CHECKSUM) != _mark()
        if functions:
            _run(connection, _LATE_BOUND)
            for _, sql in function_files():
                _run(connection, sql)
            _run(connection, _finish())
    return Change(before, newest(), functions)


upgrade = install


def version(where: str | Connection) -> int | None:
    """Number of the newest migration the database has had; None when trunq is not in it."""
    with _transaction(where) as connection:
        if _fetch(connection, "select to_regclass('trunq.migration')") is None:
            return None
        return cast("int | None", _fetch(connection, "select max(number) from trunq.migration"))


def check(where: str | Connection) -> None:
    """Raise SchemaMissing, SchemaOlder or SchemaNewer unless the database fits this version of trunq."""
    compare(version(where))


def compare(found: int | None) -> None:
    """Raise SchemaMissing, SchemaOlder or SchemaNewer unless schema version `found` is what we work with."""
    if found is None:
        raise SchemaMissing("trunq is not in this database", _INSTALL)
    if found < newest():
        raise SchemaOlder(
            f"this database has schema {found} of trunq, this program needs {newest()}", _UPGRADE
        )
    if found > newest():
        raise _newer(found)


def render(since: int = 0) -> str:
    """The whole install as one SQL script, for a DBA to read and run; `since` is the version there now."""
    parts = [
        f"-- trunq: from schema {since} to {newest()}, in one transaction. Run it with psql -f.",
        "begin;",
        f"select pg_advisory_xact_lock({LOCK}, 0);",
        _guard(since),
    ]
    for migration in migrations()[since:]:
        parts += [f"-- migrations/{migration.name}", migration.sql, _record(migration)]
    parts.append(_LATE_BOUND)
    for name, sql in function_files():
        parts += [f"-- {name}", sql]
    parts += [_finish(), "commit;", ""]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration, in order; their numbers are 1, 2, 3 without a gap."""
    return tuple(
        Migration(int(path.name[:4]), path.name.removesuffix(".sql"), path.read_text(encoding="utf-8"))
        for path in _sql_files("migrations")
    )


@cache
def function_files() -> tuple[tuple[str, str], ...]:
    """Path and text of every file of functions, in the order they are applied."""
    return tuple(
        (f"{folder}/{path.name}", path.read_text(encoding="utf-8"))
        for folder in ("functions", "queue")
        for path in _sql_files(folder)
    )


def newest() -> int:
    """Schema version this trunq works with."""
    return len(migrations())


def _sql_files(folder: str) -> list[Traversable]:
    return sorted(
        (path for path in (files("trunq") / "sql" / folder).iterdir() if path.name.endswith(".sql")),
        key=lambda path: path.name,
    )


@contextmanager
def _transaction(where: str | Connection) -> Iterator[Connection]:
    if isinstance(where, str):
        with psycopg.connect(complete(where, "trunq install")) as connection, _transaction(connection):
            yield connection
    elif where.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        with where.transaction():
            yield where
    else:
        # Under an older snapshot we would not see what those before us in the queue for the lock have done.
        level, where.isolation_level = where.isolation_level, psycopg.IsolationLevel.READ_COMMITTED
        try:
            with where.transaction():
                yield where
        finally:
            where.isolation_level = level


def _run(connection: Connection, sql: str) -> None:
    # Without parameters psycopg sends the text as it is: any number of statements.
    connection.execute(sql.encode())


def _fetch(connection: Connection, query: str) -> Any:
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    return row and row[0]


def _record(migration: Migration) -> str:
    return f"insert into trunq.migration (number, name) values ({migration.number}, '{migration.name}');"


def _finish() -> str:
    """The last step: functions generated for each queue are made again, and the checksum is noted."""
    return f"select trunq._refresh_queues();\ncomment on schema trunq_data is '{_mark()}';"


@cache
def _mark() -> str:
    """What is noted in the database to know its functions by: no table is needed, and a dump keeps it."""
    digest = hashlib.sha256("".join(sql for _, sql in function_files()).encode()).hexdigest()
    return f"trunq: segments, leases and receipts; internal. Functions {digest[:16]}."


def _guard(since: int) -> str:
    """Refuse to run the script on a database in another state than it was written for."""
    return f"""do $$
declare
  v_version integer := 0;
begin
  if to_regclass('trunq.migration') is not null then
    select max(number) into v_version from trunq.migration;
  end if;
  if v_version <> {since} then
    raise exception 'this script starts at schema {since} of trunq, this database has %', v_version
      using hint = format('print the right one: trunq db sql --since %s', v_version);
  end if;
end $$;"""


def _newer(found: int) -> SchemaNewer:
    return SchemaNewer(
        f"this database has schema {found} of trunq, this program knows only {newest()}", _RENEW
    )
