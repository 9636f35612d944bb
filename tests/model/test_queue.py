"""A queue with two shared subscriptions against its model: whatever is called in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from calling import Lease, call, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.reference import BACKOFF, LEASE_TIME, MAX_ATTEMPTS, Held, Reader

SUBSCRIPTIONS = ("default", "mail")
WORKERS = ("ada", "bob", "eve")
WRITERS = (0, 1)

some = st.integers(1, 4)
subscriptions = st.sampled_from(SUBSCRIPTIONS)
workers = st.sampled_from(WORKERS)
writers = st.sampled_from(WRITERS)
# Steps of time are hundreds of seconds, and what waits lasts fifty more or less: real seconds do not matter.
spans = st.sampled_from([50, 150])


class QueueMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("model"))).create(retention="2000 days")
        for subscription in SUBSCRIPTIONS:
            self.work.ask(
                "subscribe", subscription=subscription, max_attempts=MAX_ATTEMPTS,
                lease_time=f"{LEASE_TIME} s", backoff="constant", backoff_base=f"{BACKOFF} s", jitter=0,
            )  # fmt: skip
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written: list[list[int]] = [[] for _ in WRITERS]
        self.readers = {subscription: Reader() for subscription in SUBSCRIPTIONS}
        self.scheduled: dict[int, int] = {}
        self.now = 0

    # Publishing

    def arrive(self, ids: list[int]) -> None:
        for reader in self.readers.values():
            reader.ready |= dict.fromkeys(ids, 1)

    @rule(count=some)
    def publish(self, count: int) -> None:
        self.arrive(self.work.publish(count))

    @rule(count=some, delay=spans)
    def publish_later(self, count: int, delay: int) -> None:
        ids = self.work.publish(count, delay=f"{delay} s")
        self.scheduled |= dict.fromkeys(ids, self.now + delay)

    @rule(writer=writers, count=some)
    def write(self, writer: int, count: int) -> None:
        """In a transaction that stays open."""
        self.written[writer] += self.writers[writer].publish(count)

    @rule(writer=writers, commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        if commits:
            self.writers[writer].connection.commit()
            self.arrive(self.written[writer])
        else:
            self.writers[writer].connection.rollback()
        self.written[writer] = []

    # Leases and answers

    def took(self, held: Lease, worker: str) -> Any:
        reader = self.readers[held.subscription]
        if not held:
            assert not reader.ready
            return multiple()
        assert {row.id: row.attempt for row in held.messages}.items() <= reader.ready.items()
        assert len(set(held.ids)) == len(held.ids)
        assert len({(row.lease_id, row.token) for row in held.messages}) == 1
        reader.take(held.lease_id, worker, held.ids, self.now + LEASE_TIME)
        return held

    @rule(target=leases, subscription=subscriptions, worker=workers, count=some)
    def lease(self, subscription: str, worker: str, count: int) -> Any:
        return self.took(self.work.lease(count, subscription=subscription, worker=worker), worker)

    @rule(target=leases, subscription=subscriptions, count=some, commits=st.booleans())
    def write_and_lease(self, subscription: str, count: int, commits: bool) -> Any:
        """All in one transaction: what it publishes comes later, to everyone."""
        with self.work.connection.transaction(force_rollback=not commits):
            ids = self.work.publish()
            held = self.work.lease(count, subscription=subscription, worker="ada")
            ids += self.work.publish()
        if not commits:
            return multiple()
        took = self.took(held, "ada")
        self.arrive(ids)
        return took

    @rule(
        held=leases,
        verb=st.sampled_from(["ack", "ack", "ack", "retry", "reject", "release"]),
        delay=st.sampled_from([None, 0, 50, 150]),
        which=st.sets(st.integers(0, 3), min_size=1),
    )
    def answer(self, held: Lease, verb: str, delay: int | None, which: set[int]) -> None:
        ids = [id for at, id in enumerate(held.ids) if at in which] or held.ids
        more = {"delays": None if delay is None else [f"{delay} s"] * len(ids)} if verb == "retry" else {}
        reader = self.readers[held.subscription]
        known = reader.leases.get(held.lease_id)
        if known is None or (known.lost and not known.answered.issuperset(ids)):
            with refused("TQ003"):
                self.work.answer(verb, held, ids, **more)
            return
        fresh = [id for id in ids if id in known.open]
        assert self.work.answer(verb, held, ids, **more) == len(fresh)
        reader.answer(held.lease_id, fresh, verb, BACKOFF if delay is None else delay, self.now)

    @rule(held=leases, other=leases)
    def answer_for_another(self, held: Lease, other: Lease) -> None:
        if other.token == held.token:
            return
        with refused("TQ003"):
            call(self.work.connection, "ack", **held.named | {"token": other.token}, ids=held.ids)

    @rule(held=leases, span=spans)
    def extend(self, held: Lease, span: int) -> None:
        known = self.readers[held.subscription].leases.get(held.lease_id)
        if known is None or known.lost:
            with refused("TQ003"):
                call(self.work.connection, "extend", **held.named, lease_time=f"{span} s")
            return
        call(self.work.connection, "extend", **held.named, lease_time=f"{span} s")
        known.expires_at = self.now + span

    # Duties

    @rule(steps=st.sampled_from([-1, 1, 1, 1, 2]))
    def move_time(self, steps: int) -> None:
        self.now += 100 * steps
        for engine in (self.work, *self.writers):
            move_clock(engine.connection, f"{self.now} s")

    @rule()
    def reap(self) -> None:
        ended = 0
        for reader in self.readers.values():
            ended += reader.end(self.expired(reader), self.now)
        assert self.work.ask("reap") == ended

    def expired(self, reader: Reader) -> list[Held]:
        return [held for held in reader.leases.values() if held.expires_at <= self.now]

    @rule(subscription=subscriptions, worker=workers)
    def reclaim(self, subscription: str, worker: str) -> None:
        reader = self.readers[subscription]
        own = [held for held in reader.leases.values() if held.worker == worker]
        ended = reader.end(own, self.now)
        assert self.work.ask("reclaim", subscription=subscription, worker=worker) == ended

    @rule()
    def promote(self) -> None:
        due = [id for id, due_at in self.scheduled.items() if due_at <= self.now]
        self.arrive(due)
        count = len(due)
        for id in due:
            del self.scheduled[id]
        for reader in self.readers.values():
            for id, (attempt, due_at) in list(reader.retrying.items()):
                if due_at <= self.now:
                    reader.ready[id] = attempt
                    del reader.retrying[id]
                    count += 1
        assert self.work.ask("promote") == count

    @rule(subscription=subscriptions | st.none(), which=st.none() | st.sets(st.integers(0, 3), min_size=1))
    def requeue(self, subscription: str | None, which: set[int] | None) -> None:
        self.raise_dead("requeue", subscription, which)

    @rule(subscription=subscriptions | st.none(), which=st.none() | st.sets(st.integers(0, 3), min_size=1))
    def purge(self, subscription: str | None, which: set[int] | None) -> None:
        self.raise_dead("purge", subscription, which)

    def raise_dead(self, verb: str, subscription: str | None, which: set[int] | None) -> None:
        readers = [reader for name, reader in self.readers.items() if subscription in (name, None)]
        dead = sorted({id for reader in readers for id in reader.dead})
        ids = None if which is None else [id for at, id in enumerate(dead) if at in which]
        count = 0
        for reader in readers:
            for id in dead if ids is None else ids:
                if id in reader.dead:
                    attempt = reader.dead.pop(id)
                    if verb == "requeue":
                        reader.ready[id] = 1
                    else:
                        reader.purged[id] = attempt
                    count += 1
        assert self.work.ask(verb, subscription=subscription, ids=ids) == count

    @rule(force=st.booleans())
    def tick(self, force: bool) -> None:
        assert self.work.ask("tick", force=force) or not force

    @rule()
    def rotate(self) -> None:
        """When three spans have passed: everything goes, if nobody needs anything."""
        self.reap()
        self.work.rotate("3000 days")
        if any(self.written) or any(reader.ready or reader.leased() for reader in self.readers.values()):
            return
        assert self.work.is_empty("log")
        for reader in self.readers.values():
            reader.done, reader.purged = {}, {}
            reader.leases = {}

    # What must be so

    @invariant()
    def status_agrees(self) -> None:
        for row in self.work.call("status"):
            reader = self.readers[row.subscription]
            assert (row.ready, row.leased) == (len(reader.ready), len(reader.leased()))
            assert (row.delayed, row.dead) == (len(self.scheduled) + len(reader.retrying), len(reader.dead))

    @rule(subscription=subscriptions)
    def every_message_is_where_it_should_be(self, subscription: str) -> None:
        rows = self.work.call("list_messages", subscription=subscription, limit=1000)
        scheduled = dict.fromkeys(self.scheduled, ("scheduled", 1))
        expected = self.readers[subscription].states() | scheduled
        assert {row.id: (row.state, row.attempt) for row in rows} == expected
        assert [row.id for row in rows] == sorted(expected, reverse=True)

    @rule(held=leases)
    def a_message_is_shown_where_it_is(self, held: Lease) -> None:
        id = held.ids[0]
        expected = {name: state for name in SUBSCRIPTIONS if (state := self.readers[name].states().get(id))}
        if expected:
            rows = self.work.call("show_message", id=id)
            assert {row.subscription: (row.state, row.attempt) for row in rows} == expected
        else:
            with refused("TQ013"):
                self.work.call("show_message", id=id)

    def teardown(self) -> None:
        """In the end every committed message comes to everyone, once."""
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        for _ in range(MAX_ATTEMPTS + 1):
            self.move_time(2)
            self.reap()
            self.promote()
        for subscription in SUBSCRIPTIONS:
            self.every_message_is_where_it_should_be(subscription)
            while held := self.work.lease(4, subscription=subscription):
                self.took(held, "w")
                self.answer(held, "ack", None, {0, 1, 2, 3})
            assert not self.readers[subscription].ready
            self.every_message_is_where_it_should_be(subscription)
        self.work.ask("drop_queue", force=True)
        for engine in (self.work, *self.writers):
            engine.connection.close()


def test_a_queue_does_what_its_model_does(connect: Connect) -> None:
    run_state_machine_as_test(
        lambda: QueueMachine(connect),
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            # Shrinking takes minutes: add Phase.shrink when one fails and is not understood as it is.
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
