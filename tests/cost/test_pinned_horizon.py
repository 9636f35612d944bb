"""A transaction that stays open for hours costs nobody anything: ATTACKS, C8 and C9."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conftest import Connect
from counting import cost_of
from engine import Engine

DEAD = """
    select relname, n_tup_upd, n_tup_del, n_dead_tup from pg_stat_all_tables
    where schemaname in ('trunq', 'trunq_data', 'trunq_log')
"""


@pytest.fixture
def work(connection: psycopg.Connection[Any], connect: Connect) -> Engine:
    work = Engine(connection, "work").create()
    pinned = connect(autocommit=False)
    pinned.execute("select pg_current_xact_id(), count(*) from trunq.queue")
    return work


def test_publish_lease_and_ack_leave_no_dead_rows(work: Engine, connect: Connect) -> None:
    work.ask("subscribe", subscription="other")
    publisher = work.on(connect())
    for n in range(200):
        publisher.publish(n % 7)
        publisher.run("insert into {log} (kind) values ('plain')")
        for subscription in ("default", "other"):
            if held := work.lease(1 + n % 5, subscription=subscription):
                work.ack(held)
    for subscription in ("default", "other"):
        work.drain(subscription)
    for session in (work.connection, publisher.connection):
        session.execute("select pg_stat_force_next_flush()")
    rows = work.connection.execute(DEAD.encode()).fetchall()
    changed = {row[0]: row[1:] for row in rows if any(row[1:])}
    assert changed == {}
    names = {row[0] for row in rows}
    assert {"subscription", "delayed", "mark", f"{work.queue}_log_0", f"{work.queue}_lease_3"} <= names
    # The counters do count: an extension is one row changed.
    (id,) = work.publish()
    held = work.lease()
    assert held.ids == [id]
    work.ask("extend", subscription="default", lease_id=held.lease_id, token=held.token)
    work.connection.execute("select pg_stat_force_next_flush()")
    assert sum(row[3] for row in work.connection.execute(DEAD.encode())) == 1


def test_a_lease_costs_the_same_after_much_traffic(work: Engine) -> None:
    def cost() -> int:
        work.publish(10)
        return cost_of(work.connection, "select * from trunq.lease(%s, 'default', 'w', 10)", work.queue).pages

    def much_traffic() -> None:
        for _ in range(500):
            work.publish()
            work.ack(work.lease())

    much_traffic()
    before = cost()
    much_traffic()
    much_traffic()
    assert cost() <= before + 5


def test_promotion_does_not_walk_what_it_promoted_before(work: Engine) -> None:
    """20,000 messages, due one by one, promoted in parts: their dead rows cannot be cleared away."""
    work.run(
        "insert into trunq.delayed (queue_id, id, due_at, created_at, attempt)"
        " select {id}, n, now() + n * interval '1 millisecond', now(), 1 from generate_series(1, 20000) n"
    )
    with work.clock("1 hour"):
        pages = []
        for part in range(20):
            cost = cost_of(work.connection, "select trunq.promote(%s, 1000)", work.queue)
            assert cost.seq_scans == 0
            # The first one looks from the beginning of time; later ones from the last one's end.
            if part > 0:
                pages.append(cost.pages)
        assert max(pages) <= 1.3 * min(pages)
        assert work.status().ready == pytest.approx(20_000, rel=0.1)
        work.ask("promote")
    # Nothing due: the start key lies behind all dead rows, once what was promoted is 5 seconds ago.
    with work.clock("1 hour 10 seconds"):
        work.ask("promote")
    with work.clock("1 hour 20 seconds"):
        idle = cost_of(work.connection, "select trunq.promote(%s)", work.queue)
    assert idle.pages < 50


def test_a_full_look_happens_once_a_minute(work: Engine) -> None:
    work.publish(5000, delay="1 second")
    with work.clock("10 seconds"):
        assert sum(work.ask("promote") for _ in range(6)) == 5000
    costs = []
    for second in (20, 30, 40, 100, 110):
        with work.clock(f"{second} seconds"):
            costs.append(cost_of(work.connection, "select trunq.promote(%s)", work.queue).pages)
    full = costs.pop(3)
    assert max(costs) < 50
    assert full > max(costs)
