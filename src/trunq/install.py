"""Puts trunq into a database, or brings one up to date: the files of sql/, under a lock.

Migrations change tables, once, in the order of their numbers, recorded in trunq.migration. Functions say
what the system does today: all of them are applied again whenever one of them differs from what the
database was given last. An install is an upgrade from nothing. All of this is one transaction; then each
queue follows in a transaction of its own. functions/operate/install.sql says why, and what an upgrade keeps.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any, Final, cast

import psycopg
from psycopg.rows import tuple_row

from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import QueueInUse, SchemaError, SchemaMissing, SchemaNewer, SchemaOlder
from trunq.sql import Migration, facade_files, facades, function_files, migrations

Connection = psycopg.Connection[Any]

LOCK: Final = 1953656416
"""Class of the advisory lock that lets in one install at a time; ground/clock.sql lists the others."""

_CHECKSUM: Final = "select obj_description(to_regnamespace('trunq_data')::oid, 'pg_namespace')"

_PATH: Final = "set local search_path = pg_catalog, pg_temp;"
"""What is bound here (queries, defaults, views, bodies) never means somebody's own functions."""

_UNBOUNDED: Final = """select set_config(name, '0', true)
from unnest('{statement_timeout,transaction_timeout,idle_in_transaction_session_timeout}'::text[]) name
where current_setting(name, true) <> '0';"""
"""Limits of a role or a database are for its work, and end no upgrade halfway; pg_dump does the same."""

_LATE_BOUND: Final = "set local check_function_bodies = off;"
"""Functions in `language sql` may name what a later file makes."""

_ENCODING: Final = """do $$
begin
  if getdatabaseencoding() <> 'UTF8' then
    raise exception using errcode = 'object_not_in_prerequisite_state',
      message = format('trunq needs a database in UTF8; %I is in %s, which cannot hold every text',
        current_database(), getdatabaseencoding()),
      hint = 'create database NAME encoding UTF8 template template0';
  end if;
end $$;"""

_REACH: Final = """do $$
declare
  v_owner text := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'trunq');
begin
  -- A member of the owner that does not inherit its rights may not even look.
  if v_owner is null or has_schema_privilege('trunq', 'usage') then
    return;
  end if;
  if pg_has_role(v_owner, 'member') then
    perform set_config('role', v_owner, true);
  end if;
end $$;"""
_AS_OWNER: Final = "select trunq._become_owner();"
_NO_CHANGES: Final = "select set_config('trunq.changes', '[]', true);"
_KEEP_CHANGES: Final = "select set_config('trunq.changes', trunq._find_changes()::text, true);"

_PATIENCE: Final = 60
"""How often an install tries again when an open transaction stands in its way, each time for less than the
second after which Postgres looks for a deadlock: it is never the publisher who has to give up.
"""

_LOCK_TIMEOUT: Final = "set local lock_timeout = '200ms';"

_BLOCKED: Final = "an open transaction stands in the way of this upgrade, and nothing was changed"
_UNBLOCK: Final = "pg_stat_activity (xact_start) or pg_prepared_xacts shows it; end it, or wait for its end"

_NEEDED: Final = "something of yours needs what this upgrade replaces, and this step changed nothing"
_UNNEEDED: Final = (
    "keep what made it (pg_get_viewdef() of a view, pg_get_functiondef() of a function), drop it, upgrade,"
    " and make it again: functions may have other columns then"
)

_THEN: Final = ", and then each queue in one of its own"
_EACH: Final = "Stopped here, the queues that are left follow with `trunq db upgrade`, or this call again."


_MISFITS: Final = (
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateFunction,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.UndefinedTable,
)
"""What a migration says of tables that are not as those before it left them."""

_INSTALL: Final = "`trunq db install` puts it there, and completes a copy of its schema without rows"
_UPGRADE: Final = "`trunq db upgrade` brings it up to date"
_RENEW: Final = "`pip install --upgrade trunq` brings this program up to date"


@dataclass(frozen=True, slots=True)
class Change:
    """What an install did: the schema version before (None: there was none) and after; functions applied?"""

    before: int | None
    after: int
    functions: bool
    facades: tuple[str, ...] = ()
    """Those that were put there, or applied again."""
    queues: int = 0
    """How many queues were brought up to date here; others may have been by who installs at the same time."""


Tell = Callable[[str, int], None]
"""Called after each queue that was brought up to date: its name, and how many are left."""


def install(
    where: str | Connection, facade: str | None = None, *, repair: bool = False, tell: Tell | None = None
) -> Change:
    """Put trunq into the database, or bring it up to date; nothing happens when it is, unless with `repair`
    one of its functions was changed by hand.

    `facade` "pgq" puts PgQ's API over its queues too (pgq.md); one that is there is brought up to date
    without being named. `tell` hears of each queue that follows.

    `where` is a connection string, or a connection whose transaction it joins; without one, each queue is a
    transaction of its own, and what was stopped goes on where it was. Twenty at once are as good as one.
    Publishers go on; for an open transaction that stands in the way it waits some fifteen seconds. A copy of
    the schema without its rows is completed. Raises SchemaNewer when a newer trunq made the database;
    SchemaError when what a facade stands for is there, or has no roles; ValueError for an unknown facade.
    """
    _check_facade(facade)
    if isinstance(where, str):
        with open_lent(complete(where, "trunq install")) as connection:
            return install(connection, facade, repair=repair, tell=tell)
    for _ in range(_PATIENCE):
        with suppress(psycopg.errors.LockNotAvailable), _naming_users(), transaction(where) as connection:
            change = _install(connection, facade, repair)
            break
        time.sleep(0.05)
    else:
        raise SchemaError(_BLOCKED, _UNBLOCK)
    return replace(change, queues=_refresh(where, tell))


def _refresh(where: Connection, tell: Tell | None) -> int:
    """Bring each queue up to date that is not, also those that an upgrade before left behind; how many."""
    for done in count():
        with transaction(where) as connection, _restoring(connection, "role"):
            _run(connection, _REACH)
            left = count_outdated(connection)
            if not left and not _count(connection, "former"):
                return done
            try:
                with _naming_users():
                    queue = _fetch(connection, "select trunq._refresh_next()")
            except psycopg.Error as error:
                if error.sqlstate == QueueInUse.sqlstate:
                    raise SchemaError(str(error.diag.message_primary), error.diag.message_hint) from error
                raise
        if queue is None:
            return done
        if tell is not None:
            tell(queue, left - 1)
    raise AssertionError("count() never ends")


def count_outdated(connection: Connection) -> int:
    """How many queues an upgrade has left to do; 0 also for one who may not know."""
    return _count(connection, "outdated")


def _count(connection: Connection, table: str) -> int:
    if not _fetch(connection, f"select has_table_privilege(to_regclass('trunq.{table}'), 'select')"):
        return 0
    return cast("int", _fetch(connection, f"select count(*) from trunq.{table}"))


def _install(connection: Connection, facade: str | None, repair: bool) -> Change:
    _run_or_refuse(connection, _ENCODING)
    # Whoever waits here finds the work done: the statements below see what was committed meanwhile.
    connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCK,))
    with _restoring(connection, "role"):
        _run(connection, _REACH)
        return _bring_up_to_date(connection, facade, repair)


def _bring_up_to_date(connection: Connection, facade: str | None, repair: bool) -> Change:
    before = version(connection)
    if (before or 0) > newest():
        raise _newer(before or 0)
    copied = _schema_of_copy(connection) if before is None else 0
    functions = before != newest() or _fetch(connection, _CHECKSUM) != _mark()
    functions = functions or (repair and bool(changed_functions(connection)))
    if functions:
        _require_facades(connection)
        with _restoring(connection, "lock_timeout", "check_function_bodies", "role"):
            _apply(connection, before or 0, copied)
    found = tuple(name for name in facades() if _is_facade_old(connection, name, facade, functions))
    for name in found:
        with _restoring(connection, "lock_timeout", "check_function_bodies", "role"):
            _run(connection, _LOCK_TIMEOUT)
            _run(connection, _AS_OWNER)
            _run_or_refuse(connection, _facade_sql(name))
    return Change(before, newest(), functions, found)


def _require_facades(connection: Connection) -> None:
    """Refuse to leave the API of another system behind, which calls functions that are applied now."""
    there = _fetch(
        connection,
        "select array_agg(n.nspname::text) from pg_namespace n join pg_namespace own using (nspowner)"
        " where own.nspname = 'trunq' and n.nspname !~ '^trunq'"
        " and obj_description(n.oid, 'pg_namespace') ~ '^trunq: '",
    )
    if missing := sorted({*(there or ())} - {*facades()}):
        raise SchemaError(
            f"this database has the API of {missing[0]}, which this program cannot bring up to date",
            f'`pip install "trunq[{missing[0]}]"`, then again',
        )


@contextmanager
def _naming_users() -> Iterator[None]:
    """Say which view of the user's, or what else, needs what is dropped or changed."""
    try:
        yield
    except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.FeatureNotSupported) as error:
        told = error.diag.message_detail
        if told is None:
            raise
        raise SchemaError(f"{_NEEDED}: {'; '.join(told.splitlines())}", _UNNEEDED) from error


def _is_facade_old(connection: Connection, name: str, wanted: str | None, functions: bool) -> bool:
    found = _fetch(connection, f"select obj_description(to_regnamespace('{name}')::oid, 'pg_namespace')")
    return (str(found).startswith("trunq:") or name == wanted) and (functions or found != _facade_mark(name))


def _apply(connection: Connection, before: int, copied: int) -> None:
    """Everything an install runs, on a schema `before`, or on a copy, without rows, of schema `copied`."""
    _run(connection, _LOCK_TIMEOUT)
    if before or copied:
        _run(connection, _AS_OWNER)
    _run(connection, _KEEP_CHANGES if before else _NO_CHANGES)
    for migration in migrations():
        if migration.number > (before or copied):
            _migrate(connection, migration, before or copied)
        if migration.number > before:
            _run(connection, _record(migration))
    _run(connection, _LATE_BOUND)
    for _, sql in function_files():
        _run(connection, sql)
    if copied:
        _run(connection, "select trunq._restore_rows()")
    _run(connection, _finish())


def _migrate(connection: Connection, migration: Migration, since: int) -> None:
    try:
        _run(connection, migration.sql)
    except _MISFITS as error:
        if not since:
            raise
        raise SchemaError(
            f"this database has a schema {since} of trunq that no release made, or that was changed by hand:"
            f" migration {migration.name} does not fit it, and nothing was changed:"
            f" {error.diag.message_primary}",
            "with the trunq that made it: work off its queues, `trunq db uninstall`; then install this one",
        ) from error


def is_applied(where: str | Connection) -> bool:
    """Whether the functions in the database are those of this program."""
    with transaction(where) as connection:
        return bool(_fetch(connection, _CHECKSUM) == _mark())


def changed_functions(connection: Connection) -> list[str]:
    """What is said of each function that somebody changed; nothing where no install has noted them."""
    if _fetch(connection, "select to_regprocedure('trunq._changed_functions()')") is None:
        return []
    with connection.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute("select c.defect from trunq._changed_functions() c").fetchall()
    return [defect for (defect,) in found]


def version(where: str | Connection) -> int | None:
    """Number of the newest migration the database has had; None when trunq is not in it."""
    with transaction(where) as connection:
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
        told = f"this database has schema {found} of trunq, this program needs {newest()}"
        raise SchemaOlder(told, _UPGRADE)
    if found > newest():
        raise _newer(found)


def render(since: int = 0, facade: str | None = None) -> str:
    """The whole install as one SQL script, for a DBA to read and run; `since` is the version there now.

    With a `facade` that too. Raises ValueError for an unknown one.
    """
    _check_facade(facade)
    parts = [
        f"-- trunq: from schema {since} to {newest()}, in one transaction{_THEN if since else ''}."
        " Run it with psql -f.",
        _UNBOUNDED.replace(", true)", ", false)", 1),
        "begin isolation level read committed;",
        _PATH,
        _ENCODING,
        f"select pg_advisory_xact_lock({LOCK}, 0);",
        _REACH,
        _guard(since),
        *([_AS_OWNER, _KEEP_CHANGES] if since else [_NO_CHANGES]),
    ]
    for migration in migrations():
        if migration.number <= since:
            continue
        parts += [f"-- migrations/{migration.name}", migration.sql, _record(migration)]
    parts.append(_LATE_BOUND)
    for name, sql in function_files():
        parts += [f"-- {name}", sql]
    parts.append(_finish())
    if facade is not None:
        parts += [f"-- {facade}", _facade_sql(facade)]
    parts.append("commit;")
    if since:
        reach = _REACH.replace("v_owner, true", "v_owner, false")
        parts += [f"-- {_EACH}", reach, "call trunq._refresh_each();", "reset role;"]
    parts.append("")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def newest() -> int:
    """Schema version this trunq works with."""
    return migrations()[-1].number


@contextmanager
def transaction(where: str | Connection) -> Iterator[Connection]:
    """One in which names mean what they mean in Postgres; of an address, as the owner of trunq if need be."""
    if isinstance(where, str):
        with open_lent(complete(where, "trunq install")) as connection, transaction(connection):
            _run(connection, _REACH)
            yield connection
    elif where.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        with where.transaction(), _restoring(where, "search_path"):
            _run(where, _PATH)
            yield where
    else:
        # Under an older snapshot we would not see what those before us in the queue for the lock have done.
        level, where.isolation_level = where.isolation_level, psycopg.IsolationLevel.READ_COMMITTED
        try:
            with where.transaction():
                _run(where, _PATH)
                _run(where, _UNBOUNDED)
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


def _run_or_refuse(connection: Connection, sql: str) -> None:
    """Run what says itself why it cannot be."""
    try:
        _run(connection, sql)
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise SchemaError(str(error.diag.message_primary), error.diag.message_hint) from error


def _check_facade(facade: str | None) -> None:
    if facade is not None and facade not in facades():
        way = f'`pip install "trunq[{facade}]"` brings it, if there is one'
        raise ValueError(f'there is no facade "{facade}" here: {way}')


def _facade_sql(facade: str) -> str:
    texts = "\n\n".join(f"-- {name}\n\n{sql}" for name, sql in facade_files(facade))
    return f"{_LATE_BOUND}\n\n{texts}\n\ncomment on schema {facade} is '{_facade_mark(facade)}';"


def _facade_mark(facade: str) -> str:
    digest = hashlib.sha256("".join(sql for _, sql in facade_files(facade)).encode()).hexdigest()[:16]
    return f"trunq: the API of {facade} over its queues; functions {digest}."


def _record(migration: Migration) -> str:
    return f"insert into trunq.migration (number, name) values ({migration.number}, '{migration.name}');"


def _finish() -> str:
    """The last step: functions get doors, queues are to follow, what was changed by hand is again."""
    return f"""select trunq._note_former();
select trunq._add_doors();
select trunq._note_settings();
select trunq._outdate_queues(current_setting('trunq.changes')::jsonb);
comment on schema trunq_data is '{_mark()}';"""


def _mark() -> str:
    """What is noted in the database to know its version by: even a dump of the schema alone keeps it."""
    return f"trunq: segments, leases and receipts; internal. Schema {newest()}, functions {_digest()}."


@cache
def _digest() -> str:
    return hashlib.sha256("".join(sql for _, sql in function_files()).encode()).hexdigest()[:16]


def _schema_of_copy(connection: Connection) -> int:
    """The version of a schema that was copied without its rows; 0 when there is none."""
    if _fetch(connection, "select to_regclass('trunq.migration')") is None:
        return 0
    found = re.search(r" Schema (\d+),", _fetch(connection, _CHECKSUM) or "")
    if found is None:
        raise SchemaError(
            "this database has tables of trunq, but not their rows, and nothing says of which version",
            "drop schema trunq, trunq_log, trunq_queue, trunq_data, trunq_archive cascade; then install"
            " again",
        )
    if int(found[1]) > newest():
        raise _newer(int(found[1]))
    return int(found[1])


@contextmanager
def _restoring(connection: Connection, *settings: str) -> Iterator[None]:
    """Settings changed here are as before in the rest of the caller's transaction."""
    values = [_fetch(connection, f"select current_setting('{name}')") for name in settings]
    yield
    for name, value in zip(settings, values, strict=True):
        connection.execute("select set_config(%s, %s, true)", (name, value))


def _guard(since: int) -> str:
    """Refuse to run the script on a database in another state than it was written for."""
    return f"""do $$
declare
  v_version integer := 0;
begin
  if to_regclass('trunq.migration') is not null then
    select max(number) into v_version from trunq.migration;
  end if;
  if v_version is null then
    raise exception 'this database has tables of trunq, but not their rows: a copy of the schema alone'
      using hint = '`trunq db install` completes it';
  end if;
  if v_version <> {since} then
    raise exception 'this script starts at schema {since} of trunq, this database has %', v_version
      using hint = format('print the right one: trunq db sql --since %s', v_version);
  end if;
end $$;"""


def _newer(found: int) -> SchemaNewer:
    told = f"this database has schema {found} of trunq, this program knows only {newest()}"
    return SchemaNewer(told, _RENEW)
