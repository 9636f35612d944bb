"""Stages: unlogged tables that tasks copy into, and how they are dropped."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Final

from psycopg import sql

from trunq.arrow import mark
from trunq.arrow.stage import drop, make
from trunq.arrow.statement import written
from trunq.spark.connection import Connection
from trunq.spark.sink.commit import Session

KEPT: Final = 3 * 86400
"""Seconds after which the stage of a job, or its mark, is taken for that of a dead one."""

_NAME: Final = re.compile(r"spark_([0-9a-f]{16})_(\d+)_(\d+)_[0-9a-f]{8}")


def stage_name(series: str, version: int, began: int, job: str) -> str:
    """The stage of a job: of which series and version, since when."""
    return f"spark_{_hash(series)}_{version}_{began}_{job[:8]}"


def make_stage(
    own: Session, schema: str, stage: str, columns: Sequence[tuple[str, str]], series: str
) -> int | None:
    """Makes a stage, unless another task did; the number that the series has come to."""
    table = sql.Identifier(schema, stage)
    name = table.as_string(None)
    found = own.execute(
        sql.SQL("select to_regclass({}) is not null, ({})").format(
            sql.Literal(name), mark.read_number(series, schema)
        )
    )
    assert found is not None
    if not found[0]:
        # Of tasks that make it at once, one does.
        own.execute(
            sql.SQL("select pg_advisory_xact_lock(hashtextextended({}, 0))").format(sql.Literal(name))
        )
        own.execute(make(table, columns, "bigint"))
        own.commit()
    number: int | None = found[1]
    return number


def clean(connection: Connection, schema: str, series: str, version: int) -> None:
    """Drops stages up to a version of a series, and those of jobs that are dead, with their marks."""
    long_ago = time.time() - KEPT
    found = connection.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and starts_with(c.relname, 'spark_') and c.relkind = 'r'"
        " and pg_has_role(c.relowner, 'usage')",
        (schema,),
    ).fetchall()
    for (name,) in found:
        known = _NAME.fullmatch(name)
        if known is None:
            continue
        is_over = known[1] == _hash(series) and int(known[2]) <= version
        if is_over or int(known[3]) < long_ago:
            drop(connection, schema, name)
    table = written(schema, "mark")
    connection.execute(
        sql.SQL(
            "delete from {} where mark like 'spark:%%:job:%%'"
            " and (starts_with(mark, %s) or applied_at < clock_timestamp() - make_interval(secs => %s))"
        ).format(table),
        (series, KEPT),
    )


def _hash(series: str) -> str:
    return hashlib.sha256(series.encode()).hexdigest()[:16]
