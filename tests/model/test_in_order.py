"""A subscription in order against its model: the first message of each key that is not over, and no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from calling import Lease, come_back, move_clock, new_names
from conftest import Connect
from engine import Engine
from model.machine import run_machine

KEYS = ("a", "b", "c", "d")
LEASE_TIME = 1000

keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
which = st.sets(st.integers(0, 3), min_size=1)
any_lease = st.integers(0, 5)
delays = st.sampled_from([0, 100])


class OrderMachine(RuleBasedStateMachine):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("ordered"))).create(lanes="key", retention="2000 days")
        self.work.ask(
            "subscribe", subscription="default", in_order=True, max_attempts=0, lease_time=f"{LEASE_TIME} s"
        )
        self.waiting: dict[str, list[int]] = {key: [] for key in KEYS}
        """Of each key what is not over, in its order."""
        self.running: dict[int, Lease] = {}
        """What runs, and under which lease."""
        self.cancelled: set[int] = set()
        """Of what runs: it does not come back."""
        self.noted: set[int] = set()
        """What was cancelled while it was ready: a lease finds it."""
        self.delayed: dict[int, int] = {}
        self.lost: Counter[int] = Counter()
        self.leases: list[Lease] = []
        self.now = 0

    def free(self) -> set[int]:
        heads = {ids[0] for ids in self.waiting.values() if ids}
        return heads - self.running.keys() - self.delayed.keys()

    @rule(keys=keys)
    def publish(self, keys: list[str]) -> None:
        for key, id in zip(keys, self.work.publish(len(keys), keys=keys), strict=True):
            self.waiting[key].append(id)

    @precondition(lambda self: self.free())
    @rule(count=st.sampled_from([1, 2, 50]))
    def lease(self, count: int) -> None:
        free, dead = self.free(), self.work.status().dead
        held = self.work.lease(count)
        assert set(held.ids) <= free
        # What it finds cancelled takes the place of another, but never all places.
        buried = self.work.status().dead - dead
        # Who may have killed two workers is leased alone, cancelled or not.
        alone = any(self.lost[id] > 1 for id in free | self.noted)
        assert len(held.ids) + buried >= min(count, len(free)) or alone
        assert held or not free
        if held:
            self.running |= dict.fromkeys(held.ids, held)
            self.leases.append(held)

    def held(self, lease: int, which: set[int]) -> tuple[Lease, list[int]]:
        held = self.leases[lease % len(self.leases)]
        ids = [held.ids[n] for n in which if n < len(held.ids)]
        return held, [id for id in ids if self.running.get(id) is held]

    @precondition(lambda self: self.leases)
    @rule(lease=any_lease, which=which, verb=st.sampled_from(["ack", "reject"]))
    def finish(self, lease: int, which: set[int], verb: str) -> None:
        held, ids = self.held(lease, which)
        assert self.work.answer(verb, held, ids) == len(ids)
        self.stop(ids)
        self.end(set(ids))
        self.forget(held)

    @precondition(lambda self: self.leases)
    @rule(lease=any_lease, which=which, delay=delays, verb=st.sampled_from(["retry", "release"]))
    def give_back(self, lease: int, which: set[int], delay: int, verb: str) -> None:
        held, ids = self.held(lease, which)
        assert self.work.answer(verb, held, ids, delays=[f"{delay} s"] * len(ids)) == len(ids)
        back = self.come_back(ids)
        if verb == "retry":
            for id in ids:
                del self.lost[id]
        if delay:
            self.delayed |= dict.fromkeys(back, self.now + delay)
        self.forget(held)

    @precondition(lambda self: self.leases)
    @rule(key=st.sampled_from(KEYS), which=which)
    def cancel(self, key: str, which: set[int]) -> None:
        ids = [self.waiting[key][n] for n in which if n < len(self.waiting[key])]
        states = {row.id: row.state for row in self.work.call("cancel", ids=ids)}
        assert states == {id: self.state(id) for id in ids}
        self.cancelled |= self.running.keys() & ids
        self.noted |= set(ids) - self.running.keys() - self.delayed.keys()
        self.end(set(ids) - self.running.keys())

    def state(self, id: int) -> str:
        return "leased" if id in self.running else "retrying" if id in self.delayed else "ready"

    def come_back(self, ids: Iterable[int]) -> set[int]:
        """They run no more; returns those that nobody has cancelled."""
        self.stop(ids)
        self.end(self.cancelled.intersection(ids))
        return set(ids) - self.cancelled

    def stop(self, ids: Iterable[int]) -> None:
        for id in ids:
            del self.running[id]

    def end(self, ids: set[int]) -> None:
        for rest in self.waiting.values():
            rest[:] = [id for id in rest if id not in ids]
        for id in ids:
            self.delayed.pop(id, None)

    def forget(self, held: Lease) -> None:
        # A message runs under one lease, which is known as long as any of it does.
        if all(runs is not held for runs in self.running.values()):
            self.leases.remove(held)

    @precondition(lambda self: self.delayed)
    @rule()
    def wait(self) -> None:
        self.now += 150
        move_clock(self.work.connection, f"{self.now} s")
        self.work.ask("promote")
        self.delayed = {id: due for id, due in self.delayed.items() if due > self.now}

    @precondition(lambda self: self.leases)
    @rule()
    def lose(self) -> None:
        self.now += 2 * LEASE_TIME
        move_clock(self.work.connection, f"{self.now} s")
        assert self.work.ask("reap") == len(self.leases)
        come_back(self.work.connection, self.work.queue)
        self.lost.update(self.running.keys())
        self.come_back([*self.running])
        self.leases.clear()
        self.delayed.clear()

    @precondition(lambda self: self.leases)
    @rule()
    def rotate(self) -> None:
        while self.work.ask("rotate") == 1:
            pass

    def teardown(self) -> None:
        if self.leases:
            self.lose()
        come_back(self.work.connection, self.work.queue)
        seen: dict[str, list[int]] = {key: [] for key in KEYS}
        while held := self.work.lease(50):
            for message in held.messages:
                seen[message.key].append(message.id)
            self.work.ack(held)
        assert seen == self.waiting


@pytest.mark.slow
def test_a_subscription_in_order_does_what_its_model_does(open_session: Connect) -> None:
    run_machine(lambda: OrderMachine(open_session), 20, 40)
