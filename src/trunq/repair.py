"""Puts back what queues lack (trunq.list_defects), while publishers and workers go on.

Each repair is a transaction of its own, which waits for a lock no longer than 200 ms and tries again. An
index on a partitioned table is made in the way that blocks nobody: of the table alone, not valid yet; of each
segment concurrently; then each is attached, and with the last one it is valid. Stopped half way, it goes on
where it was when it is run again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import SchemaError
from trunq.record import Defect

Connection = psycopg.Connection[Any]

_PATIENCE: Final = 60
"""How often a repair is tried when an open transaction stands in its way, each time for 200 ms a lock."""

_INDEX: Final = re.compile(r"create (?P<unique>unique )?index on (?P<table>\S+) (?P<rest>.*)", re.DOTALL)

_FIND: Final = """
select i.indexrelid::regclass::text, i.indisvalid from pg_index i
where i.indrelid = %s::regclass and trunq._index_text(i.indexrelid) = %s
  and not exists (select from pg_inherits h where h.inhrelid = i.indexrelid)
order by i.indisvalid desc, 1
"""

_LACKING: Final = """
select p.inhrelid::regclass::text from pg_inherits p
where p.inhparent = %s::regclass and not exists (
  select from pg_index i join pg_inherits h on h.inhrelid = i.indexrelid and h.inhparent = %s::regclass
  where i.indrelid = p.inhrelid)
order by 1
"""


def mend(where: str, tell: Callable[[Defect], None] | None = None) -> list[Defect]:
    """Put back all that queues lack; returns what that was, and `tell` hears of each.

    Raises SchemaError when an open transaction stands in the way for some fifteen seconds, or where rows do
    not allow it (two of one unique key); what is done stays done.
    """
    done: list[Defect] = []
    with open_lent(complete(where, "trunq repair")) as connection:
        connection.autocommit = True
        connection.execute("select trunq._become_owner()")
        connection.execute("set search_path = pg_catalog, pg_temp")
        owner = _fetch(
            connection,
            "select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'trunq'",
        )
        connection.execute(f"set role {owner}".encode())
        try:
            for defect in _list(connection):
                _repair(connection, defect)
                done.append(defect)
                if tell is not None:
                    tell(defect)
        finally:
            connection.execute("reset role")
    return done


def _list(connection: Connection) -> list[Defect]:
    """Indexes last: a segment that is attached needs them too."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        found = [Defect(*row) for row in cursor.execute("select * from trunq.list_defects()")]
    return sorted(found, key=lambda defect: (_ORDER.index(defect.kind), defect))


_ORDER: Final = ("column", "function", "default", "null", "segment", "trigger", "index")


def _repair(connection: Connection, defect: Defect) -> None:
    try:
        if defect.kind == "index":
            _make_index(connection, defect.repair)
        else:
            _execute(connection, defect.repair)
    except psycopg.errors.LockNotAvailable as error:
        raise SchemaError(
            f"{defect.defect}, and an open transaction stands in the way of its repair",
            "pg_stat_activity (xact_start) or pg_prepared_xacts shows it; end it, and repair again",
        ) from error
    except (psycopg.errors.IntegrityError, psycopg.errors.ProgrammingError) as error:
        raise SchemaError(
            f"{defect.defect}, and cannot be repaired: {error.diag.message_primary}",
            f"the statement that failed: {defect.repair}",
        ) from error


def _execute(connection: Connection, statement: str) -> None:
    """Run it in a transaction that waits 200 ms for a lock, again and again."""
    for left in reversed(range(_PATIENCE)):
        try:
            with connection.transaction():
                connection.execute("set local lock_timeout = '200ms'")
                connection.execute(statement.encode())
                return
        except psycopg.errors.LockNotAvailable:
            if not left:
                raise
        time.sleep(0.05)


def _make_index(connection: Connection, statement: str) -> None:
    found = _INDEX.fullmatch(statement)
    if found is None:
        raise ValueError(f"no statement that makes an index: {statement}")
    unique, table, rest = found["unique"] or "", found["table"], found["rest"]
    if _fetch(connection, "select relkind = 'r' from pg_class where oid = %s::regclass", table):
        _make_concurrently(connection, unique, table, rest)
        return
    text = _text_of(connection, unique, table, rest)
    whole = _find(connection, table, text)
    if whole is None:
        _execute(connection, f"create {unique}index on only {table} {rest}")
        whole = _newest(connection, table)
        text = _fetch(connection, "select trunq._index_text(%s::regclass)", whole)
    with connection.cursor(row_factory=tuple_row) as cursor:
        segments = [name for (name,) in cursor.execute(_LACKING.encode(), (table, whole))]
    for segment in segments:
        part = _find(connection, segment, text, is_valid=True)
        if part is None:
            part = _make_concurrently(connection, unique, segment, rest, text)
        _execute(connection, f"alter index {whole} attach partition {part}")


def _text_of(connection: Connection, unique: str, table: str, rest: str) -> str:
    """How Postgres writes such an index of the table, as it writes expressions in its own way."""
    for name in _indexes(connection, table):
        text = str(_fetch(connection, "select trunq._index_text(%s::regclass)", name))
        if _bare(text) == _bare(f"{unique.upper()}{rest}"):
            return text
    return f"{unique.upper()}{rest}"


def _bare(text: str) -> str:
    """An index without the brackets and casts that Postgres adds."""
    return re.sub(r"::\w+|[()\s]", "", text).lower()


def _indexes(connection: Connection, table: str) -> list[str]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        query = (
            "select i.indexrelid::regclass::text from pg_index i where i.indrelid = %s::regclass"
            " order by i.indexrelid"
        )
        return [name for (name,) in cursor.execute(query, (table,))]


def _newest(connection: Connection, table: str) -> str:
    return _indexes(connection, table)[-1]


def _find(connection: Connection, table: str, text: str, *, is_valid: bool = False) -> str | None:
    """An index of a table by what it is, that belongs to no other; a broken one goes if one must be valid."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(_FIND.encode(), (table, text)).fetchall()
    for name, valid in found:
        if valid or not is_valid:
            return str(name)
        # Of a repair that was stopped.
        connection.execute(f"drop index concurrently {name}".encode())
    return None


def _make_concurrently(
    connection: Connection, unique: str, table: str, rest: str, text: str | None = None
) -> str:
    if text is None:
        text = _text_of(connection, unique, table, rest)
        _find(connection, table, text, is_valid=True)
    # It waits for transactions, and nobody for it.
    connection.execute(f"create {unique}index concurrently on {table} {rest}".encode())
    return _newest(connection, table)


def _fetch(connection: Connection, query: str, *parameters: Any) -> Any:
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query.encode(), parameters or None).fetchone()
    return row and row[0]
