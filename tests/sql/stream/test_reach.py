"""A tick is in reach while every message after it is kept; from others nobody reads in silence: tick.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from conftest import Connect
from engine import Engine

OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that only streams read."""
    return Engine(session, next(new_names("reach"))).create(retention="2000 days", default_subscription=False)


def put_batches(work: Engine, count: int) -> list[list[int]]:
    """Ten messages between every two ticks."""
    ids = []
    for _ in range(count):
        ids.append(work.publish(10))
        work.ask("tick", force=True)
    return ids


def read(work: Engine, subscription: str) -> list[int]:
    """The next batch, finished."""
    rows = work.call("next_batch", subscription=subscription, worker="w")
    if not rows:
        return []
    (batch,) = rows
    found = work.call("read_batch", subscription=subscription, batch_id=batch.batch_id)
    work.ask("finish_batch", subscription=subscription, batch_id=batch.batch_id, token=batch.token)
    return [row.id for row in found]


def reachable(work: Engine) -> list[int]:
    return [tick.tick_id for tick in work.call("list_ticks") if tick.reachable]


def age(work: Engine) -> None:
    """Put all messages there are into the segment before: now they are old, and what comes is not."""
    work.rewrite("update {log} set segment = mod(segment + 1, 4)")


def test_the_earliest_batch_has_all_its_messages(work: Engine) -> None:
    work.ask("subscribe", subscription="slow", mode="exclusive")
    put_batches(work, 3)
    while read(work, "slow"):
        pass
    age(work)
    newer = put_batches(work, 2)
    assert [len(read(work, "slow")) for _ in range(2)] == [10, 10]
    assert work.rotate() == 1
    assert work.fetch("select count(*) from {log}") == 20
    assert [tick.reachable for tick in work.call("list_ticks")] == [False] * 4 + [True] * 3
    work.ask("subscribe", subscription="late", mode="exclusive", start="earliest")
    assert [read(work, "late") for _ in range(3)] == [*newer, []]


def test_with_every_tick_out_of_reach_earliest_is_now(work: Engine) -> None:
    put_batches(work, 2)
    work.publish(5)
    assert work.rotate(OLD) == 1
    assert reachable(work) == []
    work.ask("subscribe", subscription="late", mode="exclusive", start="earliest")
    ids = put_batches(work, 1)
    assert read(work, "late") == ids[0]
    assert reachable(work) == [4, 5]


def test_the_last_batch_can_be_repeated_after_rotation(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    ids = put_batches(work, 3)
    assert [read(work, "lake") for _ in range(3)] == ids
    position = work.ask("position", subscription="lake")
    assert work.rotate(OLD) == 0, "its messages are in the segment"
    assert position - 1 in reachable(work)
    put_batches(work, 1)
    read(work, "lake")
    assert work.fetch("select count(*) from {log}") == 40


def test_a_segment_goes_when_the_batch_that_may_be_repeated_is_newer(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    put_batches(work, 3)
    while read(work, "lake"):
        pass
    age(work)
    put_batches(work, 1)
    assert work.rotate() == 0, "the batch before is not finished: the one before that may be repeated"
    read(work, "lake")
    assert work.rotate() == 1
    position = work.ask("position", subscription="lake")
    assert reachable(work) == [position - 1, position]


def test_a_writer_open_for_hours_leaves_later_ticks_in_reach(work: Engine, open_session: Connect) -> None:
    writer = open_session(autocommit=False)
    writer.execute("select pg_current_xact_id()")
    put_batches(work, 2)
    assert work.rotate(OLD) == 1
    work.ask("subscribe", subscription="late", mode="exclusive", start="earliest")
    ids = put_batches(work, 1)
    assert read(work, "late") == ids[0]
    writer.rollback()


def test_a_tick_cut_while_one_of_the_messages_was_not_committed_is_out_of_reach(
    work: Engine, open_session: Connect
) -> None:
    late = work.on(open_session(autocommit=False))
    late.publish()
    put_batches(work, 1)
    late.connection.commit()
    seen = work.ask("tick", force=True)
    assert work.rotate(OLD) == 1
    assert reachable(work) == [seen]


def test_nothing_is_emptied_while_a_tick_is_being_cut(work: Engine, open_session: Connect) -> None:
    put_batches(work, 1)
    cutting = work.on(open_session(autocommit=False))
    tick = cutting.ask("tick", force=True)
    with work.clock(OLD):
        assert work.ask("rotate") is None
        cutting.connection.commit()
        assert work.ask("rotate") == 1
    assert reachable(work) == [tick - 1, tick]


def test_a_message_rolled_back_takes_no_tick_out_of_reach(work: Engine) -> None:
    with work.connection.transaction(force_rollback=True):
        work.publish()
    work.ask("tick", force=True)
    assert work.rotate("2999 days") == 1
    assert reachable(work) == [tick.tick_id for tick in work.call("list_ticks")]


def test_what_is_out_of_reach_is_refused_by_name(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    put_batches(work, 4)
    (batch,) = work.call("next_batch", subscription="lake", worker="w")
    # As after somebody emptied the log by hand and said so.
    work.run("update trunq.queue set reachable_tick_id = 4 where name = '{queue}'")
    one = {"subscription": "lake"}
    with refused("TQ012", f'tick 2 of queue "{work.queue}" is out of reach', "tick 4 is the first in reach"):
        work.call("read_batch", **one, batch_id=batch.batch_id)
    with refused("TQ012", "tick 2 of queue", "trunq.advance"):
        work.call("next_batch", **one, worker="w")
    assert work.call("next_batch", **one, worker="another") == []
    with work.clock("1 hour"), refused("TQ012", "tick 2 of queue"):
        work.call("next_batch", **one, worker="another")
    with refused("TQ012", "tick 3 of queue"):
        work.ask("advance", **one, tick_id=3)
    assert work.ask("advance", **one, tick_id=4) == 4
    assert len(read(work, "lake")) == 10


def test_an_old_batch_is_not_read_with_a_hole(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    put_batches(work, 1)
    (batch,) = work.call("next_batch", subscription="lake", worker="w")
    work.ask("finish_batch", subscription="lake", batch_id=batch.batch_id, token=batch.token)
    age(work)
    put_batches(work, 2)
    while read(work, "lake"):
        pass
    assert len(work.call("read_batch", subscription="lake", batch_id=batch.batch_id)) == 10
    assert work.rotate() == 1
    with refused("TQ012", "is out of reach"):
        work.call("read_batch", subscription="lake", batch_id=batch.batch_id)
