"""The state of every message, compared with a ledger while the ring turns: history.sql and messages.sql.

Messages are answered in every way, held for longer than the whole ring lasts, cancelled, requeued and purged.
So rows of one message lie in segments that go in another order than they came. The clock is moved.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from calling import Lease, move_clock
from engine import SEGMENTS, Engine
from model.standing import MOVED_SEGMENT

ROUNDS = 60
STEP = 5
"""Minutes; half a span."""

LONG = 14
"""Steps for which one lease at a time is held: seven spans, while the ring has four."""

TURNS = 10
"""So often each table must have lost a segment, or the test has shown nothing."""


@dataclass
class Ledger:
    """What was done to each message, and so the state in which it is."""

    work: Engine
    chance: random.Random
    minutes: int = 0
    states: dict[int, str] = field(default_factory=dict)
    marked: set[int] = field(default_factory=set)
    """Cancelled while they were ready or leased: they die at their next lease, or answer other than ack."""
    held: list[tuple[int, Lease, list[int]]] = field(default_factory=list)
    """Leases that are kept: until which minute, and what of them is open."""
    due: dict[int, int] = field(default_factory=dict)
    emptied: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)

    def pick(self, *states: str, most: int = 3) -> list[int]:
        found = [id for id, state in self.states.items() if state in states]
        return sorted(self.chance.sample(found, min(len(found), self.chance.randint(0, most))))

    def pass_time(self) -> None:
        self.minutes += STEP
        move_clock(self.work.connection, f"{self.minutes} minutes")
        self.work.ask("promote")
        for id in [id for id, minute in self.due.items() if minute <= self.minutes]:
            del self.due[id]
            self.states[id] = "ready"

    def publish(self) -> None:
        keys = [f"key {self.chance.randrange(5)}" for _ in range(self.chance.randint(1, 6))]
        for id in self.work.publish(len(keys), keys=keys):
            self.states[id] = "ready"
        for id in self.work.publish(1, keys=["key 0"], delay=f"{STEP + 1} minutes"):
            self.put_off(id, "scheduled")

    def put_off(self, id: int, state: str) -> None:
        self.states[id] = state
        self.due[id] = self.minutes + STEP + 1

    def lease(self) -> bool:
        held = self.work.lease(self.chance.randint(1, 8), lease_time="1000 days")
        # What was cancelled is buried on the way; which of it, the table of the dead says.
        buried = {row.id for row in self.work.call("list_dead", limit=1000, reason="cancelled")}
        for id in [id for id in self.marked & buried if self.states[id] == "ready"]:
            self.die(id)
        for row in held.messages:
            assert self.states[row.id] == "ready"
            assert row.id not in self.marked
            self.states[row.id] = "leased"
        if held:
            keep = self.chance.choice([0, 0, 0, 0, 1])
            if all(until <= self.minutes + STEP for until, *_ in self.held) and self.chance.random() < 0.1:
                keep = LONG
            self.held.append((self.minutes + keep * STEP, held, held.ids))
        return bool(held)

    def die(self, id: int) -> None:
        self.states[id] = "dead"
        self.marked.discard(id)

    def answer(self) -> None:
        for until, held, ids in [each for each in self.held if each[0] <= self.minutes]:
            self.held.remove((until, held, ids))
            for row in [row for row in held.messages if row.id in ids]:
                self.answer_one(held, row)

    def answer_one(self, held: Lease, row: Any) -> None:
        verb = self.chance.choice(["ack"] * 3 + ["retry", "later", "release", "reject", "time_out"])
        if verb == "later":
            self.work.answer("retry", held, [row.id], delays=[f"{STEP + 1} minutes"])
        elif verb == "retry":
            self.work.answer("retry", held, [row.id], delays=["0"])
        else:
            self.work.answer(verb, held, [row.id])
        is_last = row.attempt >= row.max_attempts
        if verb == "ack":
            self.states[row.id] = "done"
            self.marked.discard(row.id)
        elif verb == "reject" or row.id in self.marked or (is_last and verb != "release"):
            self.die(row.id)
        elif verb == "later":
            self.put_off(row.id, "retrying")
        else:
            self.states[row.id] = "ready"

    def cancel(self) -> None:
        ids = self.pick("ready", "leased", "retrying", "scheduled")
        for row in self.work.call("cancel", ids=ids):
            assert row.state == self.states[row.id]
        for id in ids:
            if self.due.pop(id, None):
                self.die(id)
            else:
                self.marked.add(id)

    def requeue_and_purge(self) -> None:
        ids = self.pick("dead", most=4)
        assert self.work.ask("requeue", ids=ids) == len(ids)
        self.states.update(dict.fromkeys(ids, "ready"))
        ids = self.pick("dead", most=1)
        assert self.work.ask("purge", ids=ids) == len(ids)
        self.states.update(dict.fromkeys(ids, "purged"))

    def rotate(self, tables: tuple[str, ...]) -> None:
        self.work.ask("forget")
        while True:
            before = {table: self.filled(table) for table in tables}
            if self.work.ask("rotate") != 1:
                return
            self.emptied.update(table for table in tables if self.filled(table) < before[table])

    def filled(self, table: str) -> int:
        name = f"trunq_data.{self.work.queue}_{table}"
        sizes = [f"(pg_relation_size('{name}_{n}') > 0)::integer" for n in range(SEGMENTS)]
        return int(self.work.fetch(f"select {' + '.join(sizes)}"))

    def compare(self) -> None:
        """All that is listed is in the state of the ledger, and all that is open, or dead, is listed."""
        listed = {row.id: row.state for row in self.work.call("list_messages", brief=True)}
        viewed = dict(self.work.run("select id, state from trunq_queue.{queue}_messages").fetchall())
        kept = {id: state for id, state in self.states.items() if state not in ("done", "purged")}
        assert listed == {**{id: self.states[id] for id in listed}, **kept}
        assert viewed == listed
        self.told.update(listed.values())

    def compare_lists(self) -> None:
        """The list of each state has what the list of all has in it."""
        listed = {row.id: row.state for row in self.work.call("list_messages", brief=True)}
        for state in {*self.states.values()}:
            assert set(self.work.listed(state=state)) == {id for id in listed if listed[id] == state}, state
        for id in self.chance.sample(sorted(listed), min(5, len(listed))):
            assert self.work.state(id) == listed[id]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lanes", [None, "key"], ids=["plain", "lanes"])
def test_every_state_is_that_of_its_ledger_while_the_ring_turns(
    connection: psycopg.Connection[Any], lanes: str | None
) -> None:
    connection.execute(MOVED_SEGMENT)
    work = Engine(connection, "states").create(retention="20 minutes", lanes=lanes)
    work.ask("subscribe", subscription="default", max_attempts=3, backoff_base="0")
    tables: tuple[str, ...] = ("log", "lease", "receipt")
    if lanes:
        work.ask("set_lanes", subscription="default", max_running=40)
        tables += ("turn", "wake")
    ledger = Ledger(work, random.Random(7))
    for round in range(ROUNDS):
        ledger.pass_time()
        ledger.publish()
        ledger.cancel()
        while ledger.lease():
            ledger.cancel()
            ledger.answer()
        ledger.answer()
        ledger.requeue_and_purge()
        ledger.rotate(tables)
        ledger.compare()
        if round % 10 == 9:
            ledger.compare_lists()
    print(f"{len(ledger.states)} messages; emptied: {dict(ledger.emptied)}; told: {dict(ledger.told)}")
    assert all(ledger.emptied[table] >= TURNS for table in tables), ledger.emptied
    assert all(ledger.told[state] > 0 for state in ("done", "dead", "purged", "leased", "retrying")), (
        ledger.told
    )
