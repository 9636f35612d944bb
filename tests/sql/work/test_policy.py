"""A policy given with an answer, in place of the subscription's: workers give that of a kind."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import come_back, refused
from engine import Engine

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    engine = Engine(session, queue)
    engine.ask(
        "subscribe",
        subscription="default",
        max_attempts=3,
        backoff="constant",
        backoff_base="10 s",
        jitter=0,
    )
    return engine


def waits(engine: Engine, ids: list[int]) -> list[float]:
    """How long each was put off when it was answered for."""
    found = engine.run(
        "select d.due_at - max(r.finished_at) from trunq.delayed d join {receipt} r on d.id = any(r.ids)"
        " where d.queue_id = {id} and d.id = any(%s) group by d.id, d.due_at order by d.id",
        ids,
    )
    return [wait.total_seconds() for (wait,) in found]


def test_attempts_given_with_an_answer_go_before_the_subscriptions(engine: Engine) -> None:
    (one,) = engine.publish()
    assert engine.answer("retry", engine.lease(), max_attempts=1) == 1
    (dead,) = engine.call("list_dead")
    assert (dead.id, dead.attempts, dead.reason) == (one, 1, "max_attempts")
    (often,) = engine.publish()
    for _ in range(5):
        assert engine.answer("retry", engine.lease(), delays=["0"], max_attempts=0) == 1
    assert (engine.state(often), engine.message(often).attempt) == ("ready", 6)


def test_an_option_of_the_message_goes_before_both(engine: Engine) -> None:
    (twice,) = engine.publish(options={"max_attempts": 2})
    assert engine.answer("retry", engine.lease(), delays=["0"], max_attempts=1) == 1
    assert engine.state(twice) == "ready"
    assert engine.answer("retry", engine.lease(), delays=["0"], max_attempts=9) == 1
    assert [row.reason for row in engine.call("list_dead")] == ["max_attempts"]


def test_what_is_not_given_of_a_policy_is_the_subscriptions(engine: Engine) -> None:
    one, two, three, four = engine.publish(4)
    held = engine.lease(4)
    engine.answer("retry", held, [one], backoff_base="20 s")
    engine.answer("retry", held, [two], backoff="exponential", backoff_base="100 s", backoff_cap="60 s")
    engine.answer("retry", held, [three], max_attempts=9)
    engine.answer("retry", held, [four], backoff_base="100 s", jitter=1)
    first, second, third, fourth = waits(engine, held.ids)
    assert (first, second, third) == (20, 60, 10)
    assert 0 <= fourth < 100


def test_what_took_too_long_goes_by_the_policy_given_with_it(engine: Engine) -> None:
    one, two, three = engine.publish(3)
    held = engine.lease(3)
    engine.answer("time_out", held, [one], backoff_base="20 s")
    engine.answer("time_out", held, [two])
    engine.answer("time_out", held, [three], max_attempts=1)
    assert waits(engine, held.ids) == [20, 10]
    (dead,) = engine.call("list_dead")
    assert (dead.id, dead.attempts, dead.reason) == (three, 1, "max_attempts")


def test_a_delay_goes_before_every_policy(engine: Engine) -> None:
    ids = engine.publish(2)
    engine.answer("retry", engine.lease(2), delays=["7 s", None], backoff_base="20 s")
    assert waits(engine, ids) == [7, 20]


def test_a_lease_that_ran_out_is_judged_by_the_subscription_alone(engine: Engine) -> None:
    """Its worker is gone, and what policy its kind had with it; whoever runs it next has one again."""
    killer, other = engine.publish(2)
    for attempt in range(1, 4):
        held = engine.lease(worker="dies")
        assert (held.ids, held.messages[0].attempt) == ([killer], attempt)
        assert engine.ask("reclaim", subscription="default", worker="dies") == 1
        if attempt == 1:
            assert engine.ack(engine.lease()) == 1, "the other one, which came after it"
        come_back(engine.connection, engine.queue)
    assert [(row.id, row.reason) for row in engine.call("list_dead")] == [(killer, "lease_expired")]
    engine.ask("requeue", subscription="default")
    assert other not in (held := engine.lease(worker="dies")).ids
    engine.ask("reclaim", subscription="default", worker="dies")
    come_back(engine.connection, engine.queue)
    engine.answer("retry", engine.lease(), max_attempts=1)
    assert [(row.attempts, row.reason) for row in engine.call("list_dead")] == [(2, "max_attempts")]


def test_what_is_given_back_with_a_delay_keeps_its_attempt_and_its_errors(engine: Engine) -> None:
    ids = engine.publish(3)
    held = engine.lease(3)
    assert engine.answer("release", held, delays=["5 s", "0", None]) == 3
    assert [engine.state(id) for id in ids] == ["retrying", "ready", "ready"]
    assert waits(engine, ids) == [5]
    with engine.clock("10 s"):
        engine.ask("promote")
        again = engine.lease(3)
    assert {row.id: row.attempt for row in again.messages} == dict.fromkeys(ids, 1)
    assert engine.message(ids[0]).error is None


def test_a_delay_goes_before_that_of_what_no_handler_is_for(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("release", engine.lease(), errors=["no handler"], delays=["50 s"])
    assert waits(engine, [id]) == [50]
    assert engine.message(id).error == "no handler"


@pytest.mark.parametrize(
    "policy",
    [
        {"max_attempts": -1},
        {"backoff": "random"},
        {"jitter": 2},
        {"backoff_base": "-1 s"},
        {"backoff_cap": "2000 years"},
    ],
    ids=lambda policy: next(iter(policy)),
)
@pytest.mark.parametrize("verb", ["retry", "time_out"])
def test_an_impossible_policy_is_refused_and_nothing_is_answered(
    engine: Engine, policy: dict[str, Any], verb: str
) -> None:
    engine.publish()
    held = engine.lease()
    with refused("TQ005", "the policy of these messages"):
        engine.answer(verb, held, **policy)
    assert engine.ack(held) == 1


def test_a_day_of_delay_is_given_back_for_a_day(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("release", engine.lease(), delays=[timedelta(days=1)])
    assert waits(engine, [id]) == [86400]
