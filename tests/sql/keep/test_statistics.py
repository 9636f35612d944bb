"""What each minute brought: functions/keep/statistics.sql. The clock is moved to the minute and behind it."""

from __future__ import annotations

import random
from datetime import timedelta
from statistics import quantiles
from typing import Any

import psycopg
import pytest

from calling import call, fetch, new_names, refused
from conftest import Connect
from engine import Engine
from minutes import roll_up, seconds


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("counted"))).create(retention="10 days")


def told(work: Engine, minutes: int = 3, **asked: Any) -> list[Any]:
    """The statistics, seen some minutes later."""
    with work.clock(seconds(work, minutes)):
        return work.call("statistics", **asked)


def test_counts_are_by_subscription_kind_and_outcome(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish(4, kinds=["a", "a", "b", None])
    with work.clock(seconds(work, 1)):
        held = work.lease(4)
        work.ack(held, held.ids[:3])
        work.answer("reject", held, held.ids[3:])
        work.ack(work.lease(4, subscription="mail"))
    roll_up(work, 1)
    assert {(row.subscription, row.kind, row.outcome): row.messages for row in told(work)} == {
        ("default", "a", "success"): 2,
        ("default", "b", "success"): 1,
        ("default", None, "rejected"): 1,
        ("mail", "a", "success"): 2,
        ("mail", "b", "success"): 1,
        ("mail", None, "success"): 1,
    }
    assert not any(row.is_sampled for row in told(work))
    together = told(work, subscription="default", by_kind=False)
    assert {(row.kind, row.outcome): row.messages for row in together} == {
        (None, "success"): 3,
        (None, "rejected"): 1,
    }
    assert [row.messages for row in told(work, kind="b", subscription="mail")] == [1]


def test_a_minute_that_is_not_over_is_not_counted(work: Engine) -> None:
    work.publish()
    with work.clock(seconds(work, 1)):
        work.drain()
        work.ask("roll_up")
        assert work.call("statistics") == []
    with work.clock(seconds(work, 2, 9)):
        while work.ask("roll_up"):
            pass
        assert work.call("statistics") == [], "ten seconds are for those who commit late"


def test_what_was_committed_later_is_counted_by_another_look(work: Engine, open_session: Connect) -> None:
    work.publish(3)
    late = work.on(open_session(autocommit=False))
    with work.clock(seconds(work, 1)):
        work.ack(work.lease(2))
        held = work.lease()
    with late.clock(seconds(work, 1)):
        late.ack(held)
    roll_up(work, 1)
    assert [row.messages for row in told(work)] == [2]
    late.connection.commit()
    roll_up(work, 3)
    assert [row.messages for row in told(work)] == [2]
    roll_up(work, 6)
    assert [row.messages for row in told(work, 6)] == [3]


def test_what_is_gone_with_its_segment_stays_counted(work: Engine) -> None:
    work.publish(2)
    with work.clock(seconds(work, 1)):
        work.drain()
    roll_up(work, 1)
    work.ask("empty_queue")
    roll_up(work, 7)
    assert [row.messages for row in told(work, 8)] == [2]


def test_percentiles_are_right_within_nine_percent(work: Engine) -> None:
    chance = random.Random(7)
    took = [chance.lognormvariate(-3, 1.5) for _ in range(2000)]
    work.publish(len(took))
    with work.clock(seconds(work, 1)):
        for part in range(0, len(took), 500):
            work.ack(work.lease(500), took=took[part : part + 500])
    roll_up(work, 1)
    (row,) = told(work)
    exact = quantiles(took, n=100)
    assert row.took_median == pytest.approx(exact[49], rel=0.1)
    assert row.took_p90 == pytest.approx(exact[89], rel=0.1)
    assert row.took_p99 == pytest.approx(exact[98], rel=0.15)
    assert row.took_mean == pytest.approx(sum(took) / len(took), rel=0.001)


@pytest.mark.parametrize("at", [1e-7, 1e-6, 0.0001, 0.5, 1.0, 77.7, 86_400.0, 1e6])
def test_a_bucket_stands_for_times_within_nine_percent(session: psycopg.Connection[Any], at: float) -> None:
    told = "select trunq._percentile(trunq._histogram(array[trunq._time_bucket(%s)]), 0.5)"
    assert fetch(session, told, at) == pytest.approx(max(at, 1e-6), rel=0.0906)


@pytest.mark.parametrize("took", ["NaN", "Infinity", "-Infinity", "-1", "3e38"])
def test_what_is_no_time_counts_as_none(work: Engine, took: str) -> None:
    """A worker in any language may say it, and no minute after it was computed."""
    work.publish(2, kinds=["odd", "even"])
    with work.clock(seconds(work, 1)):
        held = work.lease(2)
        work.ack(held, took=[float(took), 1.0])
    roll_up(work, 1)
    found = {row.kind: (row.messages, row.took_mean) for row in told(work)}
    assert found == {"odd": (1, None), "even": (1, pytest.approx(1.0))}


def test_waiting_is_until_the_first_lease(work: Engine) -> None:
    work.publish()
    offset = seconds(work, 1)
    with work.clock(offset):
        work.answer("retry", work.lease(), delays=["0"])
        work.ack(work.lease())
    roll_up(work, 1)
    rows = {row.outcome: row for row in told(work)}
    assert rows["failed"].waited_median == pytest.approx(float(offset.split()[0]), rel=0.1, abs=0.5)
    assert rows["success"].waited_median is None
    assert rows["success"].took_mean is None, "no worker said it"


def test_above_ten_thousand_a_minute_kinds_are_estimated_and_counts_are_exact(work: Engine) -> None:
    total = 24_000
    for _ in range(total // 3000):
        work.publish(3000, kinds=["often", "often", "seldom"] * 1000)
    with work.clock(seconds(work, 1)):
        while held := work.lease(100):
            work.ack(held, held.ids[:60])
            work.answer("reject", held, held.ids[60:])
    roll_up(work, 1)
    rows = told(work)
    assert all(row.is_sampled for row in rows)
    count = {(row.kind, row.outcome): row.messages for row in rows}
    assert sum(count[kind, "success"] for kind in ("often", "seldom")) == total * 0.6
    assert sum(count[kind, "rejected"] for kind in ("often", "seldom")) == total * 0.4
    assert count["seldom", "success"] == pytest.approx(total * 0.2, rel=0.15)


def test_thousands_of_kinds_do_not_fill_the_table(work: Engine) -> None:
    work.publish(300, kinds=["often"] * 100 + [f"kind {n}" for n in range(200)])
    with work.clock(seconds(work, 1)):
        work.drain()
    roll_up(work, 1)
    count = {row.kind: row.messages for row in told(work)}
    assert len(count) == 51
    assert (count["often"], count["(others)"]) == (100, 151)


def test_minutes_become_hours_and_hours_go(work: Engine) -> None:
    for minute in (1, 2):
        work.publish()
        with work.clock(seconds(work, minute)):
            work.ack(work.lease(), took=[0.5])
    roll_up(work, 2)
    by_minute = told(work, last="1 hour", per="1 minute")
    assert [row.messages for row in by_minute] == [1, 1]
    assert by_minute[1].at - by_minute[0].at == timedelta(minutes=1)
    for days, kept in ((3, 1), (100, 0)):
        with work.clock(f"{days} days"):
            while work.ask("roll_up"):
                pass
            rows = work.call("statistics", last="80 days")
            assert len(rows) == kept
            if kept:
                assert (rows[0].messages, rows[0].took_median) == (2, pytest.approx(0.5, rel=0.0906))
                assert work.fetch("select bool_and(is_hour) from trunq.statistic where queue_id = {id}")
    assert work.fetch("select count(*) from trunq.statistic where queue_id = {id}") == 0


def test_of_two_leaders_one_passes_on(work: Engine, open_session: Connect) -> None:
    work.ask("roll_up")
    other = work.on(open_session(autocommit=False))
    with other.clock("5 minutes"):
        assert other.ask("roll_up") >= 4
        with work.clock("5 minutes"):
            assert work.ask("roll_up") is None
    other.connection.rollback()
    with work.clock("5 minutes"):
        assert work.ask("roll_up") >= 4


def test_a_leader_that_was_away_for_years_goes_on_with_yesterday(work: Engine) -> None:
    work.ask("roll_up")
    with work.clock("5000 days"):
        calls = 0
        while work.ask("roll_up"):
            calls += 1
        assert calls == 24


def test_they_go_with_their_queue(work: Engine) -> None:
    work.publish()
    with work.clock(seconds(work, 1)):
        work.drain()
    roll_up(work, 1)
    id = work.queue_id
    work.ask("drop_queue")
    assert fetch(work.connection, "select count(*) from trunq.statistic where queue_id = %s", id) == 0


def test_what_cannot_be_asked_is_refused(work: Engine) -> None:
    with refused("TQ001", "nowhere"):
        call(work.connection, "statistics", queue="nowhere")
    with refused("TQ005", "positive"):
        work.call("statistics", last="0")
    with refused("TQ005", "interval of statistics"):
        work.call("statistics", per="1 second")
    with refused("TQ005", "p_per", "at least 00:01:00", "not 00:00:59"):
        work.call("statistics", per="59 seconds")
    for months in ("1 month", "1 year 2 days"):
        with refused("TQ005", "p_per", "months or years", "30 days"):
            work.call("statistics", per=months)
    with refused("TQ005", "p_last"):
        work.call("statistics", last=None)
    with refused("TQ001", "nowhere"):
        call(work.connection, "roll_up", queue="nowhere")
