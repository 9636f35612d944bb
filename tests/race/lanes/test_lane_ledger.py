"""Publishers that roll back, load in bulk and stay open, against workers that ack, retry and die: lanes lose
and double nothing, and no limit is exceeded.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from calling import Lease, answer, ask, come_back, fetch, lease, new_names
from conftest import Connect

LANES = [f"lane {n}" for n in range(40)]
PRIORITIES = (0, 3, 9)
PUBLISHERS = 4
WORKERS = 4


@dataclass
class Ledger:
    """What was committed, done and running, as seen from outside: running is never more than the truth."""

    limit: int | None = None
    guard: threading.Lock = field(default_factory=threading.Lock)
    committed: set[int] = field(default_factory=set)
    done: Counter[int] = field(default_factory=Counter)
    running: Counter[tuple[int, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    published: int = 0

    def started(self, held: Lease) -> None:
        with self.guard:
            for message in held.messages:
                lane = message.priority, message.key
                self.running[lane] += 1
                if self.limit is not None and self.running[lane] > self.limit:
                    self.wrong.append(f"{self.running[lane]} of {lane} run")

    def ended(self, messages: list[Any]) -> None:
        with self.guard:
            self.running.subtract((message.priority, message.key) for message in messages)

    def is_over(self) -> bool:
        with self.guard:
            return self.published == PUBLISHERS and self.committed <= set(self.done)


def publish(connection: psycopg.Connection[Any], queue: str, ledger: Ledger, chance: random.Random) -> None:
    """Transactions of all sizes; every fourth is rolled back, some stay open while others go on."""
    other = psycopg.connect(connection.info.dsn, password=connection.info.password)
    for turn in range(20):
        writer = other if turn % 10 == 5 else connection
        bulk = chance.choice([1, 1, 3, 20, 200])
        with suppress(psycopg.Rollback), writer.transaction(force_rollback=False):
            ids = ask(
                writer,
                "publish_many",
                queue=queue,
                payloads=[{}] * bulk,
                keys=chance.choices(LANES, weights=range(1, 41), k=bulk),
                priorities=chance.choices(PRIORITIES, k=bulk),
            )
            if writer is other:
                publish_beside(connection, queue, ledger, chance)
            if chance.random() < 0.25:
                raise psycopg.Rollback
            with ledger.guard:
                ledger.committed.update(ids)
    other.close()
    with ledger.guard:
        ledger.published += 1


def publish_beside(
    connection: psycopg.Connection[Any], queue: str, ledger: Ledger, chance: random.Random
) -> None:
    """What is published and committed while an older transaction is open."""
    for _ in range(5):
        ids = ask(connection, "publish_many", queue=queue, payloads=[{}], keys=[chance.choice(LANES)])
        with ledger.guard:
            ledger.committed.update(ids)


def work(connection: psycopg.Connection[Any], queue: str, ledger: Ledger, chance: random.Random) -> None:
    """Lease, then ack, retry, release, or die and start again."""
    name = f"worker {chance.random()}"
    while not ledger.is_over() and not ledger.wrong:
        held = lease(connection, queue, chance.choice([1, 7, 50, 400]), worker=name)
        if not held:
            come_back(connection, queue)
            continue
        ledger.started(held)
        fate = chance.choices(["ack", "retry", "release", "die"], weights=[30, 2, 2, 1])[0]
        ledger.ended(held.messages)
        if fate == "die":
            ask(connection, "reclaim", queue=queue, subscription="default", worker=name)
            continue
        more = {"delays": ["0"] * len(held.ids)} if fate == "retry" else {}
        assert answer(connection, fate, held, **more) == len(held.ids)
        if fate == "ack":
            with ledger.guard:
                ledger.done.update(held.ids)


@pytest.mark.parametrize("policy", ["fair", "priority"])
@pytest.mark.parametrize("limit", [None, 3])
def test_lanes_lose_and_double_nothing_and_exceed_no_limit(
    open_session: Connect, policy: str, limit: int | None
) -> None:
    session = open_session()
    queue = next(new_names("laned"))
    ask(session, "create_queue", queue=queue, lanes="priority,key")
    ask(session, "subscribe", queue=queue, subscription="default", max_attempts=0)
    if limit is not None or policy != "fair":
        ask(session, "set_lanes", queue=queue, policy=policy, max_running=limit)
    ledger = Ledger(limit)
    with ThreadPoolExecutor(PUBLISHERS + WORKERS) as pool:
        jobs = [
            pool.submit(do, open_session(), queue, ledger, random.Random(f"{do.__name__} {n} {limit}"))
            for do, count in ((publish, PUBLISHERS), (work, WORKERS))
            for n in range(count)
        ]
        for job in jobs:
            job.result()
    assert ledger.wrong == []
    assert set(ledger.done) == ledger.committed
    assert {id: n for id, n in ledger.done.items() if n > 1} == {}
    assert fetch(session, "select sum(ready + leased) from trunq.status(%s)", queue) == 0
