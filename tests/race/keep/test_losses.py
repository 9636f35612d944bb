"""Rotation that empties what a queue holds no more meets others: it is written down, or nothing happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from calling import move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, read, take
from waiting import wait_until_blocked

OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that a stream and workers read, and whose log is held for two spans."""
    work = Engine(session, next(new_names("losing"))).create(retention="2000 days", hold_at_most="2000 days")
    work.ask("subscribe", **LAKE, mode="exclusive", lease_time="9000 days")
    return work


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open."""
    return work.on(open_session(autocommit=False))


def losses(work: Engine) -> dict[str, int]:
    return {row.subscription: row.messages for row in work.call("list_losses")}


IN_THE_WAY: dict[str, Callable[[Engine], Any]] = {
    "takes a lease": lambda other: other.lease(1),
    "acks": lambda other: other.ack(HELD[other.queue][0]),
    "opens a batch": lambda other: take(other, worker="bob"),
    "finishes its batch": lambda other: other.ask("finish_batch", **named(HELD[other.queue][1])),
    "changes a policy": lambda other: other.ask("subscribe", subscription="default", max_attempts=3),
    "subscribes": lambda other: other.ask("subscribe", subscription="more"),
    "cuts a tick": lambda other: other.ask("tick", force=True),
    "dumps": lambda other: other.fetch("select count(*) from {log}"),
    "publishes": lambda other: other.publish(1),
    "rotates": lambda other: other.rotate(OLD),
    "accepts": lambda other: other.ask("accept_loss", subscription="default"),
}
HELD: dict[str, Any] = {}
"""By queue: the lease and the batch that the other has in hand."""


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_with_somebody_in_the_way_nothing_is_lost_until_he_is_gone(
    work: Engine, other: Engine, open_session: Connect, name: str
) -> None:
    work.publish(6)
    HELD[work.queue] = (work.lease(2), take(work))
    IN_THE_WAY[name](other)
    leader = work.on(open_session())
    move_clock(leader.connection, OLD)
    for _ in range(3):
        assert leader.ask("rotate") is None
    assert losses(work) == {}
    other.connection.rollback()
    while leader.ask("rotate") == 1:
        pass
    assert losses(work) == {"default": 4, "lake": 6}
    assert work.fetch("select count(*) from {log}") == 0


def test_a_snapshot_held_for_hours_is_not_in_the_way(work: Engine, other: Engine) -> None:
    other.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.connection.execute("select pg_current_xact_id()")
    work.publish(3)
    work.rotate(OLD)
    assert losses(work) == {"default": 3, "lake": 3}


def test_what_committed_late_is_lost_when_it_has_committed(work: Engine, other: Engine) -> None:
    other.publish(2)
    work.publish(1)
    work.rotate(OLD)
    assert losses(work) == {}
    other.connection.commit()
    work.rotate(OLD)
    assert losses(work) == {"default": 3, "lake": 3}


@pytest.mark.parametrize("name", ["lease", "next batch", "finish", "ack"])
def test_who_waited_for_the_rotation_hears_of_the_loss(
    work: Engine, other: Engine, meanwhile: Any, name: str
) -> None:
    """Though he had read the row of his subscription before."""
    work.publish(6)
    held, batch = work.lease(2), take(work)
    call, state = {
        "lease": (lambda _: work.lease(1), "TQ026"),
        "next batch": (lambda _: take(work), "TQ026"),
        "finish": (lambda _: work.ask("finish_batch", **named(batch)), "TQ003"),
        "ack": (lambda _: work.ack(held), "TQ003"),
    }[name]
    with other.clock(OLD):
        assert other.ask("rotate") == 1
    answer = meanwhile(call, work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused(state):
        answer.result()
    assert losses(work) == {"default": 4, "lake": 6}


def test_a_rotation_that_is_rolled_back_lost_nothing(work: Engine, other: Engine) -> None:
    found = work.publish(6)
    batch = take(work)
    with other.clock(OLD):
        assert other.ask("rotate") == 1
    other.connection.rollback()
    assert losses(work) == {}
    assert ids(read(work, batch)) == found
    assert work.ask("finish_batch", **named(batch))
    assert work.drain() == found


def test_the_error_outlives_the_position_that_rotation_carries_on(work: Engine) -> None:
    work.publish(2)
    for turn in range(1, 4):
        work.rotate(f"{turn * 3000} days")
    with refused("TQ026"):
        work.lease()
    with refused("TQ026"):
        take(work)
    assert {work.ask("accept_loss", subscription=name) for name in ("default", "lake")} == {1}
    for turn in range(4, 6):
        work.rotate(f"{turn * 3000} days")
    assert not work.lease()
    assert take(work) is None
