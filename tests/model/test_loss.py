"""Readers that stand still, in a ring of small spans: each message is read, or counted among what was lost.

Rows lie where the moved clock says, so a few steps of time fill, empty and reuse every segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from calling import Lease, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.machine import run_machine

HOURS = 3600
SPAN = 10 * HOURS
SHARED = ("default", "mail")
STREAM = "lake"
WRITERS = (0, 1)
KEYS = ("a", "b", "c")

TABLES = ("{log}", "{lease}", "{receipt}")

some = st.integers(1, 4)
shared = st.sampled_from(SHARED)
writers = st.sampled_from(WRITERS)


@contextmanager
def ended_or_not() -> Iterator[list[str]]:
    """What runs in here succeeds, or its lease has ended: then the list says so."""
    ended: list[str] = []
    try:
        yield ended
    except psycopg.Error as error:
        if error.sqlstate != "TQ003":
            raise
        ended.append("TQ003")


class LossMachine(RuleBasedStateMachine):
    LANES: ClassVar[str | None] = None
    IN_ORDER: ClassVar[bool] = False

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        connection = connect()
        self.work = Engine(connection, next(new_names("still"))).create(
            retention=f"{2 * SPAN} s", hold_at_most=f"{2 * SPAN} s", lanes=self.LANES
        )
        for name in SHARED:
            self.work.ask(
                "subscribe",
                subscription=name,
                max_attempts=0,
                lease_time=f"{3 * SPAN} s",
                start="earliest",
                in_order=True if self.IN_ORDER else None,
            )
        self.work.ask(
            "subscribe",
            subscription=STREAM,
            mode="exclusive",
            start="earliest",
            max_attempts=0,
            lease_time="900 d",
        )
        self.work.run(
            f"create or replace function public.{self.work.queue}() returns smallint language sql as"
            f" $$ select trunq._segment_at(trunq._find_queue('{self.work.queue}'), trunq.clock()) $$"
        )
        for table in (*TABLES, *(("{turn}", "trunq_data.{queue}_wake") if self.LANES else ())):
            self.work.run(f"alter table {table} alter segment set default public.{{queue}}()")
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written = [0 for _ in WRITERS]
        self.committed = 0
        self.now = 0
        self.leases: list[Lease] = []
        self.batch: Any = None
        self.done: dict[str, Counter[int]] = {name: Counter() for name in (*SHARED, STREAM)}

    def publish_by(self, engine: Engine, count: int) -> int:
        # By the default of its column a row lies where the moved clock says.
        engine.run(
            "insert into {log} (key, payload)"
            " select (%s::text[])[n %% 3 + 1], '{{}}' from generate_series(1, %s) n",
            list(KEYS),
            count,
        )
        return count

    @rule(count=some)
    def publish(self, count: int) -> None:
        self.committed += self.publish_by(self.work, count)

    @rule(writer=writers, count=some)
    def write(self, writer: int, count: int) -> None:
        self.written[writer] += self.publish_by(self.writers[writer], count)

    @rule(writer=writers, commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        connection = self.writers[writer].connection
        if commits:
            connection.commit()
            self.committed += self.written[writer]
        else:
            connection.rollback()
        self.written[writer] = 0
        # The next one begins now; one that stays open goes on in the segment of its beginning.
        move_clock(connection, f"{self.now} s")
        connection.commit()

    def has_lost(self, subscription: str) -> bool:
        return self.work.status(subscription).lost_at is not None

    @rule(subscription=shared, count=some)
    def lease(self, subscription: str, count: int) -> None:
        if self.has_lost(subscription):
            with refused("TQ026"):
                self.work.lease(count, subscription=subscription)
            return
        held = self.work.lease(count, subscription=subscription)
        if held:
            self.leases.append(held)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 9), verb=st.sampled_from(["ack", "ack", "release", "retry"]))
    def answer(self, which: int, verb: str) -> None:
        held = self.leases.pop(which % len(self.leases))
        more = {"delays": ["1 h"] * len(held.ids)} if verb == "retry" else {}
        # It may have been ended by its time, or with its segment.
        with ended_or_not() as ended:
            self.work.answer(verb, held, **more)
        if verb == "ack" and not ended:
            self.done[held.subscription].update(held.ids)

    @rule(ticks=st.integers(1, 3), upto=st.booleans())
    def read(self, ticks: int, upto: bool) -> None:
        """Go on with the batch that is open, or open the next one."""
        if self.has_lost(STREAM):
            with refused("TQ026"):
                self.work.call("next_batch", subscription=STREAM, worker="ada")
            if self.batch:
                with refused("TQ003"):
                    self.finish({})
            self.batch = None
            return
        if self.batch is None:
            found = self.work.call("next_batch", subscription=STREAM, worker="ada", max_ticks=ticks)
            self.batch = found[0] if found else None
            return
        rows = self.work.call("read_batch", subscription=STREAM, batch_id=self.batch.batch_id)
        last = rows[(len(rows) - 1) // 2] if upto and rows else None
        self.finish({"upto_txid": last.txid, "upto_id": last.id} if last else {})
        read = [row.id for row in rows if last is None or (row.txid, row.id) <= (last.txid, last.id)]
        self.done[STREAM].update(read)
        self.batch = None

    def finish(self, how_far: dict[str, int]) -> None:
        assert self.work.ask(
            "finish_batch",
            subscription=STREAM,
            batch_id=self.batch.batch_id,
            token=self.batch.token,
            **how_far,
        )

    @rule()
    def tick(self) -> None:
        self.work.ask("tick", force=True)

    @rule(share=st.sampled_from([0.3, 1.0, 1.0, 2.0]))
    def pass_time(self, share: float) -> None:
        """The leader is at work, mostly."""
        self.now += int(share * SPAN)
        move_clock(self.work.connection, f"{self.now} s")
        for writer in WRITERS:
            if not self.written[writer]:
                self.end_writing(writer, commits=True)
        self.work.ask("promote")
        self.work.ask("reap")
        self.rotate()

    @rule()
    def rotate(self) -> None:
        while self.work.ask("rotate") == 1:
            pass

    @rule(subscription=st.sampled_from([*SHARED, STREAM]))
    def accept(self, subscription: str) -> None:
        has_lost = self.has_lost(subscription)
        assert (self.work.ask("accept_loss", subscription=subscription) > 0) == has_lost
        if subscription == STREAM and has_lost:
            self.batch = None

    @invariant()
    def nothing_is_done_twice(self) -> None:
        for done in self.done.values():
            assert not done or max(done.values()) == 1

    def lost(self, subscription: str) -> int:
        rows = [row for row in self.work.call("list_losses") if row.subscription == subscription]
        assert not any(row.is_more for row in rows)
        return sum(row.messages for row in rows)

    def teardown(self) -> None:
        """In the end each message was read, or is one of those that were lost."""
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        self.leases.clear()
        # Leases run out, retries fall due; the leader rotates no more.
        move_clock(self.work.connection, f"{self.now + 5 * SPAN} s")
        for subscription in SHARED:
            self.accept(subscription)
        for hours in (1, 60):
            while self.work.ask("reap"):
                pass
            move_clock(self.work.connection, f"{self.now + 5 * SPAN + hours * HOURS} s")
            while self.work.ask("promote"):
                pass
            for subscription in SHARED:
                while held := self.work.lease(100, subscription=subscription):
                    self.work.ack(held)
                    self.done[subscription].update(held.ids)
                    self.work.ask("promote")
        self.accept(STREAM)
        self.tick()
        is_over = False
        while not is_over:
            before = self.batch
            self.read(3, False)
            is_over = before is None and self.batch is None
        self.nothing_is_done_twice()
        told = {name: (len(self.done[name]), self.lost(name)) for name in self.done}
        assert {name: sum(numbers) for name, numbers in told.items()} == dict.fromkeys(
            told, self.committed
        ), told
        self.work.ask("drop_queue", force=True)
        for engine in (self.work, *self.writers):
            engine.connection.close()


class LaneLossMachine(LossMachine):
    LANES = "key"


class OrderLossMachine(LossMachine):
    LANES = "key"
    IN_ORDER = True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "lanes", "in order"])
def test_each_message_is_read_once_or_counted_among_what_was_lost(connect: Connect, name: str) -> None:
    machines = {
        "plain": lambda: LossMachine(connect),
        "lanes": lambda: LaneLossMachine(connect),
        "in order": lambda: OrderLossMachine(connect),
    }
    run_machine(machines[name], 4, 40)
