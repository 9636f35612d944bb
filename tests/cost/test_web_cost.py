"""What the overview reads does not grow with what waits, or what was handled."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask
from counting import cost_of
from engine import Engine

LOOKS = (
    "select * from trunq.overview()",
    "select * from trunq.diagnose()",
    "select * from trunq.diagnose(p_areas => '{leader,workers,failures,sessions}')",
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


HISTORY = """
insert into trunq.statistic (queue_id, is_hour, at, subscription, kind, outcome, count, is_sampled)
select q.queue_id, true, trunq.clock() - n * interval '1 hour', 'default', k, 'a', 1, false
from trunq.queue q, generate_series(3, {days} * 24) n, unnest('{{a,b,c,d}}'::text[]) k"""


def test_figures_of_an_hour_read_as_much_behind_ninety_days(connection: psycopg.Connection[Any]) -> None:
    for number in range(5):
        Engine(connection, f"work_{number}").create()
    hour = LOOKS[-1]
    connection.execute(HISTORY.format(days=1).encode())
    cost_of(connection, hour)
    few = cost_of(connection, hour).pages
    connection.execute("truncate trunq.statistic")
    connection.execute(HISTORY.format(days=90).encode())
    cost_of(connection, hour)
    assert cost_of(connection, hour).pages < 1.5 * few + 50


def test_a_diagnosis_reads_as_much_of_many_queues_as_of_some(connection: psycopg.Connection[Any]) -> None:
    """Besides a few pages of the catalog for each."""
    look = "select * from trunq.diagnose(4)"
    found = []
    for number in range(24):
        ask(connection, "create_queue", queue=f"work_{number:02}")
        if number in (7, 23):
            cost_of(connection, look)
            found.append(cost_of(connection, look).pages)
    few, many = found
    assert many - few < 16 * 100
    # Of all queues, each is asked.
    every = "select * from trunq.diagnose(0)"
    cost_of(connection, every)
    assert cost_of(connection, every).pages > 2 * many
