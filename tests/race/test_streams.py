"""Streams, where a reader meets another, a tick, or rotation."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, read, take
from waiting import wait_until_blocked

OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one stream reads."""
    work = Engine(session, next(new_names("streams")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=2)
    return work


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open."""
    return work.on(open_session(autocommit=False))


def test_what_commits_while_a_reader_cuts_its_tick_is_in_a_later_batch(work: Engine, other: Engine) -> None:
    work.ask("subscribe", subscription="second", mode="exclusive")
    while batch := take(work):
        work.ask("finish_batch", **named(batch))
    late = work.publish(2)
    (cut,) = other.call("next_batch", subscription="second", worker="bob", max_ticks=9)
    later = work.publish(2)
    assert take(work) is None, "the other's tick is not committed yet"
    other.connection.commit()
    batch = take(work)
    assert (batch.to_tick_id, ids(read(work, batch))) == (cut.to_tick_id, late)
    assert work.ask("finish_batch", **named(batch))
    assert ids(read(work, take(work))) == later


def test_of_a_finish_and_a_takeover_one_counts(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(2)
    batch = take(work)
    other.ask("finish_batch", **named(batch))
    with work.clock("1 h"):
        takeover = meanwhile(lambda _: take(work, worker="bob", cut=False), work.connection)
        wait_until_blocked(other.connection, work.connection)
        other.connection.commit()
        assert takeover.result() is None
    assert work.ask("position", **LAKE) == batch.to_tick_id


def test_a_finish_that_comes_behind_a_takeover_is_refused(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = work.publish(2)
    batch = take(work)
    move_clock(other.connection, "1 h")
    taken = take(other, worker="bob")
    finish = meanwhile(lambda _: work.ask("finish_batch", **named(batch)), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        finish.result()
    assert ids(read(other, taken)) == published


def test_of_two_that_give_a_batch_back_one_counts(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(4)
    batch = take(work)
    other.ask("fail_batch", **named(batch), after="0")
    second = meanwhile(lambda _: work.ask("fail_batch", **named(batch), after="0"), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        second.result()
    assert (take(work).attempt, work.call("list_streams")[0].batches) == (2, 1)


def test_rotation_waits_for_a_seek_that_is_under_way(work: Engine, other: Engine) -> None:
    """Backwards: what rotation asked before would not hold any more."""
    published = work.publish(3)
    first = work.ask("position", **LAKE)
    work.ask("finish_batch", **named(take(work)))
    for _ in range(2):
        work.ask("tick", force=True)
        work.ask("finish_batch", **named(take(work)))
    other.ask("seek", **LAKE, tick_id=first)
    with work.clock(OLD):
        assert work.ask("rotate") is None
        other.connection.commit()
        assert work.rotate() == 0, "its messages are to be read again"
    assert ids(read(work, take(work))) == published


def test_a_seek_behind_a_rotation_is_told_what_is_gone(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(3)
    first = work.ask("position", **LAKE)
    work.ask("finish_batch", **named(take(work)))
    for _ in range(2):
        work.ask("tick", force=True)
        work.ask("finish_batch", **named(take(work)))
    move_clock(other.connection, OLD)
    assert other.ask("rotate") == 1
    seek = meanwhile(lambda _: work.ask("seek", **LAKE, tick_id=first), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ012", f"tick {first} of queue"):
        seek.result()
    assert work.is_empty("log")


def test_rotation_beside_a_batch_that_is_finished_in_part_keeps_the_rest(work: Engine, other: Engine) -> None:
    published = work.publish(4)
    batch = take(work)
    rows = read(work, batch)
    other.ask("finish_batch", **named(batch), upto_txid=rows[1].txid, upto_id=rows[1].id)
    assert work.rotate(OLD) == 0
    other.connection.commit()
    assert work.rotate(OLD) == 0
    assert ids(read(work, take(work))) == published[2:]


def test_two_that_ask_at_once_get_one_batch(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    batch = take(other, worker="bob")
    second = meanwhile(lambda _: take(work), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert second.result() is None
    assert ids(read(work, batch)) == published


def test_a_reader_that_cuts_holds_nobody_up_who_publishes_or_rotates(work: Engine, other: Engine) -> None:
    work.publish(2)
    assert take(other, worker="bob")
    assert work.publish(2)
    with work.clock(OLD):
        assert work.ask("rotate") in (None, 0)
    assert work.ask("tick") is None, "the leader has other queues to see to"


def test_of_two_movers_that_bring_a_batch_the_second_finds_that_it_is_here(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    work.publish(2)
    (move,) = work.call("begin_move", **named(take(work)))
    given = {"source": move.source, "subscription_id": move.subscription_id, "from": Jsonb(move.from_place)}
    assert ask(other.connection, "receive", **given, to=Jsonb(move.to_place))
    second = meanwhile(ask, work.connection, "receive", **given, to=Jsonb(move.to_place))
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert second.result() is False
