"""A stream whose batches fail, are finished in part and sought back: each message once, and none lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from calling import move_clock, new_names
from conftest import Connect
from engine import Engine
from model.machine import run_machine

LAKE = {"subscription": "lake"}
WRITERS = (0, 1)


class PartsMachine(RuleBasedStateMachine):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("parts")))
        self.work.create(retention="2000 days", default_subscription=False)
        self.work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=2, backoff_base="0")
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written: list[list[int]] = [[] for _ in WRITERS]
        self.committed: set[int] = set()
        self.ticks: dict[int, set[int]] = {tick.tick_id: set() for tick in self.work.call("list_ticks")}
        self.done: set[int] = set()
        self.hours = 0

    def is_killer(self, id: int) -> bool:
        return id % 5 == 0

    @rule(count=st.integers(1, 9))
    def publish(self, count: int) -> None:
        self.committed |= set(self.work.publish(count))

    @rule(writer=st.sampled_from(WRITERS), count=st.integers(1, 4))
    def write(self, writer: int, count: int) -> None:
        self.written[writer] += self.writers[writer].publish(count)

    @rule(writer=st.sampled_from(WRITERS), commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        if commits:
            self.writers[writer].connection.commit()
            self.committed |= set(self.written[writer])
        else:
            self.writers[writer].connection.rollback()
        self.written[writer] = []

    def take(self, worker: str) -> Any:
        dead = self.dead()
        rows = self.work.call("next_batch", **LAKE, worker=worker, max_ticks=3)
        self.done |= self.dead_since(dead)
        for tick in self.work.call("list_ticks"):
            self.ticks.setdefault(tick.tick_id, set(self.committed))
        return rows[0] if rows else None

    @rule(
        worker=st.sampled_from(["ada", "bob"]),
        way=st.sampled_from(["finish", "finish", "finish", "part", "fail", "forget"]),
        share=st.floats(0, 1),
    )
    def handle(self, worker: str, way: str, share: float) -> None:
        batch = self.take(worker)
        if batch is not None:
            self.end(batch, way, share)

    def end(self, batch: Any, way: str, share: float) -> None:
        """What the reader of a batch makes of it."""
        named = {**LAKE, "batch_id": batch.batch_id, "token": batch.token}
        rows = self.work.call("read_batch", **LAKE, batch_id=batch.batch_id)
        ids = [row.id for row in rows]
        assert rows == sorted(rows, key=lambda row: (row.txid, row.id))
        assert len(set(ids)) == len(ids)
        assert not self.done & set(ids), "each once"
        assert self.ticks[batch.from_tick_id].isdisjoint(ids)
        assert set(ids) <= self.ticks[batch.to_tick_id]
        if not batch.is_part:
            assert set(ids) == self.ticks[batch.to_tick_id] - self.ticks[batch.from_tick_id]
        fatal = next((at for at, id in enumerate(ids) if self.is_killer(id)), None)
        if way == "forget":
            return
        if way == "fail" or (way == "finish" and fatal is not None):
            dead = self.dead()
            self.work.ask("fail_batch", **named, error="e", after="0")
            self.done |= self.dead_since(dead)
        elif way == "finish":
            assert self.work.ask("finish_batch", **named)
            self.done |= set(ids)
        else:
            upto = min(round(share * len(ids)), len(ids) if fatal is None else fatal)
            if upto:
                last = rows[upto - 1]
                assert self.work.ask("finish_batch", **named, upto_txid=last.txid, upto_id=last.id)
                self.done |= set(ids[:upto])

    def dead(self) -> int:
        return int(self.work.fetch("select coalesce(max(dead_id), 0) from trunq.dead where queue_id = {id}"))

    def dead_since(self, dead_id: int) -> set[int]:
        rows = self.work.run("select id from trunq.dead where queue_id = {id} and dead_id > " + str(dead_id))
        return {id for (id,) in rows.fetchall()}

    @rule()
    def take_over(self) -> None:
        """An hour later: whoever has a batch has lost it."""
        self.hours += 1
        move_clock(self.work.connection, f"{self.hours} h")

    @rule(back=st.integers(0, 5))
    def seek(self, back: int) -> None:
        reachable = [tick.tick_id for tick in self.work.call("list_ticks") if tick.reachable]
        if reachable:
            tick = reachable[max(0, len(reachable) - 1 - back)]
            assert self.work.ask("seek", **LAKE, tick_id=tick) == tick
            # What it jumped over is as good as done, what lies behind comes again.
            self.done = set(self.ticks[tick])

    @rule()
    def rotate(self) -> None:
        with self.work.clock("3000 days"):
            for _ in range(5):
                self.work.ask("rotate")

    def teardown(self) -> None:
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        for _ in range(3000):
            self.take_over()
            batch = self.take("ada")
            if batch is None:
                break
            self.end(batch, "finish", 1)
        assert self.done == self.committed, "nothing is lost"
        assert self.work.call("list_streams")[0].batches == 0
        self.work.ask("drop_queue", force=True)
        for engine in (self.work, *self.writers):
            engine.connection.close()


@pytest.mark.slow
def test_a_stream_that_fails_and_seeks_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: PartsMachine(connect), 25, 40)
