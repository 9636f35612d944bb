"""Rotation, history and status know what lanes hold."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import come_back, fetch
from engine import Engine
from laning import LATER, keys, make

Connection = psycopg.Connection[Any]


def test_rotation_empties_no_segment_that_holds_what_was_found_and_not_handed_out(
    session: Connection,
) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    seen = laned.lease(3).ids
    laned.ack(laned.lease(3))
    laned.rotate(LATER)
    assert not laned.is_empty("log")
    laned.run("update {lease} set expires_at = expires_at")
    for offset in (LATER, "11 days 12 hours"):
        with laned.clock(offset):
            laned.ask("reap")
        laned.rotate(offset)
    assert not laned.is_empty("log")
    with laned.clock("11 days 12 hours"):
        come_back(session, laned.queue)
        rest = laned.drain()
    assert len(rest) == 30 - 3
    assert set(seen) <= set(rest)


@pytest.mark.parametrize("state", ["blocked", "paused"])
def test_nor_one_that_holds_what_a_lane_may_not_hand_out(session: Connection, state: str) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=1)
    laned.publish(3, keys=["a"])
    held = laned.lease()
    if state == "paused":
        laned.ask("pause_lane", lane="a")
        laned.ack(held)
    assert not laned.lease()
    laned.rotate(LATER)
    if state == "paused":
        laned.ask("resume_lane", lane="a")
    else:
        laned.ack(held)
    with laned.clock(LATER):
        assert len(laned.drain()) == 2


def test_when_all_is_answered_the_segment_of_every_table_is_emptied(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=3)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    segment = laned.fetch("select min(segment) from {log}")
    for _ in range(10):
        laned.drain()
    sizes = " + ".join(
        f"pg_relation_size('trunq_data.{laned.queue}_{table}_{segment}')"
        for table in ("log", "lease", "receipt", "turn", "wake")
    )
    assert fetch(session, f"select {sizes}") > 0
    laned.rotate(LATER)
    assert fetch(session, f"select {sizes}") == 0


def age_turns(laned: Engine) -> str:
    """As if the turns were of the span before this one; returns when their segment is old."""
    laned.run("update {turn} set segment = mod(segment + 3, 4)")
    return "1 day"


def test_lanes_outlive_the_segment_of_their_turns(session: Connection) -> None:
    laned = make(session)
    laned.publish(40, keys=["a", "b", "c", "d"] * 10)
    laned.ack(laned.lease(4))
    later = age_turns(laned)
    before = laned.fetch("select min(segment) from {turn}")
    assert laned.rotate(later) > 1
    assert laned.fetch("select count(*) from {turn} where segment = %s", before) == 0
    rest: list[int] = []
    while more := laned.lease(4):
        rest += more.ids
    assert len(rest) == len(set(rest)) == 36


def test_turns_that_were_copied_are_not_taken_twice(session: Connection) -> None:
    laned = make(session)
    laned.publish(40, keys=["a", "b", "c", "d"] * 10)
    laned.ack(laned.lease(4))
    with laned.clock(age_turns(laned)):
        assert laned.ask("rotate") == 1
    # The old ones are still there.
    assert laned.fetch("select count(distinct segment) from {turn}") == 2
    rest: list[int] = []
    while more := laned.lease(4):
        rest += more.ids
    assert len(rest) == len(set(rest)) == 36
    assert laned.fetch("select carried_to from {lease} order by lease_id desc limit 1") is None


def test_an_older_turn_of_a_lane_never_outlives_its_newest(session: Connection) -> None:
    laned = make(session)
    laned.publish(10, keys=["a"])
    laned.ack(laned.lease(3))
    done = laned.lease(7)
    laned.ack(done)
    assert not laned.lease()
    assert laned.fetch("select array_agg(state order by seq) from {turn}") == ["r", "r", "r", "i"]
    # The segment of the newest turn, in which the lane is idle, is emptied before that of the older ones.
    laned.run("update {turn} set segment = mod(segment + 3, 4) where seq = (select max(seq) from {turn})")
    before = laned.fetch("select segment from {turn} order by seq desc limit 1")
    laned.rotate("1 day")
    assert laned.fetch("select count(*) from {turn} where segment = %s", before) == 0
    assert {laned.state(id) for id in done.ids} == {"done"}
    new = laned.publish(3, keys=["a"])
    assert laned.lease().ids + laned.drain() == new


def test_a_lane_that_runs_keeps_its_count_when_its_turn_is_copied(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=2)
    laned.publish(2, keys=["a"])
    laned.lease(2)
    with laned.clock(age_turns(laned)):
        while laned.ask("rotate") == 1:
            pass
    laned.publish(2, keys=["a"])
    assert not laned.lease(2)


def test_history_finds_the_lease_of_every_message(session: Connection) -> None:
    laned = make(session)
    holders: dict[int, int] = {}
    for round in range(12):
        # By turns when much waits, straight through when little does.
        laned.publish(7 if round % 3 else 40, keys=list("abcdefg") if round % 3 else list("abcde") * 8)
        for size in (3, 5) if round % 4 else (200,):
            held = laned.lease(size)
            holders.update(dict.fromkeys(held.ids, held.lease_id))
            if round % 2:
                laned.ack(held)
    found = {
        row.id: row.state
        for row in laned.call("list_messages", limit=1000)
        if row.state in ("leased", "done")
    }
    assert set(found) == set(holders)
    for id, lease_id in holders.items():
        txid = laned.fetch("select txid from {log} where id = %s", id)
        holder = fetch(
            session,
            "select h.lease_id from trunq._first_leases((select q from trunq.queue q where name = %s),"
            " (select subscription_id from trunq.subscription where queue_id = %s and name = 'default'),"
            " array[%s]::xid8[], array[%s]::bigint[]) h",
            laned.queue,
            laned.queue_id,
            str(txid),
            id,
        )
        assert holder == lease_id
        assert [attempt["worker"] for attempt in laned.message(id).attempts] == ["w"]


def test_what_came_back_and_is_gone_with_its_segment_is_done(session: Connection) -> None:
    laned = make(session)
    (id,) = laned.publish(1, keys=["a"])
    laned.answer("release", laned.lease())
    laned.answer("retry", laned.lease(), delays=["0"])
    laned.ack(laned.lease())
    # A lane that is paused may hold a segment that is older than the one of these.
    for kept in (2, 1):
        last = laned.fetch("select count(*) from {log}") - kept
        laned.rewrite(
            "delete from {log} where txid in (select txid from {log} order by txid desc limit %s)", last
        )
        assert laned.state(id) == "done"
        assert [row.state for row in laned.call("list_messages")] == ["done"]


def test_status_counts_what_lanes_hold(session: Connection) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    assert laned.status().ready == 30
    laned.lease(6)
    assert (laned.status().ready, laned.status().leased) == (24, 6)
    laned.publish(5, keys=["a", "b", "c", "d", "e"])
    assert laned.status().ready == 29
    assert len(laned.listed(state="ready", limit=100)) == 29
    while laned.lease(4):
        pass
    assert (laned.status().ready, laned.status().leased) == (0, 35)


def test_an_emptied_queue_starts_anew(session: Connection) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    laned.lease(6)
    laned.ask("empty_queue")
    assert not laned.lease(6)
    laned.publish(9, keys=["a", "b", "c"] * 3)
    assert keys(laned.lease(3)) == ["a", "b", "c"]
