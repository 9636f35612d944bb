"""Workers that ack, retry, give up, lose their leases and are killed: of a key no message overtakes
another, and no two run at once.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg

from calling import Lease, answer, ask, come_back, fetch, lease, new_names
from conftest import Connect

KEYS = [f"key {n}" for n in range(12)]
PUBLISHERS = 3
TURNS = 40
WORKERS = 5
KILLS = 25


@dataclass
class Order:
    """What was committed, and what runs or is held, as seen from outside: never more than the truth."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    committed: set[int] = field(default_factory=set)
    over: Counter[int] = field(default_factory=Counter)
    held: dict[str, int] = field(default_factory=dict)
    """Of each key the message that was started and is not over."""
    newest: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    running: set[str] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Their worker was killed while it answered."""
    wrong: list[str] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    published: int = 0
    kills: int = 0

    def started(self, held: Lease) -> None:
        with self.guard:
            for message in held.messages:
                first = self.held.get(message.key, message.id)
                if first != message.id:
                    self.wrong.append(f"{message.id} of {message.key} overtook {first}")
                if message.key in self.running:
                    self.wrong.append(f"two of {message.key} run")
                if message.id < self.newest[message.key] or message.id in self.over:
                    self.wrong.append(f"{message.id} of {message.key} came late")
                self.newest[message.key] = message.id
                self.held[message.key] = message.id
                self.running.add(message.key)

    def ended(self, messages: list[Any]) -> None:
        with self.guard:
            self.running -= {message.key for message in messages}

    def release(self, messages: list[Any], *, unsure: bool = False) -> None:
        """They may be over from now on."""
        with self.guard:
            for message in messages:
                self.held.pop(message.key, None)
            if unsure:
                self.unsure.update(message.id for message in messages)

    def finish(self, messages: list[Any]) -> None:
        with self.guard:
            self.over.update(message.id for message in messages)

    def is_over(self) -> bool:
        with self.guard:
            done = self.committed <= set(self.over) | self.unsure
            return bool(self.wrong) or (self.published == PUBLISHERS and done)


def publish(connection: psycopg.Connection[Any], queue: str, order: Order, number: int) -> None:
    """Each key has one publisher: its ids are in the order of its transactions."""
    chance, own = random.Random(number), KEYS[number::PUBLISHERS]
    for _ in range(TURNS):
        bulk = chance.choice([1, 1, 2, 10])
        with connection.transaction(force_rollback=chance.random() < 0.2) as transaction:
            ids = ask(
                connection,
                "publish_many",
                queue=queue,
                payloads=[{}] * bulk,
                keys=chance.choices(own, k=bulk),
            )
        if not transaction.force_rollback:
            with order.guard:
                order.committed.update(ids)
    with order.guard:
        order.published += 1


@dataclass
class Worker:
    """One that starts again after it was killed."""

    dsn: str
    queue: str
    order: Order
    number: int

    def run(self) -> None:
        chance = random.Random(f"worker {self.number}")
        while not self.order.is_over():
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                self.order.pids[self.number] = connection.info.backend_pid
                try:
                    ask(
                        connection,
                        "reclaim",
                        queue=self.queue,
                        subscription="default",
                        worker=f"w{self.number}",
                    )
                    while not self.order.is_over():
                        self.work(connection, chance)
                except psycopg.OperationalError:
                    self.order.kills += 1

    def work(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        held = lease(connection, self.queue, chance.choice([1, 3, 20]), worker=f"w{self.number}")
        if not held:
            ask(connection, "reap", queue=self.queue)
            come_back(connection, self.queue)
            return
        self.order.started(held)
        if chance.random() < 0.06:
            self.order.ended(held.messages)
            ask(connection, "extend", **held.named, lease_time="1 microsecond")
            return
        try:
            # A part of a lease may be answered otherwise.
            for part in (held.messages[::2], held.messages[1::2]):
                if part:
                    verb = chance.choices(["ack", "retry", "later", "release", "reject"], [30, 3, 3, 3, 2])
                    self.answer(connection, held, part, *verb)
        finally:
            self.order.ended(held.messages)

    def answer(self, connection: psycopg.Connection[Any], held: Lease, part: list[Any], verb: str) -> None:
        ids = [message.id for message in part]
        self.order.ended(part)
        if verb in ("retry", "later", "release"):
            delay = {"retry": ["0"], "later": ["1 minute"]}.get(verb)
            more = {"delays": delay * len(ids)} if delay else {}
            answer(connection, "retry" if delay else verb, held, ids, **more)
        else:
            self.order.release(part)
            try:
                answer(connection, verb, held, ids)
            except psycopg.OperationalError:
                self.order.release(part, unsure=True)
                raise
            self.order.finish(part)


def kill(connection: psycopg.Connection[Any], order: Order) -> None:
    chance = random.Random("kill")
    killed = 0
    while not order.is_over():
        if killed < KILLS and order.pids:
            connection.execute("select pg_terminate_backend(%s)", (chance.choice(list(order.pids.values())),))
            killed += 1
        connection.execute("select pg_sleep(0.02)")


def test_of_a_key_no_message_overtakes_another_whoever_is_killed(open_session: Connect) -> None:
    session = open_session()
    queue = next(new_names("ordered"))
    ask(session, "create_queue", queue=queue, lanes="key")
    ask(session, "subscribe", queue=queue, subscription="default", in_order=True, max_attempts=0)
    order = Order()
    dsn = f"{session.info.dsn} password={session.info.password}"
    with ThreadPoolExecutor(PUBLISHERS + WORKERS + 1) as pool:
        jobs = [pool.submit(publish, open_session(), queue, order, number) for number in range(PUBLISHERS)]
        jobs += [pool.submit(Worker(dsn, queue, order, number).run) for number in range(WORKERS)]
        jobs.append(pool.submit(kill, open_session(), order))
        for job in jobs:
            job.result()
    assert order.wrong == []
    assert order.kills
    assert order.committed <= set(order.over) | order.unsure
    assert {id: n for id, n in order.over.items() if n > 1} == {}
    assert fetch(session, "select sum(ready + leased) from trunq.status(%s)", queue) == 0
