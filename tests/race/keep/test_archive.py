"""The archive between two leaders, late answers, rotation and ends: every attempt exactly once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import Any

import psycopg
import pytest

from calling import Lease, come_back, refused
from conftest import Connect
from engine import Engine
from scope import some
from waiting import wait_until

OLD = "3000 days"


@pytest.fixture
def work(connect: Connect) -> Engine:
    engine = Engine(connect(), "work").create(retention="2000 days")
    engine.ask("create_archive")
    return engine


def attempts(work: Engine) -> list[Any]:
    """The archive as it stands."""
    return work.run("select id, outcome from trunq_archive.work order by id, leased_at").fetchall()


def archive(work: Engine) -> list[Any]:
    """What stands in it when the duty has nothing left to do."""
    wait_until(lambda: work.ask("archive") == 0, what="the duty comes to an end")
    return attempts(work)


@pytest.mark.slow
def test_of_two_leaders_one_passes_on(work: Engine, connect: Connect) -> None:
    ids = work.publish(3)
    work.drain()
    first = work.on(connect(autocommit=False))
    assert first.ask("archive") == 3
    assert work.ask("archive") is None, "another is doing it"
    first.connection.commit()
    assert work.ask("archive") == 0
    assert attempts(work) == [(id, "success") for id in ids]


@pytest.mark.parametrize("end", ["rollback", "crash"])
def test_what_a_leader_began_and_did_not_end_another_does(work: Engine, connect: Connect, end: str) -> None:
    ids = work.publish(3)
    work.drain()
    first = work.on(connect(autocommit=False))
    assert first.ask("archive") == 3
    assert work.rotate(OLD) == 0, "nothing is emptied that is not committed there"
    if end == "rollback":
        first.connection.rollback()
    else:
        work.fetch("select pg_terminate_backend(%s)", first.connection.info.backend_pid)
        wait_until(lambda: work.ask("archive") is not None, what="its locks are given back")
    assert archive(work) == [(id, "success") for id in ids]
    # A segment that somebody else looks at, such as autovacuum, is left for the next turn.
    wait_until(lambda: work.rotate(OLD) > 0, what="segments are emptied")
    assert attempts(work) == [(id, "success") for id in ids]


def test_an_answer_that_is_not_committed_is_waited_for(work: Engine, connect: Connect) -> None:
    ids = work.publish(2)
    held = work.lease()
    late = work.on(connect(autocommit=False))
    late.ack(held)
    work.drain()
    assert archive(work) == [(ids[1], "success")]
    assert work.rotate(OLD) == 0
    late.connection.commit()
    assert work.rotate(OLD) == 0
    assert archive(work) == [(ids[0], "success"), (ids[1], "success")]


def test_a_late_answer_adds_nothing(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease(lease_time="1 second")
    with work.clock("1 minute"):
        work.ask("reap")
    with refused("TQ003"):
        work.ack(held)
    assert archive(work) == [(id, "lease_expired")]
    with refused("TQ003"):
        work.ack(held)
    assert archive(work) == [(id, "lease_expired")]


def test_an_answer_to_a_subscription_that_ends_is_waited_for(work: Engine, connect: Connect) -> None:
    work.ask("subscribe", subscription="mail")
    ids = work.publish(2)
    held = work.lease(2, subscription="mail")
    late = work.on(connect(autocommit=False))
    late.ack(held, ids[:1])
    work.ask("unsubscribe", subscription="mail")
    assert archive(work) == []
    late.connection.commit()
    assert archive(work) == [(ids[0], "success")]


def test_one_that_found_the_subscription_in_time_comes_too_late(work: Engine, connect: Connect) -> None:
    work.ask("subscribe", subscription="mail")
    ids = work.publish(2)
    held = work.lease(2, subscription="mail")
    # What it knows of subscriptions is of now.
    late = work.on(connect(autocommit=False))
    late.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.run("select 1")
    work.ask("unsubscribe", subscription="mail")
    assert archive(work) == []
    with pytest.raises(psycopg.Error) as caught:
        late.ack(held, ids[:1])
    assert caught.value.sqlstate in ("TQ003", "40001")


@pytest.mark.parametrize("way", ["drop_queue", "empty_queue"])
def test_a_queue_goes_only_when_its_attempts_are_there(work: Engine, connect: Connect, way: str) -> None:
    ids = work.publish(3)
    work.drain()
    leader = work.on(connect(autocommit=False))
    assert leader.ask("archive") == 3
    with refused("TQ009"):
        work.ask(way)
    leader.connection.rollback()
    work.ask(way)
    assert work.connection.execute("select id from trunq_archive.work order by id").fetchall() == [
        (id,) for id in ids
    ]


@pytest.mark.parametrize("way", ["drop_queue", "empty_queue"])
def test_a_queue_goes_only_without_an_answer_that_holds_its_lease(
    work: Engine, connect: Connect, way: str
) -> None:
    ids = work.publish(2)
    held = work.lease(2)
    work.ack(held, ids[:1])
    # As one that has locked the lease, and waits for the tables.
    late = work.on(connect(autocommit=False))
    late.run(
        "select pg_advisory_xact_lock_shared(trunq._lock_class('lease'), trunq._lease_lock({id}, %s))",
        held.lease_id,
    )
    more = {"force": True} if way == "drop_queue" else {}
    with refused("TQ009"):
        work.ask(way, **more)
    late.connection.rollback()
    work.ask(way, **more)
    kept = work.connection.execute("select id, outcome from trunq_archive.work").fetchall()
    assert kept == [(ids[0], "success")], "what was answered of it"


def test_a_month_that_somebody_reads_goes_later(work: Engine, connect: Connect) -> None:
    with work.clock("-100 days"):
        work.publish()
        work.drain()
        archive(work)
    work.ask("create_archive", archive_for="1 day")
    reader = connect(autocommit=False)
    reader.execute("select count(*) from trunq_archive.work")
    assert len(archive(work)) == 1
    reader.commit()
    assert archive(work) == []


def test_a_reader_holds_up_no_new_month(work: Engine, connect: Connect) -> None:
    reader = connect(autocommit=False)
    reader.execute("select count(*) from trunq_archive.work")
    work.publish()
    work.drain()
    assert len(archive(work)) == 1


@dataclass
class Ledger:
    """What became of attempts, as those outside know it."""

    over: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    published: set[int] = field(default_factory=set)
    handled: Counter[str] = field(default_factory=Counter)
    """Of each subscription, how many messages."""
    emptied: int = 0
    lock: Lock = field(default_factory=Lock)

    def note(self, subscription: str, ids: list[int], outcome: str) -> None:
        with self.lock:
            self.over.update((subscription, id, outcome) for id in ids)
            self.handled[subscription] += len(ids) if outcome == "success" else 0

    def behind(self) -> int:
        """How many messages the slower of the readers has before it."""
        with self.lock:
            return len(self.published) - min(self.handled[name] for name in READERS)

    def is_done(self, subscription: str) -> bool:
        with self.lock:
            return all(self.over[subscription, id, "success"] for id in self.published)


WORDS = {"ack": "success", "retry": "failed", "release": "released"}
READERS = ("default", "mail")


def publish(work: Engine, ledger: Ledger, stop: Event, end: Event) -> None:
    while not stop.is_set():
        ids = work.publish(20)
        with ledger.lock:
            ledger.published.update(ids)
        stop.wait(0.02)
        # On a busy machine readers would fall behind more and more, and no segment be done with.
        while ledger.behind() > 200 and not stop.wait(0.02):
            pass


def handle(work: Engine, ledger: Ledger, held: Lease, chance: random.Random) -> None:
    """Answer a lease in parts, or walk away from the rest."""
    left = list(held.ids)
    while left:
        verb = chance.choices(["ack", "retry", "release", "die"], weights=[30, 3, 2, 1])[0]
        part = left[: chance.randint(1, len(left))]
        more = {"delays": ["0"] * len(part)} if verb == "retry" else {}
        is_lost = verb == "die"
        if not is_lost:
            try:
                with work.connection.transaction(force_rollback=chance.random() < 0.1) as transaction:
                    work.answer(verb, held, part, **more)
            except psycopg.Error as error:
                if error.sqlstate != "TQ003":
                    raise
                is_lost = True
        if is_lost:
            ledger.note(held.subscription, left, "lease_expired")
            return
        if transaction.status is transaction.Status.COMMITTED:
            ledger.note(held.subscription, part, WORDS[verb])
            left = left[len(part) :]


def handle_all(subscription: str) -> Callable[..., None]:
    def loop(work: Engine, ledger: Ledger, stop: Event, end: Event) -> None:
        chance = random.Random(f"{subscription} {work.connection.info.backend_pid}")
        while not end.is_set():
            held = work.lease(chance.choice([1, 5, 50]), subscription=subscription, lease_time="500 ms")
            if held:
                handle(work, ledger, held, chance)
            else:
                end.wait(0.01)

    return loop


def lead(work: Engine, ledger: Ledger, stop: Event, end: Event) -> None:
    """One of two: it archives, and now and then does not commit; it reaps, promotes and rotates."""
    chance = random.Random(work.connection.info.backend_pid)
    while not end.is_set():
        # Pauses longer than the retention: segments are old before they are archived.
        if monotonic() % 6 < 2:
            with work.connection.transaction(force_rollback=chance.random() < 0.3):
                work.ask("archive")
        work.ask("reap")
        come_back(work.connection, work.queue)
        if work.ask("rotate") == 1:
            with ledger.lock:
                ledger.emptied += 1
        end.wait(0.02)


EMPTIED = some(6, 12)
"""Segments: the ring has four, so each queue goes round it."""


@pytest.fixture
def sessions(connect: Connect) -> Callable[[], Engine]:
    return lambda: Engine(connect(), "ring")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lanes", [None, "key"], ids=["plain", "lanes"])
def test_the_archive_equals_the_ledger(sessions: Callable[[], Engine], lanes: str | None) -> None:
    work = sessions().create(retention="2 seconds", lanes=lanes)
    work.ask("create_archive")
    for name in READERS:
        work.ask("subscribe", subscription=name, max_attempts=0)
    ledger, stop, end = Ledger(), Event(), Event()
    jobs = [publish, lead, lead, *(handle_all(name) for name in READERS for _ in range(2))]
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(job, sessions(), ledger, stop, end) for job in jobs]

        def is_over(what: Callable[[], bool]) -> bool:
            for job in running:
                if job.done() and job.exception():
                    job.result()
            return what()

        try:
            wait_until(lambda: is_over(lambda: ledger.emptied >= EMPTIED), 120, "segments are emptied")
            stop.set()
            wait_until(lambda: is_over(lambda: all(map(ledger.is_done, READERS))), 120, "all is handled")
        finally:
            stop.set()
            end.set()
        for job in running:
            job.result()
    with work.clock("1 minute"):
        while work.ask("reap"):
            pass
    wait_until(lambda: work.ask("archive") == 0, what="the duty comes to an end")
    kept = Counter(
        {
            (subscription, id, outcome): count
            for subscription, id, outcome, count in work.run(
                "select subscription, id, outcome, count(*) from trunq_archive.ring group by 1, 2, 3"
            )
        }
    )
    assert kept == ledger.over
    assert work.fetch("select count(*) from trunq_archive.ring where payload is null or attempt is null") == 0
    assert {outcome for *_, outcome in kept} == {"success", "failed", "released", "lease_expired"}
