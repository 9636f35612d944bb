"""Pausing a subscription or a queue: functions/operate/pause.sql."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from calling import ask, call, refused
from conftest import Connect
from engine import Engine
from granting import granting

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def later(engine: Engine, interval: str) -> datetime:
    """The database's time, and so much more."""
    return ask(engine.connection, "clock") + engine.fetch(f"select interval '{interval}'")  # type: ignore[no-any-return]


def test_a_paused_subscription_hands_out_nothing_until_it_is_resumed(engine: Engine) -> None:
    ids = engine.publish(2)
    engine.ask("pause_subscription", subscription="default")
    assert not engine.lease(5)
    with engine.clock("1000 days"):
        assert not engine.lease(5)
    assert engine.ask("resume_subscription", subscription="default") is True
    assert engine.lease(5).ids == ids
    assert engine.ask("resume_subscription", subscription="default") is False


def test_a_pause_may_end_by_itself(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.ask("pause_subscription", subscription="default", until=later(engine, "1 hour"))
    with engine.clock("59 minutes"):
        assert not engine.lease()
    with engine.clock("61 minutes"):
        assert not engine.status().paused
        assert engine.lease().ids == [id]


def test_other_subscriptions_go_on(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    ids = engine.publish()
    engine.ask("pause_subscription", subscription="default")
    assert engine.lease(subscription="other").ids == ids


def test_a_paused_queue_pauses_all_its_subscriptions_those_made_later_too(engine: Engine) -> None:
    engine.ask("pause_queue")
    engine.ask("subscribe", subscription="other")
    ids = engine.publish()
    assert not engine.lease()
    assert not engine.lease(subscription="other")
    assert engine.ask("resume_queue") is True
    assert engine.lease().ids == engine.lease(subscription="other").ids == ids
    assert engine.ask("resume_queue") is False


def test_a_subscription_stays_paused_when_its_queue_is_resumed_and_the_reverse(engine: Engine) -> None:
    ids = engine.publish()
    engine.ask("pause_queue")
    engine.ask("pause_subscription", subscription="default")
    engine.ask("resume_queue")
    assert not engine.lease()
    engine.ask("pause_queue")
    engine.ask("resume_subscription", subscription="default")
    assert not engine.lease()
    engine.ask("resume_queue")
    assert engine.lease().ids == ids


def test_what_is_leased_goes_on_through_a_pause(engine: Engine) -> None:
    ids = engine.publish(2)
    held = engine.lease(2)
    engine.ask("pause_queue")
    assert ask(engine.connection, "extend", **held.named)
    assert engine.ack(held, ids[:1]) == 1
    assert engine.answer("retry", held, ids[1:]) == 1


def test_a_pause_holds_the_next_batch_and_lets_the_open_one_go_on(engine: Engine) -> None:
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    engine.publish()
    engine.ask("tick", force=True)
    (batch,) = engine.call("next_batch", subscription="stream", worker="w")
    engine.publish()
    engine.ask("tick", force=True)
    engine.ask("pause_subscription", subscription="stream")
    (again,) = engine.call("next_batch", subscription="stream", worker="w")
    assert again.batch_id == batch.batch_id
    with engine.clock("1 day"):
        assert engine.call("next_batch", subscription="stream", worker="another") == []
    engine.ask("finish_batch", subscription="stream", batch_id=again.batch_id, token=again.token)
    assert engine.call("next_batch", subscription="stream", worker="w") == []
    engine.ask("resume_subscription", subscription="stream")
    assert len(engine.call("next_batch", subscription="stream", worker="w")) == 1


def listed(engine: Engine) -> set[tuple[bool, Any]]:
    """What status and list_subscriptions say of the pause."""
    rows = [engine.status(), *engine.call("list_subscriptions")]
    return {(row.paused, row.paused_until) for row in rows}


def test_lists_show_a_pause(engine: Engine) -> None:
    assert listed(engine) == {(False, None)}
    engine.ask("pause_subscription", subscription="default")
    assert listed(engine) == {(True, None)}
    engine.ask("resume_subscription", subscription="default")
    until = later(engine, "1 hour").replace(microsecond=0)
    engine.ask("pause_queue", until=until)
    assert listed(engine) == {(True, until)}
    (row,) = [row for row in call(engine.connection, "list_queues") if row.queue == engine.queue]
    assert (row.paused, row.paused_until) == (True, until)
    with engine.clock("2 hours"):
        assert listed(engine) == {(False, None)}


def test_messages_wait_through_a_pause_and_rotation_keeps_them(engine: Engine) -> None:
    ids = engine.publish(3)
    engine.ask("pause_queue")
    engine.rotate("30 days")
    assert engine.status().ready == 3
    engine.ask("resume_queue")
    assert engine.lease(5).ids == ids


def test_a_pause_that_is_over_at_once_is_refused(engine: Engine) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with refused("TQ005", engine.queue, "until it is resumed"):
        engine.ask("pause_queue", until=past)
    with refused("TQ005", "default", engine.queue, "that time is over"):
        engine.ask("pause_subscription", subscription="default", until=past)
    assert listed(engine) == {(False, None)}


@pytest.mark.parametrize("function", ["pause_subscription", "resume_subscription"])
def test_who_pauses_what_is_not_there_hears_so(engine: Engine, function: str) -> None:
    with refused("TQ002", "nobody"):
        engine.ask(function, subscription="nobody")
    with refused("TQ001", "nowhere"):
        ask(engine.connection, function.replace("subscription", "queue"), queue="nowhere")


def test_a_time_is_the_same_behind_a_door_whatever_the_date_style(
    engine: Engine, open_session: Connect
) -> None:
    with granting(engine.connection, open_session, engine.queue) as grant:
        admin = engine.on(grant("admin"))
        # The abbreviation of that zone is read as that of Israel.
        admin.connection.execute("set timezone = 'Asia/Kolkata'; set datestyle = 'SQL, DMY'")
        until = engine.fetch("select '2999-01-01 12:00+00'::timestamptz")
        admin.ask("pause_queue", until=until)
        assert engine.fetch("select paused_until from trunq.queue where queue_id = {id}") == until
        admin.ask("pause_subscription", subscription="default")
        paused = "select paused_until = 'infinity' from trunq.subscription where queue_id = {id}"
        assert engine.fetch(paused)
