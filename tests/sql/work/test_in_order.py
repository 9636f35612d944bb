"""A subscription in order: of each key one message at a time, and one that is retried holds its key."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import come_back, refused
from conftest import Connect
from engine import Engine
from laning import LATER, keys, make

Connection = psycopg.Connection[Any]


@pytest.fixture
def laned(session: Connection) -> Engine:
    engine = make(session)
    engine.ask("subscribe", subscription="default", in_order=True, max_attempts=3)
    return engine


def test_a_lease_holds_one_message_of_each_key(laned: Engine) -> None:
    ids = laned.publish(30, keys=["a", "b", "c"] * 10)
    held = laned.lease(30)
    assert held.ids == ids[:3]
    assert not laned.lease(30)
    laned.ack(held, ids[1:2])
    assert laned.lease(30).ids == ids[4:5]


def test_messages_come_in_their_order(laned: Engine) -> None:
    ids = laned.publish(300, keys=list("abcdefg") * 42 + list("abcdef"))
    seen = laned.drain()
    assert sorted(seen) == ids
    order = {key: [id for id in seen if (id - ids[0]) % 7 == n] for n, key in enumerate("abcdefg")}
    assert all(each == sorted(each) for each in order.values())


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize(("verb", "outcome"), [("retry", "failed"), ("release", "released")])
def test_a_message_given_back_comes_before_all_others_of_its_key(
    laned: Engine, verb: str, outcome: str, count: int
) -> None:
    ids = laned.publish(4, keys=["a"])
    more = {"delays": ["0"]} if verb == "retry" else {}
    laned.answer(verb, laned.lease(count), **more)
    laned.publish(2, keys=["a"])
    assert laned.status().ready == 6
    assert laned.listed(state="ready", limit=10)[-1] == ids[0]
    again = laned.lease(count)
    assert again.ids == ids[:1]
    assert not laned.lease(count)
    laned.ack(again)
    assert laned.lease(count).ids == ids[1:2]
    assert [attempt["outcome"] for attempt in laned.message(ids[0]).attempts] == [outcome, "success"]


@pytest.mark.parametrize("verb", ["retry", "release"])
def test_one_given_back_that_waits_for_its_time_holds_its_key_alone(laned: Engine, verb: str) -> None:
    ids = laned.publish(6, keys=["a", "b"] * 3)
    held = laned.lease(10)
    laned.answer(verb, held, ids[:1], delays=["1 hour"])
    laned.ack(held, ids[1:2])
    assert laned.lease(10).ids == ids[3:4]
    laned.publish(3, keys=["a"])
    assert not laned.lease(10)
    with laned.clock("2 hours"):
        assert laned.ask("promote") == 1
        again = laned.lease(10)
        assert again.ids == ids[:1]
        assert not laned.lease(10)
        laned.ack(again)
        assert laned.lease(10).ids == ids[2:3]


def test_a_message_that_dies_lets_its_key_go_on(laned: Engine) -> None:
    ids = laned.publish(4, keys=["a"])
    laned.answer("reject", laned.lease())
    for attempt in range(3):
        held = laned.lease()
        assert (held.ids, held.messages[0].attempt) == (ids[1:2], attempt + 1)
        laned.answer("retry", held, delays=["0"])
    assert laned.lease().ids == ids[2:3]
    assert {row.id: row.reason for row in laned.call("list_dead")} == {
        ids[0]: "rejected",
        ids[1]: "max_attempts",
    }


@pytest.mark.parametrize("count", [1, 10])
def test_what_expired_lets_its_key_go_on_in_the_same_lease(laned: Engine, count: int) -> None:
    laned.publish(60, keys=["a"], max_age="1 minute")
    ids = laned.publish(2, keys=["a"])
    with laned.clock("2 minutes"):
        held = laned.lease(count)
        assert held.ids == ids[:1]
        laned.ack(held)
        assert laned.lease(count).ids == ids[1:]
    assert laned.status().dead == 60


def test_a_retry_that_expired_lets_its_key_go_on(laned: Engine) -> None:
    laned.publish(1, keys=["a"], max_age="1 minute")
    (alive,) = laned.publish(1, keys=["a"])
    laned.answer("retry", laned.lease(), delays=["0"])
    with laned.clock("2 minutes"):
        assert laned.lease().ids == [alive]


def test_a_lease_that_ran_out_holds_its_keys_until_its_messages_are_back(laned: Engine) -> None:
    ids = laned.publish(6, keys=["a", "b"] * 3)
    laned.lease(10, lease_time="1 minute")
    with laned.clock("2 minutes"):
        assert not laned.lease(10)
        assert laned.ask("reap") == 1
        assert not set(laned.lease(10).ids) - set(ids[:2])
        come_back(laned.connection, laned.queue)
        assert not set(laned.lease(10).ids) - set(ids[:2])
        assert laned.status().leased == 2


def test_an_answer_that_is_not_committed_lets_no_key_go_on(laned: Engine, open_session: Connect) -> None:
    ids = laned.publish(2, keys=["a"])
    held, other = laned.lease(), open_session(autocommit=False)
    laned.on(other).ack(held)
    laned.publish(1, keys=["b"])
    assert keys(laned.lease(5)) == ["b"]
    other.commit()
    assert laned.lease(5).ids == ids[1:]


def test_what_is_requeued_comes_at_the_end_of_its_key(laned: Engine) -> None:
    ids = laned.publish(3, keys=["a"])
    laned.answer("reject", laned.lease())
    assert laned.ask("requeue") == 1
    assert laned.drain() == [*ids[1:], ids[0]]


def test_one_that_somebody_deleted_lets_its_key_go_on(laned: Engine) -> None:
    ids = laned.publish(5, keys=["a"])
    held = laned.lease()
    laned.rewrite("delete from {log} where id = %s", ids[0])
    laned.answer("retry", held, delays=["0"])
    held = laned.lease()
    assert held.ids == ids[1:2]
    laned.answer("retry", held, delays=["0"])
    laned.ask("pause_lane", lane="a")
    assert not laned.lease()
    laned.rewrite("delete from {log} where id = %s", ids[1])
    laned.ask("resume_lane", lane="a")
    assert laned.lease().ids == ids[2:3]
    laned.publish(1, keys=["b"])
    last = laned.lease()
    laned.rewrite("delete from {log} where id = any (%s)", last.ids)
    laned.answer("release", last)
    (more,) = laned.publish(1, keys=["b"])
    assert laned.lease().ids == [more]


def test_a_key_that_is_idle_and_runs_goes_on_when_more_is_published(laned: Engine) -> None:
    (first,) = laned.publish(1, keys=["a"])
    held = laned.lease(5)
    (second,) = laned.publish(1, keys=["a"])
    assert not laned.lease(5)
    laned.ack(held)
    held = laned.lease(5)
    laned.ack(held)
    (third,) = laned.publish(1, keys=["a"])
    assert [first, *held.ids, *laned.lease(5).ids] == [first, second, third]


@pytest.mark.parametrize("way", ["pause", "rate", "subscription"])
def test_limits_hold_for_what_came_back(laned: Engine, way: str) -> None:
    ids = laned.publish(3, keys=["a"])
    held = laned.lease()
    if way == "pause":
        laned.ask("pause_lane", lane="a")
    elif way == "rate":
        laned.ask("set_lanes", rate=0.01, burst=1)
    else:
        laned.ask("subscribe", subscription="default", rate=0.01, burst=1)
    laned.answer("retry", held, delays=["0"])
    if way == "pause":
        assert not laned.lease(5)
        laned.ask("resume_lane", lane="a")
    elif way == "rate":
        again = laned.lease(5)
        laned.answer("release", again)
        assert not laned.lease(5)
    with laned.clock("1 hour"):
        assert laned.lease(5).ids == ids[:1]
        assert not laned.lease(5)


def test_rotation_keeps_what_came_back_and_the_keys_that_are_held(laned: Engine) -> None:
    ids = laned.publish(6, keys=["a", "b", "c"] * 2)
    laned.ask("pause_lane", lane="c")
    held = laned.lease(5)
    laned.answer("retry", held, ids[:1], delays=["0"])
    laned.ask("pause_lane", lane="a")
    laned.publish(1, keys=["d"])
    laned.lease(5)
    for offset in (LATER, "11 days 12 hours", "14 days"):
        laned.rotate(offset)
        with laned.clock(offset):
            laned.ask("resume_lane", lane="d")
            assert not laned.lease(5)
    laned.ask("resume_lane", lane="a")
    with laned.clock("14 days"):
        assert laned.lease(5).ids == ids[:1]


def test_in_order_is_said_before_anything_is_handed_out(session: Connection, laned: Engine) -> None:
    laned.publish(1, keys=["a"])
    laned.ask("subscribe", subscription="default", in_order=False)
    laned.ask("subscribe", subscription="default", in_order=True)
    laned.lease()
    laned.ask("subscribe", subscription="default", in_order=True, max_attempts=5)
    with refused("TQ005", "default", laned.queue, "reset"):
        laned.ask("subscribe", subscription="default", in_order=False)
    laned.ask("reset", subscription="default")
    laned.ask("subscribe", subscription="default", in_order=False)
    assert [row.in_order for row in laned.call("list_subscriptions")] == [False]
    plain = Engine(session, f"{laned.queue}_plain").create()
    with refused("TQ005", "plain queue", "p_lanes"):
        plain.ask("subscribe", subscription="default", in_order=True)
    with refused("TQ005", "priority,key", "p_lanes"):
        make(session, "priority,key").ask("subscribe", subscription="default", in_order=True)
    with refused("TQ005", "exclusive"):
        laned.ask("subscribe", subscription="stream", mode="exclusive", in_order=True)
    assert [row.subscription for row in laned.call("list_subscriptions")] == ["default"]
