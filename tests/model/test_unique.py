"""A queue with unique keys against its model: whatever is called in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from calling import Lease, move_clock, new_names
from conftest import Connect
from engine import Engine
from model.machine import run_machine

KEYS = ("a", "b", "c")
STEP = 1000
"""Seconds after which every lease ran out, and every window and delay is over."""

keys = st.sampled_from(KEYS)
holds = st.sampled_from(["done", "leased", "time"])


@dataclass
class Message:
    """One message, and the turn of its key that it took."""

    key: str
    turn: int
    hold: str
    attempt: int = 1


@dataclass
class Newest:
    """The newest turn of a key."""

    id: int
    turn: int
    start: int
    """The first turn that it stands for."""
    hold: str
    free_at: int = 0
    is_freed: bool = False


class UniqueMachine(RuleBasedStateMachine):
    def __init__(self, connect: Connect, policy: str, lanes: str | None) -> None:
        super().__init__()
        self.policy = policy
        self.work = self.create(Engine(connect(), next(new_names("model"))), unique=policy, lanes=lanes)
        self.work.ask("subscribe", subscription="default", max_attempts=3, backoff_base="0", jitter=0)
        self.newest: dict[str, Newest] = {}
        self.waiting: dict[int, Message] = {}
        self.delayed: dict[int, Message] = {}
        self.running: dict[int, Message] = {}
        self.dead: dict[int, Message] = {}
        self.leases: list[Lease] = []
        self.now = 0

    def create(self, work: Engine, **options: Any) -> Engine:
        return work.create(**options)

    # The rules of unique keys

    def is_held(self, key: str) -> bool:
        if key not in self.newest:
            return False
        newest = self.newest[key]
        return newest.free_at > self.now if newest.hold == "time" else not newest.is_freed

    def take(self, id: int, key: str, hold: str) -> Message:
        turn = self.newest[key].turn + 1 if key in self.newest else 1
        start = self.newest[key].start if self.is_held(key) else turn
        self.newest[key] = Newest(id, turn, start, hold, self.now + STEP // 2)
        return Message(key, turn, hold)

    def free(self, id: int, message: Message) -> None:
        if (newest := self.newest.get(message.key)) and newest.id == id:
            newest.is_freed = True

    def is_replaced(self, message: Message) -> bool:
        newest = self.newest.get(message.key)
        return (
            self.policy == "replace"
            and newest is not None
            and newest.turn > message.turn
            and (newest.start <= message.turn or (message.attempt == 1 and newest.hold != "time"))
        )

    # Publishing

    def options(self, hold: str) -> dict[str, str]:
        return {"unique_for": f"{STEP // 2} s"} if hold == "time" else {"unique_until": hold}

    @rule(key=keys, hold=holds, is_later=st.booleans(), conflict=st.sampled_from([None, "refuse"]))
    def publish(self, key: str, hold: str, is_later: bool, conflict: str | None) -> None:
        ((id, is_new),) = self.work.call(
            "publish_unique", payload={}, key=key, unique_key=key, on_conflict=conflict,
            delay=f"{STEP // 2} s" if is_later else None, **self.options(hold),
        )  # fmt: skip
        replaces = self.policy == "replace" and conflict is None
        assert is_new == (replaces or not self.is_held(key))
        if is_new:
            (self.delayed if is_later else self.waiting)[id] = self.take(id, key, hold)
        else:
            assert id == self.newest[key].id

    @rule(given=st.lists(keys, min_size=1, max_size=5), hold=holds)
    def publish_many(self, given: list[str], hold: str) -> None:
        rows = self.work.call(
            "publish_many_unique",
            payloads=["{}"] * len(given),
            keys=given,
            unique_keys=given,
            **self.options(hold),
        )
        replaces = self.policy == "replace"
        for at, (key, row) in enumerate(zip(given, rows, strict=True)):
            is_chosen = key not in (given[at + 1 :] if replaces else given[:at])
            assert row.is_new == (is_chosen and (replaces or not self.is_held(key)))
        for key, row in zip(given, rows, strict=True):
            if row.is_new:
                self.waiting[row.id] = self.take(row.id, key, hold)
        assert all(row.id == self.newest[key].id for key, row in zip(given, rows, strict=True))

    @rule(key=keys)
    def insert(self, key: str) -> None:
        row = self.work.run(
            "insert into {log} (key, unique_key) values (%s, %s) returning id", key, key
        ).fetchone()
        assert (row is not None) == (self.policy == "replace" or not self.is_held(key))
        if row is not None:
            self.waiting[row[0]] = self.take(row[0], key, "done")

    @rule(key=keys)
    def publish_in_vain(self, key: str) -> None:
        with self.work.connection.transaction(force_rollback=True):
            self.work.call("publish_unique", payload={}, unique_key=key)

    # Leases and answers

    @rule(count=st.integers(1, 4))
    def lease(self, count: int) -> None:
        held = self.work.lease(count)
        found = {id: message for id, message in self.waiting.items() if not self.is_replaced(message)}
        assert set(held.ids) <= set(found)
        assert held or not found
        self.pass_over()
        for id in held.ids:
            self.running[id] = self.waiting.pop(id)
            if self.running[id].hold == "leased" and self.running[id].attempt == 1:
                self.free(id, self.running[id])
        if held:
            self.leases.append(held)

    def pass_over(self) -> None:
        """Those that the lease found replaced are over, whatever becomes of their keys."""
        view = "select id from trunq_queue.{queue}_messages where state = 'replaced'"
        for (id,) in self.work.run(view).fetchall():
            if id in self.waiting:
                assert self.is_replaced(self.waiting[id])
                self.free(id, self.waiting.pop(id))

    def answer(self, verb: str) -> dict[int, Message]:
        held = self.leases.pop(0)
        ids = [id for id in held.ids if id in self.running]
        self.work.answer(verb, held)
        return {id: self.running.pop(id) for id in ids}

    def end(self, messages: dict[int, Message]) -> None:
        for id, message in messages.items():
            self.free(id, message)

    @precondition(lambda self: self.leases)
    @rule()
    def ack(self) -> None:
        self.end(self.answer("ack"))

    @precondition(lambda self: self.leases)
    @rule()
    def reject(self) -> None:
        rejected = self.answer("reject")
        self.end(rejected)
        self.dead |= rejected

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        self.waiting |= self.answer("release")
        self.work.ask("promote")

    @precondition(lambda self: self.leases)
    @rule()
    def retry(self) -> None:
        for id, message in self.answer("retry").items():
            if message.attempt == 3:
                self.end({id: message})
                self.dead[id] = message
            else:
                message.attempt += 1
                self.waiting[id] = message
        self.work.ask("promote")

    # Duties and people

    @rule()
    def requeue(self) -> None:
        dead_ids = {row.id: row.dead_id for row in self.work.call("list_dead")}
        assert set(dead_ids) == set(self.dead)
        order = sorted(self.dead, key=lambda dead: (self.dead[dead].key, dead_ids[dead]))
        back = []
        for id in order:
            message = self.dead[id]
            if not self.is_held(message.key):
                hold = "done" if message.hold == "time" else message.hold
                self.waiting[id] = self.take(id, message.key, hold)
                back.append(id)
            elif self.newest[message.key].id == id:
                message.attempt = 1
                self.waiting[id] = message
                back.append(id)
        assert self.work.ask("requeue") == len(back)
        self.dead = {id: message for id, message in self.dead.items() if id not in back}

    @rule()
    def forget(self) -> None:
        self.work.ask("forget")
        open_ones = [
            *self.waiting.values(),
            *self.delayed.values(),
            *self.running.values(),
            *self.dead.values(),
        ]
        for key in KEYS:
            # Nobody can tell whether it is known, once no message of it is left.
            if not self.is_held(key) and not any(message.key == key for message in open_ones):
                known = self.work.fetch(
                    "select count(*) from trunq_data.{queue}_unique where unique_key = %s", key
                )
                assert known == 0, key
                self.newest.pop(key, None)

    @rule()
    def time_goes_by(self) -> None:
        """Leases run out, windows and delays are over."""
        self.now += STEP
        move_clock(self.work.connection, f"{self.now} s")
        self.work.ask("reap")
        for id, message in self.running.items():
            assert message.attempt <= 3, id
        dead = {row.id for row in self.work.call("list_dead")} - set(self.dead)
        self.dead |= {id: self.running.pop(id) for id in dead}
        self.end({id: self.dead[id] for id in dead})
        for message in self.running.values():
            message.attempt = min(message.attempt + 1, 3)
        self.waiting |= self.running | self.delayed
        self.running, self.delayed, self.leases = {}, {}, []
        # What came back waits in line for some seconds.
        self.now += STEP
        move_clock(self.work.connection, f"{self.now} s")
        self.work.ask("promote")
        self.work.ask("promote")

    @invariant()
    def keys_are_held_as_the_model_says(self) -> None:
        with self.work.connection.transaction(force_rollback=True):
            for key in KEYS:
                ((_, is_new),) = self.work.call(
                    "publish_unique", payload={}, unique_key=key, on_conflict="refuse"
                )
                assert is_new != self.is_held(key), key

    def teardown(self) -> None:
        self.time_goes_by()
        expected = {id for id, message in self.waiting.items() if not self.is_replaced(message)}
        handed = []
        while held := self.work.lease(3):
            handed += held.ids
            self.work.ack(held)
        assert sorted(handed) == sorted(expected)
        assert self.work.status().ready == self.work.status().leased == self.work.status().delayed == 0
        self.work.connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, "key"])
@pytest.mark.parametrize("policy", ["refuse", "replace"])
def test_unique_keys_do_what_their_model_does(connect: Connect, policy: str, lanes: str | None) -> None:
    run_machine(lambda: UniqueMachine(connect, policy, lanes), 15, 30)
