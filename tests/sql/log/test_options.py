"""Options of a message, and messages that expire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, refused
from engine import Engine
from laning import EVERY_QUEUE, make_any

Connection = psycopg.Connection[Any]


@pytest.fixture(params=EVERY_QUEUE)
def engine(session: Connection, request: pytest.FixtureRequest) -> Engine:
    return make_any(session, request.param)


def test_max_attempts_of_a_message_stand_in_for_the_subscriptions(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", max_attempts=3, backoff_base="0")
    (once,) = engine.publish(options={"max_attempts": 1})
    (often,) = engine.publish(options={"max_attempts": 5})
    for attempt in range(1, 6):
        held = engine.lease(2)
        assert {row.id: row.max_attempts for row in held.messages} == (
            {once: 1, often: 5} if attempt == 1 else {often: 5}
        )
        engine.answer("retry", held)
    assert not engine.lease()
    assert {row.id: row.attempts for row in engine.call("list_dead")} == {once: 1, often: 5}


@pytest.mark.parametrize("count", [1, 3, 100])
def test_what_expired_is_dead_and_hides_nothing_behind_it(engine: Engine, count: int) -> None:
    early = engine.publish(7, max_age="1 hour")
    alive = engine.publish(1) + engine.publish(1, max_age="3 hours")
    late = engine.publish(7, max_age="1 hour")
    with engine.clock("2 hours"):
        assert engine.drain() == alive
        assert engine.status().ready == engine.status().leased == 0
    assert {row.id: row.reason for row in engine.call("list_dead")} == dict.fromkeys(early + late, "expired")
    assert engine.fetch("select sum(size) from {receipt} where outcome = 'e'") == 14
    assert engine.state(early[0]) == "dead"
    assert engine.lease(count).ids == []


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_lease_of_any_size_finds_what_lives_behind_what_expired(engine: Engine, count: int) -> None:
    gone = engine.publish(7, max_age="1 hour")
    (alive,) = engine.publish()
    with engine.clock("2 hours"):
        held = engine.lease(count)
    assert held.ids == [alive]
    assert engine.ack(held) == 1
    assert engine.status().dead == len(gone)


def test_what_is_handed_out_in_time_may_be_answered_later_and_expires_when_retried(engine: Engine) -> None:
    done, again = engine.publish(2, max_age="1 hour")
    held = engine.lease(2)
    with engine.clock("2 hours"):
        assert engine.ack(held, [done]) == 1
        assert engine.answer("retry", held, [again], delays=["0"]) == 1
        assert not engine.lease()
    assert (engine.state(done), engine.state(again)) == ("done", "dead")


def test_options_travel_through_delay_retry_and_death(engine: Engine) -> None:
    options = {"max_attempts": 4, "expires_at": "2999-01-01T00:00:00Z"}
    engine.ask("publish", options=options, delay="1 hour")
    engine.ask("publish_many", payloads=[{}], options=options, delay="1 hour")
    with engine.clock("2 hours"):
        assert engine.ask("promote") == 2
        held = engine.lease(2)
        assert [row.options for row in held.messages] == [options] * 2
        engine.answer("retry", held, delays=["0", "1 hour"])
        held = engine.lease(2)
        assert [row.options for row in held.messages] == [options]
        engine.answer("reject", held)
    with engine.clock("4 hours"):
        assert engine.ask("promote") == 1
        assert [row.options for row in engine.lease().messages] == [options]
    assert engine.ask("requeue") == 1
    assert [row.options for row in engine.lease().messages] == [{"max_attempts": 4}]


def test_what_expired_can_be_requeued(engine: Engine) -> None:
    ids = engine.publish(2, max_age="1 hour")
    with engine.clock("2 hours"):
        assert not engine.lease(2)
        assert engine.ask("requeue") == 2
        assert sorted(engine.drain()) == ids


def test_what_expired_counts_neither_against_a_rate_nor_a_running_limit(engine: Engine) -> None:
    engine.publish(5, max_age="1 hour")
    ids = engine.publish(5)
    limits = {"rate": 1, "rate_interval": "1000 days", "burst": 3, "max_running": 2}
    engine.ask("subscribe", subscription="default", **limits)
    with engine.clock("2 hours"):
        first = engine.lease(9)
        assert first.ids == ids[:2]
        assert not engine.lease(9)
        engine.ack(first, ids[:1])
        assert engine.lease(9).ids == ids[2:3]
        engine.ack(first, ids[1:2])
        assert not engine.lease(9)


def test_by_the_databases_clock_a_message_of_some_age_expires(engine: Engine) -> None:
    now = ask(engine.connection, "clock")
    engine.ask("publish", max_age="90 seconds")
    (message,) = engine.lease().messages
    expires_at = datetime.fromisoformat(message.options["expires_at"])
    assert timedelta(seconds=90) <= expires_at - now < timedelta(seconds=150)


MISTAKES: list[Any] = [
    {"max_attempts": 0},
    {"max_attempts": -1},
    {"max_attempts": "x"},
    {"max_attempts": 1.5},
    {"max_attempts": 10000},
    {"max_attempts": [1]},
    {"expires_at": "tomorrow"},
    {"expires_at": "2030-02-30T00:00:00Z"},
    {"expires_at": "2030-01-01T25:00:00Z"},
    {"expires_at": "2030-01-01T00:00:00"},
    {"expires_at": "infinity"},
    {"expires_at": 5},
    {"colour": "red"},
    {"'; drop table trunq.queue; --": 1},
    Jsonb([1]),
    Jsonb("max_attempts"),
]


@pytest.mark.parametrize("options", MISTAKES, ids=str)
def test_options_that_cannot_be_read_are_refused_by_every_way_of_publishing(
    engine: Engine, options: Any
) -> None:
    with refused("TQ005", "option"):
        engine.ask("publish", options=options)
    with refused("TQ005", "option"):
        engine.ask("publish", options=options, delay="1 hour")
    with refused("TQ005", "option"):
        engine.publish(2, options=options)
    value = options if isinstance(options, Jsonb) else Jsonb(options)
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.DataError)):
        engine.run("insert into {log} (options) values (%s)", value)
    assert not engine.lease()


def test_a_message_has_an_age_or_an_expiry(engine: Engine) -> None:
    with refused("TQ005", "max_age or expires_at"):
        engine.ask("publish", options={"expires_at": "2030-01-01T00:00:00Z"}, max_age="1 hour")
    with refused("TQ005", "max_age"):
        engine.ask("publish", max_age="-1 hour")


def test_an_age_that_ends_before_the_message_is_due_is_refused(engine: Engine) -> None:
    for delay in ("61 minutes", "2 hours"):
        with refused("TQ005", "expires before it is due"):
            engine.ask("publish", delay=delay, max_age="1 hour")
        with refused("TQ005", "expires before it is due"):
            engine.publish(2, delay=delay, max_age="1 hour")
    engine.ask("publish", delay="1 hour", max_age="2 hours")
    engine.publish(2, due_at=datetime(2020, 1, 1, tzinfo=UTC), max_age="1 hour")
    assert engine.status().delayed == 3


def test_a_plain_insert_takes_options(engine: Engine) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    engine.run("insert into {log} (options) values (%s)", Jsonb({"expires_at": past}))
    assert not engine.lease()
    assert engine.status().dead == 1
