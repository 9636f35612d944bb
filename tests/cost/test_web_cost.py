"""What the overview reads does not grow with what waits, or what was handled."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from counting import cost_of
from engine import Engine

LOOKS = (
    "select * from trunq.status()",
    "select * from trunq.diagnose()",
    "select * from trunq.statistics(p_last => '1 hour', p_per => '1 minute', p_by_kind => false)",
)
"""Those of src/trunq/web/pages/overview.py."""


def pages(connection: psycopg.Connection[Any]) -> int:
    """What one look reads, its caches warm."""
    for look in LOOKS:
        cost_of(connection, look)
    return sum(cost_of(connection, look).pages for look in LOOKS)


@pytest.mark.parametrize("waiting", [True, False], ids=["waiting", "handled"])
def test_the_overview_reads_as_much_with_a_backlog_as_without(
    connection: psycopg.Connection[Any], waiting: bool
) -> None:
    work = Engine(connection, "work").create()
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 3000)")
    work.ack(work.lease(500))
    few = pages(connection)
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 60000)")
    if not waiting:
        work.drain()
    many = pages(connection)
    assert many < 2 * few + 500
