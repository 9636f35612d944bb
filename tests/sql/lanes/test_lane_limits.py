"""What a lane may, what it is listed with, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from calling import ask, fetch, lease, new_names, refused
from conftest import Connect
from engine import Engine
from laning import keys, make

Connection = psycopg.Connection[Any]


def test_no_more_run_than_a_lane_may(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=2)
    laned.ask("set_lane", lane="b", max_running=5)
    laned.publish(20, keys=["a", "b"] * 10)
    held = laned.lease(20)
    assert Counter(keys(held)) == {"a": 2, "b": 5}
    assert not laned.lease(20)
    of_a = [message.id for message in held.messages if message.key == "a"]
    laned.ack(held, of_a[:1])
    assert keys(laned.lease(20)) == ["a"]
    laned.answer("retry", held, of_a[1:], delays=["0"])
    assert keys(laned.lease(20)) == ["a"]
    assert not laned.lease(20)


def test_what_a_dead_worker_held_runs_no_more_when_it_is_reaped(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=1)
    laned.publish(2, keys=["a"])
    laned.lease(2, lease_time="1 minute")
    assert not laned.lease()
    with laned.clock("2 minutes"):
        assert not laned.lease()
        laned.ask("reap")
        assert keys(laned.lease()) == ["a"]


def test_an_answer_that_is_not_committed_frees_nothing(session: Connection, open_session: Connect) -> None:
    laned, other = make(session), open_session(autocommit=False)
    laned.ask("set_lanes", max_running=1)
    laned.publish(2, keys=["a"])
    held = laned.lease()
    laned.on(other).ack(held)
    assert not laned.lease()
    other.commit()
    assert keys(laned.lease()) == ["a"]


def test_a_lane_is_paused_and_resumed(session: Connection) -> None:
    laned = make(session)
    laned.publish(6, keys=["a", "a", "a", "b", "b", "b"])
    laned.lease(2)
    laned.ask("pause_lane", lane="a")
    assert set(keys(laned.lease(10))) == {"b"}
    assert laned.ask("resume_lane", lane="a")
    assert not laned.ask("resume_lane", lane="a")
    assert set(keys(laned.lease(10))) == {"a"}


def test_a_lane_resumes_by_itself(session: Connection) -> None:
    laned = make(session)
    until = fetch(session, "select trunq.clock() + interval '1 hour'")
    laned.ask("pause_lane", lane="a", until=until)
    laned.publish(2, keys=["a"])
    assert not laned.lease(10)
    with laned.clock("61 minutes"):
        assert keys(laned.lease(10)) == ["a", "a"]


def test_a_rate(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", rate=2, burst=3)
    laned.publish(20, keys=["a"])
    assert len(laned.lease(20).ids) == 3
    assert not laned.lease(20)
    with laned.clock("1 second"):
        assert len(laned.lease(20).ids) == 2
        assert not laned.lease(20)
    with laned.clock("1 hour"):
        assert len(laned.lease(20).ids) == 3


@pytest.mark.parametrize("count", [1, 3, 20])
def test_what_expired_takes_neither_a_token_of_its_lane_nor_a_place(session: Connection, count: int) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=1, rate=1, burst=2)
    laned.publish(7, keys=["a"], max_age="1 minute")
    laned.publish(3, keys=["a"])
    with laned.clock("2 minutes"):
        held = laned.lease(count)
        assert len(held.ids) == 1
        assert not laned.lease(count)
        laned.ack(held)
        assert len(laned.lease(count).ids) == 1
    assert laned.status().dead == 7


def test_more_expired_messages_than_rounds_of_a_lease_hide_none(session: Connection) -> None:
    laned = make(session)
    laned.publish(100, keys=["a"], max_age="1 minute")
    (alive,) = laned.publish(1, keys=["a"])
    with laned.clock("2 minutes"):
        assert laned.lease().ids == [alive]


def test_lanes_are_listed_with_depth_age_and_limits(session: Connection) -> None:
    laned = make(session)
    laned.run("insert into {log} (key) select 'deep' from generate_series(1, 1500)")
    laned.publish(3, keys=["a"])
    first = {row.lane: row for row in laned.call("list_lanes")}
    assert (first["deep"].depth, first["deep"].is_more, first["a"].depth) == (1000, True, 3)
    held = laned.lease(2)
    laned.ask("set_lane", lane="a", max_running=7, weight=2)
    laned.ask("pause_lane", lane="later")
    laned.publish(1, keys=["new"])
    with laned.clock("1 hour"):
        rows = {row.lane: row for row in laned.call("list_lanes")}
    assert set(rows) == {"deep", "a", "new", "later"}
    assert (rows["deep"].depth, rows["deep"].is_more, rows["deep"].running) == (1000, True, 1)
    assert (rows["a"].depth, rows["a"].running, rows["a"].max_running, rows["a"].weight) == (2, 1, 7, 2)
    assert 3600 <= rows["a"].oldest_ready.total_seconds() < 4000
    assert (rows["new"].depth, rows["new"].running) == (1, 0)
    assert (rows["later"].depth, rows["later"].is_paused, rows["later"].paused_until) == (0, True, None)
    laned.ack(held)
    assert {row.running for row in laned.call("list_lanes")} == {0}


def test_what_lanes_cannot_be_is_said(session: Connection) -> None:
    laned, plain = make(session, "priority,key"), Engine(session, next(new_names("plain"))).create()
    keyed, prioritized = make(session, "key"), make(session, "priority")
    with refused("TQ005", "customer", "priority,key"):
        make(session, "customer")
    with refused("TQ005", plain.queue, "has no lanes", "convert_queue"):
        plain.create(lanes="key")
    with refused("TQ005", 'by "priority,key"', 'not by "key"'):
        laned.create(lanes="key")
    assert laned.create(lanes="priority,key")
    for function in ("set_lanes", "set_lane", "pause_lane", "resume_lane"):
        with refused("TQ005", plain.queue, "plain queue", "convert_queue"):
            plain.ask(function)
    with refused("TQ005", "loud", "fair"):
        laned.ask("set_lanes", policy="loud")
    for function in ("set_lanes", "set_lane"):
        for limit in (0, -1, 10000):
            with refused("TQ005", f"not {limit}", "pause_lane"):
                laned.ask(function, max_running=limit)
        with refused("TQ005", "not -1"):
            laned.ask(function, rate=-1)
        with refused("TQ005", "burst"):
            laned.ask(function, burst=3)
    with refused("TQ005", 'lane "a"', "that time is over"):
        laned.ask("pause_lane", lane="a", until=fetch(session, "select trunq.clock()"))
    with refused("TQ005", "weight", "0"):
        laned.ask("set_lane", lane="a", weight=0)
    with refused("TQ005", "rank", "1000"):
        laned.ask("set_lane", lane="a", rank=1000)
    with refused("TQ005", "differ in length"):
        laned.ask("set_ranks", subscription="default", lanes=["a", "b"], ranks=[1])
    with refused("TQ005", "by key alone"):
        keyed.ask("set_lane", lane="a", priority=3)
    with refused("TQ005", "its priorities", "a"):
        prioritized.ask("set_lane", lane="a")
    with refused("TQ005", "plain queue", "priorities"):
        plain.publish(1, priorities=[1])
    with refused("TQ005", "by key alone", "priorities"):
        keyed.publish(1, priorities=[1])
    with refused("TQ005", "2 priorities", "3 messages"):
        laned.publish(3, priorities=[1, 2])
    with refused("TQ005", "plain queue"):
        ask(session, "publish", queue=plain.queue, priority=1)
    with refused("TQ005", "by key alone"):
        ask(session, "publish", queue=keyed.queue, priority=1)
    assert lease(session, plain.queue).ids == []
