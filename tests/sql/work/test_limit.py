"""Rate and running limit of a subscription: functions/work/limit.sql."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine
from laning import EVERY_QUEUE, make, make_any

Connection = psycopg.Connection[Any]


@pytest.fixture(params=EVERY_QUEUE)
def engine(session: Connection, request: pytest.FixtureRequest) -> Engine:
    return make_any(session, request.param)


def limit(engine: Engine, **limits: Any) -> None:
    engine.ask("subscribe", subscription="default", **limits)


def leased_within(engine: Engine, seconds: int, count: int) -> int:
    """How many messages leases of `count` hand out, tried every tenth of a second of the database's time."""
    total = 0
    for tenth in range(seconds * 10 + 1):
        with engine.clock(f"{1000 + tenth / 10} seconds"):
            while held := engine.lease(count):
                total += len(held.ids)
                engine.ack(held)
    return total


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize(
    ("limits", "seconds", "expected"),
    [
        ({"rate": 100, "burst": 20}, 3, 320),
        ({"rate": 10}, 3, 40),
        ({"rate": 0.5}, 4, 3),
        ({"rate": 60, "rate_interval": "1 minute", "burst": 5}, 4, 9),
    ],
)
def test_a_rate_is_kept(
    engine: Engine, limits: dict[str, Any], seconds: int, expected: int, count: int
) -> None:
    engine.publish(1000)
    limit(engine, **limits)
    begun = monotonic()
    found = leased_within(engine, seconds, count)
    # The clock goes on between two calls.
    assert expected <= found <= expected + limits["rate"] * (monotonic() - begun) + 1


def test_an_empty_bucket_writes_nothing_and_says_when_to_come_back(engine: Engine) -> None:
    engine.publish(5)
    limit(engine, rate=2, rate_interval="1 hour", burst=2)
    assert len(engine.lease(5).ids) == 2
    before = engine.fetch("select count(*) from {lease}")
    for _ in range(3):
        assert not engine.lease(5)
    assert engine.fetch("select count(*) from {lease}") == before
    wait = engine.ask("retry_after", subscription="default")
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30)
    with engine.clock("30 minutes"):
        assert engine.ask("retry_after", subscription="default") is None
        assert len(engine.lease(5).ids) == 1


def test_a_clock_that_goes_back_fills_no_bucket(engine: Engine) -> None:
    engine.publish(5)
    limit(engine, rate=1, rate_interval="1 hour", burst=1)
    assert engine.lease()
    with engine.clock("-3 hours"):
        assert not engine.lease()


@pytest.mark.parametrize("lanes", [None, "key"])
def test_rotation_carries_the_bucket_along(session: Connection, lanes: str | None) -> None:
    engine = Engine(session, next(new_names("old"))).create(retention="2000 days", lanes=lanes)
    limit(engine, rate=1, rate_interval="9000 days", burst=2)
    engine.publish(2)
    engine.ack(engine.lease(2))
    assert engine.rotate("3000 days") > 0
    engine.publish(2)
    with engine.clock("3000 days"):
        assert not engine.lease()


def test_without_a_limit_nothing_is_to_be_waited_for(engine: Engine) -> None:
    assert engine.ask("retry_after", subscription="default") is None
    limit(engine, max_running=1)
    assert engine.ask("retry_after", subscription="default") is None
    limit(engine, rate=1, burst=1)
    assert engine.ask("retry_after", subscription="default") is None


def test_a_pause_is_to_be_waited_for(engine: Engine) -> None:
    engine.ask("pause_subscription", subscription="default")
    assert engine.ask("retry_after", subscription="default") == timedelta(days=1)
    until = engine.fetch("select trunq.clock() + interval '1 hour'")
    engine.ask("pause_subscription", subscription="default", until=until)
    assert timedelta(minutes=59) < engine.ask("retry_after", subscription="default") <= timedelta(hours=1)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_no_more_run_than_may(engine: Engine, count: int) -> None:
    ids = engine.publish(20)
    limit(engine, max_running=5)
    held = []
    while lease := engine.lease(count, worker=f"w{len(held)}"):
        held.append(lease)
    assert sum(len(lease.ids) for lease in held) == 5
    first = held[0]
    engine.ack(first, first.ids[:1])
    assert len(engine.lease(count).ids) == 1
    assert not engine.lease(count)
    assert engine.status().ready == len(ids) - 6


@pytest.mark.parametrize("verb", ["ack", "retry", "reject", "release"])
def test_every_answer_makes_room(engine: Engine, verb: str) -> None:
    engine.publish(9)
    limit(engine, max_running=2)
    for _ in range(3):
        held = engine.lease(9)
        assert len(held.ids) == 2
        engine.answer(verb, held)


def test_a_lease_that_ran_out_runs_until_it_is_reaped(engine: Engine) -> None:
    engine.publish(9)
    limit(engine, max_running=2)
    assert len(engine.lease(9).ids) == 2
    with engine.clock("1 hour"):
        assert not engine.lease(9)
        assert engine.ask("reap") == 1
        assert len(engine.lease(9).ids) == 2


def test_a_limit_counts_what_runs_already_also_after_rotation(engine: Engine) -> None:
    engine.publish(9)
    first, second = engine.lease(2), engine.lease(1)
    limit(engine, max_running=4)
    assert len(engine.lease(9).ids) == 1
    limit(engine, max_running=0)
    assert len(engine.lease(2).ids) == 2
    engine.ack(first)
    limit(engine, max_running=5)
    assert len(engine.lease(9).ids) == 1
    engine.ack(second)
    assert len(engine.lease(9).ids) == 1


def test_an_answer_that_has_not_committed_makes_no_room(engine: Engine, open_session: Any) -> None:
    engine.publish(3)
    limit(engine, max_running=1)
    held = engine.lease()
    other = open_session(autocommit=False)
    engine.on(other).ack(held)
    assert not engine.lease()
    other.commit()
    assert engine.lease()


def test_rate_and_running_limit_hold_together(engine: Engine) -> None:
    engine.publish(20)
    limit(engine, rate=1, rate_interval="1 day", burst=6, max_running=4)
    held = engine.lease(20)
    assert len(held.ids) == 4
    engine.ack(held)
    assert len(engine.lease(20).ids) == 2


def test_limits_are_listed_and_taken_back(engine: Engine) -> None:
    limit(engine, rate=5, rate_interval="1 minute", burst=3, max_running=7)
    (row,) = engine.call("list_subscriptions")
    given = (5, timedelta(minutes=1), 3, 7)
    assert (row.rate, row.rate_interval, row.burst, row.max_running) == given
    limit(engine, max_attempts=3)
    assert engine.call("list_subscriptions")[0].rate == 5
    limit(engine, rate=0, burst=0, max_running=0)
    (row,) = engine.call("list_subscriptions")
    assert (row.rate, row.burst, row.max_running) == (None, None, None)
    engine.publish(1000)
    assert len(engine.lease(1000).ids) == 1000


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"rate": -1}, "the rate of"),
    ({"rate": float("nan")}, "the rate of"),
    ({"rate": float("inf")}, "the rate of"),
    ({"rate_interval": "0 s"}, "rate_interval of"),
    ({"burst": -1}, "the burst of"),
    ({"max_running": -1}, "max_running of"),
    ({"max_running": 10000}, "1 to 1000 messages"),
]


@pytest.mark.parametrize(("limits", "words"), MISTAKES, ids=str)
def test_a_limit_that_cannot_be_is_refused_in_words(
    engine: Engine, limits: dict[str, Any], words: str
) -> None:
    before = engine.call("list_subscriptions")
    with refused("TQ005", words, "default"):
        limit(engine, **limits)
    assert engine.call("list_subscriptions") == before


def test_an_exclusive_subscription_has_no_rate(engine: Engine) -> None:
    with refused("TQ005", "exclusive", "s"):
        engine.ask("subscribe", subscription="s", mode="exclusive", rate=5)
    assert len(engine.call("list_subscriptions")) == 1


def wait(engine: Engine, id: int) -> tuple[str, str, str | None]:
    """Why a message waits in the subscription default."""
    ((subscription, *why),) = engine.call("explain_wait", id=id)
    assert subscription == "default"
    return tuple(why)


def test_a_message_waits_for_a_worker_where_nobody_leases(engine: Engine) -> None:
    first, second = engine.publish(2)
    reason, explanation, hint = wait(engine, second)
    assert reason == "workers"
    assert explanation.endswith(": nobody has leased anything of it")
    assert hint is not None
    held = engine.lease()
    assert wait(engine, second)[0] == "turn"
    assert engine.call("explain_wait", id=first) == []
    engine.ack(held)
    with engine.clock("2 minutes"):
        assert "the last lease was at" in wait(engine, second)[1]


def test_a_message_waits_for_the_end_of_a_pause_whoever_is_there(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.ask("pause_subscription", subscription="default")
    reason, explanation, hint = wait(engine, id)
    assert (reason, explanation) == ("paused", 'subscription "default" is paused until somebody resumes it')
    assert hint is not None
    engine.run(hint)
    engine.ask("pause_queue", until="2999-01-01 00:00:00+00")
    reason, explanation, hint = wait(engine, id)
    assert explanation.startswith(f'queue "{engine.queue}" is paused until 2999-01-01')
    assert hint is not None
    engine.run(hint)
    assert wait(engine, id)[0] == "workers"


def test_a_message_waits_for_a_limit_that_is_reached_and_for_none_that_is_set(engine: Engine) -> None:
    limit(engine, max_running=2, rate=0.001, burst=3)
    *_, last = engine.publish(5)
    engine.ack(engine.lease())
    assert wait(engine, last)[0] == "turn"
    held = engine.lease(2)
    assert wait(engine, last)[:2] == (
        "limit",
        'subscription "default" is at its limit: 2 run, and at most 2 may',
    )
    engine.ack(held)
    assert wait(engine, last)[0] == "rate"


def test_a_message_waits_for_its_lane(session: Connection) -> None:
    laned = make(session, "priority,key")
    laned.publish(keys=["other"])
    laned.ack(laned.lease())
    first, last = laned.publish(2, keys=["o'hara"], priorities=[3])
    laned.ask("pause_lane", lane="o'hara", priority=3)
    reason, explanation, hint = wait(laned, last)
    assert (reason, explanation) == (
        "paused",
        """lane "o'hara", priority 3 is paused until somebody resumes it""",
    )
    assert hint is not None
    laned.run(hint)
    laned.ask("set_lane", lane="o'hara", priority=3, max_running=1)
    held = laned.lease(2)
    assert held.ids == [first]
    assert wait(laned, last)[:2] == (
        "limit",
        """lane "o'hara", priority 3 is at its limit: 1 run, and at most 1 may""",
    )
    laned.ask("set_lane", lane="o'hara", priority=3, rate=0.001)
    laned.ack(held)
    assert wait(laned, last)[0] == "turn"
    (third,) = laned.publish(keys=["o'hara"], priorities=[3])
    laned.lease(2)
    assert wait(laned, third)[1].endswith("at the end of its rate: one message every 1000 seconds may go out")


def test_a_message_waits_for_another_of_its_key(session: Connection) -> None:
    laned = make(session)
    limit(laned, in_order=True)
    first, last = laned.publish(2, keys=["ada"])
    assert laned.lease(2).ids == [first]
    assert wait(laned, last)[:2] == ("order", 'one of lane "ada" is handled at a time, and one is')
