"""Takes migrations back, to go back to an older release: the files of sql/migrations/back, under a lock.

All of it is one transaction. First the functions retire, as they fit no older tables
(functions/operate/downgrade.sql): until the older release's `trunq db upgrade` has put its own there,
clients, workers and triggers refuse. What the files drop is written into a file before they run. The tables
of queues keep the columns that only their specimens lose: nobody fills them, and they are there when the
migration is applied again; so no log is locked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from trunq import install
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import SchemaError
from trunq.sql import Migration, back_migrations, migrations

Connection = psycopg.Connection[Any]

_PATIENCE: Final = 60
"""How often it tries again when an open transaction stands in its way, each time for 200 ms a lock."""

_BLOCKED: Final = "an open transaction stands in the way of this downgrade, and nothing was changed"
_UNBLOCK: Final = "pg_stat_activity (xact_start) or pg_prepared_xacts shows it; end it, or wait for its end"

_TABLES: Final = """
select c.oid::regclass::text,
  array_agg(a.attname::text order by a.attnum) filter (where a.attnum is not null),
  coalesce((
    select array_agg(k.attname::text order by k.attnum) from pg_index i
    join pg_attribute k on k.attrelid = i.indrelid and k.attnum = any (i.indkey)
    where i.indrelid = c.oid and i.indisprimary), '{}')
from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace in ('trunq'::regnamespace, 'trunq_log'::regnamespace, 'trunq_data'::regnamespace)
  -- Specimens hold no rows.
  and c.relkind in ('r', 'p') and not c.relispartition and c.relname !~ '^_(lane|unique)?specimen'
group by c.oid
"""

_GRANTS: Final = """
select format('grant %s on %s %s to %s;', lower(a.privilege_type),
  case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure, a.grantee::regrole)
from pg_proc p cross join lateral aclexplode(p.proacl) a
where p.pronamespace = 'trunq'::regnamespace and a.grantee not in (0, p.proowner)
union all
select format('revoke execute on %s %s from public;',
  case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure)
from pg_proc p
where p.pronamespace = 'trunq'::regnamespace and p.proacl is not null and p.prorettype <> 'trigger'::regtype
  and not exists (select from aclexplode(p.proacl) a where a.grantee = 0)
union all
select format('grant %s on %s to %s;', lower(a.privilege_type), c.oid::regclass,
  case when a.grantee = 0 then 'public' else a.grantee::regrole::text end)
from pg_class c cross join lateral aclexplode(c.relacl) a
where c.relnamespace = 'trunq_queue'::regnamespace and c.relkind = 'v' and a.grantee <> c.relowner
order by 1
"""

_CAPTURED: Final = """
select distinct g.tgrelid::regclass::text from pg_trigger g join pg_class c on c.oid = g.tgrelid
where g.tgname ~ '^trunq_capture_[0-9]+_' and not c.relispartition order by 1
"""

_TYPES: Final = """
select y.typname::text from pg_type y join pg_class c on c.oid = y.typrelid
where y.typnamespace = 'trunq'::regnamespace and c.relkind = 'c'
"""

_WORKERS: Final = """
select distinct w.name from trunq.worker w
where w.seen_at > clock_timestamp() - interval '30 seconds' order by 1
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """What goes of a table: these columns, or, without any, all of it."""

    table: str
    columns: tuple[str, ...]
    rows: int
    """How many rows hold something there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A downgrade to come, or one that was done."""

    before: int
    after: int
    migrations: tuple[str, ...]
    """Those that are taken back, the newest first."""
    losses: tuple[Loss, ...]
    grants: tuple[str, ...]
    """Grants of others than trunq on functions and views that go, as statements."""
    captured: tuple[str, ...]
    """Tables of the user's that refuse to be changed until the older release is there."""
    workers: tuple[str, ...]
    """Workers that run now."""


def plan(where: str | Connection, to: int) -> Plan:
    """What a downgrade to schema `to` would do and drop. It tries it, and rolls it back.

    Raises SchemaError for a migration that cannot be taken back, and when there is nothing to take back.
    """
    return _with_patience(where, to, None)


def downgrade(where: str | Connection, to: int, file: Path) -> Plan:
    """Go back to schema `to`, and write what it drops into a new file first, as lines of JSON.

    Until the older release's `trunq db upgrade`, nobody can publish or work. Publishers are waited for, and
    wait, 200 ms at a time. Raises SchemaError when something is in the way, and nothing was changed then;
    FileExistsError when the file is there.
    """
    return _with_patience(where, to, file)


def lowest() -> int:
    """The oldest schema that this release can go back to."""
    return next(
        (each.number for each in reversed(migrations()) if _find_back(each) is None), migrations()[0].number
    )


def _with_patience(where: str | Connection, to: int, file: Path | None) -> Plan:
    if isinstance(where, str):
        with open_lent(complete(where, "trunq downgrade")) as connection:
            return _with_patience(connection, to, file)
    for _ in range(_PATIENCE):
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            return _try(where, to, file)
        time.sleep(0.05)
    raise SchemaError(_BLOCKED, _UNBLOCK)


def _try(where: Connection, to: int, file: Path | None) -> Plan:
    with install.transaction(where) as connection, connection.transaction() as whole:
        connection.execute("select pg_advisory_xact_lock(%s, 0)", (install.LOCK,))
        backs = _find_backs(connection, to)
        connection.execute("select trunq._become_owner()")
        connection.execute("set local lock_timeout = '200ms'")
        with _told():
            done = _take_back(connection, to, backs, file)
        if file is None:
            raise psycopg.Rollback(whole)
    return done


def _find_backs(connection: Connection, to: int) -> list[Migration]:
    """What takes back each migration above `to`, the newest first."""
    before = install.version(connection)
    install.compare(before)
    if not install.is_applied(connection):
        raise SchemaError(
            "the functions in this database are not those of this release", "first `trunq db upgrade`"
        )
    if not 0 < to < install.newest():
        raise SchemaError(f"this database has schema {before}, and cannot go back to {to}", _say_lowest())
    backs = []
    for migration in reversed([each for each in migrations() if each.number > to]):
        back = _find_back(migration)
        if back is None:
            written = back_migrations().get(migration.number)
            why = f": {_comment(written.sql)}" if written is not None else ""
            raise SchemaError(f"migration {migration.name} cannot be taken back{why}", _say_lowest())
        backs.append(back)
    return backs


def _find_back(migration: Migration) -> Migration | None:
    """What takes a migration back; None when nothing does."""
    back = back_migrations().get(migration.number)
    return back if back is not None and re.sub(r"(?m)^\s*--.*$", "", back.sql).strip() else None


def _comment(text: str) -> str:
    return " ".join(line.removeprefix("--").strip() for line in text.strip().splitlines()).rstrip(".")


def _say_lowest() -> str:
    return f"schema {lowest()} is the oldest that this release can go back to"


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what stands in the way as what it is."""
    try:
        yield
    except psycopg.errors.DependentObjectsStillExist as error:
        raise SchemaError(
            f"something of yours needs what would be dropped, and nothing was changed:"
            f" {error.diag.message_detail or error.diag.message_primary}",
            "drop it first, and make it again afterwards",
        ) from error
    except psycopg.errors.OutOfMemory as error:
        raise SchemaError(
            "the server has not room for the locks of this downgrade, and nothing was changed",
            "raise max_locks_per_transaction, and start the server again",
        ) from error


def _take_back(connection: Connection, to: int, backs: list[Migration], file: Path | None) -> Plan:
    grants = tuple(_column(connection, _GRANTS))
    captured = tuple(_column(connection, _CAPTURED))
    workers = tuple(_column(connection, _WORKERS))
    whole, types = _find_tables(connection), set(_column(connection, _TYPES))
    with connection.transaction() as trial:
        connection.execute("select trunq._retire_functions(%s)", (to,))
        _run_backs(connection, backs)
        left = _find_tables(connection)
        types -= set(_column(connection, _TYPES))
        raise psycopg.Rollback(trial)
    losses = tuple(
        Loss(table, gone, _count_rows(connection, table, gone))
        for table, (columns, _) in sorted(whole.items())
        if (gone := _find_gone(columns, left.get(table))) is not None
    )
    done = Plan(install.newest(), to, tuple(back.name for back in backs), losses, grants, captured, workers)
    if file is None:
        return done
    for loss in losses:
        connection.execute(sql.SQL("lock table {} in access exclusive mode").format(_table(loss.table)))
    with _writing(file) as written:
        _dump(connection, done, whole, written)
    try:
        connection.execute("select trunq._retire_functions(%s, %s)", (to, sorted(types)))
        _run_backs(connection, backs)
        connection.execute("delete from trunq.migration where number > %s", (to,))
        mark = f"trunq: segments, leases and receipts; internal. Schema {to}, functions none."
        connection.execute(sql.SQL("comment on schema trunq_data is {}").format(mark))
    except BaseException:
        file.unlink()
        raise
    return done


def _run_backs(connection: Connection, backs: list[Migration]) -> None:
    for back in backs:
        try:
            connection.execute(back.sql.encode())
        except psycopg.errors.RaiseException as error:
            told = error.diag
            reason = (
                f"migration {back.name} cannot be taken back: {told.message_primary}; nothing was changed"
            )
            raise SchemaError(reason, told.message_hint) from error


def _find_tables(connection: Connection) -> dict[str, tuple[list[str], list[str]]]:
    """The tables of trunq, but for specimens: columns, and those of the primary key."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        return {name: (columns or [], key) for name, columns, key in cursor.execute(_TABLES.encode())}


def _find_gone(columns: list[str], left: tuple[list[str], list[str]] | None) -> tuple[str, ...] | None:
    """Which columns of a table go; none of them: all of it does; None: it stays as it is."""
    if left is None:
        return ()
    return tuple(column for column in columns if column not in left[0]) or None


def _table(name: str) -> sql.SQL:
    # As regclass writes it: quoted where need be.
    return sql.SQL(name)


def _holding(table: str, columns: tuple[str, ...]) -> sql.Composed:
    """The rows of a table that hold something in these columns."""
    filled = sql.SQL(" or ").join(sql.SQL("t.{} is not null").format(sql.Identifier(one)) for one in columns)
    return sql.SQL("from {} t where {}").format(_table(table), filled if columns else sql.SQL("true"))


def _count_rows(connection: Connection, table: str, columns: tuple[str, ...]) -> int:
    (count,) = _column(connection, sql.SQL("select count(*) ") + _holding(table, columns))
    return int(count)


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[IO[str]]:
    """A new file that nobody else may read, on the disk when it is left; without it when that fails."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            yield written
            written.flush()
            os.fsync(written.fileno())
    except BaseException:
        file.unlink()
        raise


def _dump(
    connection: Connection, done: Plan, tables: Mapping[str, tuple[list[str], list[str]]], written: IO[str]
) -> None:
    """A line on what this is, then one a row: its table, its key and what goes of it; then grants."""
    head = {"database": connection.info.dbname, "before": done.before, "after": done.after}
    written.write(json.dumps({**head, "at": datetime.now(UTC).isoformat()}) + "\n")
    for loss in done.losses:
        columns, key = tables[loss.table]
        kept = (key or columns) if loss.columns else columns
        picked = sql.SQL(", ").join(
            sql.SQL("t.{}").format(sql.Identifier(one)) for one in dict.fromkeys([*kept, *loss.columns])
        )
        row = sql.SQL("select to_jsonb(r) from (select {} {}) r").format(
            picked, _holding(loss.table, loss.columns)
        )
        line = sql.SQL(
            "copy (select jsonb_build_object('table', {}::text, 'row', l.row)::text from ({}) l(row))"
            " to stdout"
        )
        with connection.cursor().copy(line.format(loss.table, row)) as copy:
            written.writelines(f"{text}\n" for (text,) in copy.rows())
    written.writelines(json.dumps({"statement": grant}) + "\n" for grant in done.grants)


def _column(connection: Connection, query: str | sql.Composed, *parameters: Any) -> list[Any]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        text = query.encode() if isinstance(query, str) else query
        return [row[0] for row in cursor.execute(text, parameters or None)]
