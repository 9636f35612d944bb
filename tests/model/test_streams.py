"""Many streams beside a shared subscription, in a ring that turns: nothing lost, doubled or out of order.

What a stream did is what it wrote into a table in the transaction that finished its batch. The model knows
exactly which messages each tick sees: so what every batch must hold, in order, where each stream stands, and
what is in reach.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from calling import ask, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.machine import run_machine
from model.standing import MOVED_SEGMENT, Stream

EXAMPLES = int(os.environ.get("TRUNQ_TEST_EXAMPLES", "3"))
WRITERS = (0, 1, 2)
MAX_ATTEMPTS = 2
FILTERS: dict[str, Any] = {"lake": None, "search": None, "some": {"kinds": ["a"]}, "late": None}
"""The streams that there may be, with their filters. The last ones come and go."""

names = list(FILTERS)

LEASE_MINUTES = 20
RETENTION = "2 hours"
"""Each of four segments is one hour."""

met: Counter[str] = Counter()
"""What happened on the way: a model that meets nothing proves nothing."""


class StreamsMachine(RuleBasedStateMachine):
    OPTIONS: ClassVar[dict[str, Any]] = {}
    """Of the queue, beside its retention."""

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("streams")))
        self.work.connection.execute(MOVED_SEGMENT.encode())
        self.work.create(retention=RETENTION, **self.OPTIONS)
        self.work.run("create table {queue}_effect (at serial, stream text, id bigint)")
        self.work.ask("subscribe", subscription="default", max_attempts=0)
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written: list[dict[int, str]] = [{} for _ in WRITERS]
        self.committed: dict[int, str] = {}  # id: kind
        self.ticks: dict[int, frozenset[int]] = {}  # which messages each sees
        self.cut_at: dict[int, datetime] = {}
        self.acked: list[int] = []
        self.minutes = 0
        self.streams: dict[str, Stream] = {}
        self.note_ticks()
        for name in ("lake", "search", "some"):
            self.subscribe(name, start="latest")

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.chance = Random(seed)

    @rule()
    def act(self) -> None:
        """One rule for all: of many rules, Hypothesis gives each sequence only some."""
        (action,) = self.chance.choices([*self.ACTIONS], [*self.ACTIONS.values()])
        note(action)
        getattr(self, action)()

    # What publishers do.

    def publish(self) -> None:
        self.put(self.chance.randint(1, 6), self.chance.choice("ab"))

    def put(self, count: int, kind: str) -> None:
        self.committed |= dict.fromkeys(self.work.publish(count, kinds=[kind] * count), kind)

    def write(self) -> None:
        """In a transaction that stays open, perhaps within a savepoint."""
        writer, count, kind = (
            self.chance.choice(WRITERS),
            self.chance.randint(1, 4),
            self.chance.choice("ab"),
        )
        way = self.chance.choice(["", "", "release s", "rollback to s"])
        one, connection = self.writers[writer], self.writers[writer].connection
        if way:
            connection.execute("savepoint s")
        now = f"{self.minutes} minutes"
        connection.execute("select set_config('trunq.clock_offset', %s, true)", (now,))
        ids = one.publish(count, kinds=[kind] * count)
        if way:
            connection.execute(way.encode())
        if way != "rollback to s":
            self.written[writer] |= dict.fromkeys(ids, kind)

    def end_writing(self) -> None:
        self.end_transaction(self.chance.choice(WRITERS), self.chance.choice([True, True, False]))

    def end_transaction(self, writer: int, commits: bool) -> None:
        if commits:
            self.writers[writer].connection.commit()
            self.committed |= self.written[writer]
        else:
            self.writers[writer].connection.rollback()
        self.written[writer] = {}

    # What the leader does.

    def tick(self) -> None:
        self.work.ask("tick", force=True)
        self.note_ticks()

    def tick_inside(self) -> None:
        """In a transaction that publishes: what it publishes comes after the tick."""
        with self.work.connection.transaction():
            ids = self.work.publish(2, kinds=["a", "a"])
            self.work.ask("tick", force=True)
        self.note_ticks()
        self.committed |= dict.fromkeys(ids, "a")

    def wait(self) -> None:
        self.move_time(self.chance.choice([5, 25, 70]))

    def move_time(self, minutes: int) -> None:
        self.minutes += minutes
        move_clock(self.work.connection, f"{self.minutes} minutes")

    def do_duties(self) -> None:
        self.work.ask("reap")
        self.work.ask("promote")
        before = self.work.pages("log")
        for _ in range(6):
            self.work.ask("rotate")
        met["emptied"] += self.work.pages("log") < before

    def turn_the_ring(self) -> None:
        """All have read everything, so old segments go; what was done cannot be read again then."""
        for writer in WRITERS[1:]:
            self.end_transaction(writer, commits=True)
        self.drain_all()
        self.move_time(200)
        # What a reader elsewhere may have to repeat is newer then.
        self.put(1, "a")
        self.drain_all()
        self.do_duties()

    # What a worker does beside them.

    def work_off(self) -> None:
        self.lease(self.chance.randint(1, 5))

    def lease(self, count: int) -> None:
        held = self.work.lease(count)
        if held and held.ids[0] % 4 == 0 and held.messages[0].attempt == 1:
            self.work.answer("retry", held, delays=["0 s"] * len(held.ids))
        elif held:
            self.work.ack(held)
            self.acked += held.ids

    # What readers of streams do.

    def read(self) -> None:
        name, worker = self.chance.choice(names), self.chance.choice(["ada", "ada", "bob"])
        if name not in self.streams or not self.take(
            name, worker, self.chance.randint(1, 3), self.chance.random() < 0.7
        ):
            return
        ways = ["finish", "upto", "upto", "retry", "fail", "fail", "roll back", "abandon"]
        self.end(name, self.chance.choice(ways), self.chance.random())

    def fail_again_and_again(self) -> None:
        name = self.chance.choice(names)
        for _ in range(self.chance.randint(2, 8)):
            if name in self.streams and self.take(name, "ada"):
                self.end(name, "fail", 1)

    def finish_late(self) -> None:
        """Whoever lost a batch changes nothing."""
        name = self.chance.choice(names)
        for batch in self.streams[name].ended[-4:] if name in self.streams else ():
            met["late"] += 1
            with refused("TQ003"):
                self.finish(name, batch)

    def seek(self) -> None:
        name, back, by = (
            self.chance.choice(names),
            self.chance.randint(0, 9),
            self.chance.choice(["tick_id", "at"]),
        )
        tick = max(1, max(self.ticks) - back)
        place = {by: tick if by == "tick_id" else self.cut_at[tick]}
        reachable = {row.tick_id for row in self.work.call("list_ticks") if row.reachable}
        if name not in self.streams:
            self.subscribe(name, **place)
        elif tick in reachable:
            assert self.work.ask("seek", subscription=name, **place) == tick
            self.move(name, tick)
        else:
            met["out of reach"] += 1
            with refused("TQ012"):
                self.work.ask("seek", subscription=name, **place)

    def seek_to_an_end(self) -> None:
        name, start = self.chance.choice(names), self.chance.choice(["latest", "earliest"])
        if name in self.streams:
            position = self.work.ask("seek", subscription=name, start=start)
            self.note_ticks()
            self.move(name, position)

    def unsubscribe(self) -> None:
        assert self.work.ask("unsubscribe", subscription="late") is ("late" in self.streams)
        self.streams.pop("late", None)

    ACTIONS: ClassVar = {
        "publish": 3,
        "write": 5,
        "end_writing": 4,
        "tick": 3,
        "tick_inside": 1,
        "wait": 1,
        "do_duties": 1,
        "turn_the_ring": 1,
        "work_off": 1,
        "read": 14,
        "fail_again_and_again": 3,
        "finish_late": 1,
        "seek": 3,
        "seek_to_an_end": 1,
        "unsubscribe": 1,
    }
    """How often each comes; groups, loss and others add theirs."""

    # The steps of these.

    def subscribe(self, name: str, **start: Any) -> None:
        one = {"subscription": name, "mode": "exclusive", "max_attempts": MAX_ATTEMPTS, "backoff_base": "0"}
        if FILTERS[name]:
            one["filter"] = FILTERS[name]
        one["lease_time"] = f"{LEASE_MINUTES} minutes"
        try:
            self.work.ask("subscribe", **one, **start)
        except psycopg.errors.Error as error:
            if error.sqlstate != "TQ012":
                raise
            return
        self.note_ticks()
        self.streams[name] = Stream(0)
        self.move(name, self.work.ask("position", subscription=name))

    def move(self, name: str, tick: int) -> None:
        """It stands at a tick now: what it jumped over is as good as done, what lies behind comes again."""
        stream = self.streams[name]
        self.lose_batch(name)
        stream.position, stream.rest = tick, None
        stream.skipped, stream.done = set(self.ticks[tick]), []
        stream.dead = set()
        # A retry in the log may lie on either side.
        stream.owed = set()

    def lose_batch(self, name: str) -> None:
        """Whoever has it in hand can finish it no more."""
        stream = self.streams[name]
        if stream.batch is not None:
            with refused("TQ003"):
                self.finish(name, stream.batch)
            stream.ended.append(stream.batch)
        stream.batch = None

    def take(self, name: str, worker: str, most: int = 1, cut: bool = True) -> bool:
        """Ask for a batch. It holds what the model says it must."""
        stream = self.streams[name]
        newest = self.dead_id()
        rows = self.work.call("next_batch", subscription=name, worker=worker, max_ticks=most, cut=cut)
        self.note_ticks()
        self.note_dead(name, newest)
        if stream.batch is not None and stream.held_until > self.minutes and stream.holder != worker:
            assert rows == []
            return False
        if not rows:
            assert stream.rest is None, "the rest of a window is handed out"
            assert stream.position == max(self.ticks)
            assert not cut or not self.unseen()
            return False
        self.lose_batch(name)
        stream.batch, stream.holder = rows[0], worker
        stream.held_until = self.minutes + LEASE_MINUTES
        self.check_batch(name)
        return True

    def check_batch(self, name: str) -> None:
        stream, batch = self.streams[name], self.streams[name].batch
        rows = self.work.call("read_batch", subscription=name, batch_id=batch.batch_id)
        assert rows == sorted(rows, key=lambda row: (row.txid, row.id))
        found = [(row.id, row.attempt) for row in rows]
        assert batch.from_tick_id == stream.position
        if stream.rest is None:
            assert not batch.is_part
            window = self.ticks[batch.to_tick_id] - self.ticks[batch.from_tick_id]
            mine = {id for id, attempt in found if attempt == 1}
            assert mine == {id for id in window if self.is_for(name, id)}
            assert {each for each in found if each[1] > 1} <= stream.retried
            assert len(found) == len(set(found))
            stream.rest, stream.upto = found, batch.to_tick_id
        assert batch.to_tick_id == stream.upto
        assert found == stream.rest[: len(found)], "the first of what is left, in order"
        assert found or not stream.rest
        met["part"] += batch.is_part
        begins = int(batch.from_snapshot.split(":")[1])
        met["late in a part"] += batch.is_part and any(row.txid < begins for row in rows)
        met["empty"] += not found
        stream.rows = rows

    def end(self, name: str, way: str, share: float) -> None:
        stream = self.streams[name]
        rows = stream.rows
        if way == "roll back":
            with self.work.connection.transaction(force_rollback=True):
                self.write_effects(name, rows)
                assert self.finish(name, stream.batch)
        elif way == "fail":
            newest = self.dead_id()
            self.work.ask("fail_batch", **self.named(name, stream.batch), error="e", after="0")
            self.lose_batch(name)
            self.note_dead(name, newest)
        elif way == "retry" and rows:
            one = rows[round(share * (len(rows) - 1))]
            with self.work.connection.transaction():
                self.work.ask("retry_batch", **self.named(name, stream.batch), ids=[one.id], after="1 minute")
                others = [row for row in rows if row.id != one.id]
                self.write_effects(name, others)
                newest = self.dead_id() if one.attempt < MAX_ATTEMPTS else None
                assert self.finish(name, stream.batch)
            met["retried"] += 1
            if newest is None:
                stream.dead.add(one.id)
            else:
                stream.retried.add((one.id, one.attempt + 1))
                stream.owed.add((one.id, one.attempt + 1))
            self.note_done(name, len(rows), others)
        elif way == "upto" and round(share * len(rows)):
            upto = rows[: round(share * len(rows))]
            last = {"upto_txid": upto[-1].txid, "upto_id": upto[-1].id}
            with self.work.connection.transaction():
                self.write_effects(name, upto)
                assert self.finish(name, stream.batch, **last)
            self.note_done(name, len(upto), upto)
        elif way in ("finish", "upto", "retry"):
            with self.work.connection.transaction():
                self.write_effects(name, rows)
                assert self.finish(name, stream.batch)
            assert self.finish(name, stream.batch) is False, "finished before"
            self.note_done(name, len(rows), rows)

    def write_effects(self, name: str, rows: Sequence[Any]) -> None:
        self.work.run(
            "insert into {queue}_effect (stream, id)"
            " select %s, u.id from unnest(%s::bigint[]) with ordinality u(id, at) order by at",
            name,
            [row.id for row in rows],
        )

    def finish(self, name: str, batch: Any, **upto: Any) -> Any:
        return self.work.ask("finish_batch", **self.named(name, batch), **upto)

    def named(self, name: str, batch: Any) -> dict[str, Any]:
        return {"subscription": name, "batch_id": batch.batch_id, "token": batch.token}

    def note_done(self, name: str, count: int, rows: Sequence[Any]) -> None:
        stream = self.streams[name]
        stream.batch = None
        stream.done += [row.id for row in rows]
        stream.owed -= {(row.id, row.attempt) for row in rows}
        self.go_on(stream, count)

    def note_ticks(self) -> None:
        for tick in self.work.call("list_ticks"):
            self.ticks.setdefault(tick.tick_id, frozenset(self.committed))
            self.cut_at[tick.tick_id] = tick.created_at

    def dead_id(self) -> int:
        return int(self.work.fetch("select coalesce(max(dead_id), 0) from trunq.dead where queue_id = {id}"))

    def note_dead(self, name: str, newest: int) -> None:
        """A message that failed alone died, or was handed out for the last time."""
        died = self.work.run(
            "select id from trunq.dead where queue_id = {id} and dead_id > " + str(newest)
        ).fetchall()
        stream = self.streams[name]
        met["dead"] += len(died)
        stream = self.streams[name]
        for (id,) in died:
            assert stream.rest is not None
            assert stream.rest[0][0] == id, "in order"
            stream.owed.discard(stream.rest[0])
            stream.dead.add(id)
            self.lose_batch(name)
            self.go_on(stream, 1)
        # A batch that holds nothing fails for good, and nothing dies.
        if stream.rest == [] and self.work.ask("position", subscription=name) == stream.upto:
            self.lose_batch(name)
            self.go_on(stream, 0)

    def go_on(self, stream: Stream, count: int) -> None:
        """So much of its window is done."""
        assert stream.rest is not None
        stream.rest = stream.rest[count:]
        if not stream.rest:
            stream.rest, stream.position = None, stream.upto

    def is_for(self, name: str, id: int) -> bool:
        return FILTERS[name] is None or self.committed[id] in FILTERS[name]["kinds"]

    def unseen(self) -> set[int]:
        return set(self.committed) - self.ticks[max(self.ticks)]

    # What must hold in every state.

    @invariant()
    def positions_agree(self) -> None:
        for name, stream in self.streams.items():
            assert self.work.ask("position", subscription=name) == stream.position

    @invariant()
    def every_tick_in_reach_has_all_its_messages(self) -> None:
        query = "select id from {log} where subscription_id is null"
        kept = {id for (id,) in self.work.run(query).fetchall()}
        for tick in self.work.call("list_ticks"):
            if tick.reachable:
                assert set(self.committed) - self.ticks[tick.tick_id] <= kept
        for stream in self.streams.values():
            assert set(self.committed) - self.ticks[stream.position] <= kept, "nothing is lost"

    def drain_all(self) -> None:
        for name in self.streams:
            self.drain(name)
        self.lease(1000)

    def drain(self, name: str) -> None:
        self.move_time(25)
        for _ in range(500):
            if not self.take(name, "ada", 3):
                return
            self.end(name, "finish", 1)
        raise AssertionError("the stream never comes to an end")

    def teardown(self) -> None:
        """In the end each stream has done every committed message once, but those that died."""
        for writer in WRITERS:
            self.end_transaction(writer, commits=True)
        self.move_time(70)
        self.work.ask("promote")
        for name, stream in self.streams.items():
            self.drain(name)
            assert not stream.owed, "retries come"
            effects = self.work.run("select id from {queue}_effect where stream = %s order by at", name)
            assert stream.done == [id for (id,) in effects.fetchall()][-len(stream.done) or 10**9 :]
            first = [id for id in stream.done if not any(id == each for each, _ in stream.retried)]
            assert len(first) == len(set(first)), "each once"
            expected = {id for id in self.committed if self.is_for(name, id)} - stream.skipped
            assert set(stream.done) | stream.dead >= expected, "nothing is lost"
            assert set(stream.done) <= expected | {id for id, _ in stream.retried}
        for _ in range(1000):
            self.work.ask("promote")
            if not self.work.status().ready:
                break
            self.lease(100)
        assert sorted(self.acked) == sorted(self.committed)
        self.work.run("drop table {queue}_effect")
        ask(self.work.connection, "drop_queue", queue=self.work.queue, force=True)
        for engine in (self.work, *self.writers):
            engine.connection.close()


@pytest.mark.slow
def test_streams_do_what_their_model_does_while_the_ring_turns(connect: Connect) -> None:
    met.clear()
    run_machine(lambda: StreamsMachine(connect), EXAMPLES, 100)
    assert all(
        met[what] for what in ("emptied", "out of reach", "late in a part", "dead", "late", "retried")
    ), met
