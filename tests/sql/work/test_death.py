"""A death is made known as its subscription wants it: trunq.set_dead, functions/work/dead.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused, set_policy
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("mortal"))).create()


@pytest.fixture
def failures(work: Engine) -> Engine:
    engine = Engine(work.connection, f"{work.queue}_failures").create()
    work.ask("set_dead", into=engine.queue)
    return engine


def die(work: Engine, error: str = "boom") -> int:
    held = work.lease()
    work.answer("reject", held, errors=[error])
    return held.ids[0]


def test_a_warning_names_the_message_and_why(work: Engine) -> None:
    told: list[str] = []
    work.connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    work.publish(2)
    die(work)
    assert told == []
    assert work.ask("set_dead", warn=True) is True
    id = die(work, "no such user\nTraceback")
    assert told == [
        f'trunq: message {id} of queue "{work.queue}" is dead for subscription "default" (rejected):'
        " no such user"
    ]


def test_a_notification_names_the_subscription_and_the_message(work: Engine, open_session: Connect) -> None:
    policy = work.call("set_dead", notify=True)[0]
    listener = open_session()
    listener.execute(f"listen {policy.channel}".encode())
    work.publish()
    id = die(work)
    (heard,) = listener.notifies(timeout=120, stop_after=1)
    assert heard.payload == f"default {id}"


def test_it_is_published_into_another_queue_with_its_lineage(work: Engine, failures: Engine) -> None:
    work.publish(kinds=["mail"], keys=["anna"], headers=[{"trace": "1"}])
    id = die(work, "boom")
    (message,) = failures.lease().messages
    assert (message.kind, message.key, message.payload) == ("mail", "anna", {"n": 0})
    assert message.headers["trace"] == "1"
    (entry,) = message.headers["trunq_dead"]
    assert entry.pop("died_at")
    assert entry == {
        "queue": work.queue, "subscription": "default", "id": id, "reason": "rejected", "attempts": 1,
        "error": "boom",
    }  # fmt: skip
    assert work.state(id) == "dead", "it stays one here"


def test_a_death_that_is_rolled_back_is_none(work: Engine, failures: Engine) -> None:
    work.publish()
    with work.connection.transaction(force_rollback=True):
        die(work)
    assert not failures.lease()


@pytest.mark.parametrize("way", ["max_attempts", "lease_expired"])
def test_the_last_attempt_is_a_death_too(work: Engine, failures: Engine, way: str) -> None:
    set_policy(work.connection, work.queue, max_attempts=1)
    work.publish()
    held = work.lease(lease_time="1 second")
    if way == "max_attempts":
        work.answer("retry", held)
    else:
        with work.clock("1 minute"):
            work.ask("reap")
    (message,) = failures.lease().messages
    assert message.headers["trunq_dead"][0]["reason"] == way


def test_what_expired_is_made_known_to_nobody(work: Engine, failures: Engine) -> None:
    work.publish(options={"expires_at": "2020-01-01T00:00:00Z"})
    assert not work.lease()
    assert work.status().dead == 1
    assert not failures.lease()


def test_a_queue_that_refuses_messages_takes_dead_ones(work: Engine, failures: Engine) -> None:
    failures.ask("close_queue")
    work.publish()
    die(work)
    assert failures.lease()
    with refused("TQ018"):
        failures.publish()


def test_what_cannot_be_published_fails_no_answer(work: Engine, failures: Engine) -> None:
    told: list[str] = []
    work.connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    failures.ask("drop_queue", force=True)
    work.publish()
    id = die(work)
    assert work.state(id) == "dead"
    assert "which is gone" in told[-1]


def test_what_dies_there_as_well_does_not_come_back(work: Engine, failures: Engine) -> None:
    failures.ask("set_dead", into=work.queue)
    work.publish()
    die(work)
    die(failures)
    assert not work.lease()
    assert failures.status().dead == 1


def test_lanes_take_dead_ones(work: Engine) -> None:
    laned = Engine(work.connection, f"{work.queue}_laned").create(lanes="key")
    work.ask("set_dead", into=laned.queue)
    work.publish(keys=["anna"])
    die(work)
    assert laned.lease().messages[0].key == "anna"


def test_it_is_as_it_was_said_until_somebody_says_otherwise(work: Engine, failures: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    assert work.call("set_dead")[0][:3] == (False, False, failures.queue)
    assert work.call("set_dead", subscription="mail")[0][:3] == (False, False, None)
    assert work.call("set_dead", warn=True)[0][:3] == (True, False, failures.queue)
    assert work.call("set_dead", into="")[0][:3] == (True, False, None)
    work.ask("reset", subscription="default")
    assert work.call("set_dead")[0][:3] == (True, False, None), "a policy stays"


def test_dead_messages_are_chosen_by_reason(work: Engine) -> None:
    set_policy(work.connection, work.queue, max_attempts=1)
    work.publish(3)
    rejected = die(work)
    for _ in range(2):
        work.answer("retry", work.lease())
    assert [row.id for row in work.call("list_dead", reason="rejected")] == [rejected]
    assert work.ask("count_dead", reason="max_attempts") == 2
    assert work.ask("requeue", reason="max_attempts") == 2
    assert work.ask("purge", reason="max_attempts") == 0
    assert work.ask("purge", reason="rejected") == 1
    with refused("TQ005", "age", "max_attempts"):
        work.ask("requeue", reason="age")


@pytest.mark.parametrize("slots", [None, 2])
def test_a_message_that_a_stream_gave_up_is_made_known_too(work: Engine, slots: int | None) -> None:
    failures = Engine(work.connection, next(new_names("failures"))).create()
    if slots:
        work.ask("create_group", group="stream", slots=slots)
        work.ask("join_group", group="stream", member="ada")
    else:
        work.ask("subscribe", subscription="stream", mode="exclusive")
    assert work.call("set_dead", subscription="stream", into=failures.queue)[0].into_queue == failures.queue
    assert work.call("set_dead", subscription="stream")[0].into_queue == failures.queue
    (id,) = work.publish(keys=["k"], options={"max_attempts": 1})
    while not work.call("list_dead"):
        (batch,) = work.call("next_batch", subscription="stream", worker="ada")
        named = {"subscription": "stream", "batch_id": batch.batch_id, "token": batch.token}
        work.call("retry_batch", **named, error="bad")
        work.call("finish_batch", **named)
    (told,) = failures.lease().messages[0].headers["trunq_dead"]
    assert (told["subscription"], told["id"], told["error"]) == ("stream", id, "bad")


def test_what_cannot_be_is_refused(work: Engine) -> None:
    with refused("TQ005", "the same queue"):
        work.ask("set_dead", into=work.queue)
    with refused("TQ001", "nowhere"):
        work.ask("set_dead", into="nowhere")
    with refused("TQ002", "nobody"):
        work.ask("set_dead", subscription="nobody")
    assert call(work.connection, "list_dead", queue=work.queue) == []
