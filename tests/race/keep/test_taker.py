"""A taker between workers, rotation and what is not committed: every attempt once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import psycopg
import pytest

from conftest import Connect
from engine import Engine
from trunq.arrow import history
from waiting import wait_until

OLD = "3000 days"


class Lake:
    """What a taker wrote, in memory."""

    def __init__(self, work: Engine) -> None:
        self.work = work
        self.state: dict[str, Any] = {}
        self.rows: Counter[tuple[int, int]] = Counter()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        yield self.work.connection

    def take(self) -> int:
        """A run; how many rows it brought."""
        slice, self.state = history.plan(self.transaction, self.work.queue, "lake", self.state, 50)
        batches = list(history.read(self.transaction, self.work.queue, slice)) if slice else []
        for batch in batches:
            self.rows.update(zip(batch["id"].to_pylist(), batch["attempt"].to_pylist(), strict=True))
        history.take(self.transaction, self.work.queue, "lake", self.state)
        return sum(batch.num_rows for batch in batches)


@pytest.fixture
def work(connect: Connect) -> Engine:
    engine = Engine(connect(), "work").create(retention="2000 days")
    engine.ask("create_taker", taker="lake")
    return engine


def test_an_answer_that_is_not_committed_is_waited_for(work: Engine, connect: Connect) -> None:
    lake = Lake(work)
    work.publish(2)
    held = work.lease()
    late = work.on(connect(autocommit=False))
    late.ack(held)
    work.drain()
    assert lake.take() == 1
    assert work.rotate(OLD) == 0, "the message of the open transaction is still to be taken"
    late.connection.commit()
    assert lake.take() == 1
    wait_until(lambda: work.rotate(OLD) > 0, what="segments are emptied")
    assert set(lake.rows.values()) == {1}


def test_rotation_waits_while_marks_are_set_back(work: Engine, connect: Connect) -> None:
    lake = Lake(work)
    work.publish(3)
    work.drain()
    assert lake.take() == 3
    planning = work.on(connect(autocommit=False))
    again = Lake(planning)
    slice, _ = history.plan(again.transaction, "work", "lake", {}, 50)
    with work.clock(OLD):
        assert work.ask("rotate") is None, "somebody is in the way"
    planning.connection.commit()
    assert work.rotate(OLD) == 0
    assert slice is not None
    assert sum(batch.num_rows for batch in history.read(lake.transaction, "work", slice)) == 3


def test_a_ring_of_seconds_under_load_empties_nothing_that_is_not_taken(connect: Connect) -> None:
    work = Engine(connect(), "work").create(retention="2 seconds")
    work.ask("create_taker", taker="lake")
    done: Counter[tuple[int, int]] = Counter()
    is_over, has_rotated = Event(), Event()

    def rotate() -> None:
        mine = work.on(connect())
        while not is_over.is_set():
            if mine.ask("rotate") == 1:
                has_rotated.set()

    def answer() -> None:
        mine = work.on(connect())
        while not is_over.is_set():
            mine.publish(10)
            while held := mine.lease(3):
                mine.ack(held)
                done.update((message.id, message.attempt) for message in held.messages)

    lake = Lake(work.on(connect()))
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(rotate), threads.submit(answer)]
        try:
            wait_until(
                lambda: lake.take() >= 0 and has_rotated.is_set() and len(done) > 300,
                what="the ring went round",
            )
        finally:
            is_over.set()
        for each in running:
            each.result()
    while lake.take():
        pass
    assert lake.rows == done
    assert set(done.values()) == {1}
