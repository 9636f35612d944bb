"""What a statement costs, counted instead of timed: pages, rows and scans are the same on a busy machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

COUNTERS = """
    select coalesce(sum(seq_scan), 0), coalesce(sum(idx_tup_fetch), 0) + coalesce(sum(seq_tup_read), 0),
      coalesce(sum(n_tup_ins), 0), coalesce(sum(n_tup_upd + n_tup_del), 0)
    from pg_stat_xact_all_tables
    where schemaname in ('trunq_data', 'trunq_log') or relname in ('delayed', 'dead')
"""


@dataclass(frozen=True)
class Cost:
    """Pages looked at by all of a statement, what its functions did included, and rows of queue tables."""

    pages: int
    seq_scans: int
    rows_read: int
    rows_inserted: int
    rows_changed: int
    rows: int
    """Rows it returned."""


def cost_of(connection: psycopg.Connection[Any], statement: str, *parameters: Any) -> Cost:
    """Run a statement, in a transaction of its own that is committed, and count."""
    with connection.transaction():
        before = _counters(connection)
        explained = connection.execute(
            f"explain (analyze, buffers, timing off, format json) {statement}".encode(), parameters or None
        ).fetchone()
        after = _counters(connection)
    assert explained is not None
    plan = explained[0][0]["Plan"]
    counts = (later - earlier for earlier, later in zip(before, after, strict=True))
    return Cost(
        plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], *counts, rows=int(plan["Actual Rows"])
    )


def _counters(connection: psycopg.Connection[Any]) -> list[int]:
    row = connection.execute(COUNTERS.encode()).fetchone()
    assert row is not None
    return [int(value) for value in row]
