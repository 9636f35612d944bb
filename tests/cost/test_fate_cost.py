"""To ask what became of messages costs the same whatever else is delayed and dead."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names
from counting import cost_of
from engine import Engine

FEW, MANY = 200, 4000


@pytest.fixture
def queues(connection: psycopg.Connection[Any]) -> list[Engine]:
    """A little and much that is put off, retried and dead."""
    made = []
    for count in (FEW, MANY):
        work = Engine(connection, next(new_names("fate_cost"))).create()
        # As autovacuum may come: statistics know nothing of what follows.
        connection.execute("analyze trunq.delayed")
        work.publish(3 * count, kinds=["letter"])
        for verb in ("retry", "release", "reject"):
            held = work.lease(count)
            work.answer(verb, held, errors=["no handler"] * count)
        made.append(work)
    return made


def test_the_fates_of_a_few_cost_the_same_among_many(queues: list[Engine]) -> None:
    pages = []
    for work in queues:
        ids = [
            row.id
            for state in ("retrying", "dead")
            for row in work.call("list_messages", state=state, limit=20)
        ]
        cost = cost_of(work.connection, "select * from trunq.list_fates(%s, 'default', %s)", work.queue, ids)
        assert cost.rows == len(ids) == 40
        pages.append(cost.pages)
    # An index of many is a page deeper than one of few.
    assert pages[1] < 2 * pages[0] + 50


def test_a_death_costs_the_same_however_many_are_dead_and_queued_where_it_goes(queues: list[Engine]) -> None:
    pages = []
    for work, count in zip(queues, (FEW, MANY), strict=True):
        into = Engine(work.connection, next(new_names("fate_cost"))).create()
        into.publish(count)
        work.connection.execute("select trunq.grant_role(%s, 'publisher', 'pg_monitor')", (work.queue,))
        work.connection.execute("select trunq.grant_role(%s, 'publisher', 'pg_monitor')", (into.queue,))
        # Behind what is ready it would wait for its turn.
        while work.lease(5000):
            pass
        for warm in (True, False):
            work.publish(options={"dead_into": into.queue})
            held = work.lease()
            cost = cost_of(
                work.connection,
                "select trunq.reject(%s, 'default', %s, %s, %s)",
                *(work.queue, held.lease_id, held.token, held.ids),
            )
            if not warm:
                pages.append(cost.pages)
        assert into.fetch("select count(*) from {log}") == count + 2
    assert pages[1] < 2 * pages[0] + 50


def test_kinds_without_a_handler_are_listed_without_reading_all_their_messages(queues: list[Engine]) -> None:
    for work in queues:
        cost = cost_of(work.connection, "select * from trunq._warn_unhandled(%s)", work.queue)
        assert cost.rows == 1
        assert cost.rows_read < 1100
