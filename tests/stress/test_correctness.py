"""Everything at once for some seconds, judged by facts: nothing lost, nothing doubled, nothing made up.

Producers that roll back, to savepoints too, prepare their transactions, and stay open for longer than the
whole ring of segments lasts; competing workers of two subscriptions that ack, retry, release and walk away;
a reader of batches; ticks, reaping, promotion, and rotation of a ring of four segments of one second.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

import psycopg
import pytest

from calling import call
from conftest import Connect
from engine import Engine
from scope import some
from waiting import wait_until

SECONDS = some(5, 8)
PRODUCERS = 8
WORKERS = {"default": 4, "mail": 2}
LONG_WRITERS = 3
KEYS = 20


@dataclass
class Ledger:
    """What happened, as the processes outside know it."""

    committed: set[int] = field(default_factory=set)
    acked: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in WORKERS})
    batched: Counter[int] = field(default_factory=Counter)
    emptied: int = 0
    lost_leases: int = 0
    lock: Lock = field(default_factory=Lock)

    def commit(self, ids: list[int]) -> None:
        with self.lock:
            self.committed.update(ids)

    def ack(self, subscription: str, ids: list[int]) -> None:
        with self.lock:
            self.acked[subscription].update(ids)

    def done(self, subscription: str) -> set[int]:
        with self.lock:
            return set(self.acked[subscription])


@dataclass
class Stress:
    """The processes. Each has a connection and a sequence of chances of its own."""

    dsn: str
    ledger: Ledger = field(default_factory=Ledger)
    stop: Event = field(default_factory=Event)
    """Nobody publishes any more."""
    end: Event = field(default_factory=Event)

    @contextmanager
    def session(self, *, autocommit: bool = True) -> Iterator[Engine]:
        with psycopg.connect(self.dsn, autocommit=autocommit) as connection:
            yield Engine(connection, "work")

    def produce(self, number: int) -> None:
        chance = random.Random(number)
        with self.session(autocommit=False) as work:
            while not self.stop.is_set():
                ids = [id for _ in range(chance.randint(1, 4)) for id in self.publish(work, chance)]
                if chance.random() < 0.2:
                    ids += self.publish_to_savepoint(work, chance)
                if chance.random() < 0.3:
                    self.stop.wait(chance.random() * 0.05)
                if chance.random() < 0.2:
                    work.connection.rollback()
                else:
                    work.connection.commit()
                    self.ledger.commit(ids)

    def publish(self, work: Engine, chance: random.Random) -> list[int]:
        match chance.randint(0, 3):
            case 0:
                return work.publish(keys=[f"key {chance.randrange(KEYS)}"])
            case 1:
                count = chance.randint(1, 10)
                return work.publish(count, keys=[f"key {chance.randrange(KEYS)}" for _ in range(count)])
            case 2:
                return work.publish(delay=f"{chance.randint(0, 300)} milliseconds")
            case _:
                return [
                    row[0] for row in work.run("insert into {log} (kind) values ('a'), ('b') returning id")
                ]

    def publish_to_savepoint(self, work: Engine, chance: random.Random) -> list[int]:
        keeps = chance.random() < 0.5
        with work.connection.transaction(force_rollback=not keeps):
            ids = work.publish(2)
        return ids if keeps else []

    def produce_prepared(self) -> None:
        chance = random.Random(101)
        with self.session() as work:
            work.run("set trunq.notify = off")
            for number in range(10**6):
                if self.stop.is_set():
                    return
                work.run("begin")
                ids = work.publish(3)
                work.run(f"prepare transaction 'p{number}'")
                self.stop.wait(chance.random() * 0.2)
                if chance.random() < 0.3:
                    work.run(f"rollback prepared 'p{number}'")
                else:
                    work.run(f"commit prepared 'p{number}'")
                    self.ledger.commit(ids)

    def write_long(self, number: int) -> None:
        """Open for longer than the ring lasts: all it writes lands in the segment of its beginning."""
        with self.session(autocommit=False) as work:
            ids = work.publish(5)
            self.stop.wait(2 * number)
            for _ in range(5):
                self.stop.wait(SECONDS / 8)
                ids += work.publish(2)
            work.connection.commit()
            self.ledger.commit(ids)

    def work(self, subscription: str, number: int) -> None:
        chance = random.Random(1000 + number)
        with self.session() as work:
            while not self.end.is_set():
                held = work.lease(
                    chance.randint(1, 50), subscription=subscription, worker=f"w{number}", lease_time="300 ms"
                )
                if not held:
                    self.end.wait(0.005)
                    continue
                try:
                    self.handle(work, held, chance)
                except psycopg.Error as error:
                    if error.sqlstate != "TQ003":
                        raise
                    self.ledger.lost_leases += 1

    def handle(self, work: Engine, held: Any, chance: random.Random) -> None:
        again = [row.id for row in held.messages if row.attempt == 1 and chance.random() < 0.05]
        match chance.randint(0, 40):
            case 0:
                return  # walks away
            case 1:
                self.end.wait(chance.uniform(0.2, 0.6))  # perhaps too slow
            case _:
                pass
        done = [id for id in held.ids if id not in again]
        if done:
            assert work.ack(held, done) == len(done)
            self.ledger.ack(held.subscription, done)
        if again:
            verb, more = chance.choice([("retry", {"delays": ["0.1 s"] * len(again)}), ("release", {})])
            work.answer(verb, held, again, **more)

    def read_batches(self) -> None:
        with self.session() as work:
            while not self.end.is_set():
                for batch in work.call("next_batch", subscription="lake", worker="lake", max_ticks=3):
                    rows = work.call("read_batch", subscription="lake", batch_id=batch.batch_id)
                    again = work.call("read_batch", subscription="lake", batch_id=batch.batch_id)
                    assert rows == again
                    work.ask("finish_batch", subscription="lake", batch_id=batch.batch_id, token=batch.token)
                    self.ledger.batched.update(row.id for row in rows)
                self.end.wait(0.02)

    def lead(self) -> None:
        with self.session() as work:
            while not self.end.wait(0.03):
                work.ask("tick", force=True)
                for duty in ("promote", "reap"):
                    work.ask(duty)
                self.ledger.emptied += work.ask("rotate") or 0

    def watch(self) -> None:
        """Whatever rotation takes away: what was acked is never shown as waiting or held."""
        with self.session() as work:
            while not self.end.wait(0.1):
                done = self.ledger.done("default")
                for row in work.call("list_messages", limit=50):
                    assert row.id not in done or row.state == "done"
                for state in ("ready", "leased"):
                    assert done.isdisjoint(work.listed(state=state, limit=50))


@pytest.fixture(params=[None, "key"], ids=["plain", "lanes"])
def stress(database: str, connection: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Stress:
    work = Engine(connection, "work").create(retention="2 seconds", lanes=request.param)
    for name in WORKERS:
        work.ask("subscribe", subscription=name, max_attempts=0)
    work.ask("subscribe", subscription="lake", mode="exclusive")
    if request.param:
        work.ask("set_lanes", subscription="mail", max_running=40)
        work.ask("set_lane", subscription="mail", lane="key 0", rate=200, burst=50, rank=-1)
    return Stress(database)


def told_of_missing(work: Engine, ledger: Ledger) -> str:
    """Where the messages are that did not come to everyone in time."""
    told = [f"missing in batches: {sorted(ledger.committed - set(ledger.batched))[:20]}"]
    for name in WORKERS:
        missing = sorted(ledger.committed - ledger.done(name))
        shown = [work.run("select * from {log} where id = %s", id).fetchall() for id in missing[:3]]
        told.append(f"{name}: {len(missing)} missing, {missing[:20]}: {shown}")
    told.append(f"status: {call(work.connection, 'status', queue='work')}")
    told.append(
        f"newest leases: {work.run('select * from {lease} order by lease_id desc limit 8').fetchall()}"
    )
    if work.fetch("select lanes is not null from trunq.queue where name = 'work'"):
        told.append(f"lanes: {call(work.connection, 'list_lanes', queue='work', subscription='mail')}")
        turns = "select * from trunq_data.work_turn order by seq desc limit 60"
        told.append(f"turns: {work.connection.execute(turns).fetchall()}")
    return "\n".join(told)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled(stress: Stress, connect: Connect) -> None:
    work = Engine(connect(), "work")
    ledger = stress.ledger
    processes: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        *((stress.produce, (number,)) for number in range(PRODUCERS)),
        *((stress.write_long, (number,)) for number in range(LONG_WRITERS)),
        (stress.produce_prepared, ()),
        *((stress.work, (name, number)) for name, count in WORKERS.items() for number in range(count)),
        (stress.read_batches, ()),
        (stress.lead, ()),
        (stress.watch, ()),
    ]
    with ThreadPoolExecutor(len(processes)) as pool:
        running = [pool.submit(process, *arguments) for process, arguments in processes]
        try:
            stress.stop.wait(SECONDS)
            stress.stop.set()

            def everything_is_done() -> bool:
                failed = [future for future in running if future.done() and future.exception()]
                for future in failed:
                    future.result()
                return (
                    all(ledger.done(name) >= ledger.committed for name in WORKERS)
                    and set(ledger.batched) >= ledger.committed
                )

            try:
                wait_until(everything_is_done, 120, "every committed message is acked and in a batch")
            except AssertionError as error:
                error.add_note(told_of_missing(work, ledger))
                raise
            wait_until(lambda: work.is_empty("log"), 120, "all segments of the log are emptied")
        finally:
            stress.stop.set()
            stress.end.set()
        for future in running:
            future.result()
    print(f"{len(ledger.committed)} messages, {ledger.emptied} emptied, {ledger.lost_leases} leases lost")
    assert len(ledger.committed) > some(500, 1000)
    assert ledger.emptied >= 4
    for name in WORKERS:
        assert ledger.acked[name] == Counter(ledger.committed), name
    assert ledger.batched == Counter(ledger.committed)
    for row in call(work.connection, "status", queue="work"):
        assert (row.ready, row.leased, row.delayed, row.dead) == (0, 0, 0, 0)
