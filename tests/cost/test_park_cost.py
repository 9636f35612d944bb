"""However many messages are parked, nobody walks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from calling import new_names
from counting import Cost, cost_of
from engine import Engine
from scope import some

FEW, MANY = 100, some(5_000, 100_000)


@pytest.fixture
def queues(connection: psycopg.Connection[Any]) -> list[Engine]:
    """A few messages that are parked, and many."""
    made = []
    for count in (FEW, MANY):
        work = Engine(connection, next(new_names("park_cost"))).create()
        work.run("insert into {log} (payload) select '1' from generate_series(1, %s)", count)
        # 10,000 at a time: how many a lease may have.
        while held := work.lease(10_000):
            work.run(
                "select trunq.park('{queue}', 'default', %s, %s, %s,"
                " array(select 'token ' || i from unnest(%s::bigint[]) i),"
                " array_fill(interval '100 days', array[cardinality(%s::bigint[])]))",
                held.lease_id,
                held.token,
                *[held.ids] * 3,
            )
        assert work.status().parked >= min(count, 1000)
        made.append(work)
    return made


def promoted(work: Engine) -> Cost:
    """With a retry that is due, and a look at all that is."""
    (id,) = work.publish()
    work.answer("retry", work.lease(), delays=["1 microsecond"])
    work.run("delete from trunq.mark where queue_id = {id} and duty like 'promote%%'")
    cost = cost_of(work.connection, "select trunq.promote(%s)", work.queue)
    assert work.lease().ids == [id]
    return cost


def resumed(work: Engine) -> Cost:
    id = work.listed(state="parked", limit=1)[0]
    cost = cost_of(work.connection, "select trunq.resume(%s, %s, '1')", work.queue, f"token {id}")
    assert work.state(id) == "retrying"
    return cost


def parked(work: Engine) -> Cost:
    work.publish()
    held = work.lease()
    names = (work.queue, held.lease_id, held.token, held.ids, f"token {held.ids[0]}")
    return cost_of(
        work.connection,
        "select trunq.park(%s, 'default', %s, %s, %s, array[%s], array[interval '1 day'])",
        *names,
    )


def cancelled(work: Engine) -> Cost:
    id = work.listed(state="parked", limit=1)[0]
    cost = cost_of(work.connection, "select * from trunq.cancel(%s, array[%s]::bigint[])", work.queue, id)
    assert work.state(id) == "dead"
    return cost


def looked_at(statement: str) -> Callable[[Engine], Cost]:
    return lambda work: cost_of(work.connection, statement, work.queue)


ASKED: dict[str, Callable[[Engine], Cost]] = {
    "promote": promoted,
    "park": parked,
    "resume": resumed,
    "cancel": cancelled,
    "list": looked_at("select * from trunq.list_messages(%s, p_state => 'parked', p_limit => 20)"),
    "warn": looked_at("select * from trunq._warn_parked(%s)"),
    "status": looked_at(
        "select trunq._count_parked(s) from trunq.subscription s"
        " join trunq.queue q using (queue_id) where q.name = %s"
    ),
    "forget": looked_at("select trunq.forget(%s)"),
}


def test_it_costs_the_same_beside_many(queues: list[Engine]) -> None:
    """One test, as to park so many takes a while."""
    for what, ask in ASKED.items():
        few, many = (ask(work) for work in queues)
        # An index of many is a few pages deeper than one of few; counts are exact up to 1,000.
        assert many.pages < 2 * few.pages + (1100 if what == "status" else 60), (what, few, many)
