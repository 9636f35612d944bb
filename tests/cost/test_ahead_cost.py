"""A lease of given ids costs what it takes, whatever waits before and behind it, and others pay for none."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names
from counting import Cost, cost_of
from engine import Engine

FEW, MANY = 1000, 20_000
LEASE = "select * from trunq.lease(%s, 'default', 'w', 5)"
LEASE_IDS = "select * from trunq.lease_ids(%s, 'default', 'w', %s)"


@pytest.fixture
def queues(connection: psycopg.Connection[Any]) -> list[Engine]:
    """Where few messages wait, and where many do; ticks are cut as a leader cuts them."""
    made = []
    for count in (FEW, MANY):
        work = Engine(connection, next(new_names("ahead_cost"))).create(tick_max_count=500)
        work.ask("subscribe", subscription="other")
        for _ in range(count // 500):
            work.publish(500)
            work.ask("tick", force=True)
        made.append(work)
    return made


def take(work: Engine, ids: list[int]) -> Cost:
    cost = cost_of(work.connection, LEASE_IDS, work.queue, ids)
    assert cost.rows == len(ids)
    return cost


def test_to_take_the_newest_costs_the_same_behind_a_long_backlog(queues: list[Engine]) -> None:
    costs = []
    for work in queues:
        ids = work.publish(5)
        work.ask("tick", force=True)
        take(work, ids[:1])
        costs.append(take(work, ids[1:]))
        assert (costs[-1].seq_scans, costs[-1].rows_changed) == (0, 0)
    assert costs[1].pages < 1.5 * costs[0].pages + 50
    assert costs[1].rows_read < costs[0].rows_read + 100


def test_to_take_the_oldest_costs_the_same_before_a_long_backlog(queues: list[Engine]) -> None:
    costs = []
    for work in queues:
        first = work.fetch("select min(id) from {log}")
        take(work, [first + 1])
        costs.append(take(work, [first + 2, first + 5]))
    assert costs[1].pages < 1.5 * costs[0].pages + 50
    assert costs[1].rows_read < costs[0].rows_read + 100


def test_a_plain_lease_pays_for_what_was_taken_as_long_as_it_lies_before_it(queues: list[Engine]) -> None:
    """Of another subscription, or behind the position, it costs nothing."""
    (work, _) = queues
    plain = cost_of(work.connection, LEASE, work.queue)
    ids = work.listed(state="ready", subscription="other")
    work.take(*ids[:300], subscription="other")
    assert cost_of(work.connection, LEASE, work.queue).pages <= plain.pages + 10
    work.ack(work.take(*work.listed(state="ready", limit=100)))
    beside = cost_of(work.connection, LEASE, work.queue)
    assert beside.rows == 5
    assert beside.pages <= plain.pages + 5 * 10
    work.drain()
    for _ in range(2):
        work.publish(5)
        work.drain()
    work.publish(5)
    assert work.fetch("select ahead from {lease} order by lease_id desc limit 1") is None
    after = cost_of(work.connection, LEASE, work.queue)
    assert after.rows == 5
    assert after.pages <= plain.pages + 10
