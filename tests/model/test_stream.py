"""Exclusive subscriptions against their model: each message once, in the window in which it committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from calling import move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.machine import run_machine

READERS = ("lake", "search")
WORKERS = ("ada", "bob")
WRITERS = (0, 1, 2)
LEASE_TIME = 50

some = st.integers(1, 3)
readers = st.sampled_from(READERS)
workers = st.sampled_from(WORKERS)
writers = st.sampled_from(WRITERS)


@dataclass
class Batch:
    """The ticks it lies between, who holds it until when, and its rows as they were read first."""

    id: int
    token: int
    first: int
    last: int
    worker: str
    expires_at: int
    rows: list[Any] | None = None


@dataclass
class Stream:
    """Messages by the tick before which they committed; a reader's position is a tick."""

    ticks: dict[int, set[int]] = field(default_factory=lambda: {1: set()})
    since: set[int] = field(default_factory=set)
    position: dict[str, int] = field(default_factory=lambda: dict.fromkeys(READERS, 1))
    open: dict[str, Batch] = field(default_factory=dict)
    finished: dict[str, list[Batch]] = field(default_factory=lambda: {name: [] for name in READERS})

    def cut(self, tick: int) -> None:
        self.ticks[tick], self.since = self.since, set()

    def between(self, first: int, last: int) -> set[int]:
        return {id for tick, ids in self.ticks.items() if first < tick <= last for id in ids}


class StreamMachine(RuleBasedStateMachine):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("stream"))).create(retention="2000 days")
        for reader in READERS:
            self.work.ask(
                "subscribe",
                subscription=reader,
                mode="exclusive",
                start="earliest",
                lease_time=f"{LEASE_TIME} s",
            )
        self.other = self.work.on(connect())
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written: list[list[int]] = [[] for _ in WRITERS]
        self.stream = Stream()
        self.read: dict[str, list[int]] = {reader: [] for reader in READERS}
        self.now = 0

    @rule(count=some)
    def publish(self, count: int) -> None:
        self.stream.since |= set(self.work.publish(count))

    @rule(writer=writers, count=some)
    def write(self, writer: int, count: int) -> None:
        self.written[writer] += self.writers[writer].publish(count)

    @rule(writer=writers, commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        if commits:
            self.writers[writer].connection.commit()
            self.stream.since |= set(self.written[writer])
        else:
            self.writers[writer].connection.rollback()
        self.written[writer] = []

    @rule()
    def answer_with_retries(self) -> None:
        """Retries of a shared subscription are nothing to a stream."""
        while held := self.work.lease(3):
            self.work.answer("retry", held, delays=["0 s"] * len(held.ids))
            if held.messages[0].attempt > 1:
                break

    @rule()
    def tick(self) -> None:
        tick = self.work.ask("tick", force=True)
        assert tick == max(self.stream.ticks) + 1
        self.stream.cut(tick)

    @rule(count=some)
    def tick_inside(self, count: int) -> None:
        """A tick in a transaction that publishes: what it publishes comes after it."""
        with self.work.connection.transaction():
            ids = self.work.publish(count)
            # Somebody with a later transaction id, so that the own one lies below the snapshot's end.
            self.stream.since |= set(self.other.publish())
            tick = self.work.ask("tick", force=True)
        self.stream.cut(tick)
        self.stream.since |= set(ids)

    @rule(reader=readers, worker=workers, most=some)
    def next_batch(self, reader: str, worker: str, most: int) -> None:
        stream, known = self.stream, self.stream.open.get(reader)
        rows = self.work.call("next_batch", subscription=reader, worker=worker, max_ticks=most, cut=False)
        first = stream.position[reader]
        newer = sorted(tick for tick in stream.ticks if tick > first)[:most]
        if known and known.expires_at > self.now:
            if known.worker == worker:
                assert [row.batch_id for row in rows] == [known.id]
                with refused("TQ003"):
                    self.finish(reader, known)
                known.token = rows[0].token
            else:
                assert rows == []
            return
        if not known and not newer:
            assert rows == []
            return
        (row,) = rows
        assert (row.from_tick_id, row.to_tick_id) == (first, known.last if known else newer[-1])
        stream.open[reader] = Batch(
            row.batch_id,
            row.token,
            first,
            row.to_tick_id,
            worker,
            self.now + LEASE_TIME,
            known and known.rows,
        )
        if known:
            stream.open[reader].rows = known.rows
            with refused("TQ003"):
                self.finish(reader, known)

    @rule(reader=readers)
    def read_batch(self, reader: str) -> None:
        for batch in (*self.stream.finished[reader][-2:], *filter(None, [self.stream.open.get(reader)])):
            rows = self.work.call("read_batch", subscription=reader, batch_id=batch.id)
            assert {row.id for row in rows} == self.stream.between(batch.first, batch.last)
            assert len(rows) == len({row.id for row in rows})
            assert batch.rows in (None, rows), "the same rows in the same order"
            batch.rows = rows

    @rule(reader=readers)
    def finish_batch(self, reader: str) -> None:
        batch = self.stream.open.get(reader)
        if batch is None:
            for before in self.stream.finished[reader][-1:]:
                assert self.finish(reader, before) is False
            return
        self.read_batch(reader)
        assert self.finish(reader, batch) is True
        self.stream.position[reader] = batch.last
        self.stream.finished[reader].append(self.stream.open.pop(reader))
        self.read[reader] += [row.id for row in batch.rows or ()]

    def finish(self, reader: str, batch: Batch) -> Any:
        return self.work.ask("finish_batch", subscription=reader, batch_id=batch.id, token=batch.token)

    @precondition(lambda self: not self.stream.open.get("search"))
    @rule(steps=st.integers(-1, 3))
    def advance(self, steps: int) -> None:
        """A reader that keeps its own offsets, as Spark does."""
        stream, first = self.stream, self.stream.position["search"]
        last = min(max(1, first + steps), max(stream.ticks))
        assert self.work.ask("advance", subscription="search", tick_id=last) == max(first, last)
        self.read["search"] += sorted(stream.between(first, last))
        stream.position["search"] = max(first, last)

    @rule(steps=st.sampled_from([-1, 1, 1]))
    def move_time(self, steps: int) -> None:
        self.now += 100 * steps
        move_clock(self.work.connection, f"{self.now} s")

    @rule()
    def rotate(self) -> None:
        """Three spans later. What no reader needs goes; what was read before cannot be read again then."""
        self.work.drain()
        self.work.rotate("3000 days")
        if self.work.is_empty("log"):
            for batches in self.stream.finished.values():
                batches.clear()
        everything_read = all(
            position == max(self.stream.ticks) and not self.stream.since
            for position in self.stream.position.values()
        )
        assert self.work.is_empty("log") or not everything_read or any(self.written)

    @invariant()
    def positions_agree(self) -> None:
        for reader, position in self.stream.position.items():
            assert self.work.ask("position", subscription=reader) == position

    def teardown(self) -> None:
        """In the end every reader has read every committed message once, tick by tick."""
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        self.tick()
        self.move_time(1)
        for reader in READERS:
            while self.stream.position[reader] < max(self.stream.ticks):
                self.next_batch(reader, "ada", 3)
                self.finish_batch(reader)
            assert_once(self.read[reader], self.stream.between(0, max(self.stream.ticks)))
        self.work.ask("drop_queue", force=True)
        for engine in (self.work, self.other, *self.writers):
            engine.connection.close()


def assert_once(read: Sequence[int], committed: set[int]) -> None:
    assert len(read) == len(committed)
    assert set(read) == committed


@pytest.mark.slow
def test_a_stream_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: StreamMachine(connect), 30, 40)
