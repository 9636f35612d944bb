"""A listener reads on while transactions overlap: nothing is missed or doubled, and in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, call, new_names
from conftest import Connect
from engine import Engine
from scope import some

Connection = psycopg.Connection[Any]

WRITERS = 4
STEPS = 120


class Listener:
    """Keeps a place, and what it read."""

    def __init__(self, work: Engine) -> None:
        self.work = work
        ((self.place, _),) = work.call("find_place")
        self.read: list[int] = []

    def look(self, limit: int) -> bool:
        """Read one page; whether there was anything."""
        rows = self.work.call("read_on", place=self.place, limit=limit)
        for row in rows:
            self.place = row[-1]
            if row[0] is not None:
                self.read.append(row[0])
        return bool(rows)


class Ledger:
    """Writers whose transactions overlap, and what each of them wrote, when."""

    def __init__(self, work: Engine, writers: list[Connection]) -> None:
        self.work = work
        self.writers = writers
        self.open: dict[int, list[int]] = {}
        self.began: dict[int, int] = {}
        self.committed: list[tuple[int, int, list[int]]] = []
        """When it first wrote, when it committed, and what."""

    def step(self, now: int, chance: random.Random) -> None:
        """One writer goes on: it writes, ends, or writes in a part that is rolled back."""
        n = chance.randrange(len(self.writers))
        writer = self.writers[n]
        if n in self.open and chance.random() < 0.4:
            ids = self.open.pop(n)
            if chance.random() < 0.75:
                writer.commit()
                self.committed.append((self.began[n], now, ids))
            else:
                writer.rollback()
            return
        if n not in self.open:
            self.open[n], self.began[n] = [], now
        if chance.random() < 0.2:
            writer.execute("savepoint part")
            ask(writer, "publish", queue=self.work.queue, payload={"n": 0})
            writer.execute("rollback to part")
        count = chance.randrange(1, 4)
        for _ in range(count):
            self.open[n].append(ask(writer, "publish", queue=self.work.queue, payload={"n": n}))

    def end(self, now: int) -> None:
        for n in sorted(self.open):
            self.writers[n].commit()
            self.committed.append((self.began[n], now, self.open[n]))
        self.open.clear()


@pytest.fixture
def work(connection: Connection) -> Engine:
    return Engine(connection, next(new_names("listened"))).create()


@pytest.fixture
def writers(connect: Connect) -> Iterator[list[Connection]]:
    made = [connect() for _ in range(WRITERS)]
    for each in made:
        each.autocommit = False
    yield made
    for each in made:
        each.rollback()


@pytest.mark.parametrize("seed", range(some(6, 40)))
def test_nothing_is_missed_or_doubled_however_transactions_overlap(
    work: Engine, writers: list[Connection], seed: int
) -> None:
    chance = random.Random(seed)
    ledger = Ledger(work, writers)
    listeners = [Listener(work) for _ in range(3)]
    for now in range(STEPS):
        ledger.step(now, chance)
        if chance.random() < 0.1:
            work.ask("tick", force=True)
        for n, listener in enumerate(listeners):
            if chance.random() < (0.8, 0.2, 0.02)[n]:
                listener.look(chance.randrange(1, 6))
    ledger.end(STEPS)
    written = sorted(id for _, _, ids in ledger.committed for id in ids)
    for listener in listeners:
        while listener.look(chance.randrange(1, 50)):
            pass
        assert sorted(listener.read) == written
        at = {id: n for n, id in enumerate(listener.read)}
        for began, committed, ids in ledger.committed:
            # Those of one transaction lie side by side, in the order of their ids.
            assert [at[id] for id in sorted(ids)] == list(range(at[min(ids)], at[min(ids)] + len(ids)))
            for later, _, others in ledger.committed:
                if committed < later:
                    assert max(at[id] for id in ids) < min(at[id] for id in others)
            assert began <= committed


def test_a_place_that_was_kept_elsewhere_reads_the_same_again(
    work: Engine, writers: list[Connection]
) -> None:
    first, second = writers[:2]
    early = ask(first, "publish", queue=work.queue, payload={"n": 1})
    listener = Listener(work)
    late = ask(second, "publish", queue=work.queue, payload={"n": 2})
    second.commit()
    begin = listener.place
    assert listener.look(10)
    first.commit()
    assert listener.look(10)
    assert listener.read == [late, early]
    again = Listener(work)
    again.place = begin
    while again.look(1):
        pass
    # Both had committed by then: what wrote first comes first.
    assert again.read == [early, late]


def test_a_listener_that_rotation_was_quicker_than_is_told(work: Engine) -> None:
    ask(work.connection, "publish", queue=work.queue, payload={"n": 1})
    listener = Listener(work)
    work.publish(3)
    work.ask("empty_queue")
    with pytest.raises(psycopg.Error) as caught:
        listener.look(10)
    assert caught.value.sqlstate == "TQ012"
    ((listener.place, _),) = call(work.connection, "find_place", queue=work.queue, start="earliest")
    ids = work.publish(2)
    while listener.look(10):
        pass
    assert listener.read == ids
