"""Marks: how far a series of numbered writes has come, kept with what they wrote.

A write takes the row of its series, looks whether its number is newer, writes, and notes the number: all in
one transaction. Of two with the same number, the second waits, and finds that it is not newer.
"""

from __future__ import annotations

from typing import Final

from psycopg import sql
from psycopg.errors import DuplicateObject, DuplicateTable, UniqueViolation

from trunq.arrow.catalog import Connection, is_there

SCHEMA: Final = "trunq_sink"
"""Where marks and stages are, unless somebody says otherwise."""

# Elsewhere it is remembered (by the run, by Spark's checkpoint) what a crash would take from here.
LASTING: Final = sql.SQL(
    "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'"
)
"""Has the commit wait for the disk."""

_HOLDING: Final = sql.SQL("""
select set_config(s.name, s.value, true) from (values
  ('synchronous_commit', 'off', 'on'), ('idle_in_transaction_session_timeout', '0', {})) s(name, was, value)
where current_setting(s.name) = s.was""")

PATIENCE: Final = 60
"""Seconds for which a transaction that others wait for may wait for its client."""

_SCHEMA: Final = sql.SQL("create schema if not exists {}")
_MARKS: Final = sql.SQL("""create table if not exists {} (
  mark text primary key, pipeline text not null, number bigint not null, attempt bigint not null,
  applied_at timestamptz
)""")


def make_marks(connection: Connection, schema: str = SCHEMA) -> None:
    """Make the table of marks where there is none."""
    table = _table(schema)
    if is_there(connection, table.as_string(None)):
        return
    statements = [_MARKS.format(table)]
    name = sql.Identifier(schema).as_string(None)
    row = connection.execute("select to_regnamespace(%s)", (name,)).fetchone()
    if row is None or row[0] is None:
        # One who has the schema need not have the right to make schemas.
        statements.insert(0, _SCHEMA.format(sql.Identifier(schema)))
    for statement in statements:
        # Two at once: the second finds what the first made, the table or at first the type of its rows.
        try:
            with connection.transaction():
                connection.execute(statement)
        except (UniqueViolation, DuplicateTable, DuplicateObject):
            continue


def begin(mark: str, of: str, number: int, schema: str = SCHEMA) -> sql.Composed:
    """A series that is new begins with this number."""
    return sql.SQL(
        "insert into {} (mark, pipeline, number, attempt) values ({}, {}, {}, 0) on conflict do nothing"
    ).format(_table(schema), sql.Literal(mark), sql.Literal(of), sql.Literal(number))


def take(mark: str, schema: str = SCHEMA) -> sql.Composed:
    """The number of a series, locked to the end of the transaction."""
    return read(mark, schema) + sql.SQL(" for update")


def bound(connection: Connection) -> None:
    """Have this transaction last, and be over soon where its process is frozen, or cut off, in between."""
    connection.execute(_HOLDING.format(sql.Literal(f"{PATIENCE}s")))


def hold(connection: Connection, mark: str, of: str, before: int, schema: str = SCHEMA) -> int:
    """Hold the mark to the end of the transaction, which is to last; the number that the series has come to,
    `before` if it is new.
    """
    bound(connection)
    connection.execute(begin(mark, of, before, schema))
    found = connection.execute(take(mark, schema)).fetchone()
    assert found is not None
    number: int = found[0]
    return number


def read(mark: str, schema: str = SCHEMA) -> sql.Composed:
    """The number and attempt of a series."""
    return sql.SQL("select number, attempt from {} where mark = {}").format(_table(schema), sql.Literal(mark))


def read_number(mark: str, schema: str = SCHEMA) -> sql.Composed:
    """The number alone."""
    return sql.SQL("select number from {} where mark = {}").format(_table(schema), sql.Literal(mark))


def note(mark: str, of: str, number: int, attempt: int = 0, schema: str = SCHEMA) -> sql.Composed:
    """The series has come to this number."""
    return sql.SQL(
        "update {} set number = {}, attempt = {}, pipeline = {}, applied_at = clock_timestamp()"
        " where mark = {}"
    ).format(_table(schema), sql.Literal(number), sql.Literal(attempt), sql.Literal(of), sql.Literal(mark))


def _table(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, "mark")
