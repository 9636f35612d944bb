"""A queue with lanes against its model: lanes with limits, paused lanes, policies, and a ring that turns, the
clock going forth and back.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from calling import Lease, move_clock
from conftest import Connect
from engine import Engine
from model.machine import run_machine
from model.test_queue import SUBSCRIPTIONS, QueueMachine, subscriptions

LANES = ("a", "b", "c")
SPAN = 1000 * 86_400
"""Seconds for which a segment is written to: half of the queue's retention."""

lanes = st.sampled_from(LANES)
spans = st.sampled_from([-1, 1, 1, 2])
policies = st.sampled_from(["fair", "priority"])


class LaneMachine(QueueMachine):
    OPTIONS: ClassVar[dict[str, Any]] = {"lanes": "key"}

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.numbers = count()
        self.lanes: dict[int, str] = {}
        self.limits: dict[str, int | None] = dict.fromkeys(SUBSCRIPTIONS)
        self.paused: dict[str, set[str]] = {name: set() for name in SUBSCRIPTIONS}

    def put(self, engine: Engine, count: int = 1, **options: Any) -> list[int]:
        keys = options.pop("keys", None) or [LANES[next(self.numbers) * 5 % 7 % 3] for _ in range(count)]
        ids = super().put(engine, count, keys=keys, **options)
        self.lanes |= dict(zip(ids, keys, strict=True))
        return ids

    def running(self, subscription: str) -> Counter[str]:
        return Counter(self.lanes[id] for id in self.readers[subscription].leased())

    def eligible(self, subscription: str) -> dict[int, int]:
        running, limit = self.running(subscription), self.limits[subscription]
        return {
            id: attempt
            for id, attempt in self.readers[subscription].ready.items()
            if (lane := self.lanes[id]) not in self.paused[subscription]
            and (limit is None or running[lane] < limit)
        }

    def took(self, held: Lease, worker: str) -> None:
        super().took(held, worker)
        limit = self.limits[held.subscription]
        if held and limit is not None:
            running = self.running(held.subscription)
            # A limit that was lowered holds for what is handed out from then on.
            assert all(running[self.lanes[id]] <= limit for id in held.ids)

    @initialize(limit=st.sampled_from([None, 1, 2]))
    def limit(self, limit: int | None) -> None:
        """One of the two readers: a limit counts what is handed out after it was set."""
        self.set_lanes("mail", limit, "fair")

    @rule(subscription=subscriptions, limit=st.sampled_from([1, 2]), policy=policies)
    def change(self, subscription: str, limit: int, policy: str) -> None:
        self.set_lanes(subscription, self.limits[subscription] and limit, policy)

    def set_lanes(self, subscription: str, limit: int | None, policy: str) -> None:
        self.work.ask("set_lanes", subscription=subscription, max_running=limit, policy=policy)
        self.limits[subscription] = limit

    @rule(subscription=subscriptions, lane=lanes)
    def pause_lane(self, subscription: str, lane: str) -> None:
        self.work.ask("pause_lane", subscription=subscription, lane=lane)
        self.paused[subscription].add(lane)

    @precondition(lambda self: any(self.paused.values()))
    @rule(subscription=subscriptions)
    def resume_lanes(self, subscription: str) -> None:
        for lane in sorted(self.paused[subscription]):
            assert self.work.ask("resume_lane", subscription=subscription, lane=lane)
        self.paused[subscription].clear()

    def free(self) -> None:
        for subscription in SUBSCRIPTIONS:
            self.set_lanes(subscription, None, "fair")
            self.resume_lanes(subscription)

    @rule(path=st.lists(st.tuples(spans, st.booleans()), min_size=1, max_size=5))
    def turn_the_ring(self, path: list[tuple[int, bool]]) -> None:
        """From segment to segment: empty what nobody needs, and leave work in each, or none."""
        for steps, drains in path:
            self.turn(steps)
            self.publish(5)
            for subscription in SUBSCRIPTIONS:
                if drains:
                    self.take_everything(subscription, acks=True)
                else:
                    self.took(held := self.work.lease(2, subscription=subscription), "w")
                    if held:
                        self.answer(held, "ack", {0, 1})

    @rule(lane=lanes)
    def the_clock_goes_back_while_a_lane_is_served(self, lane: str) -> None:
        """The newest turn of the lane lies in an older segment than the turns before it, and goes first."""
        self.arrive(self.put(self.work, 10, keys=[lane] * 10))
        for subscription in SUBSCRIPTIONS:
            self.took(held := self.work.lease(3, subscription=subscription), "w")
            if held:
                self.answer(held, "ack", {0, 1, 2})
        self.turn(-1)
        for subscription in SUBSCRIPTIONS:
            self.take_everything(subscription, acks=True)
        self.turn(3)
        self.publish(3)

    def turn(self, steps: int) -> None:
        for writer in range(len(self.writers)):
            self.end_writing(writer, commits=True)
        # Never to the same time again: two leases that end together are taken for one cause.
        self.now += SPAN * steps + 1000
        for engine in (self.work, self.other, *self.writers):
            move_clock(engine.connection, f"{self.now} s")
        self.promote()
        self.reap()
        self.work.rotate(f"{self.now} s")
        self.forget_what_is_gone()

    def forget_what_is_gone(self) -> None:
        """What is done may be gone; what is not must be there, and the invariants say so."""
        logged: set[int] = set()
        self.leases = [held for held in self.leases if (known := self.known(held)) and known.open]
        for subscription in SUBSCRIPTIONS:
            listed = {
                row.id for row in self.work.call("list_messages", subscription=subscription, limit=1000)
            }
            reader = self.readers[subscription]
            for finished in (reader.done, reader.purged):
                for id in set(finished) - listed:
                    del finished[id]
            logged |= listed
        self.logged &= logged


@pytest.mark.slow
def test_a_queue_with_lanes_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: LaneMachine(connect), 12, 30)
