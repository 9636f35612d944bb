"""How long messages ran and waited, since statistics began: functions/keep/total.sql. Nothing of it falls."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import fetch, new_names
from conftest import Connect
from engine import Engine
from minutes import MINUTE, roll_up, seconds

BOUNDS = 18


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("summed"))).create(retention="10 days")


def totals(work: Engine) -> dict[str, Any]:
    """The totals of the subscription default, by kind."""
    with work.connection.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
        rows = cursor.execute("select * from trunq._list_totals() where queue = %s", [work.queue]).fetchall()
    return {row.kind: row for row in rows}


def test_each_message_that_succeeded_is_in_the_bucket_of_its_time(work: Engine) -> None:
    work.publish(5, kinds=["a", "a", "a", "a", "b"])
    with work.clock(seconds(work, 1)):
        held = work.lease(5)
        work.ack(held, held.ids[:3], took=[0.001, 0.3, 200_000.0])
        work.answer("reject", held, held.ids[3:4])
        work.ack(held, held.ids[4:], took=[0.02])
    roll_up(work, 1)
    told = totals(work)
    assert set(told) == {"a", "b"}
    assert len(told["a"].bounds) == BOUNDS == len(told["a"].took) - 1
    assert [n for n, count in enumerate(told["a"].took) if count] == [0, 6, BOUNDS]
    assert told["a"].took_sum == pytest.approx(200_000.301)
    assert (sum(told["a"].waited), sum(told["b"].waited)) == (3, 1)
    assert 0 < told["b"].waited_sum < 2 * MINUTE


def test_what_a_minute_brings_later_is_added_once_and_nothing_falls_with_age(
    work: Engine, open_session: Connect
) -> None:
    work.publish(3)
    late = work.on(open_session(autocommit=False))
    with work.clock(seconds(work, 1)):
        work.ack(work.lease(2), took=[0.01, 0.01])
        held = work.lease()
    with late.clock(seconds(work, 1)):
        late.ack(held, took=[7.0])
    roll_up(work, 1)
    before = totals(work)[""]
    assert sum(before.took) == 2
    late.connection.commit()
    roll_up(work, 6)
    after = totals(work)[""]
    assert sum(after.took) == 3
    assert all(now >= then for now, then in zip(after.took, before.took, strict=True))
    assert after.took_sum == pytest.approx(7.02)
    # Minutes are folded into hours, receipts are gone, hours are deleted.
    work.ask("empty_queue")
    fold = "select trunq._fold_minutes(q, trunq.clock() + interval '1 day') from trunq.queue q"
    work.run(f"{fold} where q.queue_id = {{id}}")
    work.run("delete from trunq.statistic where queue_id = {id}")
    roll_up(work, 12)
    assert totals(work)[""] == after


def test_a_minute_of_more_messages_is_scaled_up(work: Engine) -> None:
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 12000)")
    with work.clock(seconds(work, 1)):
        while held := work.lease(100):
            work.ack(held, took=[0.2] * 100)
    roll_up(work, 1)
    (row,) = totals(work).values()
    assert sum(row.took) == pytest.approx(12000, rel=0.2)
    assert row.took_sum == pytest.approx(2400, rel=0.2)


def test_the_first_fifty_kinds_of_a_queue_have_a_total_and_the_others_one_together(work: Engine) -> None:
    for minute, kinds in ((1, 45), (2, 90)):
        work.publish(kinds, kinds=[f"k{n}" for n in range(kinds)])
        with work.clock(seconds(work, minute)):
            work.ack(work.lease(kinds))
    roll_up(work, 2)
    told = totals(work)
    assert len(told) == 51
    assert {f"k{n}" for n in range(45)} <= set(told)
    assert sum(sum(row.waited) for row in told.values()) == 135
    assert (
        fetch(
            work.connection, "select count(*) from trunq.statistic_total where queue_id = %s", work.queue_id
        )
        == 51
    )


def test_totals_of_a_subscription_that_is_gone_are_not_told_and_go_with_its_statistics(work: Engine) -> None:
    work.publish(1)
    with work.clock(seconds(work, 1)):
        work.drain()
    roll_up(work, 1)
    rows = "select count(*) from trunq.statistic_total where queue_id = {id}"
    work.ask("unsubscribe", subscription="default")
    work.run("select trunq._forget_totals({id})")
    assert (totals(work), work.fetch(rows)) == ({}, 1)
    work.run("delete from trunq.statistic where queue_id = {id}")
    work.run("select trunq._forget_totals({id})")
    assert work.fetch(rows) == 0


def test_totals_go_with_their_queue(work: Engine) -> None:
    work.publish(1)
    with work.clock(seconds(work, 1)):
        work.drain()
    roll_up(work, 1)
    assert totals(work)
    id = work.queue_id
    work.ask("drop_queue", force=True)
    assert fetch(work.connection, "select count(*) from trunq.statistic_total where queue_id = %s", id) == 0
