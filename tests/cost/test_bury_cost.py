"""What expired, is outdated, cancelled or replaced is passed over in steps, whatever a lease asks for."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from counting import cost_of
from engine import Engine

MANY = 2000
PAGES = 60
"""For each that is buried; one at a time they cost more than a hundred."""

SORTS = ["plain", "lanes", "in order", "limited lanes"]


def make(connection: psycopg.Connection[Any], sort: str) -> Engine:
    work = Engine(connection, "buried").create(lanes=None if sort == "plain" else "key", unique="replace")
    if sort == "in order":
        work.ask("subscribe", subscription="default", in_order=True)
    elif sort == "limited lanes":
        work.ask("set_lanes", max_running=3, rate=1000, burst=7)
    return work


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("why", ["expired", "cancelled", "replaced", "outdated"])
@pytest.mark.parametrize("asked", [1, 100])
def test_a_lease_comes_to_a_message_behind_many_that_are_over(
    connection: psycopg.Connection[Any], sort: str, why: str, asked: int
) -> None:
    work = make(connection, sort)
    if why == "replaced":
        # One call would keep the last of a key alone.
        work.run(
            "insert into {log} (payload, key, unique_key) select '1', 'a', 'k' from generate_series(1, %s)",
            MANY,
        )
    elif why == "outdated":
        work.ask("subscribe", subscription="default", max_age="1 day")
        work.run(
            "insert into {log} (payload, key, created_at)"
            " select '1', 'a', now() - interval '2 days' from generate_series(1, %s)",
            MANY,
        )
    else:
        ids = work.publish(MANY, keys=["a"], max_age="1 microsecond" if why == "expired" else None)
        if why == "cancelled":
            work.call("cancel", ids=ids)
    work.publish(keys=["a"])
    cost = cost_of(connection, f"select * from trunq_queue.{work.queue}_lease('default', 'w', {asked})")
    assert 1 <= cost.rows <= 2, "the first call comes to it"
    assert cost.pages < PAGES * MANY
    assert work.fetch("select count(*) from {lease}") <= MANY / 100 + 10, "each step buries a hundred"
