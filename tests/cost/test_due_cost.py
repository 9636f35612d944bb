"""A lease of what fell due costs the same whatever waits, or is or was on its list; others pay nothing."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names
from conftest import Connect
from counting import Cost, cost_of
from engine import Engine

LEASE = "select * from trunq.lease(%s, 'default', 'w', %s)"


def make(connection: psycopg.Connection[Any], due_first: bool = True) -> Engine:
    work = Engine(connection, next(new_names("due_cost"))).create()
    work.ask("subscribe", subscription="default", due_first=due_first)
    return work


def fall_due(work: Engine, count: int) -> None:
    for _ in range(count // 500 or 1):
        work.publish(min(count, 500), delay="1 microsecond")
    while work.ask("promote"):
        pass


def cost(work: Engine, count: int = 5) -> Cost:
    """Of the second: the first made its plans."""
    for _ in range(2):
        found = cost_of(work.connection, LEASE, work.queue, count)
        assert found.rows == count
    assert (found.seq_scans, found.rows_changed) == (0, 0)
    return found


@pytest.mark.parametrize("asked", [1, 50])
def test_it_costs_the_same_behind_a_long_backlog_and_with_a_long_list(
    connection: psycopg.Connection[Any], asked: int
) -> None:
    costs = []
    for backlog, due in ((500, 500), (20_000, 500), (500, 20_000)):
        work = make(connection)
        work.publish(backlog)
        fall_due(work, due)
        costs.append(cost(work, asked))
    few, *many = costs
    for each in many:
        assert each.pages < 1.3 * few.pages + 20, costs
        assert each.rows_read < few.rows_read + 50, costs


def test_it_costs_the_same_however_many_were_taken_while_an_old_transaction_is_open(
    connection: psycopg.Connection[Any], connect: Connect
) -> None:
    work = make(connection)
    pinned = connect(autocommit=False)
    pinned.execute("select pg_current_xact_id(), count(*) from trunq.queue")
    work.publish(100)
    counted = []
    for taken in (500, 500, 5000):
        fall_due(work, taken)
        while held := work.lease(100):
            work.ack(held)
        work.publish(100)
        work.ask("forget")
        fall_due(work, 500)
        counted.append(cost(work).pages)
        while held := work.lease(100):
            work.ack(held)
    _, few, many = counted
    assert many < 1.2 * few + 10, counted


def test_who_takes_what_comes_pays_nothing(connection: psycopg.Connection[Any]) -> None:
    counted = []
    for due_first in (False, True):
        work = make(connection, due_first)
        work.ask("subscribe", subscription="other", due_first=not due_first)
        work.publish(100)
        if not due_first:
            fall_due(work, 500)
            assert work.lease(50, subscription="other")
        counted.append(cost(work))
    plain, idle = counted
    assert plain.pages <= idle.pages
    assert idle.pages <= plain.pages + 20, "two looks into lists that are empty"


def test_many_on_the_list_that_are_over_cost_each_lease_a_few_rounds(
    connection: psycopg.Connection[Any],
) -> None:
    counted = []
    for gone in (1500, 20_000):
        work = make(connection)
        fall_due(work, gone)
        work.run("update trunq.due set txid = '5' where queue_id = {id}")
        work.publish(50)
        counted.append(cost_of(work.connection, LEASE, work.queue, 1))
        assert counted[-1].rows == 1
    few, many = counted
    assert many.pages < 1.3 * few.pages + 50, counted
