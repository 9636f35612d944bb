"""Stages: tables that nobody reads, into which tasks copy rows, each under a part of its own."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql
from psycopg.errors import LockNotAvailable

from trunq.arrow.catalog import Connection, is_there
from trunq.arrow.statement import PART, Columns, create, written


def make(stage: sql.Identifier, columns: Columns, part: str, *, logged: bool = False) -> sql.Composed:
    """The stage, where there is none; `part`: the type of the names of parts."""
    kind = f"{'' if logged else 'unlogged '}table if not exists"
    return create(stage, [(PART, part), *columns], kind=kind) + sql.SQL(" with (autovacuum_enabled = off)")


def count(connection: Connection, schema: str, stage: str, parts: Sequence[str | int]) -> int:
    """How many rows these parts have there: a crash of Postgres empties a stage."""
    if not is_there(connection, sql.Identifier(schema, stage).as_string(None)):
        return 0
    query = sql.SQL("select count(*) from {} where {} = any(%s)").format(
        written(schema, stage), sql.Identifier(PART)
    )
    row = connection.execute(query, (list(parts),)).fetchone()
    return row[0] if row else 0


def drop(connection: Connection, schema: str, stage: str, patience: str = "100ms") -> None:
    """Drop a stage, unless somebody is at it for longer than that."""
    try:
        with connection.transaction():
            connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(patience)))
            connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(schema, stage)))
    except LockNotAvailable:
        return
